"""``sentinel verifier``."""

from __future__ import annotations

from pathlib import Path

import click

from sentinel_market.cli.common import App, verb


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
