"""What a seat has heard of one step, its own words included, and waiting for more of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from sentinel_market.domain import assignment, step_record
from sentinel_market.domain.messages import DriverDone, DriverRoot
from sentinel_market.errors import ProtocolError
from sentinel_market.wire import relay_pb2 as pb
from verifier.context import SeatContext

SlotSession = tuple[int, int]


@dataclass
class StepState:
    """Messages of step ``step`` by account or stage. Sets only grow; a Done is replaced by a later round."""

    step: int
    dones: dict[str, dict[int, pb.Done]] = field(default_factory=dict)
    """account -> round -> Done"""
    aggregates: dict[int, pb.Aggregate] = field(default_factory=dict)
    record_signatures: dict[str, pb.RecordSignature] = field(default_factory=dict)
    excluded: dict[SlotSession, str] = field(default_factory=dict)
    """(slot, session) whose sum of this step is dropped whole -> why"""
    lies: set[SlotSession] = field(default_factory=set)
    """Of those, the sums that were dropped for a lie of the worker: its backwards of this step are not paid"""
    quarantines: dict[int, pb.Quarantine] = field(default_factory=dict)
    """slot -> certificate signed by q seats, first reached in this step"""

    def __post_init__(self) -> None:
        self._changed = asyncio.Event()

    def changed(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, predicate: Callable[[], bool], time_limit: float | None = None) -> None:
        """Wait until ``predicate`` holds; it is asked again after every ``changed``. Raises TimeoutError."""
        async with asyncio.timeout(time_limit):
            while True:
                event = self._changed
                if predicate():
                    return
                await event.wait()

    def latest(self, account: str) -> pb.Done | None:
        rounds = self.dones.get(account)
        return rounds[max(rounds)] if rounds else None

    def void(self, slot: int, session: int) -> bool:
        """Whether what this worker did in this step is dropped."""
        return slot in self.quarantines or (slot, session) in self.excluded

    def exclude(self, slot: int, session: int, reason: str, *, lie: bool = False) -> bool:
        """Returns whether that was news."""
        if (slot, session) in self.excluded:
            return False
        self.excluded[slot, session] = reason
        if lie:
            self.lies.add((slot, session))
        self.changed()
        return True


def sets_of(done: pb.Done) -> list[step_record.AcceptedSet]:
    return [step_record.AcceptedSet(s.slot, s.session, tuple(s.commitments), tuple(s.microbatches)) for s in done.sets]


def union_of(context: SeatContext, dones: dict[str, pb.Done], slot: int, session: int) -> list[pb.AcceptedSet]:
    """What each driver, in seat order, accepted of one worker session."""
    return [entry for _, entry in parts_of(context, dones, slot, session)]


def parts_of(
    context: SeatContext, dones: dict[str, pb.Done], slot: int, session: int
) -> list[tuple[str, pb.AcceptedSet]]:
    """The same, each with its driver's account."""
    return [
        (seat.account, entry)
        for seat in context.seats
        for entry in dones[seat.account].sets
        if entry.slot == slot and entry.session == session
    ]


def check_done(context: SeatContext, account: str, done: pb.Done) -> None:
    """Raises ProtocolError for a Done that this seat could not have meant."""
    allowed = set(range(context.num_stages * context.num_replicas))
    index = next(seat.index for seat in context.seats if seat.account == account)
    theirs = set(assignment.microbatches_of(index, context.spec.training.microbatches, context.live))
    for entry in done.sets:
        if entry.slot not in allowed or len(entry.commitments) != len(entry.microbatches):
            raise ProtocolError("done", f"a set of slot {entry.slot} with {len(entry.commitments)} commitments")
        if not theirs.issuperset(entry.microbatches):
            raise ProtocolError("done", f"seat {index} drives other microbatches than {list(entry.microbatches)[:8]}")
        if any(len(c) != 32 for c in entry.commitments):
            raise ProtocolError("done", "a commitment is named by its 32-byte digest")
    context.check_seat(
        account,
        DriverDone(context.job_id, done.step, done.round, account, step_record.sets_digest(sets_of(done))),
        done.signature,
    )
    context.check_seat(
        account,
        DriverRoot(context.job_id, done.step, account, done.root, done.leaves, done.next_secret_hash),
        done.root_signature,
    )
