"""``sentinel worker``."""

from __future__ import annotations

import click

from sentinel_market.cli.common import App, verb


@click.group()
def worker() -> None:
    """Workers compute a stage of a job and are paid a microbatch."""


@verb(worker, "start", example="sentinel worker start alice\nsentinel worker start alice --job 1 --slot 4")
@click.argument("name")
@click.option("--job", "job_id", type=int, help="Job to work for; by default the newest one with a vacant slot.")
@click.option("--slot", type=int, help="Slot to claim; by default the emptiest stage's.")
@click.option("--attack", help="Misbehave in this way, to try the checks out. Local networks only.")
@click.option("--attack-seed", type=int, default=0, show_default=True, help="Seed of the attack.")
@click.option("--attack-onset", type=int, default=0, show_default=True, help="First step of the attack.")
def start(
    app: App,
    name: str,
    job_id: int | None,
    slot: int | None,
    attack: str | None,
    attack_seed: int,
    attack_onset: int,
) -> int:
    """Claim a slot (or take up the one that is held) and compute until the job is over or Ctrl-C."""
    app.identity(name)
    _ = app.reader  # the chain is checked before a password is asked for and torch is loaded
    password = app.password(name)
    from worker.agent import WorkerOptions, main

    options = WorkerOptions(
        name=name, job_id=job_id, slot=slot, attack=attack, attack_seed=attack_seed, attack_onset=attack_onset
    )
    return main(app.settings, password, options, app.say)
