"""Of a stage's replicas one honest one is left, and things go wrong that are not its doing: the run goes on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sentinel_market.errors import Fatal, PeerGone
from sentinel_market.wire import relay_pb2 as pb
from tests.pipeline.test_catch import quarantined
from tests.pipeline.test_faults import each_step, equals_plain, hostile, nobody_is_accused, small
from tests.support.mesh import Mesh
from tests.verifier.rig import Tamper
from tests.verifier.test_frames import UNREADABLE, Reply
from verifier.recompute import Recomputed, Recomputer
from worker.session import SeatLink, Worker

STEPS = 4
COLLUDING = {0: ("sign_flip", 0), 1: ("sign_flip", 0)}
DIFFERENT = {0: ("sign_flip", 0), 1: ("scale", 0)}
Attacks = dict[int, tuple[str, int]]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the time, in all that is waited for."""
    monkeypatch.setattr("verifier.choice.PATIENCE_SECONDS", 3.0)
    monkeypatch.setattr("verifier.reduce.SUM_SECONDS", 2.0)


def hurry(mesh: Mesh) -> None:
    def limit(seat: int, _step: int) -> None:
        driver = mesh.seats[seat].driver
        driver.time_limit = driver.choice._time_limit = lambda: 1.5  # type: ignore[method-assign]

    each_step(mesh, limit)


def audited(tmp_path: Path, attacks: Attacks | None = None) -> Mesh:
    mesh = small(tmp_path, steps=STEPS, audit_ppm=1_000_000, warmup_audit_ppm=1_000_000)
    mesh.attacks = dict(attacks or {})
    return mesh


def failing(monkeypatch: pytest.MonkeyPatch, stage: int, every: int) -> None:
    """Each ``every``-th recompute of a stage fails: its weights cannot be got, say."""
    calls, run = [0], Recomputer.run

    async def sometimes(self: Recomputer, step: int, at: int, *rest: torch.Tensor) -> Recomputed:
        calls[0] += at == stage
        if every and at == stage and calls[0] % every == 0:
            raise PeerGone("the weights are not served")
        return await run(self, step, at, *rest)

    monkeypatch.setattr(Recomputer, "run", sometimes)


@pytest.mark.parametrize("every", [0, 4], ids=["all recomputes", "recomputes fail"])
@pytest.mark.parametrize("attacks", [COLLUDING, DIFFERENT], ids=["the same lie", "two lies"])
def test_two_of_three_cheat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attacks: Attacks, every: int) -> None:
    mesh = audited(tmp_path, attacks)
    failing(monkeypatch, 0, every)
    asyncio.run(mesh.train())
    assert set(quarantined(mesh)) == {0, 1}
    assert set(mesh.worker_errors) == {0, 1}
    assert len(mesh.events[0].losses) == STEPS


def garbles(sent: list[int]) -> Tamper:
    def change(worker: Worker, link: SeatLink, message: pb.ToSeat) -> list[pb.ToSeat | bytes]:
        if message.WhichOneof("kind") == "result":
            UNREADABLE[len(sent) % len(UNREADABLE)][1](Reply(worker, link, message.result))
            sent.append(worker.context.slot)
        return [message]

    return change


def hangs_up(sent: list[int]) -> Tamper:
    """Instead of each answer."""

    def change(worker: Worker, link: SeatLink, message: pb.ToSeat) -> list[pb.ToSeat | bytes]:
        if message.WhichOneof("kind") == "result":
            sent.append(worker.context.slot)
            link.outbox.put(None)
            return []
        return [message]

    return change


@pytest.mark.parametrize("fault", [garbles, hangs_up])
def test_two_of_three_are_of_no_use_and_recomputes_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[list[int]], Tamper]
) -> None:
    mesh, sent = audited(tmp_path), list[int]()
    failing(monkeypatch, 1, 3)
    hostile(mesh, {3: fault(sent), 4: fault(sent)})
    asyncio.run(mesh.train())
    assert set(sent) == {3, 4}
    nobody_is_accused(mesh)
    assert mesh.worker_errors == {}
    equals_plain(mesh)


def alone(tmp_path: Path) -> Mesh:
    """One replica a stage, and no audits."""
    return small(tmp_path, steps=STEPS, replicas=1, policy="screen+confirm")


