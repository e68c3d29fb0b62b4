"""Every message that is signed off chain, as data (``protocol.md``, EIP-712).

The field order is the EIP-712 member order. ``chain.eip712`` computes digests; nothing here hashes or signs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


class Typed:
    """Base of the signed messages: ``MEMBERS`` is the EIP-712 member list, ``CONTRACT`` names the domain."""

    CONTRACT: ClassVar[str] = "JobMarket"
    MEMBERS: ClassVar[tuple[tuple[str, str], ...]] = ()


def _members(text: str) -> tuple[tuple[str, str], ...]:
    """Parse ``"uint256 jobId,address verifier"`` to ``(("uint256", "jobId"), ...)``."""
    pairs = [part.split() for part in text.split(",")]
    return tuple((pair[0], pair[1]) for pair in pairs)


@dataclass(frozen=True, slots=True)
class SessionHello(Typed):
    """Opens a session; signed by both ends with fresh nonces."""

    MEMBERS: ClassVar[tuple[tuple[str, str], ...]] = _members(
        "uint256 jobId,uint32 slot,uint32 nonce,address verifier,bytes32 workerNonce,"
        "bytes32 verifierNonce,uint64 session,uint64 nextSequence"
    )
    job_id: int
    slot: int
    nonce: int
    verifier: str
    worker_nonce: bytes
    verifier_nonce: bytes
    session: int
    next_sequence: int


@dataclass(frozen=True, slots=True)
class FrameCommitment(Typed):
    """A worker's signature under one tensor. Backward: input = H(forward input, incoming gradient), output =
    H(outgoing gradient, sketch)."""

    MEMBERS: ClassVar[tuple[tuple[str, str], ...]] = _members(
        "uint256 jobId,uint32 slot,uint32 nonce,address verifier,uint64 session,uint64 sequence,uint64 step,"
        "uint32 microbatch,uint8 direction,bytes32 inputHash,bytes32 outputHash,bytes32 weightsHash"
    )
    job_id: int
    slot: int
    nonce: int
    verifier: str
    session: int
    sequence: int
    step: int
    microbatch: int
    direction: int
    input_hash: bytes
    output_hash: bytes
    weights_hash: bytes


@dataclass(frozen=True, slots=True)
class StageGradient(Typed):
    """A worker's signature under the sum of the gradients of one accepted set of backward commitments."""

    MEMBERS: ClassVar[tuple[tuple[str, str], ...]] = _members(
        "uint256 jobId,uint32 slot,uint32 nonce,address verifier,uint64 session,uint64 sequence,uint64 step,"
        "bytes32 acceptedSet,uint32 count,bytes32 gradientHash,bytes32 weightsHash"
    )
    job_id: int
    slot: int
    nonce: int
    verifier: str
    session: int
    sequence: int
    step: int
    accepted_set: bytes
    count: int
    gradient_hash: bytes
    weights_hash: bytes


@dataclass(frozen=True, slots=True)
class DriverDone(Typed):
    """A driver's microbatches of a step are through; ``sets`` digests its accepted sets a replica."""

    MEMBERS: ClassVar[tuple[tuple[str, str], ...]] = _members(
        "uint256 jobId,uint64 step,uint32 round,address verifier,bytes32 sets"
    )
    job_id: int
    step: int
    round: int
    verifier: str
    sets: bytes


@dataclass(frozen=True, slots=True)
class DriverRoot(Typed):
    """Merkle root of the commitments that a driver accepted in a step, and the hash of its next secret."""

    MEMBERS: ClassVar[tuple[tuple[str, str], ...]] = _members(
        "uint256 jobId,uint64 step,address verifier,bytes32 root,uint32 leaves,bytes32 nextSecretHash"
    )
    job_id: int
    step: int
    verifier: str
    root: bytes
    leaves: int
    next_secret_hash: bytes


@dataclass(frozen=True, slots=True)
class AggregateCommitment(Typed):
    """The primary's signature under one optimizer step of one stage."""

    MEMBERS: ClassVar[tuple[tuple[str, str], ...]] = _members(
        "uint256 jobId,uint32 stage,uint64 step,address verifier,bytes32 gradientSet,bytes32 aggregateHash,"
        "bytes32 oldWeights,bytes32 newWeights,bytes32 oldState,bytes32 newState"
    )
    job_id: int
    stage: int
    step: int
    verifier: str
    gradient_set: bytes
    aggregate_hash: bytes
    old_weights: bytes
    new_weights: bytes
    old_state: bytes
    new_state: bytes


@dataclass(frozen=True, slots=True)
class StepRecord(Typed):
    """What a step was: final when q seats signed it. Each bytes32 digests a list kept beside the record."""

    MEMBERS: ClassVar[tuple[tuple[str, str], ...]] = _members(
        "uint256 jobId,uint64 step,uint32 view,bytes32 previous,bytes32 liveSeats,bytes32 driverRoots,"
        "bytes32 multisets,bytes32 aggregates,bytes32 quarantines,bytes32 checkpoint"
    )
    job_id: int
    step: int
    view: int
    previous: bytes
    live_seats: bytes
    driver_roots: bytes
    multisets: bytes
    aggregates: bytes
    quarantines: bytes
    checkpoint: bytes


