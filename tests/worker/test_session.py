"""A worker against seats that are hostile, or only say that they are seats. It signs nothing it should not, serves
nobody who does not prove a seat, and goes on for the honest ones."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
import torch

from sentinel_market.chain.eip712 import digest
from sentinel_market.chain.signing import recover
from sentinel_market.domain.step_record import accepted_set_digest
from sentinel_market.errors import ProtocolError
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.tensors import decode, encode, encoded_hash
from tests.support.mesh import key
from tests.worker.rig import DOMAIN, FakeSeat, Rig
from worker import session as session_module
from worker.protection import BLOCK

MakeRig = Callable[..., Rig]


def refused(seat: FakeSeat, task: pb.Task) -> str:
    answer = seat.ask(task)
    assert answer.WhichOneof("kind") == "refusal", f"the worker served a {answer.WhichOneof('kind')}"
    assert answer.refusal.dispatch == task.dispatch
    return answer.refusal.code


def served(seat: FakeSeat, task: pb.Task) -> pb.Result:
    answer = seat.ask(task)
    assert answer.WhichOneof("kind") == "result", str(answer.refusal)
    return answer.result


def eventually(condition: Callable[[], bool], time_limit: float = 30.0) -> None:
    until = time.monotonic() + time_limit
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.01)


# ---- who is a seat


def shake(rig: Rig, seat: FakeSeat, challenge: Callable[[], pb.Challenge]) -> None:
    """The seat says ``challenge``; the worker must hang up, and give no proof."""
    seat.welcomes = False
    rig.start()
    eventually(lambda: len(seat.hellos) == 1)
    seat.say(pb.ToWorker(challenge=challenge()))
    assert seat.inbox.get(timeout=30) is None, "the worker went on with it"
    assert not rig.worker.links[0].open


def test_somebody_without_the_key_of_the_seat_gets_no_proof(rig_of: MakeRig) -> None:
    rig = rig_of()
    shake(rig, rig.seats[0], lambda: rig.seats[0].challenge(key("a stranger")))


def test_another_seat_cannot_stand_in_for_this_one(rig_of: MakeRig) -> None:
    rig = rig_of()
    shake(rig, rig.seats[0], lambda: rig.seats[0].challenge(rig.seats[1].key))


@pytest.mark.parametrize(
    "change",
    [
        {"job_id": 2},
        {"slot": 0},
        {"nonce": 2},
        {"session": 5},
        {"worker_nonce": bytes(32)},
        {"next_sequence": 2},
        {"verifier_nonce": bytes(32)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_challenge_for_another_session_is_not_answered(rig_of: MakeRig, change: dict[str, object]) -> None:
    rig = rig_of()
    shake(rig, rig.seats[0], lambda: rig.seats[0].challenge(**change))


def test_a_recorded_challenge_does_not_open_a_second_session(rig_of: MakeRig) -> None:
    rig = rig_of()
    seat = rig.seats[0]
    seat.welcomes = False
    rig.start()
    eventually(lambda: len(seat.hellos) == 1)
    recorded = seat.challenge()
    seat.hang_up()
    eventually(lambda: len(seat.hellos) == 2)
    while seat.inbox.qsize():
        seat.inbox.get()
    seat.say(pb.ToWorker(challenge=recorded))
    assert seat.inbox.get(timeout=30) is None


@pytest.mark.parametrize(
    "first",
    [
        pb.ToWorker(welcome=pb.Welcome()),
        pb.ToWorker(task=pb.Task(step=0)),
        pb.ToWorker(),
        pb.ToWorker(challenge=pb.Challenge(verifier_nonce=b"short", signature=bytes(65))),
        pb.ToWorker(challenge=pb.Challenge(verifier_nonce=bytes(32), signature=b"short")),
    ],
    ids=["welcome", "task", "nothing", "nonce", "signature"],
)
def test_what_is_no_challenge_ends_the_call(rig_of: MakeRig, first: pb.ToWorker) -> None:
    rig = rig_of()
    rig.seats[0].welcomes = False
    rig.start()
    eventually(lambda: len(rig.seats[0].hellos) >= 1)
    rig.seats[0].say(first)
    assert rig.seats[0].inbox.get(timeout=30) is None
    eventually(lambda: rig.worker.links[1].open)


def test_garbage_ends_the_call_and_the_worker_dials_again(rig: Rig) -> None:
    """In the middle of a session: not a message of the protocol at all."""
    seat = rig.seats[0]
    seat.forgives = True
    for garbage in (b"\xff\xff\xff\xff", b"\x0a\xff\x01", b"\x00" * 50):
        count = len(seat.hellos)
        seat.say(garbage)
        eventually(lambda count=count: len(seat.hellos) > count)
    eventually(lambda: rig.worker.links[0].open)
    assert len(served(seat, rig.loss(seat)).commitments) == 2
    assert len(served(rig.seats[1], rig.loss(rig.seats[1])).commitments) == 2


def test_an_oversize_message_ends_the_call_and_the_worker_dials_again(rig: Rig) -> None:
    seat = rig.seats[0]
    count = len(seat.hellos)
    seat.say(pb.ToWorker(task=pb.Task(step=0, input=bytes(rig.shapes.max_message_bytes + 1))))
    eventually(lambda: len(seat.hellos) > count)
    assert len(served(rig.seats[1], rig.loss(rig.seats[1])).commitments) == 2


# ---- tasks


def test_an_honest_task_is_answered_with_commitments_that_hold(rig: Rig) -> None:
    seat = rig.seats[0]
    task = rig.loss(seat, microbatch=3)
    result = served(seat, task)
    assert [c.sequence for c in result.commitments] == [task.sequence, task.sequence + 1]
    assert decode(result.output).shape == rig.shapes.tokens
    assert result.commitments[0].output_hash == encoded_hash(result.output)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"input": encode(torch.zeros(4, 8, 15))}, "shape"),
        ({"input": encode(torch.zeros(4, 8, 16, dtype=torch.float16))}, "dtype"),
        ({"input": encode(torch.zeros(4, 8, 16))[:-1]}, "size"),
        ({"input": b""}, "header"),
        ({"incoming": encode(torch.zeros(4, 7, dtype=torch.int64))}, "shape"),
        ({"incoming": encode(torch.zeros(4, 8))}, "dtype"),
        ({"incoming": encode(torch.full((4, 8), 1 << 40))}, "compute"),
        ({"incoming": encode(torch.full((4, 8), -7))}, "compute"),
        ({"input": encode(torch.full((4, 8, 16), float("nan")))}, "nonfinite"),
        ({"input": encode(torch.full((4, 8, 16), float("inf")))}, "nonfinite"),
        ({"operation": pb.FORWARD}, "operation"),
        ({"operation": 7}, "operation"),
        ({"operation": pb.BACKWARD, "forward": 12}, "dispatch"),
        ({"weights_hash": bytes(32)}, "weights"),
        ({"weights_hash": b""}, "weights"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_a_wrong_task_is_refused_by_name_and_the_next_is_served(rig: Rig, change: dict[str, object], code: str) -> None:
    seat = rig.seats[0]
    assert refused(seat, rig.loss(seat, **change)) == code
    seat._sequence = rig.worker.links[0].watermark.next_sequence
    assert len(served(seat, rig.loss(seat)).commitments) == 2
    summed = rig.worker.runner.gradient()
    assert bool(torch.isfinite(summed).all()), "nothing of the refused task is in the sum"
    assert len(rig.worker.runner.summed) == 1


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"incoming": encode(torch.zeros(4, 8, 15))}, "shape"),
        ({"incoming": encode(torch.full((4, 8, 16), float("nan")))}, "nonfinite"),
        ({"incoming": b""}, "header"),
        ({"forward": 99}, "dispatch"),
        ({"microbatch": 5}, "dispatch"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_a_wrong_backward_is_refused_and_adds_nothing(rig_of: MakeRig, change: dict[str, object], code: str) -> None:
    rig = rig_of(stage=0).ready()
    seat = rig.seats[0]
    forward = rig.forward(seat)
    served(seat, forward)
    assert refused(seat, rig.backward(seat, **{"forward": forward.dispatch, **change})) == code
    assert not torch.count_nonzero(rig.worker.runner.gradient())
    assert not rig.worker.runner.summed


def test_the_forward_of_one_seat_is_no_forward_of_another(rig_of: MakeRig) -> None:
    rig = rig_of(stage=0).ready()
    first, second = rig.seats
    forward = rig.forward(first)
    served(first, forward)
    assert refused(second, rig.backward(second, forward.dispatch)) == "dispatch"
    assert len(served(first, rig.backward(first, forward.dispatch)).commitments) == 1


def test_tokens_beyond_the_vocabulary_are_refused(rig_of: MakeRig) -> None:
    rig = rig_of(stage=0).ready()
    for token in (1 << 40, 100_000, -1):
        assert refused(rig.seats[0], rig.forward(rig.seats[0], input=encode(torch.full((4, 8), token)))) == "compute"
        rig.seats[0]._sequence = rig.worker.links[0].watermark.next_sequence
    served(rig.seats[0], rig.forward(rig.seats[0]))


# ---- sequences


def test_a_passed_sequence_is_never_signed_again(rig: Rig) -> None:
    seat = rig.seats[0]
    first = rig.loss(seat)
    served(seat, first)
    for sequence in (first.sequence, first.sequence + 1, 0):
        assert refused(seat, rig.loss(seat, sequence=sequence, microbatch=1)) == "sequence"


def test_the_second_sequence_of_a_loss_task_is_taken_too(rig: Rig) -> None:
    seat = rig.seats[0]
    used: set[int] = set()
    for _ in range(4):
        for commitment in served(seat, rig.loss(seat)).commitments:
            assert commitment.sequence not in used
            used.add(commitment.sequence)


@pytest.mark.parametrize("far", [BLOCK + 10, 2**40, 2**64 - 1])
def test_a_jump_of_more_than_a_block_is_refused_and_moves_nothing(rig: Rig, far: int) -> None:
    seat = rig.seats[0]
    before = rig.worker.links[0].watermark.next_sequence
    assert refused(seat, rig.loss(seat, sequence=far)) == "sequence"
    assert rig.worker.links[0].watermark.next_sequence == before
    served(seat, rig.loss(seat, sequence=before))


def test_each_seat_has_a_watermark_of_its_own(rig: Rig) -> None:
    first, second = rig.seats
    for _ in range(3):
        served(first, rig.loss(first))
    assert served(second, rig.loss(second, sequence=1)).commitments[0].sequence == 1


def test_a_worker_that_comes_back_starts_above_everything_it_signed(rig_of: MakeRig) -> None:
    rig = rig_of().ready()
    seat = rig.seats[0]
    signed = {c.sequence for _ in range(3) for c in served(seat, rig.loss(seat)).commitments}
    again = rig.make()
    assert again.links[0].watermark.next_sequence > max(signed)
    assert again.session != rig.worker.session


# ---- steps and weights


def test_a_task_of_an_old_step_is_refused(rig: Rig) -> None:
    seat = rig.seats[0]
    old = rig.weights_hash
    seat.say(pb.ToWorker(weights=rig.weights(1)))
    eventually(lambda: rig.worker.runner.step == 1)
    assert refused(seat, rig.loss(seat, step=0, weights_hash=old)) == "weights"
    assert refused(seat, rig.loss(seat, step=0)) == "weights", "the new weights do not make it a task of today"
    served(seat, rig.loss(seat, step=1))


def test_a_task_of_the_next_step_waits_for_its_weights(rig: Rig) -> None:
    seat = rig.seats[0]
    weights = rig.weights(1)
    early = rig.loss(seat, step=1, weights_hash=encoded_hash(weights.payload))
    seat.say(pb.ToWorker(task=early))
    late = rig.loss(seat, step=0, sequence=early.sequence)
    assert served(seat, late).dispatch == late.dispatch
    rig.seats[1].say(pb.ToWorker(weights=weights))
    assert seat.hear("refusal").refusal.code == "sequence", "its number was used meanwhile"
    seat._sequence = rig.worker.links[0].watermark.next_sequence
    assert served(seat, rig.loss(seat, step=1)).step == 1


def test_weights_that_no_quorum_signed_are_refused(rig: Rig) -> None:
    seat, before = rig.seats[0], rig.weights_hash
    for signers in (0, 1):
        seat.say(pb.ToWorker(weights=rig.weights(1, signers=signers)))
        assert seat.hear("refusal").refusal.code == "record"
    twice = rig.weights(1, signers=1)
    twice.record.signatures.append(twice.record.signatures[0])
    seat.say(pb.ToWorker(weights=twice))
    assert seat.hear("refusal").refusal.code == "record"
    assert (rig.worker.runner.step, rig.weights_hash) == (0, before)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda w: setattr(w, "payload", encode(torch.zeros(5))), "weights"),
        (lambda w: setattr(w, "payload", w.payload[:-4] + bytes(4)), "weights"),
        (lambda w: setattr(w, "payload", b""), "weights"),
        (lambda w: setattr(w, "step", 2), "record"),
        (lambda w: setattr(w, "step", 2**64 - 1), "record"),
        (lambda w: setattr(w.record, "step", 3), "record"),
        (lambda w: w.record.new_weights.__setitem__(1, bytes(32)), "record"),
        (lambda w: w.record.new_weights.append(bytes(32)), "record"),
        (lambda w: w.record.new_weights.pop(), "record"),
        (lambda w: w.ClearField("record"), "record"),
        (lambda w: setattr(w.record, "previous", b"short"), "record"),
        (lambda w: setattr(w.record.signatures[0], "signature", b"short"), "record"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_altered_weights_are_refused_and_the_worker_goes_on(
    rig: Rig, change: Callable[[pb.Weights], object], code: str
) -> None:
    seat, before = rig.seats[0], rig.weights_hash
    weights = rig.weights(1)
    change(weights)
    seat.say(pb.ToWorker(weights=weights))
    refusal = seat.hear("refusal").refusal
    assert refusal.code in {code, "message"}
    assert (rig.worker.runner.step, rig.weights_hash) == (0, before)
    served(seat, rig.loss(seat))


def test_signed_weights_of_another_stage_are_refused(rig: Rig) -> None:
    weights = rig.weights(1)
    other = rig.flats[0]
    weights.payload = encode(torch.randn(other.shape, generator=torch.Generator().manual_seed(1)) * 0.02)
    rig.seats[0].say(pb.ToWorker(weights=weights))
    assert rig.seats[0].hear("refusal").refusal.code == "weights"


def test_the_same_weights_twice_do_not_clear_the_sum(rig: Rig) -> None:
    seat = rig.seats[0]
    weights = rig.weights(1)
    seat.say(pb.ToWorker(weights=weights))
    eventually(lambda: rig.worker.runner.step == 1)
    served(seat, rig.loss(seat, step=1))
    for step in (1, 0):
        seat.say(pb.ToWorker(weights=pb.Weights(record=weights.record, payload=weights.payload, step=step)))
    served(seat, rig.loss(seat, step=1))
    assert len(rig.worker.runner.summed) == 2


def test_parked_tasks_are_bounded_for_each_seat(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile seat cannot fill the memory, nor the room that an honest one needs."""
    monkeypatch.setattr(session_module, "MAX_PARKED", 3)
    hostile, honest = rig.seats
    for _ in range(3):
        hostile.say(pb.ToWorker(task=rig.loss(hostile, step=2**40)))
    assert refused(hostile, rig.loss(hostile, step=1)) == "step"
    weights = rig.weights(1)
    honest.say(pb.ToWorker(task=rig.loss(honest, step=1, weights_hash=encoded_hash(weights.payload))))
    honest.say(pb.ToWorker(weights=weights))
    assert honest.hear().WhichOneof("kind") == "result"


