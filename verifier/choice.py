"""Which replica of a stage is asked next, and how long a stage may be without one.

Nobody is barred but by a conviction, or by statistics under the policies that have nothing else. Everything else that
happens to a worker (an accident, a time-out, lost frames, a dropped sum) says who is asked first, never that nobody is:
much of it can be another's doing, and the last live replica of a stage is asked whatever happened to it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable

from sentinel_market.domain import assignment
from sentinel_market.errors import Fatal
from verifier.context import SeatContext
from verifier.relay import Relay, WorkerSession
from verifier.step import SlotSession, StepState

PATIENCE_SECONDS = 30.0
"""How long a stage may be without any live worker before the run stops."""
AGAIN_SECONDS = 1.0
"""After so long those are asked again that failed at this piece of work, where there is nobody else."""
SILENT_LIMITS = 3
"""A worker that lets so many times a task's time limit pass in silence is not live."""


class Choice:
    """One driver's."""

    def __init__(
        self,
        context: SeatContext,
        relay: Relay,
        barred: Callable[[int], bool],
        overloaded: Callable[[int], bool],
        gone: Callable[[int], None],
        time_limit: Callable[[], float],
    ) -> None:
        """``barred(slot)``: as of the driver. ``overloaded(slot)``: too much of its work is lost; ``gone(slot)`` ends
        that, when another holds the slot. ``time_limit()`` of one task, in seconds."""
        self._context = context
        self._relay = relay
        self._barred = barred
        self._overloaded = overloaded
        self._time_limit = time_limit
        self._gone = gone
        self._holders: dict[int, int] = {}
        self._rng = random.Random()
        self._state = StepState(-1)

    def begin(self, state: StepState) -> None:
        """A new step."""
        self._state = state
        self._rng.seed(assignment.draw_seed(self._context.spec.seed, state.step, self._context.me))

    def met(self, session: WorkerSession) -> None:
        """A new session: nobody answers for who held the slot before."""
        if self._holders.setdefault(session.slot.slot, session.slot.nonce) != session.slot.nonce:
            self._holders[session.slot.slot] = session.slot.nonce
            self._gone(session.slot.slot)

    def usable(self, session: WorkerSession) -> bool:
        """Whether it may be given work now."""
        return self._present(session) and session.suspended_until <= time.monotonic()

    def live(self, stage: int) -> list[WorkerSession]:
        """Replicas of a stage that may be given work now."""
        return self._first([s for s in self._relay.sessions.values() if s.stage == stage and self.usable(s)])

    async def pick(self, stage: int, avoid: Iterable[SlotSession]) -> WorkerSession:
        """Who does a piece of work next. ``avoid``: who failed at it. Raises Fatal when the stage stays empty."""
        avoided, began = set(avoid), time.monotonic()
        while True:
            found = [s for s in self._relay.sessions.values() if s.stage == stage and self._present(s)]
            waited = time.monotonic() - began
            usable = [s for s in found if self.usable(s)]
            choice = [s for s in usable if s.id not in avoided]
            if not choice and waited > AGAIN_SECONDS:
                # Each of them failed, or rests: an accident may pass.
                choice = usable or sorted(filter(self._may_answer, found), key=lambda s: s.suspended_until)[:1]
            if choice:
                return self.draw(self._first(choice))
            if waited > PATIENCE_SECONDS:
                raise Fatal(
                    f"stage {stage} has no live worker left ({self._whereabouts(stage)}); "
                    "start one with `sentinel worker start`"
                )
            await asyncio.sleep(0.05)

    def draw(self, sessions: list[WorkerSession]) -> WorkerSession:
        """Stochastic wiring: weights from measured service times and what is in flight."""
        ordered = sorted(sessions, key=lambda s: s.slot.slot)
        weights = [1.0 / (max(s.service_seconds, 1e-3) * (1 + s.in_flight)) for s in ordered]
        return self._rng.choices(ordered, weights)[0]

    def _present(self, session: WorkerSession) -> bool:
        if session.closed or session.ready is None or session.ready[0] > self._state.step:
            return False
        return not self._barred(session.slot.slot) and not self._state.void(*session.id)

    def _first(self, sessions: list[WorkerSession]) -> list[WorkerSession]:
        """Those who lost the fewest sums in this step: who breaks its sum again and again does not hold up a step that
        others can do. Of these, without those whose work is lost three times as often as their peers'."""
        dropped = {s.id: self._state.dropped(s.slot.slot) for s in sessions}
        fewest = [s for s in sessions if dropped[s.id] == min(dropped.values())]
        return [s for s in fewest if not self._overloaded(s.slot.slot)] or fewest

    def _may_answer(self, session: WorkerSession) -> bool:
        return session.silent_seconds <= SILENT_LIMITS * self._time_limit()

    def _whereabouts(self, stage: int) -> str:
        c, told = self._context, []
        for slot in (slot for slot in range(c.num_stages * c.num_replicas) if c.stage_of(slot) == stage):
            session = self._relay.sessions.get(slot)
            if self._barred(slot):
                why = "convicted or distrusted"
            elif session is None or session.closed:
                why = "not connected"
            elif not self._present(session):
                why = "not ready"
            else:
                why = f"silent for {session.silent_seconds:.0f} s"
            told.append(f"slot {slot}: {why}")
        return ", ".join(told)
