"""Two sequences of verdicts held against each other: what a recording says, and what the judge makes of it now."""

from __future__ import annotations

import json
from dataclasses import dataclass
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
MOST_VERDICTS = 1000
"""That one happening leads to; a handful, unless somebody made the file up."""


@dataclass
class Tally:
    """Of one kind of verdict: how many were recorded, and how many came out the same."""

    recorded: int = 0
    equal: int = 0


@dataclass(frozen=True)
class Difference:
    """One verdict that came out otherwise; None on the side that has nothing to say. ``why``: the live seat did what
    ``recorded`` says, and the judge here would not have."""

    line: int
    step: int
    recorded: Line | None
    simulated: Line | None
    why: str = ""

    def text(self) -> str:
        """For people: where, and what differs."""
        one, other = self.recorded or {}, self.simulated or {}
        both = {**other, **one}
        what = KINDS.get(str(both.get("out")), str(both.get("in", "what happened")))
        place = "".join(f", {key} {both[key]}" for key in ("stage", "direction", "slot") if key in both)
        head = f"line {self.line}, step {self.step}, {what}{place}:"
        if self.why:
            return f"{head}\n  {self.why}"
        mine, theirs = _differing(one, other)
        return f"{head}\n  recorded   {_short(mine)}\n  simulated  {_short(theirs)}"

    def to_json(self) -> Line:
        """Plain JSON data."""
        sides = {"recorded": self.recorded, "simulated": self.simulated}
        return {"line": self.line, "step": self.step, "why": self.why, **sides}


def _differing(one: Line, other: Line) -> tuple[Any, Any]:
    """Of two verdicts what is not the same: of scores the first, [metric, value, low, high]."""
    if not one or not other:
        return one or "nothing", other or "nothing"
    plain, judged = _plain(one), _plain(other)
    keys = [key for key in {**plain, **judged} if plain.get(key) != judged.get(key)]
    mine, theirs = ({key: side.get(key) for key in keys} for side in (one, other))
    a, b = one.get("scores"), other.get("scores")
    if "scores" in keys and isinstance(a, list) and isinstance(b, list):
        pairs = (pair for pair in zip(a, b, strict=False) if pair[0] != pair[1])
        mine["scores"], theirs["scores"] = next(pairs, (a, b))
    return mine, theirs


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


class Comparer:
    """Fed line by line: ``begin``, what happened; ``judged`` and ``recorded``, what was made of it; ``settle``."""

    def __init__(self) -> None:
        self._tallies: dict[str, Tally] = {}
        self._judged: list[Line] = []
        self._recorded: list[tuple[int, Line]] = []
        self._at = (0, -1)
        self._happened: Line = {}
        self._differences = 0
        self._first: Difference | None = None

    def begin(self, line: int, step: int, happened: Line) -> None:
        """Something happened in ``line`` of the recording, in ``step``."""
        self._at, self._happened = (line, step), happened

    def judged(self, verdict: Line) -> None:
        """The judge here says this of it."""
        self._judged.append(verdict)

    def recorded(self, line: int, verdict: Line) -> bool:
        """The live seat said this of it, in ``line``. False once it said more than can be."""
        self._recorded.append((line, verdict))
        return len(self._recorded) <= MOST_VERDICTS

    def diverged(self, why: str) -> None:
        """The live seat did something here that the judge would not have done."""
        self._differ(Difference(*self._at, self._happened, None, why))

    def settle(self) -> None:
        """Nothing more follows from what happened last."""
        for index in range(max(len(self._judged), len(self._recorded))):
            number, one = self._recorded[index] if index < len(self._recorded) else (self._at[0], None)
            other = self._judged[index] if index < len(self._judged) else None
            same = one is not None and other is not None and _plain(one) == _plain(other)
            if one is not None:
                tally = self._tallies.setdefault(str(one["out"])[:40], Tally())
                tally.recorded += 1
                tally.equal += same
            if not same:
                self._differ(Difference(number, self._at[1], one, other))
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
        found["history"] = [one[:2] if isinstance(one, list) else one for one in found["history"]]
    return found
