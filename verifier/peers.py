"""Seats talking to seats: signed envelopes over the same gRPC port, each answered by one message."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

import blake3
import grpc
import grpc.aio

from sentinel_market.domain.messages import SeatEnvelope
from sentinel_market.errors import PeerGone, ProtocolError
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.parts import CHANNEL_OPTIONS, TELL, Assembler, split
from verifier.context import SeatContext
from verifier.relay import SEAT_MESSAGE_BYTES

log = logging.getLogger("verifier")

REMEMBERED = 1 << 14
CLOCK_SKEW_NS = 600 * 10**9


class Peers:
    """Sends to and receives from the other seats of the job."""

    def __init__(
        self,
        context: SeatContext,
        endpoint_of: Callable[[str], str | None],
        handle: Callable[[str, pb.SeatMessage], Awaitable[pb.SeatMessage]],
    ) -> None:
        """``handle(sender account, message)`` answers; a ProtocolError becomes an Error answer."""
        self.context = context
        self._endpoint_of = endpoint_of
        self._handle = handle
        self._channels: dict[str, grpc.aio.Channel] = {}
        # Wall-clock start: a restarted seat goes on above everything that it sent before.
        self._sequence = time.time_ns()
        self._seen: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._floors: dict[str, int] = {}
        # What was sent well before this process started was meant for another one.
        self._started = self._sequence - CLOCK_SKEW_NS

    def _channel(self, account: str) -> grpc.aio.Channel:
        channel = self._channels.get(account)
        if channel is None:
            endpoint = self._endpoint_of(account)
            if endpoint is None:
                raise PeerGone(f"seat {account} has not announced where it listens")
            channel = self._channels[account] = grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
        return channel

    async def ask(self, account: str, message: pb.SeatMessage, time_limit: float = 10.0) -> pb.SeatMessage:
        """One question, one answer. Raises PeerGone, or ProtocolError with the peer's own code."""
        data = self._seal(account, message).SerializeToString()
        try:
            call = self._channel(account).stream_stream(
                TELL, request_serializer=pb.Part.SerializeToString, response_deserializer=pb.Part.FromString
            )(split(data), timeout=time_limit)
            assembler = Assembler(SEAT_MESSAGE_BYTES)
            async for part in call:
                whole = assembler.feed(part)
                if whole is not None:
                    answer = pb.SeatMessage.FromString(whole)
                    if answer.WhichOneof("kind") == "error":
                        raise ProtocolError(answer.error.code, answer.error.message)
                    return answer
        except grpc.aio.AioRpcError as error:
            raise PeerGone(f"seat {account}: {error.code().name}") from error
        raise PeerGone(f"seat {account} gave no answer")

    def _seal(self, recipient: str, message: pb.SeatMessage) -> pb.Envelope:
        context = self.context
        self._sequence += 1
        body = message.SerializeToString()
        signed = SeatEnvelope(context.job_id, context.account, recipient, self._sequence, blake3.blake3(body).digest())
        return pb.Envelope(
            job_id=context.job_id,
            sender=context.account,
            recipient=recipient,
            sequence=self._sequence,
            body=body,
            signature=context.sign(signed),
        )

    async def broadcast(self, message: pb.SeatMessage, patience: float = 6.0) -> None:
        """Tell every other seat, again and again for ``patience`` seconds. Raises PeerGone for one that is gone."""
        await asyncio.gather(*(self.insist(seat.account, message, patience) for seat in self.context.others))

    async def insist(self, account: str, message: pb.SeatMessage, patience: float = 6.0) -> pb.SeatMessage:
        until = time.monotonic() + patience
        while True:
            try:
                return await self.ask(account, message)
            except PeerGone:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.2)

    async def on_envelope(self, envelope: pb.Envelope) -> pb.SeatMessage:
        """Open, check, answer. Raises ProtocolError: job, recipient, seat, signature, replay, message."""
        context = self.context
        if envelope.job_id != context.job_id:
            raise ProtocolError("job", f"this seat serves job {context.job_id}, not {envelope.job_id}")
        if envelope.recipient != context.account:
            raise ProtocolError("recipient", f"an envelope for {envelope.recipient} came to {context.account}")
        if envelope.sender not in context.hot_keys or envelope.sender == context.account:
            raise ProtocolError("seat", f"{envelope.sender} holds no other seat of job {context.job_id}")
        signed = SeatEnvelope(
            context.job_id,
            envelope.sender,
            envelope.recipient,
            envelope.sequence,
            blake3.blake3(envelope.body).digest(),
        )
        context.check_seat(envelope.sender, signed, envelope.signature)
        key = (envelope.sender, envelope.sequence)
        if key in self._seen:
            raise ProtocolError("replay", f"envelope {envelope.sequence} of {envelope.sender} came twice")
        if envelope.sequence <= self._floors.get(envelope.sender, self._started):
            raise ProtocolError("replay", f"envelope {envelope.sequence} of {envelope.sender} is too old to be new")
        self._seen[key] = None
        if len(self._seen) > REMEMBERED:
            (sender, sequence), _ = self._seen.popitem(last=False)
            self._floors[sender] = max(sequence, self._floors.get(sender, 0))
        return await self._handle(envelope.sender, pb.SeatMessage.FromString(envelope.body))

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
