"""Whole stage gradients: every backward of a replica's accepted set recomputed, added up, held against its sum."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from sentinel_market.chain.eip712 import digest
from sentinel_market.domain.messages import FrameCommitment, StageGradient
from sentinel_market.errors import PeerGone, ProtocolError
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.tensors import decode
from verifier.answers import Accepted, Held, Signed
from verifier.check.verdict import Verdict, VerdictKind
from verifier.context import SeatContext
from verifier.driver import Driver
from verifier.evidence.bundle import SignedCommitment
from verifier.evidence.gradient import (
    MAX_BACKWARDS,
    MAX_BUNDLE_BYTES,
    Facts,
    RunningSum,
    SummedBackward,
    judge_sum,
    problem_of,
)
from verifier.peers import Peers
from verifier.recompute import Recomputer

log = logging.getLogger("verifier")


@dataclass(frozen=True)
class SignedSum:
    """A stage gradient as its worker signed it."""

    message: StageGradient
    digest: bytes
    signature: bytes


@dataclass(frozen=True)
class GradientOffence:
    """A stage gradient that this seat's own recompute of the whole sum refuted, and all that proves it."""

    signed: SignedSum
    backwards: tuple[SummedBackward, ...]
    submitted: torch.Tensor
    screening: Verdict
    verdict: Verdict
    step: int

    @property
    def reason(self) -> str:
        """For people."""
        return f"stage gradient of step {self.step}: {self.screening.reason}; {self.verdict.reason}"[:500]


@dataclass(frozen=True)
class Whole:
    """What a whole recompute said. ``backwards`` None: more than a bundle holds, so nobody can be shown."""

    verdict: Verdict
    backwards: tuple[SummedBackward, ...] | None


