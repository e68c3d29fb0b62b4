"""The door for other seats: who speaks, and how much it may say, is known before any of it is held in memory.

A stream begins with a small signed envelope that announces the message. Only a seat of this job, for this process,
once, within the size of its kind and within its own share of this seat's memory is let in; then the message follows.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import blake3
from google.protobuf.message import DecodeError

from sentinel_market.domain.messages import SeatEnvelope
from sentinel_market.errors import ProtocolError, SentinelError
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.parts import Assembler
from verifier.context import SeatContext
from verifier.sizes import SEAT_MESSAGE_BYTES, control_bytes, kind_of, question_bytes

log = logging.getLogger("verifier")

ENVELOPE_BYTES = 1 << 10
ENVELOPE_SECONDS = 5.0
MAX_UNKNOWN = 64
"""Streams that have not said yet who they are."""
IDLE_SECONDS = 10.0
"""Between two parts of a message."""
SLOWEST_BYTES = 1 << 18
"""A second, over a whole message: who is slower holds memory for nothing."""
MAX_STREAMS = 64
"""Messages of one seat that come in or are being answered at a time."""
REMEMBERED = 1 << 12
"""Sequences of one seat."""


@dataclass
class _Share:
    """What one seat takes up here, so that none can take what another one needs. ``large``: bytes of messages that are
    larger than a control message; ``seen``: its last sequences, ``floor``: the highest one that is forgotten."""

    streams: int = 0
    large: int = 0
    seen: OrderedDict[int, None] = field(default_factory=OrderedDict)
    floor: int = 0


class Door:
    """Receives; ``verifier.peers`` sends."""

    def __init__(
        self, context: SeatContext, handle: Callable[[str, pb.SeatMessage], Awaitable[pb.SeatMessage]]
    ) -> None:
        """``handle(sender account, message)`` answers; a ProtocolError becomes an Error answer."""
        self.context = context
        self._handle = handle
        # What was said to an earlier process of this seat, and recorded, names another boot.
        self.boot = secrets.token_bytes(32)
        self._unknown: dict[asyncio.Timeout, None] = {}
        self._shares = {account: _Share() for account in context.hot_keys}

    async def hear(self, parts: AsyncIterator[pb.Part]) -> pb.SeatMessage:
        """One stream, to its answer. Whatever comes, the answer says what was wrong with it."""
        try:
            return await self._answer(aiter(parts))
        except ProtocolError as error:
            boot = self.boot if error.code == "boot" else b""
            return _error(error.code, str(error), boot)
        except SentinelError as error:
            return _error("unavailable", str(error))
        except DecodeError:
            return _error("message", "not a message of this protocol")
        except (ValueError, TypeError, LookupError) as error:
            # Members that cannot be: a hash of 31 bytes, an address that is none.
            log.warning("refused a message of a seat: %r", error)
            return _error("message", str(error)[:200])

    async def _answer(self, parts: AsyncIterator[pb.Part]) -> pb.SeatMessage:
        envelope = await self._envelope(parts)
        self._admit(envelope)
        with self._room(envelope):
            message = pb.SeatMessage.FromString(await self._body(parts, envelope))
            if message.WhichOneof("kind") != kind_of(envelope.kind):
                raise ProtocolError("message", f"a {message.WhichOneof('kind')}, announced as {kind_of(envelope.kind)}")
            return await self._handle(envelope.sender, message)

    async def _envelope(self, parts: AsyncIterator[pb.Part]) -> pb.Envelope:
        try:
            async with asyncio.timeout(ENVELOPE_SECONDS) as patience:
                self._meet(patience)
                part = await anext(parts, None)
        except TimeoutError:
            raise ProtocolError("timeout", "no envelope came in time") from None
        finally:
            self._unknown.pop(patience, None)
        if part is None:
            raise ProtocolError("message", "no envelope came")
        if part.more or len(part.data) > ENVELOPE_BYTES:
            raise ProtocolError("size", f"an envelope is one part of at most {ENVELOPE_BYTES} bytes")
        return pb.Envelope.FromString(part.data)

    def _meet(self, patience: asyncio.Timeout) -> None:
        """A seat says at once who it is: where there are too many, whoever has said nothing for longest has to go."""
        if len(self._unknown) >= MAX_UNKNOWN:
            longest = next(iter(self._unknown))
            del self._unknown[longest]
            if not longest.expired():
                longest.reschedule(asyncio.get_running_loop().time())
        self._unknown[patience] = None

    def _admit(self, envelope: pb.Envelope) -> None:
        """Raises ProtocolError: job, recipient, seat, signature, boot, replay, message, size."""
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
            envelope.boot,
            envelope.sequence,
            envelope.kind,
            envelope.size,
            envelope.body_hash,
        )
        context.check_seat(envelope.sender, signed, envelope.signature)
        if envelope.boot != self.boot:
            raise ProtocolError("boot", "meant for another process of this seat; say it again to this one")
        self._once(envelope)
        kind = kind_of(envelope.kind)
        if kind is None:
            raise ProtocolError("message", f"a seat says nothing of kind {envelope.kind}")
        limit = question_bytes(context, kind)
        if envelope.size > limit:
            raise ProtocolError("size", f"a {kind} of {envelope.size} bytes, at most {limit} are taken")

    def _once(self, envelope: pb.Envelope) -> None:
        share, sequence = self._shares[envelope.sender], envelope.sequence
        if sequence in share.seen:
            raise ProtocolError("replay", f"envelope {sequence} of {envelope.sender} came twice")
        if sequence <= share.floor:
            raise ProtocolError("replay", f"envelope {sequence} of {envelope.sender} is too old to be new")
        share.seen[sequence] = None
        if len(share.seen) > REMEMBERED:
            share.floor = max(share.floor, share.seen.popitem(last=False)[0])

    @contextmanager
    def _room(self, envelope: pb.Envelope) -> Iterator[None]:
        """Raises ProtocolError("busy"): come again."""
        share = self._shares[envelope.sender]
        large = envelope.size if envelope.size > control_bytes(self.context) else 0
        if share.streams >= MAX_STREAMS or (large and share.large + large > SEAT_MESSAGE_BYTES):
            raise ProtocolError(
                "busy", f"{share.streams} messages of this seat are here already, {share.large} bytes of large ones"
            )
        share.streams += 1
        share.large += large
        try:
            yield
        finally:
            share.streams -= 1
            share.large -= large

    async def _body(self, parts: AsyncIterator[pb.Part], envelope: pb.Envelope) -> bytes:
        """Raises ProtocolError: timeout, size, message (not what was announced)."""
        assembler = Assembler(envelope.size)
        whole: bytes | None = None
        try:
            async with asyncio.timeout(IDLE_SECONDS + envelope.size / SLOWEST_BYTES):
                while whole is None:
                    async with asyncio.timeout(IDLE_SECONDS):
                        part = await anext(parts, None)
                    if part is None:
                        raise ProtocolError("message", f"the stream ended before the {envelope.size} bytes were there")
                    whole = assembler.feed(part)
        except TimeoutError:
            raise ProtocolError("timeout", f"a message of {envelope.size} bytes comes too slowly") from None
        if len(whole) != envelope.size:
            raise ProtocolError("size", f"{len(whole)} bytes came, {envelope.size} were announced")
        if blake3.blake3(whole).digest() != envelope.body_hash:
            raise ProtocolError("message", "another message than the one that was announced")
        return whole


def _error(code: str, message: str, boot: bytes = b"") -> pb.SeatMessage:
    return pb.SeatMessage(error=pb.Error(code=code, message=message, boot=boot))
