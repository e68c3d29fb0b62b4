"""The gRPC server of a seat: sessions with workers, and the door for the other seats.

A stranger reaches this code first: every message is bounded in size, parsed, and tied to a slot by two signatures
before anything else looks at it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from sentinel_market.chain.eip712 import digest
from sentinel_market.chain.signing import recover
from sentinel_market.domain.messages import SessionHello
from sentinel_market.errors import PeerGone, ProtocolError, SentinelError
from sentinel_market.ports import SlotInfo
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.commit import SessionKey
from sentinel_market.wire.parts import CHANNEL_OPTIONS, SERVICE, WIRE_VERSION, Assembler, split
from verifier.context import SeatContext

log = logging.getLogger("verifier")

HANDSHAKE_SECONDS = 10.0
HANDSHAKE_BYTES = 16 << 10
CONNECTION_STREAMS = 128
"""A worker needs one, a seat as many as the door lets in; gRPC holds some MiB for each."""
GOODBYE_SECONDS = 2.0
MAX_SEQUENCE = 1 << 63
"""No honest worker comes near it; above, the numbers of a session could leave their 64 bits."""


class WorkerSession:
    """One open session with one worker. Created by the handshake, closed with its stream."""

    def __init__(self, context: SeatContext, slot: SlotInfo, session: int, next_sequence: int) -> None:
        self.context = context
        self.slot = slot
        self.session = session
        self.key = SessionKey(context.job_id, slot.slot, slot.nonce, context.account, session)
        self.stage = context.stage_of(slot.slot)
        self.ready: tuple[int, bytes] | None = None
        """(step, weights hash) as last announced; a worker that follows the weights stream need not repeat it."""
        self.fresh: Callable[[int], bool] = lambda _step: True
        """Whether a worker that is ready for this step can still follow the run."""
        self.closed = False
        self.suspended_until = 0.0
        self._silent_since: float | None = None
        self.in_flight = 0
        self.service_seconds = 0.05
        self.process_micros = 0
        self.overhead_micros = 0
        self._next_sequence = next_sequence
        self._next_dispatch = 1
        self._outbox: asyncio.Queue[pb.ToWorker | None] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[pb.Result]] = {}
        self._sums: dict[tuple[int, int], asyncio.Future[pb.GradientSum]] = {}

    @property
    def id(self) -> tuple[int, int]:
        return (self.slot.slot, self.session)

    @property
    def silent_seconds(self) -> float:
        """Since it was given the first task that it has not answered in time, and has said nothing at all; 0: none."""
        return 0.0 if self._silent_since is None else time.monotonic() - self._silent_since

    def send(self, message: pb.ToWorker) -> None:
        if not self.closed:
            self._outbox.put_nowait(message)

    def next_dispatch(self) -> int:
        self._next_dispatch += 1
        return self._next_dispatch

    async def task(self, task: pb.Task, time_limit: float) -> pb.Result:
        """Number, send, await. Raises PeerGone (disconnect, time-out) or ProtocolError (the worker refused)."""
        if self.closed:
            raise PeerGone(f"slot {self.slot.slot} is not connected")
        if not task.dispatch:
            task.dispatch = self.next_dispatch()
        task.sequence = self._next_sequence
        self._next_sequence += 2 if task.operation == pb.LOSS else 1
        future: asyncio.Future[pb.Result] = asyncio.get_running_loop().create_future()
        self._waiting[task.dispatch] = future
        self.in_flight += 1
        began = time.monotonic()
        try:
            self.send(pb.ToWorker(task=task))
            result = await asyncio.wait_for(future, time_limit)
        except TimeoutError:
            # Not a fault of anybody that a stake could pay for; but others are asked first until it says Ready again.
            self.suspended_until = time.monotonic() + 5 * time_limit
            self._silent_since = began if self._silent_since is None else self._silent_since
            raise PeerGone(f"slot {self.slot.slot} did not answer within {time_limit:g} s") from None
        finally:
            self.in_flight -= 1
            self._waiting.pop(task.dispatch, None)
        self.service_seconds += 0.1 * (time.monotonic() - began - self.service_seconds)
        self.process_micros = result.process_micros
        self.overhead_micros += result.overhead_micros
        return result

    def sequence_of(self, task: pb.Task, index: int) -> int:
        return task.sequence + index

    async def gradient(self, request: pb.SumRequest, time_limit: float) -> pb.GradientSum:
        """Ask for the stage gradient of exactly this set. Raises PeerGone or ProtocolError("set", ...)."""
        if self.closed:
            raise PeerGone(f"slot {self.slot.slot} is not connected")
        request.sequence = self._next_sequence
        self._next_sequence += 1
        future: asyncio.Future[pb.GradientSum] = asyncio.get_running_loop().create_future()
        key = (request.step, request.round)
        self._sums[key] = future
        try:
            self.send(pb.ToWorker(sum=request))
            return await asyncio.wait_for(future, time_limit)
        except TimeoutError:
            raise PeerGone(f"slot {self.slot.slot} sent no stage gradient within {time_limit:g} s") from None
        finally:
            self._sums.pop(key, None)

    def on_message(self, message: pb.ToSeat) -> None:
        """From the stream. Raises ProtocolError for what no worker may send now."""
        self._silent_since = None
        kind = message.WhichOneof("kind")
        if kind == "result":
            self._resolve(self._waiting.get(message.result.dispatch), message.result)
        elif kind == "gradient":
            self._resolve(self._sums.get((message.gradient.step, message.gradient.round)), message.gradient)
        elif kind == "refusal":
            self._refused(message.refusal)
        elif kind == "ready":
            if self.fresh(message.ready.step):
                self.ready = (message.ready.step, message.ready.weights_hash)
                self.suspended_until = 0.0
        elif kind != "bye":
            raise ProtocolError("message", f"an open session takes no {kind}")

    def _resolve(self, future: asyncio.Future[Any] | None, value: Any) -> None:
        # An answer that nobody waits for any more (after a time-out) is dropped: its commitment was never accepted.
        if future is not None and not future.done():
            future.set_result(value)

    def _refused(self, refusal: pb.Refusal) -> None:
        future: asyncio.Future[Any] | None = self._waiting.get(refusal.dispatch)
        if refusal.dispatch == 0:
            future = self._sums.get((refusal.step, refusal.round))
        error = ProtocolError(refusal.code or "refused", refusal.message[:300])
        if future is not None and not future.done():
            future.set_exception(error)
        else:
            log.info("slot %d: %s", self.slot.slot, error)

    async def pump(self, write: Callable[[pb.Part], Awaitable[None]]) -> None:
        while (message := await self._outbox.get()) is not None:
            for part in split(message.SerializeToString()):
                await write(part)

    def close(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = True
        self._outbox.put_nowait(None)
        futures: list[asyncio.Future[Any]] = [*self._waiting.values(), *self._sums.values()]
        for future in futures:
            if not future.done():
                future.set_exception(PeerGone(f"slot {self.slot.slot}: {reason}"))

    def part(self, code: str, message: str, *, retry: bool = False, dropped: bool = False) -> None:
        """Say goodbye and let the stream end. ``dropped``: so is this session's sum of the step."""
        goodbye = pb.Goodbye(code=code, message=message, retry=retry, dropped=self.session if dropped else 0)
        self.send(pb.ToWorker(goodbye=goodbye))
        self._outbox.put_nowait(None)


