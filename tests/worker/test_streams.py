"""A worker's streams break, or its sum is dropped: what belongs to the past has no effect on what comes after."""

from __future__ import annotations

import threading

import pytest

from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.tensors import encoded_hash
from tests.worker.rig import FakeSeat, Rig
from tests.worker.test_session import eventually, served
from worker import session as session_module

# ---- a stream that broke


def reconnected(rig: Rig, seat: FakeSeat) -> None:
    """Hang up on the worker, and wait until it has dialled again and is ready."""
    seat.forgives = True
    before = seat.proofs
    seat.hang_up()
    eventually(lambda: seat.proofs > before)
    seat.hear("ready")


def test_a_task_that_waits_for_weights_goes_with_its_stream(rig: Rig) -> None:
    """The seat gave it to somebody else when the stream broke; its answer would be nobody's."""
    seat, weights = rig.seats[0], rig.weights(1)
    hashed = encoded_hash(weights.payload)
    seat.say(pb.ToWorker(task=rig.loss(seat, step=1, weights_hash=hashed)))
    eventually(lambda: len(rig.worker._parked) == 1)
    reconnected(rig, seat)
    seat.say(pb.ToWorker(weights=weights))
    task = rig.loss(seat, step=1, weights_hash=hashed)
    assert served(seat, task).dispatch == task.dispatch
    assert len(rig.worker.runner.summed) == 1


def test_tasks_of_a_broken_stream_make_no_room_scarce_in_the_new_one(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "MAX_PARKED", 2)
    seat, weights = rig.seats[0], rig.weights(1)
    hashed = encoded_hash(weights.payload)
    for _ in range(2):
        seat.say(pb.ToWorker(task=rig.loss(seat, step=1, weights_hash=hashed)))
    eventually(lambda: len(rig.worker._parked) == 2)
    reconnected(rig, seat)
    task = rig.loss(seat, step=1, weights_hash=hashed)
    seat.say(pb.ToWorker(task=task))
    seat.say(pb.ToWorker(weights=weights))
    answer = seat.hear()
    assert answer.WhichOneof("kind") == "result"
    assert answer.result.dispatch == task.dispatch


def test_tasks_in_hand_when_a_stream_breaks_are_not_answered_in_the_next(rig: Rig) -> None:
    """One is being computed, one is in the queue. The receipt that the second brought counts: it is signed pay."""
    seat, link = rig.seats[0], rig.worker.links[0]
    begun, go_on = threading.Event(), threading.Event()
    compute = rig.worker.runner.loss

    def slow(*args: object) -> object:
        begun.set()
        assert go_on.wait(30)
        return compute(*args)  # type: ignore[arg-type]

    rig.worker.runner.loss = slow  # type: ignore[method-assign,assignment]
    seat.say(pb.ToWorker(task=rig.loss(seat)))
    assert begun.wait(30)
    seat.say(pb.ToWorker(task=rig.loss(seat, receipt=seat.receipt(0))))
    eventually(lambda: not rig.worker._inbox.empty())
    reconnected(rig, seat)
    go_on.set()
    eventually(lambda: link.receipt_step == 0)
    task = rig.loss(seat)
    assert served(seat, task).dispatch == task.dispatch
    assert len(rig.worker.runner.summed) == 2, "the one that was begun, and the new one"


# ---- a dropped sum


def dropped(session: int) -> pb.ToWorker:
    return pb.ToWorker(goodbye=pb.Goodbye(code="dropped", message="it broke", retry=True, dropped=session))


def test_after_its_sum_is_dropped_a_worker_begins_anew_with_every_seat(rig: Rig) -> None:
    """Under the same session nothing that it does in this step would count."""
    other, primary = rig.seats
    for seat in rig.seats:
        served(seat, rig.loss(seat))
        seat.forgives = True
    before = rig.worker.session
    primary.say(dropped(before))
    eventually(lambda: rig.worker.session != before)
    eventually(lambda: all(link.open for link in rig.worker.links))
    assert not rig.worker.runner.summed
    assert not bool(rig.worker.runner.gradient().any())
    for seat, link in zip(rig.seats, rig.worker.links, strict=True):
        assert [hello.session for hello in seat.hellos] == [before, rig.worker.session]
        assert served(seat, rig.loss(seat)).dispatch
        assert link.session_key.session == rig.worker.session
    assert len(rig.worker.runner.summed) == 2
    primary.say(dropped(before))
    reconnected(rig, other)
    assert len(rig.worker.runner.summed) == 2, "that is over"


def test_only_the_primary_of_its_stage_lets_a_worker_begin_anew(rig: Rig) -> None:
    """Any seat could else take from the others what the worker did for them."""
    other, primary = rig.seats
    served(primary, rig.loss(primary))
    before, other.forgives = rig.worker.session, True
    other.say(dropped(before))
    reconnected(rig, other)
    primary.say(dropped(before + 1))
    served(primary, rig.loss(primary))
    assert rig.worker.session == before
    assert len(rig.worker.runner.summed) == 2
    assert {hello.session for seat in rig.seats for hello in seat.hellos} == {before}
