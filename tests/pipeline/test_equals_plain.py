"""Figures 4 and 5 of issue "The main job": the pipeline computes what a plain single-process loop computes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from sentinel_market.data.corpus import batch
from sentinel_market.models.jobs import model_config, optimizer_config
from sentinel_market.models.plain import plain_loop
from sentinel_market.wire.tensors import decode
from tests.support.mesh import Mesh, job_toml


def batches(mesh: Mesh):
    spec = mesh.spec

    def get(step: int, microbatch: int) -> tuple[torch.Tensor, torch.Tensor]:
        return batch(
            mesh.corpus.train,
            seed=spec.seed,
            step=step,
            microbatch=microbatch,
            batch_size=spec.training.microbatch_size,
            seq_len=spec.model.seq_len,
        )

    return get


def final_weights(mesh: Mesh) -> list[torch.Tensor]:
    steps, found = mesh.spec.training.steps, []
    for stage in range(mesh.spec.parallelism.stages):
        payload = next(p for seat in mesh.seats if (p := seat.weights.payload(steps, stage)) is not None)
        found.append(decode(payload))
    return found


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def test_one_replica_without_verification_equals_a_plain_loop(tmp_path: Path) -> None:
    """50 steps, losses to 1e-4 relative (figure 4)."""
    mesh = Mesh(job_toml(steps=50, replicas=1, policy="none"), tmp_path)
    asyncio.run(mesh.train())
    spec = mesh.spec
    multisets = [list(range(spec.training.microbatches))] * spec.training.steps
    plain = plain_loop(
        model_config(spec),
        batches(mesh),
        spec.training.steps,
        spec.seed,
        optimizer_config(spec),
        multisets,
        num_stages=4,
    )
    assert mesh.events[0].losses == pytest.approx(plain.losses, rel=1e-4)
    assert plain.losses[-1] < 0.75 * plain.losses[0], "nothing was learned, so equality would mean little"
    for got, expected in zip(final_weights(mesh), plain.flats, strict=True):
        assert relative(got, expected) < 1e-4


def test_replicas_with_audits_equal_a_plain_loop_over_the_recorded_multisets(tmp_path: Path) -> None:
    """3 replicas, audits at 10 % throughout, so microbatches count twice (figure 5): to 1e-3 relative."""
    mesh = Mesh(job_toml(steps=25, warmup_steps=1000), tmp_path)
    asyncio.run(mesh.train())
    spec = mesh.spec
    multisets = [
        [[ids for _, ids in stage] for stage in step["multisets"]]  # type: ignore[attr-defined]
        for step in mesh.events[0].steps
        if "multisets" in step
    ]
    assert len(multisets) == spec.training.steps
    counts = [sorted(m for group in stage for m in group) for step in multisets for stage in step]
    assert all(set(ids) == set(range(spec.training.microbatches)) for ids in counts), "a microbatch was lost"
    assert any(len(ids) > spec.training.microbatches for ids in counts), "no audit counted a microbatch twice"
    plain = plain_loop(
        model_config(spec),
        batches(mesh),
        spec.training.steps,
        spec.seed,
        optimizer_config(spec),
        multisets,
        num_stages=4,
    )
    assert mesh.events[0].losses == pytest.approx(plain.losses, rel=1e-3)
    for got, expected in zip(final_weights(mesh), plain.flats, strict=True):
        assert relative(got, expected) < 1e-3
    naive = plain_loop(
        model_config(spec),
        batches(mesh),
        spec.training.steps,
        spec.seed,
        optimizer_config(spec),
        [list(range(spec.training.microbatches))] * spec.training.steps,
        num_stages=4,
    )
    errors = [relative(g, n) for g, n in zip(final_weights(mesh), naive.flats, strict=True)]
    assert max(errors) > 1e-3, "the duplicates changed nothing: the test above could not fail"
