"""The ports ``Roster``, ``Court`` and ``Escrow`` on the chain: what workers and seats need of it while a job runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sentinel_market.chain.client import ChainClient
from sentinel_market.chain.violation_court import Accusation, Vote
from sentinel_market.domain.messages import Settlement
from sentinel_market.errors import ConfigError, Rejected
from sentinel_market.ports import (
    CaseInfo,
    Court,
    Deployment,
    Escrow,
    JobInfo,
    Money,
    Roster,
    SeatInfo,
    SignedReport,
    SlotInfo,
    SlotState,
)

_SLOT_STATES = {
    "vacant": SlotState.VACANT,
    "claimed": SlotState.CLAIMED,
    "active": SlotState.CLAIMED,
    "exiting": SlotState.EXITING,
    "cooling": SlotState.EXITING,
    "released": SlotState.RELEASED,
    "evicted": SlotState.TERMINATED,
    "terminated": SlotState.TERMINATED,
}


class ChainRoster:
    """``Roster``, ``Court`` and ``Escrow`` over one client; with a hot key it also claims, sits and sends."""

    def __init__(self, client: ChainClient) -> None:
        self.client = client

    # --- Roster

    def deployment(self) -> Deployment:
        """Chain id and contract addresses: the signing domains are made of these."""
        return Deployment(chain_id=self.client.network.chain_id, contracts=self.client.network.contracts)

    def job(self, job_id: int) -> JobInfo:
        """A job. ConfigError when it was never posted."""
        found = self.client.market.job(job_id)
        if found.state == "none":
            raise ConfigError(f"there is no job {job_id} on this chain; see `sentinel job list`")
        return JobInfo(
            job_id=job_id,
            spec_digest=found.spec_digest,
            submitter=found.submitter,
            state=found.state,
            budget=found.budget,
            stages=found.stages,
            replicas=found.replicas,
            num_seats=found.num_seats,
            quorum=found.quorum,
        )

    def seats(self, job_id: int) -> tuple[SeatInfo, ...]:
        """Taken seats in seat order."""
        return tuple(
            SeatInfo(index=seat.index, account=seat.account, hot_key=seat.hot_key)
            for seat in self.client.market.seats(job_id)
        )

    def slots(self, job_id: int) -> tuple[SlotInfo, ...]:
        """All slots by number."""
        return tuple(
            SlotInfo(
                slot=slot.slot,
                nonce=slot.nonce,
                account=slot.account,
                hot_key=slot.hot_key,
                state=_SLOT_STATES[slot.state],
            )
            for slot in self.client.market.slots(job_id)
        )

    # --- taking part

    def account(self) -> str:
        """The account that this client's hot key acts for."""
        found = self.client.vault.account_of(self.client.address)
        if found is None:
            raise ConfigError(
                f"the hot key {self.client.address} is registered with no account; `sentinel stake deposit` "
                "registers it"
            )
        return found

    def held_slots(self, job_id: int) -> tuple[SlotInfo, ...]:
        """Slots of a job that this hot key holds: where to rejoin after a restart."""
        mine = self.client.address
        return tuple(slot for slot in self.slots(job_id) if slot.hot_key == mine and slot.state == SlotState.CLAIMED)

    def held_seat(self, job_id: int) -> SeatInfo | None:
        """The seat of a job that this hot key holds."""
        mine = self.client.address
        return next((seat for seat in self.seats(job_id) if seat.hot_key == mine), None)

    def claim_slot(self, job_id: int, slot: int | None = None) -> SlotInfo:
        """Claim ``slot``, or the first vacant one whose claim goes through. Rejected when none does."""
        if slot is not None:
            self.client.market.claim_slot(job_id, slot)
            return self.slots(job_id)[slot]
        last: Rejected | None = None
        for candidate in _by_need(self.slots(job_id), self.job(job_id).replicas):
            try:
                self.client.market.claim_slot(job_id, candidate)
            except Rejected as exc:
                if exc.name not in ("SlotTaken", "StageHeld"):
                    raise
                last = exc  # somebody was faster, or this stage is ours already: try the next
            else:
                return self.slots(job_id)[candidate]
        raise last or Rejected("NoVacantSlot", f"job {job_id} has no vacant slot; wait for one (`sentinel slot list`)")

    def take_seat(self, job_id: int) -> SeatInfo:
        """Take the next free seat."""
        _, index = self.client.market.apply_seat(job_id)
        seats = self.seats(job_id)
        return seats[index] if index is not None else SeatInfo(index=len(seats), account="", hot_key="")

    # --- Court

    def case_id(self, job_id: int, slot: int, nonce: int, kind: int, commitment_hash: bytes) -> bytes:
        """Id of the case that an accusation opens or joins."""
        return self.client.court.case_id(
            Accusation(job_id=job_id, slot=slot, nonce=nonce, kind=kind, commitment_hash=commitment_hash)
        )

    def report(
        self,
        job_id: int,
        slot: int,
        nonce: int,
        kind: int,
        commitment_hash: bytes,
        reports: Sequence[SignedReport],
    ) -> str:
        """Send all reports in one transaction; returns its hash."""
        receipt = self.client.court.report(
            Accusation(job_id=job_id, slot=slot, nonce=nonce, kind=kind, commitment_hash=commitment_hash),
            [
                Vote(
                    seat=report.seat,
                    evidence_hash=report.evidence_hash,
                    deadline=report.deadline,
                    signature=report.signature,
                )
                for report in reports
            ],
        )
        return receipt.hash

    def case(self, case_id: bytes) -> CaseInfo:
        """A case as it stands."""
        found = self.client.court.case(case_id)
        return CaseInfo(
            case_id=case_id,
            state=found.state,
            slot=found.slot,
            nonce=found.nonce,
            accused=found.accused,
            deadline=found.deadline,
        )

    def execute(self, case_id: bytes) -> str:
        """Push a case past its window to Executed."""
        return self.client.court.execute(case_id).hash

    def settle_bond(self, case_id: bytes, seat: int) -> str:
        """Get a seat's bond back after a case."""
        return self.client.court.settle_bond(case_id, seat).hash

    def now(self) -> int:
        """Chain time in seconds."""
        return self.client.now()

    # --- Escrow

    def money(self, job_id: int) -> Money:
        """What the next settlement root must know."""
        escrow = self.client.escrow
        return Money(
            last_epoch=escrow.last_epoch(job_id),
            total=escrow.money(job_id).paid,
            allowance=escrow.allowance(job_id),
        )

    def claimed(self, job_id: int, account: str) -> int:
        """What the chain has paid an account on a job."""
        return self.client.escrow.claimed(job_id, account)

    def submit_root(
        self,
        job_id: int,
        epoch: int,
        root: bytes,
        total: int,
        record_hash: bytes,
        signatures: Sequence[tuple[int, bytes]],
    ) -> str:
        """Submit a settlement root signed by seats [(seat index, signature)]."""
        settlement = Settlement(
            job_id=job_id, epoch=epoch, root=root, total_cumulative=total, step_record_hash=record_hash
        )
        return self.client.escrow.submit_settlement(settlement, signatures).hash

    def finish_digest(self, job_id: int, epoch: int, record_hash: bytes) -> bytes:
        """What each seat signs to finish a job."""
        return self.client.market.finish_digest(job_id, epoch, record_hash)

    def finish(self, job_id: int, epoch: int, record_hash: bytes, signatures: Sequence[tuple[int, bytes]]) -> str:
        """Close a finished job with signatures of seats [(seat index, signature)] under ``finish_digest``."""
        return self.client.market.finish_job(job_id, epoch, record_hash, signatures).hash

    def settle_job(self, job_id: int) -> str:
        """Divide the money of a closing job when its evidence tail is over."""
        return self.client.market.settle_job(job_id).hash


def _by_need(slots: Sequence[SlotInfo], replicas: int) -> list[int]:
    """Vacant slots, those of the emptiest stage first: a job runs only when every stage has a worker."""
    held = [0] * (len(slots) // replicas)
    for slot in slots:
        held[slot.slot // replicas] += slot.state != SlotState.VACANT
    vacant = [slot.slot for slot in slots if slot.state == SlotState.VACANT]
    return sorted(vacant, key=lambda slot: (held[slot // replicas], slot))


if TYPE_CHECKING:

    def _fills_the_ports(roster: ChainRoster) -> tuple[Roster, Court, Escrow]:
        return roster, roster, roster
