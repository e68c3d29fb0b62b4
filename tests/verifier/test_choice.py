"""Who is asked next: what happened to a worker puts it behind others, and never leaves a stage without its last one."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import cast

import pytest

from sentinel_market.errors import Fatal
from sentinel_market.wire import relay_pb2 as pb
from verifier.check.liveness import InconclusiveRates
from verifier.choice import Choice
from verifier.context import SeatContext
from verifier.receipts import Receipts
from verifier.relay import Relay, WorkerSession
from verifier.step import StepState

LIMIT = 0.5


class Session(SimpleNamespace):
    """What a choice sees of one."""

    def __init__(self, slot: int, nonce: int = 1) -> None:
        super().__init__(
            slot=SimpleNamespace(slot=slot, nonce=nonce),
            id=(slot, 100 * nonce + slot),
            stage=0,
            closed=False,
            ready=(0, b""),
            suspended_until=0.0,
            silent_seconds=0.0,
            service_seconds=0.1,
            in_flight=0,
            sent=[],
        )

    def send(self, message: pb.ToWorker) -> None:
        self.sent.append(message)


class Stage:
    """One stage of replicas 0, 1, 2."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("verifier.choice.PATIENCE_SECONDS", 0.4)
        monkeypatch.setattr("verifier.choice.AGAIN_SECONDS", 0.1)
        self.sessions = [Session(slot) for slot in range(3)]
        self.relay = cast(Relay, SimpleNamespace(sessions={s.slot.slot: s for s in self.sessions}))
        self.barred: set[int] = set()
        self.rates = InconclusiveRates()
        self.state = StepState(0)
        spec = SimpleNamespace(seed=7)
        context = SimpleNamespace(spec=spec, me=0, num_stages=1, num_replicas=3, stage_of=lambda _: 0)
        self.choice = Choice(
            cast(SeatContext, context),
            self.relay,
            self.barred.__contains__,
            self.rates.overloaded,
            self.rates.forget,
            lambda: LIMIT,
        )
        self.choice.begin(self.state)

    def drop(self, slot: int, times: int = 1) -> None:
        """So many sums, each of another session."""
        for number in range(times):
            self.state.exclude(slot, 1 + number, "it broke")

    def lose(self, slot: int, lost: int, done: int) -> None:
        for _ in range(done):
            self.rates.seen(0, slot)
        for _ in range(lost):
            self.rates.inconclusive(0, slot)

    def picked(self, *avoid: int) -> set[int]:
        """By whom work may be done, from many draws."""
        ids = {self.sessions[slot].id for slot in avoid}
        return {
            asyncio.run(self.choice.pick(0, ids)).slot.slot  # type: ignore[arg-type]
            for _ in range(1 if avoid else 30)
        }


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


def test_all_that_live_are_drawn(stage: Stage) -> None:
    assert stage.picked() == {0, 1, 2}
    stage.sessions[0].closed = True
    stage.sessions[1].ready = (1, b"")
    assert stage.picked() == {2}


def test_who_lost_a_sum_in_this_step_comes_after_the_others(stage: Stage) -> None:
    """A worker that breaks each of its sums and joins again could else make a step last for ever."""
    stage.drop(0)
    assert stage.picked() == {1, 2}
    assert [s.slot.slot for s in stage.choice.live(0)] == [1, 2], "and replays nothing"
    stage.drop(1, 2)
    stage.drop(2, 2)
    assert stage.picked() == {0}
    stage.sessions[0].closed = True
    assert stage.picked() == {1, 2}
    stage.choice.begin(StepState(1))
    assert stage.picked() == {1, 2}


def test_the_session_of_a_dropped_sum_gets_nothing_and_its_successor_does(stage: Stage) -> None:
    for one in stage.sessions:
        stage.state.exclude(*one.id, "it broke")
    assert stage.choice.live(0) == []
    stage.relay.sessions[1] = cast(WorkerSession, Session(1, nonce=2))
    assert stage.picked() == {1}


def test_an_overloaded_worker_works_where_nobody_else_does(stage: Stage) -> None:
    stage.lose(0, 20, 20)
    stage.lose(1, 0, 20)
    stage.lose(2, 0, 20)
    assert stage.rates.overloaded(0)
    assert stage.picked() == {1, 2}
    assert stage.picked(1, 2) == {0}, "the others failed at this piece of work"
    stage.barred.add(1)
    stage.sessions[2].closed = True
    assert stage.picked() == {0}, "the last of its stage"


def test_who_is_gone_is_nobodys_peer_and_leaves_its_successor_nothing(stage: Stage) -> None:
    stage.lose(0, 5, 95)
    stage.lose(1, 20, 80)
    stage.lose(2, 0, 100)
    assert not stage.rates.overloaded(0)
    stage.rates.forget(1)
    assert stage.rates.overloaded(0)
    stage.rates.forget(2)
    assert not stage.rates.overloaded(0), "there is nobody to compare it with"
    stage.lose(1, 0, 100)
    assert stage.rates.overloaded(0)
    for nonce in (1, 1, 2):
        assert stage.rates.overloaded(0)
        stage.choice.met(cast(WorkerSession, Session(0, nonce)))
    assert not stage.rates.overloaded(0), "another account holds the slot"


def test_who_failed_is_asked_again_where_nobody_else_is_there(stage: Stage) -> None:
    assert stage.picked(0, 1) == {2}
    began = time.monotonic()
    assert stage.picked(0, 1, 2) <= {0, 1, 2}
    assert time.monotonic() - began > 0.1


def test_the_last_replica_is_asked_again_though_it_let_a_time_limit_pass(stage: Stage) -> None:
    stage.barred.update((0, 1))
    stage.sessions[2].suspended_until = time.monotonic() + 100.0
    stage.sessions[2].silent_seconds = 1.4
    assert stage.choice.live(0) == []
    assert stage.picked() == {2}
    stage.sessions[2].silent_seconds = 1.6
    with pytest.raises(
        Fatal, match=r"slot 0: convicted or distrusted, slot 1: .*, slot 2: silent for 2 s\); start one"
    ):
        stage.picked()


def test_a_stage_waits_for_a_replacement(stage: Stage) -> None:
    stage.barred.update((0, 1, 2))

    async def story() -> int:
        asyncio.get_running_loop().call_later(0.2, stage.barred.discard, 1)
        return (await stage.choice.pick(0, ())).slot.slot

    assert asyncio.run(story()) == 1


# ---- receipts


def test_a_receipt_that_was_lost_with_its_stream_is_handed_out_again(stage: Stage) -> None:
    receipts = Receipts(stage.relay)
    receipts.take(4, [pb.SlotUnits(slot=0, nonce=1, units=9), pb.SlotUnits(slot=5, nonce=1, units=3)])
    receipts.hand_out()
    receipts.hand_out()
    first = stage.sessions[0]
    assert [(one.receipt.step, one.receipt.units) for one in first.sent] == [(4, 9)], "once a session"
    again, other = Session(0), Session(0, nonce=2)
    receipts.hand_to(cast(WorkerSession, again))
    receipts.hand_to(cast(WorkerSession, other))
    assert again.sent == first.sent
    assert other.sent == [], "it is for another account"
