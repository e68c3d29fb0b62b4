"""The primary of a stage: collects the replicas' sums, steps the optimizer, commits to the new weights."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import torch

from sentinel_market.chain.eip712 import digest
from sentinel_market.chain.signing import recover
from sentinel_market.domain import step_record
from sentinel_market.domain.messages import AggregateCommitment
from sentinel_market.errors import PeerGone, ProtocolError
from sentinel_market.models.init import init_flat
from sentinel_market.models.jobs import optimizer_config
from sentinel_market.models.layout import layout
from sentinel_market.models.optimizer import decay_mask, step_
from sentinel_market.models.sketch import Sketch
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.tensors import all_finite, decode, encode, encoded_hash, pair_hash, tensor_hash
from verifier.check import robust
from verifier.check.tolerance import compare_sketch
from verifier.context import SeatContext
from verifier.meter import Meter
from verifier.relay import Relay, WorkerSession
from verifier.step import SlotSession, StepState, union_of

log = logging.getLogger("verifier")

SUM_SECONDS = 20.0


@dataclass
class StageState:
    """Canonical weights [N] and AdamW moments of one stage, as of the start of a step."""

    weights: torch.Tensor
    m: torch.Tensor
    v: torch.Tensor

    @property
    def hash(self) -> bytes:
        """H(H(m), H(v)): `oldState` and `newState` of an AggregateCommitment."""
        return pair_hash(tensor_hash(self.m), tensor_hash(self.v))

    def copy(self) -> StageState:
        return StageState(self.weights.clone(), self.m.clone(), self.v.clone())


@dataclass(frozen=True)
class Update:
    """What a primary hands to the record: the message for the seats, and the payload for the workers."""

    aggregate: pb.Aggregate
    payload: bytes


class Reducer:
    """One a primary stage."""

    def __init__(
        self,
        context: SeatContext,
        relay: Relay,
        stage: int,
        meter: Meter,
        exclude: Callable[[StepState, int, int, str], Awaitable[None]],
    ) -> None:
        """``exclude(state, slot, session, reason)`` drops a sum for everybody: it tells the other seats too."""
        self.context = context
        self.stage = stage
        self._relay = relay
        self._meter = meter
        self._exclude = exclude
        weights = init_flat(context.config, stage, context.num_stages, context.spec.seed)
        self.state = StageState(weights, torch.zeros_like(weights), torch.zeros_like(weights))
        self._config = optimizer_config(context.spec)
        self._mask = decay_mask(layout(context.config, stage, context.num_stages))
        self._state_hash = self.state.hash
        self._sketch: tuple[int, Sketch] | None = None
        self._weights_hash = encoded_hash(encode(weights))

    async def reduce(self, state: StepState) -> Update:
        """Waits for every driver, asks every replica, drops what fails and waits again, then steps."""
        while True:
            await state.until(lambda: self._agreed(state) is not None)
            dones = self._agreed(state)
            assert dones is not None
            wanted = sorted(
                {
                    (s.slot, s.session)
                    for d in dones.values()
                    for s in d.sets
                    if self.context.stage_of(s.slot) == self.stage
                }
            )
            round_ = sum(d.round for d in dones.values())  # rises whenever any driver's round does
            found = await asyncio.gather(*(self._sum(state, dones, round_, key) for key in wanted))
            failed = [(key, why) for key, why in zip(wanted, found, strict=True) if isinstance(why, str)]
            for (slot, session), reason in failed:
                await self._exclude(state, slot, session, reason)
            if failed:
                continue
            if self._agreed(state) is not dones and self._fingerprint(self._agreed(state)) != self._fingerprint(dones):
                continue
            sums = [s for s in found if not isinstance(s, str)]
            return await asyncio.to_thread(self._step, state, dones, sums)

    def _agreed(self, state: StepState) -> dict[str, pb.Done] | None:
        """The newest Done of each live seat, once all of them know of everything that this stage lost."""
        void = {key for key in state.excluded if self.context.stage_of(key[0]) == self.stage}
        barred = {slot for slot in state.quarantines if self.context.stage_of(slot) == self.stage}
        dones = {}
        for seat in self.context.seats:
            done = state.latest(seat.account)
            if done is None:
                return None
            if not void <= {(e.slot, e.session) for e in done.excluded}:
                return None
            if not barred <= {q.slot for q in done.quarantines}:
                return None
            if any(state.void(s.slot, s.session) for s in done.sets if self.context.stage_of(s.slot) == self.stage):
                return None
            dones[seat.account] = done
        return dones

    def _fingerprint(self, dones: dict[str, pb.Done] | None) -> list[tuple[str, int]] | None:
        return None if dones is None else sorted((account, done.round) for account, done in dones.items())

    async def _sum(
        self, state: StepState, dones: dict[str, pb.Done], round_: int, key: SlotSession
    ) -> tuple[pb.StageSum, torch.Tensor] | str:
        """One replica's checked sum, or why there is none."""
        slot, session_id = key
        parts = union_of(self.context, dones, slot, session_id)
        commitments = [c for part in parts for c in part.commitments]
        microbatches = [m for part in parts for m in part.microbatches]
        session = self._relay.sessions.get(slot)
        if session is None or session.closed or session.session != session_id:
            return "the worker is gone, and its sum with it"
        request = pb.SumRequest(step=state.step, round=round_, commitments=commitments, weights_hash=self._weights_hash)
        try:
            answer = await session.gradient(request, SUM_SECONDS)
            with self._meter.section("crypto"):
                flat = self._open(answer, request, session)
            sketches = [decode(part.sketch, shape=(64,), dtype=torch.float32) for part in parts]
        except (PeerGone, ProtocolError) as error:
            return str(error)[:200]
        with self._meter.section("check"):
            problem = self._problem(state.step, flat, sketches)
        if problem:
            return problem
        return (
            pb.StageSum(
                slot=slot,
                session=session_id,
                count=len(commitments),
                accepted_set=answer.accepted_set,
                gradient_hash=answer.gradient_hash,
                microbatches=microbatches,
                signature=answer.signature,
                sequence=answer.sequence,
            ),
            flat,
        )

    def _open(self, answer: pb.GradientSum, request: pb.SumRequest, session: WorkerSession) -> torch.Tensor:
        accepted = step_record.accepted_set_digest(request.commitments)
        if answer.accepted_set != accepted or answer.count != len(request.commitments):
            raise ProtocolError("set", "the sum is over another set than the accepted one")
        if answer.sequence != request.sequence or answer.weights_hash != self._weights_hash:
            raise ProtocolError("sequence", f"a stage gradient numbered {answer.sequence}")
        flat = decode(answer.gradient, shape=self.state.weights.shape, dtype=torch.float32)
        if encoded_hash(answer.gradient) != answer.gradient_hash:
            raise ProtocolError("digest", "the stage gradient is not the signed one")
        message = session.key.gradient(
            sequence=answer.sequence,
            step=answer.step,
            accepted_set=accepted,
            count=answer.count,
            gradient_hash=answer.gradient_hash,
            weights_hash=answer.weights_hash,
        )
        if recover(digest(self.context.domain, message), answer.signature) != session.slot.hot_key:
            raise ProtocolError("signature", "the stage gradient is not signed by this slot")
        return flat

    def _problem(self, step: int, flat: torch.Tensor, sketches: list[torch.Tensor]) -> str:
        """Finite, and its sketch is the sum of the accepted sketches."""
        if self._sketch is None or self._sketch[0] != step:
            self._sketch = (step, Sketch(self.context.job_id, step))  # its signs are drawn once for all replicas
        claimed = self._sketch[1].sketch(flat)
        # Each element is in one form, with weight +-1: one that is not finite makes that form not finite.
        if not all_finite(claimed) and not all_finite(flat):
            return "the stage gradient holds NaN or Inf"
        compared = compare_sketch(claimed, torch.stack(sketches).sum(0), self.context.tolerance)
        return "" if compared.agrees else f"the sum is not that of the accepted backwards: {compared.text()}"

    def _step(
        self, state: StepState, dones: dict[str, pb.Done], sums: list[tuple[pb.StageSum, torch.Tensor]]
    ) -> Update:
        """Aggregate in slot order, AdamW, commitment. Runs in a thread; the new state is adopted by ``adopt``."""
        with self._meter.section("reduce"):
            gradient = robust.aggregate(
                self.context.spec.verification.aggregation, [flat for _, flat in sums], [s.count for s, _ in sums]
            )
            after = self.state.copy()
            step_(after.weights, gradient, after.m, after.v, state.step, self._config, self._mask)
            payload = encode(after.weights)
            self._after = after
            self._after_hashes = (encoded_hash(payload), after.hash)
            gradient_set = step_record.gradient_set_digest([to_stage_sum(s) for s, _ in sums])
            message = AggregateCommitment(
                self.context.job_id,
                self.stage,
                state.step,
                self.context.account,
                gradient_set,
                tensor_hash(gradient),
                self._weights_hash,
                self._after_hashes[0],
                self._state_hash,
                self._after_hashes[1],
            )
            aggregate = pb.Aggregate(
                step=state.step,
                stage=self.stage,
                sums=[s for s, _ in sums],
                aggregate_hash=message.aggregate_hash,
                old_weights=message.old_weights,
                new_weights=message.new_weights,
                old_state=message.old_state,
                new_state=message.new_state,
                signature=self.context.sign(message),
                rounds=[pb.DriverRound(verifier=account, round=done.round) for account, done in dones.items()],
            )
            return Update(aggregate, payload)

    @property
    def after(self) -> StageState:
        """The state that the last ``reduce`` led to."""
        return self._after

    def adopt(self) -> None:
        """The step's record is final: its weights are canonical now."""
        self.state = self._after
        self._weights_hash, self._state_hash = self._after_hashes


