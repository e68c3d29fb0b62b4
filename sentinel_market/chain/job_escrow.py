"""JobEscrow: budgets, settlement roots, pay, refunds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sentinel_market.chain.client import Block, ChainClient, Receipt
from sentinel_market.chain.eip712 import digest
from sentinel_market.chain.job_market import split_by_seat
from sentinel_market.domain.messages import Settlement


@dataclass(frozen=True, kw_only=True, slots=True)
class JobMoney:
    """A job's money in base units. Once settled: budget = paid + fee + refund."""

    budget: int
    paid: int
    """Total of the last root: reserved and unclaimed included."""
    claimed: int
    fee: int
    refund: int
    refunded: int
    settled: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class SettlementRoot:
    """A settlement root on chain. ``active_at`` 0: there is none of that epoch."""

    epoch: int
    root: bytes
    step_record_hash: bytes
    total: int
    submitted_at: int
    active_at: int


class JobEscrow:
    """Reads and writes of the escrow."""

    NAME = "JobEscrow"

    def __init__(self, client: ChainClient) -> None:
        self._client = client

    # --- reading

    def money(self, job_id: int, block: Block = "latest") -> JobMoney:
        """A job's money."""
        budget, paid, claimed, fee, refund, refunded, settled = self._client.call(
            self.NAME, "jobMoney", job_id, block=block
        )
        return JobMoney(
            budget=budget, paid=paid, claimed=claimed, fee=fee, refund=refund, refunded=refunded, settled=settled
        )

    def claimed(self, job_id: int, account: str, block: Block = "latest") -> int:
        """What an account has drawn from a job."""
        return int(self._client.call(self.NAME, "claimed", job_id, account, block=block))

    def last_epoch(self, job_id: int, block: Block = "latest") -> int:
        """Epoch of the newest root; 0 while there is none."""
        return int(self._client.call(self.NAME, "lastEpoch", job_id, block=block))

    def active_epoch(self, job_id: int, block: Block = "latest") -> int:
        """Epoch of the newest root that pays now; 0 while there is none."""
        return int(self._client.call(self.NAME, "activeEpoch", job_id, block=block))

    def root(self, job_id: int, epoch: int, block: Block = "latest") -> SettlementRoot:
        """A settlement root."""
        raw = self._client.call(self.NAME, "getRoot", job_id, epoch, block=block)
        return SettlementRoot(
            epoch=epoch,
            root=bytes(raw.root),
            step_record_hash=bytes(raw.stepRecordHash),
            total=raw.totalCumulative,
            submitted_at=raw.submittedAt,
            active_at=raw.activeAt,
        )

    def allowance(self, job_id: int, block: Block = "latest") -> int:
        """The highest total that a root may state now."""
        return int(self._client.call(self.NAME, "allowance", job_id, block=block))

    def fees(self, treasury: str, block: Block = "latest") -> int:
        """Fees waiting for a treasury."""
        return int(self._client.call(self.NAME, "fees", treasury, block=block))

    def owed(self, block: Block = "latest") -> int:
        """What must be in the escrow, over all jobs."""
        return int(self._client.call(self.NAME, "owed", block=block))

    def settlement_digest(self, settlement: Settlement) -> bytes:
        """What a seat signs under a root."""
        return digest(self._client.network.domain(self.NAME), settlement)

    # --- writing

    def submit_settlement(self, settlement: Settlement, signatures: Sequence[tuple[int, bytes]]) -> Receipt:
        """Submit a root with the seats' [(seat, signature)]."""
        seats, parts = split_by_seat(signatures)
        return self._client.send(
            self.NAME,
            "submitSettlement",
            settlement.job_id,
            settlement.epoch,
            settlement.root,
            settlement.total_cumulative,
            settlement.step_record_hash,
            seats,
            parts,
            intent=f"submit the settlement of epoch {settlement.epoch} of job {settlement.job_id}",
        )

    def claim(self, job_id: int, epoch: int, account: str, cumulative: int, proof: Sequence[bytes]) -> Receipt:
        """Pay ``account`` what is new in its leaf; anyone may send this."""
        return self._client.send(
            self.NAME,
            "claim",
            job_id,
            epoch,
            account,
            cumulative,
            list(proof),
            intent=f"claim the pay of {account} on job {job_id}",
        )

    def withdraw_refund(self, job_id: int) -> Receipt:
        """Pay the refund of a settled or cancelled job to its submitter."""
        return self._client.send(self.NAME, "withdrawRefund", job_id, intent=f"refund job {job_id}")

    def withdraw_fees(self, treasury: str) -> Receipt:
        """Pay collected fees to a treasury."""
        return self._client.send(self.NAME, "withdrawFees", treasury, intent=f"pay fees to {treasury}")
