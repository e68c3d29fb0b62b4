"""Do what a plan wants, a run at a time, until nothing is left."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from sentinel_market.sim.cell import Cell, cell_of
from sentinel_market.sim.plan import Plan, Want, wanted, weight
from sentinel_market.sim.pool import Runner
from sentinel_market.sim.resume import Record
from sentinel_market.sim.settings import RunSettings


def measure(plan: Plan, record: Record, runner: Runner, display: Display | None = None) -> dict[RunSettings, str]:
    """Do every run that the record lacks. Returns the runs that failed, with the reasons; they do not stop the rest."""
    failed: dict[RunSettings, str] = {}
    started: dict[RunSettings, Want] = {}
    while True:
        missing = [
            want
            for want in wanted(plan, record.cells)
            if want.settings not in record.cells and want.settings not in started and want.settings not in failed
        ]
        for want in missing[: runner.room]:
            started[want.settings] = want
            runner.start(want.settings)
        if not runner.busy:
            return failed
        for event in runner.wait():
            settings = event.settings
            if event.error:
                failed[settings] = event.error
                del started[settings]
            elif event.result is not None:
                want = started.pop(settings)
                record.add(cell_of(event.result, want.attack, want.strength))
            if display is not None:
                if event.error:
                    display.failed(settings, event.error)
                elif event.result is not None:
                    ahead = [w.settings for w in wanted(plan, record.cells, outlook=True)]
                    done = [one for one in ahead if one in record.cells]
                    left = [one for one in ahead if one not in record.cells and one not in failed]
                    display.finished(record.find(settings), len(done), left)
                else:
                    display.stepped(settings, event.step)


def describe(settings: RunSettings) -> str:
    """A run in a few words."""
    parts = [
        settings.attack or settings.condition or "clean",
        settings.direction if settings.attack else "",
        settings.policy,
    ]
    parts.append(f"{settings.replicas}x{settings.stages}")
    parts.append("colluding" if settings.collude else "")
    parts.append(f"1 step in {settings.duty}" if settings.duty != 1 else "")
    plot = f"{settings.corrupt_drivers} of {settings.num_drivers} drivers in the plot"
    parts.append(plot if settings.corrupt_drivers else "")
    return ", ".join([*(part for part in parts if part), f"seed {settings.seed}"])


def found(cell: Cell) -> str:
    """A cell in a few words."""
    parts = [f"loss {cell.own_loss:.3f}"]
    if cell.val_loss.clean and cell.settings.attack:
        parts[0] += f" ({cell.own_loss / cell.val_loss.clean - 1:+.1%} of clean)"
    if cell.val_loss.verified is not None:
        if cell.hostile_workers:
            parts.append(f"banned {cell.caught}/{cell.hostile_workers}")
        parts.append(f"honest bans {cell.honest_bans}")
    return ", ".join([*parts, f"{cell.seconds:.0f} s"])


def span(seconds: float) -> str:
    """A duration for people."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute"
    return f"about {minutes} min" if minutes < 90 else f"about {minutes // 60} h {minutes % 60:02d} min"


class Display:
    """What a person watches: a bar for all and one for each run on a terminal, a line a finished run elsewhere."""

    def __init__(self, console: Console, jobs: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.console, self.jobs = console, jobs
        self._clock = clock
        self._began = clock()
        self._weight = 0
        self._bars: dict[RunSettings, TaskID] = {}
        self._progress: Progress | None = None
        self._all: TaskID | None = None
        if console.is_terminal:
            self._progress = Progress(
                BarColumn(bar_width=24), TextColumn("{task.description}", markup=False), console=console, transient=True
            )
            self._all = self._progress.add_task("starting", total=None)

    def __enter__(self) -> Display:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def stepped(self, settings: RunSettings, step: int) -> None:
        """A run is at ``step``."""
        if self._progress is None:
            return
        if settings not in self._bars:
            self._bars[settings] = self._progress.add_task(describe(settings), total=settings.steps)
        self._progress.update(self._bars[settings], completed=step)

    def finished(self, cell: Cell, done: int, left: list[RunSettings]) -> None:
        """A run is done, so many are in all, and these are left as far as one can tell."""
        self._weight += weight(cell.settings)
        ahead = sum(map(weight, left)) * (self._clock() - self._began) / self._weight
        rest = f"{span(ahead)} left" if left else "all done"
        self.say(f"[{done}/{done + len(left)}] {describe(cell.settings)}: {found(cell)}; {rest}")
        self._drop(cell.settings)
        if self._progress is not None and self._all is not None:
            text = f"{done} of about {done + len(left)} runs, {rest}"
            self._progress.update(self._all, completed=done, total=done + len(left), description=text)

    def failed(self, settings: RunSettings, error: str) -> None:
        """A run came to nothing."""
        self.say(f"FAILED {describe(settings)}: {error}")
        self._drop(settings)

    def _drop(self, settings: RunSettings) -> None:
        bar = self._bars.pop(settings, None)
        if self._progress is not None and bar is not None:
            self._progress.remove_task(bar)
