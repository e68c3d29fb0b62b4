"""``sentinel doctor``: everything that may keep a person from taking part, each failure with its fix."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import click

from sentinel_market.cli.common import App, table, tokens, verb
from sentinel_market.errors import SentinelError, UserError

if TYPE_CHECKING:
    from sentinel_market.chain.client import ChainClient

GAS_A_TRANSACTION: Final = 400_000
"""Units of gas that the dearest ordinary transaction takes, rounded up."""
MAX_HEAD_AGE: Final = 60.0
MAX_SKEW: Final = 15.0
"""Seconds. Chain time runs in blocks, so the head may well be one block old."""

_group = click.Group()
State = Literal["ok", "FAIL", "skip"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the answer."""

    name: str
    state: State
    found: str
    fix: str = ""


@verb(_group, "doctor", example="sentinel doctor\nsentinel doctor alice --transactions 50 --json")
@click.argument("name", required=False)
@click.option("--transactions", default=20, show_default=True, help="Transactions that each key must have gas for.")
@click.option("--min-stake", default="100", show_default=True, help="Tokens of free stake to look for.")
@click.option("--listen", multiple=True, metavar="PORT", type=int, help="A port that must be free here; repeatable.")
def doctor(app: App, name: str | None, transactions: int, min_stake: str, listen: tuple[int, ...]) -> int:
    """Check this machine, the network, and (with NAME) an identity. Exit code 2 when something must be mended."""
    from sentinel_market.cli.common import amount

    checks = list(_run(app, name, transactions, amount(min_stake), listen))
    bad = [check for check in checks if check.state == "FAIL"]
    rows = [(check.state, check.name, check.found) for check in checks]
    text = [table(("", "CHECK", "FOUND"), rows), *(f"\n{check.name}: {check.fix}" for check in bad)]
    app.emit(
        {"ok": not bad, "checks": [{"name": c.name, "state": c.state, "found": c.found, "fix": c.fix} for c in checks]},
        "\n".join(text),
    )
    return 2 if bad else 0


def _run(app: App, name: str | None, transactions: int, min_stake: int, ports: tuple[int, ...]) -> Iterator[Check]:
    yield from _machine(ports)
    try:
        home = app.settings.home
    except UserError as exc:
        yield Check("settings", "FAIL", "wrong", str(exc))
        return
    yield Check("settings", "ok", f"home {home}")
    yield from _permissions(app)
    try:
        network = app.network
    except UserError as exc:
        yield Check("network file", "FAIL", "missing or wrong", str(exc))
        return
    yield Check("network file", "ok", f"chain {network.chain_id}, {len(network.contracts)} contracts")
    try:
        client = app.reader
    except UserError as exc:
        yield Check("chain", "FAIL", "not usable", str(exc))
        return
    yield Check("chain", "ok", f"chain id {network.chain_id}, code at every address")
    yield from _clock(client)
    yield _coordinator(app)
    if name is not None:
        yield from _identity(app, client, name, transactions, min_stake)