# ---- sums


def test_the_sum_is_signed_for_exactly_the_named_set(rig: Rig) -> None:
    seat = rig.seats[0]
    results = [served(seat, rig.loss(seat, microbatch=m)) for m in range(3)]
    named = list(rig.worker.runner.summed)
    for wrong in ([*named, bytes(32)], [*named, named[0]], [], [*named[:2], b"x"]):
        request = pb.SumRequest(step=0, round=1, sequence=seat._sequence, commitments=wrong)
        seat.say(pb.ToWorker(sum=request))
        refusal = seat.hear("refusal").refusal
        assert (refusal.code, refusal.round, refusal.dispatch) == ("set", 1, 0)
        assert set(refusal.missing) == set(wrong) - set(named)
        assert set(refusal.extra) == set(named) - set(wrong)
    seat.say(pb.ToWorker(sum=pb.SumRequest(step=0, round=2, sequence=seat._sequence, commitments=named)))
    answer = seat.hear("gradient").gradient
    assert answer.count == len(results)
    assert answer.accepted_set == accepted_set_digest(named)
    message = rig.worker.links[0].session_key.gradient(
        sequence=answer.sequence,
        step=0,
        accepted_set=answer.accepted_set,
        count=3,
        gradient_hash=encoded_hash(answer.gradient),
        weights_hash=rig.weights_hash,
    )
    assert recover(digest(DOMAIN, message), answer.signature) == rig.key.address


