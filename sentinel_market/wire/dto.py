"""What travels between the coordinator and everybody else, as JSON. No torch, no chain.

Amounts are decimal strings of base units, digests and hashes lower-case hex, ``issued`` is Unix milliseconds.
A signed request carries ``SIGNATURE_HEADER``: 65 bytes in hex over ``request_digest``, by the hot key of a seat.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

SIGNATURE_HEADER: Final = "X-Sentinel-Signature"
MAX_JSON_BYTES: Final = 64 * 1024
"""Limit of a JSON body, settlements apart."""
MAX_SETTLEMENT_BYTES: Final = 8 * 1024 * 1024
MAX_EVENTS: Final = 128
"""Verdict events in one request."""
MAX_LEAVES: Final = 50_000
MAX_RECORD_BYTES: Final = 1024 * 1024
"""Limit of a record of all seats."""
MAX_SEATS: Final = 64
"""As a job file allows."""
MAX_FAULTS: Final = 64
"""Faults that a record lists of one seat: its newest. Older ones are counted."""
_INT64: Final = 2**63 - 1

Hex32 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
AddressText = Annotated[str, Field(pattern=r"^0x[0-9a-fA-F]{40}$")]
AmountText = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,77})$")]
Count = Annotated[int, Field(ge=0, le=_INT64)]
Uint32 = Annotated[int, Field(ge=0, le=2**32 - 1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
VerdictName = Literal["suspect", "cleared", "violation", "quarantine", "inconclusive", "false-alarm"]
FaultName = Literal[
    "UNSERVED_FRAME",
    "UNSERVED_UPDATE",
    "UNREVEALED",
    "WRONG_UPDATE",
    "RUBBER_STAMP",
    "FALSE_ALARM",
    "LAZY_AUDIT",
]
"""The names of ``domain.cross_audit.FaultKind``."""


def request_digest(*, chain_id: int, market: str, method: str, path: str, body: bytes) -> bytes:
    """The 32 bytes that a signed request's signature covers.

    SHA-256 with a prefix of its own (it can be no EIP-712 digest), bound to chain, contract, method and path.
    """
    head = f"Sentinel Market request 1\n{chain_id}\n{market.lower()}\n{method.upper()}\n{path}\n".encode()
    return hashlib.sha256(head + hashlib.sha256(body).digest()).digest()


class Strict(BaseModel):
    """Unknown keys and other types are refused, not ignored or converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


# --- requests


class EndpointAnnouncement(Strict):
    """``domain.messages.Endpoint`` with the EIP-712 signature of the seat's hot key."""

    job_id: Count
    verifier: AddressText
    endpoint: Annotated[
        str, Field(max_length=255, pattern=r"^([A-Za-z0-9.-]{1,240}|\[[0-9a-fA-F:.]{2,45}\]):[0-9]{1,5}$")
    ]
    issued: Count
    signature: Annotated[str, Field(pattern=r"^0x[0-9a-f]{130}$")]


class StepMetrics(Strict):
    """What one seat saw of one step: of the microbatches that it drove. Display only."""

    job_id: Count
    step: Count
    issued: Count
    loss: Finite | None = None
    """Mean training loss, nats a token."""
    tokens: Count = 0
    tokens_per_second: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    suspects: Count = 0
    """Frames held for confirmation in this step."""
    quarantines: Count = 0
    """Workers in quarantine after this step, in all."""
    bans: Count = 0
    """Workers banned so far, in all."""
    validation_loss: Finite | None = None
    checkpoint: Hex32 | None = None
    """Blob of the checkpoint's manifest, at the end of an epoch."""
    record: Hex32 | None = None
    """Blob of the signed step record that names the manifest: what ties it to the chain."""


