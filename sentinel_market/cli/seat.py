"""``sentinel seat``."""

from __future__ import annotations

import click

from sentinel_market.cli.common import App, job_or_fail, table, verb
from sentinel_market.errors import ConfigError


@click.group()
def seat() -> None:
    """Seats: the verifiers' places in a job."""


@verb(seat, "list", example="sentinel seat list 1")
@click.argument("job_id", metavar="JOB", type=int)
def list_seats(app: App, job_id: int) -> None:
    """List the taken seats of a job."""
    job = job_or_fail(app, job_id)
    found = app.reader.market.seats(job_id)
    rows = [(one.index, one.state, one.account, one.hot_key) for one in found]
    text = table(("SEAT", "STATE", "ACCOUNT", "HOT KEY"), rows) + f"\n{len(found)} of {job.num_seats} seats are taken"
    app.emit(list(found), text)


@verb(seat, "release", example="sentinel seat release victor 1")
@click.argument("name")
@click.argument("job_id", metavar="JOB", type=int)
def release(app: App, name: str, job_id: int) -> None:
    """Get the stake of a seat back when its job is settled or cancelled."""
    account = app.identity(name).account
    mine = [one for one in app.reader.market.seats(job_id) if one.account == account]
    if not mine:
        raise ConfigError(f"{name} has no seat of job {job_id}; see `sentinel seat list {job_id}`")
    client = app.hot(name)
    receipt = client.market.release_seat(job_id, mine[0].index)
    app.emit(
        {"job_id": job_id, "seat": mine[0].index, "tx": receipt.hash},
        f"seat {mine[0].index} of job {job_id} is released; its stake is free",
    )