def test_a_seat_has_few_sums_computed_anew_a_step(rig: Rig) -> None:
    seat = rig.seats[0]
    for microbatch in range(2):
        served(seat, rig.loss(seat, microbatch=microbatch))
    named = list(rig.worker.runner.summed)

    def ask(commitments: list[bytes]) -> None:
        request = pb.SumRequest(step=0, round=1, sequence=seat._sequence, commitments=commitments)
        seat.say(pb.ToWorker(sum=request))

    for _ in range(session_module.MAX_MADE_AGAIN):
        ask(named[:1])
        assert seat.hear("gradient").gradient.accepted_set == accepted_set_digest(named[:1])
        seat._sequence += 1
    ask(named[:1])
    assert list(seat.hear("refusal").refusal.extra) == named[1:]
    ask(named)
    assert seat.hear("gradient").gradient.count == 2, "the whole sum is at hand"


def test_a_sum_with_a_passed_sequence_or_of_an_old_step_is_not_signed(rig: Rig) -> None:
    seat = rig.seats[0]
    task = rig.loss(seat)
    served(seat, task)
    named = list(rig.worker.runner.summed)
    seat.say(pb.ToWorker(sum=pb.SumRequest(step=0, sequence=task.sequence, commitments=named)))
    assert seat.hear("refusal").refusal.code == "sequence"
    seat.say(pb.ToWorker(weights=rig.weights(1)))
    eventually(lambda: rig.worker.runner.step == 1)
    seat.say(pb.ToWorker(sum=pb.SumRequest(step=0, sequence=seat._sequence, commitments=named)))
    assert seat.hear("refusal").refusal.code == "step"


