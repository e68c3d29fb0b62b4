"""Looks again at a frame that another seat accepted, or at an update that it made.

A driver first shows what the frame was made from; the auditor recomputes, signs a proof of that, and only for the proof
gets what the worker returned. What does not come, or does not hold together, is the driver's fault; what holds together
and is wrong is a case against the worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from sentinel_market.chain.eip712 import digest
from sentinel_market.domain.cross_audit import Draw, Outcome
from sentinel_market.domain.ids import BACKWARD
from sentinel_market.domain.messages import AuditWork
from sentinel_market.errors import PeerGone, ProtocolError
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.tensors import decode, encode
from verifier.answers import Signed
from verifier.audits.update import AgreedUpdate, judge_update
from verifier.audits.work import proof_of, work_hash
from verifier.check.verdict import Verdict, VerdictKind
from verifier.context import SeatContext
from verifier.evidence.bundle import Bundle
from verifier.evidence.recompute import Claim, judge
from verifier.evidence.replay import Known, admissibility
from verifier.peers import Peers
from verifier.recompute import Recomputer
from verifier.weights import WeightsStore
from verifier.whole import from_frame

log = logging.getLogger("verifier")

SERVE_SECONDS = 20.0
"""T_serve: how long an accused seat has for each of an auditor's questions."""


@dataclass(frozen=True)
class AuditOffence:
    """A frame that another seat accepted and that this seat's own recompute refuted, with all that proves it."""

    signed: Signed
    bundle: Bundle
    reason: str

    @property
    def step(self) -> int:
        """In which the frame was made."""
        return self.signed.message.step


@dataclass(frozen=True)
class Found:
    """What came of a draw. ``offence``: against the worker, when a frame is wrong. ``truth``: this seat's own recompute
    of the frame."""

    outcome: Outcome
    reason: str
    offence: AuditOffence | None = None
    truth: Claim | None = None