def to_stage_sum(entry: pb.StageSum) -> step_record.StageSum:
    return step_record.StageSum(
        entry.slot,
        entry.session,
        entry.count,
        entry.accepted_set,
        entry.gradient_hash,
        tuple(entry.microbatches),
    )


def check_aggregate(context: SeatContext, state: StepState, aggregate: pb.Aggregate) -> None:
    """What every seat checks before it signs a record: signature, and that each sum is over exactly the union of
    what the drivers say they accepted. Raises ProtocolError."""
    primary = context.primary(aggregate.stage).account
    sums = [to_stage_sum(s) for s in aggregate.sums]
    message = AggregateCommitment(
        context.job_id,
        aggregate.stage,
        aggregate.step,
        primary,
        step_record.gradient_set_digest(sums),
        aggregate.aggregate_hash,
        aggregate.old_weights,
        aggregate.new_weights,
        aggregate.old_state,
        aggregate.new_state,
    )
    context.check_seat(primary, message, aggregate.signature)
    rounds = {r.verifier: r.round for r in aggregate.rounds}
    dones = {account: state.dones.get(account, {}).get(rounds.get(account, -1)) for account in context.hot_keys}
    known = {account: done for account, done in dones.items() if done is not None}
    if len(known) != len(dones):
        raise ProtocolError("aggregate", f"stage {aggregate.stage} was reduced from rounds that this seat has not")
    for entry in sums:
        parts = union_of(context, known, entry.slot, entry.session)
        commitments = [c for part in parts for c in part.commitments]
        microbatches = tuple(m for part in parts for m in part.microbatches)
        if entry.accepted_set != step_record.accepted_set_digest(commitments) or entry.count != len(commitments):
            raise ProtocolError("aggregate", f"slot {entry.slot} was summed over another set than the drivers accepted")
        if entry.microbatches != microbatches:
            raise ProtocolError("aggregate", f"slot {entry.slot}: the listed microbatches are not the accepted ones")
    listed = {(s.slot, s.session) for s in sums}
    due = {(s.slot, s.session) for d in known.values() for s in d.sets if context.stage_of(s.slot) == aggregate.stage}
    if listed != due:
        raise ProtocolError("aggregate", f"stage {aggregate.stage} was reduced without {sorted(due - listed)}")
