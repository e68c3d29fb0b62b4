"""The end of an epoch and of the job: validation, roots, and the last word on chain. Runs beside training."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

import torch

from sentinel_market.data.corpus import Corpus, validation_batches
from sentinel_market.domain import assignment
from sentinel_market.domain.cross_audit import Ledger
from sentinel_market.domain.messages import StepRecord
from sentinel_market.errors import Fatal, ProtocolError, SentinelError
from sentinel_market.models.stage import Stage
from sentinel_market.ports import BlobStore, Events
from sentinel_market.wire import relay_pb2 as pb
from verifier import checkpoint
from verifier.context import SeatContext
from verifier.meter import Meter
from verifier.payroll import Payroll, Settled
from verifier.peers import Peers
from verifier.weights import WeightsStore

log = logging.getLogger("verifier")

CLOSE_SECONDS = 300.0
"""The end of a job may take so long, or its planned time where that is longer: the rate cap counts from that."""
KEPT_EPOCHS = 8
"""More than end within the steps that cross-audits take."""
AUDITED_SECONDS = 15.0
"""The lead's audits are done before it proposes; another seat's may take a moment longer."""
VALIDATION_SEED = 0
"""Not the job's: jobs on one corpus are measured on the same held-out sequences, so that their losses compare."""


@dataclass(frozen=True)
class Finished:
    """A step whose record is final."""

    record: StepRecord
    hash: bytes
    signed: pb.SignedRecord