class Auditor:
    """Stateless but for what it counts."""

    def __init__(
        self,
        context: SeatContext,
        peers: Peers,
        weights: WeightsStore,
        recomputer: Recomputer,
        data_hashes: Callable[[int, int], frozenset[bytes]],
        agreed: Callable[[int, int], AgreedUpdate | None],
    ) -> None:
        """``data_hashes`` as in ``Accuser``. ``agreed(step, stage)``: what the records say of an update, None when that
        is not known here any more."""
        self.context = context
        self._peers = peers
        self._weights = weights
        self._recomputer = recomputer
        self._data_hashes = data_hashes
        self._agreed = agreed
        self.recomputes = 0
        """Recomputes of frames: paid by the record, not by this seat's own count."""

    async def look(self, draw: Draw) -> Found:
        """The whole audit of a draw, whoever was drawn for it. Never raises for what others did."""
        try:
            return await (self._frame(draw) if draw.stage is None else self._update(draw, draw.stage))
        except (PeerGone, ProtocolError, ValueError, RuntimeError, IndexError) as error:
            return Found(Outcome.UNSERVED, f"seat {draw.accused}: {error}"[:300])

    # ---- frames

    async def _frame(self, draw: Draw) -> Found:
        c = self.context
        shown = await self._ask(draw, pb.AuditQuery(step=draw.step, commitment=draw.subject))
        bundle = self._shown(draw, shown)
        message = bundle.commitment.message
        if message.nonce != c.slots[message.slot].nonce:
            return Found(Outcome.UNCLEAR, f"slot {message.slot} has changed hands")
        hashes = self._weights.hashes.get(draw.step)
        if hashes is None:
            return Found(Outcome.UNCLEAR, f"the weights of step {draw.step} are gone")
        if message.weights_hash != hashes[bundle.stage]:
            raise ProtocolError("audit", "the frame was made from other weights than the record's")
        flat = await self._weights.flat(draw.step, bundle.stage)
        bundle = replace(bundle, weights=flat)
        self._hold(bundle, "output hash")
        truth = await self._recompute(bundle)
        proof = proof_of(truth, c.account, draw.subject)
        signed = c.sign(AuditWork(c.job_id, c.account, draw.step, draw.subject, work_hash(proof)))
        query = pb.AuditQuery(step=draw.step, commitment=draw.subject, work=encode(proof), signature=signed)
        bundle = self._returned(bundle, await self._ask(draw, query))
        self._hold(bundle, "")
        verdict, _ = judge(Claim(bundle.output, bundle.sketch), truth, c.tolerance)
        if verdict.kind is VerdictKind.ACCEPT:
            return Found(Outcome.AGREES, verdict.reason, truth=truth)
        if verdict.kind is VerdictKind.INCONCLUSIVE:
            return Found(Outcome.UNCLEAR, verdict.reason, truth=truth)
        reason = f"cross-audit of a frame that seat {draw.accused} accepted: {verdict.reason}"[:500]
        bundle = replace(
            bundle,
            verdict=Verdict(VerdictKind.VIOLATION, reason),
            recompute=truth.output,
            recompute_sketch=truth.sketch,
        )
        accused = Signed(message, draw.subject, bundle.commitment.signature)
        return Found(Outcome.WRONG, reason, AuditOffence(accused, bundle, reason), truth)

    async def _ask(self, draw: Draw, query: pb.AuditQuery) -> pb.AuditAnswer:
        message = pb.SeatMessage(audit_query=query)
        return (await self._peers.insist(draw.accused, message, SERVE_SECONDS)).audit_answer

    def _shown(self, draw: Draw, shown: pb.AuditAnswer) -> Bundle:
        """The frame without what was returned. ProtocolError when it is not the one that was drawn."""
        c = self.context
        commitment = from_frame(c, shown.frame)
        message, stage = commitment.message, c.stage_of(shown.frame.slot)
        if digest(c.domain, message) != draw.subject:
            raise ProtocolError("audit", "another frame than the one asked for")
        if message.verifier != draw.accused or message.step != draw.step:
            raise ProtocolError("audit", f"a frame for seat {message.verifier} in step {message.step}")
        last = c.num_stages - 1
        backward = message.direction == BACKWARD
        upstream = [] if stage == 0 else [from_frame(c, shown.upstream)]
        incoming = None
        if backward or stage == last:
            shape = c.shapes.tokens if stage == last else c.shapes.activation
            incoming = decode(shown.incoming, shape=shape, dtype=torch.int64 if stage == last else torch.float32)
        if backward and stage < last:
            upstream.append(from_frame(c, shown.downstream))
        first = stage == 0
        return Bundle(
            domain=c.domain,
            model=c.config,
            num_stages=c.num_stages,
            num_replicas=c.num_replicas,
            commitment=commitment,
            upstream=tuple(upstream),
            incoming_sketch_hash=shown.sketch_hash if backward and stage < last else None,
            policy=c.policy,
            tolerance=c.tolerance,
            screening=Verdict(VerdictKind.ACCEPT, "accepted by its driver"),
            verdict=Verdict(VerdictKind.ACCEPT, "drawn for a cross-audit"),
            input=decode(
                shown.input,
                shape=c.shapes.tokens if first else c.shapes.activation,
                dtype=torch.int64 if first else torch.float32,
            ),
            incoming=incoming,
        )

    def _returned(self, bundle: Bundle, answer: pb.AuditAnswer) -> Bundle:
        c = self.context
        backward = bundle.commitment.message.direction == BACKWARD
        shape = c.shapes.tokens if bundle.stage == c.num_stages - 1 and not backward else c.shapes.activation
        output = None
        if not (backward and bundle.stage == 0):
            output = decode(answer.output, shape=shape, dtype=torch.float32)
        sketch = decode(answer.sketch, shape=(64,), dtype=torch.float32) if backward else None
        return replace(bundle, output=output, sketch=sketch)

    def _hold(self, bundle: Bundle, without: str) -> None:
        """Raises ProtocolError unless everything holds together; ``without``: the check that cannot be made yet."""
        message = bundle.commitment.message
        known = Known(
            domain=self.context.domain,
            signers={slot.slot: slot.hot_key for slot in self.context.slots.values()},
            data_hashes=self._data_hashes(message.step, message.microbatch),
        )
        failed = [one for one in admissibility(bundle, known) if not one.ok and one.name != without]
        if failed:
            raise ProtocolError("audit", "; ".join(f"{one.name}: {one.text}" for one in failed)[:300])

    async def _recompute(self, bundle: Bundle) -> Claim:
        message = bundle.commitment.message
        self.recomputes += 1
        if bundle.incoming is None:
            found = await self._recomputer.forward(message.step, bundle.stage, bundle.input)
        else:
            found = await self._recomputer.backward(message.step, bundle.stage, bundle.input, bundle.incoming)
        return found.frame(message.direction)

    # ---- updates

    async def _update(self, draw: Draw, stage: int) -> Found:
        agreed = self._agreed(draw.step, stage)
        if agreed is None:
            return Found(Outcome.UNCLEAR, f"the record of step {draw.step} is gone")
        query = pb.SeatMessage(update_query=pb.UpdateQuery(step=draw.step, stage=stage))
        answer = (await self._peers.insist(draw.accused, query, SERVE_SECONDS)).update_answer
        before = await self._weights.flat(draw.step, stage)
        after = await self._weights.flat(draw.step + 1, stage)
        problem = await asyncio.to_thread(judge_update, self.context, agreed, before, after, answer)
        if problem:
            return Found(Outcome.WRONG, f"update of stage {stage} in step {draw.step}: {problem}"[:300])
        return Found(Outcome.AGREES, f"the update of stage {stage} in step {draw.step} is the one that was signed")