# ---- receipts


def step_on(rig: Rig, step: int) -> None:
    rig.seats[1].say(pb.ToWorker(weights=rig.weights(step, seed=step)))
    eventually(lambda: rig.worker.runner.step == step)


def test_a_seat_that_withholds_receipts_is_not_served_on(rig: Rig) -> None:
    seat = rig.seats[0]
    served(seat, rig.loss(seat))
    step_on(rig, 1)
    served(seat, rig.loss(seat, step=1))
    step_on(rig, 2)
    assert refused(seat, rig.loss(seat, step=2)) == "receipt"
    assert refused(seat, rig.loss(seat, step=2)) == "receipt"
    seat.say(pb.ToWorker(receipt=seat.receipt(1, 4)))
    served(seat, rig.loss(seat, step=2))


def test_a_seat_that_gives_receipts_is_served_on_and_they_are_kept(rig: Rig) -> None:
    seat = rig.seats[0]
    for step in range(5):
        if step:
            step_on(rig, step)
            seat.say(pb.ToWorker(receipt=seat.receipt(step - 1, 2 * step)))
        served(seat, rig.loss(seat, step=step))
    files = list((rig.home / "receipts").iterdir())
    assert [json.loads(f.read_text())["units"] for f in files] == [8]


def test_a_receipt_for_steps_to_come_buys_no_service(rig: Rig) -> None:
    seat = rig.seats[0]
    served(seat, rig.loss(seat))
    seat.say(pb.ToWorker(receipt=seat.receipt(2**63)))
    for step in (1, 2):
        step_on(rig, step)
        served(seat, rig.loss(seat, step=step))
    step_on(rig, 3)
    assert refused(seat, rig.loss(seat, step=3)) == "receipt"


