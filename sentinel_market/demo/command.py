"""The verb `sentinel demo`."""

from __future__ import annotations

import json
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import click

from sentinel_market.cli.common import App, verb
from sentinel_market.demo.settings import DemoSettings
from sentinel_market.errors import Fatal, UserError

EXAMPLE = """
sentinel demo
sentinel demo --seed 3 --compare
sentinel demo --steps 150 --json
"""


@verb(click.Group(), "demo", example=EXAMPLE)
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="Model, data and attackers.")
@click.option(
    "--steps", type=click.IntRange(2, 100_000), default=DemoSettings.steps, show_default=True, help="Optimizer steps."
)
@click.option("--compare", is_flag=True, help="Also train without attackers, and without verification; three curves.")
@click.option("--honest", is_flag=True, help="No attackers.")
@click.option("--rpc-port", type=click.IntRange(1, 65535), default=8545, show_default=True, help="Port of the chain.")
@click.option("--port", type=click.IntRange(1, 65535), default=8700, show_default=True, help="Port of the coordinator.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("runs"), show_default=True, help="Results."
)
def demo(app: App, seed: int, steps: int, compare: bool, honest: bool, rpc_port: int, port: int, out: Path) -> int:
    """The whole market on this machine: 12 workers, 3 of them hostile, 3 verifiers, a chain; train, catch, slash, pay.

    Exit code 0 only if everything that it claims is true on the chain.
    """
    if compare and honest:
        raise UserError("--compare runs with and without attackers; leave --honest out")
    directory = out / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    try:
        directory.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"cannot write to {directory}: {error.strerror}; choose another folder with --out") from None
    settings = DemoSettings(seed=seed, steps=steps, hostile=not honest)
    with _interruptible():
        return _Demo(app, settings, directory, rpc_port, port, compare=compare).run()


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends a demo as Ctrl-C does: children stopped, ports free."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


class _Demo:
    def __init__(
        self, app: App, settings: DemoSettings, directory: Path, rpc_port: int, port: int, *, compare: bool
    ) -> None:
        from rich.console import Console

        from sentinel_market.demo.market import LocalMarket
        from sentinel_market.demo.processes import Nursery

        self.app, self.settings, self.directory, self.compare = app, settings, directory, compare
        self.console = Console(stderr=app.as_json)
        self.market = LocalMarket(directory.absolute(), rpc_port, port, Nursery())
        self.seconds: dict[str, float] = {}

    def run(self) -> int:
        began = time.monotonic()
        self._say(f"a local chain, a coordinator (http://127.0.0.1:{self.market.coordinator_port}/), 15 participants")
        try:
            self.market.start()
            self._split("chain and coordinator", began)
            return self._runs(began)
        finally:
            self.market.close()

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _split(self, name: str, since: float) -> float:
        now = time.monotonic()
        self.seconds[name] = now - since
        return now

    def _runs(self, began: float) -> int:
        from sentinel_market.demo import results

        runs = {"verified": self._one("", self.settings)}
        if self.compare:
            runs["clean"] = self._one("clean-", replace(self.settings, hostile=False))
            runs["unverified"] = self._one("unverified-", replace(self.settings, policy="none"))
        run = runs["verified"]
        since = time.monotonic()
        complaints = results.claim_and_unbond(self.market, run)
        losses = {name: one.validation[-1][1] for name, one in runs.items()}
        summary = results.summarize(self.market, run, losses.get("clean"), losses.get("unverified"))
        claims = results.check(self.market, run, summary)
        sample = results.write_files(self.market, runs, summary, self.directory)
        complaints += results.withdraw(self.market, run)
        self._split("claims and withdrawals", since)
        results.print_table(self.console, run, summary)
        failed = [claim.text for claim in claims if not claim.holds] + complaints
        if self.compare:
            failed += self._compare(losses)
        self._say(f"held-out loss {losses['verified']:.3f}; {run.tokens_per_second:,.0f} tokens/s")
        self._say(f"\nthe model writes:\n{results.PROMPT}{sample}\n")
        self.seconds |= run.seconds
        self.seconds["in all"] = time.monotonic() - began
        self._say("time: " + ", ".join(f"{name} {value:.0f} s" for name, value in self.seconds.items()))
        self._say(f"written to {self.directory}/: summary.json, report.html, model/, evidence/, logs/")
        if self.app.as_json:
            click.echo(json.dumps({"directory": str(self.directory), "failed": failed, "summary": summary}))
        if failed:
            raise Fatal("not true on the chain: " + "; ".join(failed))
        self._say(f"all {len(claims)} claims checked against the chain; everybody took its money out again")
        return 0

    def _one(self, prefix: str, settings: DemoSettings) -> Any:
        from sentinel_market.demo.display import Display
        from sentinel_market.demo.run import make_cast, prepare, train

        since = time.monotonic()
        cast = make_cast(settings, prefix)
        run = prepare(self.market, settings, cast)
        self._split("keys, stakes, job" if not prefix else f"{prefix}keys", since)
        title = f"job {run.job_id}: {settings.stages} stages x {settings.replicas} replicas, policy {settings.policy}"
        if not self.console.is_terminal:
            self._say(title)
        with Display(self.console, title, settings.steps) as display:
            train(self.market, run, display)
        return run

    def _compare(self, losses: dict[str, float]) -> list[str]:
        clean = losses["clean"]
        self._say(
            f"held-out loss: clean {clean:.3f}, attacked and verified {losses['verified']:.3f} "
            f"({losses['verified'] / clean - 1:+.1%}), attacked and unverified {losses['unverified']:.3f} "
            f"({losses['unverified'] / clean - 1:+.1%})"
        )
        found = []
        if losses["verified"] > 1.03 * clean:
            found.append("the verified loss is more than 3 % above the clean one")
        if losses["unverified"] < 1.05 * clean:
            found.append("the unverified loss is less than 5 % above the clean one")
        return found
