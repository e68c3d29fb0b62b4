"""A seat's door against workers that are none, or that lie about who they are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sentinel_market.errors import PeerGone
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.parts import WIRE_VERSION
from tests.support.mesh import key
from tests.verifier.rig import OneSeat, RawWorker
from verifier import relay as relay_module


def with_seat(tmp_path: Path, story: Callable[[OneSeat], Awaitable[None]]) -> OneSeat:
    async def run() -> OneSeat:
        async with OneSeat(tmp_path) as one:
            await story(one)
            # Whatever happened: an honest worker still gets in, and nobody was punished.
            honest = RawWorker(one.seat, one.port, one.mesh.roster.worker_keys[5], 5)
            await honest.shake_hands()
            await honest.close()
            assert not one.seat.docket.quarantined
            assert not one.mesh.court.reports
            return one

    return asyncio.run(run())


def raw(one: OneSeat, slot: int = 0) -> RawWorker:
    return RawWorker(one.seat, one.port, one.mesh.roster.worker_keys[slot], slot)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"version": WIRE_VERSION + 1}, "version"),
        ({"version": 0}, "version"),
        ({"job_id": 2}, "job"),
        ({"job_id": 0}, "job"),
        ({"slot": 6}, "slot"),
        ({"slot": 2**32 - 1}, "slot"),
        ({"nonce": 0}, "unclaimed"),
        ({"nonce": 2}, "unclaimed"),
        ({"worker_nonce": b""}, "hello"),
        ({"worker_nonce": bytes(31)}, "hello"),
        ({"session": 0}, "hello"),
        ({"next_sequence": 2**64 - 1}, "hello"),
        ({"next_sequence": 2**63}, "hello"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{next(iter(value))}",
)
def test_a_hello_that_cannot_be_is_refused_by_name(tmp_path: Path, changes: dict[str, object], code: str) -> None:
    async def story(one: OneSeat) -> None:
        worker = raw(one)
        worker.say(pb.ToSeat(hello=worker.hello(**changes)))
        assert await worker.goodbye() == code
        assert not one.seat.relay.sessions
        await worker.close()

    with_seat(tmp_path, story)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"\xff\xff\xff", "message"),
        (b"", "hello"),
        (pb.ToSeat(proof=pb.HelloProof(signature=bytes(65))), "hello"),
        (pb.ToSeat(result=pb.Result(dispatch=1)), "hello"),
        (pb.ToSeat(ready=pb.Ready(step=0)), "hello"),
        (bytes(relay_module.HANDSHAKE_BYTES + 1), "size"),
    ],
    ids=["garbage", "empty", "proof", "result", "ready", "oversize"],
)
def test_what_is_no_hello_is_refused_by_name(tmp_path: Path, message: pb.ToSeat | bytes, code: str) -> None:
    async def story(one: OneSeat) -> None:
        worker = raw(one)
        worker.say(message)
        assert await worker.goodbye() == code
        await worker.close()

    with_seat(tmp_path, story)


def test_a_proof_by_another_key_is_refused(tmp_path: Path) -> None:
    async def story(one: OneSeat) -> None:
        for wrong in (key("a stranger"), one.mesh.roster.worker_keys[1], one.mesh.roster.seat_keys[0]):
            worker = RawWorker(one.seat, one.port, wrong, 0)
            with pytest.raises(AssertionError, match="hung up"):
                await worker.shake_hands()
            assert not one.seat.relay.sessions
            await worker.close()

    with_seat(tmp_path, story)


@pytest.mark.parametrize("field", ["session", "next_sequence", "verifier", "job_id", "slot", "nonce"])
def test_a_proof_of_another_hello_is_refused(tmp_path: Path, field: str) -> None:
    async def story(one: OneSeat) -> None:
        worker = raw(one)
        hello = worker.hello()
        worker.say(pb.ToSeat(hello=hello))
        challenge = (await worker.hear("challenge")).challenge
        other: object = one.mesh.roster.seats(1)[1].account if field == "verifier" else 7
        signed = worker.signed(hello, challenge, **{field: other})
        worker.say(pb.ToSeat(proof=pb.HelloProof(signature=worker.key.sign(signed))))
        assert await worker.goodbye() == "signature"
        assert not one.seat.relay.sessions
        await worker.close()

    with_seat(tmp_path, story)


@pytest.mark.parametrize("signature", [b"", bytes(64), bytes(65), b"\xff" * 65, bytes(66)], ids=len)
def test_a_malformed_proof_is_refused(tmp_path: Path, signature: bytes) -> None:
    async def story(one: OneSeat) -> None:
        worker = raw(one)
        worker.say(pb.ToSeat(hello=worker.hello()))
        await worker.hear("challenge")
        worker.say(pb.ToSeat(proof=pb.HelloProof(signature=signature)))
        assert await worker.goodbye() == "signature"
        await worker.close()

    with_seat(tmp_path, story)


def test_a_replayed_handshake_opens_nothing(tmp_path: Path) -> None:
    async def story(one: OneSeat) -> None:
        worker = raw(one)
        nonce = bytes(range(32))
        proof = await worker.shake_hands(worker_nonce=nonce)
        await worker.close()
        while one.seat.relay.sessions:
            await asyncio.sleep(0.01)
        thief = RawWorker(one.seat, one.port, key("a thief"), 0)
        thief.session = worker.session
        thief.say(pb.ToSeat(hello=thief.hello(worker_nonce=nonce)))
        await thief.hear("challenge")
        thief.say(pb.ToSeat(proof=proof))
        assert await thief.goodbye() == "signature"
        assert not one.seat.relay.sessions
        await thief.close()

    with_seat(tmp_path, story)


def test_a_handshake_that_never_ends_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "HANDSHAKE_SECONDS", 0.2)

    async def story(one: OneSeat) -> None:
        for hello in (False, True):
            worker = raw(one)
            if hello:
                worker.say(pb.ToSeat(hello=worker.hello()))
            assert await worker.goodbye() == "timeout"
            await worker.close()
        monkeypatch.undo()

    with_seat(tmp_path, story)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"\xff\xff\xff", "message"),
        (b"", "message"),
        (pb.ToSeat(hello=pb.Hello()), "message"),
        (pb.ToSeat(proof=pb.HelloProof()), "message"),
        (bytes(1 << 20), "size"),
    ],
    ids=["garbage", "empty", "hello", "proof", "oversize"],
)
def test_what_no_session_takes_ends_it_by_name(tmp_path: Path, message: pb.ToSeat | bytes, code: str) -> None:
    async def story(one: OneSeat) -> None:
        worker = raw(one)
        await worker.shake_hands()
        worker.say(message)
        assert await worker.goodbye() == code
        while one.seat.relay.sessions:
            await asyncio.sleep(0.01)
        again = raw(one)
        await again.shake_hands()
        await worker.close()
        await again.close()

    with_seat(tmp_path, story)


def test_answers_that_nobody_asked_for_are_dropped(tmp_path: Path) -> None:
    async def story(one: OneSeat) -> None:
        worker = raw(one)
        await worker.shake_hands()
        session = one.seat.relay.sessions[0]
        worker.say(pb.ToSeat(result=pb.Result(dispatch=999, step=2**63)))
        worker.say(pb.ToSeat(gradient=pb.GradientSum(step=2**63, round=7)))
        worker.say(pb.ToSeat(refusal=pb.Refusal(dispatch=5, code="x" * 1000, message="y" * 5000)))
        worker.say(pb.ToSeat(refusal=pb.Refusal()))
        worker.say(pb.ToSeat(bye=pb.Bye(reason="?")))
        worker.say(pb.ToSeat(ready=pb.Ready(step=4)))
        async with asyncio.timeout(30):
            while session.ready is None:
                await asyncio.sleep(0.01)
        assert not session.closed
        await worker.close()

    with_seat(tmp_path, story)


def test_a_worker_that_is_ready_for_another_step_gets_no_work(tmp_path: Path) -> None:
    async def story(one: OneSeat) -> None:
        worker = raw(one)
        await worker.shake_hands()
        worker.say(pb.ToSeat(ready=pb.Ready(step=2**64 - 1)))
        session = one.seat.relay.sessions[0]
        async with asyncio.timeout(30):
            while session.ready is None:
                await asyncio.sleep(0.01)
        assert one.seat.driver.choice.live(0) == []
        await worker.close()

    with_seat(tmp_path, story)


def test_a_worker_that_hangs_up_fails_only_its_own_tasks(tmp_path: Path) -> None:
    async def story(one: OneSeat) -> None:
        worker = raw(one)
        await worker.shake_hands()
        session = one.seat.relay.sessions[0]
        task = asyncio.create_task(session.task(pb.Task(step=0), 60.0))
        await worker.hear("task")
        await worker.close()
        with pytest.raises(PeerGone):
            await asyncio.wait_for(task, 30)
        with pytest.raises(PeerGone):
            await session.task(pb.Task(step=0), 60.0)

    with_seat(tmp_path, story)


def test_two_processes_with_one_key_the_second_is_refused_the_first_is_told_nobody_is_accused(tmp_path: Path) -> None:
    async def story(one: OneSeat) -> None:
        first, second = raw(one), raw(one)
        await first.shake_hands()
        session = one.seat.relay.sessions[0]
        second.say(pb.ToSeat(hello=second.hello()))
        hello = second.hello()
        second = raw(one)
        second.say(pb.ToSeat(hello=hello))
        challenge = (await second.hear("challenge")).challenge
        second.say(pb.ToSeat(proof=pb.HelloProof(signature=second.key.sign(second.signed(hello, challenge)))))
        refused = (await second.hear("goodbye")).goodbye
        assert (refused.code, refused.retry) == ("duplicate", True)
        told = (await first.hear("goodbye")).goodbye
        assert (told.code, told.retry) == ("notice", False)
        assert one.seat.relay.sessions[0] is session
        assert not session.closed
        await first.close()
        await second.close()

    with_seat(tmp_path, story)


def test_without_the_key_nobody_can_disturb_a_live_session(tmp_path: Path) -> None:
    async def story(one: OneSeat) -> None:
        first = raw(one)
        await first.shake_hands()
        thief = RawWorker(one.seat, one.port, key("a thief"), 0)
        with pytest.raises(AssertionError, match="hung up"):
            await thief.shake_hands()
        session = one.seat.relay.sessions[0]
        assert not session.closed
        assert session._outbox.empty(), "the holder is not even bothered"
        await first.close()
        await thief.close()

    with_seat(tmp_path, story)


def test_a_chain_that_does_not_answer_asks_the_worker_to_come_back(tmp_path: Path) -> None:
    async def story(one: OneSeat) -> None:
        def down() -> dict:
            raise PeerGone("the RPC is down")

        real, one.seat._refresh_slots = one.seat._refresh_slots, down
        worker = raw(one)
        worker.say(pb.ToSeat(hello=worker.hello(nonce=3)))
        goodbye = (await worker.hear("goodbye")).goodbye
        assert goodbye.retry
        one.seat._refresh_slots = real
        await worker.close()

    with_seat(tmp_path, story)