@dataclass(frozen=True, slots=True)
class WorkReceipt(Typed):
    """A driver's cumulative acknowledgement of a worker's units (passes) up to and including ``step``."""

    MEMBERS: ClassVar[tuple[tuple[str, str], ...]] = _members(
        "uint256 jobId,uint32 slot,uint32 nonce,address verifier,uint64 step,uint64 units"
    )
    job_id: int
    slot: int
    nonce: int
    verifier: str
    step: int
    units: int


@dataclass(frozen=True, slots=True)
class Endpoint(Typed):
    """A seat's announcement of where its relay listens; the highest ``issued`` (milliseconds) wins."""

    MEMBERS: ClassVar[tuple[tuple[str, str], ...]] = _members(
        "uint256 jobId,address verifier,string endpoint,uint64 issued"
    )
    job_id: int
    verifier: str
    endpoint: str
    issued: int


@dataclass(frozen=True, slots=True)
class SeatEnvelope(Typed):
    """Goes before everything that one seat says to another. ``sequence`` never repeats for one sender; ``boot`` is
    drawn by each process of the recipient."""

    MEMBERS: ClassVar[tuple[tuple[str, str], ...]] = _members(
        "uint256 jobId,address sender,address recipient,bytes32 boot,uint64 sequence,uint32 kind,uint64 size,"
        "bytes32 bodyHash"
    )
    job_id: int
    sender: str
    recipient: str
    boot: bytes
    sequence: int
    kind: int
    size: int
    body_hash: bytes


@dataclass(frozen=True, slots=True)
class AuditWork(Typed):
    """An auditor's proof that it recomputed a frame, given before it is shown what the worker returned. ``work``: hash
    of 64 forms of its own output."""

    MEMBERS: ClassVar[tuple[tuple[str, str], ...]] = _members(
        "uint256 jobId,address verifier,uint64 step,bytes32 subject,bytes32 work"
    )
    job_id: int
    verifier: str
    step: int
    subject: bytes
    work: bytes


@dataclass(frozen=True, slots=True)
class SeatFault(Typed):
    """A seat says of another what it found out itself; q of them make an entry in the record of seats."""

    MEMBERS: ClassVar[tuple[tuple[str, str], ...]] = _members(
        "uint256 jobId,uint8 kind,address seat,uint64 step,bytes32 subject"
    )
    job_id: int
    kind: int
    seat: str
    step: int
    subject: bytes


@dataclass(frozen=True, slots=True)
class Judgement(Typed):
    """A seat's answer to an accusation, under seal: ``commitment`` is opened when all seats have answered."""

    MEMBERS: ClassVar[tuple[tuple[str, str], ...]] = _members(
        "uint256 jobId,address verifier,bytes32 evidenceHash,bytes32 commitment"
    )
    job_id: int
    verifier: str
    evidence_hash: bytes
    commitment: bytes


@dataclass(frozen=True, slots=True)
class JobFinish(Typed):
    """q seats say that the job is done and ``epoch`` is its last root."""

    MEMBERS: ClassVar[tuple[tuple[str, str], ...]] = _members("uint256 jobId,uint64 epoch,bytes32 stepRecordHash")
    job_id: int
    epoch: int
    step_record_hash: bytes


@dataclass(frozen=True, slots=True)
class Settlement(Typed):
    """A pay root of one epoch, signed by q seats. ``total_cumulative`` is what all leaves add up to."""

    CONTRACT: ClassVar[str] = "JobEscrow"
    MEMBERS: ClassVar[tuple[tuple[str, str], ...]] = _members(
        "uint256 jobId,uint64 epoch,bytes32 root,uint128 totalCumulative,bytes32 stepRecordHash"
    )
    job_id: int
    epoch: int
    root: bytes
    total_cumulative: int
    step_record_hash: bytes


@dataclass(frozen=True, slots=True)
class ViolationReport(Typed):
    """A seat's accusation after its own recompute."""

    CONTRACT: ClassVar[str] = "ViolationCourt"
    MEMBERS: ClassVar[tuple[tuple[str, str], ...]] = _members(
        "bytes32 caseId,address verifier,uint8 kind,bytes32 commitmentHash,bytes32 evidenceHash,uint64 deadline"
    )
    case_id: bytes
    verifier: str
    kind: int
    commitment_hash: bytes
    evidence_hash: bytes
    deadline: int


@dataclass(frozen=True, slots=True)
class SignerGrant(Typed):
    """Proof of possession of a hot key, for its account."""

    CONTRACT: ClassVar[str] = "StakeVault"
    MEMBERS: ClassVar[tuple[tuple[str, str], ...]] = _members(
        "address account,address signer,uint256 nonce,uint64 deadline"
    )
    account: str
    signer: str
    nonce: int
    deadline: int
