"""A seat's door under load from strangers and from a hostile seat: nothing is held for who may not speak, nor more than
a seat's own share, and the honest ones are heard meanwhile."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc.aio
import pytest

from sentinel_market.errors import PeerGone, ProtocolError
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.parts import CHANNEL_OPTIONS, PART_BYTES, TELL, Assembler
from tests.support.mesh import key
from tests.verifier.test_seats import PING, Council
from verifier import door as door_module
from verifier import peers as peers_module
from verifier.peers import UNKNOWN_BOOT
from verifier.seat import Seat
from verifier.sizes import SEAT_MESSAGE_BYTES, control_bytes

Story = Callable[[Council, int], Awaitable[None]]
PATIENCE = 30.0
MIB = 1 << 20


def listening(tmp_path: Path, story: Story) -> None:
    """The hearer of a council listens on a port; whatever happened, an honest seat is heard at the end."""

    async def run() -> None:
        c = Council(tmp_path)
        port = await c.hearer.start("127.0.0.1", 0)
        c.mesh.endpoints[c.hearer.context.account] = f"127.0.0.1:{port}"
        try:
            await story(c, port)
            answer = await c.third.peers.ask(c.hearer.context.account, PING)
            assert answer.WhichOneof("kind") == "ping"
            assert not c.hearer.door._unknown
        finally:
            await c.hearer.relay.stop()
            for seat in c.seats:
                await seat.peers.close()

    asyncio.run(run())


class Caller:
    """A stream to the door that says anything."""

    def __init__(self, port: int) -> None:
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS)
        self._call = self._channel.stream_stream(
            TELL, request_serializer=pb.Part.SerializeToString, response_deserializer=pb.Part.FromString
        )(timeout=PATIENCE)

    async def say(self, data: bytes, more: bool = False) -> None:
        await self._call.write(pb.Part(data=data, more=more))

    async def announce(self, c: Council, size: int, by: Seat | None = None, **changes: object) -> None:
        """An accusation of ``size`` bytes: the only message that may be large."""
        accuse = pb.SeatMessage(accuse=pb.Accuse())
        await self.say(c.envelope(accuse, by, size=size, **changes).SerializeToString())

    async def flood(self, most: int) -> int:
        """Parts of 1 MiB until the door answers or ``most`` are out; returns how many were taken."""
        for sent in range(most):
            try:
                await self.say(bytes(PART_BYTES), more=True)
            except (asyncio.InvalidStateError, grpc.aio.AioRpcError, grpc.aio.UsageError):
                return sent
            await asyncio.sleep(0)
        return most

    async def error(self) -> str:
        """The code of the answer."""
        assembler = Assembler(1 << 16)
        async for part in self._call:
            data = assembler.feed(part)
            if data is not None:
                await self._channel.close()
                return pb.SeatMessage.FromString(data).error.code
        raise AssertionError("no answer")

    async def close(self) -> None:
        self._call.cancel()
        await self._channel.close()


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


# ---- strangers


def test_a_stranger_that_streams_junk_is_sent_away_at_its_first_part(tmp_path: Path) -> None:
    async def story(c: Council, port: int) -> None:
        for first in (bytes(PART_BYTES), b"\xff" * 2000, bytes(64)):
            stranger = Caller(port)
            await stranger.say(first, more=True)
            assert await stranger.flood(200) < 50, "only what the transport takes before the answer is there"
            assert await stranger.error() == "size"

    listening(tmp_path, story)


@pytest.mark.parametrize("who", ["a stranger", "a worker", "another seat"])
def test_who_only_says_that_it_is_a_seat_is_sent_away_before_its_message(tmp_path: Path, who: str) -> None:
    async def story(c: Council, port: int) -> None:
        signers = {
            "a stranger": key("nobody"),
            "a worker": c.mesh.roster.worker_keys[0],
            "another seat": c.third.context.key,
        }
        caller = Caller(port)
        await caller.announce(c, 400 * MIB, key=signers[who])
        assert await caller.flood(200) < 50
        assert await caller.error() == "signature"
        assert not any(share.streams for share in c.hearer.door._shares.values())

    listening(tmp_path, story)


def test_whoever_says_nothing_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "ENVELOPE_SECONDS", 0.2)

    async def story(c: Council, port: int) -> None:
        assert await Caller(port).error() == "timeout"
        monkeypatch.undo()

    listening(tmp_path, story)


def test_a_crowd_of_silent_strangers_keeps_no_seat_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "MAX_UNKNOWN", 3)

    async def story(c: Council, port: int) -> None:
        crowd = []
        for count in range(1, 6):
            crowd.append(Caller(port))
            await eventually(lambda count=count: len(c.hearer.door._unknown) == min(count, 3))  # type: ignore[misc]
            await asyncio.sleep(0.05)
        for first in crowd[:2]:
            assert await first.error() == "timeout", "whoever has been silent for longest has to go"
        assert (await c.third.peers.ask(c.hearer.context.account, PING)).WhichOneof("kind") == "ping"
        for stranger in crowd[2:]:
            await stranger.close()
        await eventually(lambda: not c.hearer.door._unknown)

    listening(tmp_path, story)


# ---- a seat that is hostile


def test_a_seat_that_sends_more_than_it_announced_is_cut_off_there(tmp_path: Path) -> None:
    async def story(c: Council, port: int) -> None:
        for announced in (0, 100, 3 * MIB):
            caller = Caller(port)
            await caller.announce(c, announced)
            assert await caller.flood(200) < 50
            assert await caller.error() == "size"
        await eventually(lambda: c.hearer.door._shares[c.hostile.context.account].streams == 0)
        assert c.hearer.door._shares[c.hostile.context.account].large == 0

    listening(tmp_path, story)


def test_only_an_accusation_may_be_large_and_only_so_large(tmp_path: Path) -> None:
    async def story(c: Council, port: int) -> None:
        limit = control_bytes(c.hearer.context)
        for message, size in (
            (PING, limit + 1),
            (pb.SeatMessage(weights_answer=pb.WeightsAnswer()), limit + 1),
            (pb.SeatMessage(accuse=pb.Accuse()), SEAT_MESSAGE_BYTES + 1),
        ):
            caller = Caller(port)
            await caller.say(c.envelope(message, size=size).SerializeToString())
            assert await caller.error() == "size"

    listening(tmp_path, story)


def test_two_giants_of_one_seat_do_not_fit_but_one_of_each_and_small_talk_do(tmp_path: Path) -> None:
    async def story(c: Council, port: int) -> None:
        first, second, third = Caller(port), Caller(port), Caller(port)
        await first.announce(c, 300 * MIB)
        await first.say(bytes(PART_BYTES), more=True)
        shares = c.hearer.door._shares
        await eventually(lambda: shares[c.hostile.context.account].large == 300 * MIB)
        await second.announce(c, 300 * MIB)
        assert await second.error() == "busy"
        await third.announce(c, 300 * MIB, c.third)
        await eventually(lambda: shares[c.third.context.account].large == 300 * MIB)
        for seat in (c.hostile, c.third):
            assert (await seat.peers.ask(c.hearer.context.account, PING)).WhichOneof("kind") == "ping"
        await first.close()
        await third.close()
        await eventually(lambda: not any(share.large or share.streams for share in shares.values()))

    listening(tmp_path, story)


def test_many_streams_of_one_seat_leave_room_for_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "MAX_STREAMS", 3)

    async def story(c: Council, port: int) -> None:
        callers = [Caller(port) for _ in range(3)]
        for caller in callers:
            await caller.announce(c, 100)
        await eventually(lambda: c.hearer.door._shares[c.hostile.context.account].streams == 3)
        one_more = Caller(port)
        await one_more.announce(c, 100)
        assert await one_more.error() == "busy"
        assert (await c.third.peers.ask(c.hearer.context.account, PING)).WhichOneof("kind") == "ping"
        for caller in callers:
            await caller.close()

    listening(tmp_path, story)


@pytest.mark.parametrize("drips", [False, True], ids=["silent", "dripping"])
def test_a_slow_sender_loses_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drips: bool) -> None:
    monkeypatch.setattr(door_module, "IDLE_SECONDS", 0.3)
    monkeypatch.setattr(door_module, "SLOWEST_BYTES", 1 << 40)

    async def story(c: Council, port: int) -> None:
        caller = Caller(port)
        await caller.announce(c, 300 * MIB)

        async def drip() -> None:
            while drips:
                await caller.say(b"x", more=True)
                await asyncio.sleep(0.05)

        beside = asyncio.create_task(drip())
        assert await caller.error() == "timeout"
        beside.cancel()
        await asyncio.gather(beside, return_exceptions=True)
        assert c.hearer.door._shares[c.hostile.context.account].large == 0
        monkeypatch.undo()

    listening(tmp_path, story)


def test_a_message_in_tiny_parts_costs_its_bytes_and_not_many_times_them() -> None:
    assembler = Assembler(1 << 20)
    tracemalloc.start()
    for _ in range(200_000):
        assembler.feed(pb.Part(data=b"xy", more=True))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    whole = assembler.feed(pb.Part(data=b"z"))
    assert whole == b"xy" * 200_000 + b"z"
    assert peak < 2 * len(whole)


# ---- restarts


def test_what_was_said_before_a_restart_is_not_taken_after_it(tmp_path: Path) -> None:
    async def run() -> None:
        c = Council(tmp_path)
        recorded = c.envelope(PING)
        await c.give(recorded, PING)
        c.hearer = c.mesh.seat(0)
        for envelope in (recorded, c.envelope(PING, boot=recorded.boot)):
            with pytest.raises(ProtocolError) as caught:
                await c.give(envelope, PING)
            assert caught.value.code == "boot"
        await c.tell(PING)

    asyncio.run(run())


def test_a_seat_meets_another_and_its_next_process_without_an_error(tmp_path: Path) -> None:
    async def story(c: Council, port: int) -> None:
        account = c.hearer.context.account
        known = c.hostile.peers._boots
        assert known.get(account, UNKNOWN_BOOT) == UNKNOWN_BOOT
        answers = await asyncio.gather(*(c.hostile.peers.ask(account, PING) for _ in range(4)))
        assert {answer.WhichOneof("kind") for answer in answers} == {"ping"}
        assert known[account] == c.hearer.door.boot
        c.hearer.door.boot = bytes(range(32))  # as its next process would
        assert (await c.hostile.peers.ask(account, PING)).WhichOneof("kind") == "ping"
        assert known[account] == bytes(range(32))

    listening(tmp_path, story)


def test_a_peer_with_a_new_boot_at_every_word_is_given_up(tmp_path: Path) -> None:
    async def story(c: Council, port: int) -> None:
        asked = []
        account = c.hearer.context.account

        async def call(*_: object) -> pb.SeatMessage:
            asked.append(1)
            return pb.SeatMessage(error=pb.Error(code="boot", boot=bytes([len(asked)] * 32)))

        honest, c.hostile.peers._call = c.hostile.peers._call, call  # type: ignore[method-assign]
        with pytest.raises(PeerGone, match="boot"):
            await c.hostile.peers.ask(account, PING)
        assert len(asked) == 2
        c.hostile.peers._call = honest  # type: ignore[method-assign]

    listening(tmp_path, story)


def test_who_finds_the_door_busy_comes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "BUSY_SECONDS", 0.05)

    async def story(c: Council, port: int) -> None:
        account, hostile = c.hearer.context.account, c.hostile.context.account
        await c.hostile.peers.ask(account, PING)
        c.hearer.door._shares[hostile].streams = door_module.MAX_STREAMS
        with pytest.raises(PeerGone, match=r"busy|DEADLINE"):
            await c.hostile.peers.ask(account, PING, time_limit=0.5)
        waiting = asyncio.create_task(c.hostile.peers.ask(account, PING))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        c.hearer.door._shares[hostile].streams = 0
        assert (await waiting).WhichOneof("kind") == "ping"

    listening(tmp_path, story)


def test_an_answer_larger_than_any_honest_one_is_not_held(tmp_path: Path) -> None:
    async def story(c: Council, port: int) -> None:
        async def lavish(_sender: str, _message: pb.SeatMessage) -> pb.SeatMessage:
            return pb.SeatMessage(weights_answer=pb.WeightsAnswer(payload=bytes(8 * MIB)))

        honest, c.hearer.door._handle = c.hearer.door._handle, lavish
        with pytest.raises(ProtocolError) as caught:
            await c.hostile.peers.ask(c.hearer.context.account, PING)
        assert caught.value.code == "size"
        c.hearer.door._handle = honest

    listening(tmp_path, story)
