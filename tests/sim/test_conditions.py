"""Honest meshes that differ: each condition does what it says, and nobody is banned for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from sentinel_market.errors import ConfigError
from sentinel_market.sim import run
from sentinel_market.sim.conditions import CONDITIONS, condition, prose
from sentinel_market.sim.run import Simulation
from sentinel_market.sim.settings import RunResult, RunSettings
from sentinel_market.sim.workers import Work
from verifier.check.tolerance import Tolerance, compare

SMALL = RunSettings(
    replicas=4, stages=3, model_dim=16, batch=2, seq_len=16, steps=20, onset=10, warmup_steps=6, drivers=2
)


def under(name: str, **changes: object) -> RunSettings:
    return replace(SMALL, condition=name, **changes)  # type: ignore[arg-type]


def ran(settings: RunSettings) -> tuple[Simulation, RunResult]:
    simulation = Simulation(settings)
    return simulation, simulation.run()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", CONDITIONS)
def test_nobody_is_banned_and_frames_count_from_when_it_began(name: str) -> None:
    settings = under(name)
    simulation, found = ran(settings)
    assert found.banned == [] and simulation.reasons == {}
    begun = 10 if name in ("lr-jump", "domain", "joiner") else 6
    # Every row passes three stages in two directions; a frame that is asked for again counts again.
    assert found.honest_frames >= (20 - begun) * 4 * 3 * 2
    assert found.honest_frames < (21 - begun) * 4 * 3 * 2
    assert settings.counted_frames == (20 - begun) * 4 * 5


@pytest.mark.parametrize("name", ["lr-jump", "domain"])
def test_what_jumps_does_so_in_mid_run(name: str) -> None:
    usual, changed = ran(replace(SMALL, policy="unverified"))[0], ran(under(name, policy="unverified"))[0]
    first = next(s for s in range(20) if usual.losses[s] != changed.losses[s])
    assert first == {"domain": 10, "lr-jump": 11}[name]  # a step at another rate shows in the next one's loss


def test_prose_is_no_code() -> None:
    text = bytes(prose())
    assert len(re.findall(rb"(.)\1{5}", text)) < 20  # rulings of tables are no prose
    assert text.count(b" the ") / len(text) > 3 * bytes(run._corpus(16).train).count(b" the ") / 2_000_000


def test_a_replica_joins_and_another_leaves_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[int, set[int]] = {}
    simulation = Simulation(under("joiner"))
    wire = simulation._wire

    def wired(stage: int) -> list[int]:
        slots = wire(stage)
        assert len(slots) == 4
        seen.setdefault(simulation.step, set()).update(slot - 4 * stage for slot in slots)
        return slots

    monkeypatch.setattr(simulation, "_wire", wired)
    simulation.run()
    for step, replicas in seen.items():
        assert replicas == {0, 1, 2, 3} - ({3} if step < 10 else {0} if step < 15 else set())


def test_microbatches_of_one_sequence() -> None:
    simulation, found = ran(under("batch-one", policy="unverified"))
    usual = ran(replace(SMALL, policy="unverified"))[1]
    assert simulation.settings.sequences == 1 and SMALL.sequences == 2
    assert found.losses != usual.losses
    alone = ran(replace(SMALL, batch=1, policy="unverified"))[1]
    assert found.losses == alone.losses


def work(simulation: Simulation, stage: int) -> Work:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 16, 16, generator=generator)
    return Work(stage, 0, x, torch.randint(0, 256, (2, 16), generator=generator))


@pytest.mark.parametrize(
    ("name", "replica", "low", "high"),
    [
        ("threads", 1, 0.0, 1e-5),
        ("threads", 2, 1e-9, 1e-5),
        ("threads", 3, 1e-9, 1e-5),
        ("bf16", 1, 1e-4, 1e-2),
    ],
)
@pytest.mark.parametrize("stage", [1, 2])
def test_machines_compute_otherwise_in_both_directions(
    name: str, replica: int, low: float, high: float, stage: int
) -> None:
    simulation = Simulation(under(name))
    worker, given = simulation.workers[stage], work(simulation, stage)
    assert worker.is_usual(4 * stage, 0) and not worker.is_usual(4 * stage + replica, 0)
    usual, other = worker.one(4 * stage, 0, given), worker.one(4 * stage + replica, 0, given)
    assert other.honest and usual.usual and not other.usual
    incoming = None if stage == 2 else torch.ones_like(given.x)
    pairs = [(usual.output, other.output)]
    gradients = [worker.mesh.backward_one(done, incoming) for done in (usual, other)]
    pairs += list(zip(*gradients, strict=True))
    for mine, theirs in pairs:
        error = float((mine - theirs).detach().norm() / mine.detach().norm())
        assert low <= error <= high


def test_threads_are_threads_in_the_backward_too_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    for where, name in ((torch.autograd, "grad"), (torch.nn.functional, "silu")):
        usual = getattr(where, name)

        def counting(*args: object, usual: Callable[..., object] = usual, **kwargs: object) -> object:
            seen.append(torch.get_num_threads())
            return usual(*args, **kwargs)

        monkeypatch.setattr(where, name, counting)
    simulation = Simulation(under("threads"))
    worker, given = simulation.workers[1], work(simulation, 1)
    for slot in (4, 5):
        worker.mesh.backward_one(worker.one(slot, 0, given), torch.ones_like(given.x))
    assert seen == [1, 1, 2, 2]
    assert torch.get_num_threads() == 1


def test_bf16_is_the_jobs_dtype_in_what_travels_and_in_the_tolerance() -> None:
    """Under the tolerance of an fp32 job its honest frames would convict."""
    job = condition("bf16")
    frame = job.travels(torch.tensor([1.0, 1.0 + 2**-12]))
    assert frame.tolist() == [1.0, 1.0] and frame.dtype == torch.float32
    assert condition("threads").travels(frame) is frame
    simulation = Simulation(under("bf16"))
    assert simulation.judge.tolerance.relative_e6 == 10_000
    worker, given = simulation.workers[1], work(simulation, 1)
    done = worker.one(5, 0, given)
    claim = worker.forward(5, 0, given, done.output[0].detach(), done.honest, None)
    assert claim.output is not None and torch.equal(claim.output, job.travels(done.output[0].detach()))
    assert not claim.false
    reference = simulation.judge.recompute(claim).output
    assert reference is not None
    assert compare(claim.output, reference, simulation.judge.tolerance).agrees
    assert not compare(claim.output, reference, Tolerance()).agrees


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"condition": "bf17"}, "condition = 'bf17' is unknown; use one of bf16, threads, lr-jump"),
        ({"condition": "bf16", "attack": "zeros"}, "leave out the attack 'zeros'"),
        ({"condition": "domain", "onset": 20}, "condition = 'domain' begins at step 20 of 20"),
    ],
)
def test_bad_conditions_are_named(changes: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        replace(SMALL, **changes)  # type: ignore[arg-type]


def test_settings_from_before_there_were_conditions_are_the_same_run() -> None:
    old = SMALL.to_json()
    del old["condition"]
    assert RunSettings.from_json(old) == SMALL
