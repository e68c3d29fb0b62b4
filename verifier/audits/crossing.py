"""Cross-audits through a run: what this seat tells with each ``Done``, what it looks at when a record is final, what
it serves to the others.

The record of step t + 1 reveals the secrets of t, so the draws of t are looked at beside step t + 2; what is found
travels with the next ``Done``. Nothing here changes a step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial

import torch
from google.protobuf.message import DecodeError

from sentinel_market.domain.cross_audit import LAG, Draw, Fault, FaultKind, Ledger, Outcome, Said
from sentinel_market.domain.messages import AuditWork
from sentinel_market.errors import Fatal, PeerGone, ProtocolError
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.tensors import decode
from verifier.answers import Leaf
from verifier.audits.auditor import AuditOffence, Auditor, Found
from verifier.audits.faults import Faults
from verifier.audits.findings import MOST_AUDITED, MOST_FAULTS
from verifier.audits.shelf import Shelf, claim_of
from verifier.audits.update import AgreedUpdate
from verifier.audits.work import WIDTH, proof_of, work_hash
from verifier.check import audit
from verifier.check.tolerance import compare_sketch
from verifier.check.verdict import VerdictKind
from verifier.context import SeatContext
from verifier.cosign import Cosigner
from verifier.evidence.recompute import Claim, judge
from verifier.peers import Peers
from verifier.recompute import Recomputer
from verifier.weights import WeightsStore

log = logging.getLogger("verifier")

LEDGER_SECONDS = 20.0
"""How long a claim waits for this seat to finish the step that draws what it is about."""


class CrossAudits:
    """One a seat, for the whole run."""

    def __init__(
        self,
        context: SeatContext,
        peers: Peers,
        weights: WeightsStore,
        recomputer: Recomputer,
        data_hashes: Callable[[int, int], frozenset[bytes]],
        cosigner: Cosigner,
        accuse: Callable[[AuditOffence], None],
        told: Callable[[Draw, Found], None],
        claimed: Callable[[Fault, str], None],
        recorded: Callable[[Fault, int], None],
    ) -> None:
        """``accuse(offence)``: a frame that another driver accepted is wrong. ``told``, ``claimed``,
        ``recorded(fault, step)``: for those who watch."""
        self.context = context
        self._told = told
        self._accuse = accuse
        self._recorded = recorded
        self._weights = weights
        self._recomputer = recomputer
        self.shelf = Shelf(context)
        self.auditor = Auditor(context, peers, weights, recomputer, data_hashes, self._agreed)
        self.faults = Faults(context, peers, self._verify, claimed)
        self.ledger = Ledger(
            context.job_id,
            tuple(seat.account for seat in context.seats),
            tuple(context.primary(stage).account for stage in range(context.num_stages)),
        )
        self.verifiers: dict[FaultKind, Callable[[Fault, bytes], Awaitable[bool]]] = {
            FaultKind.UNSERVED_FRAME: self._look_again,
            FaultKind.UNSERVED_UPDATE: self._look_again,
            FaultKind.WRONG_UPDATE: self._look_again,
            FaultKind.LAZY_AUDIT: self._was_lazy,
            FaultKind.RUBBER_STAMP: partial(self._is_proved, cosigner.proves_rubber_stamp),
            FaultKind.FALSE_ALARM: partial(self._is_proved, cosigner.proves_false_alarm),
        }
        self._untold: dict[bytes, pb.Audited] = {}
        self._updates: dict[tuple[int, int], AgreedUpdate] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- what this seat says

    def findings(self, step: int, secrets: Sequence[bytes]) -> pb.Findings:
        """For the ``Done`` of a step. ``secrets``: of the step before, in seat order."""
        certified = self.faults.certified(self.ledger.faults)[:MOST_FAULTS]
        return pb.Findings(
            step=step, secrets=secrets, audited=list(self._untold.values())[:MOST_AUDITED], faults=certified
        )

    # ---- what the records say

    def close(self, step: int, said: Mapping[str, Said], aggregates: Mapping[int, pb.Aggregate]) -> None:
        """The record of ``step`` is final: look at what it draws of the step before."""
        c = self.context
        nonces = {slot.slot: slot.nonce for slot in c.slots.values()}
        for stage, aggregate in aggregates.items():
            self._updates[step, stage] = AgreedUpdate(aggregate, nonces)
        for key in [key for key in self._updates if key[0] < step - LAG]:
            del self._updates[key]
        mine = said[c.account]
        for _, subject, _ in mine.audited:
            self._untold.pop(subject, None)
        before = set(self.ledger.faults)
        draws = self.ledger.take(step, said, self._shares(step - 1))
        for fault in self.ledger.faults:
            if fault not in before:
                self._recorded(fault, step)
        self.faults.forget(step)
        for draw in draws:
            if draw.auditor == c.account:
                self._start(self._audit(draw))

    def _shares(self, step: int) -> tuple[int, int]:
        """x = p / 4 of the frames, p of the updates; the warm-up's share in warm-up."""
        policy = self.context.policy
        if not policy.audits:
            return 0, 0
        warm = step < self.context.spec.verification.warmup_steps
        share = policy.warmup_audit_share_ppm if warm else policy.audit_share_ppm
        return audit.gradient_share_ppm(policy, in_warmup=warm), share

    def _agreed(self, step: int, stage: int) -> AgreedUpdate | None:
        return self._updates.get((step, stage))

    def check_seats(self) -> None:
        """Raises Fatal where the records say that a seat has lost its place."""
        lost = self.ledger.lost()
        if lost is not None:
            what = ", ".join(f"{fault.kind.name} in step {fault.step}" for fault in self.ledger.misses(lost))
            whose = "this seat has" if lost == self.context.account else f"seat {lost} has"
            raise Fatal(
                f"{whose} lost its place in job {self.context.job_id}: {what}. The run stops: nothing is lost, "
                "finished epochs stay payable, the rest is refunded"
            )

    # ---- looking

    async def _audit(self, draw: Draw) -> None:
        found = await self.auditor.look(draw)
        self._untold[draw.subject] = pb.Audited(step=draw.step, subject=draw.subject, outcome=int(found.outcome))
        self._told(draw, found)
        self._follow(draw, found)

    def _follow(self, draw: Draw, found: Found) -> None:
        if found.offence is not None:
            self._accuse(found.offence)
        kind = _fault_of(draw, found)
        if kind is not None:
            log.warning("seat %s is at fault (%s): %s", draw.accused, kind.name, found.reason)
            self.faults.claim(Fault(kind, draw.accused, draw.step, draw.subject))

    async def _drawn(self, fault: Fault, subject: bytes) -> Draw | None:
        """What this seat knows as drawn under that name; waits for the step that draws it."""
        for _ in range(int(LEDGER_SECONDS / 0.1)):
            if self.ledger.step > fault.step:
                break
            await asyncio.sleep(0.1)
        return next((draw for draw in self.ledger.draws.get(fault.step, ()) if draw.subject == subject), None)

    async def _verify(self, fault: Fault, evidence: bytes) -> bool:
        verifier = self.verifiers.get(fault.kind)
        return verifier is not None and await verifier(fault, evidence)

    async def _look_again(self, fault: Fault, _evidence: bytes) -> bool:
        """An auditor says that it was not served, or served wrong: this seat asks for itself."""
        draw = await self._drawn(fault, fault.subject)
        if draw is None or draw.accused != fault.seat:
            return False
        found = await self.auditor.look(draw)
        if _fault_of(draw, found) is fault.kind:
            return True
        if found.offence is not None:
            self._accuse(found.offence)
        return False

    async def _is_proved(
        self, proves: Callable[[bytes, str], tuple[int, bytes]], fault: Fault, evidence: bytes
    ) -> bool:
        """``proves(evidence, accused)`` says what the evidence is about: step and subject."""
        try:
            return await asyncio.to_thread(proves, evidence, fault.seat) == (fault.step, fault.subject)
        except ProtocolError as error:
            log.info("the evidence against seat %s proves no %s: %s", fault.seat, fault.kind.name, error)
            return False

    # ---- serving

    def serve_frame(self, sender: str, query: pb.AuditQuery) -> pb.AuditAnswer:
        """Raises ProtocolError("held", "audit"). A proof of work that the accepted output does not bear out is looked
        into: either the frame is wrong, or the auditor did not recompute it."""
        if query.work:
            proof = self._proof(sender, query)
            leaf = self.shelf.leaf(query.step, query.commitment)
            mine = proof_of(claim_of(leaf), sender, query.commitment)
            if not compare_sketch(proof, mine, self.context.tolerance).agrees:
                self._start(self._doubt(sender, query, leaf))
        return self.shelf.frame(query)

    def _proof(self, auditor: str, query: pb.AuditQuery) -> torch.Tensor:
        proof = decode(query.work, shape=(WIDTH,))
        c = self.context
        work = AuditWork(c.job_id, auditor, query.step, query.commitment, work_hash(proof))
        c.check_seat(auditor, work, query.signature)
        return proof

    async def _doubt(self, auditor: str, query: pb.AuditQuery, leaf: Leaf) -> None:
        fault = Fault(FaultKind.LAZY_AUDIT, auditor, query.step, query.commitment)
        message, stage = leaf.signed.message, leaf.answer.stage
        x, incoming = leaf.held.given(stage, leaf.answer.operation, self.context.shapes)
        try:
            truth = await self._recomputer.run(message.step, stage, x, incoming)
        except (PeerGone, ProtocolError) as error:
            log.info("the proof of seat %s cannot be looked into: %s", auditor, error)
            return
        claim = truth.frame(message.direction)
        verdict, _ = judge(claim_of(leaf), claim, self.context.tolerance)
        if verdict.kind is VerdictKind.ACCEPT and self._unlike(claim, auditor, query):
            log.warning("seat %s did not recompute what it was to audit in step %d", auditor, query.step)
            self.faults.claim(fault, query.SerializeToString())

    def _unlike(self, truth: Claim, auditor: str, query: pb.AuditQuery) -> bool:
        proof = self._proof(auditor, query)
        return not compare_sketch(proof, proof_of(truth, auditor, query.commitment), self.context.tolerance).agrees

    async def _was_lazy(self, fault: Fault, evidence: bytes) -> bool:
        """A driver shows a proof of work that is none: this seat recomputes the frame itself."""
        try:
            query = pb.AuditQuery.FromString(evidence)
        except DecodeError:
            return False
        if (query.step, query.commitment) != (fault.step, fault.subject):
            return False
        draw = await self._drawn(fault, fault.subject)
        if draw is None or draw.auditor != fault.seat:
            return False
        found = await self.auditor.look(draw)
        try:
            return (
                found.outcome is Outcome.AGREES
                and found.truth is not None
                and self._unlike(found.truth, fault.seat, query)
            )
        except ProtocolError:
            return False

    # ---- life

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settled(self) -> None:
        """Wait until nothing is being looked at, or claimed."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        await self.faults.settled()

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        self.faults.cancel()


def _fault_of(draw: Draw, found: Found) -> FaultKind | None:
    if found.outcome is Outcome.UNSERVED:
        return FaultKind.UNSERVED_FRAME if draw.stage is None else FaultKind.UNSERVED_UPDATE
    return FaultKind.WRONG_UPDATE if found.outcome is Outcome.WRONG and draw.stage is not None else None