class VerdictEvent(Strict):
    """A verdict on one frame, or a quarantine. Scores are integers, x 1e6."""

    step: Count
    slot: Uint32
    nonce: Uint32
    kind: VerdictName
    reason: Annotated[str, Field(max_length=500)]
    issued: Count
    microbatch: Uint32 | None = None
    direction: Literal[0, 1] | None = None
    metric: Annotated[str, Field(max_length=64)] | None = None
    value_e6: Annotated[int, Field(ge=-_INT64, le=_INT64)] | None = None
    fence_e6: Annotated[int, Field(ge=-_INT64, le=_INT64)] | None = None
    evidence: Hex32 | None = None
    """Digest of the evidence bundle among the blobs."""


class VerdictBatch(Strict):
    """Verdict events of one seat."""

    job_id: Count
    events: Annotated[list[VerdictEvent], Field(min_length=1, max_length=MAX_EVENTS)]


class SettlementLeaf(Strict):
    """One account's cumulative pay, in base units."""

    account: AddressText
    cumulative: AmountText


class SettlementProposal(Strict):
    """A settlement root with all its leaves; the coordinator recomputes the root."""

    job_id: Count
    epoch: Annotated[int, Field(ge=1, le=_INT64)]
    root: Hex32
    total: AmountText
    step_record_hash: Hex32
    leaves: Annotated[list[SettlementLeaf], Field(min_length=1, max_length=MAX_LEAVES)]


class SeatFault(Strict):
    """A fault: done in ``step``, named by the record of step ``recorded``."""

    kind: FaultName
    step: Count
    recorded: Count
    subject: Hex32


class SeatStanding(Strict):
    """What the records say of one seat (``domain.cross_audit.Standing``)."""

    account: AddressText
    drawn: Count
    """Its frames and updates that were drawn for a cross-audit."""
    audits_due: Count
    """Draws that it was to audit."""
    audits_done: Count
    faults: Annotated[list[SeatFault], Field(max_length=MAX_FAULTS)]
    earlier: dict[FaultName, Count] = {}
    """Older faults by kind, where there are more than ``MAX_FAULTS``."""
    voided: Count
    """Microbatches whose relaying is not paid."""
    charged: Count
    """Recomputes that are taken off its pay."""


class SeatsRecord(Strict):
    """The public record of all seats of a job, as one of them has it after the record of a step."""

    job_id: Count
    step: Count
    issued: Count
    seats: Annotated[list[SeatStanding], Field(min_length=1, max_length=MAX_SEATS)]


# --- answers


class Answer(BaseModel):
    """Base of what the coordinator answers; a reader ignores what it does not know."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Stored(Answer):
    """The write is in the store. ``new`` is False when it was there already."""

    new: bool
    digest: str | None = None


class SeatView(Answer):
    """A verifier seat, from the chain's events."""

    seat: int
    account: str
    hot_key: str
    released: bool


class MoneyView(Answer):
    """The job's money, from the chain's events. Amounts in base units; ``promised`` is the total of the newest root."""

    budget: str
    promised: str
    claimed: str
    settled: bool
    paid: str
    fee: str
    refund: str
    refunded: str


class JobSummary(Answer):
    """One line of the list of jobs."""

    job_id: int
    name: str | None
    submitter: str
    state: str
    budget: str
    spec_digest: str
    last_step: int | None
    steps: int | None


class JobView(JobSummary):
    """A job in detail."""

    uri: str
    posted_block: int
    stages: int | None
    replicas: int | None
    quorum: int | None
    policy: str | None
    slots_claimed: int
    seats: list[SeatView]
    money: MoneyView


class JobList(Answer):
    """A page of jobs, newest first. ``next_before`` asks for the following page."""

    jobs: list[JobSummary]
    next_before: int | None


class EndpointView(Answer):
    """Where a seat's relay listens, as the seat signed it."""

    job_id: int
    verifier: str
    endpoint: str
    issued: int
    signature: str


class StepView(Answer):
    """One step over all seats: losses weighted by tokens, tokens and suspects summed."""

    step: int
    seats: int
    loss: float | None
    tokens: int
    tokens_per_second: float
    suspects: int
    quarantines: int
    bans: int
    validation_loss: float | None
    checkpoint: str | None = None
    record: str | None = None


