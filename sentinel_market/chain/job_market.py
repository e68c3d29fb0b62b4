"""JobMarket: jobs, slots, seats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sentinel_market.chain.client import Block, ChainClient, Receipt
from sentinel_market.chain.eip712 import digest
from sentinel_market.chain.reverts import JOB_STATES, SEAT_STATES, SLOT_STATES
from sentinel_market.domain.job_spec import JobSpec
from sentinel_market.domain.messages import JobFinish


@dataclass(frozen=True, kw_only=True, slots=True)
class JobTerms:
    """What is posted. Amounts in base units, deadlines in chain seconds."""

    spec_digest: bytes
    stages: int
    replicas: int
    num_seats: int
    quorum: int
    slot_stake: int
    seat_stake: int
    budget: int
    planned_seconds: int
    epochs: int
    claim_deadline: int
    deadline: int
    params_version: int

    @classmethod
    def of(cls, spec: JobSpec, *, now: int, params_version: int, deadline_seconds: int | None = None) -> JobTerms:
        """The terms of a job file. The deadline defaults to the claim window and three times the planned length."""
        claim_deadline = now + spec.market.claim_deadline_seconds
        if deadline_seconds is None:
            deadline_seconds = spec.market.claim_deadline_seconds + 3 * spec.market.planned_seconds
        return cls(
            spec_digest=spec.digest(),
            stages=spec.parallelism.stages,
            replicas=spec.parallelism.replicas,
            num_seats=spec.seats.num,
            quorum=spec.seats.quorum,
            slot_stake=spec.market.slot_stake,
            seat_stake=spec.market.seat_stake,
            budget=spec.market.budget,
            planned_seconds=spec.market.planned_seconds,
            epochs=-(-spec.training.steps // spec.training.epoch_steps),
            claim_deadline=claim_deadline,
            deadline=max(claim_deadline, now + deadline_seconds),
            params_version=params_version,
        )

    def encode(self) -> tuple[Any, ...]:
        """In the order of the Solidity struct."""
        return (
            self.spec_digest,
            self.stages,
            self.replicas,
            self.num_seats,
            self.quorum,
            self.slot_stake,
            self.seat_stake,
            self.budget,
            self.planned_seconds,
            self.epochs,
            self.claim_deadline,
            self.deadline,
            self.params_version,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A job as the chain has it."""

    job_id: int
    submitter: str
    spec_digest: bytes
    state: str
    stages: int
    replicas: int
    num_seats: int
    quorum: int
    seats_taken: int
    slots_claimed: int
    params_version: int
    slot_stake: int
    seat_stake: int
    budget: int
    planned_seconds: int
    claim_deadline: int
    deadline: int
    open_cases: int
    posted_at: int
    active_at: int
    closing_at: int
    ended_at: int

    @property
    def num_slots(self) -> int:
        """Slots in all."""
        return self.stages * self.replicas


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """A slot as the chain has it. ``account`` and ``hot_key`` are zero addresses when it is vacant."""

    slot: int
    stage: int
    replica: int
    account: str
    hot_key: str
    nonce: int
    state: str
    claimed_at: int
    exit_at: int
    lock_id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """A taken seat."""

    index: int
    account: str
    hot_key: str
    state: str
    lock_id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """What the market knows about an account in a job."""

    stages: tuple[int, ...]
    open_cases: int
    min_epoch: int
    seat: int | None


