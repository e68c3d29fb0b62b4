"""One answer's way to a final verdict: screen, draw, replay, recompute, and what the engine remembers of it.

The judge of the simulation and the judge of a recorded live run. Who replays and who recomputes is not known here: the
caller asks ``wants``, does it, and says in ``heard`` what came of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto

from torch import Tensor

from sentinel_market.wire.tensors import all_finite
from verifier.check import Action, Event, Frame, Screening, Verdict, VerdictKind, decide
from verifier.check.confirm import ConfirmStep
from verifier.check.engine import Engine
from verifier.check.frame import BACKWARD


class Wants(Enum):
    """What a hearing waits for."""

    REPLAY = auto()
    RECOMPUTE = auto()
    REPLAYER = auto()  # whether the replay that disagreed agrees with the recompute
    NOTHING = auto()


_ACTIONS = {Action.REPLAY: Wants.REPLAY, Action.RECOMPUTE: Wants.RECOMPUTE}


class Hearing:
    """Of one answer: a frame, or the two that a worker returns together."""

    def __init__(
        self,
        engine: Engine,
        slot: int,
        stage: int,
        directions: tuple[int, ...],
        convict: Callable[[int, str], None],
    ) -> None:
        """``directions`` of what the worker committed to. ``convict(slot, reason)`` bans, and tells the engine."""
        self.engine = engine
        self.policy = engine.policy
        self.slot, self.stage, self.directions = slot, stage, directions
        self.screenings: list[tuple[int, Screening]] = []
        """(direction, screening)"""
        self.suspect: Screening | None = None
        self.events: list[Event] = []
        self._convict = convict

    # ---- the screen

    def screen(self, frames: Sequence[Frame], microbatch: int, sketch: Tensor | None = None) -> None:
        """Screen and count every frame of the answer. ``sketch`` [64]: where its worker sent one; no screen sees it,
        and one that is not finite would cost the worker's whole sum of the step."""
        found = [self.engine.screen(frame, microbatch) for frame in frames]
        self.screenings = [(frame.direction, one) for frame, one in zip(frames, found, strict=True)]
        for frame, one in zip(frames, found, strict=True):
            ban = self.engine.note(frame, one)
            if ban is not None:
                self._convict(ban.worker, ban.reason)
        self.suspect = next((one for one in found if one.verdict.kind is not VerdictKind.ACCEPT), None)
        if self.suspect is None and sketch is not None and not all_finite(sketch):
            verdict = Verdict(VerdictKind.SUSPECT, "nonfinite: NaN or Inf in the sketch")
            self.accuse(BACKWARD, verdict)

    def accuse(self, direction: int, verdict: Verdict) -> None:
        """Suspicion from elsewhere than the screen."""
        self.suspect = Screening(verdict, self.policy, self.slot)
        self.screenings.append((direction, self.suspect))

    @property
    def watched(self) -> bool:
        """Whether the worker's frames of these directions are to be recomputed, flagged or not."""
        return self.engine.watched(self.slot, self.directions)

    def accept(self) -> None:
        """Fold the frames into their baselines."""
        for direction, one in self.screenings:
            self.engine.accept(self.stage, direction, one)

    # ---- the confirmation

    def open(self, *, audited: bool, straight: bool, others: int, recomputes: bool = True) -> None:
        """A confirmation begins. ``others``: live replicas of the stage that could replay. ``recomputes`` False: nobody
        may recompute, so nothing skips the replay for it."""
        self.events = [
            event
            for event, holds in (
                (Event.SUSPECT, self.suspect is not None),
                (Event.AUDIT, audited),
                (Event.WATCHED, recomputes and self.watched),
                (Event.STRAIGHT, straight),
                (Event.FAR, recomputes and any(self.engine.at_once(one) for _, one in self.screenings)),
                (Event.NO_REPLICA, others < 2),
            )
            if holds
        ]

    @property
    def wants(self) -> Wants:
        """What comes next; NOTHING once the verdict is final."""
        step = decide(self.events)
        if step.action is Action.FINAL:
            return Wants.REPLAYER if step.judge_replayer else Wants.NOTHING
        return _ACTIONS[step.action]

    def heard(self, event: Event, slot: int = -1) -> None:
        """What came of it. ``slot``: whose replay it was."""
        self.events.append(event)
        if event is Event.REPLAY_LOST:
            self.engine.inconclusive(slot, self.stage)
        elif event is Event.REPLAY_REFUTED:
            self._convict(slot, "its own replay fails the recompute")

    @property
    def final(self) -> ConfirmStep:
        """The verdict, once nothing more is wanted."""
        return decide(self.events)

    def close(self) -> bool:
        """Tell the engine the final verdict; whether the answer is accepted."""
        step = self.final
        if step.verdict is VerdictKind.VIOLATION:
            self._convict(self.slot, step.reason)
            return False
        if step.verdict is not VerdictKind.ACCEPT:
            self.engine.inconclusive(self.slot, self.stage)
            return False
        if step.cleared_by == "recompute":
            self.engine.upheld(self.slot, self.directions)
            for direction, one in self.screenings:
                if one.crossed:
                    self.engine.cleared_by_recompute(self.stage, direction, one)
        self.accept()
        return True