class MetricsView(Answer):
    """Steps in ascending order. ``next_since`` asks for what follows."""

    steps: list[StepView]
    next_since: int


class VerdictView(Answer):
    """A stored verdict event."""

    id: int
    verifier: str
    stage: int | None
    replica: int | None
    event: VerdictEvent


class WorkerView(Answer):
    """One assignment (slot, nonce) of a job."""

    slot: int
    stage: int | None
    replica: int | None
    nonce: int
    account: str
    hot_key: str
    state: str
    suspects: int
    violations: int
    quarantined_at_step: int | None
    quarantine_seats: int
    quarantine_reason: str | None
    banned: bool
    slashed: str
    """Slashed on this job, base units."""


class FaultView(Answer):
    """A fault that ``said_by`` of the job's reporters list."""

    kind: str
    step: int
    recorded: int
    subject: str
    said_by: int


class SeatRecordView(Answer):
    """One seat in the public record. The numbers are those that most documents of the view's step give."""

    account: str
    agree: int
    """Documents of that step that say exactly this of the seat."""
    drawn: int
    audits_due: int
    audits_done: int
    voided: int
    charged: int
    faults: list[FaultView]
    """By step; those that not all reporters list, too."""
    earlier: dict[str, int]


class JobRecordView(Answer):
    """The public record of a job's seats. ``step``: the newest that a majority of the ``reporters`` has reached, None
    before the first report; ``documents``: how many are of that very step."""

    job_id: int
    step: int | None
    num_seats: int
    reporters: int
    documents: int
    seats: list[SeatRecordView]


class AccountJobView(Answer):
    """An account's record in one job. ``faults`` by kind: those that a majority of the reporters lists; ``disputed``
    counts the others. ``agreed``: at least half of the reporters give these numbers, so that they are summed."""

    job_id: int
    step: int
    reporters: int
    documents: int
    agree: int
    agreed: bool
    drawn: int
    audits_due: int
    audits_done: int
    voided: int
    charged: int
    faults: dict[str, int]
    disputed: int


class AccountRecordView(Answer):
    """An account's record over its jobs, newest first, and the sums over those. ``jobs_left_out``: older ones."""

    account: str
    drawn: int
    audits_due: int
    audits_done: int
    voided: int
    charged: int
    faults: dict[str, int]
    disputed: int
    jobs: list[AccountJobView]
    jobs_left_out: int


class SettlementView(Answer):
    """A settlement root. ``on_chain`` is True when the escrow took this very root."""

    epoch: int
    root: str
    total: str
    step_record_hash: str
    verifier: str
    on_chain: bool
    active_at: int | None
    """Second from which it can be claimed; None while it is not on chain."""


class ProofView(Answer):
    """What an account hands to ``JobEscrow.claim``."""

    account: str
    cumulative: str
    proof: list[str]


class SettlementDetail(SettlementView):
    """A root with its leaves and proofs."""

    leaves: list[ProofView]


class LedgerLine(Answer):
    """One account in one job: earned = claimed + claimable + pending. Amounts in base units."""

    account: str
    role: str
    earned: str
    pending: str
    claimable: str
    claimed: str
    slashed: str
    bonded: str
    unbonding: str
    credits: str
    banned: bool


class LedgerView(Answer):
    """The ledger of a job. ``problems`` names every identity that does not hold."""

    job_id: int
    block: int | None
    rows: list[LedgerLine]
    money: MoneyView
    problems: list[str]


class CaseView(Answer):
    """A case of the court, from the chain's events."""

    case_id: str
    slot: int
    nonce: int
    accused: str
    state: str
    reporters: int
    slashed: str
    tx: str
    """Transaction of the newest event of this case."""


class Health(Answer):
    """Whether the coordinator is of use."""

    ok: bool
    version: str
    chain_id: int
    indexed_block: int | None
    head: int | None
    problem: str | None
    jobs: int
    blob_bytes: int
