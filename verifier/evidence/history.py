"""What happened to one frame between the first suspicion and the verdict: integers and strings, for bundle and log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sentinel_market.errors import ProtocolError
from verifier.check.confirm import Event
from verifier.check.tolerance import Comparison

MAX_EVENTS = 16
"""A confirmation has at most seven; more is not one."""

_WORDS = {
    Event.SUSPECT: "the screen flagged the frame",
    Event.AUDIT: "the random draw picked the frame for an audit",
    Event.STRAIGHT: "the draw sent it straight to a recompute",
    Event.FAR: "it lies so far outside its fences that no replica's word is enough",
    Event.WATCHED: "its worker is watched: its frames lay near their fences more often than its peers'",
    Event.NO_REPLICA: "fewer than two other replicas of the stage were live, so nobody replayed it",
    Event.REPLAY_AGREES: "the replay of {who} agrees",
    Event.REPLAY_DISAGREES: "the replay of {who} disagrees",
    Event.REPLAY_LOST: "the replay was lost",
    Event.RECOMPUTE_AGREES: "the driver's own recompute agrees",
    Event.RECOMPUTE_DISAGREES: "the driver's own recompute disagrees",
    Event.RECOMPUTE_EDGE: "the recompute lies at a numeric edge: rounding alone could do this",
    Event.RECOMPUTE_IMPOSSIBLE: "nothing could be recomputed: input or weights were gone",
    Event.REPLAY_UPHELD: "the replay of {who} agrees with the recompute",
    Event.REPLAY_REFUTED: "the replay of {who} fails the recompute",
}


@dataclass(frozen=True, slots=True)
class Happened:
    """One event of a confirmation. ``slot``: whose replay it was. ``comparison``: the numbers behind it. ``note``: what
    the screen said, or why a replay was lost."""

    event: Event
    slot: int | None = None
    comparison: Comparison | None = None
    note: str = ""

    def text(self) -> str:
        """For people: ``the replay of slot 5 disagrees: relative error 2 beyond the limit 0.0001``."""
        words = _WORDS[self.event].format(who="another replica" if self.slot is None else f"slot {self.slot}")
        details = [self.note] if self.note else []
        if self.comparison is not None:
            details.append(self.comparison.text())
        return ": ".join((words, "; ".join(details))) if details else words

    def to_json(self) -> dict[str, object]:
        """Plain JSON data: strings and integers."""
        c = self.comparison
        return {
            "event": self.event.value,
            "slot": self.slot,
            "criterion": None if c is None else c.criterion,
            "error_e6": None if c is None else c.error_e6,
            "limit_e6": None if c is None else c.limit_e6,
            "note": self.note,
        }

    @classmethod
    def from_json(cls, data: object) -> Happened:
        """The inverse of ``to_json``; raises ProtocolError("history") for anything else."""
        if not isinstance(data, dict) or set(data) != {"event", "slot", "criterion", "error_e6", "limit_e6", "note"}:
            raise ProtocolError("history", "an event has exactly event, slot, criterion, error_e6, limit_e6 and note")
        name, slot, note = data["event"], data["slot"], data["note"]
        if not isinstance(name, str) or name not in Event.__members__:
            raise ProtocolError("history", f"unknown event {name!r:.80}")
        if not (slot is None or type(slot) is int) or not isinstance(note, str):
            raise ProtocolError("history", f"{name} has slot {slot!r:.40} and note {note!r:.40}")
        numbers = (data["criterion"], data["error_e6"], data["limit_e6"])
        if numbers == (None, None, None):
            return cls(Event(name), slot, None, note)
        criterion, error, limit = numbers
        if not isinstance(criterion, str) or type(error) is not int or type(limit) is not int or limit < 1:
            raise ProtocolError("history", f"{name} has a comparison of {numbers!r:.120}")
        return cls(Event(name), slot, Comparison(error <= limit, error, limit, criterion), note)


def history_from_json(data: object) -> tuple[Happened, ...]:
    """A list of events; raises ProtocolError("history")."""
    if not isinstance(data, list) or len(data) > MAX_EVENTS:
        raise ProtocolError("history", f"a history is a list of at most {MAX_EVENTS} events")
    return tuple(Happened.from_json(item) for item in data)


def history_lines(history: Sequence[Happened]) -> list[str]:
    """For people, in order."""
    return [one.text() for one in history]
