"""The primary of a stage: collects the replicas' sums, judges them, steps the optimizer, commits to the new weights.

A sum that contradicts its sketches, one that the screen suspects and one that is drawn for an audit is recomputed
whole. Only that convicts; a sum that merely cannot be got is left out, and its work is done again elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import torch

from sentinel_market.chain.eip712 import digest
from sentinel_market.chain.signing import recover
from sentinel_market.domain import step_record
from sentinel_market.domain.messages import AggregateCommitment, StageGradient
from sentinel_market.errors import PeerGone, ProtocolError
from sentinel_market.models.init import init_flat
from sentinel_market.models.jobs import optimizer_config
from sentinel_market.models.layout import layout
from sentinel_market.models.optimizer import decay_mask, step_
from sentinel_market.models.sketch import Sketch
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.commit import SessionKey
from sentinel_market.wire.tensors import all_finite, decode, encode, encoded_hash, pair_hash, tensor_hash
from verifier.audits.shelf import KeptUpdate
from verifier.check import audit, robust
from verifier.check.check import Screening
from verifier.check.tolerance import compare_sketch
from verifier.check.verdict import Verdict, VerdictKind
from verifier.context import SeatContext
from verifier.driver import Driver
from verifier.meter import Meter
from verifier.recording.recorder import GivenSum
from verifier.relay import Relay, WorkerSession
from verifier.step import SlotSession, StepState, parts_of, union_of
from verifier.telling import Teller
from verifier.whole import GradientOffence, SignedSum, Whole, WholeGradients

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
    """What a primary hands to the record: the message for the seats, the payload for the workers, and what both were
    made from, for whoever audits it."""

    aggregate: pb.Aggregate
    payload: bytes
    kept: KeptUpdate


@dataclass(frozen=True)
class Lost:
    """Why there is no sum. ``claim``: what the worker signed, where that itself is the lie."""

    reason: str
    claim: pb.GradientSum | None = None


@dataclass(frozen=True)
class Handed:
    """A replica's sum, tied to its signature; not judged yet. ``problem``: how it contradicts itself, or ""."""

    entry: pb.StageSum
    flat: torch.Tensor
    signed: SignedSum
    parts: tuple[tuple[str, pb.AcceptedSet], ...]
    claim: pb.GradientSum
    problem: str

    @property
    def key(self) -> SlotSession:
        """(slot, session)."""
        return self.entry.slot, self.entry.session

    @property
    def content(self) -> tuple[int, int, bytes, bytes]:
        """The same in every round in which the same replica hands in the same sum of the same set."""
        return *self.key, self.entry.accepted_set, self.entry.gradient_hash


@dataclass
class _Judged:
    """What is known of the sums of one step. ``cleared``: by ``Handed.content``."""

    cleared: set[tuple[int, int, bytes, bytes]] = field(default_factory=set)
    screenings: dict[int, Screening] = field(default_factory=dict)