class WholeGradients:
    """Asks drivers for what they hold, and answers when others ask."""

    def __init__(
        self,
        context: SeatContext,
        peers: Peers,
        recomputer: Recomputer,
        driver: Driver,
        data_hashes: Callable[[int, int], frozenset[bytes]],
    ) -> None:
        """``driver``: this seat's own. ``data_hashes`` as in ``Accuser``."""
        self.context = context
        self._peers = peers
        self._recomputer = recomputer
        self._driver = driver
        self._data_hashes = data_hashes

    async def judge(
        self, signed: SignedSum, submitted: torch.Tensor, parts: Iterable[tuple[str, pb.AcceptedSet]]
    ) -> Whole:
        """Recompute the sum over ``parts``, (driver account, what it accepted), in the order of the accepted set.
        INCONCLUSIVE where a driver does not serve what it accepted, or serves what does not hold together."""
        message = signed.message
        stage = self.context.stage_of(message.slot)
        total = RunningSum(submitted.numel())
        kept: list[SummedBackward] = []
        size = submitted.nbytes + submitted.nbytes  # the weights are as large
        for account, accepted in parts:
            for commitment in accepted.commitments:
                try:
                    one = await self._fetch(account, message, commitment)
                    await self._recomputer.add_gradient(message.step, stage, one.input, one.incoming, total)
                except (PeerGone, ProtocolError, ValueError, RuntimeError, IndexError) as error:
                    log.warning("step %d slot %d: seat %s: %s", message.step, message.slot, account, error)
                    reason = f"the whole sum cannot be recomputed: seat {account}: {error}"[:300]
                    return Whole(Verdict(VerdictKind.INCONCLUSIVE, reason), None)
                size += one.nbytes
                if size <= MAX_BUNDLE_BYTES:
                    kept.append(one)
        verdict, _ = judge_sum(submitted, total, self.context.tolerance)
        fits = size <= MAX_BUNDLE_BYTES and len(kept) <= MAX_BACKWARDS
        return Whole(verdict, tuple(kept) if fits else None)

    async def _fetch(self, account: str, gradient: StageGradient, commitment: bytes) -> SummedBackward:
        """From here or from the driver ``account``, checked as a replay of the evidence would. Raises ProtocolError."""
        c = self.context
        if account == c.account:
            answer = self.serve(pb.HeldQuery(step=gradient.step, commitment=commitment))
        else:
            query = pb.SeatMessage(held_query=pb.HeldQuery(step=gradient.step, commitment=commitment))
            answer = (await self._peers.ask(account, query)).held_answer
        one = self._open(answer, c.stage_of(gradient.slot))
        facts = Facts(
            c.domain,
            c.num_stages,
            c.num_replicas,
            {slot.slot: slot.hot_key for slot in c.slots.values()},
            self._data_hashes(gradient.step, one.commitment.message.microbatch),
        )
        if one.commitment.message.verifier != account:
            raise ProtocolError("held", f"a backward for {one.commitment.message.verifier}")
        problem = await asyncio.to_thread(problem_of, one, gradient, facts)
        if problem:
            raise ProtocolError("held", f"a backward that proves nothing: {problem}")
        if digest(c.domain, one.commitment.message) != commitment:
            raise ProtocolError("held", "another backward than the one asked for")
        return one

    def _open(self, answer: pb.HeldAnswer, stage: int) -> SummedBackward:
        c = self.context
        first, last = stage == 0, stage == c.num_stages - 1
        tokens, activation = c.shapes.tokens, c.shapes.activation
        return SummedBackward(
            commitment=from_frame(c, answer.backward),
            input=decode(
                answer.input,
                shape=tokens if first else activation,
                dtype=torch.int64 if first else torch.float32,
            ),
            incoming=decode(
                answer.incoming,
                shape=tokens if last else activation,
                dtype=torch.int64 if last else torch.float32,
            ),
            upstream=None if first else from_frame(c, answer.upstream),
            downstream=None if last else from_frame(c, answer.downstream),
            sketch_hash=None if last else answer.sketch_hash,
        )

    def serve(self, query: pb.HeldQuery) -> pb.HeldAnswer:
        """What this seat's driver holds of a backward that it accepted. ProtocolError("held") when it does not."""
        entry, held = self._holding(query)
        answer = pb.HeldAnswer(
            backward=to_frame(entry.signed), input=held.inputs[entry.stage], incoming=held.incoming[entry.stage]
        )
        if entry.stage > 0:
            answer.upstream.CopyFrom(to_frame(held.upstream[entry.stage]))
        if entry.stage < self.context.num_stages - 1:
            below = held.downstream[entry.stage]
            answer.downstream.CopyFrom(to_frame(below.signed))
            answer.sketch_hash = below.sketch_hash
        return answer

    def _holding(self, query: pb.HeldQuery) -> tuple[Accepted, Held]:
        """A backward that the driver accepted in this step, and what it was made from."""
        for entry in self._driver.accepted:
            if entry.digest == query.commitment and entry.signed.message.step == query.step:
                for held in self._driver.held:
                    if held.microbatch == entry.microbatch:
                        return entry, held
        name = query.commitment.hex()[:16]
        raise ProtocolError("held", f"commitment {name} of step {query.step} is not held here")


def to_frame(signed: Signed) -> pb.SignedFrame:
    """A commitment as seats show it to each other."""
    m = signed.message
    return pb.SignedFrame(
        slot=m.slot,
        nonce=m.nonce,
        verifier=m.verifier,
        session=m.session,
        sequence=m.sequence,
        step=m.step,
        microbatch=m.microbatch,
        direction=m.direction,
        input_hash=m.input_hash,
        output_hash=m.output_hash,
        weights_hash=m.weights_hash,
        signature=signed.signature,
    )


def from_frame(context: SeatContext, frame: pb.SignedFrame) -> SignedCommitment:
    """The inverse. Whether it is signed is asked later; a slot that the job has not is ProtocolError("held")."""
    if frame.slot not in context.slots:
        raise ProtocolError("held", f"job {context.job_id} has no slot {frame.slot}")
    message = FrameCommitment(
        context.job_id,
        frame.slot,
        frame.nonce,
        frame.verifier,
        frame.session,
        frame.sequence,
        frame.step,
        frame.microbatch,
        frame.direction,
        frame.input_hash,
        frame.output_hash,
        frame.weights_hash,
    )
    return SignedCommitment(message=message, signature=frame.signature, signer=context.slots[frame.slot].hot_key)
