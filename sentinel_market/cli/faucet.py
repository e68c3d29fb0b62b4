"""``sentinel faucet``."""

from __future__ import annotations

import click

from sentinel_market.cli.common import App, amount, tokens, verb
from sentinel_market.errors import ConfigError

_group = click.Group()


@verb(_group, "faucet", example="sentinel faucet alice --tokens 500")
@click.argument("name")
@click.option("--tokens", "wanted", default="1000", show_default=True, help="Test tokens for the account.")
def faucet(app: App, name: str, wanted: str) -> None:
    """Give an identity play money: gas for both keys, test tokens for the account. Local networks only."""
    from sentinel_market.chain.local import GAS_GIFT_WEI, LocalChain

    units = amount(wanted)
    identity = app.identity(name)
    if not app.network.local:
        raise ConfigError(f"the network of {app.settings.network_file} is not local: it has no faucet")
    client = app.reader
    LocalChain(app.network.rpc).give(
        app.network, gas=[identity.account, identity.hot], tokens={identity.account: units} if units else {}
    )
    balance = client.token.balance_of(identity.account)
    app.emit(
        {"account": identity.account, "hot": identity.hot, "tokens": str(balance), "gas_wei": str(GAS_GIFT_WEI)},
        f"{name}: {tokens(balance)} tokens on {identity.account}, gas for both keys",
    )
