"""A driver against a worker that holds its slot's key and answers wrongly: what cannot be read is an accident by name,
what is validly signed and wrong is convicted by a recompute, and the microbatch goes on elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from sentinel_market.chain.eip712 import digest
from sentinel_market.domain.ids import BACKWARD, FORWARD
from sentinel_market.errors import PeerGone, ProtocolError
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.commit import SessionKey, backward_output_hash
from sentinel_market.wire.tensors import decode, encode, encoded_hash
from tests.support.mesh import key
from tests.verifier.rig import DOMAIN, OneSeat, tamper
from verifier import driver as driver_module
from verifier.answers import Offence
from verifier.check import Score, Verdict, VerdictKind
from verifier.check.watch import UPHELD
from worker.session import SeatLink, Worker

HOSTILE, HONEST = 3, (4, 5)  # stage 1, the last
MICROBATCH = 0


@dataclass
class Reply:
    """An honest result on its way out, and what it takes to sign another one."""

    worker: Worker
    link: SeatLink
    result: pb.Result
    microbatch: int = MICROBATCH

    def sign(self, index: int, signing_key: object = None, session_key: SessionKey | None = None, **changes) -> None:
        given = self.result.commitments[index]
        values = {
            "sequence": given.sequence,
            "step": self.result.step,
            "microbatch": self.microbatch,
            "direction": given.direction,
            "input_hash": given.input_hash,
            "output_hash": given.output_hash,
            "weights_hash": self.result.weights_hash,
        }
        message = (session_key or self.link.session_key).frame(**{**values, **changes})
        given.signature = (signing_key or self.worker.context.key).sign(digest(DOMAIN, message))  # type: ignore[attr-defined]

    def resign(self) -> None:
        """Sign the tensors as they now are."""
        r = self.result
        for index, given in enumerate(r.commitments):
            if given.direction == FORWARD:
                given.output_hash = encoded_hash(r.output)
            else:
                given.output_hash = backward_output_hash(
                    encoded_hash(r.gradient) if r.gradient else None, encoded_hash(r.sketch)
                )
            self.sign(index)


def other_key(**changes: object) -> Callable[[Reply], None]:
    def change(reply: Reply) -> None:
        fields = ("job_id", "slot", "nonce", "verifier", "session")
        values = {name: getattr(reply.link.session_key, name) for name in fields}
        reply.sign(0, session_key=SessionKey(**{**values, **changes}))  # type: ignore[arg-type]

    return change


def put(field: str, tensor: torch.Tensor, *, signed: bool = True) -> Callable[[Reply], None]:
    def change(reply: Reply) -> None:
        setattr(reply.result, field, encode(tensor))
        if signed:
            reply.resign()

    return change


def altered(field: str) -> Callable[[Reply], None]:
    def change(reply: Reply) -> None:
        data = bytearray(getattr(reply.result, field))
        data[-1] ^= 1
        setattr(reply.result, field, bytes(data))

    return change


def raw(field: str, cut: int) -> Callable[[Reply], None]:
    def change(reply: Reply) -> None:
        setattr(reply.result, field, getattr(reply.result, field)[:cut])
        reply.resign()

    return change


def extra(reply: Reply) -> None:
    reply.result.commitments.append(reply.result.commitments[0])


def renumbered(reply: Reply) -> None:
    reply.result.commitments[1].sequence += 5
    reply.resign()


UNREADABLE: list[tuple[str, Callable[[Reply], object], str]] = [
    ("another shape", put("output", torch.zeros(4, 9)), "shape"),
    ("a flat shape", put("output", torch.zeros(32)), "shape"),
    ("another dtype", put("output", torch.zeros(4, 8, dtype=torch.float16)), "dtype"),
    ("cut short", raw("output", -4), "size"),
    ("no output", raw("output", 0), "header"),
    ("a gradient of another shape", put("gradient", torch.zeros(4, 8, 15)), "shape"),
    ("no gradient", raw("gradient", 0), "header"),
    ("a sketch of 63", put("sketch", torch.zeros(63)), "shape"),
    ("a sketch of 8 x 8", put("sketch", torch.zeros(8, 8)), "shape"),
    ("an integer sketch", put("sketch", torch.zeros(64, dtype=torch.int32)), "dtype"),
    ("no sketch", raw("sketch", 0), "header"),
    ("another output than signed", altered("output"), "digest"),
    ("another gradient than signed", altered("gradient"), "digest"),
    ("another sketch than signed", altered("sketch"), "digest"),
    ("no commitments", lambda r: r.result.ClearField("commitments"), "commitment"),
    ("one commitment too few", lambda r: r.result.commitments.pop(), "commitment"),
    ("one commitment too many", extra, "commitment"),
    ("commitments in another order", lambda r: r.result.commitments.reverse(), "sequence"),
    ("another sequence", renumbered, "sequence"),
    ("another direction", lambda r: setattr(r.result.commitments[0], "direction", BACKWARD), "sequence"),
    ("an unknown direction", lambda r: setattr(r.result.commitments[0], "direction", 2**32 - 1), "sequence"),
    ("another input", lambda r: setattr(r.result.commitments[0], "input_hash", bytes(32)), "digest"),
    ("an input hash of 31 bytes", lambda r: setattr(r.result.commitments[0], "input_hash", bytes(31)), "digest"),
    ("no signature", lambda r: setattr(r.result.commitments[0], "signature", b""), "signature"),
    ("a signature of zeros", lambda r: setattr(r.result.commitments[1], "signature", bytes(65)), "signature"),
    ("signed by a stranger", lambda r: r.sign(0, key("a stranger")), "signature"),
    ("signed for another step", lambda r: r.sign(0, step=1), "signature"),
    ("signed for another microbatch", lambda r: r.sign(0, microbatch=1), "signature"),
    ("signed for other weights", lambda r: r.sign(1, weights_hash=bytes(32)), "signature"),
    ("signed for another session", other_key(session=77), "signature"),
    ("signed for another slot", other_key(slot=4), "signature"),
    ("signed for another nonce", other_key(nonce=2), "signature"),
    ("signed for another job", other_key(job_id=2), "signature"),
    ("signed for another seat", other_key(verifier="0x" + "33" * 20), "signature"),
    ("another step", lambda r: setattr(r.result, "step", 1), "weights"),
    ("other weights", lambda r: setattr(r.result, "weights_hash", bytes(32)), "weights"),
]


def story(
    tmp_path: Path,
    change: Callable[[Reply], object] | None,
    tell: Callable[[OneSeat], Awaitable[None]],
    slots: tuple[int, ...] = (HOSTILE, *HONEST),
) -> None:
    async def run() -> None:
        async with OneSeat(tmp_path) as one:
            await one.with_workers(*slots)

            def on_way(worker: Worker, link: SeatLink, message: pb.ToSeat) -> list[pb.ToSeat | bytes]:
                if message.WhichOneof("kind") == "result" and change is not None:
                    reply = Reply(worker, link, message.result)
                    made = change(reply)
                    if isinstance(made, bytes):
                        return [made]
                return [message]

            tamper(one.mesh.workers[slots[0]], on_way)
            await tell(one)

    asyncio.run(run())


async def goes_on(one: OneSeat) -> None:
    """The seat lives, the work is done by somebody honest, and nobody was accused."""
    answer = await asyncio.wait_for(one.seat.driver._until_accepted(1, one.held(MICROBATCH), pb.LOSS), 60)
    assert answer.session.slot.slot in HONEST
    assert {a.slot for a in one.seat.driver.accepted} <= set(HONEST)
    assert not one.seat.docket.quarantined
    assert not one.seat.docket.distrusted
    assert not one.mesh.court.reports


@pytest.mark.parametrize(("change", "code"), [u[1:] for u in UNREADABLE], ids=[u[0] for u in UNREADABLE])
def test_an_answer_with(tmp_path: Path, change: Callable[[Reply], object], code: str) -> None:
    """... is an accident under this code, counts for nothing, and another replica does the work."""

    async def tell(one: OneSeat) -> None:
        driver = one.seat.driver
        hostile = one.seat.relay.sessions[HOSTILE]
        with pytest.raises(ProtocolError) as caught:
            await driver._work(hostile, 1, one.held(MICROBATCH), pb.LOSS, None)
        assert caught.value.code == code
        assert driver.units.get(HOSTILE, 0) == 0
        assert driver.accepted == []
        driver._accident(hostile, caught.value)
        assert not driver.choice.usable(hostile), "it rests"
        assert not hostile.closed, "and may try again"
        await goes_on(one)

    story(tmp_path, change, tell)


@pytest.mark.parametrize(
    "change",
    [
        lambda r: setattr(r.result, "dispatch", r.result.dispatch + 40),
        lambda r: setattr(r.result, "dispatch", 0),
        lambda r: b"\xff\xff\xff",
        lambda r: bytes(1 << 20),
    ],
    ids=["another dispatch", "no dispatch", "garbage", "an oversize message"],
)
def test_an_answer_that_reaches_nobody_is_a_lost_unit_and_no_offence(
    tmp_path: Path, change: Callable[[Reply], object]
) -> None:
    async def tell(one: OneSeat) -> None:
        one.seat.driver.time_limit = lambda: 2.0  # type: ignore[method-assign]
        hostile = one.seat.relay.sessions[HOSTILE]
        with pytest.raises(PeerGone):
            await one.seat.driver._work(hostile, 1, one.held(MICROBATCH), pb.LOSS, None)
        assert not one.seat.driver.choice.usable(hostile)
        one.seat.driver.time_limit = lambda: 30.0  # type: ignore[method-assign]
        await goes_on(one)

    story(tmp_path, change, tell)


def test_the_same_answer_twice_counts_once(tmp_path: Path) -> None:
    async def tell(one: OneSeat) -> None:
        worker = one.mesh.workers[HOSTILE]
        tamper(worker, lambda w, link, message: [message, message, message])
        hostile = one.seat.relay.sessions[HOSTILE]
        first = await one.seat.driver._work(hostile, 1, one.held(MICROBATCH), pb.LOSS, None)
        second = await one.seat.driver._work(hostile, 1, one.held(MICROBATCH), pb.LOSS, None)
        assert second.commitments[0].message.sequence == first.commitments[1].message.sequence + 1

    story(tmp_path, None, tell)


def test_an_old_answer_cannot_be_used_again(tmp_path: Path) -> None:
    kept: list[bytes] = []

    def replay(reply: Reply) -> None:
        if not kept:
            kept.append(reply.result.SerializeToString())
            return
        dispatch = reply.result.dispatch
        reply.result.ParseFromString(kept[0])
        reply.result.dispatch = dispatch

    async def tell(one: OneSeat) -> None:
        hostile = one.seat.relay.sessions[HOSTILE]
        await one.seat.driver._work(hostile, 1, one.held(MICROBATCH), pb.LOSS, None)
        with pytest.raises(ProtocolError) as caught:
            await one.seat.driver._work(hostile, 1, one.held(MICROBATCH), pb.LOSS, None)
        assert caught.value.code == "sequence"

    story(tmp_path, replay, tell)


def poisoned(field: str, value: float, where: slice = slice(0, 1)) -> Callable[[Reply], None]:
    def change(reply: Reply) -> None:
        tensor = decode(getattr(reply.result, field))
        tensor.view(-1)[where] = value
        setattr(reply.result, field, encode(tensor))
        reply.resign()

    return change


@pytest.mark.parametrize(
    "change",
    [
        poisoned("output", float("nan")),
        poisoned("output", float("inf")),
        poisoned("gradient", float("nan")),
        poisoned("gradient", -float("inf")),
        poisoned("gradient", float("nan"), slice(None)),
        poisoned("sketch", float("nan")),
        poisoned("sketch", float("inf")),
    ],
    ids=["NaN loss", "Inf loss", "NaN gradient", "-Inf gradient", "all NaN", "NaN sketch", "Inf sketch"],
)
def test_a_validly_signed_frame_that_is_not_finite_is_convicted_by_recompute(
    tmp_path: Path, change: Callable[[Reply], object]
) -> None:
    async def tell(one: OneSeat) -> None:
        driver, offences = one.seat.driver, list[Offence]()
        driver._on_offence = offences.append
        answer = await driver._work(one.seat.relay.sessions[HOSTILE], 1, one.held(MICROBATCH), pb.LOSS, None)
        final = await driver._judge(1, one.held_for(answer), answer)
        assert [o.answer.session.slot.slot for o in offences] == [HOSTILE]
        assert not offences[0].comparison.agrees
        assert final is None or final.session.slot.slot in HONEST
        assert HOSTILE not in {a.slot for a in driver.accepted}

    story(tmp_path, change, tell)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_activation_that_is_not_finite_is_convicted_by_recompute(tmp_path: Path, value: float) -> None:
    async def tell(one: OneSeat) -> None:
        driver, offences = one.seat.driver, list[Offence]()
        driver._on_offence = offences.append
        answer = await driver._work(one.seat.relay.sessions[0], 0, one.held(MICROBATCH), pb.FORWARD, None)
        final = await driver._judge(0, one.held_for(answer), answer)
        assert [o.answer.session.slot.slot for o in offences] == [0]
        assert final is None or final.session.slot.slot in (1, 2)

    story(tmp_path, poisoned("output", value), tell, slots=(0, 1, 2))


def test_where_the_recompute_is_not_finite_itself_nobody_is_convicted(tmp_path: Path) -> None:
    """A numeric edge: honest arithmetic on such an input gives NaN too."""

    async def tell(one: OneSeat) -> None:
        driver, offences = one.seat.driver, list[Offence]()
        driver._on_offence = offences.append
        held = one.held(MICROBATCH)
        held.inputs[1] = encode(torch.full(one.seat.context.shapes.activation, 1e38))
        answer = await driver._work(one.seat.relay.sessions[HOSTILE], 1, held, pb.LOSS, None)
        await driver._judge(1, held, answer)
        assert offences == []

    story(tmp_path, None, tell)


def zeros(reply: Reply) -> None:
    reply.result.output = encode(torch.zeros_like(decode(reply.result.output)))
    reply.resign()


def off_by_a_percent(reply: Reply) -> None:
    """No screen sees it."""
    reply.result.output = encode(decode(reply.result.output) * 1.01)
    reply.resign()


def watch(one: OneSeat, slot: int, stage: int, direction: int) -> None:
    """Its frames lie near their fences, its peers' do not."""
    engine = one.seat.driver.engine
    for _ in range(12):
        for worker in range(stage * 3, stage * 3 + 3):
            score = Score("l1", 900_000 if worker == slot else 0, -1_000_000, 1_000_000)
            engine._watch.note(stage, direction, worker, Verdict(VerdictKind.ACCEPT, "inside every fence", (score,)))
        engine._watch.close_step()
    assert engine.watched(slot, (direction,))