class Reducer:
    """One a primary stage."""

    def __init__(
        self,
        context: SeatContext,
        relay: Relay,
        stage: int,
        meter: Meter,
        driver: Driver,
        whole: WholeGradients,
        teller: Teller,
        exclude: Callable[[StepState, SlotSession, Lost], Awaitable[None]],
        charge: Callable[[GradientOffence], Awaitable[bool]],
    ) -> None:
        """``exclude(state, key, lost)`` drops a sum for everybody: it tells the other seats too. ``charge(offence)``
        accuses, and says whether a quorum agreed. ``driver``: this seat's, for its engine and its secret."""
        self.context = context
        self.stage = stage
        self._relay = relay
        self._meter = meter
        self._driver = driver
        self._whole = whole
        self._teller = teller
        self._exclude = exclude
        self._charge = charge
        self._judged = _Judged()
        weights = init_flat(context.config, stage, context.num_stages, context.spec.seed)
        self.state = StageState(weights, torch.zeros_like(weights), torch.zeros_like(weights))
        self._config = optimizer_config(context.spec)
        self._mask = decay_mask(layout(context.config, stage, context.num_stages))
        self._state_hash = self.state.hash
        self._sketch: tuple[int, Sketch] | None = None
        self._weights_hash = encoded_hash(encode(weights))

    async def reduce(self, state: StepState) -> Update:
        """Waits for every driver, asks every replica, drops what fails and waits again, then steps."""
        self._judged = _Judged()
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
            lost = [(key, one) for key, one in zip(wanted, found, strict=True) if isinstance(one, Lost)]
            for key, one in lost:
                await self._exclude(state, key, one)
            if lost:
                continue
            handed = [one for one in found if isinstance(one, Handed)]
            if not await self._examined(state, handed):
                continue
            if self._agreed(state) is not dones and self._fingerprint(self._agreed(state)) != self._fingerprint(dones):
                continue
            update, aggregate = await asyncio.to_thread(
                self._step, state, dones, [(one.entry, one.flat) for one in handed]
            )
            with self._meter.section("check"):
                for slot, screening in self._judged.screenings.items():
                    self._driver.recorder.gradient_accepted((self.stage, slot), aggregate)
                    self._driver.engine.accept_gradient(self.stage, slot, screening, aggregate)
            return update

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

    async def _sum(self, state: StepState, dones: dict[str, pb.Done], round_: int, key: SlotSession) -> Handed | Lost:
        """One replica's sum, or why there is none."""
        slot, session_id = key
        parts = tuple(parts_of(self.context, dones, slot, session_id))
        commitments = [c for _, part in parts for c in part.commitments]
        session = self._relay.sessions.get(slot)
        if session is None or session.closed or session.session != session_id:
            return Lost("the worker is gone, and its sum with it")
        request = pb.SumRequest(step=state.step, round=round_, commitments=commitments, weights_hash=self._weights_hash)
        try:
            answer = await session.gradient(request, SUM_SECONDS)
            with self._meter.section("crypto"):
                signed, flat = self._open(answer, session)
            sketches = [decode(part.sketch, shape=(64,), dtype=torch.float32) for _, part in parts]
        except (PeerGone, ProtocolError, ValueError) as error:
            return Lost(str(error)[:200])
        if (answer.step, answer.sequence) != (state.step, request.sequence):
            return Lost(f"a stage gradient numbered {answer.sequence} of step {answer.step}")
        claim = pb.GradientSum()
        claim.CopyFrom(answer)
        claim.ClearField("gradient")
        due = (step_record.accepted_set_digest(commitments), len(commitments), self._weights_hash)
        if (answer.accepted_set, answer.count, answer.weights_hash) != due:
            return Lost("a signed sum over another set, or from other weights, than asked for", claim)
        with self._meter.section("check"):
            problem = self._problem(state.step, flat, sketches)
        entry = pb.StageSum(
            slot=slot,
            session=session_id,
            count=len(commitments),
            accepted_set=answer.accepted_set,
            gradient_hash=answer.gradient_hash,
            microbatches=[m for _, part in parts for m in part.microbatches],
            signature=answer.signature,
            sequence=answer.sequence,
        )
        return Handed(entry, flat, signed, parts, claim, problem)

    def _open(self, answer: pb.GradientSum, session: WorkerSession) -> tuple[SignedSum, torch.Tensor]:
        flat = decode(answer.gradient, shape=self.state.weights.shape, dtype=torch.float32)
        if encoded_hash(answer.gradient) != answer.gradient_hash:
            raise ProtocolError("digest", "the stage gradient is not the signed one")
        message = claimed(session.key, answer)
        hashed = digest(self.context.domain, message)
        if recover(hashed, answer.signature) != session.slot.hot_key:
            raise ProtocolError("signature", "the stage gradient is not signed by this slot")
        return SignedSum(message, hashed, answer.signature), flat

    # ---- judging

    async def _examined(self, state: StepState, handed: list[Handed]) -> bool:
        """Whether every sum may be added up. Else one of them is dropped by now, and the round begins anew."""
        policy = self.context.policy
        if not policy.confirms:
            # Nobody recomputes under this policy: what contradicts itself is left out.
            wrong = [one for one in handed if one.problem]
            for one in wrong:
                await self._exclude(state, one.key, Lost(one.problem, one.claim))
            return not wrong
        with self._meter.section("check"):
            sums = {one.entry.slot: (one.flat, one.entry.count) for one in handed}
            self._driver.recorder.gradients(
                self.stage,
                [
                    GivenSum(
                        slot=one.entry.slot,
                        count=one.entry.count,
                        flat=one.flat,
                        digest=one.signed.digest,
                        problem=one.problem,
                        cleared=one.content in self._judged.cleared,
                    )
                    for one in handed
                ],
            )
            self._judged.screenings = self._driver.engine.screen_gradients(self.stage, sums)
        warm = state.step < self.context.spec.verification.warmup_steps
        share = audit.gradient_share_ppm(policy, in_warmup=warm)
        # The worst first: when it is out, the others' mean says more about the rest.
        for one in sorted(handed, key=self._order):
            verdict = self._judged.screenings[one.entry.slot].verdict
            suspect = bool(one.problem) or verdict.kind is not VerdictKind.ACCEPT
            drawn = audit.is_gradient_audited(self._driver.secret, one.signed.digest, share)
            if one.content in self._judged.cleared or not (suspect or drawn):
                continue
            if not await self._cleared(state, one, verdict, suspect):
                return False
            self._judged.cleared.add(one.content)
        return True

    def _order(self, one: Handed) -> tuple[bool, bool, float, int]:
        """Sums that contradict themselves, then suspects by how far they lie outside their fences."""
        verdict = self._judged.screenings[one.entry.slot].verdict
        return not one.problem, verdict.kind is VerdictKind.ACCEPT, -_outside(verdict), one.entry.slot

    async def _cleared(self, state: StepState, one: Handed, screened: Verdict, suspect: bool) -> bool:
        """Recompute a sum whole. False: it was wrong, or suspect and nobody could say, and is dropped."""
        if one.problem:
            screened = Verdict(VerdictKind.SUSPECT, one.problem, screened.scores)
        whole = await self._whole.judge(one.signed, one.flat, one.parts)
        parts = None if whole.backwards is None else [(part.input, part.incoming) for part in whole.backwards]
        where = (self.stage, one.entry.slot)
        self._driver.recorder.whole(where, one.flat, self.state.weights, parts, whole.verdict)
        self._teller.gradient(one.entry.slot, self.stage, state.step, screened, whole.verdict)
        if whole.verdict.kind is VerdictKind.ACCEPT:
            return True
        if whole.verdict.kind is VerdictKind.INCONCLUSIVE:
            if suspect:
                await self._exclude(state, one.key, Lost(f"{screened.reason}; {whole.verdict.reason}"[:300]))
            return not suspect
        await self._convict(state, one, screened, whole)
        return False

    async def _convict(self, state: StepState, one: Handed, screened: Verdict, whole: Whole) -> None:
        reason = whole.verdict.reason[:200]
        if whole.backwards is None:
            # Nobody else can be shown it, so nobody is accused; the lie is not paid.
            await self._exclude(state, one.key, Lost(f"{reason}; too large for evidence", one.claim))
            return
        offence = GradientOffence(one.signed, whole.backwards, one.flat, screened, whole.verdict, state.step)
        if await self._charge(offence):
            self._driver.recorder.charged(one.entry.slot)
            self._driver.engine.convict(one.entry.slot)
        else:
            await self._exclude(state, one.key, Lost(f"{reason}; no quorum agreed"))

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
    ) -> tuple[Update, torch.Tensor]:
        """Aggregate in slot order, AdamW, commitment; the aggregate [N] too. Runs in a thread; the new state is adopted
        by ``adopt``."""
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
            kept = KeptUpdate(tuple(flat for _, flat in sums), self.state.m, self.state.v)
            return Update(aggregate, payload, kept), gradient

    @property
    def after(self) -> StageState:
        """The state that the last ``reduce`` led to."""
        return self._after

    def adopt(self) -> None:
        """The step's record is final: its weights are canonical now."""
        self.state = self._after
        self._weights_hash, self._state_hash = self._after_hashes