@pytest.mark.parametrize("case", ["stranger", "other seat", "other account", "malformed", "fewer units"])
def test_a_false_receipt_is_refused_and_not_kept(rig: Rig, case: str) -> None:
    seat = rig.seats[0]
    seat.say(pb.ToWorker(receipt=seat.receipt(1, 10)))
    receipts = {
        "stranger": lambda: seat.receipt(2, 20, key("a stranger")),
        "other seat": lambda: seat.receipt(2, 20, rig.seats[1].key),
        "other account": lambda: seat.receipt(2, 20, account=rig.seats[1].account),
        "malformed": lambda: pb.Receipt(step=2, units=20, signature=b"x"),
        "fewer units": lambda: seat.receipt(2, 9),
    }
    seat.say(pb.ToWorker(receipt=receipts[case]()))
    assert seat.hear("refusal").refusal.code in {"receipt", "signature"}
    (kept,) = (rig.home / "receipts").iterdir()
    assert json.loads(kept.read_text())["units"] == 10


# ---- goodbyes


def test_one_hostile_seat_cannot_send_a_worker_home(rig: Rig) -> None:
    """What one seat says binds that seat; q of them end the work."""
    hostile, honest = rig.seats
    for code in ("quarantined", "stopped", "finished"):
        hostile.say(pb.ToWorker(goodbye=pb.Goodbye(code=code, message="go home")))
    served(honest, rig.loss(honest))
    assert rig.alive
    assert rig.fatal is None


