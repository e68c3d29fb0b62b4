"""Messages in parts: bounded, in order, and nothing that a stranger can make grow."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel_market.errors import ProtocolError
from sentinel_market.wire import parts
from sentinel_market.wire.parts import PART_BYTES, Assembler, split
from sentinel_market.wire.relay_pb2 import Part


def whole(assembler: Assembler, data: bytes) -> list[bytes]:
    return [m for part in split(data) if (m := assembler.feed(part)) is not None]


@pytest.mark.parametrize("size", [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES, 2 * PART_BYTES + 7])
def test_a_message_comes_back_whole_whatever_its_size(size: int) -> None:
    data = bytes(size)
    assert all(len(part.data) <= PART_BYTES for part in split(data))
    assembler = Assembler(size)
    assert whole(assembler, data) == [data]
    assert whole(assembler, data) == [data], "the next message starts from nothing"


@settings(max_examples=50, deadline=None)
@given(messages=st.lists(st.binary(min_size=1, max_size=40), max_size=5), size=st.integers(1, 9))
def test_messages_follow_each_other(messages: list[bytes], size: int) -> None:
    assembler, found = Assembler(40), []
    for message in messages:
        chunks = [message[i : i + size] for i in range(0, len(message), size)]
        for index, chunk in enumerate(chunks):
            done = assembler.feed(Part(data=chunk, more=index + 1 < len(chunks)))
            if done is not None:
                found.append(done)
    assert found == messages


def test_a_message_over_the_limit_is_refused_at_the_first_byte_too_many() -> None:
    assembler = Assembler(10)
    assert assembler.feed(Part(data=bytes(6), more=True)) is None
    with pytest.raises(ProtocolError) as caught:
        assembler.feed(Part(data=bytes(5), more=True))
    assert caught.value.code == "size"
    with pytest.raises(ProtocolError, match="size"):
        Assembler(10).feed(Part(data=bytes(11)))
    assert Assembler(10).feed(Part(data=bytes(10))) == bytes(10)


def test_the_limit_may_be_raised_once_a_stranger_is_known() -> None:
    assembler = Assembler(10)
    assert whole(assembler, bytes(10)) == [bytes(10)]
    assembler.limit = 20
    assert whole(assembler, bytes(20)) == [bytes(20)]


def test_endless_empty_parts_are_refused() -> None:
    """They would never cross the limit in bytes, and each costs memory."""
    assembler = Assembler(10)
    with pytest.raises(ProtocolError) as caught:
        for _ in range(3):
            assembler.feed(Part(more=True))
    assert caught.value.code == "message"


def test_grpc_itself_takes_no_message_much_larger_than_a_part() -> None:
    options = dict(parts.CHANNEL_OPTIONS)
    assert PART_BYTES < options["grpc.max_receive_message_length"] <= 2 * PART_BYTES