def test_accomplices_can_not_clear_what_lies_far_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All replicas of the stage send the same wrong tensor, and the draw asks for a replay."""
    monkeypatch.setattr(driver_module.audit, "goes_straight_to_recompute", lambda *_: False)

    async def tell(one: OneSeat) -> None:
        driver, offences, replays = one.seat.driver, list[Offence](), list[object]()
        for accomplice in (1, 2):
            tamper(one.mesh.workers[accomplice], in_the_plot)
        driver._on_offence = offences.append
        ask = driver._replay

        async def asked(*args: object) -> object:
            replays.append(args)
            return await ask(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(driver, "_replay", asked)
        answer = await driver._work(one.seat.relay.sessions[0], 0, one.held(MICROBATCH), pb.FORWARD, None)
        assert await driver._judge(0, one.held_for(answer), answer) is None
        assert [o.answer.session.slot.slot for o in offences] == [0]
        assert not replays

    def in_the_plot(worker: Worker, link: SeatLink, message: pb.ToSeat) -> list[pb.ToSeat | bytes]:
        if message.WhichOneof("kind") == "result":
            zeros(Reply(worker, link, message.result))
        return [message]

    story(tmp_path, zeros, tell, slots=(0, 1, 2))


def test_a_watched_workers_frames_are_recomputed_until_enough_were_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tell(one: OneSeat) -> None:
        driver = one.seat.driver
        monkeypatch.setattr(driver, "_is_audited", lambda *_: False)
        watch(one, 0, 0, FORWARD)
        for done in range(UPHELD + 1):
            answer = await driver._work(one.seat.relay.sessions[0], 0, one.held(done), pb.FORWARD, None)
            assert await driver._judge(0, one.held_for(answer), answer) is answer
            assert driver.counters.recomputes == min(done + 1, UPHELD)
        assert driver.counters.audits == 0
        assert not driver.engine.watched(0, (FORWARD,))

    story(tmp_path, None, tell, slots=(0, 1, 2))


@pytest.mark.parametrize("watched", [True, False])
def test_a_watched_workers_lie_is_convicted_though_no_screen_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    async def tell(one: OneSeat) -> None:
        driver, offences = one.seat.driver, list[Offence]()
        monkeypatch.setattr(driver, "_is_audited", lambda *_: False)
        driver._on_offence = offences.append
        if watched:
            watch(one, 0, 0, FORWARD)
        answer = await driver._work(one.seat.relay.sessions[0], 0, one.held(MICROBATCH), pb.FORWARD, None)
        final = await driver._judge(0, one.held_for(answer), answer)
        assert len(offences) == watched and (final is answer) == (not watched)
        if watched:
            events = [happened.event.value for happened in offences[0].history]
            assert events == ["WATCHED", "RECOMPUTE_DISAGREES"]
            assert all(happened.text() for happened in offences[0].history)

    story(tmp_path, off_by_a_percent, tell, slots=(0, 1, 2))


def test_of_two_that_disagree_neither_goes_on_where_nothing_can_be_recomputed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay may be the lie as well as the answer."""
    monkeypatch.setattr(driver_module.audit, "goes_straight_to_recompute", lambda *_: False)

    async def gone(*_: object) -> object:
        raise PeerGone("the weights are not served")

    async def tell(one: OneSeat) -> None:
        driver, offences = one.seat.driver, list[Offence]()
        monkeypatch.setattr(driver, "_is_audited", lambda *_: True)
        monkeypatch.setattr(one.seat.recomputer, "run", gone)
        monkeypatch.setattr(driver.choice, "draw", lambda some: next(s for s in some if s.slot.slot == HOSTILE))
        driver._on_offence = offences.append
        honest = one.seat.relay.sessions[HONEST[0]]
        answer = await driver._work(honest, 1, one.held(MICROBATCH), pb.LOSS, None)
        assert await driver._judge(1, one.held_for(answer), answer) is None
        assert driver.accepted == [] and offences == []
        assert driver.counters.accidents[-1][0] == HONEST[0]

    story(tmp_path, off_by_a_percent, tell)


def test_what_a_worker_had_in_hand_when_its_sum_was_dropped_is_no_loss_of_its_own(tmp_path: Path) -> None:
    """It begins a new session then, with every seat."""

    async def tell(one: OneSeat) -> None:
        driver, first = one.seat.driver, one.seat.relay.sessions[HOSTILE]
        work = driver._work

        async def interrupted(session, *rest):  # type: ignore[no-untyped-def]
            if session is first:
                driver._state.exclude(*first.id, "it broke")
                raise PeerGone("it left")
            return await work(session, *rest)

        driver._work = interrupted  # type: ignore[method-assign]
        draw, lost = driver.choice.draw, list[int]()
        driver.choice.draw = lambda some: first if first in some else draw(some)  # type: ignore[method-assign]
        driver.engine.inconclusive = lambda slot, _: lost.append(slot)  # type: ignore[method-assign]
        answer = await driver._until_accepted(1, one.held(MICROBATCH), pb.LOSS)
        assert answer.session.slot.slot in HONEST
        assert driver.counters.accidents == [] and lost == []

    story(tmp_path, None, tell)
