"""What travels through a driver in one step: microbatches on their way, answers tied to signatures, accepted sums.

``open_answer`` is where a worker's bytes become one of these; nothing here accuses anybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch.nn import functional

from sentinel_market.chain.eip712 import digest
from sentinel_market.chain.signing import recover
from sentinel_market.domain.ids import BACKWARD, FORWARD
from sentinel_market.domain.messages import FrameCommitment
from sentinel_market.domain.shapes import FrameShapes
from sentinel_market.errors import ProtocolError
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.commit import backward_input_hash, backward_output_hash
from sentinel_market.wire.tensors import decode, encoded_hash, tensor_hash
from verifier.check.baseline import Baseline
from verifier.check.frame import Frame
from verifier.check.tolerance import Comparison, Tolerance, compare, compare_sketch
from verifier.check.verdict import Verdict
from verifier.context import SeatContext
from verifier.evidence.history import Happened
from verifier.recompute import Recomputed
from verifier.relay import WorkerSession


@dataclass
class Held:
    """One microbatch on its way: encoded inputs and incoming gradients a stage, kept until the step is final."""

    microbatch: int
    tokens: torch.Tensor
    targets: torch.Tensor
    inputs: dict[int, bytes] = field(default_factory=dict)
    incoming: dict[int, bytes] = field(default_factory=dict)
    upstream: dict[int, Signed] = field(default_factory=dict)
    """Stage -> the accepted forward commitment that produced its input."""
    downstream: dict[int, Downstream] = field(default_factory=dict)
    """Stage -> the accepted backward commitment that produced its incoming gradient."""
    loss: float = 0.0
    _hashes: dict[tuple[str, int], tuple[bytes, bytes]] = field(default_factory=dict)
    _decoded: tuple[bytes, torch.Tensor] = (b"", torch.empty(0))

    def go_up(self, stage: int, answer: Answer) -> None:
        """The accepted output of ``stage`` is the next one's input; its hash and its tensor are known already."""
        assert answer.output is not None and answer.forward is not None
        data = answer.output_bytes
        self.inputs[stage + 1], self.upstream[stage + 1] = data, answer.forward
        self._hashes["input", stage + 1] = (data, answer.forward.message.output_hash)
        self._decoded = (data, answer.output)

    def go_down(self, stage: int, answer: Answer) -> None:
        """The accepted gradient that left ``stage`` comes into the one before."""
        assert answer.gradient is not None and answer.backward is not None and answer.sketch is not None
        data = answer.gradient_bytes
        self.incoming[stage - 1] = data
        self.downstream[stage - 1] = Downstream(answer.backward, tensor_hash(answer.sketch))
        if answer.gradient_hash:
            self._hashes["incoming", stage - 1] = (data, answer.gradient_hash)
        self._decoded = (data, answer.gradient)

    def decoded(self, data: bytes, shape: tuple[int, ...]) -> torch.Tensor:
        """An input or incoming gradient as a tensor, to read only: the one that was passed on last is kept."""
        return self._decoded[1] if self._decoded[0] is data else decode(data, shape=shape, dtype=torch.float32)

    def given(self, stage: int, operation: int, shapes: FrameShapes) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What a stage computes from: its input, and for more than a forward the incoming gradient (LOSS: targets)."""
        x = self.tokens if stage == 0 else decode(self.inputs[stage], shape=shapes.activation, dtype=torch.float32)
        if operation == pb.FORWARD:
            return x, None
        if operation == pb.LOSS:
            return x, self.targets
        return x, decode(self.incoming[stage], shape=shapes.activation, dtype=torch.float32)

    def input_hash(self, stage: int) -> bytes:
        """Of ``inputs[stage]``; made once for all answers that it is part of."""
        return self._hash("input", stage, self.inputs[stage])

    def incoming_hash(self, stage: int) -> bytes:
        """Of ``incoming[stage]``."""
        return self._hash("incoming", stage, self.incoming[stage])

    def _hash(self, kind: str, stage: int, data: bytes) -> bytes:
        known = self._hashes.get((kind, stage))
        if known is None or known[0] is not data:
            known = self._hashes[kind, stage] = (data, encoded_hash(data))
        return known[1]


@dataclass(frozen=True)
class Signed:
    """A commitment as its worker signed it."""

    message: FrameCommitment
    digest: bytes
    signature: bytes


@dataclass(frozen=True)
class Downstream:
    """A backward commitment covers H(gradient, sketch): the sketch's hash is needed to chain the gradient alone."""

    signed: Signed
    sketch_hash: bytes


