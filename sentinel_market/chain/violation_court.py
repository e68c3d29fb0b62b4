"""ViolationCourt: reports, cases, verdicts, bonds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sentinel_market.chain.client import Block, ChainClient, Receipt
from sentinel_market.chain.eip712 import keccak256
from sentinel_market.chain.reverts import CASE_STATES, KINDS


@dataclass(frozen=True, kw_only=True, slots=True)
class Accusation:
    """Who is accused of what. ``kind`` is the number of ``ViolationKind``."""

    job_id: int
    slot: int
    nonce: int
    kind: int
    commitment_hash: bytes

    def encode(self) -> tuple[Any, ...]:
        """In the order of the Solidity struct."""
        return (self.job_id, self.slot, self.nonce, self.kind, self.commitment_hash)


@dataclass(frozen=True, kw_only=True, slots=True)
class Vote:
    """One seat's signed report."""

    seat: int
    evidence_hash: bytes
    deadline: int
    signature: bytes

    def encode(self) -> tuple[Any, ...]:
        """In the order of the Solidity struct."""
        return (self.seat, self.evidence_hash, self.deadline, self.signature)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A case as the chain has it. Amounts in base units, times in chain seconds."""

    case_id: bytes
    state: str
    accused: str
    job_id: int
    slot: int
    nonce: int
    kind: str
    opened_at: int
    collect_until: int
    appeal_until: int
    reporters: int
    quorum: int
    voted: tuple[int, ...]
    slash_ask: int
    bond: int
    slashed: int
    reward_each: int

    @property
    def deadline(self) -> int:
        """End of the present window; 0 where there is none."""
        return {"collecting": self.collect_until, "appealable": self.appeal_until}.get(self.state, 0)


class ViolationCourt:
    """Reads and writes of the court."""

    NAME = "ViolationCourt"

    def __init__(self, client: ChainClient) -> None:
        self._client = client

    # --- reading

    def case_id(self, accusation: Accusation) -> bytes:
        """The case's id, computed here: keccak(abi.encode(chain id, court, job, slot, nonce, kind, commitment))."""
        network = self._client.network
        words = (
            network.chain_id,
            int(network.contracts[self.NAME], 16),
            accusation.job_id,
            accusation.slot,
            accusation.nonce,
            accusation.kind,
            int.from_bytes(accusation.commitment_hash, "big"),
        )
        return keccak256(b"".join(word.to_bytes(32, "big") for word in words))

    def case(self, case_id: bytes, block: Block = "latest") -> Case:
        """A case; state "none" when there is no such case."""
        raw = self._client.call(self.NAME, "getCase", case_id, block=block)
        return Case(
            case_id=case_id,
            state=CASE_STATES[raw.state],
            accused=raw.accused,
            job_id=raw.jobId,
            slot=raw.slot,
            nonce=raw.nonce,
            kind=KINDS[raw.kind],
            opened_at=raw.openedAt,
            collect_until=raw.collectUntil,
            appeal_until=raw.appealUntil,
            reporters=raw.reporters,
            quorum=raw.quorum,
            voted=tuple(seat for seat in range(32) if raw.voted >> seat & 1),
            slash_ask=raw.slashAsk,
            bond=raw.bond,
            slashed=raw.slashed,
            reward_each=raw.rewardEach,
        )

    def bond_of(self, case_id: bytes, seat: int, block: Block = "latest") -> int | None:
        """Lock id of a seat's bond in a case."""
        return int(self._client.call(self.NAME, "bondOf", case_id, seat, block=block)) or None

    def quote_bond(self, job_id: int, kind: int, block: Block = "latest") -> tuple[int, int]:
        """(slash asked for, bond a reporter) of a kind on a job."""
        ask, bond = self._client.call(self.NAME, "quoteBond", job_id, kind, block=block)
        return int(ask), int(bond)

    # --- writing

    def report(self, accusation: Accusation, votes: Sequence[Vote]) -> Receipt:
        """File several seats' reports in one transaction."""
        return self._client.send(
            self.NAME,
            "reportBatch",
            accusation.encode(),
            [vote.encode() for vote in sorted(votes, key=lambda vote: vote.seat)],
            intent=f"report slot {accusation.slot} of job {accusation.job_id}",
        )

    def execute(self, case_id: bytes) -> Receipt:
        """Execute an upheld verdict."""
        return self._client.send(self.NAME, "execute", case_id, intent=f"execute case 0x{case_id.hex()}")

    def expire(self, case_id: bytes) -> Receipt:
        """End a case without a quorum."""
        return self._client.send(self.NAME, "expire", case_id, intent=f"expire case 0x{case_id.hex()}")

    def settle_bond(self, case_id: bytes, seat: int) -> Receipt:
        """Give a seat its bond back after the end of a case."""
        return self._client.send(
            self.NAME, "settleBond", case_id, seat, intent=f"settle the bond of seat {seat} in case 0x{case_id.hex()}"
        )
