"""What the coordinator knows and how it answers. Knows no HTTP; refusals are ``Refusal``."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

from sentinel_market import __version__
from sentinel_market.chain import eip712, signing
from sentinel_market.coordinator.indexer import Indexer
from sentinel_market.coordinator.roster import Roster, SeatState, roster
from sentinel_market.coordinator.settings import CoordinatorSettings
from sentinel_market.domain.cross_audit import LAG
from sentinel_market.domain.job_spec import JobSpec
from sentinel_market.domain.ledger import JobMoney, Ledger
from sentinel_market.domain.merkle import address_bytes, pay_tree
from sentinel_market.domain.messages import Endpoint
from sentinel_market.errors import JobSpecError, ProtocolError
from sentinel_market.store import BlobStore, Store, UnitOfWork
from sentinel_market.wire import dto

_T = TypeVar("_T")
_MAX_ROSTERS: Final = 256


class Refusal(Exception):  # noqa: N818
    """A request that is not served: HTTP status, stable code, words."""

    def __init__(self, status: int, code: str, message: str) -> None:
        self.status, self.code, self.message = status, code, message
        super().__init__(message)


class Service:
    """All that routes need. Safe to use from many threads."""

    def __init__(self, settings: CoordinatorSettings, store: Store, blobs: BlobStore) -> None:
        self.settings, self.store, self.blobs = settings, store, blobs
        self._lock = threading.Lock()
        self._ledger = Ledger()
        self._position = (-1, -1)
        self._rosters: dict[int, tuple[int | None, Roster]] = {}
        self.indexer: Indexer | None = None
        if settings.events is not None:
            self.indexer = Indexer(
                store,
                settings.events,
                first_block=settings.first_block,
                confirmations=settings.confirmations,
                clock=settings.clock,
            )

    # --- finding things

    def job_row(self, unit: UnitOfWork, job_id: int) -> dict[str, Any]:
        """The job, or a 404."""
        row = unit.jobs.get(job_id)
        if row is None:
            raise Refusal(404, "unknown-job", f"there is no job {job_id} on chain {self.settings.chain_id}, as indexed")
        return row

    def spec_of(self, unit: UnitOfWork, row: Mapping[str, Any]) -> JobSpec | None:
        """The job's spec, None while nobody has stored it or when what was posted is none."""
        body = unit.specs.get(row["spec_digest"])
        return None if body is None else _spec(body)

    def roster(self, unit: UnitOfWork, job_id: int) -> Roster:
        """Everybody in a job, folded anew only when the index has moved. Read only."""
        cursor = unit.events.cursor()
        known = self._rosters.get(job_id)
        if known is None or known[0] != cursor:
            if len(self._rosters) >= _MAX_ROSTERS:
                self._rosters.clear()
            known = self._rosters[job_id] = (cursor, roster(unit.events.of_job(job_id)))
        return known[1]

    def _freshly(self, find: Callable[[UnitOfWork], _T | None]) -> _T | None:
        """Look twice: what is not indexed may have happened a moment ago."""
        with self.store.read() as unit:
            found = find(unit)
        if found is None and self.indexer is not None:
            self.indexer.refresh()
            with self.store.read() as unit:
                found = find(unit)
        return found

    # --- who writes

    def seat(self, job_id: int, hot_key: str) -> SeatState:
        """The seat of a job that a hot key signs for, or a refusal."""

        def find(unit: UnitOfWork) -> SeatState | None:
            return self.roster(unit, job_id).seat_of_key(hot_key)

        seat = self._freshly(find)
        if seat is None:
            with self.store.read() as unit:
                self.job_row(unit, job_id)
            raise Refusal(403, "not-a-seat", f"{hot_key} is not the hot key of a seat of job {job_id}")
        return seat

    def signer(self, job_id: int, path: str, body: bytes, signature: str | None) -> SeatState:
        """The seat that signed a request, or a refusal."""
        if signature is None:
            raise Refusal(401, "unsigned", f"the header {dto.SIGNATURE_HEADER} is missing")
        digest = dto.request_digest(
            chain_id=self.settings.chain_id,
            market=self.settings.contracts["JobMarket"],
            method="POST",
            path=path,
            body=body,
        )
        return self.seat(job_id, _recover(digest, signature))

    def _check_issued(self, issued: int) -> None:
        latest = int((self.settings.clock() + self.settings.max_clock_skew) * 1000)
        if issued > latest:
            raise Refusal(400, "clock", f"issued {issued} is in the future; check the clock of the sender")

    @staticmethod
    def _same_job(job_id: int, stated: int) -> None:
        if stated != job_id:
            raise Refusal(400, "other-job", f"the body names job {stated}, the path job {job_id}")

    # --- specs

    def put_spec(self, body: bytes) -> dto.Stored:
        """Store a job spec by its digest. It needs no signature: it is what its digest says."""
        try:
            spec = JobSpec.from_canonical(body)
        except JobSpecError as error:
            raise Refusal(400, "bad-spec", str(error)[:2000]) from None
        digest = spec.digest().hex()
        with self.store.write() as unit:
            known = unit.specs.get(digest) is not None
            unit.specs.put(digest, body, int(self.settings.clock()), self.settings.max_unposted_specs)
        return dto.Stored(new=not known, digest=digest)

    def get_spec(self, digest: str) -> bytes:
        """The canonical bytes of a spec."""
        with self.store.read() as unit:
            body = unit.specs.get(digest)
        if body is None:
            raise Refusal(404, "unknown-spec", f"no job spec with digest {digest} is stored here")
        return body

    # --- writes of seats

    def announce(self, job_id: int, announcement: dto.EndpointAnnouncement) -> dto.Stored:
        """Store where a seat's relay listens; the newest ``issued`` wins."""
        self._same_job(job_id, announcement.job_id)
        self._check_issued(announcement.issued)
        port = int(announcement.endpoint.rsplit(":", 1)[1])
        if not 0 < port < 65_536:
            raise Refusal(400, "bad-endpoint", f"{announcement.endpoint} names no port from 1 to 65535")
        message = Endpoint(job_id, announcement.verifier, announcement.endpoint, announcement.issued)
        digest = eip712.digest(self._domain(), message)
        seat = self.seat(job_id, _recover(digest, announcement.signature))
        if address_bytes(seat.account) != address_bytes(announcement.verifier):
            raise Refusal(403, "other-seat", f"the signer sits for {seat.account}, not for {announcement.verifier}")
        signature = bytes.fromhex(announcement.signature[2:])
        with self.store.write() as unit:
            new = unit.endpoints.put(job_id, seat.account, announcement.endpoint, announcement.issued, signature)
        if not new:
            raise Refusal(409, "stale", f"an announcement of {seat.account} that is as new or newer is here already")
        return dto.Stored(new=True)

    def put_metrics(self, job_id: int, seat: SeatState, metrics: dto.StepMetrics) -> dto.Stored:
        """Store a seat's metrics of a step; the newest ``issued`` wins."""
        self._same_job(job_id, metrics.job_id)
        self._check_issued(metrics.issued)
        with self.store.write() as unit:
            spec = self.spec_of(unit, self.job_row(unit, job_id))
            if spec is not None and metrics.step >= spec.training.steps:
                raise Refusal(400, "bad-step", f"step {metrics.step} of a job of {spec.training.steps} steps")
            new = unit.metrics.put(job_id, metrics.step, seat.account, metrics.issued, metrics.model_dump())
        if not new:
            raise Refusal(409, "stale", f"metrics of step {metrics.step} that are as new or newer are here already")
        return dto.Stored(new=True)

    def put_verdicts(self, job_id: int, seat: SeatState, batch: dto.VerdictBatch) -> dto.Stored:
        """Store verdict events; an event that is here already changes nothing."""
        self._same_job(job_id, batch.job_id)
        added = 0
        with self.store.write() as unit:
            if unit.verdicts.count(job_id, seat.account) + len(batch.events) > self.settings.max_verdicts_a_seat:
                raise Refusal(429, "too-many", f"{seat.account} has stored its share of verdicts for job {job_id}")
            known = self.roster(unit, job_id).assignments
            for event in batch.events:
                self._check_issued(event.issued)
                if (event.slot, event.nonce) not in known:
                    raise Refusal(400, "unknown-slot", f"slot {event.slot} was never held under nonce {event.nonce}")
                body = event.model_dump()
                text = f"{job_id}\n{seat.account.lower()}\n{event.model_dump_json()}"
                added += unit.verdicts.put(hashlib.sha256(text.encode()).hexdigest(), job_id, seat.account, body)
                if event.kind == "quarantine":
                    unit.quarantines.put(job_id, event.slot, event.nonce, seat.account, event.step, event.reason)
        return dto.Stored(new=added > 0)

    def put_seats_record(self, job_id: int, seat: SeatState, record: dto.SeatsRecord) -> dto.Stored:
        """Store what a seat says of all seats of its job; the newest step wins."""
        self._same_job(job_id, record.job_id)
        self._check_issued(record.issued)
        with self.store.write() as unit:
            spec = self.spec_of(unit, self.job_row(unit, job_id))
            # Rounds of findings follow the last step.
            if spec is not None and record.step >= spec.training.steps + LAG:
                raise Refusal(400, "bad-step", f"step {record.step} of a job of {spec.training.steps} steps")
            holders = {one.account.lower() for one in self.roster(unit, job_id).seats.values()}
            problem = _problem(record, holders)
            if problem is not None:
                raise Refusal(400, "bad-record", problem)
            new = unit.seat_records.put(job_id, seat.account, record.step, record.issued, record.model_dump())
        if not new:
            raise Refusal(409, "stale", f"a record of {seat.account} of step {record.step} or later is here already")
        return dto.Stored(new=True)

    def put_settlement(self, job_id: int, seat: SeatState, proposal: dto.SettlementProposal) -> dto.Stored:
        """Store a root with its leaves, after recomputing it."""
        self._same_job(job_id, proposal.job_id)
        amounts = {leaf.account: int(leaf.cumulative) for leaf in proposal.leaves}
        if len(amounts) != len(proposal.leaves):
            raise Refusal(400, "bad-root", "an account has two leaves")
        try:
            tree = pay_tree(job_id, amounts, eip712.keccak256)
        except ValueError as error:
            raise Refusal(400, "bad-root", str(error)) from None
        if tree.root.hex() != proposal.root:
            raise Refusal(400, "bad-root", f"these leaves have the root {tree.root.hex()}, not {proposal.root}")
        if tree.total > int(proposal.total):
            raise Refusal(400, "bad-root", f"the leaves add up to {tree.total}, more than the total {proposal.total}")
        row = {
            "job_id": job_id,
            "epoch": proposal.epoch,
            "root": proposal.root,
            "total": proposal.total,
            "step_record_hash": proposal.step_record_hash,
            "verifier": seat.account,
        }
        leaves = [
            {"account": leaf.account, "cumulative": str(leaf.cumulative), "proof": [one.hex() for one in leaf.proof]}
            for leaf in tree.leaves
        ]
        with self.store.write() as unit:
            if unit.settlements.count(job_id, seat.account) >= self.settings.max_settlements_a_seat:
                raise Refusal(429, "too-many", f"{seat.account} has stored its share of roots for job {job_id}")
            new = unit.settlements.put(row, leaves)
        return dto.Stored(new=new, digest=proposal.root)

    def _domain(self) -> eip712.Domain:
        return eip712.Domain("JobMarket", "1", self.settings.chain_id, self.settings.contracts["JobMarket"])

    # --- money

    def ledger(self) -> tuple[Ledger, threading.Lock]:
        """The ledger up to the index, and the lock under which it is read."""
        with self._lock, self.store.read() as unit:
            rows = unit.events.after(*self._position)
            self._ledger.replay(rows)
            if rows:
                self._position = (rows[-1]["block"], rows[-1]["log_index"])
        return self._ledger, self._lock

    def money(self, job_id: int) -> dto.MoneyView:
        """The money of a job."""
        ledger, lock = self.ledger()
        with lock:
            return money_view(ledger.jobs.get(job_id, JobMoney(job_id)))

    # --- health

    def health(self) -> dto.Health:
        """Whether all is well."""
        with self.store.read() as unit:
            cursor, jobs = unit.events.cursor(), unit.jobs.count()
        problem = self.indexer.problem if self.indexer is not None else None
        return dto.Health(
            ok=problem is None,
            version=__version__,
            chain_id=self.settings.chain_id,
            indexed_block=cursor,
            head=self.indexer.head if self.indexer is not None else None,
            problem=problem,
            jobs=jobs,
            blob_bytes=self.blobs.total_bytes,
        )


