"""What a seat has heard of one step, its own words included, and waiting for more of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from sentinel_market.chain.eip712 import keccak256
from sentinel_market.domain import assignment, merkle, step_record
from sentinel_market.domain.messages import DriverDone, DriverRoot
from sentinel_market.errors import ProtocolError
from sentinel_market.wire import relay_pb2 as pb
from verifier.audits.findings import check_findings
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
    findings: dict[str, pb.Findings] = field(default_factory=dict)
    """After the last step only: account -> what it found out; else a Done brings it."""
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

    def dropped(self, slot: int) -> int:
        """How many sums of this slot were dropped in this step."""
        return sum(one == slot for one, _ in self.excluded)

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
    _check_leaves(done)
    if len(done.secret_hash) != 32 or len(done.next_secret_hash) != 32:
        raise ProtocolError("done", "the hash of a secret has 32 bytes")
    if done.findings.step != done.step:
        raise ProtocolError("findings", f"findings of step {done.findings.step} in a Done of step {done.step}")
    check_findings(context, done.findings)


def _check_leaves(done: pb.Done) -> None:
    leaves = set(done.leaf_digests)
    if not len(leaves) == len(done.leaf_digests) == done.leaves or any(len(leaf) != 32 for leaf in leaves):
        raise ProtocolError("done", f"{done.leaves} leaves are claimed, {len(leaves)} are listed")
    if merkle.root(list(done.leaf_digests), keccak256) != done.root:
        raise ProtocolError("done", "the root is not that of the listed leaves")
    for entry in done.sets:
        if not leaves.issuperset(entry.commitments):
            raise ProtocolError("done", f"a backward of slot {entry.slot} is not under the root")
