"""Confirm before accusing: replays filter, recompute convicts (``protocol.md``). A pure function of what happened.

The driver keeps the list of events of one frame, asks ``decide`` what comes next, does it, appends what came of it::

    SUSPECT, AUDIT or WATCHED  [STRAIGHT] [FAR] [NO_REPLICA]
      -> REPLAY        REPLAY_AGREES -> ACCEPT (cleared by replay)
                       REPLAY_DISAGREES, REPLAY_LOST -> RECOMPUTE
      -> RECOMPUTE     RECOMPUTE_AGREES -> ACCEPT (cleared by recompute)
                       RECOMPUTE_DISAGREES -> VIOLATION
                       RECOMPUTE_EDGE, RECOMPUTE_IMPOSSIBLE -> INCONCLUSIVE

After a recompute that followed a disagreeing replay, the replay itself was measured as well: REPLAY_REFUTED (the
replica's own signed replay fails the recompute: a second violation) or REPLAY_UPHELD.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from verifier.check.verdict import VerdictKind


class Event(StrEnum):
    """What happened to one frame, in order."""

    SUSPECT = "SUSPECT"  # the screen flagged it
    AUDIT = "AUDIT"  # the draw hit it
    STRAIGHT = "STRAIGHT"  # the random quarter that skips the replay
    FAR = "FAR"  # far outside its fences: a replica that agrees with that may be an accomplice
    WATCHED = "WATCHED"  # the worker's frames lie near their fences too often (check.watch)
    NO_REPLICA = "NO_REPLICA"  # fewer than two other replicas of the stage live
    REPLAY_AGREES = "REPLAY_AGREES"
    REPLAY_DISAGREES = "REPLAY_DISAGREES"
    REPLAY_LOST = "REPLAY_LOST"  # time-out, disconnect, or a reply that could not be read
    RECOMPUTE_AGREES = "RECOMPUTE_AGREES"
    RECOMPUTE_DISAGREES = "RECOMPUTE_DISAGREES"
    RECOMPUTE_EDGE = "RECOMPUTE_EDGE"  # numeric_edge: rounding alone could do this
    RECOMPUTE_IMPOSSIBLE = "RECOMPUTE_IMPOSSIBLE"  # input or weights are gone
    REPLAY_UPHELD = "REPLAY_UPHELD"  # the disagreeing replay agrees with the recompute
    REPLAY_REFUTED = "REPLAY_REFUTED"  # it does not


class Action(StrEnum):
    """What the driver does next."""

    REPLAY = "REPLAY"
    RECOMPUTE = "RECOMPUTE"
    FINAL = "FINAL"


@dataclass(frozen=True, slots=True)
class ConfirmStep:
    """The next action; with FINAL the verdict. ``cleared_by`` is "", "replay" or "recompute".

    ``judge_replayer``: the recompute must also be held against the replay that disagreed.
    ``replayer_violation``: the replica that replayed is guilty too.
    """

    action: Action
    reason: str
    verdict: VerdictKind | None = None
    cleared_by: str = ""
    judge_replayer: bool = False
    replayer_violation: bool = False


_STRAIGHT = {
    Event.FAR: "far outside its fences: no replica's word is enough",
    Event.WATCHED: "its worker is watched",
    Event.STRAIGHT: "the random quarter that goes straight to recompute",
    Event.NO_REPLICA: "fewer than two other replicas live",
}
_OPENING = {Event.SUSPECT, Event.AUDIT, *_STRAIGHT}
_REPLAY = {Event.REPLAY_AGREES, Event.REPLAY_DISAGREES, Event.REPLAY_LOST}
_RECOMPUTE = {
    Event.RECOMPUTE_AGREES,
    Event.RECOMPUTE_DISAGREES,
    Event.RECOMPUTE_EDGE,
    Event.RECOMPUTE_IMPOSSIBLE,
}
_REPLAYER = {Event.REPLAY_UPHELD, Event.REPLAY_REFUTED}


def _one(seen: set[Event], group: set[Event]) -> Event | None:
    found = seen & group
    if len(found) > 1:
        raise ValueError(f"{', '.join(sorted(found))} exclude each other")
    return next(iter(found), None)


def decide(events: Sequence[Event]) -> ConfirmStep:
    """What comes next for a frame with this history. Raises ValueError for a history that can not be (our bug)."""
    seen = set(events)
    if not seen & {Event.SUSPECT, Event.AUDIT, Event.WATCHED}:
        raise ValueError("a confirmation begins with SUSPECT, AUDIT or WATCHED")
    if Event.FAR in seen and Event.SUSPECT not in seen:
        raise ValueError("only a suspect lies far outside its fences")
    replay, recompute, replayer = _one(seen, _REPLAY), _one(seen, _RECOMPUTE), _one(seen, _REPLAYER)
    skips_replay = next((reason for event, reason in _STRAIGHT.items() if event in seen), "")
    if replay is not None and skips_replay:
        raise ValueError("a frame that goes straight to recompute is not replayed")
    conclusive = recompute in (Event.RECOMPUTE_AGREES, Event.RECOMPUTE_DISAGREES)
    if replayer is not None and (replay is not Event.REPLAY_DISAGREES or not conclusive):
        raise ValueError(f"{replayer} needs a replay that disagreed and a recompute that says something")
    if recompute is not None:
        if replay is Event.REPLAY_AGREES:
            raise ValueError("a replay cleared this frame; nothing was left to recompute")
        if replay is None and not skips_replay:
            raise ValueError(f"recomputed without a replay, although none of {', '.join(_STRAIGHT)} is given")
        return _final(recompute, replay, replayer)
    if replay is Event.REPLAY_AGREES:
        reason = "another replica computed the same within the tolerance"
        return ConfirmStep(Action.FINAL, reason, VerdictKind.ACCEPT, cleared_by="replay")
    if replay is Event.REPLAY_DISAGREES:
        reason = "two replicas disagree: only a recompute convicts"
        return ConfirmStep(Action.RECOMPUTE, reason, judge_replayer=True)
    if replay is Event.REPLAY_LOST:
        return ConfirmStep(Action.RECOMPUTE, "the replay was lost")
    if skips_replay:
        return ConfirmStep(Action.RECOMPUTE, skips_replay)
    return ConfirmStep(Action.REPLAY, "ask another replica")


def _final(recompute: Event, replay: Event | None, replayer: Event | None) -> ConfirmStep:
    refuted = replayer is Event.REPLAY_REFUTED
    tail = "; the replica that replayed it fails the recompute as well" if refuted else ""
    if recompute is Event.RECOMPUTE_AGREES:
        reason = "the recompute agrees within the tolerance" + tail
        verdict, cleared = VerdictKind.ACCEPT, "recompute"
    elif recompute is Event.RECOMPUTE_DISAGREES:
        reason, verdict, cleared = "the recompute disagrees beyond the tolerance" + tail, VerdictKind.VIOLATION, ""
    elif recompute is Event.RECOMPUTE_EDGE:
        reason, verdict, cleared = "rounding alone may exceed the tolerance here", VerdictKind.INCONCLUSIVE, ""
    else:
        reason, verdict, cleared = "input or weights are gone: nothing to recompute", VerdictKind.INCONCLUSIVE, ""
    conclusive = verdict is not VerdictKind.INCONCLUSIVE
    judge = replay is Event.REPLAY_DISAGREES and replayer is None and conclusive
    return ConfirmStep(
        Action.FINAL,
        reason,
        verdict,
        cleared_by=cleared,
        judge_replayer=judge,
        replayer_violation=refuted and conclusive,
    )
