"""``sentinel verifier``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sentinel_market.cli.common import App, table, verb
from sentinel_market.errors import ConfigError

if TYPE_CHECKING:
    from sentinel_market.wire import dto


@click.group()
def verifier() -> None:
    """Verifiers drive the microbatches of a job, check every frame, and are paid for it."""


@verb(
    verifier,
    "start",
    example="""
sentinel verifier start victor
sentinel verifier start victor --job 1 --listen 127.0.0.1:7001
sentinel verifier start victor --record runs/recording
""",
)
@click.argument("name")
@click.option("--job", "job_id", type=int, help="Job to sit in; by default the newest one with a free seat.")
@click.option(
    "--listen", default="127.0.0.1:0", show_default=True, help="Where the relay listens; port 0: any free one."
)
@click.option("--public", help="The address that workers dial, where it is another one than --listen.")
@click.option(
    "--record",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="For measurements: write all that this seat judges, and its verdicts, into a new folder (megabytes a step), "
    "for `sentinel sim replay`.",
)
@click.option(
    "--record-mb",
    type=click.IntRange(1, 1_000_000),
    default=4096,
    show_default=True,
    help="The recording ends, at a whole step, before it is larger than this; the seat goes on.",
)
def start(
    app: App, name: str, job_id: int | None, listen: str, public: str | None, record: Path | None, record_mb: int
) -> int:
    """Take a seat of a job (or take up the one that is held) and serve until the job is settled or Ctrl-C."""
    app.identity(name)
    _ = app.reader  # the chain is checked before a password is asked for and torch is loaded
    password = app.password(name)
    from verifier.agent import VerifierOptions, main

    options = VerifierOptions(
        name=name, job_id=job_id, listen=listen, public=public, record=record, record_bytes=record_mb * 1_000_000
    )
    return main(app.settings, password, options, app.say)


@verb(
    verifier,
    "record",
    example="""
sentinel verifier record
sentinel verifier record --job 1
sentinel verifier record --account 0x70997970C51812dc3A010C7d01b50e0d17dc79C8
""",
)
@click.option("--job", "job_id", type=click.IntRange(1, 2**63 - 1), help="All seats of this job, fault by fault.")
@click.option(
    "--account",
    metavar="NAME_OR_ADDRESS",
    help="Whose record; by default that of the only identity of this home, and with --job all seats.",
)
def record(app: App, job_id: int | None, account: str | None) -> None:
    """The public record of verifier seats: what was drawn and audited, misses, false alarms, and what they take from
    pay. It is what the seats themselves publish; AGREE says how many of them say exactly this."""
    from sentinel_market.wire.http_client import Refused

    whose = None if account is None else app.account(account)
    try:
        if job_id is not None:
            _show_job(app, app.coordinator.seats_record(job_id), whose)
        else:
            whose = whose or _own_account(app)
            _show_account(app, app.coordinator.account_record(whose))
    except Refused as error:
        if error.code == "unknown-job":
            raise ConfigError(f"there is no job {job_id} on this chain; see `sentinel job list`") from None
        if error.code == "unknown-account":
            raise ConfigError(
                f"{whose} never took a verifier seat on this chain; `sentinel seat list JOB` shows who did"
            ) from None
        raise


def _own_account(app: App) -> str:
    found = app.keystore.identities()
    if len(found) == 1:
        return found[0].account
    names = ", ".join(one.name for one in found)
    has = f"{len(found)} identities ({names})" if found else "no identity"
    raise ConfigError(
        f"whose record? {app.settings.keys_dir} has {has}; say --account NAME, --account 0x... or --job JOB"
    )


def _show_job(app: App, view: dto.JobRecordView, account: str | None) -> None:
    seats = [one for one in view.seats if account is None or one.account.lower() == account.lower()]
    if account is not None and view.seats and not seats:
        holders = ", ".join(one.account for one in view.seats)
        raise ConfigError(f"{account} holds no seat of job {view.job_id}; its seats are those of {holders}")
    header = ("ACCOUNT", "DRAWN", "AUDITS", "FAULTS", "VOIDED", "CHARGED", "AGREE")
    rows = [
        (
            one.account,
            one.drawn,
            f"{one.audits_done} of {one.audits_due}",
            len(one.faults) + sum(one.earlier.values()),
            one.voided,
            one.charged,
            f"{one.agree} of {view.reporters}",
        )
        for one in seats
    ]
    lines = [
        f"{one.account}: {fault.kind} in step {fault.step}, recorded in step {fault.recorded}, "
        f"subject {fault.subject[:16]}, said by {fault.said_by} of {view.reporters}"
        for one in seats
        for fault in one.faults
    ]
    lines += [f"{one.account}: earlier {_by_kind(one.earlier)}" for one in seats if one.earlier]
    if view.step is None:
        text = f"no seat of job {view.job_id} has published a record yet; the first comes with the first step"
    else:
        head = f"job {view.job_id} up to step {view.step}, by {view.reporters} of {view.num_seats} seats"
        text = "\n".join([head, table(header, rows), *lines])
    app.emit({**view.model_dump(), "seats": [one.model_dump() for one in seats]}, text)


def _show_account(app: App, view: dto.AccountRecordView) -> None:
    header = ("JOB", "STEP", "DRAWN", "AUDITS", "VOIDED", "CHARGED", "AGREE", "FAULTS")
    rows = [
        (
            one.job_id,
            one.step,
            one.drawn,
            f"{one.audits_done} of {one.audits_due}",
            one.voided,
            one.charged,
            f"{one.agree} of {one.reporters}" + ("" if one.agreed else ", not summed"),
            _by_kind(one.faults) + (f"; disputed {one.disputed}" if one.disputed else ""),
        )
        for one in view.jobs
    ]
    audits = f"{view.audits_done} of {view.audits_due}"
    disputed = f"; disputed {view.disputed}" if view.disputed else ""
    total = ("all", "", view.drawn, audits, view.voided, view.charged, "", _by_kind(view.faults) + disputed)
    lines = [view.account, table(header, [*rows, total])]
    if not view.jobs:
        lines = [f"no record of {view.account} is published yet; the first comes with the first step of its job"]
    if view.jobs_left_out:
        lines.append(f"{view.jobs_left_out} older jobs are left out; see each with --job")
    app.emit(view.model_dump(), "\n".join(lines))


def _by_kind(faults: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in sorted(faults.items())) or "none"
