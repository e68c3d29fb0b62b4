"""``sentinel stake``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sentinel_market.cli.common import App, amount, tokens, verb
from sentinel_market.errors import ConfigError

if TYPE_CHECKING:
    from sentinel_market.chain.client import ChainClient
    from sentinel_market.chain.stake_vault import Unbond


@click.group()
def stake() -> None:
    """Stake in the vault. What is locked for a duty cannot be unbonded; what is unbonding pays out after a while."""


@verb(stake, "deposit", example="sentinel stake deposit alice 100")
@click.argument("name")
@click.argument("tokens_", metavar="TOKENS")
def deposit(app: App, name: str, tokens_: str) -> None:
    """Deposit stake and register the hot key, where it is not registered yet. Sent by the cold account."""
    units = amount(tokens_)
    identity = app.identity(name)
    client = app.cold(name)
    registered = client.vault.hot_key_of(identity.account) == identity.hot
    receipt = client.vault.deposit(units)
    if not registered:
        client.vault.register_signer(app.keystore.open_hot(name, app.password(name)))
    found = client.vault.stake_of(identity.account)
    app.emit(
        {"account": identity.account, "tx": receipt.hash, "hot": identity.hot, **_stake(found)},
        f"deposited {tokens(units)} tokens; {name} has {tokens(found.free)} free of {tokens(found.bonded)} bonded",
    )


@verb(stake, "unbond", example="sentinel stake unbond alice 40\nsentinel stake unbond alice --all")
@click.argument("name")
@click.argument("tokens_", metavar="[TOKENS]", required=False)
@click.option("--all", "everything", is_flag=True, help="All free stake.")
def unbond(app: App, name: str, tokens_: str | None, everything: bool) -> None:
    """Release locks whose time is over, then start to unbond free stake."""
    if (tokens_ is None) == (not everything):
        raise ConfigError("say how much: an amount of tokens, or --all")
    account = app.identity(name).account
    client = app.cold(name)
    released = release_due(client, account)
    units = client.vault.stake_of(account).free if tokens_ is None else amount(tokens_)
    receipt, unbond_id = client.vault.request_unbond(units)
    matures = next((one.matures_at for one in client.vault.unbonds(account) if one.id == unbond_id), 0)
    seconds = max(0, matures - client.now())
    app.emit(
        {
            "account": account,
            "tx": receipt.hash,
            "id": unbond_id,
            "amount": str(units),
            "matures_at": matures,
            "released": released,
            **_stake(client.vault.stake_of(account)),
        },
        f"{tokens(units)} tokens are unbonding; `sentinel stake withdraw {name}` in {seconds} s"
        + "".join(f"\nreleased {line}" for line in released),
    )


@verb(stake, "withdraw", example="sentinel stake withdraw alice")
@click.argument("name")
def withdraw(app: App, name: str) -> None:
    """Pay out every unbonding request that has matured."""
    account = app.identity(name).account
    client = app.cold(name)
    now = client.now()
    open_ = client.vault.unbonds(account)
    due = [one for one in open_ if one.matures_at <= now]
    if not due and open_:
        client.vault.withdraw(open_[0].id)  # refused by the vault, which says until when
    for one in due:
        client.vault.withdraw(one.id)
    paid = sum(one.amount for one in due)
    waiting = [
        {"id": one.id, "amount": str(one.amount), "matures_at": one.matures_at} for one in open_ if one not in due
    ]
    text = f"withdrew {tokens(paid)} tokens" if due else "nothing is unbonding; start with `sentinel stake unbond`"
    app.emit(
        {
            "account": account,
            "withdrawn": str(paid),
            "waiting": waiting,
            "balance": str(client.token.balance_of(account)),
        },
        text + (f"; {len(waiting)} request(s) are not mature yet" if waiting else ""),
    )


@verb(stake, "show", example="sentinel stake show alice --json")
@click.argument("name_or_address", metavar="NAME|ADDRESS")
def show(app: App, name_or_address: str) -> None:
    """Show the stake, the unbonding requests and the hot key of an account."""
    account = app.account(name_or_address)
    client = app.reader
    found = client.vault.stake_of(account)
    unbonds = client.vault.unbonds(account)
    hot = client.vault.hot_key_of(account)
    now = client.now()
    lines = [
        f"account    {account}" + ("  BANNED" if found.banned else ""),
        f"hot key    {hot or 'none registered'}",
        f"bonded     {tokens(found.bonded)} ({tokens(found.locked)} locked, {tokens(found.free)} free)",
        f"unbonding  {tokens(found.unbonding)}",
        *(
            f"           {tokens(one.amount)} "
            + (f"in {one.matures_at - now} s" if one.matures_at > now else "ready to withdraw")
            for one in unbonds
        ),
        f"credits    {tokens(found.credits)}",
        f"wallet     {tokens(client.token.balance_of(account))}",
    ]
    app.emit(
        {
            "account": account,
            "hot": hot,
            **_stake(found),
            "credits": str(found.credits),
            "banned": found.banned,
            "wallet": str(client.token.balance_of(account)),
            "unbonds": [_request(one) for one in unbonds],
        },
        "\n".join(lines),
    )


def _request(one: Unbond) -> dict[str, Any]:
    return {"id": one.id, "amount": str(one.amount), "matures_at": one.matures_at}


def _stake(found: Any) -> dict[str, str]:
    names = ("bonded", "locked", "free", "unbonding")
    return {name: str(getattr(found, name)) for name in names}


def release_due(client: ChainClient, account: str) -> list[str]:
    """Give back every lock of ``account`` whose time is over: slots, seats, bonds. Returns what was done."""
    done = []
    now = client.now()
    for job_id in range(1, client.market.job_count() + 1):
        job = client.market.job(job_id)
        for slot in client.market.slots(job_id):
            if slot.account == account and slot.state in ("claimed", "exiting", "cooling"):
                end = client.market.slot_duty_end(job_id, slot.slot)
                if end is not None and end <= now:
                    client.market.release_slot(job_id, slot.slot)
                    done.append(f"slot {slot.slot} of job {job_id}")
        for seat in client.market.seats(job_id):
            if seat.account != account:
                continue
            done += _settle_bonds(client, job_id, seat.index)
            if seat.state == "seated" and job.state in ("settled", "cancelled"):
                client.market.release_seat(job_id, seat.index)
                done.append(f"seat {seat.index} of job {job_id}")
    return done


def _settle_bonds(client: ChainClient, job_id: int, seat: int) -> list[str]:
    opened = {
        event.args["caseId"]
        for event in client.fetch_events(client.network.deployed_block, client.block_number())
        if event.name == "CaseOpened" and event.args["jobId"] == job_id
    }
    done = []
    for case_id in sorted(opened):
        state = client.court.case(case_id).state
        if state in ("executed", "expired") and client.court.bond_of(case_id, seat):
            client.court.settle_bond(case_id, seat)
            done.append(f"the bond of seat {seat} in case 0x{case_id.hex()[:8]}")
    return done