@dataclass(frozen=True)
class Answer:
    """What one worker returned for one unit of work, parsed and tied to its signatures; not judged yet."""

    session: WorkerSession
    stage: int
    operation: int
    dispatch: int
    commitments: tuple[Signed, ...]
    output: torch.Tensor | None = None
    output_bytes: bytes = b""
    gradient: torch.Tensor | None = None
    gradient_bytes: bytes = b""
    sketch: torch.Tensor | None = None
    compute_micros: int = 0
    gradient_hash: bytes = b""
    """Of ``gradient_bytes``; empty where they are not the worker's own."""

    @property
    def directions(self) -> tuple[int, ...]:
        """Of its commitments."""
        return tuple(one.message.direction for one in self.commitments)

    @property
    def backward(self) -> Signed | None:
        return next((c for c in self.commitments if c.message.direction == BACKWARD), None)

    @property
    def forward(self) -> Signed | None:
        return next((c for c in self.commitments if c.message.direction == FORWARD), None)

    def against(self, reference: Answer | Recomputed, tolerance: Tolerance) -> list[tuple[Signed, Comparison]]:
        """Each claimed tensor against a replay or a recompute, with the commitment that covers it."""
        found = []
        if self.forward is not None and self.output is not None and reference.output is not None:
            found.append((self.forward, compare(self.output, reference.output, tolerance)))
        if self.backward is not None:
            if self.gradient is not None and reference.gradient is not None:
                found.append((self.backward, compare(self.gradient, reference.gradient, tolerance)))
            if self.sketch is not None and reference.sketch is not None:
                found.append((self.backward, compare_sketch(self.sketch, reference.sketch, tolerance)))
        return found


def refuted_by(found: list[tuple[Signed, Comparison]]) -> tuple[Signed, Comparison] | None:
    """The first commitment whose tensor does not agree, or None."""
    return next(((signed, one) for signed, one in found if not one.agrees), None)


def farthest(found: list[tuple[Signed, Comparison]]) -> Comparison:
    """The comparison that lies nearest to its limit, or farthest beyond."""
    return max((one for _, one in found), key=lambda one: one.error_e6 / one.limit_e6)


@dataclass(frozen=True)
class Leaf:
    """A commitment under this driver's root, and what it takes to check it again."""

    signed: Signed
    answer: Answer
    held: Held


@dataclass(frozen=True)
class Accepted:
    """One backward in a worker's sum."""

    slot: int
    session: int
    stage: int
    microbatch: int
    digest: bytes
    sketch: torch.Tensor
    signed: Signed


@dataclass(frozen=True)
class Screened:
    """What the screen said of a frame, and a copy of the baseline that it was held against."""

    verdict: Verdict
    baseline: Baseline


@dataclass(frozen=True)
class Offence:
    """A violation that this seat's own recompute confirmed, and all that proves it. ``screening``: what raised
    suspicion, in either direction (None: an audit, or a replay); ``screened``: the screen of this very frame."""

    answer: Answer
    signed: Signed
    held: Held
    recomputed: Recomputed
    comparison: Comparison
    screening: Verdict | None
    reason: str
    step: int
    screened: Screened | None = None
    history: tuple[Happened, ...] = ()
    replays: tuple[Answer, ...] = ()


@dataclass(frozen=True)
class Upheld:
    """A frame that this seat's own recompute cleared, with what an ``Offence`` would have held. ``screened``: by
    direction; the last event of ``history`` is RECOMPUTE_AGREES."""

    answer: Answer
    held: Held
    step: int
    screening: Verdict | None
    screened: Mapping[int, Screened]
    history: tuple[Happened, ...]


@dataclass
class Counters:
    """Of one step; for the live display."""

    suspects: int = 0
    confirmations: int = 0
    audits: int = 0
    recomputes: int = 0
    accidents: list[tuple[int, str]] = field(default_factory=list)


