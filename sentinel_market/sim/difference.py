"""Two sequences of verdicts held against each other: what a recording says, and what the judge makes of it now."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Line = dict[str, Any]
KINDS = {
    "screened": "frames screened",
    "final": "confirmations",
    "accept": "frames learnt from",
    "cleared": "suspects cleared by recompute",
    "inconclusive": "units lost",
    "substitute": "gradients replaced",
    "gradient": "stage gradients screened",
    "whole": "whole gradients recomputed",
    "ban": "bans by statistics",
    "convict": "convictions",
}
"""What a line with ``out`` is, by its name."""


@dataclass
class Tally:
    """Of one kind of verdict: how many were recorded, and how many came out the same."""

    recorded: int = 0
    equal: int = 0


@dataclass(frozen=True)
class Difference:
    """One verdict that came out otherwise; None on the side that has nothing to say."""

    line: int
    step: int
    recorded: Line | None
    simulated: Line | None

    def text(self) -> str:
        """For people: where, and what differs."""
        one, other = self.recorded or {}, self.simulated or {}
        keys = [key for key in {**one, **other} if _plain(one).get(key) != _plain(other).get(key)]
        if "scores" in keys and one.get("scores") and other.get("scores"):
            mine, theirs = _differing(one["scores"], other["scores"])
        else:
            mine, theirs = ({key: side.get(key) for key in keys} for side in (one, other))
        what = KINDS.get(str({**one, **other}.get("out")), "what happened")
        place = ", ".join(f"{key} {one.get(key, other.get(key))}" for key in ("stage", "slot") if key in {**one, **other})
        return (
            f"line {self.line}, step {self.step}, {what}{', ' if place else ''}{place}:\n"
            f"  recorded   {_short(mine) if self.recorded else 'nothing'}\n"
            f"  simulated  {_short(theirs) if self.simulated else 'nothing'}"
        )

    def to_json(self) -> Line:
        """Plain JSON data."""
        return {"line": self.line, "step": self.step, "recorded": self.recorded, "simulated": self.simulated}


def _differing(one: Any, other: Any) -> tuple[Any, Any]:
    """The first score that differs."""
    pairs = zip(one, other, strict=False)
    return next(((a, b) for a, b in pairs if a != b), (one, other))


def _short(data: Any) -> str:
    return json.dumps(data)[:400]


@dataclass(frozen=True)
class Report:
    """What a rehearsal found. ``ended``: why the recording does; ``nbytes``: its size."""

    steps: int
    ended: str
    seconds: float
    nbytes: int
    tallies: dict[str, Tally]
    differences: int
    first: Difference | None

    @property
    def frames(self) -> Tally:
        """Screened frames."""
        return self.tallies.get("screened", Tally())

    @property
    def same(self) -> bool:
        """Whether every verdict came out the same, in order."""
        return self.differences == 0

    def to_json(self) -> Line:
        """Plain JSON data."""
        return {
            "same": self.same,
            "steps": self.steps,
            "ended": self.ended,
            "frames": self.frames.recorded,
            "frames_equal": self.frames.equal,
            "verdicts": {name: {"recorded": t.recorded, "equal": t.equal} for name, t in self.tallies.items()},
            "differences": self.differences,
            "first_difference": None if self.first is None else self.first.to_json(),
            "seconds": round(self.seconds, 3),
            "megabytes": round(self.nbytes / 1e6, 3),
        }


@dataclass
class Comparer:
    """Fed line by line: ``begin`` with what happened, ``judged`` and ``recorded`` with what was made of it, ``settle``."""

    _tallies: dict[str, Tally] = field(default_factory=dict)
    _judged: list[Line] = field(default_factory=list)
    _recorded: list[tuple[int, Line]] = field(default_factory=list)
    _line: int = 0
    _step: int = -1
    _differences: int = 0
    _first: Difference | None = None

    def begin(self, line: int, step: int, happened: Line) -> None:
        """Something happened in ``line`` of the recording, in ``step``."""
        self._line, self._step, self._happened = line, step, happened

    def judged(self, verdict: Line) -> None:
        """The judge here says this of it."""
        self._judged.append(verdict)

    def recorded(self, line: int, verdict: Line) -> None:
        """The live seat said this of it, in ``line``."""
        self._recorded.append((line, verdict))

    def diverged(self, why: str) -> None:
        """The live seat did something here that the judge would not have done."""
        self._differ(Difference(self._line, self._step, self._happened, {"in": why}))

    def settle(self) -> None:
        """Nothing more follows from what happened last."""
        for index in range(max(len(self._judged), len(self._recorded))):
            number, one = self._recorded[index] if index < len(self._recorded) else (self._line, None)
            other = self._judged[index] if index < len(self._judged) else None
            same = one is not None and other is not None and _plain(one) == _plain(other)
            if one is not None:
                tally = self._tallies.setdefault(str(one["out"])[:40], Tally())
                tally.recorded += 1
                tally.equal += same
            if not same:
                self._differ(Difference(number, self._step, one, other))
        self._judged, self._recorded = [], []

    def _differ(self, difference: Difference) -> None:
        self._differences += 1
        self._first = self._first or difference

    def report(self, *, steps: int, ended: str, seconds: float, nbytes: int) -> Report:
        """The end of it."""
        return Report(steps, ended, seconds, nbytes, self._tallies, self._differences, self._first)


def _plain(line: Line) -> Line:
    """Without what is said for people only, and without the errors that replays and recomputes were measured to have:
    those depend on the machine's order of sums, the verdicts on them do not."""
    found = {key: value for key, value in line.items() if key != "reason"}
    if isinstance(found.get("history"), list):
        found["history"] = [one[:2] if isinstance(one, Iterable) else one for one in found["history"]]
    return found