class Relay:
    """Listens; keeps at most one live session a slot; hands the streams of other seats to ``hear_seat``."""

    def __init__(
        self,
        context: SeatContext,
        hear_seat: Callable[[AsyncIterator[pb.Part]], Awaitable[pb.SeatMessage]],
        on_session: Callable[[WorkerSession], None],
        slot_of: Callable[[int, int], Awaitable[SlotInfo | None]],
        turned_away: Callable[[int, int], str | None],
    ) -> None:
        """``slot_of(slot, nonce)``: its present holder as the chain says. ``turned_away(slot, nonce)``: why this holder
        gets no session, or None."""
        self.context = context
        self.sessions: dict[int, WorkerSession] = {}
        self._hear_seat = hear_seat
        self._on_session = on_session
        self._slot_of = slot_of
        self._turned_away = turned_away
        self._server: grpc.aio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Bind (port 0: any free one) and serve; returns the port. Raises OSError when the port is in use."""
        server = grpc.aio.server(options=(*CHANNEL_OPTIONS, ("grpc.max_concurrent_streams", CONNECTION_STREAMS)))
        handlers = {
            "Work": grpc.stream_stream_rpc_method_handler(
                self._work, request_deserializer=pb.Part.FromString, response_serializer=pb.Part.SerializeToString
            ),
            "Tell": grpc.stream_stream_rpc_method_handler(
                self._tell, request_deserializer=pb.Part.FromString, response_serializer=pb.Part.SerializeToString
            ),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            bound = server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise OSError(f"port {port} on {host} cannot be bound: {error}") from error
        if bound == 0:
            raise OSError(f"port {port} on {host} is in use")
        await server.start()
        self._server = server
        return int(bound)

    async def stop(self) -> None:
        for session in list(self.sessions.values()):
            session.close("the seat stops")
        if self._server is not None:
            await self._server.stop(grace=1.0)

    # ---- workers

    async def _work(self, requests: AsyncIterator[pb.Part], rpc: grpc.aio.ServicerContext[Any, Any]) -> None:
        assembler = Assembler(HANDSHAKE_BYTES)
        messages = _parsed(requests, assembler)

        async def write(message: pb.ToWorker) -> None:
            for part in split(message.SerializeToString()):
                await rpc.write(part)

        try:
            session = await asyncio.wait_for(self._handshake(messages, write), HANDSHAKE_SECONDS)
        except (SentinelError, TimeoutError) as error:
            code = "timeout" if isinstance(error, TimeoutError) else getattr(error, "code", "unavailable")
            log.info("turned a worker away: %s", error or "no handshake in time")
            retry = code in {"duplicate", "unclaimed", "timeout", "unavailable"}
            await write(pb.ToWorker(goodbye=pb.Goodbye(code=code, message=str(error), retry=retry)))
            return
        assembler.limit = self.context.shapes.max_message_bytes
        pump = asyncio.create_task(session.pump(rpc.write))
        reader = asyncio.create_task(self._read(session, messages))
        reason = "disconnected"
        try:
            # The pump ends when somebody said goodbye to the worker, the reader when the worker left.
            await asyncio.wait({pump, reader}, return_when=asyncio.FIRST_COMPLETED)
            if reader.done() and not reader.cancelled() and reader.exception() is not None:
                reason = str(reader.exception())
                await asyncio.wait({pump}, timeout=GOODBYE_SECONDS)  # the goodbye that says why
        finally:
            session.close(reason)
            if self.sessions.get(session.slot.slot) is session:
                del self.sessions[session.slot.slot]
            for job in (reader, pump):
                job.cancel()
            await asyncio.gather(reader, pump, return_exceptions=True)
            log.info("slot %d: session closed (%s)", session.slot.slot, reason)

    async def _read(self, session: WorkerSession, messages: AsyncIterator[pb.ToSeat]) -> None:
        try:
            async for message in messages:
                session.on_message(message)
        except ProtocolError as error:
            session.part(error.code, str(error))
            raise

    async def _handshake(
        self, messages: AsyncIterator[pb.ToSeat], write: Callable[[pb.ToWorker], Awaitable[None]]
    ) -> WorkerSession:
        context = self.context
        hello = (await _expect(messages, "hello")).hello
        if hello.version != WIRE_VERSION:
            raise ProtocolError("version", f"this seat speaks wire version {WIRE_VERSION}, not {hello.version}")
        if hello.job_id != context.job_id:
            raise ProtocolError("job", f"this seat serves job {context.job_id}, not {hello.job_id}")
        slot = await self._slot_of(hello.slot, hello.nonce)
        if slot is None:
            raise ProtocolError("slot", f"job {context.job_id} has no slot {hello.slot}")
        if int(slot.hot_key, 16) == 0 or slot.nonce != hello.nonce:
            raise ProtocolError(
                "unclaimed", f"slot {hello.slot} nonce {hello.nonce} is not claimed (the chain says {slot.nonce})"
            )
        reason = self._turned_away(slot.slot, slot.nonce)
        if reason is not None:
            raise ProtocolError("quarantined", reason)
        if len(hello.worker_nonce) != 32 or hello.session == 0:
            raise ProtocolError("hello", "a hello carries 32 random bytes and a session id")
        if hello.next_sequence >= MAX_SEQUENCE:
            raise ProtocolError("hello", f"{hello.next_sequence} leaves no room for sequences")
        verifier_nonce = secrets.token_bytes(32)
        signed = digest(
            context.domain,
            SessionHello(
                context.job_id,
                slot.slot,
                slot.nonce,
                context.account,
                hello.worker_nonce,
                verifier_nonce,
                hello.session,
                hello.next_sequence,
            ),
        )
        challenge = pb.Challenge(verifier_nonce=verifier_nonce, signature=context.key.sign(signed))
        await write(pb.ToWorker(challenge=challenge))
        proof = (await _expect(messages, "proof")).proof
        signer = recover(signed, proof.signature)
        if signer != slot.hot_key:
            raise ProtocolError("signature", f"slot {slot.slot} belongs to {slot.hot_key}, {signer} signed the hello")
        incumbent = self.sessions.get(slot.slot)
        if incumbent is not None and not incumbent.closed:
            note = f"a second process holds the key of slot {slot.slot}; it was refused"
            incumbent.send(pb.ToWorker(goodbye=pb.Goodbye(code="notice", message=note, retry=False)))
            raise ProtocolError(
                "duplicate", f"slot {slot.slot} has a live session already; one process a key (neither is slashed)"
            )
        session = WorkerSession(context, slot, hello.session, hello.next_sequence)
        self.sessions[slot.slot] = session
        session.send(pb.ToWorker(welcome=pb.Welcome()))
        self._on_session(session)
        return session

    # ---- seats

    async def _tell(self, requests: AsyncIterator[pb.Part], rpc: grpc.aio.ServicerContext[Any, Any]) -> None:
        answer = await self._hear_seat(requests)
        for part in split(answer.SerializeToString()):
            await rpc.write(part)


async def _parsed(requests: AsyncIterator[pb.Part], assembler: Assembler) -> AsyncIterator[pb.ToSeat]:
    async for part in requests:
        data = assembler.feed(part)
        if data is not None:
            try:
                yield pb.ToSeat.FromString(data)
            except DecodeError as error:
                raise ProtocolError("message", "not a message of this protocol") from error


async def _expect(messages: AsyncIterator[pb.ToSeat], kind: str) -> pb.ToSeat:
    with contextlib.suppress(StopAsyncIteration):
        message = await anext(messages)
        if message.WhichOneof("kind") != kind:
            raise ProtocolError("hello", f"expected a {kind}, got a {message.WhichOneof('kind')}")
        return message
    raise ProtocolError("hello", f"the worker hung up before its {kind}")