def once(kind: str, step: int, then: Callable[[SeatLink], None] = lambda _: None) -> tuple[Tamper, list[int]]:
    """The first message of this kind from ``step`` on is lost, and ``then`` something happens."""
    lost: list[int] = []

    def change(worker: Worker, link: SeatLink, message: pb.ToSeat) -> list[pb.ToSeat | bytes]:
        if message.WhichOneof("kind") == kind and not lost and getattr(message, kind).step >= step:
            lost.append(worker.session)
            then(link)
            return []
        return [message]

    return change, lost


def went_on(mesh: Mesh) -> None:
    assert mesh.worker_errors == {}
    nobody_is_accused(mesh)
    equals_plain(mesh)


def test_the_only_replica_lets_a_time_limit_pass(tmp_path: Path) -> None:
    mesh = alone(tmp_path)
    silent, lost = once("result", 1)
    hostile(mesh, {1: silent})
    hurry(mesh)
    asyncio.run(mesh.train())
    assert lost == [mesh.workers[1].session]
    went_on(mesh)


def test_the_sum_of_the_only_replica_is_lost(tmp_path: Path) -> None:
    mesh = alone(tmp_path)
    late, lost = once("gradient", 1)
    hostile(mesh, {1: late})
    asyncio.run(mesh.train())
    assert len(lost) == 1 and mesh.workers[1].session not in lost, "it began anew"
    assert [s["step"] for s in mesh.events[0].steps if s.get("excluded")] == [1]
    went_on(mesh)


def test_the_only_replica_is_not_connected_when_its_sum_is_due(tmp_path: Path) -> None:
    """It comes back under the session whose sum is dropped by then."""
    mesh = alone(tmp_path)
    breaks, lost = once("gradient", 1, lambda link: link.outbox.put(None))
    hostile(mesh, {1: breaks})
    asyncio.run(mesh.train())
    assert len(lost) == 1 and mesh.workers[1].session not in lost
    went_on(mesh)


def dies_in(step: int, died: threading.Event) -> Tamper:
    def change(worker: Worker, link: SeatLink, message: pb.ToSeat) -> list[pb.ToSeat | bytes]:
        if message.WhichOneof("kind") == "result" and message.result.step >= step:
            worker._stopping.set()
            for other in worker.links:
                other.outbox.put(None)
            died.set()
        return [] if died.is_set() else [message]

    return change


def test_a_stage_without_a_worker_waits_for_its_replacement(tmp_path: Path) -> None:
    mesh, died = alone(tmp_path), threading.Event()
    hostile(mesh, {1: dies_in(2, died)})

    async def replace() -> None:
        await asyncio.to_thread(died.wait)
        await asyncio.sleep(1.0)
        mesh.worker = type(mesh).worker.__get__(mesh)  # type: ignore[method-assign]
        mesh.start_worker(1)

    asyncio.run(mesh.train(replace()))
    went_on(mesh)


def test_a_stage_that_stays_without_a_worker_stops_the_run_and_says_who_is_missing(tmp_path: Path) -> None:
    mesh, died = alone(tmp_path), threading.Event()
    hostile(mesh, {1: dies_in(2, died)})
    with pytest.raises(
        Fatal, match=r"stage 1 has no live worker left \(slot 1: not connected\); start one with"
    ) as told:
        asyncio.run(mesh.train())
    assert "sentinel worker start" in str(told.value)
    assert len(mesh.events[0].losses) == 2, "what was finished stays"
    nobody_is_accused(mesh)


def test_a_worker_that_stays_silent_is_not_live(tmp_path: Path) -> None:
    mesh, began = alone(tmp_path), list[float]()

    def mute(worker: Worker, link: SeatLink, message: pb.ToSeat) -> list[pb.ToSeat | bytes]:
        if message.WhichOneof("kind") == "result" and message.result.step >= 1:
            began.append(time.monotonic())
            return []
        return [message]

    hostile(mesh, {1: mute})
    hurry(mesh)
    with pytest.raises(Fatal, match=r"stage 1 has no live worker left \(slot 1: silent for \d+ s\)"):
        asyncio.run(mesh.train())
    assert len(began) >= 2, "it was asked again"
    assert time.monotonic() - began[0] < 30.0
