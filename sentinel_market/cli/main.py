"""The command ``sentinel``: a table of nouns, each in a module of its own that is imported only when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import click

from sentinel_market import __version__
from sentinel_market.cli.common import EXIT_CODES, run_cli
from sentinel_market.config import SETTINGS

NOUNS: Final[dict[str, tuple[str, str]]] = {
    "demo": ("sentinel_market.demo.command:demo", "The whole market on this machine: train, cheat, catch, pay."),
    "net": ("sentinel_market.cli.net:net", "Start, stop and look at a local network."),
    "key": ("sentinel_market.cli.key:key", "Make and show identities: a cold account and a hot key each."),
    "faucet": ("sentinel_market.cli.faucet:faucet", "Play money on a local network."),
    "stake": ("sentinel_market.cli.stake:stake", "Deposit, unbond, withdraw and show stake."),
    "slot": ("sentinel_market.cli.slot:slot", "The workers' places in a job."),
    "seat": ("sentinel_market.cli.seat:seat", "The verifiers' places in a job."),
    "worker": ("sentinel_market.cli.worker:worker", "Compute a stage of a job."),
    "verifier": ("sentinel_market.cli.verifier:verifier", "Relay and check a job."),
    "job": ("sentinel_market.cli.job:job", "Describe, price, post, watch and collect a training job."),
    "evidence": ("sentinel_market.cli.evidence:evidence", "Look at a verdict's evidence and re-derive it."),
    "explain": ("sentinel_market.cli.explain:explain", "Why a worker was banned or cleared, in words."),
    "sim": ("sentinel_market.cli.sim:sim", "A mesh of workers in one process: attack it, see who is caught."),
    "bench": ("sentinel_market.cli.bench:bench", "Measure detection; tables, plots, figures."),
    "ledger": ("sentinel_market.cli.ledger:ledger", "Who earned, may claim, drew and lost what."),
    "pay": ("sentinel_market.cli.pay:pay", "Claim what the chain owes an account."),
    "coordinator": ("sentinel_market.cli.coordinator:coordinator", "Run a coordinator."),
    "doctor": ("sentinel_market.cli.doctor:doctor", "Check this machine, the chain, the keys; say what to mend."),
}


class Root(click.Group):
    """Imports a noun's module only when it is asked for, so that ``--help`` takes no time."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The nouns, in the order of the table."""
        del ctx
        return list(NOUNS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A noun's command."""
        del ctx
        if cmd_name not in NOUNS:
            return None
        module, attribute = NOUNS[cmd_name][0].split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the nouns without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in NOUNS.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Exit codes and settings."""
        del ctx
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in EXIT_CODES.items()])
        with formatter.section("Settings (environment)"):
            formatter.write_dl([(s.name, f"{s.meaning} (default: {s.default})") for s in SETTINGS])

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **_: Any) -> NoReturn:  # type: ignore[override]
        """Run and exit; every error becomes a message and a documented code."""
        run_cli(self, args, prog_name)


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="sentinel")
def cli() -> None:
    """An open market for training neural networks on machines that nobody has to trust."""


def main() -> NoReturn:
    """Entry point of the command."""
    cli.main()


if __name__ == "__main__":
    main()
