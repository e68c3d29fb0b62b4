"""Logical messages over gRPC streams in parts of at most 1 MiB (streams of chunks run several times faster than
one large unary message, and a stranger cannot make us allocate what we did not agree to)."""

from __future__ import annotations

from collections.abc import Iterator

from sentinel_market.errors import ProtocolError
from sentinel_market.wire.relay_pb2 import Part

PART_BYTES = 1 << 20
SERVICE = "sentinel.v1.Relay"
WORK = f"/{SERVICE}/Work"
TELL = f"/{SERVICE}/Tell"
WIRE_VERSION = 1

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", 2 * PART_BYTES),
    ("grpc.max_receive_message_length", 2 * PART_BYTES),
    ("grpc.http2.lookahead_bytes", 8 << 20),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.so_reuseport", 0),
)


def split(data: bytes) -> Iterator[Part]:
    """The parts of one message; an empty message is one empty part."""
    if len(data) <= PART_BYTES:
        yield Part(data=data)
        return
    for start in range(0, len(data), PART_BYTES):
        yield Part(data=data[start : start + PART_BYTES], more=start + PART_BYTES < len(data))


class Assembler:
    """Puts parts together again. ``limit`` bounds one message in bytes; crossing it is a ProtocolError("size")."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = bytearray()  # not a list: many small parts would cost many times their bytes

    def feed(self, part: Part) -> bytes | None:
        """Returns the whole message with its last part, else None."""
        if part.more and not part.data:
            raise ProtocolError("message", "a part that is empty and not the last one")  # endless ones cost memory
        if len(self._held) + len(part.data) > self.limit:
            raise ProtocolError("size", f"a message of over {self.limit} bytes")
        if not self._held and not part.more:
            return part.data
        self._held += part.data
        if part.more:
            return None
        whole = bytes(self._held)
        self._held = bytearray()
        return whole