def test_a_quorum_of_seats_sends_a_worker_home_with_the_reason(rig: Rig) -> None:
    for seat in rig.seats:
        seat.say(pb.ToWorker(goodbye=pb.Goodbye(code="quarantined", message="forward of step 3")))
    rig.ended()
    assert "quarantined: forward of step 3" in str(rig.fatal)


def test_a_notice_and_a_goodbye_to_try_again_end_nothing(rig: Rig) -> None:
    for seat in rig.seats:
        seat.say(pb.ToWorker(goodbye=pb.Goodbye(code="notice", message="a second process holds the key")))
        seat.say(pb.ToWorker(goodbye=pb.Goodbye(code="duplicate", message="later", retry=True)))
    for seat in rig.seats:
        served(seat, rig.loss(seat))
    assert rig.alive


def test_the_work_is_over_when_every_seat_says_finished(rig: Rig) -> None:
    for seat in rig.seats:
        seat.say(pb.ToWorker(receipt=seat.receipt(0, 3)))
        seat.say(pb.ToWorker(goodbye=pb.Goodbye(code="finished", message="done")))
    rig.ended()
    assert rig.worker.finished
    assert rig.fatal is None
    assert len(list((rig.home / "receipts").iterdir())) == 2


def test_a_seat_that_dies_does_not_keep_a_finished_worker_waiting(rig: Rig) -> None:
    rig.seats[0].say(pb.ToWorker(goodbye=pb.Goodbye(code="finished", message="done")))
    served(rig.seats[1], rig.loss(rig.seats[1]))
    rig.seats[1].close()
    rig.ended()
    assert rig.worker.finished


def test_a_damaged_watermark_stops_the_worker_before_it_dials(rig_of: MakeRig) -> None:
    rig = rig_of()
    (path,) = (link.watermark.path for link in rig.worker.links[:1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{")
    with pytest.raises(ProtocolError, match="watermark"):
        rig.make()


def test_stop_says_bye_to_the_seats(rig: Rig) -> None:
    rig.worker.stop("SIGTERM")
    assert rig.seats[0].hear("bye").bye.reason == "SIGTERM"
    rig.ended()