class JobMarket:
    """Reads and writes of the market."""

    NAME = "JobMarket"

    def __init__(self, client: ChainClient) -> None:
        self._client = client
        self._replicas: dict[int, int] = {}  # fixed when a job is posted

    # --- reading

    def job_count(self, block: Block = "latest") -> int:
        """How many jobs were posted; ids run from 1."""
        return int(self._client.call(self.NAME, "jobCount", block=block))

    def job(self, job_id: int, block: Block = "latest") -> Job:
        """A job; one that was never posted has state "none"."""
        raw = self._client.call(self.NAME, "getJob", job_id, block=block)
        return Job(
            job_id=job_id,
            submitter=raw.submitter,
            spec_digest=bytes(raw.specDigest),
            state=JOB_STATES[raw.state],
            stages=raw.stages,
            replicas=raw.replicas,
            num_seats=raw.numSeats,
            quorum=raw.quorum,
            seats_taken=raw.seatsTaken,
            slots_claimed=raw.slotsClaimed,
            params_version=raw.paramsVersion,
            slot_stake=raw.slotStake,
            seat_stake=raw.seatStake,
            budget=raw.budget,
            planned_seconds=raw.plannedSeconds,
            claim_deadline=raw.claimDeadline,
            deadline=raw.deadline,
            open_cases=raw.openCases,
            posted_at=raw.postedAt,
            active_at=raw.activeAt,
            closing_at=raw.closingAt,
            ended_at=raw.endedAt,
        )

    def slots(self, job_id: int, block: Block = "latest") -> tuple[Slot, ...]:
        """All slots of a job, by number."""
        raw = self._client.call(self.NAME, "getSlots", job_id, block=block)
        if not raw:
            return ()
        if job_id not in self._replicas:
            self._replicas[job_id] = self.job(job_id, block).replicas
        replicas = self._replicas[job_id]
        return tuple(
            Slot(
                slot=index,
                stage=index // replicas,
                replica=index % replicas,
                account=item.account,
                hot_key=item.hotKey,
                nonce=item.nonce,
                state=SLOT_STATES[item.state],
                claimed_at=item.claimedAt,
                exit_at=item.exitAt,
                lock_id=item.lockId,
            )
            for index, item in enumerate(raw)
        )

    def seats(self, job_id: int, block: Block = "latest") -> tuple[Seat, ...]:
        """Taken seats of a job, in seat order."""
        raw = self._client.call(self.NAME, "getSeats", job_id, block=block)
        return tuple(
            Seat(
                index=index,
                account=item.account,
                hot_key=item.hotKey,
                state=SEAT_STATES[item.state],
                lock_id=item.lockId,
            )
            for index, item in enumerate(raw)
        )

    def member(self, job_id: int, account: str, block: Block = "latest") -> Member:
        """An account's part in a job."""
        mask, open_cases, min_epoch, seat_plus_one = self._client.call(
            self.NAME, "accountInJob", job_id, account, block=block
        )
        return Member(
            stages=tuple(stage for stage in range(mask.bit_length()) if mask >> stage & 1),
            open_cases=open_cases,
            min_epoch=min_epoch,
            seat=seat_plus_one - 1 if seat_plus_one else None,
        )

    def seat_bond_reserve(self, job_id: int, block: Block = "latest") -> int:
        """Free stake, beyond the seat's lock, that a seat must have for its bonds."""
        return int(self._client.call(self.NAME, "seatBondReserve", job_id, block=block))

    def slot_duty_end(self, job_id: int, slot: int, block: Block = "latest") -> int | None:
        """From when on a slot's lock can be released; None while the duty goes on."""
        end = int(self._client.call(self.NAME, "slotDutyEnd", job_id, slot, block=block))
        return None if end == 2**64 - 1 else end

    def finish_digest(self, job_id: int, epoch: int, record_hash: bytes) -> bytes:
        """What a seat signs to finish a job."""
        return digest(self._client.network.domain(self.NAME), JobFinish(job_id, epoch, record_hash))

    # --- writing

    def post_job(self, terms: JobTerms, uri: str = "") -> tuple[Receipt, int | None]:
        """Post a job and pay its budget into the escrow; returns the receipt and the job's id (None in dry mode)."""
        if terms.budget > 0:
            self._client.token.ensure_allowance(self._client.network.contracts["JobEscrow"], terms.budget)
        receipt = self._client.send(self.NAME, "postJob", terms.encode(), uri, intent="post a job")
        return receipt, None if receipt.dry else receipt.event("JobPosted").args["jobId"]

    def cancel_job(self, job_id: int) -> Receipt:
        """Cancel a job of which nothing is claimed; full refund."""
        return self._client.send(self.NAME, "cancelJob", job_id, intent=f"cancel job {job_id}")

    def close_job(self, job_id: int) -> Receipt:
        """Stop an active job early."""
        return self._client.send(self.NAME, "closeJob", job_id, intent=f"close job {job_id}")

    def finish_job(
        self, job_id: int, epoch: int, record_hash: bytes, signatures: Sequence[tuple[int, bytes]]
    ) -> Receipt:
        """Close a finished job with the seats' [(seat, signature)] under ``finish_digest``."""
        seats, parts = split_by_seat(signatures)
        return self._client.send(
            self.NAME, "finishJob", job_id, epoch, record_hash, seats, parts, intent=f"finish job {job_id}"
        )

    def settle_job(self, job_id: int) -> Receipt:
        """Divide the money of a closing job when its evidence tail is over."""
        return self._client.send(self.NAME, "settleJob", job_id, intent=f"settle job {job_id}")

    def push_timeout(self, job_id: int) -> Receipt:
        """Push what time has decided."""
        return self._client.send(self.NAME, "pushTimeout", job_id, intent=f"push the time-outs of job {job_id}")

    def claim_slot(self, job_id: int, slot: int) -> Receipt:
        """Claim a slot for the sender's account."""
        return self._client.send(self.NAME, "claimSlot", job_id, slot, intent=f"claim slot {slot} of job {job_id}")

    def exit_slot(self, job_id: int, slot: int) -> Receipt:
        """Leave a slot after the notice."""
        return self._client.send(self.NAME, "exitSlot", job_id, slot, intent=f"leave slot {slot} of job {job_id}")

    def release_slot(self, job_id: int, slot: int) -> Receipt:
        """Give a slot's lock back when its time is over."""
        return self._client.send(self.NAME, "releaseSlot", job_id, slot, intent=f"release slot {slot} of job {job_id}")

    def apply_seat(self, job_id: int) -> tuple[Receipt, int | None]:
        """Take the next free seat; returns the receipt and the seat (None in dry mode)."""
        receipt = self._client.send(self.NAME, "applySeat", job_id, intent=f"take a seat of job {job_id}")
        return receipt, None if receipt.dry else receipt.event("SeatTaken").args["seat"]

    def release_seat(self, job_id: int, seat: int) -> Receipt:
        """Give a seat's lock back when the job is over."""
        return self._client.send(self.NAME, "releaseSeat", job_id, seat, intent=f"release seat {seat} of job {job_id}")


def split_by_seat(signatures: Sequence[tuple[int, bytes]]) -> tuple[list[int], list[bytes]]:
    """Two lists in ascending seat order, as the contracts want them."""
    ordered = sorted(signatures, key=lambda pair: pair[0])
    return [seat for seat, _ in ordered], [signature for _, signature in ordered]
