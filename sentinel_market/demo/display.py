"""What a person watches while a demo runs: one panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

LINE_EVERY_STEPS = 25
EVENTS_SHOWN = 12


@dataclass
class Progress:
    """What is known of a run; filled by whoever follows it."""

    steps: int
    step: int = -1
    loss: float | None = None
    validation_loss: float | None = None
    tokens_per_second: float = 0.0
    suspects: int = 0
    quarantines: int = 0
    bans: int = 0
    events: list[str] = field(default_factory=list)


class Display:
    """``update`` after every change; ``event`` for a line that stays."""

    def __init__(self, console: Console, title: str, steps: int) -> None:
        self.console, self.title = console, title
        self.progress = Progress(steps)
        self._live = Live(console=console, refresh_per_second=4, transient=False) if console.is_terminal else None
        self._began = time.monotonic()
        self._lined = -1

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def event(self, text: str) -> None:
        self.progress.events.append(text)
        if self._live is None:
            self.console.print(f"  {text}", highlight=False, markup=False, soft_wrap=True)
        self.update()

    def step(self, data: Mapping[str, object]) -> None:
        p = self.progress
        if data.get("validation_loss") is not None:
            p.validation_loss = float(str(data["validation_loss"]))
        if data.get("loss") is not None:
            p.step = int(str(data["step"]))
            p.loss = float(str(data["loss"]))
            p.tokens_per_second = float(str(data.get("tokens_per_second", 0.0)))
            p.suspects += int(str(data.get("suspects", 0)))
            p.quarantines = int(str(data.get("quarantines", 0)))
        self.update()

    def update(self) -> None:
        p = self.progress
        if self._live is not None:
            self._live.update(self._panel())
        elif p.step // LINE_EVERY_STEPS > self._lined // LINE_EVERY_STEPS or p.step == p.steps - 1 != self._lined:
            self._lined = p.step
            self.console.print(self._line(), highlight=False, markup=False, soft_wrap=True)

    def _line(self) -> str:
        p = self.progress
        loss = "-" if p.loss is None else f"{p.loss:.3f}"
        held_out = "-" if p.validation_loss is None else f"{p.validation_loss:.3f}"
        return (
            f"step {p.step + 1}/{p.steps}  loss {loss}  held-out {held_out}  {p.tokens_per_second:,.0f} tokens/s  "
            f"suspects {p.suspects}  quarantined {p.quarantines}  banned {p.bans}"
        )

    def _panel(self) -> Table:
        p = self.progress
        title = f"{self.title}  ({time.monotonic() - self._began:.0f} s)"
        table = Table(title=title, title_justify="left", expand=False)
        for name in ("step", "loss", "held-out", "tokens/s", "suspects", "quarantined", "banned"):
            table.add_column(name, justify="right")
        table.add_row(
            f"{p.step + 1}/{p.steps}",
            "-" if p.loss is None else f"{p.loss:.3f}",
            "-" if p.validation_loss is None else f"{p.validation_loss:.3f}",
            f"{p.tokens_per_second:,.0f}",
            str(p.suspects),
            str(p.quarantines),
            str(p.bans),
        )
        table.caption = "\n".join(p.events[-EVENTS_SHOWN:])
        table.caption_justify = "left"
        return table
