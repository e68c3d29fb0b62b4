"""A verdict: a kind, a reason that names the numbers, and the scores behind it. Integers and strings only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from sentinel_market.errors import ProtocolError

E6 = 1_000_000
_LIMIT = 10**15


def to_e6(value: float) -> int:
    """A score at the edge of the engine: ``value`` x 1e6, rounded; NaN and infinities become the largest score."""
    if -1e9 < value < 1e9:
        return round(value * E6)
    return -_LIMIT if value <= -1e9 else _LIMIT


class VerdictKind(StrEnum):
    """What may be said about a frame."""

    ACCEPT = "ACCEPT"
    SUSPECT = "SUSPECT"
    VIOLATION = "VIOLATION"
    INCONCLUSIVE = "INCONCLUSIVE"


class Score(NamedTuple):  # a dozen for each frame: a tuple is made in a third of the time of a frozen dataclass
    """One metric x 1e6 and the fence it was held against (None: no fence on that side, or none yet)."""

    metric: str
    value_e6: int
    low_e6: int | None = None
    high_e6: int | None = None

    @property
    def crossed(self) -> bool:
        """Whether the value lies outside its fences."""
        return self.below or (self.high_e6 is not None and self.value_e6 > self.high_e6)

    @property
    def reach(self) -> float:
        """How far the value lies from the middle of its two fences, in halves of their distance: 1 at a fence. 0 where
        there are not two, or they coincide."""
        if self.low_e6 is None or self.high_e6 is None or self.high_e6 <= self.low_e6:
            return 0.0
        return abs(2 * self.value_e6 - self.low_e6 - self.high_e6) / (self.high_e6 - self.low_e6)

    @property
    def below(self) -> bool:
        """Whether it is the lower fence that was crossed."""
        return self.low_e6 is not None and self.value_e6 < self.low_e6

    def text(self) -> str:
        """For people: ``cosine -0.912000 below its fence 0.861200``."""
        value = f"{self.metric} {self.value_e6 / E6:.6g}"
        if self.low_e6 is not None and self.below:
            return f"{value} below its fence {self.low_e6 / E6:.6g}"
        if self.high_e6 is not None and self.value_e6 > self.high_e6:
            return f"{value} above its fence {self.high_e6 / E6:.6g}"
        low = "-" if self.low_e6 is None else f"{self.low_e6 / E6:.6g}"
        high = "-" if self.high_e6 is None else f"{self.high_e6 / E6:.6g}"
        return f"{value} inside {low} .. {high}"

    def to_json(self) -> dict[str, object]:
        """Plain JSON data: strings and integers."""
        return {"metric": self.metric, "value_e6": self.value_e6, "low_e6": self.low_e6, "high_e6": self.high_e6}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision is a value plus a reason (``sentinel.md``, section 4)."""

    kind: VerdictKind
    reason: str
    scores: tuple[Score, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Plain JSON data: strings and integers."""
        return {
            "kind": self.kind.value,
            "reason": self.reason,
            "scores": [score.to_json() for score in self.scores],
        }

    @classmethod
    def from_json(cls, data: object) -> Verdict:
        """The inverse of ``to_json``; raises ProtocolError("verdict") for anything else."""
        if not isinstance(data, dict) or set(data) != {"kind", "reason", "scores"}:
            raise ProtocolError("verdict", "a verdict has exactly kind, reason and scores")
        kind, reason, scores = data["kind"], data["reason"], data["scores"]
        if not isinstance(kind, str) or kind not in VerdictKind.__members__:
            raise ProtocolError("verdict", f"unknown kind {kind!r}")
        if not isinstance(reason, str) or not isinstance(scores, list):
            raise ProtocolError("verdict", "reason must be text and scores a list")
        return cls(VerdictKind(kind), reason, tuple(_score(item) for item in scores))


def _score(data: object) -> Score:
    if not isinstance(data, dict) or set(data) != {"metric", "value_e6", "low_e6", "high_e6"}:
        raise ProtocolError("verdict", "a score has exactly metric, value_e6, low_e6 and high_e6")
    metric, value = data["metric"], data["value_e6"]
    if not isinstance(metric, str) or type(value) is not int:
        raise ProtocolError("verdict", f"score {metric!r} needs a name and an integer value_e6")
    fences: list[int | None] = []
    for name in ("low_e6", "high_e6"):
        fence = data[name]
        if fence is not None and type(fence) is not int:
            raise ProtocolError("verdict", f"{name} of {metric} must be an integer or null")
        fences.append(fence)
    return Score(metric, value, fences[0], fences[1])