class Closing:
    """Every seat remembers what each epoch owed and co-signs; the lead validates and proposes."""

    def __init__(
        self,
        context: SeatContext,
        peers: Peers,
        payroll: Payroll,
        weights: WeightsStore,
        blobs: BlobStore,
        events: Events,
        corpus: Corpus,
        meter: Meter,
    ) -> None:
        self.context = context
        self._peers = peers
        self._payroll = payroll
        self._weights = weights
        self._blobs = blobs
        self._events = events
        self._corpus = corpus
        self._meter = meter
        self._epochs: dict[int, Finished] = {}
        self._audited: dict[int, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._job_closed = asyncio.Event()

    @property
    def is_lead(self) -> bool:
        return self.context.me == assignment.lead_of(self.context.live)

    def _check_lead(self, account: str, code: str) -> None:
        if account != self.context.seats[assignment.lead_of(self.context.live)].account:
            raise ProtocolError(code, f"{account} is not the lead")

    # ---- epochs

    async def end_epoch(self, finished: Finished) -> None:
        """Freeze what is owed; the lead then validates and settles beside the next steps."""
        step = finished.record.step
        self._payroll.freeze(step)
        self._epochs[step], self._audited[step] = finished, asyncio.Event()
        for old in sorted(self._epochs)[:-KEPT_EPOCHS]:
            del self._epochs[old], self._audited[old]
        if not self.is_lead:
            return
        flats = [await self._weights.flat(step + 1, stage) for stage in range(self.context.num_stages)]
        task = asyncio.ensure_future(self._settle(finished, flats))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def audited(self, step: int, ledger: Ledger) -> None:
        """The cross-audits of all steps up to this one are done: epochs that ended by then may be settled."""
        for end, event in self._audited.items():
            if end <= step and not event.is_set():
                self._payroll.audited(end, ledger)
                event.set()

    async def _settle(self, finished: Finished, flats: list[torch.Tensor]) -> None:
        step = finished.record.step
        loss = await asyncio.to_thread(self._validation_loss, flats)
        try:
            record = await asyncio.to_thread(self._blobs.put, finished.signed.SerializeToString(deterministic=True))
            self._events.step(
                {
                    "step": step,
                    "validation_loss": loss,
                    "checkpoint": finished.record.checkpoint.hex(),
                    "record": record,
                }
            )
            await self._read_back(finished)
            await self._audited[step].wait()
            async with self._turn:
                settled = await self._payroll.propose(self._peers, step, finished.hash)
        except SentinelError as error:
            log.warning("no root for step %d: %s; its pay comes with the next one", step, error)
            return
        if settled is not None:
            self._tell(settled)

    async def _read_back(self, finished: Finished) -> None:
        await asyncio.to_thread(
            checkpoint.read_back, self._blobs, finished.record.checkpoint, list(finished.signed.new_weights)
        )

    def _tell(self, settled: Settled) -> None:
        amounts = settled.amounts
        self._events.settlement(
            {
                "epoch": settled.epoch,
                "step": settled.step,
                "root": settled.root.hex(),
                "record": settled.record_hash.hex(),
                "total": str(amounts.total),
                "amounts": {account: str(amount) for account, amount in amounts.amounts.items()},
                "earned": {account: str(amount) for account, amount in amounts.earned.items()},
                "capped": amounts.capped,
                "transaction": settled.transaction,
            }
        )

    async def cosign(self, sender: str, proposal: pb.SettlementProposal) -> pb.SettlementSignature:
        """Only the lead proposes, only over a record that this seat has, only with a checkpoint that can be read."""
        self._check_lead(sender, "root")
        until = time.monotonic() + 10.0
        while (finished := self._epochs.get(proposal.step)) is None:
            # The lead may be a moment ahead: its record of this step is final, mine is being signed.
            if time.monotonic() > until:
                raise ProtocolError("root", f"step {proposal.step} ends no epoch that this seat remembers")
            await asyncio.sleep(0.05)
        if finished.hash != proposal.step_record_hash:
            raise ProtocolError("root", f"this seat's record of step {proposal.step} is another one")
        await self._read_back(finished)
        try:
            await asyncio.wait_for(self._audited[proposal.step].wait(), AUDITED_SECONDS)
        except TimeoutError:
            raise ProtocolError("root", f"the cross-audits of step {proposal.step} are not done here") from None
        return await self._payroll.cosign(proposal)

    # ---- the end

    def job_closed(self, sender: str) -> None:
        """The lead says that the job is finished on chain. Raises ProtocolError for anybody else."""
        self._check_lead(sender, "closed")
        self._job_closed.set()

    async def close_job(self, last: Finished) -> None:
        """After the last step and the last case: roots until nothing is owed, then the job is finished on chain."""
        limit = max(CLOSE_SECONDS, float(self.context.spec.market.planned_seconds))
        if self._tasks:
            await asyncio.wait(self._tasks)
        if not self.is_lead:
            await asyncio.wait_for(self._job_closed.wait(), limit)
            return
        step = last.record.step
        until = time.monotonic() + limit
        while True:
            try:
                await self._last_counts()
                settled = await self._payroll.propose(self._peers, step, last.hash)
                if settled is not None:
                    self._tell(settled)
                    continue
                transaction = await self._payroll.finish(self._peers, step, last.hash)
                break
            except SentinelError as error:
                # The rate cap, the objection window of the root before, a seat whose cases are still open.
                log.info("closing the job: %s", error)
                if time.monotonic() > until:
                    raise Fatal(f"the job could not be closed within {limit:g} s: {error}") from error
                await asyncio.sleep(0.5)
        self._events.settlement({"finish": transaction, "step": step})
        await self._peers.broadcast(pb.SeatMessage(closed=pb.Closed(transaction=transaction)))

    async def _last_counts(self) -> None:
        """What every seat did since its last record (reports, executions), so that the root repays it."""
        self._payroll.hear_counts(self.context.account, self._payroll.counts())
        for seat in self.context.others:
            answer = await self._peers.ask(seat.account, pb.SeatMessage(counts_query=pb.CountsQuery()))
            self._payroll.hear_counts(seat.account, answer.counts)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _validation_loss(self, flats: list[torch.Tensor]) -> float:
        """Mean token loss (nats) of the canonical weights on the job's fixed held-out sequences."""
        spec, count = self.context.spec, self.context.num_stages
        stages = [Stage(self.context.config, stage, count) for stage in range(count)]
        for stage, flat in zip(stages, flats, strict=True):
            stage.load_flat(flat)
        total, tokens = 0.0, 0
        with torch.no_grad(), self._meter.section("validation"):
            for inputs, targets in validation_batches(
                self._corpus, spec.model.seq_len, spec.training.validation_sequences, VALIDATION_SEED
            ):
                x = inputs
                for stage in stages[:-1]:
                    x = stage(x)
                losses = stages[-1].token_loss(x, targets)
                total, tokens = total + float(losses.sum()), tokens + losses.numel()
        return total / tokens
