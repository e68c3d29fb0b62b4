"""The simulated mesh: it trains like a plain loop, and what it finds depends on the policy."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sentinel_market.data.corpus import batch
from sentinel_market.errors import ConfigError
from sentinel_market.models.optimizer import AdamWConfig
from sentinel_market.models.plain import plain_loop
from sentinel_market.sim.run import Simulation, _corpus, policy_of, run_cell
from sentinel_market.sim.settings import RunResult, RunSettings
from verifier.check.engine import Engine

SMALL = RunSettings(
    replicas=4, stages=4, model_dim=16, batch=2, seq_len=16, steps=36, onset=16, warmup_steps=6, drivers=2
)


def ran(**changes: object) -> RunResult:
    return run_cell(replace(SMALL, **changes))  # type: ignore[arg-type]


def test_a_clean_run_is_the_plain_loop() -> None:
    settings = replace(SMALL, policy="unverified", steps=8)
    simulation = Simulation(settings)
    simulation.run()
    corpus = _corpus(settings.seq_len)
    optim = AdamWConfig(learning_rate=0.01, min_learning_rate=0.001, warmup_steps=6, total_steps=8)
    plain = plain_loop(
        simulation.config,
        lambda step, row: batch(corpus.train, seed=0, step=step, microbatch=row, batch_size=2, seq_len=16),
        8,
        0,
        optim,
        [list(range(4))] * 8,
        num_stages=4,
    )
    assert simulation.losses == pytest.approx(plain.losses, rel=1e-4)
    for mesh, flat in zip(simulation.meshes, plain.flats, strict=True):
        assert torch.allclose(mesh.flat, flat, rtol=1e-3, atol=1e-4)


def test_the_same_settings_give_the_same_run() -> None:
    first, second = ran(attack="sign_flip", steps=24), ran(attack="sign_flip", steps=24)
    assert (first.losses, first.val_loss, first.bans_at) == (second.losses, second.val_loss, second.bans_at)
    assert (first.confirmations, first.recomputes, first.audits) == (
        second.confirmations,
        second.recomputes,
        second.audits,
    )


def test_verification_changes_nothing_in_a_clean_run() -> None:
    verified, unverified = ran(), ran(policy="unverified")
    assert verified.banned == []
    assert verified.val_loss == pytest.approx(unverified.val_loss, rel=1e-5)
    assert verified.recomputes > 0 and verified.audits > 0


@pytest.mark.parametrize(
    "attack",
    ["sign_flip", "identity", "grad_sign_flip:consistent=0", "sign_flip:direction=backward"],
)
def test_cheats_are_banned_and_nobody_else(attack: str) -> None:
    found = ran(attack=attack)
    assert found.hostile_workers > 0
    assert found.recall == 1.0 and found.honest_bans == 0
    assert found.val_loss == pytest.approx(ran(policy="unverified").val_loss, rel=0.02)


def test_without_verification_the_same_attack_hurts_and_nobody_is_banned() -> None:
    found = ran(attack="sign_flip", policy="unverified")
    assert found.banned == [] and found.recall == 0.0
    assert found.val_loss > 1.05 * ran(policy="unverified").val_loss


def test_accomplices_that_vouch_for_each_other_get_away_where_nobody_recomputes() -> None:
    """Half of the replicas of a stage clear each other's frames; they cheat in one step only."""
    plot = {"attack": "noise", "malicious": 0.5, "collude": True, "policy": "screen+confirm", "duty": 20, "steps": 20}
    with_recompute = [ran(**plot, seed=seed) for seed in range(4)]
    without = [ran(**plot, seed=seed, recompute=False) for seed in range(4)]
    assert sum(run.honest_bans for run in with_recompute) == 0
    assert sum(run.recall or 0.0 for run in with_recompute) > sum(run.recall or 0.0 for run in without) + 0.5


def test_a_driver_in_the_plot_lets_frames_pass_and_others_find_them() -> None:
    """Its accepted frames are drawn for cross-audits like anybody's."""
    found = ran(attack="zeros", corrupt_drivers=1, audit_ppm=400_000, seed=2)
    assert found.accepted_false_frames > 0
    assert found.recall == 1.0 and found.honest_bans == 0


def test_duty_cycle() -> None:
    simulation = Simulation(replace(SMALL, attack="noise:strength=0.001", duty=5, policy="unverified"))
    simulation.run()
    assert {(step - 16) % 5 for step in simulation.roster.first_attack.values()} == {0}


def test_the_engine_is_the_live_one() -> None:
    assert all(type(engine) is Engine for engine in Simulation(SMALL).engines)
    assert policy_of(replace(SMALL, policy="paper:no-ema")).paper_ema is False


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"malicious": 0.6}, "malicious = 0.6"),
        ({"stages": 1}, "stages = 1"),
        ({"model_dim": 12}, "model_dim = 12"),
        ({"corrupt_drivers": 2}, "corrupt_drivers = 2"),
        ({"drivers": 9}, "drivers = 9"),
    ],
)
def test_bad_settings_are_named(change: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        replace(SMALL, **change)  # type: ignore[arg-type]


def test_results_survive_json() -> None:
    found = ran(attack="zeros", steps=20)
    assert RunResult.from_json(found.to_json()) == found
    with pytest.raises(ConfigError, match="not the result of a run"):
        RunResult.from_json({"settings": {}})