def open_answer(
    context: SeatContext, session: WorkerSession, stage: int, held: Held, task: pb.Task, result: pb.Result
) -> Answer:
    """Bytes of a stranger to an Answer. Raises ProtocolError; nothing here accuses anybody."""
    shapes = context.shapes
    if result.step != task.step or result.weights_hash != task.weights_hash:
        raise ProtocolError("weights", f"an answer for step {result.step}, asked was {task.step}")
    output = gradient = sketch = None
    output_bytes, gradient_bytes, gradient_hash = result.output, result.gradient, b""  # each access is a copy
    hashes: list[tuple[int, bytes, bytes]] = []
    input_hash = held.input_hash(stage)
    pair = b""
    if task.operation != pb.FORWARD:
        pair = backward_input_hash(input_hash, held.incoming_hash(stage))
    if task.operation != pb.BACKWARD:
        shape = shapes.activation if task.operation == pb.FORWARD else shapes.tokens
        output = decode(output_bytes, shape=shape, dtype=torch.float32)
        hashes.append((FORWARD, pair or input_hash, encoded_hash(output_bytes)))
    if task.operation != pb.FORWARD:
        sketch = decode(result.sketch, shape=(64,), dtype=torch.float32)
        if stage > 0:
            gradient = decode(gradient_bytes, shape=shapes.activation, dtype=torch.float32)
            gradient_hash = encoded_hash(gradient_bytes)
        outgoing = gradient_hash or None
        hashes.append((BACKWARD, pair, backward_output_hash(outgoing, encoded_hash(result.sketch))))
    if len(result.commitments) != len(hashes):
        raise ProtocolError("commitment", f"{len(result.commitments)} commitments, {len(hashes)} are due")
    signed = []
    for index, (given, (direction, wanted_input, wanted_output)) in enumerate(
        zip(result.commitments, hashes, strict=True)
    ):
        if given.direction != direction or given.sequence != session.sequence_of(task, index):
            raise ProtocolError("sequence", f"a commitment numbered {given.sequence} direction {given.direction}")
        if given.input_hash != wanted_input or given.output_hash != wanted_output:
            raise ProtocolError("digest", "a commitment to other tensors than those sent and received")
        message = session.key.frame(
            sequence=given.sequence,
            step=task.step,
            microbatch=task.microbatch,
            direction=direction,
            input_hash=wanted_input,
            output_hash=wanted_output,
            weights_hash=task.weights_hash,
        )
        hashed = digest(context.domain, message)
        signer = recover(hashed, given.signature)
        if signer != session.slot.hot_key:
            raise ProtocolError("signature", f"slot {session.slot.slot} belongs to {session.slot.hot_key}")
        signed.append(Signed(message, hashed, given.signature))
    return Answer(
        session,
        stage,
        task.operation,
        task.dispatch,
        tuple(signed),
        output,
        output_bytes,
        gradient,
        gradient_bytes,
        sketch,
        result.compute_micros,
        gradient_hash,
    )


def frames_of(
    context: SeatContext, answer: Answer, held: Held, step: int, embedding: torch.Tensor, head: torch.Tensor | None
) -> list[tuple[int, Frame]]:
    """(direction, frame) of everything in the answer that can be screened. ``embedding`` [V, D] (empty: not known) and
    ``head`` [V, D] (None: not known): of the step's weights."""
    stage, shapes = answer.stage, context.shapes
    frames = []
    make = partial(Frame, stage=stage, num_stages=context.num_stages, step=step, worker=answer.session.slot.slot)

    def frame(direction: int, output: torch.Tensor | None, before: torch.Tensor | None) -> None:
        frames.append((direction, make(output=output, input=before, direction=direction)))

    if answer.operation == pb.FORWARD:
        shown = functional.embedding(held.tokens, embedding) if not stage and len(embedding) else None
        if stage:
            shown = held.decoded(held.inputs[stage], shapes.activation)
        frame(FORWARD, answer.output, shown)
    elif answer.operation == pb.LOSS:
        frame(FORWARD, answer.output, None)
        if stage:
            frame(BACKWARD, answer.gradient, None if head is None else -functional.embedding(held.targets, head))
    else:
        frame(BACKWARD, answer.gradient, held.decoded(held.incoming[stage], shapes.activation))
    return frames
