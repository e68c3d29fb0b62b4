"""The specified AdamW against torch's, its schedule, and its indifference to threads."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from sentinel_market.models.config import ModelConfig
from sentinel_market.models.optimizer import AdamWConfig, decay_mask, step_
from sentinel_market.models.stage import flat_size, layout

OPTIM = AdamWConfig(learning_rate=0.01, min_learning_rate=0.001, warmup_steps=5, total_steps=25, weight_decay=0.1)
MODEL = ModelConfig(dim=24, num_layers=1, num_heads=4, num_kv_heads=2, ffn_dim=20, seq_len=8)


def test_it_is_adamw() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(640, generator=generator)
    mask = torch.zeros(640)
    mask[:320] = 1
    decayed = torch.nn.Parameter(start[:320].clone().double())
    plain = torch.nn.Parameter(start[320:].clone().double())
    reference = torch.optim.AdamW(
        [{"params": [decayed], "weight_decay": 0.1}, {"params": [plain], "weight_decay": 0.0}],
        betas=(OPTIM.beta1, OPTIM.beta2),
        eps=OPTIM.eps,
        foreach=False,
    )
    weights, m, v = start.clone(), torch.zeros(640), torch.zeros(640)
    for step in range(20):
        gradient = torch.randn(640, generator=generator) * 0.1
        kept = gradient.clone()
        step_(weights, gradient, m, v, step, OPTIM, mask)
        assert torch.equal(gradient, kept)
        decayed.grad, plain.grad = gradient[:320].double(), gradient[320:].double()
        for group in reference.param_groups:
            group["lr"] = OPTIM.learning_rate_at(step)
        reference.step()
    torch.testing.assert_close(weights.double(), torch.cat((decayed, plain)).detach(), rtol=1e-5, atol=1e-6)
    assert (weights - start).abs().max() > 0.01


def test_threads_do_not_change_a_bit() -> None:
    # Large enough for torch to split the work, and odd enough to leave vector tails.
    size = 200_064 + 64
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        generator = torch.Generator().manual_seed(1)
        weights, m, v = torch.randn(size, generator=generator), torch.zeros(size), torch.zeros(size)
        mask = (torch.arange(size) % 3 > 0).float()
        for step in range(4):
            step_(weights, torch.randn(size, generator=generator), m, v, step, OPTIM, mask)
        results.append((weights, m, v))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_every_operation_is_rounded_once() -> None:
    """Numpy's scalar fp32 arithmetic has no fused multiply-add: the same bits mean that there is none here either."""
    import numpy as np

    f = np.float32
    generator = torch.Generator().manual_seed(2)
    weights, grad = torch.randn(64, generator=generator), torch.randn(64, generator=generator)
    m, v = torch.randn(64, generator=generator), torch.rand(64, generator=generator)
    w0, g0, m0, v0 = (t.numpy().copy() for t in (weights, grad, m, v))
    step_(weights, grad, m, v, 9, OPTIM, torch.ones(64))
    lr = OPTIM.learning_rate_at(9)
    m1 = m0 * f(OPTIM.beta1) + g0 * f(1 - OPTIM.beta1)
    v1 = v0 * f(OPTIM.beta2) + (g0 * g0) * f(1 - OPTIM.beta2)
    w1 = w0 - w0 * f(lr * OPTIM.weight_decay)
    d = np.sqrt(v1 / f(1 - OPTIM.beta2**10)) + f(OPTIM.eps)
    w1 = w1 - (m1 / d) * f(lr / (1 - OPTIM.beta1**10))
    assert np.array_equal(m.numpy(), m1)
    assert np.array_equal(v.numpy(), v1)
    assert np.array_equal(weights.numpy(), w1)


def test_decay_touches_matrices_only() -> None:
    specs = layout(MODEL, 0, 1)
    mask = decay_mask(specs)
    assert mask.numel() == flat_size(MODEL, 0, 1)
    rest = mask.clone()
    for spec in specs:
        part = mask[spec.offset : spec.offset + spec.size]
        assert torch.equal(part, torch.full_like(part, float(len(spec.shape) == 2))), spec.name
        rest[spec.offset : spec.offset + spec.size] = 0
    assert not rest.any()


def test_schedule() -> None:
    rates = [OPTIM.learning_rate_at(step) for step in range(30)]
    assert rates[:5] == pytest.approx([0.002, 0.004, 0.006, 0.008, 0.01])
    assert rates[5] == pytest.approx(0.01)
    assert rates[24:] == pytest.approx([0.001] * 6)
    assert all(a > b for a, b in pairwise(rates[5:25]))
    assert replace(OPTIM, warmup_steps=0).learning_rate_at(0) == pytest.approx(0.01)
    assert replace(OPTIM, warmup_steps=25).learning_rate_at(24) == pytest.approx(0.01)
    assert replace(OPTIM, warmup_steps=0, total_steps=1).learning_rate_at(0) == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"learning_rate": float("nan"), "min_learning_rate": 0.0}, "learning_rate is nan"),
        ({"min_learning_rate": 0.02}, "min_learning_rate"),
        ({"warmup_steps": 26}, "warmup_steps"),
        ({"beta1": 1.0}, "beta1"),
        ({"beta2": -0.1}, "beta2"),
        ({"eps": 0.0}, "eps"),
        ({"weight_decay": -1.0}, "weight_decay"),
    ],
)
def test_bad_settings_are_named(change: dict[str, float], name: str) -> None:
    assert OPTIM.validate() == []
    assert any(problem.startswith(name) for problem in replace(OPTIM, **change).validate())