@lru_cache(maxsize=64)
def _spec(body: bytes) -> JobSpec:
    return JobSpec.from_canonical(body)


def _recover(digest: bytes, signature: str) -> str:
    try:
        return signing.recover(digest, bytes.fromhex(signature.removeprefix("0x")))
    except (ProtocolError, ValueError) as error:
        raise Refusal(401, "signature", f"the signature is not valid: {error}") from None


def _problem(record: dto.SeatsRecord, holders: Collection[str]) -> str | None:
    """What no ledger could say, in words; ``holders``: accounts of the job's seats in lower case."""
    accounts = [one.account.lower() for one in record.seats]
    if len(set(accounts)) < len(accounts):
        return "an account is listed twice"
    for one in record.seats:
        if one.account.lower() not in holders:
            return f"{one.account} holds no seat of job {record.job_id}"
        if one.audits_done > one.audits_due:
            return f"{one.account} did {one.audits_done} audits of {one.audits_due}"
        named = {(fault.kind, fault.step, fault.subject) for fault in one.faults}
        if len(named) < len(one.faults):
            return f"a fault of {one.account} is listed twice"
        for fault in one.faults:
            if not fault.step <= fault.recorded <= record.step:
                return (
                    f"a fault of {one.account} in step {fault.step}, recorded in step {fault.recorded}, "
                    f"in the record of step {record.step}"
                )
    return None


