"""Talking to other seats: signed envelopes over their gRPC port, each answered by one message."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from itertools import chain

import blake3
import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from sentinel_market.domain.messages import SeatEnvelope
from sentinel_market.errors import PeerGone, ProtocolError
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.parts import CHANNEL_OPTIONS, TELL, Assembler, split
from verifier.context import SeatContext
from verifier.sizes import answer_bytes, number_of

log = logging.getLogger("verifier")

UNKNOWN_BOOT = bytes(32)
BUSY_SECONDS = 0.2


class Peers:
    """Sends to the other seats of the job; ``verifier.door`` receives."""

    def __init__(self, context: SeatContext, endpoint_of: Callable[[str], str | None]) -> None:
        """``endpoint_of(account)``: where a seat listens, or None."""
        self.context = context
        self._endpoint_of = endpoint_of
        self._channels: dict[str, grpc.aio.Channel] = {}
        # Wall-clock start: a restarted seat goes on above everything that it sent before.
        self._sequence = time.time_ns()
        self._boots: dict[str, bytes] = {}
        """account -> the process of that seat that answered last"""

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
        until = time.monotonic() + time_limit
        met = False
        while True:
            boot = self._boots.get(account, UNKNOWN_BOOT)
            answer = await self._call(account, message, boot, until - time.monotonic())
            if answer.WhichOneof("kind") != "error":
                return answer
            code, text = answer.error.code, answer.error.message
            if code == "boot" and not met and len(answer.error.boot) == len(UNKNOWN_BOOT):
                # Who made it up would only get something signed that no other process takes.
                if boot != UNKNOWN_BOOT:
                    log.info("seat %s has started anew", account)
                self._boots[account], met = answer.error.boot, True
            elif code == "busy" and time.monotonic() + BUSY_SECONDS < until:
                await asyncio.sleep(BUSY_SECONDS)
            elif code in {"boot", "busy"}:
                raise PeerGone(f"seat {account}: {code}: {text}")
            else:
                raise ProtocolError(code, text)

    async def _call(self, account: str, message: pb.SeatMessage, boot: bytes, time_limit: float) -> pb.SeatMessage:
        body = message.SerializeToString()
        announced = pb.Part(data=self._announce(account, message, body, boot).SerializeToString())
        try:
            call = self._channel(account).stream_stream(
                TELL, request_serializer=pb.Part.SerializeToString, response_deserializer=pb.Part.FromString
            )(chain([announced], split(body)), timeout=max(time_limit, 0.0))
            assembler = Assembler(answer_bytes(self.context, message.WhichOneof("kind")))
            async for part in call:
                whole = assembler.feed(part)
                if whole is not None:
                    return pb.SeatMessage.FromString(whole)
        except grpc.aio.AioRpcError as error:
            raise PeerGone(f"seat {account}: {error.code().name}") from error
        except DecodeError as error:
            raise ProtocolError("message", f"seat {account} answered with no message of this protocol") from error
        raise PeerGone(f"seat {account} gave no answer")

    def _announce(self, recipient: str, message: pb.SeatMessage, body: bytes, boot: bytes) -> pb.Envelope:
        c = self.context
        self._sequence += 1
        kind, hashed = number_of(message), blake3.blake3(body).digest()
        signed = SeatEnvelope(c.job_id, c.account, recipient, boot, self._sequence, kind, len(body), hashed)
        return pb.Envelope(
            job_id=c.job_id,
            sender=c.account,
            recipient=recipient,
            boot=boot,
            sequence=self._sequence,
            kind=kind,
            size=len(body),
            body_hash=hashed,
            signature=c.sign(signed),
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

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
