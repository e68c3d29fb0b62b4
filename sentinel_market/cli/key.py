"""``sentinel key``."""

from __future__ import annotations

import click

from sentinel_market.cli.common import App, table, verb
from sentinel_market.errors import ConfigError

LOSSES = (
    "Losing the hot key costs nothing but a new grant; losing the cold key loses the stake and all future pay. "
    "Back the cold file up, with its password."
)


@click.group()
def key() -> None:
    """Identities. Each has a cold account, which owns stake and receives pay, and a hot key, which signs the work."""


def _is_local(app: App) -> bool:
    try:
        return app.network.local
    except ConfigError:
        return False


@verb(key, "new", example="sentinel key new alice")
@click.argument("name")
@click.option("--strong/--light", default=None, help="Key derivation: strong by default, light on a local network.")
def new(app: App, name: str, strong: bool | None) -> None:
    """Make the two keys of a new identity and say what each must hold."""
    light = _is_local(app) if strong is None else not strong
    made = app.keystore.create(name, app.password(name, new=True), light=light)
    files = [str(app.keystore.path(name, "cold")), str(app.keystore.path(name, "hot"))]
    app.emit(
        {"name": name, "account": made.account, "hot": made.hot, "light": light, "files": files},
        f"{name}\n"
        f"  account (cold)  {made.account}  needs the stake in tokens, and gas for deposits and withdrawals\n"
        f"  hot key         {made.hot}  needs gas for claims and reports; can never move money\n"
        f"  files           {files[0]}\n                  {files[1]}\n{LOSSES}",
    )


@verb(key, "list", example="sentinel key list --json")
def list_keys(app: App) -> None:
    """List the identities of this home."""
    found = app.keystore.identities()
    rows = [(one.name, one.account, one.hot) for one in found]
    app.emit(
        [{"name": one.name, "account": one.account, "hot": one.hot} for one in found],
        table(("NAME", "ACCOUNT", "HOT KEY"), rows) if found else f"no keys in {app.keystore.directory}",
    )


@verb(key, "show", example="sentinel key show alice")
@click.argument("name")
def show(app: App, name: str) -> None:
    """Show the addresses and files of an identity; needs no password and shows no key."""
    found = app.identity(name)
    paths = [str(app.keystore.path(name, "cold")), str(app.keystore.path(name, "hot"))]
    app.emit(
        {"name": name, "account": found.account, "hot": found.hot, "files": paths},
        f"{name}\n  account  {found.account}  {paths[0]}\n  hot key  {found.hot}  {paths[1]}",
    )