def _machine(ports: tuple[int, ...]) -> Iterator[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info >= (3, 11)
    yield Check("python", "ok" if good else "FAIL", version, "" if good else "install Python 3.11 or newer")
    for package, why in (("torch", "computes"), ("coincurve", "signs")):
        if importlib.util.find_spec(package) is None:
            yield Check(package, "FAIL", "not installed", f"{package} {why}: run `make setup` or pip install {package}")
        else:
            yield Check(package, "ok", importlib.metadata.version(package))
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError as exc:
                fix = f"stop what listens on port {port}, or listen on another one"
                yield Check(f"port {port}", "FAIL", exc.strerror or "in use", fix)
            else:
                yield Check(f"port {port}", "ok", "free")


def _permissions(app: App) -> Iterator[Check]:
    loose = app.keystore.loose_permissions()
    found = len(app.keystore.identities()) if app.keystore.directory.exists() else 0
    if loose:
        names = " ".join(f"'{path}'" for path in loose)
        yield Check("key permissions", "FAIL", f"{len(loose)} readable by others", f"chmod go-rwx {names}")
    else:
        yield Check("key permissions", "ok", f"{found} identities, private")


def _clock(client: ChainClient) -> Iterator[Check]:
    age = time.time() - client.now()
    if age > MAX_HEAD_AGE:
        fix = (
            "the node is behind or the chain stands still: wait for it to catch up, or set SENTINEL_RPC to another one"
        )
        yield Check("head age", "FAIL", f"{age:.0f} s", fix)
    else:
        yield Check("head age", "ok", f"{max(age, 0):.0f} s, block {client.block_number()}")
    if age < -MAX_SKEW:
        fix = "set this machine's clock (it is behind the chain): enable time synchronisation"
        yield Check("clock", "FAIL", f"{-age:.0f} s behind the chain", fix)
    else:
        yield Check("clock", "ok", "not behind the chain")


def _coordinator(app: App) -> Check:
    try:
        health = app.coordinator.health()
    except SentinelError as exc:
        return Check(
            "coordinator", "FAIL", "no answer", f"{exc}; start it (`sentinel net up`), or set SENTINEL_COORDINATOR"
        )
    if not health.ok:
        return Check("coordinator", "FAIL", "in trouble", f"{health.problem}; restart it, or use another one")
    if health.chain_id != app.network.chain_id:
        return Check(
            "coordinator", "FAIL", f"of chain {health.chain_id}", "set SENTINEL_COORDINATOR to one of this chain"
        )
    return Check("coordinator", "ok", f"indexed block {health.indexed_block}")


def _identity(app: App, client: ChainClient, name: str, transactions: int, min_stake: int) -> Iterator[Check]:
    try:
        identity = app.identity(name)
    except UserError as exc:
        yield Check("key", "FAIL", "missing", str(exc))
        return
    yield _attempt("key lock", lambda: app.keystore.lock(name).__enter__().release(), "not in use")
    password = app.settings.password.read()
    if password is None:
        yield Check("password", "skip", "not set; it will be asked for")
    else:
        yield _attempt("password", lambda: app.keystore.open_hot(name, password), "opens the keystore")
    needed = transactions * GAS_A_TRANSACTION * client.gas_price()
    local = app.network.local
    for kind, address in (("hot", identity.hot), ("cold", identity.account)):
        had = client.gas_balance(address)
        shown = f"{had / 1e18:.4f} coins, {transactions} transactions need about {needed / 1e18:.4f}"
        fix = f"`sentinel faucet {name}`" if local else f"send {(needed - had) / 1e18:.4f} coins to {address}"
        yield Check(f"gas of the {kind} key", "ok" if had >= needed else "FAIL", shown, "" if had >= needed else fix)
    stake = client.vault.stake_of(identity.account)
    if stake.banned:
        fix = "a banned account can only unbond and claim earned pay; make a new identity to take part again"
        yield Check("ban", "FAIL", "banned", fix)
    enough = stake.free + stake.locked >= min_stake
    fix = f"`sentinel stake deposit {name} {tokens(max(0, min_stake - stake.free - stake.locked))}`"
    shown = f"{tokens(stake.free)} free, {tokens(stake.locked)} locked, {tokens(min_stake)} wanted"
    yield Check("stake", "ok" if enough else "FAIL", shown, "" if enough else fix)
    registered = client.vault.hot_key_of(identity.account)
    good = registered == identity.hot
    fix = f"`sentinel stake deposit {name} AMOUNT` registers {identity.hot}"
    yield Check("hot key on chain", "ok" if good else "FAIL", registered or "none registered", "" if good else fix)


def _attempt(name: str, action: Callable[[], object], good: str) -> Check:
    try:
        action()
    except UserError as exc:
        return Check(name, "FAIL", "refused", str(exc))
    return Check(name, "ok", good)
