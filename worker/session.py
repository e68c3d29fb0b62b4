"""One worker's side of its sessions: it dials every seat, answers tasks, and signs what it returns.

A thread a seat reads; one compute thread works through a single queue, so one backward runs at a time. Nothing
listens: a worker behind a home router needs no open port.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import torch
from google.protobuf.message import DecodeError

from sentinel_market.chain.eip712 import Domain, digest
from sentinel_market.chain.signing import HotKey, recover
from sentinel_market.domain import assignment
from sentinel_market.domain.ids import BACKWARD, FORWARD
from sentinel_market.domain.messages import SessionHello, StepRecord, WorkReceipt
from sentinel_market.domain.shapes import FrameShapes
from sentinel_market.domain.step_record import accepted_set_digest
from sentinel_market.errors import Fatal, ProtocolError
from sentinel_market.ports import SeatInfo
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.commit import SessionKey, backward_input_hash, backward_output_hash
from sentinel_market.wire.parts import CHANNEL_OPTIONS, WIRE_VERSION, WORK, Assembler, split
from sentinel_market.wire.records import check_quorum
from sentinel_market.wire.tensors import all_finite, decode, encode, encoded_hash
from worker.compute import BackwardResult, StageRunner
from worker.protection import Watermark

log = logging.getLogger("worker")

RECONNECT_SECONDS = 0.5
MAX_PARKED = 4096
MAX_MADE_AGAIN = 4
"""Sums of a part of what was summed, a seat and step: each is computed anew."""

Stream = queue.SimpleQueue[pb.ToSeat | None]
"""What is to be sent on one stream to a seat. Each has its own, so it tells streams apart too."""


@dataclass(frozen=True, kw_only=True)
class WorkerContext:
    """Everything about the job and the slot that a worker knows before it dials. All of it from the chain or the
    job's digest-checked specification."""

    job_id: int
    slot: int
    nonce: int
    key: HotKey
    domain: Domain
    seats: tuple[SeatInfo, ...]
    quorum: int
    shapes: FrameShapes
    state_dir: Path
    duplicate_patience: float = 20.0
    """Seconds to keep trying while seats say that this slot has a live session: it may be our own, not noticed dead."""


@dataclass
class _Forwarded:
    """Hash of a forward's input, kept for the hash of its backward."""

    input_hash: bytes
    microbatch: int


@dataclass
class SeatLink:
    """The connection to one seat."""

    seat: SeatInfo
    session_key: SessionKey
    watermark: Watermark
    outbox: Stream = field(default_factory=queue.SimpleQueue)
    open: bool = False
    forwards: dict[int, _Forwarded] = field(default_factory=dict)
    receipt_step: int = -1
    receipt_units: int = 0
    unpaid: list[int] = field(default_factory=list)
    """Steps that were served and are under no receipt yet, in order."""
    made_again: int = 0
    """Sums of this step that were computed anew for this seat."""

    def send(self, message: pb.ToSeat) -> None:
        self.outbox.put(message)

    def lives(self, stream: Stream) -> bool:
        """Whether this is the open stream still. What came on an older one has nobody who waits for its answer: the
        seat gave it to others, and numbers its dispatches anew."""
        return self.open and self.outbox is stream


