"""One seat through a whole run: opens steps, hears the others, signs records, pays, and names who is missing."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sentinel_market.chain.eip712 import digest
from sentinel_market.data.corpus import Corpus
from sentinel_market.domain import step_record
from sentinel_market.domain.cross_audit import LAG, Fault, FaultKind
from sentinel_market.domain.quote import QuoteParams
from sentinel_market.errors import Fatal, ProtocolError, SentinelError
from sentinel_market.ports import BlobStore, Court, Escrow, Events, SlotInfo
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.records import from_record
from verifier import archive, checkpoint, records
from verifier.accuse import Accuser
from verifier.audits.crossing import CrossAudits
from verifier.audits.findings import check_findings, said_after, said_of
from verifier.canary import Canaries
from verifier.closing import Closing, Finished
from verifier.context import SeatContext
from verifier.cosign import Cosigner
from verifier.docket import Docket
from verifier.door import Door
from verifier.driver import Driver
from verifier.meter import Meter
from verifier.payroll import Payroll, payable
from verifier.peers import Peers
from verifier.receipts import Receipts
from verifier.recompute import Recomputer
from verifier.recording.recorder import Recorder
from verifier.reduce import Lost, Reducer, Update, check_aggregate, is_lie
from verifier.relay import Relay, WorkerSession
from verifier.rows import Rows
from verifier.saying import accepted_done
from verifier.step import SlotSession, StepState, check_done
from verifier.telling import Teller
from verifier.watching import PEER_PATIENCE_SECONDS, first_of, is_peer_gone, watch_others
from verifier.weights import WeightsStore
from verifier.whole import WholeGradients

log = logging.getLogger("verifier")

STEP_TASKS = 40
"""A step that lasts longer than this many task time-outs stands still."""


@dataclass(frozen=True, kw_only=True)
class Outside:
    """Adapters that a seat needs."""

    court: Court
    escrow: Escrow
    blobs: BlobStore
    events: Events
    params: QuoteParams


class Seat:
    """Build, ``start`` to listen, ``run`` to train."""

    def __init__(
        self,
        context: SeatContext,
        corpus: Corpus,
        outside: Outside,
        endpoint_of: Callable[[str], str | None],
        home: Path,
        refresh_slots: Callable[[], dict[int, SlotInfo]],
        recorder: Recorder | None = None,
    ) -> None:
        """``endpoint_of(account)``: where another seat listens. ``refresh_slots()`` reads the slots from the chain
        (blocking): a worker that claimed after the start is found by it. ``recorder`` is closed by ``stop``."""
        self.context = context
        self.corpus = corpus
        self.outside = outside
        self.rows = Rows(context.spec, corpus)
        self.meter = Meter()
        self.peers = Peers(context, endpoint_of)
        self.door = Door(context, self._hear)
        self.weights = WeightsStore(context, self.peers)
        self.recomputer = Recomputer(context, self.weights, self.meter)
        self.payroll = Payroll(context, outside.params, outside.escrow)
        evidence, court = home / "evidence", outside.court
        self.cosigner = Cosigner(context, self.weights, court, self.meter, evidence, self.rows.hashes, self._on_fault)
        self.accuser = Accuser(
            context,
            self.peers,
            self.weights,
            court,
            self.meter,
            evidence,
            outside.events,
            self._on_fault,
            self.cosigner.step_of,
        )
        self.teller = Teller(context, outside.events)
        self.docket = Docket(
            context, self.peers, self.accuser, self.payroll, outside.events, self._expel, self.teller.series_of
        )
        self.canaries = Canaries(context, self.weights, self.recomputer, self.accuser.probe, self.docket)
        self.relay = Relay(context, self.door.hear, self._on_session, self._slot_of, self.docket.turned_away)
        self.receipts = Receipts(self.relay)
        self.closing = Closing(
            context, self.peers, self.payroll, self.weights, outside.blobs, outside.events, corpus, self.meter
        )
        self._archive = archive.Archive(home / "records.jsonl")
        self.driver = Driver(
            context,
            self.relay,
            self.weights,
            self.recomputer,
            self.meter,
            self.rows.batch,
            self.docket.on_offence,
            self.teller.verdict,
            self.docket.barred,
            self.docket.on_ban,
            self.canaries.consider,
            recorder,
        )
        self.audits = CrossAudits(
            context,
            self.peers,
            self.weights,
            self.recomputer,
            self.rows.hashes,
            self.cosigner,
            self.docket.on_offence,
            self.teller.cross_audit,
            self.teller.fault,
            self.teller.recorded,
        )
        self.whole = WholeGradients(context, self.peers, self.recomputer, self.driver, self.rows.hashes)
        self.reducers = {
            stage: Reducer(
                context,
                self.relay,
                stage,
                self.meter,
                self.driver,
                self.whole,
                self.teller,
                self._exclude,
                self.docket.charge,
            )
            for stage in context.my_stages
        }
        self.book: dict[int, StepState] = {}
        self.step = 0
        self.phase = "waiting for workers"
        self.last: Finished | None = None
        self._refresh_slots = refresh_slots
        self._refreshed = 0.0
        self._refreshing = asyncio.Lock()
        self._secrets = (secrets.token_bytes(32), secrets.token_bytes(32))
        self._started: set[str] = set()

    # ---- life

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port."""
        self.weights.genesis()
        return await self.relay.start(host, port)

    async def run(self) -> None:
        """Train to the end. Raises Fatal with the reason when it cannot go on; money and finished work are safe."""
        watch = asyncio.create_task(watch_others(self.context, self.peers, self._ping))
        work = asyncio.create_task(self._work())
        try:
            done, _ = await asyncio.wait({watch, work}, return_when=asyncio.FIRST_COMPLETED)
            if work in done and is_peer_gone(work):
                # A call to another seat failed: the watch finds out within seconds whether it is gone, and names it.
                await asyncio.wait({watch}, timeout=2 * PEER_PATIENCE_SECONDS)
                done = {watch} if watch.done() else done
            for task in done:
                task.result()
        except* SentinelError as group:
            raise first_of(group) from None
        except* TimeoutError:
            raise Fatal(f"step {self.step} did not end within {self._step_limit():.0f} s ({self.phase})") from None
        finally:
            accusations = set(self.docket.accusations)
            for task in (watch, work, *accusations):
                task.cancel()
            await asyncio.gather(watch, work, *accusations, return_exceptions=True)
            self.teller.record(self.audits.ledger, last=True)

    async def _work(self) -> None:
        await self._wait_for_workers()
        training = self.context.spec.training
        self.teller.begin()
        for step in range(training.steps):
            await asyncio.wait_for(self._one_step(step), self._step_limit())
        await asyncio.wait_for(self._last_audits(), self._step_limit())
        self.phase = "settling"
        await self.docket.cases_ended()
        assert self.last is not None, "a job has at least one step"
        await self.closing.close_job(self.last)

    async def stop(self, code: str, message: str) -> None:
        """Say goodbye to every worker and close."""
        self.receipts.hand_out()
        for session in list(self.relay.sessions.values()):
            session.part(code, message)
        await asyncio.sleep(0.2)
        self.docket.cancel()
        self.audits.cancel()
        self.closing.cancel()
        self.driver.recorder.close()
        await self.relay.stop()
        await self.peers.close()

    def _ping(self) -> pb.SeatMessage:
        return pb.SeatMessage(ping=pb.Ping(step=self.step, phase=self.phase))

    async def _wait_for_workers(self) -> None:
        """Until every claimed slot is ready here, or ten seconds after each stage has one; then agree to start."""
        covered_since = 0.0
        while True:
            ready = {s.stage for s in self.relay.sessions.values() if s.ready is not None}
            count = sum(s.ready is not None for s in self.relay.sessions.values())
            claimed = sum(int(slot.hot_key, 16) != 0 for slot in self.context.slots.values())
            now = time.monotonic()
            if len(ready) == self.context.num_stages:
                covered_since = covered_since or now
                if count >= claimed or now - covered_since > 10.0:
                    break
            await asyncio.sleep(0.05)
        slots = sorted(s.slot.slot for s in self.relay.sessions.values() if s.ready is not None)
        await self.peers.broadcast(pb.SeatMessage(start=pb.Start(slots=slots)), patience=120.0)
        while len(self._started) < len(self.context.others):
            await asyncio.sleep(0.02)

    # ---- one step

    def _step_limit(self) -> float:
        return STEP_TASKS * self.driver.time_limit()

    def _state(self, step: int) -> StepState:
        state = self.book.get(step)
        if state is None:
            state = self.book[step] = StepState(step)
        return state

    async def _one_step(self, step: int) -> None:
        self.step, self.phase = step, "driving"
        state = self._state(step)
        for old in [old for old in self.book if old < step - 2]:
            del self.book[old]
        self.receipts.hand_out()
        self.docket.begin(state)
        await self.driver.begin(state, self._secrets[0])
        async with asyncio.TaskGroup() as group:
            reductions = {
                stage: group.create_task(self._reduce(state, reducer)) for stage, reducer in self.reducers.items()
            }
            group.create_task(self._drive(state))
        updates = {stage: task.result() for stage, task in reductions.items()}
        await self._finish(state, updates)

    async def _drive(self, state: StepState) -> None:
        await self.driver.drive()
        round_ = 0
        while True:
            await self.docket.settled()
            await self.driver.repair()
            if self.docket.accusations:
                continue
            known = self._known(state)
            await self._say_done(state, round_)
            self.phase = "reducing"
            await state.until(lambda: len(state.aggregates) == self.context.num_stages or self._known(state) != known)  # noqa: B023
            if len(state.aggregates) == self.context.num_stages:
                return
            round_ += 1

    def _known(self, state: StepState) -> tuple[frozenset[tuple[int, int]], frozenset[int]]:
        return frozenset(state.excluded), frozenset(state.quarantines)

    async def _say_done(self, state: StepState, round_: int) -> None:
        done = accepted_done(self.context, self.driver, state, round_, self._secrets)
        done.findings.CopyFrom(self.audits.findings(state.step, self._revealed(state.step - 1)))
        if self.context.ends_epoch(state.step):
            blob = checkpoint.baselines_blob(self.driver.engine)
            done.checkpoint_baselines = await asyncio.to_thread(self.outside.blobs.put, blob)
        self._take_done(self.context.account, done)
        await self.peers.broadcast(pb.SeatMessage(done=done))

    def _revealed(self, step: int) -> list[bytes]:
        """The secrets of a step as they were told here, in seat order; empty where one was not."""
        if step not in self.book:
            return []
        told = self.book[step].record_signatures
        return [told[seat.account].secret if seat.account in told else b"" for seat in self.context.seats]

    async def _reduce(self, state: StepState, reducer: Reducer) -> Update:
        update = await reducer.reduce(state)
        if self.context.ends_epoch(state.step):
            weights, moments = checkpoint.stage_blob(reducer.after)
            update.aggregate.checkpoint_weights = await asyncio.to_thread(self.outside.blobs.put, weights)
            update.aggregate.checkpoint_state = await asyncio.to_thread(self.outside.blobs.put, moments)
        state.aggregates[reducer.stage] = update.aggregate
        state.changed()
        await self.peers.broadcast(pb.SeatMessage(aggregate=update.aggregate))
        return update

    async def _finish(self, state: StepState, updates: dict[int, Update]) -> None:
        """Record, signatures, receipts, new weights out, and what an epoch's end asks for."""
        c = self.context
        self.phase = "signing"
        await state.until(lambda: records.rounds_known(c, state))
        dones = records.final_dones(c, state)
        for aggregate in state.aggregates.values():
            check_aggregate(c, state, aggregate)
        previous = self.last.hash if self.last is not None else step_record.GENESIS
        epoch = state.step // c.spec.training.epoch_steps + 1 if c.ends_epoch(state.step) else None
        built = records.build(c, state, dones, previous, self.weights.hashes[state.step], epoch)
        state.quarantines, record = built.quarantines, built.record
        if built.manifest is not None:
            await asyncio.to_thread(self.outside.blobs.put, built.manifest)
        barred = set(state.quarantines)
        for slot, quarantine in state.quarantines.items():
            self.payroll.offences.setdefault((slot, quarantine.nonce), quarantine.offence_step)
        self.payroll.driven += len(c.my_microbatches())
        # Without cross-audits: those are paid by the record, not by this seat's word.
        self.payroll.recomputes = self.recomputer.count + self.cosigner.recomputes - self.audits.auditor.recomputes
        mine = pb.RecordSignature(
            step=state.step,
            record_hash=digest(c.domain, record),
            signature=c.sign(record),
            units=self.payroll.close_step(state.step, self._units(state), barred),
            counts=self.payroll.counts(),
            secret=self._secrets[0],
        )
        state.record_signatures[c.account] = mine
        self.receipts.take(state.step, mine.units)
        await self.peers.broadcast(pb.SeatMessage(record_signature=mine))
        await state.until(lambda: len(state.record_signatures) == len(c.seats))
        signatures = {}
        for account, theirs in state.record_signatures.items():
            try:
                if theirs.record_hash != mine.record_hash:
                    raise ProtocolError("record", f"seat {account} signed another record of step {state.step}")
                c.check_seat(account, record, theirs.signature)
                # A record is final with q signatures of seats that pay: one with false receipts does not count.
                self.payroll.check(account, theirs)
                signatures[account] = theirs.signature
            except ProtocolError as error:
                log.warning("%s", error)
        if len(signatures) < c.quorum:
            raise Fatal(f"the seats disagree about step {state.step}: {len(signatures)} of {c.quorum} signed alike")
        said = {account: said_of(done) for account, done in dones.items()}
        self.audits.shelf.keep(state.step, self.driver.leaves, {s: update.kept for s, update in updates.items()})
        self.audits.close(state.step, said, state.aggregates)
        for account, theirs in state.record_signatures.items():
            await self._take_receipts(state, account, theirs)
        signed = from_record(record, built.new_weights, built.new_states, signatures)
        self.last = Finished(record, mine.record_hash, signed)
        self._archive.append(archive.line(signed, dones, state))
        self._adopt(state, updates, signed)
        self.teller.costs(self.relay.sessions.values())
        self.teller.step(state, dones, len(self.docket.quarantined))
        self.docket.prosecute(state)
        if epoch is not None:
            self.phase = "closing the epoch"
            await self.closing.end_epoch(self.last)
        self._after_audits()

    def _after_audits(self) -> None:
        """What a finished step's findings mean for pay, and for a seat that was found out too often."""
        ledger = self.audits.ledger
        self.teller.record(ledger)
        self.closing.audited(ledger.step - LAG, ledger)
        self.audits.check_seats()

    async def _last_audits(self) -> None:
        """After the last step: as many rounds of findings as a step's audits take, without steps."""
        c, steps = self.context, self.context.spec.training.steps
        self.phase = "auditing"
        for step in range(steps, steps + LAG):
            self.step = step
            await self.audits.settled()
            findings = self.audits.findings(step, self._revealed(step - 1))
            state = self._state(step)
            state.findings[c.account] = findings
            await self.peers.broadcast(pb.SeatMessage(findings=findings))
            await state.until(lambda: len(state.findings) == len(c.seats))  # noqa: B023
            self.audits.close(step, {account: said_after(told) for account, told in state.findings.items()}, {})
            self._after_audits()
        await self.docket.settled()
        late = self._state(steps + LAG)
        self.docket.begin(late)
        for slot, quarantine in late.quarantines.items():
            self.payroll.offences.setdefault((slot, quarantine.nonce), quarantine.offence_step)
        self.docket.prosecute(late)
        self.closing.audited(steps - 1, self.audits.ledger)

    async def _take_receipts(self, state: StepState, account: str, theirs: pb.RecordSignature) -> None:
        """Count those that are right, whatever came with them: they are the workers' pay."""
        if not self.payroll.knows(theirs):
            try:
                await self.refresh()
            except SentinelError as error:
                log.warning("step %d: the slots cannot be read again: %s", state.step, error)
        # Its newest Done, also where the record was made from an older one: what it drove again meanwhile is paid.
        done = state.latest(account)
        accepted = done.leaves if done is not None else 0
        dropped = len(state.excluded) + len(state.quarantines)
        refused = self.payroll.hear(account, theirs, accepted=accepted, dropped=dropped)
        self.teller.receipts(state.step, account, refused)

    def _units(self, state: StepState) -> dict[int, int]:
        backwards = ((entry.slot, entry.session) for entry in self.driver.accepted)
        return payable(self.driver.units, backwards, state.lies)

    def _adopt(self, state: StepState, updates: dict[int, Update], signed: pb.SignedRecord) -> None:
        self.weights.hashes[state.step + 1] = list(signed.new_weights)
        for stage, reducer in self.reducers.items():
            reducer.adopt()
            payload = updates[stage].payload
            self.weights.put(state.step + 1, stage, payload)
            message = pb.ToWorker(weights=pb.Weights(record=signed, payload=payload, step=state.step + 1))
            for session in self.relay.sessions.values():
                if session.stage == stage:
                    session.send(message)
        self._secrets = (self._secrets[1], secrets.token_bytes(32))

    # ---- hearing the others

    async def _hear(self, sender: str, message: pb.SeatMessage) -> pb.SeatMessage:
        kind = message.WhichOneof("kind")
        if kind == "ping":
            return self._ping()
        if kind == "start":
            self._started.add(sender)
        elif kind == "done":
            self._check_step(message.done.step)
            check_done(self.context, sender, message.done)
            for certificate in message.done.findings.faults:
                self.audits.faults.check(certificate)
            for quarantine in message.done.quarantines:
                if quarantine.step != message.done.step:
                    raise ProtocolError("quarantine", f"one of step {quarantine.step} in step {message.done.step}")
                await asyncio.to_thread(self.accuser.check_certificate, quarantine)
                self.docket.take(self._check_step(quarantine.step), quarantine)
            self._take_done(sender, message.done)
        elif kind == "exclude":
            await self._take_exclude(sender, message.exclude)
        elif kind == "aggregate":
            self._take_aggregate(sender, message.aggregate)
        elif kind == "record_signature":
            state = self._check_step(message.record_signature.step)
            state.record_signatures.setdefault(sender, message.record_signature)
            state.changed()
        elif kind == "accuse":
            return pb.SeatMessage(committed=await self.cosigner.judge(sender, message.accuse))
        elif kind == "reveal_query":
            return pb.SeatMessage(reveal=self.cosigner.reveal(sender, message.reveal_query))
        elif kind == "report_query":
            return pb.SeatMessage(report_signature=await self.cosigner.sign(sender, message.report_query))
        elif kind == "canary_reveal":
            self.cosigner.canary(sender, message.canary_reveal)
        elif kind == "quarantine":
            await asyncio.to_thread(self.accuser.check_certificate, message.quarantine)
            self.docket.take(self._check_step(message.quarantine.step), message.quarantine)
        elif kind == "weights_query":
            return pb.SeatMessage(weights_answer=await self.weights.serve(message.weights_query, self.step + 1))
        elif kind == "audit_query":
            return pb.SeatMessage(audit_answer=self.audits.serve_frame(sender, message.audit_query))
        elif kind == "update_query":
            return pb.SeatMessage(update_answer=self.audits.shelf.update(message.update_query))
        elif kind == "fault_claim":
            self.audits.faults.hear(sender, message.fault_claim, self.step)
        elif kind == "findings":
            self._take_findings(sender, message.findings)
        elif kind == "held_query":
            return pb.SeatMessage(held_answer=self.whole.serve(message.held_query))
        elif kind == "counts_query":
            return pb.SeatMessage(counts=self.payroll.counts())
        elif kind == "closed":
            self.closing.job_closed(sender)
        elif kind == "settlement":
            return pb.SeatMessage(settlement_signature=await self.closing.cosign(sender, message.settlement))
        else:
            raise ProtocolError("message", f"a seat does not say {kind}")
        return self._ping()

    def _check_step(self, step: int) -> StepState:
        if not self.step - 1 <= step <= self.step + 2:
            raise ProtocolError("step", f"a message for step {step}; this seat is at {self.step}")
        return self._state(step)

    def _take_done(self, account: str, done: pb.Done) -> None:
        state = self._check_step(done.step)
        state.dones.setdefault(account, {}).setdefault(done.round, done)
        state.changed()

    def _take_findings(self, sender: str, findings: pb.Findings) -> None:
        """What a seat says after the last step."""
        if findings.step < self.context.spec.training.steps:
            raise ProtocolError("findings", f"findings of step {findings.step} come with a Done")
        state = self._check_step(findings.step)
        check_findings(self.context, findings)
        for certificate in findings.faults:
            self.audits.faults.check(certificate)
        state.findings.setdefault(sender, findings)
        state.changed()

    async def _take_exclude(self, sender: str, exclude: pb.Exclude) -> None:
        state = self._check_step(exclude.step)
        slot = exclude.slot
        primary = self.context.primary(self.context.stage_of(slot.slot)).account
        if sender != primary:
            raise ProtocolError("exclude", f"only {primary} reduces slot {slot.slot}")
        state.exclude(slot.slot, slot.session, slot.reason, lie=is_lie(self.context, sender, exclude))

    def _take_aggregate(self, sender: str, aggregate: pb.Aggregate) -> None:
        if aggregate.stage >= self.context.num_stages or sender != self.context.primary(aggregate.stage).account:
            raise ProtocolError("aggregate", f"seat {sender} is not the primary of stage {aggregate.stage}")
        state = self._check_step(aggregate.step)
        state.aggregates.setdefault(aggregate.stage, aggregate)
        state.changed()

    # ---- faults

    def _on_fault(self, kind: FaultKind, account: str, step: int, subject: bytes, evidence: bytes) -> None:
        self.audits.faults.claim(Fault(kind, account, step, subject), evidence)

    async def _exclude(self, state: StepState, key: SlotSession, lost: Lost) -> None:
        slot, session = key
        if not state.exclude(slot, session, lost.reason, lie=lost.claim is not None):
            return
        log.info("step %d: the sum of slot %d is dropped: %s", state.step, slot, lost.reason)
        message = pb.Exclude(step=state.step, slot=pb.SlotSession(slot=slot, session=session, reason=lost.reason))
        if lost.claim is not None:
            message.claim.CopyFrom(lost.claim)
        await self.peers.broadcast(pb.SeatMessage(exclude=message))
        self._let_begin_anew(state, key)

    def _let_begin_anew(self, state: StepState, key: SlotSession) -> None:
        """Where its sum is dropped, as everybody knows by now: with a new session it may do more of the step."""
        session = self.relay.sessions.get(key[0])
        if session is not None and session.id == key and key in state.excluded:
            reason = f"the sum of step {state.step} is dropped: {state.excluded[key]}"
            session.part("dropped", reason, retry=True, dropped=True)

    # ---- workers

    async def _slot_of(self, slot: int, nonce: int) -> SlotInfo | None:
        """The holder of a slot; the chain is asked again when a worker names another nonce than the known one."""
        known = self.context.slots.get(slot)
        if known is not None and (known.nonce != nonce or int(known.hot_key, 16) == 0):
            await self.refresh()
            known = self.context.slots.get(slot)
        return known

    async def refresh(self) -> None:
        """Read the slots from the chain; at most once a second, since strangers can make us ask."""
        async with self._refreshing:
            if time.monotonic() - self._refreshed < 1.0:
                return
            slots = await asyncio.to_thread(self._refresh_slots)
            self._refreshed = time.monotonic()
            self.context.slots.update(slots)
            self.payroll.meet(slots.values())

    def _expel(self, quarantine: pb.Quarantine) -> None:
        session = self.relay.sessions.get(quarantine.slot)
        if session is not None and session.slot.nonce == quarantine.nonce:
            session.part("quarantined", quarantine.reason)
        self.driver.forget(quarantine.slot)

    def _on_session(self, session: WorkerSession) -> None:
        log.info("slot %d: session open", session.slot.slot)
        # One that was ready a moment ago follows by itself; an older one is no use before it has joined again.
        session.fresh = lambda step: step >= self.step - 2
        self.driver.choice.met(session)
        self.receipts.hand_to(session)
        if session.stage not in self.reducers:
            return
        self._let_begin_anew(self._state(self.step), session.id)
        if self.last is None:
            return
        payload = self.weights.payload(self.last.record.step + 1, session.stage)
        if payload is not None:
            weights = pb.Weights(record=self.last.signed, payload=payload, step=self.last.record.step + 1)
            session.send(pb.ToWorker(weights=weights))
