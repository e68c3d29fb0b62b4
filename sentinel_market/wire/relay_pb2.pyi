from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Operation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FORWARD: _ClassVar[Operation]
    BACKWARD: _ClassVar[Operation]
    LOSS: _ClassVar[Operation]
FORWARD: Operation
BACKWARD: Operation
LOSS: Operation

class Part(_message.Message):
    __slots__ = ("data", "more")
    DATA_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    more: bool
    def __init__(self, data: _Optional[bytes] = ..., more: _Optional[bool] = ...) -> None: ...

class ToSeat(_message.Message):
    __slots__ = ("hello", "proof", "result", "gradient", "refusal", "ready", "bye")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    BYE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    proof: HelloProof
    result: Result
    gradient: GradientSum
    refusal: Refusal
    ready: Ready
    bye: Bye
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., proof: _Optional[_Union[HelloProof, _Mapping]] = ..., result: _Optional[_Union[Result, _Mapping]] = ..., gradient: _Optional[_Union[GradientSum, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., bye: _Optional[_Union[Bye, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("version", "job_id", "slot", "nonce", "worker_nonce", "session", "next_sequence")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    WORKER_NONCE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    version: int
    job_id: int
    slot: int
    nonce: int
    worker_nonce: bytes
    session: int
    next_sequence: int
    def __init__(self, version: _Optional[int] = ..., job_id: _Optional[int] = ..., slot: _Optional[int] = ..., nonce: _Optional[int] = ..., worker_nonce: _Optional[bytes] = ..., session: _Optional[int] = ..., next_sequence: _Optional[int] = ...) -> None: ...

class HelloProof(_message.Message):
    __slots__ = ("signature",)
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    signature: bytes
    def __init__(self, signature: _Optional[bytes] = ...) -> None: ...

class Commitment(_message.Message):
    __slots__ = ("sequence", "direction", "input_hash", "output_hash", "signature")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    INPUT_HASH_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_HASH_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    direction: int
    input_hash: bytes
    output_hash: bytes
    signature: bytes
    def __init__(self, sequence: _Optional[int] = ..., direction: _Optional[int] = ..., input_hash: _Optional[bytes] = ..., output_hash: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("dispatch", "step", "weights_hash", "commitments", "output", "gradient", "sketch", "compute_micros", "process_micros", "overhead_micros")
    DISPATCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_HASH_FIELD_NUMBER: _ClassVar[int]
    COMMITMENTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    SKETCH_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_MICROS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_MICROS_FIELD_NUMBER: _ClassVar[int]
    OVERHEAD_MICROS_FIELD_NUMBER: _ClassVar[int]
    dispatch: int
    step: int
    weights_hash: bytes
    commitments: _containers.RepeatedCompositeFieldContainer[Commitment]
    output: bytes
    gradient: bytes
    sketch: bytes
    compute_micros: int
    process_micros: int
    overhead_micros: int
    def __init__(self, dispatch: _Optional[int] = ..., step: _Optional[int] = ..., weights_hash: _Optional[bytes] = ..., commitments: _Optional[_Iterable[_Union[Commitment, _Mapping]]] = ..., output: _Optional[bytes] = ..., gradient: _Optional[bytes] = ..., sketch: _Optional[bytes] = ..., compute_micros: _Optional[int] = ..., process_micros: _Optional[int] = ..., overhead_micros: _Optional[int] = ...) -> None: ...

class GradientSum(_message.Message):
    __slots__ = ("step", "round", "sequence", "count", "accepted_set", "gradient_hash", "weights_hash", "signature", "gradient")
    STEP_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_SET_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_HASH_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_HASH_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    step: int
    round: int
    sequence: int
    count: int
    accepted_set: bytes
    gradient_hash: bytes
    weights_hash: bytes
    signature: bytes
    gradient: bytes
    def __init__(self, step: _Optional[int] = ..., round: _Optional[int] = ..., sequence: _Optional[int] = ..., count: _Optional[int] = ..., accepted_set: _Optional[bytes] = ..., gradient_hash: _Optional[bytes] = ..., weights_hash: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., gradient: _Optional[bytes] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("dispatch", "step", "round", "code", "message", "missing", "extra")
    DISPATCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    EXTRA_FIELD_NUMBER: _ClassVar[int]
    dispatch: int
    step: int
    round: int
    code: str
    message: str
    missing: _containers.RepeatedScalarFieldContainer[bytes]
    extra: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, dispatch: _Optional[int] = ..., step: _Optional[int] = ..., round: _Optional[int] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., missing: _Optional[_Iterable[bytes]] = ..., extra: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("step", "weights_hash")
    STEP_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_HASH_FIELD_NUMBER: _ClassVar[int]
    step: int
    weights_hash: bytes
    def __init__(self, step: _Optional[int] = ..., weights_hash: _Optional[bytes] = ...) -> None: ...

class Bye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class ToWorker(_message.Message):
    __slots__ = ("challenge", "welcome", "task", "sum", "weights", "receipt", "goodbye")
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    challenge: Challenge
    welcome: Welcome
    task: Task
    sum: SumRequest
    weights: Weights
    receipt: Receipt
    goodbye: Goodbye
    def __init__(self, challenge: _Optional[_Union[Challenge, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., task: _Optional[_Union[Task, _Mapping]] = ..., sum: _Optional[_Union[SumRequest, _Mapping]] = ..., weights: _Optional[_Union[Weights, _Mapping]] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class Challenge(_message.Message):
    __slots__ = ("verifier_nonce", "signature")
    VERIFIER_NONCE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    verifier_nonce: bytes
    signature: bytes
    def __init__(self, verifier_nonce: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("dispatch", "sequence", "step", "microbatch", "operation", "weights_hash", "input", "incoming", "forward", "receipt")
    DISPATCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MICROBATCH_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_HASH_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    INCOMING_FIELD_NUMBER: _ClassVar[int]
    FORWARD_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    dispatch: int
    sequence: int
    step: int
    microbatch: int
    operation: Operation
    weights_hash: bytes
    input: bytes
    incoming: bytes
    forward: int
    receipt: Receipt
    def __init__(self, dispatch: _Optional[int] = ..., sequence: _Optional[int] = ..., step: _Optional[int] = ..., microbatch: _Optional[int] = ..., operation: _Optional[_Union[Operation, str]] = ..., weights_hash: _Optional[bytes] = ..., input: _Optional[bytes] = ..., incoming: _Optional[bytes] = ..., forward: _Optional[int] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ...) -> None: ...

class SumRequest(_message.Message):
    __slots__ = ("step", "round", "sequence", "commitments", "weights_hash")
    STEP_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COMMITMENTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_HASH_FIELD_NUMBER: _ClassVar[int]
    step: int
    round: int
    sequence: int
    commitments: _containers.RepeatedScalarFieldContainer[bytes]
    weights_hash: bytes
    def __init__(self, step: _Optional[int] = ..., round: _Optional[int] = ..., sequence: _Optional[int] = ..., commitments: _Optional[_Iterable[bytes]] = ..., weights_hash: _Optional[bytes] = ...) -> None: ...

class Weights(_message.Message):
    __slots__ = ("record", "payload", "step")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    record: SignedRecord
    payload: bytes
    step: int
    def __init__(self, record: _Optional[_Union[SignedRecord, _Mapping]] = ..., payload: _Optional[bytes] = ..., step: _Optional[int] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("step", "units", "signature")
    STEP_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    step: int
    units: int
    signature: bytes
    def __init__(self, step: _Optional[int] = ..., units: _Optional[int] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("code", "message", "retry", "dropped")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    retry: bool
    dropped: int
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., retry: _Optional[bool] = ..., dropped: _Optional[int] = ...) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("job_id", "sender", "recipient", "boot", "sequence", "kind", "size", "body_hash", "signature")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECIPIENT_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    BODY_HASH_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    sender: str
    recipient: str
    boot: bytes
    sequence: int
    kind: int
    size: int
    body_hash: bytes
    signature: bytes
    def __init__(self, job_id: _Optional[int] = ..., sender: _Optional[str] = ..., recipient: _Optional[str] = ..., boot: _Optional[bytes] = ..., sequence: _Optional[int] = ..., kind: _Optional[int] = ..., size: _Optional[int] = ..., body_hash: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class SeatMessage(_message.Message):
    __slots__ = ("ping", "done", "exclude", "aggregate", "record_signature", "accuse", "report_signature", "quarantine", "weights_query", "weights_answer", "settlement", "settlement_signature", "error", "start", "counts_query", "counts", "closed", "held_query", "held_answer", "audit_query", "audit_answer", "update_query", "update_answer", "fault_claim", "findings", "committed", "reveal_query", "reveal", "report_query", "canary_reveal")
    PING_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_FIELD_NUMBER: _ClassVar[int]
    AGGREGATE_FIELD_NUMBER: _ClassVar[int]
    RECORD_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    ACCUSE_FIELD_NUMBER: _ClassVar[int]
    REPORT_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    QUARANTINE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_QUERY_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_ANSWER_FIELD_NUMBER: _ClassVar[int]
    SETTLEMENT_FIELD_NUMBER: _ClassVar[int]
    SETTLEMENT_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    COUNTS_QUERY_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    HELD_QUERY_FIELD_NUMBER: _ClassVar[int]
    HELD_ANSWER_FIELD_NUMBER: _ClassVar[int]
    AUDIT_QUERY_FIELD_NUMBER: _ClassVar[int]
    AUDIT_ANSWER_FIELD_NUMBER: _ClassVar[int]
    UPDATE_QUERY_FIELD_NUMBER: _ClassVar[int]
    UPDATE_ANSWER_FIELD_NUMBER: _ClassVar[int]
    FAULT_CLAIM_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    REVEAL_QUERY_FIELD_NUMBER: _ClassVar[int]
    REVEAL_FIELD_NUMBER: _ClassVar[int]
    REPORT_QUERY_FIELD_NUMBER: _ClassVar[int]
    CANARY_REVEAL_FIELD_NUMBER: _ClassVar[int]
    ping: Ping
    done: Done
    exclude: Exclude
    aggregate: Aggregate
    record_signature: RecordSignature
    accuse: Accuse
    report_signature: ReportSignature
    quarantine: Quarantine
    weights_query: WeightsQuery
    weights_answer: WeightsAnswer
    settlement: SettlementProposal
    settlement_signature: SettlementSignature
    error: Error
    start: Start
    counts_query: CountsQuery
    counts: SeatCounts
    closed: Closed
    held_query: HeldQuery
    held_answer: HeldAnswer
    audit_query: AuditQuery
    audit_answer: AuditAnswer
    update_query: UpdateQuery
    update_answer: UpdateAnswer
    fault_claim: FaultClaim
    findings: Findings
    committed: Committed
    reveal_query: RevealQuery
    reveal: Reveal
    report_query: ReportQuery
    canary_reveal: CanaryReveal
    def __init__(self, ping: _Optional[_Union[Ping, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., exclude: _Optional[_Union[Exclude, _Mapping]] = ..., aggregate: _Optional[_Union[Aggregate, _Mapping]] = ..., record_signature: _Optional[_Union[RecordSignature, _Mapping]] = ..., accuse: _Optional[_Union[Accuse, _Mapping]] = ..., report_signature: _Optional[_Union[ReportSignature, _Mapping]] = ..., quarantine: _Optional[_Union[Quarantine, _Mapping]] = ..., weights_query: _Optional[_Union[WeightsQuery, _Mapping]] = ..., weights_answer: _Optional[_Union[WeightsAnswer, _Mapping]] = ..., settlement: _Optional[_Union[SettlementProposal, _Mapping]] = ..., settlement_signature: _Optional[_Union[SettlementSignature, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., counts_query: _Optional[_Union[CountsQuery, _Mapping]] = ..., counts: _Optional[_Union[SeatCounts, _Mapping]] = ..., closed: _Optional[_Union[Closed, _Mapping]] = ..., held_query: _Optional[_Union[HeldQuery, _Mapping]] = ..., held_answer: _Optional[_Union[HeldAnswer, _Mapping]] = ..., audit_query: _Optional[_Union[AuditQuery, _Mapping]] = ..., audit_answer: _Optional[_Union[AuditAnswer, _Mapping]] = ..., update_query: _Optional[_Union[UpdateQuery, _Mapping]] = ..., update_answer: _Optional[_Union[UpdateAnswer, _Mapping]] = ..., fault_claim: _Optional[_Union[FaultClaim, _Mapping]] = ..., findings: _Optional[_Union[Findings, _Mapping]] = ..., committed: _Optional[_Union[Committed, _Mapping]] = ..., reveal_query: _Optional[_Union[RevealQuery, _Mapping]] = ..., reveal: _Optional[_Union[Reveal, _Mapping]] = ..., report_query: _Optional[_Union[ReportQuery, _Mapping]] = ..., canary_reveal: _Optional[_Union[CanaryReveal, _Mapping]] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("step", "phase")
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    step: int
    phase: str
    def __init__(self, step: _Optional[int] = ..., phase: _Optional[str] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("slots",)
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    slots: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, slots: _Optional[_Iterable[int]] = ...) -> None: ...

class AuditQuery(_message.Message):
    __slots__ = ("step", "commitment", "work", "signature")
    STEP_FIELD_NUMBER: _ClassVar[int]
    COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    step: int
    commitment: bytes
    work: bytes
    signature: bytes
    def __init__(self, step: _Optional[int] = ..., commitment: _Optional[bytes] = ..., work: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class AuditAnswer(_message.Message):
    __slots__ = ("frame", "upstream", "downstream", "sketch_hash", "input", "incoming", "output", "sketch")
    FRAME_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_FIELD_NUMBER: _ClassVar[int]
    DOWNSTREAM_FIELD_NUMBER: _ClassVar[int]
    SKETCH_HASH_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    INCOMING_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    SKETCH_FIELD_NUMBER: _ClassVar[int]
    frame: SignedFrame
    upstream: SignedFrame
    downstream: SignedFrame
    sketch_hash: bytes
    input: bytes
    incoming: bytes
    output: bytes
    sketch: bytes
    def __init__(self, frame: _Optional[_Union[SignedFrame, _Mapping]] = ..., upstream: _Optional[_Union[SignedFrame, _Mapping]] = ..., downstream: _Optional[_Union[SignedFrame, _Mapping]] = ..., sketch_hash: _Optional[bytes] = ..., input: _Optional[bytes] = ..., incoming: _Optional[bytes] = ..., output: _Optional[bytes] = ..., sketch: _Optional[bytes] = ...) -> None: ...

class UpdateQuery(_message.Message):
    __slots__ = ("step", "stage")
    STEP_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    step: int
    stage: int
    def __init__(self, step: _Optional[int] = ..., stage: _Optional[int] = ...) -> None: ...

class UpdateAnswer(_message.Message):
    __slots__ = ("sums", "m", "v")
    SUMS_FIELD_NUMBER: _ClassVar[int]
    M_FIELD_NUMBER: _ClassVar[int]
    V_FIELD_NUMBER: _ClassVar[int]
    sums: _containers.RepeatedScalarFieldContainer[bytes]
    m: bytes
    v: bytes
    def __init__(self, sums: _Optional[_Iterable[bytes]] = ..., m: _Optional[bytes] = ..., v: _Optional[bytes] = ...) -> None: ...

class Fault(_message.Message):
    __slots__ = ("kind", "seat", "step", "subject", "signatures")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SEAT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    kind: int
    seat: str
    step: int
    subject: bytes
    signatures: _containers.RepeatedCompositeFieldContainer[SeatSignature]
    def __init__(self, kind: _Optional[int] = ..., seat: _Optional[str] = ..., step: _Optional[int] = ..., subject: _Optional[bytes] = ..., signatures: _Optional[_Iterable[_Union[SeatSignature, _Mapping]]] = ...) -> None: ...

class FaultClaim(_message.Message):
    __slots__ = ("fault", "evidence")
    FAULT_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    fault: Fault
    evidence: bytes
    def __init__(self, fault: _Optional[_Union[Fault, _Mapping]] = ..., evidence: _Optional[bytes] = ...) -> None: ...

class Audited(_message.Message):
    __slots__ = ("step", "subject", "outcome")
    STEP_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    step: int
    subject: bytes
    outcome: int
    def __init__(self, step: _Optional[int] = ..., subject: _Optional[bytes] = ..., outcome: _Optional[int] = ...) -> None: ...

class Findings(_message.Message):
    __slots__ = ("step", "secrets", "audited", "faults")
    STEP_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    AUDITED_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    step: int
    secrets: _containers.RepeatedScalarFieldContainer[bytes]
    audited: _containers.RepeatedCompositeFieldContainer[Audited]
    faults: _containers.RepeatedCompositeFieldContainer[Fault]
    def __init__(self, step: _Optional[int] = ..., secrets: _Optional[_Iterable[bytes]] = ..., audited: _Optional[_Iterable[_Union[Audited, _Mapping]]] = ..., faults: _Optional[_Iterable[_Union[Fault, _Mapping]]] = ...) -> None: ...

class AcceptedSet(_message.Message):
    __slots__ = ("slot", "session", "commitments", "microbatches", "sketch")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    COMMITMENTS_FIELD_NUMBER: _ClassVar[int]
    MICROBATCHES_FIELD_NUMBER: _ClassVar[int]
    SKETCH_FIELD_NUMBER: _ClassVar[int]
    slot: int
    session: int
    commitments: _containers.RepeatedScalarFieldContainer[bytes]
    microbatches: _containers.RepeatedScalarFieldContainer[int]
    sketch: bytes
    def __init__(self, slot: _Optional[int] = ..., session: _Optional[int] = ..., commitments: _Optional[_Iterable[bytes]] = ..., microbatches: _Optional[_Iterable[int]] = ..., sketch: _Optional[bytes] = ...) -> None: ...

class SlotSession(_message.Message):
    __slots__ = ("slot", "session", "reason")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    slot: int
    session: int
    reason: str
    def __init__(self, slot: _Optional[int] = ..., session: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class SlotUnits(_message.Message):
    __slots__ = ("slot", "nonce", "units", "signature")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    slot: int
    nonce: int
    units: int
    signature: bytes
    def __init__(self, slot: _Optional[int] = ..., nonce: _Optional[int] = ..., units: _Optional[int] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("step", "round", "sets", "signature", "excluded", "quarantines", "root", "leaves", "next_secret_hash", "root_signature", "loss_sum_e6", "suspects", "confirmations", "audits", "checkpoint_baselines", "leaf_digests", "secret_hash", "findings")
    STEP_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SETS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    QUARANTINES_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    NEXT_SECRET_HASH_FIELD_NUMBER: _ClassVar[int]
    ROOT_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    LOSS_SUM_E6_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    CONFIRMATIONS_FIELD_NUMBER: _ClassVar[int]
    AUDITS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_BASELINES_FIELD_NUMBER: _ClassVar[int]
    LEAF_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    SECRET_HASH_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    step: int
    round: int
    sets: _containers.RepeatedCompositeFieldContainer[AcceptedSet]
    signature: bytes
    excluded: _containers.RepeatedCompositeFieldContainer[SlotSession]
    quarantines: _containers.RepeatedCompositeFieldContainer[Quarantine]
    root: bytes
    leaves: int
    next_secret_hash: bytes
    root_signature: bytes
    loss_sum_e6: int
    suspects: int
    confirmations: int
    audits: int
    checkpoint_baselines: str
    leaf_digests: _containers.RepeatedScalarFieldContainer[bytes]
    secret_hash: bytes
    findings: Findings
    def __init__(self, step: _Optional[int] = ..., round: _Optional[int] = ..., sets: _Optional[_Iterable[_Union[AcceptedSet, _Mapping]]] = ..., signature: _Optional[bytes] = ..., excluded: _Optional[_Iterable[_Union[SlotSession, _Mapping]]] = ..., quarantines: _Optional[_Iterable[_Union[Quarantine, _Mapping]]] = ..., root: _Optional[bytes] = ..., leaves: _Optional[int] = ..., next_secret_hash: _Optional[bytes] = ..., root_signature: _Optional[bytes] = ..., loss_sum_e6: _Optional[int] = ..., suspects: _Optional[int] = ..., confirmations: _Optional[int] = ..., audits: _Optional[int] = ..., checkpoint_baselines: _Optional[str] = ..., leaf_digests: _Optional[_Iterable[bytes]] = ..., secret_hash: _Optional[bytes] = ..., findings: _Optional[_Union[Findings, _Mapping]] = ...) -> None: ...

class Exclude(_message.Message):
    __slots__ = ("step", "slot", "claim")
    STEP_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    step: int
    slot: SlotSession
    claim: GradientSum
    def __init__(self, step: _Optional[int] = ..., slot: _Optional[_Union[SlotSession, _Mapping]] = ..., claim: _Optional[_Union[GradientSum, _Mapping]] = ...) -> None: ...

class HeldQuery(_message.Message):
    __slots__ = ("step", "commitment")
    STEP_FIELD_NUMBER: _ClassVar[int]
    COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    step: int
    commitment: bytes
    def __init__(self, step: _Optional[int] = ..., commitment: _Optional[bytes] = ...) -> None: ...

class SignedFrame(_message.Message):
    __slots__ = ("slot", "nonce", "verifier", "session", "sequence", "step", "microbatch", "direction", "input_hash", "output_hash", "weights_hash", "signature")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MICROBATCH_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    INPUT_HASH_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_HASH_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_HASH_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
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
    signature: bytes
    def __init__(self, slot: _Optional[int] = ..., nonce: _Optional[int] = ..., verifier: _Optional[str] = ..., session: _Optional[int] = ..., sequence: _Optional[int] = ..., step: _Optional[int] = ..., microbatch: _Optional[int] = ..., direction: _Optional[int] = ..., input_hash: _Optional[bytes] = ..., output_hash: _Optional[bytes] = ..., weights_hash: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class HeldAnswer(_message.Message):
    __slots__ = ("backward", "upstream", "downstream", "sketch_hash", "input", "incoming")
    BACKWARD_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_FIELD_NUMBER: _ClassVar[int]
    DOWNSTREAM_FIELD_NUMBER: _ClassVar[int]
    SKETCH_HASH_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    INCOMING_FIELD_NUMBER: _ClassVar[int]
    backward: SignedFrame
    upstream: SignedFrame
    downstream: SignedFrame
    sketch_hash: bytes
    input: bytes
    incoming: bytes
    def __init__(self, backward: _Optional[_Union[SignedFrame, _Mapping]] = ..., upstream: _Optional[_Union[SignedFrame, _Mapping]] = ..., downstream: _Optional[_Union[SignedFrame, _Mapping]] = ..., sketch_hash: _Optional[bytes] = ..., input: _Optional[bytes] = ..., incoming: _Optional[bytes] = ...) -> None: ...

class StageSum(_message.Message):
    __slots__ = ("slot", "session", "count", "accepted_set", "gradient_hash", "microbatches", "signature", "sequence")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_SET_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_HASH_FIELD_NUMBER: _ClassVar[int]
    MICROBATCHES_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    slot: int
    session: int
    count: int
    accepted_set: bytes
    gradient_hash: bytes
    microbatches: _containers.RepeatedScalarFieldContainer[int]
    signature: bytes
    sequence: int
    def __init__(self, slot: _Optional[int] = ..., session: _Optional[int] = ..., count: _Optional[int] = ..., accepted_set: _Optional[bytes] = ..., gradient_hash: _Optional[bytes] = ..., microbatches: _Optional[_Iterable[int]] = ..., signature: _Optional[bytes] = ..., sequence: _Optional[int] = ...) -> None: ...

class DriverRound(_message.Message):
    __slots__ = ("verifier", "round")
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    verifier: str
    round: int
    def __init__(self, verifier: _Optional[str] = ..., round: _Optional[int] = ...) -> None: ...

class Aggregate(_message.Message):
    __slots__ = ("step", "stage", "sums", "aggregate_hash", "old_weights", "new_weights", "old_state", "new_state", "signature", "rounds", "checkpoint_weights", "checkpoint_state")
    STEP_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    AGGREGATE_HASH_FIELD_NUMBER: _ClassVar[int]
    OLD_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    NEW_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    OLD_STATE_FIELD_NUMBER: _ClassVar[int]
    NEW_STATE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STATE_FIELD_NUMBER: _ClassVar[int]
    step: int
    stage: int
    sums: _containers.RepeatedCompositeFieldContainer[StageSum]
    aggregate_hash: bytes
    old_weights: bytes
    new_weights: bytes
    old_state: bytes
    new_state: bytes
    signature: bytes
    rounds: _containers.RepeatedCompositeFieldContainer[DriverRound]
    checkpoint_weights: str
    checkpoint_state: str
    def __init__(self, step: _Optional[int] = ..., stage: _Optional[int] = ..., sums: _Optional[_Iterable[_Union[StageSum, _Mapping]]] = ..., aggregate_hash: _Optional[bytes] = ..., old_weights: _Optional[bytes] = ..., new_weights: _Optional[bytes] = ..., old_state: _Optional[bytes] = ..., new_state: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., rounds: _Optional[_Iterable[_Union[DriverRound, _Mapping]]] = ..., checkpoint_weights: _Optional[str] = ..., checkpoint_state: _Optional[str] = ...) -> None: ...

class RecordSignature(_message.Message):
    __slots__ = ("step", "record_hash", "signature", "units", "counts", "secret")
    STEP_FIELD_NUMBER: _ClassVar[int]
    RECORD_HASH_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    step: int
    record_hash: bytes
    signature: bytes
    units: _containers.RepeatedCompositeFieldContainer[SlotUnits]
    counts: SeatCounts
    secret: bytes
    def __init__(self, step: _Optional[int] = ..., record_hash: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., units: _Optional[_Iterable[_Union[SlotUnits, _Mapping]]] = ..., counts: _Optional[_Union[SeatCounts, _Mapping]] = ..., secret: _Optional[bytes] = ...) -> None: ...

class SeatCounts(_message.Message):
    __slots__ = ("account", "driven", "recomputes", "reports", "executions", "settlements")
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    DRIVEN_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTES_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    EXECUTIONS_FIELD_NUMBER: _ClassVar[int]
    SETTLEMENTS_FIELD_NUMBER: _ClassVar[int]
    account: str
    driven: int
    recomputes: int
    reports: int
    executions: int
    settlements: int
    def __init__(self, account: _Optional[str] = ..., driven: _Optional[int] = ..., recomputes: _Optional[int] = ..., reports: _Optional[int] = ..., executions: _Optional[int] = ..., settlements: _Optional[int] = ...) -> None: ...

class CountsQuery(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Closed(_message.Message):
    __slots__ = ("transaction",)
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    transaction: str
    def __init__(self, transaction: _Optional[str] = ...) -> None: ...

class SignedRecord(_message.Message):
    __slots__ = ("step", "view", "previous", "live_seats", "driver_roots", "multisets", "aggregates", "quarantines", "checkpoint", "new_weights", "new_states", "signatures")
    STEP_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    LIVE_SEATS_FIELD_NUMBER: _ClassVar[int]
    DRIVER_ROOTS_FIELD_NUMBER: _ClassVar[int]
    MULTISETS_FIELD_NUMBER: _ClassVar[int]
    AGGREGATES_FIELD_NUMBER: _ClassVar[int]
    QUARANTINES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    NEW_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    NEW_STATES_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    step: int
    view: int
    previous: bytes
    live_seats: bytes
    driver_roots: bytes
    multisets: bytes
    aggregates: bytes
    quarantines: bytes
    checkpoint: bytes
    new_weights: _containers.RepeatedScalarFieldContainer[bytes]
    new_states: _containers.RepeatedScalarFieldContainer[bytes]
    signatures: _containers.RepeatedCompositeFieldContainer[SeatSignature]
    def __init__(self, step: _Optional[int] = ..., view: _Optional[int] = ..., previous: _Optional[bytes] = ..., live_seats: _Optional[bytes] = ..., driver_roots: _Optional[bytes] = ..., multisets: _Optional[bytes] = ..., aggregates: _Optional[bytes] = ..., quarantines: _Optional[bytes] = ..., checkpoint: _Optional[bytes] = ..., new_weights: _Optional[_Iterable[bytes]] = ..., new_states: _Optional[_Iterable[bytes]] = ..., signatures: _Optional[_Iterable[_Union[SeatSignature, _Mapping]]] = ...) -> None: ...

class SeatSignature(_message.Message):
    __slots__ = ("verifier", "signature")
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    verifier: str
    signature: bytes
    def __init__(self, verifier: _Optional[str] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Accuse(_message.Message):
    __slots__ = ("step", "slot", "nonce", "bundle", "commitment_hash", "evidence_hash", "deadline", "session")
    STEP_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    COMMITMENT_HASH_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_HASH_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    step: int
    slot: int
    nonce: int
    bundle: bytes
    commitment_hash: bytes
    evidence_hash: bytes
    deadline: int
    session: int
    def __init__(self, step: _Optional[int] = ..., slot: _Optional[int] = ..., nonce: _Optional[int] = ..., bundle: _Optional[bytes] = ..., commitment_hash: _Optional[bytes] = ..., evidence_hash: _Optional[bytes] = ..., deadline: _Optional[int] = ..., session: _Optional[int] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("commitment", "signature")
    COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    commitment: bytes
    signature: bytes
    def __init__(self, commitment: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class RevealQuery(_message.Message):
    __slots__ = ("evidence_hash",)
    EVIDENCE_HASH_FIELD_NUMBER: _ClassVar[int]
    evidence_hash: bytes
    def __init__(self, evidence_hash: _Optional[bytes] = ...) -> None: ...

class Reveal(_message.Message):
    __slots__ = ("agrees", "reason", "salt")
    AGREES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    agrees: bool
    reason: str
    salt: bytes
    def __init__(self, agrees: _Optional[bool] = ..., reason: _Optional[str] = ..., salt: _Optional[bytes] = ...) -> None: ...

class ReportQuery(_message.Message):
    __slots__ = ("evidence_hash", "signature")
    EVIDENCE_HASH_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    evidence_hash: bytes
    signature: bytes
    def __init__(self, evidence_hash: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class CanaryReveal(_message.Message):
    __slots__ = ("evidence_hash",)
    EVIDENCE_HASH_FIELD_NUMBER: _ClassVar[int]
    evidence_hash: bytes
    def __init__(self, evidence_hash: _Optional[bytes] = ...) -> None: ...

class RubberStamp(_message.Message):
    __slots__ = ("bundle", "committed", "salt")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    bundle: bytes
    committed: Committed
    salt: bytes
    def __init__(self, bundle: _Optional[bytes] = ..., committed: _Optional[_Union[Committed, _Mapping]] = ..., salt: _Optional[bytes] = ...) -> None: ...

class FalseAlarm(_message.Message):
    __slots__ = ("accuse", "signature")
    ACCUSE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    accuse: Accuse
    signature: bytes
    def __init__(self, accuse: _Optional[_Union[Accuse, _Mapping]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class ReportSignature(_message.Message):
    __slots__ = ("agrees", "reason", "signature")
    AGREES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    agrees: bool
    reason: str
    signature: bytes
    def __init__(self, agrees: _Optional[bool] = ..., reason: _Optional[str] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Quarantine(_message.Message):
    __slots__ = ("step", "slot", "nonce", "session", "commitment_hash", "evidence_hash", "deadline", "signatures", "reason", "accuser", "offence_step")
    STEP_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    COMMITMENT_HASH_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_HASH_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ACCUSER_FIELD_NUMBER: _ClassVar[int]
    OFFENCE_STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    slot: int
    nonce: int
    session: int
    commitment_hash: bytes
    evidence_hash: bytes
    deadline: int
    signatures: _containers.RepeatedCompositeFieldContainer[SeatSignature]
    reason: str
    accuser: str
    offence_step: int
    def __init__(self, step: _Optional[int] = ..., slot: _Optional[int] = ..., nonce: _Optional[int] = ..., session: _Optional[int] = ..., commitment_hash: _Optional[bytes] = ..., evidence_hash: _Optional[bytes] = ..., deadline: _Optional[int] = ..., signatures: _Optional[_Iterable[_Union[SeatSignature, _Mapping]]] = ..., reason: _Optional[str] = ..., accuser: _Optional[str] = ..., offence_step: _Optional[int] = ...) -> None: ...

class WeightsQuery(_message.Message):
    __slots__ = ("stage", "step")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    stage: int
    step: int
    def __init__(self, stage: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class WeightsAnswer(_message.Message):
    __slots__ = ("payload",)
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    def __init__(self, payload: _Optional[bytes] = ...) -> None: ...

class Claimed(_message.Message):
    __slots__ = ("account", "amount")
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    AMOUNT_FIELD_NUMBER: _ClassVar[int]
    account: str
    amount: str
    def __init__(self, account: _Optional[str] = ..., amount: _Optional[str] = ...) -> None: ...

class SettlementProposal(_message.Message):
    __slots__ = ("epoch", "step", "root", "total", "step_record_hash", "allowance", "claimed", "counts", "finish")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    STEP_RECORD_HASH_FIELD_NUMBER: _ClassVar[int]
    ALLOWANCE_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    root: bytes
    total: str
    step_record_hash: bytes
    allowance: str
    claimed: _containers.RepeatedCompositeFieldContainer[Claimed]
    counts: _containers.RepeatedCompositeFieldContainer[SeatCounts]
    finish: bool
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ..., root: _Optional[bytes] = ..., total: _Optional[str] = ..., step_record_hash: _Optional[bytes] = ..., allowance: _Optional[str] = ..., claimed: _Optional[_Iterable[_Union[Claimed, _Mapping]]] = ..., counts: _Optional[_Iterable[_Union[SeatCounts, _Mapping]]] = ..., finish: _Optional[bool] = ...) -> None: ...

class SettlementSignature(_message.Message):
    __slots__ = ("signature",)
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    signature: bytes
    def __init__(self, signature: _Optional[bytes] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message", "boot")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    boot: bytes
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., boot: _Optional[bytes] = ...) -> None: ...
