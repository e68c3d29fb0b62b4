"""``sentinel verifier``."""

from __future__ import annotations

import click

from sentinel_market.cli.common import App, verb


@click.group()
def verifier() -> None:
    """Verifiers drive the microbatches of a job, check every frame, and are paid for it."""


@verb(
    verifier,
    "start",
    example="sentinel verifier start victor\nsentinel verifier start victor --job 1 --listen 127.0.0.1:7001",
)
@click.argument("name")
@click.option("--job", "job_id", type=int, help="Job to sit in; by default the newest one with a free seat.")
@click.option(
    "--listen", default="127.0.0.1:0", show_default=True, help="Where the relay listens; port 0: any free one."
)
@click.option("--public", help="The address that workers dial, where it is another one than --listen.")
def start(app: App, name: str, job_id: int | None, listen: str, public: str | None) -> int:
    """Take a seat of a job (or take up the one that is held) and serve until the job is settled or Ctrl-C."""
    app.identity(name)
    _ = app.reader  # the chain is checked before a password is asked for and torch is loaded
    password = app.password(name)
    from verifier.agent import VerifierOptions, main

    options = VerifierOptions(name=name, job_id=job_id, listen=listen, public=public)
    return main(app.settings, password, options, app.say)