def _outside(verdict: Verdict) -> float:
    """How far the worst score lies beyond its fence, in widths between its fences."""
    worst = 0.0
    for score in verdict.scores:
        if score.low_e6 is not None and score.high_e6 is not None:
            width = max(score.high_e6 - score.low_e6, 1)
            worst = max(worst, (score.low_e6 - score.value_e6) / width, (score.value_e6 - score.high_e6) / width)
    return worst


def claimed(key: SessionKey, answer: pb.GradientSum) -> StageGradient:
    """The message under a stage gradient's signature."""
    return key.gradient(
        sequence=answer.sequence,
        step=answer.step,
        accepted_set=answer.accepted_set,
        count=answer.count,
        gradient_hash=answer.gradient_hash,
        weights_hash=answer.weights_hash,
    )


def is_lie(context: SeatContext, sender: str, exclude: pb.Exclude) -> bool:
    """Whether the primary ``sender`` shows a stage gradient that this slot signed in this step: without it an exclusion
    is an accident, whatever the primary says."""
    slot, claim = context.slots.get(exclude.slot.slot), exclude.claim
    if not exclude.HasField("claim") or slot is None or claim.step != exclude.step:
        return False
    key = SessionKey(context.job_id, slot.slot, slot.nonce, sender, exclude.slot.session)
    try:
        return recover(digest(context.domain, claimed(key, claim)), claim.signature) == slot.hot_key
    except (ProtocolError, ValueError):
        return False


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