class Worker:
    """Runs one slot until the job ends, it is told to go, or ``stop`` is called."""

    def __init__(
        self,
        context: WorkerContext,
        runner: StageRunner,
        endpoint_of: Callable[[str], str | None],
        genesis: tuple[torch.Tensor, bytes] | None,
    ) -> None:
        """``endpoint_of(account)`` says where a seat listens now (None: not known yet). ``genesis`` holds the
        weights [N] of step 0 and their hash, made from the job's seed."""
        self.context = context
        self.runner = runner
        self.endpoint_of = endpoint_of
        self.session = secrets.randbits(63) | 1
        self.reason = ""
        self.finished = False
        self._fatal: Fatal | None = None
        self._duplicate_since = 0.0
        self._inbox: queue.SimpleQueue[tuple[SeatLink, Stream, pb.ToWorker] | None] = queue.SimpleQueue()
        self._parked: list[tuple[SeatLink, Stream, pb.ToWorker]] = []
        self._stopping = threading.Event()
        self._hot_keys = {seat.account: seat.hot_key for seat in context.seats}
        self._done_links: set[str] = set()
        self._turned_away: set[str] = set()
        self._session_lock = threading.Lock()
        """Streams and keys of sessions change together: dialling threads and the compute thread do both."""
        self.links = [self._link(seat) for seat in context.seats]
        if genesis is not None:
            self.runner.load(0, *genesis)

    def _link(self, seat: SeatInfo) -> SeatLink:
        c = self.context
        name = f"{c.domain.chain_id}-{c.domain.verifying_contract}-{c.job_id}-{c.slot}-{c.nonce}-{seat.account}"
        return SeatLink(
            seat,
            SessionKey(c.job_id, c.slot, c.nonce, seat.account, self.session),
            Watermark(c.state_dir / "watermarks" / f"{name}.json"),
        )

    # ---- life

    def run(self) -> None:
        """Serve until the end. Raises Fatal with the reason where a seat turned this worker away for good."""
        threads = [threading.Thread(target=self._dial, args=(link,), daemon=True) for link in self.links]
        for thread in threads:
            thread.start()
        while (item := self._inbox.get()) is not None:
            self._handle(*item)
        for link in self.links:
            link.send(pb.ToSeat(bye=pb.Bye(reason=self.reason or "stopped")))
            link.outbox.put(None)
        for thread in threads:
            thread.join(timeout=2)
        if self._fatal is not None:
            raise self._fatal

    def stop(self, reason: str) -> None:
        """Say goodbye to every seat and leave ``run``. Safe from any thread and from a signal handler."""
        self.reason = reason
        self._stopping.set()
        self._inbox.put(None)

    # ---- dialling

    def _dial(self, link: SeatLink) -> None:
        while not self._stopping.is_set():
            endpoint = self.endpoint_of(link.seat.account)
            if endpoint is None:
                self._stopping.wait(RECONNECT_SECONDS)
                continue
            try:
                with grpc.insecure_channel(endpoint, options=CHANNEL_OPTIONS) as channel:
                    self._converse(link, channel)
            except grpc.RpcError as error:
                log.info("seat %s at %s: %s", link.seat.account, endpoint, _grpc_reason(error))
            except ProtocolError as error:
                log.warning("seat %s at %s: %s", link.seat.account, endpoint, error)
            link.open = False
            if self._done_links:
                self._inbox.put(
                    (link, link.outbox, pb.ToWorker())
                )  # the compute thread looks whether that was the last one
            self._stopping.wait(RECONNECT_SECONDS)

    def _converse(self, link: SeatLink, channel: grpc.Channel) -> None:
        with self._session_lock:
            stream: Stream = queue.SimpleQueue()
            link.outbox, key = stream, link.session_key
        link.forwards.clear()
        call = channel.stream_stream(
            WORK, request_serializer=pb.Part.SerializeToString, response_deserializer=pb.Part.FromString
        )(_parts_of(stream))
        try:
            incoming = _messages(call, self.context.shapes.max_message_bytes)
            self._shake_hands(link, key, incoming)
            for message in incoming:
                self._inbox.put((link, stream, message))
                if self._stopping.is_set():
                    return
        finally:
            stream.put(None)
            call.cancel()

    def _shake_hands(self, link: SeatLink, key: SessionKey, incoming: Iterator[pb.ToWorker]) -> None:
        c = self.context
        nonce = secrets.token_bytes(32)
        hello = pb.Hello(
            version=WIRE_VERSION,
            job_id=c.job_id,
            slot=c.slot,
            nonce=c.nonce,
            worker_nonce=nonce,
            session=key.session,
            next_sequence=link.watermark.next_sequence,
        )
        link.send(pb.ToSeat(hello=hello))
        challenge = self._expect(link, incoming, "challenge").challenge
        if len(challenge.verifier_nonce) != 32:
            raise ProtocolError("hello", "a seat's nonce has 32 bytes")
        signed = digest(
            c.domain,
            SessionHello(
                c.job_id,
                c.slot,
                c.nonce,
                link.seat.account,
                nonce,
                challenge.verifier_nonce,
                key.session,
                hello.next_sequence,
            ),
        )
        signer = recover(signed, challenge.signature)
        if signer != link.seat.hot_key:
            raise ProtocolError("signature", f"{signer} answered, but seat {link.seat.account} is {link.seat.hot_key}")
        link.send(pb.ToSeat(proof=pb.HelloProof(signature=c.key.sign(signed))))
        self._expect(link, incoming, "welcome")
        with self._session_lock:
            if link.session_key is not key:
                raise ProtocolError("session", "this worker began a new session meanwhile")
            link.open = True
        self._duplicate_since = 0.0
        log.info("session open with seat %s", link.seat.account)
        if self.runner.step >= 0:
            link.send(self._ready())

    def _expect(self, link: SeatLink, incoming: Iterator[pb.ToWorker], kind: str) -> pb.ToWorker:
        for message in incoming:
            if message.WhichOneof("kind") == "goodbye":
                self._inbox.put((link, link.outbox, message))
                raise ProtocolError(message.goodbye.code, message.goodbye.message)
            if message.WhichOneof("kind") != kind:
                raise ProtocolError("hello", f"expected a {kind}, got a {message.WhichOneof('kind')}")
            return message
        raise ProtocolError("hello", f"the seat hung up before its {kind}")

    def _ready(self) -> pb.ToSeat:
        return pb.ToSeat(ready=pb.Ready(step=self.runner.step, weights_hash=self.runner.weights_hash))

    # ---- the compute thread

    def _handle(self, link: SeatLink, stream: Stream, message: pb.ToWorker) -> None:
        kind = message.WhichOneof("kind")
        try:
            if kind == "task":
                self._task(link, stream, message)
            elif kind == "sum":
                self._sum(link, stream, message)
            elif kind == "weights":
                self._weights(message.weights)
            elif kind == "receipt":
                self._receipt(link, message.receipt)
            elif kind == "goodbye":
                self._goodbye(link, message.goodbye)
            self._finish_if_done()
        except (ProtocolError, ValueError) as broken:
            error = broken if isinstance(broken, ProtocolError) else ProtocolError("message", str(broken)[:200])
            log.warning("refused a %s of seat %s: %s", kind, link.seat.account, error)
            dispatch = message.task.dispatch if kind == "task" else 0
            step = message.task.step if kind == "task" else message.sum.step if kind == "sum" else 0
            round_ = message.sum.round if kind == "sum" else 0
            refusal = pb.Refusal(dispatch=dispatch, step=step, round=round_, code=error.code, message=str(error))
            self._answer(link, stream, pb.ToSeat(refusal=refusal))

    def _answer(self, link: SeatLink, stream: Stream, message: pb.ToSeat) -> None:
        if link.lives(stream):
            link.send(message)

    def _park(self, link: SeatLink, stream: Stream, message: pb.ToWorker) -> None:
        self._parked = [item for item in self._parked if item[0].lives(item[1])]
        if sum(parked is link for parked, _, _ in self._parked) >= MAX_PARKED:
            raise ProtocolError("step", f"{MAX_PARKED} tasks of this seat wait for weights already")
        self._parked.append((link, stream, message))

    def _task(self, link: SeatLink, stream: Stream, message: pb.ToWorker) -> None:
        task = message.task
        if task.HasField("receipt"):
            self._receipt(link, task.receipt)
            task.ClearField("receipt")
        if not link.lives(stream):
            return
        if task.step > self.runner.step:
            self._park(link, stream, message)
            return
        if task.step < self.runner.step or task.weights_hash != self.runner.weights_hash:
            raise ProtocolError("weights", f"a task for step {task.step}; this worker is at {self.runner.step}")
        if link.unpaid and task.step > link.unpaid[0] + 1:
            raise ProtocolError("receipt", f"no receipt for step {link.unpaid[0]}; this seat is not served without")
        began = time.thread_time()
        link.watermark.admit(task.sequence, 2 if task.operation == pb.LOSS else 1)
        result = pb.Result(dispatch=task.dispatch, step=task.step, weights_hash=self.runner.weights_hash)
        overhead = 0.0
        try:
            if task.operation == pb.FORWARD:
                overhead = self._forward(link, task, result)
            elif task.operation == pb.BACKWARD:
                overhead = self._backward(link, task, result)
            elif task.operation == pb.LOSS:
                overhead = self._loss(link, task, result)
            else:
                raise ProtocolError("operation", f"unknown operation {task.operation}")
        except (RuntimeError, MemoryError, IndexError, ValueError) as error:
            raise ProtocolError("compute", f"{type(error).__name__}: {str(error)[:200]}") from error
        if not link.unpaid or link.unpaid[-1] != task.step:
            link.unpaid.append(task.step)
        result.compute_micros = int((time.thread_time() - began) * 1e6)
        result.overhead_micros = int(overhead * 1e6)
        result.process_micros = int(time.process_time() * 1e6)
        self._answer(link, stream, pb.ToSeat(result=result))

    def _input(self, task: pb.Task) -> torch.Tensor:
        shapes = self.context.shapes
        if self.runner.is_first:
            return decode(task.input, shape=shapes.tokens, dtype=torch.int64)
        return _finite(decode(task.input, shape=shapes.activation, dtype=torch.float32))

    def _forward(self, link: SeatLink, task: pb.Task, result: pb.Result) -> float:
        if self.runner.is_last:
            raise ProtocolError("operation", "the last stage answers LOSS tasks, not FORWARD")
        output = self.runner.forward((link.seat.account, task.dispatch), task.microbatch, self._input(task))
        began = time.thread_time()
        input_hash = encoded_hash(task.input)
        payload = encode(output)
        result.output = payload
        link.forwards[task.dispatch] = _Forwarded(input_hash, task.microbatch)
        self._commit(link, task, result, task.sequence, FORWARD, input_hash, encoded_hash(payload))
        return time.thread_time() - began

    def _backward(self, link: SeatLink, task: pb.Task, result: pb.Result) -> float:
        shapes = self.context.shapes
        forward = link.forwards.pop(task.forward, None)
        if forward is None or forward.microbatch != task.microbatch:
            raise ProtocolError("dispatch", f"dispatch {task.forward} is no forward of microbatch {task.microbatch}")
        incoming = _finite(decode(task.incoming, shape=shapes.activation, dtype=torch.float32))
        done = self.runner.backward((link.seat.account, task.forward), incoming)
        began = time.thread_time()
        input_hash = backward_input_hash(forward.input_hash, encoded_hash(task.incoming))
        self._put_backward(link, task, result, task.sequence, input_hash, done)
        return time.thread_time() - began

    def _loss(self, link: SeatLink, task: pb.Task, result: pb.Result) -> float:
        if not self.runner.is_last:
            raise ProtocolError("operation", "only the last stage answers LOSS tasks")
        targets = decode(task.incoming, shape=self.context.shapes.tokens, dtype=torch.int64)
        losses, done = self.runner.loss(task.microbatch, self._input(task), targets)
        began = time.thread_time()
        result.output = encode(losses)
        input_hash = backward_input_hash(encoded_hash(task.input), encoded_hash(task.incoming))
        self._commit(link, task, result, task.sequence, FORWARD, input_hash, encoded_hash(result.output))
        self._put_backward(link, task, result, task.sequence + 1, input_hash, done)
        return time.thread_time() - began

    def _put_backward(
        self,
        link: SeatLink,
        task: pb.Task,
        result: pb.Result,
        sequence: int,
        input_hash: bytes,
        done: BackwardResult,
    ) -> None:
        outgoing = None
        if done.gradient is not None:
            payload = encode(done.gradient)
            result.gradient, outgoing = payload, encoded_hash(payload)
        result.sketch = encode(done.sketch)
        output_hash = backward_output_hash(outgoing, encoded_hash(result.sketch))
        hashed = self._commit(link, task, result, sequence, BACKWARD, input_hash, output_hash)
        self.runner.summed[hashed] = done.summed

    def _commit(
        self,
        link: SeatLink,
        task: pb.Task,
        result: pb.Result,
        sequence: int,
        direction: int,
        input_hash: bytes,
        output_hash: bytes,
    ) -> bytes:
        message = link.session_key.frame(
            sequence=sequence,
            step=task.step,
            microbatch=task.microbatch,
            direction=direction,
            input_hash=input_hash,
            output_hash=output_hash,
            weights_hash=self.runner.weights_hash,
        )
        hashed = digest(self.context.domain, message)
        result.commitments.append(
            pb.Commitment(
                sequence=sequence,
                direction=direction,
                input_hash=input_hash,
                output_hash=output_hash,
                signature=self.context.key.sign(hashed),
            )
        )
        return hashed

    def _sum(self, link: SeatLink, stream: Stream, message: pb.ToWorker) -> None:
        request = message.sum
        if not link.lives(stream):
            return
        if request.step > self.runner.step:
            self._park(link, stream, message)
            return
        if request.step < self.runner.step:
            raise ProtocolError("step", f"a sum of step {request.step}; this worker is at {self.runner.step}")
        named = list(request.commitments)
        once = set(named)
        missing = [c for c in named if c not in self.runner.summed]
        extra = [c for c in self.runner.summed if c not in once]
        dear = bool(extra) and link.made_again >= MAX_MADE_AGAIN
        if missing or dear or not named or len(once) != len(named):
            refusal = pb.Refusal(
                step=request.step,
                round=request.round,
                code="set",
                message=f"{len(missing)} of {len(named)} named microbatches are not in this sum, {len(extra)} more are",
                missing=missing,
                extra=extra,
            )
            self._answer(link, stream, pb.ToSeat(refusal=refusal))
            return
        link.watermark.admit(request.sequence)
        link.made_again += bool(extra)
        payload = encode(self.runner.gradient_of(named) if extra else self.runner.gradient())
        accepted, gradient_hash = accepted_set_digest(named), encoded_hash(payload)
        message_ = link.session_key.gradient(
            sequence=request.sequence,
            step=request.step,
            accepted_set=accepted,
            count=len(named),
            gradient_hash=gradient_hash,
            weights_hash=self.runner.weights_hash,
        )
        gradient = pb.GradientSum(
            step=request.step,
            round=request.round,
            sequence=request.sequence,
            count=len(named),
            accepted_set=accepted,
            gradient_hash=gradient_hash,
            weights_hash=self.runner.weights_hash,
            signature=self.context.key.sign(digest(self.context.domain, message_)),
            gradient=payload,
        )
        self._answer(link, stream, pb.ToSeat(gradient=gradient))

    def _weights(self, weights: pb.Weights) -> None:
        if weights.step <= self.runner.step:
            return
        signed = weights.record
        joining = weights.step != self.runner.step + 1 or self.runner.step < 0
        record = check_quorum(self.context.job_id, signed, self._signer_of, self._hot_keys, self.context.quorum)
        if record.step + 1 != weights.step or len(signed.new_weights) <= self.runner.stage:
            raise ProtocolError("record", f"weights for step {weights.step} with the record of step {record.step}")
        hashed = encoded_hash(weights.payload)
        if hashed != signed.new_weights[self.runner.stage]:
            raise ProtocolError("weights", "these are not the weights that the seats signed")
        flat = decode(weights.payload, shape=self.runner.module.flat.shape, dtype=torch.float32)
        self.runner.load(weights.step, flat, hashed)
        for other in self.links:
            other.forwards.clear()
            other.made_again = 0
            if joining and other.open:
                other.send(self._ready())
        parked, self._parked = self._parked, []
        for item in parked:
            self._handle(*item)

    def _signer_of(self, record: StepRecord, signature: bytes) -> str:
        return recover(digest(self.context.domain, record), signature)

    def _receipt(self, link: SeatLink, receipt: pb.Receipt) -> None:
        c = self.context
        message = WorkReceipt(c.job_id, c.slot, c.nonce, link.seat.account, receipt.step, receipt.units)
        if recover(digest(c.domain, message), receipt.signature) != link.seat.hot_key:
            raise ProtocolError("receipt", f"the receipt for step {receipt.step} is not signed by this seat")
        if receipt.step <= link.receipt_step:
            return
        if receipt.units < link.receipt_units:
            raise ProtocolError("receipt", f"{receipt.units} units, {link.receipt_units} were acknowledged already")
        link.receipt_step, link.receipt_units = receipt.step, receipt.units
        link.unpaid = [step for step in link.unpaid if step > receipt.step]
        path = c.state_dir / "receipts" / f"{c.job_id}-{c.slot}-{c.nonce}-{link.seat.account}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".new")
        temporary.write_text(
            json.dumps({"step": receipt.step, "units": receipt.units, "signature": receipt.signature.hex()})
        )
        temporary.replace(path)

    def _goodbye(self, link: SeatLink, goodbye: pb.Goodbye) -> None:
        log.info("seat %s says goodbye: %s %s", link.seat.account, goodbye.code, goodbye.message)
        if goodbye.code == "duplicate" and not any(other.open for other in self.links):
            self._duplicate_since = self._duplicate_since or time.monotonic()
            if time.monotonic() - self._duplicate_since > self.context.duplicate_patience:
                self._fatal = Fatal(f"{goodbye.code}: {goodbye.message}. Stop the other process, then start this one")
                self.stop(goodbye.code)
        if goodbye.dropped == self.session and self._is_primary(link.seat):
            self._begin_anew()
        if goodbye.retry:
            return
        if goodbye.code == "finished":
            self._done_links.add(link.seat.account)
        elif goodbye.code != "notice":
            # What one seat says binds that seat only: it might be hostile. q of them end the work.
            self._turned_away.add(link.seat.account)
            if len(self._turned_away) >= self.context.quorum:
                self._fatal = Fatal(f"{goodbye.code}: {goodbye.message}")
                self.stop(goodbye.code)

    def _is_primary(self, seat: SeatInfo) -> bool:
        live = [one.index for one in self.context.seats]
        return seat.index == assignment.primary_of(self.runner.stage, live)

    def _begin_anew(self) -> None:
        """The sum of this step is dropped, so all of it: a new session with every seat, with nothing summed."""
        self.runner.drop_sum()
        with self._session_lock:
            self.session = secrets.randbits(63) | 1
            for link in self.links:
                link.session_key = replace(link.session_key, session=self.session)
                link.open, link.made_again = False, 0
                link.outbox.put(None)

    def _finish_if_done(self) -> None:
        """Every seat hands over its last receipt; wait for all of them, or for those that still live."""
        if self.finished or not self._done_links:
            return
        if self._done_links | self._turned_away >= {other.seat.account for other in self.links if other.open}:
            self.finished = True
            self.stop("finished")


def _parts_of(outbox: Stream) -> Iterator[pb.Part]:
    while (message := outbox.get()) is not None:
        yield from split(message.SerializeToString())


def _messages(call: Iterator[pb.Part], limit: int) -> Iterator[pb.ToWorker]:
    assembler = Assembler(limit)
    for part in call:
        data = assembler.feed(part)
        if data is not None:
            try:
                yield pb.ToWorker.FromString(data)
            except DecodeError as error:
                raise ProtocolError("message", "not a message of this protocol") from error


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    """No honest seat passes on NaN or Inf; in the sum it would cost a whole step's work."""
    if not all_finite(tensor):
        raise ProtocolError("nonfinite", "the task holds NaN or Inf")
    return tensor


def _grpc_reason(error: grpc.RpcError) -> str:
    with contextlib.suppress(AttributeError):
        return f"{error.code().name}: {error.details()}"
    return type(error).__name__
