"""What the live run needs of the outside, as small protocols. Adapters live in ``chain`` and in the wire layer.

Every port has one abstract test suite (``tests/ports``) that each implementation passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class SlotState(StrEnum):
    VACANT = "vacant"
    CLAIMED = "claimed"
    EXITING = "exiting"
    TERMINATED = "terminated"
    RELEASED = "released"


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Where we are: the EIP-712 domains are made of this."""

    chain_id: int
    contracts: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class JobInfo:
    job_id: int
    spec_digest: bytes
    submitter: str
    state: str
    budget: int
    stages: int
    replicas: int
    num_seats: int
    quorum: int


@dataclass(frozen=True, kw_only=True)
class SeatInfo:
    """A seat in seat order. ``account`` is the cold account, ``hot_key`` signs (snapshotted)."""

    index: int
    account: str
    hot_key: str


@dataclass(frozen=True, kw_only=True)
class SlotInfo:
    """A slot (stage, replica): ``slot = stage * replicas + replica``; a vacant one has zero addresses."""

    slot: int
    nonce: int
    account: str
    hot_key: str
    state: SlotState


class Roster(Protocol):
    """Who may take part in a job. The chain is the authority; a fixed file serves tests and part A."""

    def deployment(self) -> Deployment: ...

    def job(self, job_id: int) -> JobInfo: ...

    def seats(self, job_id: int) -> tuple[SeatInfo, ...]: ...

    def slots(self, job_id: int) -> tuple[SlotInfo, ...]: ...


@dataclass(frozen=True, kw_only=True)
class CaseInfo:
    """A case of the court; ``state`` is its name in lower case (collecting, appealable, upheld, executed, ...)."""

    case_id: bytes
    state: str
    slot: int
    nonce: int
    accused: str
    deadline: int
    """Chain time (seconds) at which the present window ends; 0 where there is none."""


@dataclass(frozen=True, kw_only=True)
class SignedReport:
    """One seat's ViolationReport as the court takes it."""

    seat: int
    evidence_hash: bytes
    deadline: int
    signature: bytes


class Court(Protocol):
    """What a seat's hot key sends to the chain, and what it reads for it. All calls block; run them in a thread."""

    def case_id(self, job_id: int, slot: int, nonce: int, kind: int, commitment_hash: bytes) -> bytes: ...

    def report(
        self,
        job_id: int,
        slot: int,
        nonce: int,
        kind: int,
        commitment_hash: bytes,
        reports: Sequence[SignedReport],
    ) -> str:
        """Send all reports in one transaction; returns its hash. Raises Rejected."""
        ...

    def case(self, case_id: bytes) -> CaseInfo: ...

    def execute(self, case_id: bytes) -> str:
        """Execute a case whose windows are over: slash, ban, terminate. Returns the hash. Raises Rejected."""
        ...

    def settle_bond(self, case_id: bytes, seat: int) -> str:
        """Give a reporter its bond and its share back."""
        ...

    def now(self) -> int:
        """Chain time in seconds."""
        ...


@dataclass(frozen=True, kw_only=True)
class Money:
    """What settlement needs to know of the escrow."""

    last_epoch: int
    total: int
    """``totalCumulative`` of the last root."""
    allowance: int
    """Highest total that the rate cap admits now."""


class Escrow(Protocol):
    """Settlement roots and the end of a job. All calls block."""

    def money(self, job_id: int) -> Money: ...

    def claimed(self, job_id: int, account: str) -> int: ...

    def submit_root(
        self,
        job_id: int,
        epoch: int,
        root: bytes,
        total: int,
        record_hash: bytes,
        signatures: Sequence[tuple[int, bytes]],
    ) -> str:
        """Signatures as (seat index, 65 bytes), ascending. Returns the transaction hash. Raises Rejected."""
        ...

    def finish(self, job_id: int, epoch: int, record_hash: bytes, signatures: Sequence[tuple[int, bytes]]) -> str:
        """Close a finished job."""
        ...

    def settle_job(self, job_id: int) -> str:
        """Settle a closing job whose evidence tail is over."""
        ...


class BlobStore(Protocol):
    """Content-addressed bytes: checkpoints, evidence."""

    def put(self, data: bytes) -> str:
        """Store; returns the BLAKE3 hex digest."""
        ...

    def get(self, digest: str) -> bytes:
        """Raises PeerGone when absent or unreachable; the caller checks nothing: bytes match the digest."""
        ...


class Events(Protocol):
    """Where a seat tells what happened: the coordinator, or a list in a test. Never blocks, never raises."""

    def step(self, data: Mapping[str, object]) -> None: ...

    def verdict(self, data: Mapping[str, object]) -> None: ...

    def settlement(self, data: Mapping[str, object]) -> None: ...

    def seat(self, data: Mapping[str, object]) -> None:
        """A cross-audit, a claim against a seat, a fault that a record names, the public record of all seats."""
        ...
