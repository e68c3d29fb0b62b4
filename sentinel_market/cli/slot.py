"""``sentinel slot``."""

from __future__ import annotations

import click

from sentinel_market.cli.common import App, job_or_fail, table, verb
from sentinel_market.errors import ConfigError

_NOBODY = "0x" + "0" * 40


@click.group()
def slot() -> None:
    """Slots: one replica of one stage of a job each."""


@verb(slot, "list", example="sentinel slot list 1")
@click.argument("job_id", metavar="JOB", type=int)
def list_slots(app: App, job_id: int) -> None:
    """List the slots of a job and who holds them."""
    job_or_fail(app, job_id)
    found = app.reader.market.slots(job_id)
    rows = [
        (one.slot, one.stage, one.replica, one.state, one.nonce, "-" if one.account == _NOBODY else one.account)
        for one in found
    ]
    app.emit(list(found), table(("SLOT", "STAGE", "REPLICA", "STATE", "NONCE", "ACCOUNT"), rows))


@verb(slot, "exit", example="sentinel slot exit alice 1")
@click.argument("name")
@click.argument("job_id", metavar="JOB", type=int)
@click.option("--slot", "number", type=int, help="Which slot, if the identity holds several.")
def exit_slot(app: App, name: str, job_id: int, number: int | None) -> None:
    """Leave a slot: serve through the notice, then the evidence tail, then the stake is free. Costs nothing."""
    account = app.identity(name).account
    held = [one.slot for one in app.reader.market.slots(job_id) if one.account == account and one.state == "claimed"]
    if number is None:
        if len(held) != 1:
            what = f"holds slots {', '.join(map(str, held))}: choose one with --slot" if held else "holds no slot"
            raise ConfigError(f"{name} {what} of job {job_id}; see `sentinel slot list {job_id}`")
        number = held[0]
    client = app.hot(name)
    receipt = client.market.exit_slot(job_id, number)
    event = receipt.event("SlotExited").args
    now = client.now()
    app.emit(
        {
            "job_id": job_id,
            "slot": number,
            "tx": receipt.hash,
            "exit_at": event["exitAt"],
            "releasable_at": event["releasableAt"],
        },
        f"slot {number} of job {job_id}: duty ends in {max(0, event['exitAt'] - now)} s, the stake is free in "
        f"{max(0, event['releasableAt'] - now)} s (`sentinel stake unbond {name} --all`)",
    )


@verb(slot, "release", example="sentinel slot release alice 1")
@click.argument("name")
@click.argument("job_id", metavar="JOB", type=int)
def release(app: App, name: str, job_id: int) -> None:
    """Get the stake of a slot back when its duty and its evidence tail are over."""
    account = app.identity(name).account
    held = [
        one.slot
        for one in app.reader.market.slots(job_id)
        if one.account == account and one.state in ("claimed", "exiting", "cooling")
    ]
    if not held:
        raise ConfigError(f"{name} holds no slot of job {job_id}; see `sentinel slot list {job_id}`")
    client = app.hot(name)
    done = [(number, client.market.release_slot(job_id, number).hash) for number in held]
    app.emit(
        [{"job_id": job_id, "slot": number, "tx": tx} for number, tx in done],
        "\n".join(f"slot {number} of job {job_id} is released; its stake is free" for number, _ in done),
    )
