"""Drives this seat's microbatches through the stages, and judges every frame before it goes on.

Nothing unaccepted is ever passed on. What a worker returned without a final ACCEPT is made again by another
replica, in either pass, from the inputs and incoming gradients that are held here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from sentinel_market.domain.ids import BACKWARD, FORWARD
from sentinel_market.errors import PeerGone, ProtocolError
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.tensors import all_finite, decode, encode
from verifier.answers import (
    Accepted,
    Answer,
    Counters,
    Held,
    Leaf,
    Offence,
    Screened,
    Signed,
    Upheld,
    farthest,
    frames_of,
    open_answer,
    refuted_by,
)
from verifier.check import audit
from verifier.check.check import Screening
from verifier.check.confirm import Action, Event, decide
from verifier.check.tolerance import Comparison, compare
from verifier.check.verdict import Verdict, VerdictKind
from verifier.choice import Choice
from verifier.context import SeatContext
from verifier.evidence.history import Happened
from verifier.evidence.screening import snapshot
from verifier.meter import Meter
from verifier.recompute import Recomputed, Recomputer
from verifier.recording.recorder import Recorder
from verifier.relay import Relay, WorkerSession
from verifier.step import SlotSession, StepState
from verifier.weights import WeightsStore

log = logging.getLogger("verifier")


class Driver:
    """Lives for the whole run; ``begin`` starts a step."""

    def __init__(
        self,
        context: SeatContext,
        relay: Relay,
        weights: WeightsStore,
        recomputer: Recomputer,
        meter: Meter,
        batch_of: Callable[[int, int], tuple[torch.Tensor, torch.Tensor]],
        on_offence: Callable[[Offence], None],
        on_verdict: Callable[[int, Verdict, dict[str, object]], None],
        barred: Callable[[int], bool],
        on_ban: Callable[[int, str], None],
        on_upheld: Callable[[Upheld], None],
        recorder: Recorder | None = None,
    ) -> None:
        """``batch_of(step, microbatch)`` -> tokens, targets [B, T]. ``on_offence`` starts an accusation.
        ``barred(slot)``: quarantined, in this step or before, or distrusted by this driver alone. ``on_ban(slot,
        reason)``: statistics alone condemn a worker (policies ``paper``, ``screen``): that binds this driver only.
        ``on_upheld`` hears of each frame that this seat's recompute cleared."""
        self.context = context
        self._relay = relay
        self._weights = weights
        self._recomputer = recomputer
        self._meter = meter
        self._batch_of = batch_of
        self._on_offence = on_offence
        self._on_verdict = on_verdict
        self._barred = barred
        self._on_ban = on_ban
        self._on_upheld = on_upheld
        self.recorder = recorder or Recorder()
        self.engine = self.recorder.engine(context)
        self.secret = b""
        self.replay_micros = 0
        engine = self.engine
        self.choice = Choice(context, relay, barred, engine.overloaded, engine.gone, self.time_limit)
        self._state = StepState(-1)
        self._embedding = torch.empty(0)
        self._head: torch.Tensor | None = None
        self.held: list[Held] = []
        self.accepted: list[Accepted] = []
        self.units: dict[int, int] = {}
        self.leaves: dict[bytes, Leaf] = {}
        self.counters = Counters()
        self._duplicates = 0

    # ---- one step

    async def begin(self, state: StepState, secret: bytes) -> None:
        """Forget the step before and fetch what this one is screened against."""
        self._state, self.secret = state, secret
        self.recorder.step(state.step, secret)
        self.engine.begin_step(state.step)
        self.held, self.accepted, self.units, self.leaves = [], [], {}, {}
        self.counters, self._duplicates = Counters(), 0
        self.choice.begin(state)
        if self.context.policy.screens:
            self._embedding = await self._weights.embedding(state.step)
            self._head = await self._weights.head(state.step)

    async def drive(self) -> None:
        """All my microbatches, forward and backward, each frame judged; then whatever was dropped meanwhile."""
        async with asyncio.TaskGroup() as group:
            for microbatch in self.context.my_microbatches():
                group.create_task(self._microbatch(microbatch))
        await self.repair()

    async def repair(self) -> None:
        """Replay until every (stage, microbatch) of mine is in a sum that counts."""
        while missing := self._missing():
            async with asyncio.TaskGroup() as group:
                for stage, held in missing:
                    group.create_task(self._again(stage, held))

    def _missing(self) -> list[tuple[int, Held]]:
        covered = {(a.stage, a.microbatch) for a in self.valid()}
        return [
            (stage, held)
            for held in self.held
            for stage in range(self.context.num_stages)
            if (stage, held.microbatch) not in covered
        ]

    def valid(self) -> list[Accepted]:
        """What counts now: nothing of a worker that was dropped or barred since."""
        return [a for a in self.accepted if not self._state.void(a.slot, a.session) and not self._barred(a.slot)]

    async def _microbatch(self, microbatch: int) -> None:
        tokens, targets = self._batch_of(self._state.step, microbatch)
        held = Held(microbatch, tokens, targets)
        last = self.context.num_stages - 1
        held.inputs[0] = encode(tokens)
        held.incoming[last] = encode(targets)
        forwards: dict[int, Answer] = {}
        for stage in range(last):
            forwards[stage] = answer = await self._until_accepted(stage, held, pb.FORWARD)
            held.go_up(stage, answer)
        answer = await self._until_accepted(last, held, pb.LOSS)
        assert answer.output is not None
        held.loss = float(answer.output.mean())
        for stage in reversed(range(last)):
            held.go_down(stage + 1, answer)
            answer = await self._until_accepted(stage, held, pb.BACKWARD, forwards[stage])
        self.held.append(held)

    async def _again(self, stage: int, held: Held) -> None:
        operation = pb.LOSS if stage == self.context.num_stages - 1 else pb.BACKWARD
        await self._until_accepted(stage, held, operation)

    async def _until_accepted(self, stage: int, held: Held, operation: int, forward: Answer | None = None) -> Answer:
        """One unit of work by whichever replica does it well. ``forward``: for a backward, the answer whose worker
        kept the graph; it is asked first. Raises Fatal when the stage stays without workers."""
        avoid: set[SlotSession] = set()
        flagged = 0
        while True:
            prefer = forward.session if forward is not None and self.choice.usable(forward.session) else None
            if prefer is not None and prefer.id in avoid:
                prefer = None
            session = prefer or await self.choice.pick(stage, avoid)
            try:
                answer = await self._work(session, stage, held, operation, forward if prefer is not None else None)
            except (PeerGone, ProtocolError) as error:
                # Whose sum was dropped meanwhile lost what it had in hand as well: that is one loss, not several.
                if not self._state.void(*session.id):
                    self.recorder.lost(session.slot.slot, session.stage)
                    self._accident(session, error)
                avoid.add(session.id)
                continue
            final = await self._judge(stage, held, answer, seconded=flagged > 1)
            if final is not None:
                return final
            flagged += 1
            avoid.add(session.id)

    def _accident(self, session: WorkerSession, error: Exception) -> None:
        """Liveness is not integrity: the unit is lost, never stake. Rests longer each time."""
        log.info("step %d slot %d: %s", self._state.step, session.slot.slot, error)
        self.counters.accidents.append((session.slot.slot, str(error)[:200]))
        self.engine.inconclusive(session.slot.slot, session.stage)
        session.suspended_until = max(session.suspended_until, time.monotonic() + 0.5)

    # ---- asking

    def time_limit(self) -> float:
        """Seconds for one task: far above what any worker was seen to need, bounded below for small models."""
        slowest = max((s.service_seconds for s in self._relay.sessions.values()), default=0.1)
        return max(15.0, 50 * slowest)

    async def _work(
        self, session: WorkerSession, stage: int, held: Held, operation: int, forward: Answer | None
    ) -> Answer:
        if operation != pb.BACKWARD:
            return await self._call(session, stage, held, operation, 0)
        if forward is None:
            # The graph of this microbatch is elsewhere: its forward first, as in any other work.
            forward = await self._call(session, stage, held, pb.FORWARD, 0)
            await self._judge_repeat(stage, held, forward)
            answer = await self._call(session, stage, held, pb.BACKWARD, forward.dispatch)
            return replace(answer, compute_micros=answer.compute_micros + forward.compute_micros)
        return await self._call(session, stage, held, pb.BACKWARD, forward.dispatch)

    async def _call(
        self, session: WorkerSession, stage: int, held: Held, operation: int, forward_dispatch: int
    ) -> Answer:
        step = self._state.step
        weights_hash = self._weights.hashes[step][stage]
        task = pb.Task(
            step=step,
            microbatch=held.microbatch,
            operation=operation,  # type: ignore[arg-type]
            weights_hash=weights_hash,
            forward=forward_dispatch,
        )
        if operation != pb.BACKWARD:
            task.input = held.inputs[stage]
        if operation != pb.FORWARD:
            task.incoming = held.incoming[stage]
        # Whoever is asked gets a receipt for the step, also when nothing of it counts: a worker serves on for one.
        self.units.setdefault(session.slot.slot, 0)
        result = await session.task(task, self.time_limit())
        with self._meter.section("crypto"):
            return open_answer(self.context, session, stage, held, task, result)

    # ---- judging

    async def _judge_repeat(self, stage: int, held: Held, forward: Answer) -> None:
        """A forward done again because its graph was elsewhere: it must agree with the one that was accepted, or a
        recompute says who is wrong. Raises ProtocolError when it is not accepted."""
        assert forward.output is not None
        known = decode(held.inputs[stage + 1], shape=self.context.shapes.activation, dtype=torch.float32)
        self.recorder.repeat(held.microbatch, forward, known)
        compared = compare(forward.output, known, self.context.tolerance)
        if compared.agrees:
            self._count(forward, held)
            return
        verdict = Verdict(VerdictKind.SUSPECT, f"a repeated forward differs from the accepted one: {compared.text()}")
        suspect = Screening(verdict, self.context.policy, forward.session.slot.slot)
        if not self.context.policy.confirms:
            raise ProtocolError("forward", verdict.reason)
        if await self._confirm(stage, held, forward, [(FORWARD, suspect)], suspect, False) is not forward:
            raise ProtocolError("forward", "the forward before this backward was not accepted")

    async def _judge(self, stage: int, held: Held, answer: Answer, *, seconded: bool = False) -> Answer | None:
        """The final verdict on an answer. Returns the accepted answer, which may be that of a replica that replayed
        it, or None: then somebody else must do the work. ``seconded``: two other replicas' answers to the same work
        were refused before."""
        policy, slot = self.context.policy, answer.session.slot.slot
        with self._meter.section("check"):
            frames = frames_of(self.context, answer, held, self._state.step, self._embedding, self._head)
            self.recorder.answer(held.microbatch, answer, [frame for _, frame in frames], seconded=seconded)
            screenings = [(direction, self.engine.screen(frame, held.microbatch)) for direction, frame in frames]
            for (_, frame), (_, screening) in zip(frames, screenings, strict=True):
                ban = self.engine.note(frame, screening)
                if ban is not None:
                    self._on_ban(ban.worker, ban.reason)
                    self.engine.convict(ban.worker)
        suspect = next((s for _, s in screenings if s.verdict.kind is not VerdictKind.ACCEPT), None)
        if suspect is None and answer.sketch is not None and not bool(torch.isfinite(answer.sketch).all()):
            # No screen sees sketches, and this one would cost the worker's whole sum of the step.
            verdict = Verdict(VerdictKind.SUSPECT, "nonfinite: NaN or Inf in the sketch")
            suspect = Screening(verdict, policy, slot)
            screenings.append((BACKWARD, suspect))
        for direction, screening in screenings:
            if screening.verdict.scores or screening is suspect:
                self._on_verdict(
                    slot,
                    screening.verdict,
                    {"step": self._state.step, "direction": direction, "stage": stage, "microbatch": held.microbatch},
                )
        audited = self._is_audited(stage, answer)
        if suspect is None and not audited and not self.engine.watched(slot, answer.directions):
            self._accept(answer, held, screenings)
            return answer
        self.counters.suspects += suspect is not None
        if suspect is not None and not policy.confirms:
            return self._without_confirmation(held, answer, screenings, suspect, seconded)
        return await self._confirm(stage, held, answer, screenings, suspect, audited)

    def _without_confirmation(
        self,
        held: Held,
        answer: Answer,
        screenings: list[tuple[int, Screening]],
        suspect: Screening,
        seconded: bool,
    ) -> Answer | None:
        """What policies that ask nobody else do with a suspect. A frame that is not finite never travels on.

        ``paper``: a flagged activation travels on as tainted, a flagged gradient is replaced by its moving average.
        ``screen``: another replica does the work; when a third one is flagged as well, the boundary moved: its frame
        goes on, and the baseline learns the move from it.
        """
        tensors = [t for t in (answer.output, answer.gradient, answer.sketch) if t is not None]
        finite = all(all_finite(t) for t in tensors)
        if self.context.policy.name == "paper" and finite:
            mean = self.engine.substitute(answer.stage)
            flagged = any(d == BACKWARD and s.verdict.kind is VerdictKind.SUSPECT for d, s in screenings)
            if flagged and answer.gradient is not None and mean is not None:
                usual = torch.from_numpy(mean).expand_as(answer.gradient).contiguous()
                answer = replace(answer, gradient=usual, gradient_bytes=encode(usual), gradient_hash=b"")
            self._accept(answer, held, [])
            return answer
        if seconded and finite and self.context.policy.screens:
            self._accept(answer, held, screenings)
            return answer
        if not finite:
            self._accident(answer.session, ProtocolError("nonfinite", suspect.verdict.reason))
        return None

    def _in_warmup(self) -> bool:
        return self._state.step < self.context.spec.verification.warmup_steps

    def _is_audited(self, stage: int, answer: Answer) -> bool:
        return audit.owes_audit(
            self.context.policy,
            self.secret,
            [(c.message.direction, c.digest) for c in answer.commitments],
            stage=stage,
            num_stages=self.context.num_stages,
            in_warmup=self._in_warmup() or self.engine.has_moved(stage),
        )

    async def _confirm(
        self,
        stage: int,
        held: Held,
        answer: Answer,
        screenings: list[tuple[int, Screening]],
        suspect: Screening | None,
        audited: bool,
    ) -> Answer | None:
        self.counters.confirmations += 1
        self.counters.audits += audited
        # Before anything is awaited: the baselines as they were when these frames were held against them.
        screened = {
            direction: Screened(one.verdict, snapshot(self.engine.baselines[stage, direction]))
            for direction, one in screenings
            if one.values
        }
        history: list[Happened] = []
        if suspect is not None:
            way = next(direction for direction, one in screenings if one is suspect)
            note = f"{'backward' if way == BACKWARD else 'forward'}: {suspect.verdict.reason}"[:300]
            history.append(Happened(Event.SUSPECT, note=note))
        if audited:
            history.append(Happened(Event.AUDIT))
        if self.engine.watched(answer.session.slot.slot, answer.directions):
            history.append(Happened(Event.WATCHED))
        others = [s for s in self.choice.live(stage) if s.slot.slot != answer.session.slot.slot]
        adds = answer.operation != pb.FORWARD  # a replayed backward is a duplicate in somebody's sum
        spent = adds and self._duplicates >= self._duplicate_limit()
        self.recorder.confirm(answer, len(others), spent=spent)
        if spent or audit.goes_straight_to_recompute(self.secret, answer.commitments[0].digest):
            history.append(Happened(Event.STRAIGHT))
        if any(self.engine.at_once(one) for _, one in screenings):
            history.append(Happened(Event.FAR))
        if len(others) < 2:
            history.append(Happened(Event.NO_REPLICA))
        replay: Answer | None = None
        replays: tuple[Answer, ...] = ()
        reference: Recomputed | None = None
        comparison: tuple[Signed, Comparison] | None = None
        while (step := decide([one.event for one in history])).action is not Action.FINAL or step.judge_replayer:
            if step.action is Action.REPLAY:
                self._duplicates += adds
                replay = await self._replay(stage, held, answer, others)
                if replay is None:
                    history.append(Happened(Event.REPLAY_LOST))
                    continue
                self.recorder.replay(answer, replay)
                replays = (replay,)
                found = farthest(answer.against(replay, self.context.tolerance))
                event = Event.REPLAY_AGREES if found.agrees else Event.REPLAY_DISAGREES
                history.append(Happened(event, replay.session.slot.slot, found))
            elif step.action is Action.RECOMPUTE:
                reference = await self._recompute(stage, held, answer)
                if reference is None:
                    history.append(Happened(Event.RECOMPUTE_IMPOSSIBLE))
                    continue
                if reference.at_edge(self.context.tolerance):
                    history.append(Happened(Event.RECOMPUTE_EDGE))
                    continue
                found_all = answer.against(reference, self.context.tolerance)
                comparison = refuted_by(found_all)
                event = Event.RECOMPUTE_AGREES if comparison is None else Event.RECOMPUTE_DISAGREES
                history.append(Happened(event, comparison=farthest(found_all)))
            else:
                assert replay is not None and reference is not None
                found_all = replay.against(reference, self.context.tolerance)
                refuted = refuted_by(found_all)
                event = Event.REPLAY_UPHELD if refuted is None else Event.REPLAY_REFUTED
                history.append(Happened(event, replay.session.slot.slot, farthest(found_all)))
                if refuted is not None:
                    reason = "its own replay fails the recompute"
                    self._offence(
                        Offence(
                            replay,
                            refuted[0],
                            held,
                            reference,
                            refuted[1],
                            None,
                            reason,
                            self._state.step,
                            history=tuple(history),
                        )
                    )
                    replay, replays = None, ()
        assert step.verdict is not None
        final = Verdict(step.verdict, step.reason)
        self.recorder.final(answer, final, history)
        self._on_verdict(
            answer.session.slot.slot,
            final,
            {
                "step": self._state.step,
                "direction": answer.commitments[-1].message.direction,
                "stage": stage,
                "microbatch": held.microbatch,
                "history": [one.to_json() for one in history],
            },
        )
        if step.verdict is VerdictKind.VIOLATION:
            assert comparison is not None and reference is not None
            signed, refutation = comparison
            self._offence(
                Offence(
                    answer,
                    signed,
                    held,
                    reference,
                    refutation,
                    suspect.verdict if suspect else None,
                    step.reason,
                    self._state.step,
                    screened.get(signed.message.direction),
                    tuple(history),
                    replays,
                )
            )
            if replay is not None:
                self._accept(replay, held, [])
            return replay
        if step.verdict is VerdictKind.ACCEPT:
            if replay is not None:
                self._accept(replay, held, [])
            if step.cleared_by == "recompute":
                self.engine.upheld(answer.session.slot.slot, answer.directions)
                said = suspect.verdict if suspect else None
                self._on_upheld(Upheld(answer, held, self._state.step, said, screened, tuple(history)))
                for direction, screening in screenings:
                    if suspect is not None and screening.crossed:
                        self.engine.cleared_by_recompute(stage, direction, screening)
            self._accept(answer, held, screenings)
            return answer
        # Of two that disagree nobody can say which is right: neither goes on.
        self._accident(answer.session, ProtocolError("inconclusive", step.reason))
        return None

    def _duplicate_limit(self) -> int:
        """max(1, 2p x frames) a driver and step (protocol.md)."""
        policy = self.context.policy
        share = policy.warmup_audit_share_ppm if self._in_warmup() else policy.audit_share_ppm
        frames = 2 * self.context.num_stages * len(self.context.my_microbatches())
        return max(1, 2 * share * frames // 1_000_000)

    async def _replay(self, stage: int, held: Held, answer: Answer, others: list[WorkerSession]) -> Answer | None:
        session = self.choice.draw(others)
        try:
            replay = await self._work(session, stage, held, answer.operation, None)
        except (PeerGone, ProtocolError) as error:
            self.recorder.replay_lost(answer, session.slot.slot)
            self._accident(session, error)
            return None
        self.replay_micros += replay.compute_micros
        return replay

    async def _recompute(self, stage: int, held: Held, answer: Answer) -> Recomputed | None:
        step = self._state.step
        self.counters.recomputes += 1
        x, incoming = held.given(stage, answer.operation, self.context.shapes)
        try:
            found = await self._recomputer.run(step, stage, x, incoming)
        except (PeerGone, ProtocolError) as error:
            log.warning("step %d stage %d cannot be recomputed: %s", step, stage, error)
            self.recorder.recompute(answer, None, None, None)
            return None
        self.recorder.recompute(answer, x, incoming, self._weights.payload(step, stage))
        return found

    def forget(self, slot: int) -> None:
        """A quorum convicted a worker, whoever accused it: its frames leave every window."""
        self.recorder.charged(slot)
        self.engine.convict(slot)

    def _offence(self, offence: Offence) -> None:
        self._on_offence(offence)
        self.engine.convict(offence.answer.session.slot.slot)

    def _accept(self, answer: Answer, held: Held, screenings: list[tuple[int, Screening]]) -> None:
        with self._meter.section("check"):
            for direction, screening in screenings:
                self.engine.accept(answer.stage, direction, screening)
        self._count(answer, held)
        backward = answer.backward
        if backward is not None:
            assert answer.sketch is not None
            self.accepted.append(
                Accepted(
                    answer.session.slot.slot,
                    answer.session.session,
                    answer.stage,
                    backward.message.microbatch,
                    backward.digest,
                    answer.sketch,
                    backward,
                )
            )

    def _count(self, answer: Answer, held: Held) -> None:
        """Units are passes: a forward 1, a backward 1, so a LOSS task 2. Each is a leaf, that somebody may ask for."""
        slot = answer.session.slot.slot
        self.units[slot] = self.units.get(slot, 0) + len(answer.commitments)
        self.leaves.update((c.digest, Leaf(c, answer, held)) for c in answer.commitments)