def money_view(job: JobMoney) -> dto.MoneyView:
    """The money of a job as it is answered."""
    return dto.MoneyView(
        budget=str(job.budget),
        promised=str(job.promised),
        claimed=str(job.claimed_total),
        settled=job.settled,
        paid=str(job.paid),
        fee=str(job.fee),
        refund=str(job.refund),
        refunded=str(job.refunded),
    )


def merge_steps(rows: Sequence[Mapping[str, Any]]) -> list[dto.StepView]:
    """One line a step from one row a (step, seat): losses weighted by tokens, tokens and suspects summed."""
    steps: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        steps.setdefault(row["step"], []).append(row["body"])
    return [_merged(step, bodies) for step, bodies in sorted(steps.items())]


def _merged(step: int, bodies: Sequence[Mapping[str, Any]]) -> dto.StepView:
    losses = [(body["loss"], max(1, body["tokens"])) for body in bodies if body["loss"] is not None]
    held_out = [body["validation_loss"] for body in bodies if body["validation_loss"] is not None]
    weight = sum(tokens for _, tokens in losses)
    return dto.StepView(
        step=step,
        seats=len(bodies),
        loss=sum(loss * tokens for loss, tokens in losses) / weight if losses else None,
        tokens=sum(body["tokens"] for body in bodies),
        tokens_per_second=sum(body["tokens_per_second"] for body in bodies),
        suspects=sum(body["suspects"] for body in bodies),
        quarantines=max(body["quarantines"] for body in bodies),
        bans=max(body["bans"] for body in bodies),
        validation_loss=sum(held_out) / len(held_out) if held_out else None,
        checkpoint=_newest(bodies, "checkpoint"),
        record=_newest(bodies, "record"),
    )


def _newest(bodies: Sequence[Mapping[str, Any]], key: str) -> str | None:
    """The digest that a seat published last, if any did."""
    found = [(int(body["issued"]), str(body[key])) for body in bodies if body.get(key)]
    return max(found)[1] if found else None
