"""Faults in the mesh: a crash, a return, a stall, a dead seat, a lie in a sum, collusion.

The run goes on or names what stopped it, nobody honest is punished, and what was computed is what a plain loop over the
recorded multisets computes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sentinel_market.chain.eip712 import digest
from sentinel_market.errors import Fatal
from sentinel_market.models.jobs import model_config, optimizer_config
from sentinel_market.models.plain import plain_loop
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.tensors import decode, encode, encoded_hash
from tests.pipeline.test_catch import quarantined
from tests.pipeline.test_equals_plain import batches
from tests.support.mesh import Mesh, job_toml
from tests.verifier.rig import DOMAIN, Tamper, tamper
from tests.verifier.test_frames import UNREADABLE, Reply, poisoned
from worker.session import SeatLink, Worker

SEAT_PATIENCE = 30.0


def small(tmp_path: Path, **options: object) -> Mesh:
    values: dict[str, object] = {"stages": 2, "layers": 2, "dim": 16, "seq_len": 8, "steps": 8, "warmup_steps": 4}
    return Mesh(job_toml(**{**values, **options}), tmp_path)  # type: ignore[arg-type]


def hostile(mesh: Mesh, slots: dict[int, Tamper]) -> None:
    """What these workers send goes through a function first."""
    make = mesh.worker

    def worker(slot: int, home: Path | None = None) -> Worker:
        found = make(slot, home)
        if slot in slots:
            tamper(found, slots[slot])
        return found

    mesh.worker = worker  # type: ignore[method-assign]


def each_step(mesh: Mesh, before: Callable[[int, int], object]) -> None:
    """Every seat awaits ``before(seat, step)`` before each step."""
    start = mesh.start_seats

    async def starting() -> None:
        await start()
        for index, seat in enumerate(mesh.seats):

            async def step(number: int, index: int = index, one_step=seat._one_step) -> None:
                waited = before(index, number)
                if asyncio.iscoroutine(waited):
                    await waited
                await one_step(number)

            seat._one_step = step  # type: ignore[method-assign]

    mesh.start_seats = starting  # type: ignore[method-assign]


def multisets(mesh: Mesh) -> list[list[dict[int, list[int]]]]:
    """Step -> stage -> slot -> microbatches."""
    return [
        [dict(stage) for stage in step["multisets"]]  # type: ignore[attr-defined]
        for step in mesh.events[0].steps
        if "multisets" in step
    ]


def equals_plain(mesh: Mesh) -> None:
    spec, recorded = mesh.spec, multisets(mesh)
    assert len(recorded) == spec.training.steps
    for step in recorded:
        for stage in step:
            assert {m for ids in stage.values() for m in ids} == set(range(spec.training.microbatches))
    plain = plain_loop(
        model_config(spec),
        batches(mesh),
        spec.training.steps,
        spec.seed,
        optimizer_config(spec),
        [[list(stage.values()) for stage in step] for step in recorded],
        num_stages=spec.parallelism.stages,
    )
    assert mesh.events[0].losses == pytest.approx(plain.losses, rel=1e-3)


def nobody_is_accused(mesh: Mesh) -> None:
    assert quarantined(mesh) == {}
    assert mesh.court.reports == []
    wrong = {"quarantined", "false alarm", "receipt refused"}
    assert not [v for events in mesh.events for v in events.verdicts if v["kind"] in wrong]


def dies_at(step: int, dead: list[Worker]) -> Tamper:
    """The process ends instead of its second answer of a step: nothing more is said, the connections break, and the
    sum with its first answer is lost."""
    answers: dict[int, int] = {}

    def change(worker: Worker, link: SeatLink, message: pb.ToSeat) -> list[pb.ToSeat | bytes]:
        if worker in dead:
            return []
        if dead or message.WhichOneof("kind") != "result" or message.result.step < step:
            return [message]
        answers[message.result.step] = answers.get(message.result.step, 0) + 1
        if answers[message.result.step] == 2:
            dead.append(worker)
            worker._stopping.set()
            for other in worker.links:
                other.outbox.put(None)
            return []
        return [message]

    return change


def test_a_worker_killed_in_a_step_is_replaced_and_the_run_goes_on(tmp_path: Path) -> None:
    mesh, dead = small(tmp_path), list[Worker]()
    hostile(mesh, {3: dies_at(2, dead)})
    asyncio.run(mesh.train())
    assert len(dead) == 1
    at = dead[0].runner.step
    recorded, steps = multisets(mesh), [s for s in mesh.events[0].steps if "excluded" in s]
    assert all(3 not in step[1] for step in recorded[at:])
    assert [s["step"] for s in steps if s["excluded"]] == [at], "its sum was lost, and made again elsewhere"
    nobody_is_accused(mesh)
    equals_plain(mesh)


def test_a_worker_that_comes_back_as_a_new_process_gets_work_again(tmp_path: Path) -> None:
    mesh, dead = small(tmp_path, steps=12), list[Worker]()
    hostile(mesh, {3: dies_at(2, dead)})
    again: list[Worker] = []

    async def before(seat: int, step: int) -> None:
        if step != 6:
            return
        if not again:
            again.append(mesh.start_worker(3))
            assert again[0].session != dead[0].session
        async with asyncio.timeout(60):
            while True:
                session = mesh.seats[seat].relay.sessions.get(3)
                if session is not None and session.session == again[0].session and session.ready is not None:
                    return
                await asyncio.sleep(0.01)

    each_step(mesh, before)
    asyncio.run(mesh.train())
    recorded = multisets(mesh)
    assert all(3 not in step[1] for step in recorded[dead[0].runner.step : 6])
    assert any(3 in step[1] for step in recorded[6:]), "it got no work"
    assert 3 not in mesh.worker_errors
    nobody_is_accused(mesh)
    equals_plain(mesh)


def test_a_worker_that_answers_too_late_loses_the_unit_and_nothing_else(tmp_path: Path) -> None:
    mesh = small(tmp_path, steps=4)
    swallowed: list[int] = []

    def silent(worker: Worker, link: SeatLink, message: pb.ToSeat) -> list[pb.ToSeat | bytes]:
        if message.WhichOneof("kind") == "result" and message.result.step >= 1:
            swallowed.append(message.result.step)
            return []
        return [message]

    def hurry(seat: int, step: int) -> None:
        mesh.seats[seat].driver.time_limit = lambda: 1.5  # type: ignore[method-assign]

    hostile(mesh, {3: silent})
    each_step(mesh, hurry)
    asyncio.run(mesh.train())
    assert swallowed
    assert mesh.worker_errors == {}
    nobody_is_accused(mesh)
    equals_plain(mesh)


def test_a_dead_seat_stops_the_run_which_names_it_and_its_stages(tmp_path: Path) -> None:
    mesh = small(tmp_path, steps=10_000)
    found: list[BaseException | None] = []

    async def story() -> float:
        await mesh.start_seats()
        for slot in range(6):
            mesh.start_worker(slot)
        runs = [asyncio.create_task(seat.run()) for seat in mesh.seats]
        async with asyncio.timeout(120):
            while mesh.seats[1].step < 3:
                await asyncio.sleep(0.01)
        runs[1].cancel()
        for session in list(mesh.seats[1].relay.sessions.values()):
            session.close("killed")
        assert mesh.seats[1].relay._server is not None
        await mesh.seats[1].relay._server.stop(None)
        began = time.monotonic()
        found.extend(await asyncio.gather(runs[0], runs[2], return_exceptions=True))
        took = time.monotonic() - began
        await asyncio.gather(*(mesh.seats[i].stop("stopped", str(found[0])) for i in (0, 2)))
        await asyncio.gather(runs[1], return_exceptions=True)
        for thread in mesh._threads:
            await asyncio.to_thread(thread.join, 20)
        assert not any(thread.is_alive() for thread in mesh._threads), "the workers were not sent home"
        return took

    took = asyncio.run(story())
    for error in found:
        assert isinstance(error, Fatal), repr(error)
        assert "seat 1" in str(error)
        assert mesh.seats[1].context.account in str(error)
        assert "stages 1" in str(error)
    assert took < SEAT_PATIENCE
    assert mesh.escrow.roots == []
    assert all("seat 1" in reason for reason in mesh.worker_errors.values())


def test_a_replica_that_lies_in_its_sum_is_convicted_and_its_sum_left_out(tmp_path: Path) -> None:
    """Its frames were right; its sum does not have their sketches, and a recompute of the whole says who is wrong."""
    mesh = small(tmp_path)
    lies: list[int] = []

    def lie(worker: Worker, link: SeatLink, message: pb.ToSeat) -> list[pb.ToSeat | bytes]:
        given = message.gradient
        if message.WhichOneof("kind") == "gradient" and given.step >= 2 and not lies:
            lies.append(given.step)
            given.gradient = encode(decode(given.gradient) * 1.01)
            given.gradient_hash = encoded_hash(given.gradient)
            signed = link.session_key.gradient(
                sequence=given.sequence,
                step=given.step,
                accepted_set=given.accepted_set,
                count=given.count,
                gradient_hash=given.gradient_hash,
                weights_hash=given.weights_hash,
            )
            given.signature = worker.context.key.sign(digest(DOMAIN, signed))
        return [message]

    hostile(mesh, {3: lie})
    asyncio.run(mesh.train())
    recorded = multisets(mesh)
    assert len(lies) == 1
    assert all(3 not in step[1] for step in recorded[lies[0] :])
    assert quarantined(mesh) == {3: lies[0]}
    assert [slot for slot, _ in mesh.court.reports] == [3]
    equals_plain(mesh)


@pytest.mark.parametrize("poison", ["gradient", "sketch"])
def test_a_worker_that_signs_nan_is_convicted_by_a_quorum(tmp_path: Path, poison: str) -> None:
    mesh = small(tmp_path, steps=5)
    change = poisoned(poison, float("nan"))

    def nan(worker: Worker, link: SeatLink, message: pb.ToSeat) -> list[pb.ToSeat | bytes]:
        if message.WhichOneof("kind") == "result":
            (*_, last) = worker.runner.summed.values()
            change(Reply(worker, link, message.result, last.microbatch))
        return [message]

    hostile(mesh, {3: nan})
    asyncio.run(mesh.train())
    assert set(quarantined(mesh)) == {3}
    assert [slot for slot, _ in mesh.court.reports] == [3]
    assert "quarantined" in mesh.worker_errors[3]
    equals_plain(mesh)


def test_a_worker_that_sends_every_kind_of_unreadable_answer_stops_nothing(tmp_path: Path) -> None:
    mesh, sent = small(tmp_path, steps=8), [0]

    def rubbish(worker: Worker, link: SeatLink, message: pb.ToSeat) -> list[pb.ToSeat | bytes]:
        if message.WhichOneof("kind") == "result":
            UNREADABLE[sent[0] % len(UNREADABLE)][1](Reply(worker, link, message.result))
            sent[0] += 1
        return [message]

    hostile(mesh, {3: rubbish})
    asyncio.run(mesh.train())
    assert sent[0] > 3
    nobody_is_accused(mesh)
    assert all(3 not in step[1] for step in multisets(mesh))
    equals_plain(mesh)


def test_two_colluding_replicas_cannot_convict_the_honest_third(tmp_path: Path) -> None:
    """They tell the same lie and clear each other's frames; a recompute clears the third and finds both."""
    mesh = Mesh(
        job_toml(stages=2, layers=2, dim=16, seq_len=8, steps=8, audit_ppm=1_000_000, warmup_audit_ppm=1_000_000),
        tmp_path,
        {0: ("sign_flip", 0), 1: ("sign_flip", 0)},
    )
    asyncio.run(mesh.train())
    assert set(quarantined(mesh)) == {0, 1}
    assert set(mesh.worker_errors) == {0, 1}
    assert {slot for slot, _ in mesh.court.reports} == {0, 1}
    assert not [v for events in mesh.events for v in events.verdicts if v["kind"] == "false alarm"]
    assert len(mesh.events[0].losses) == 8, "the run went on; what they had cleared for each other is in its losses"
