"""The aggregation rules: what they compute, checked against byzfl, and what they bear."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel_market.errors import ConfigError
from verifier.check.robust import RULES, aggregate, check_rule, clip_round, default_byzantine, multi_krum_choice

ROBUST = RULES[1:]


@pytest.fixture(scope="module")
def byzfl() -> Iterator[Any]:
    """byzfl's aggregators and nothing else of it: its ``__init__`` imports a training framework that wants torchvision,
    matplotlib and seaborn, so the package is entered beside it (requirements/dev.lock is installed without
    dependencies)."""
    spec = importlib.util.find_spec("byzfl")
    assert spec is not None and spec.origin is not None, (
        "byzfl is missing: pip install --no-deps -r requirements/dev.lock"
    )
    before = set(sys.modules)
    folder = Path(spec.origin).parent
    for name in ("byzfl", "byzfl.aggregators"):
        package = types.ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    yield importlib.import_module("byzfl.aggregators.aggregators")
    for name in set(sys.modules) - before:
        if name.split(".")[0] == "byzfl":
            del sys.modules[name]


def replicas(num: int, size: int, seed: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    common = torch.randn(size, generator=g)
    return [common + 0.5 * torch.randn(size, generator=g) for _ in range(num)]


CASES = [(3, 1, 0), (4, 1, 1), (5, 2, 2), (8, 3, 3), (8, 1, 4), (16, 6, 5)]


@pytest.mark.parametrize(("num", "f", "seed"), CASES)
def test_trimmed_mean_is_byzfls(byzfl: Any, num: int, f: int, seed: int) -> None:
    means = replicas(num, 100, seed)
    ours = aggregate("trimmed-mean", means, [1] * num, f)
    assert torch.allclose(ours, byzfl.TrMean(f)(torch.stack(means)), atol=1e-6)


@pytest.mark.parametrize(("num", "f", "seed"), CASES)
def test_multi_krum_is_byzfls(byzfl: Any, num: int, f: int, seed: int) -> None:
    means = replicas(num, 100, seed)
    for one in means[:f]:
        one *= -3.0
    ours = aggregate("multi-krum", means, [1] * num, f)
    assert torch.allclose(ours, byzfl.MultiKrum(f)(torch.stack(means)), atol=1e-6)


@pytest.mark.parametrize("radius", [0.1, 3.0, 1e6])
def test_a_round_of_clipping_is_byzfls(byzfl: Any, radius: float) -> None:
    means = replicas(7, 100, 6)
    centre = torch.stack(means).median(dim=0).values
    theirs = byzfl.CenteredClipping(L=1, tau=radius)
    theirs.m = centre.clone()
    assert torch.allclose(clip_round(centre, means, radius), theirs(torch.stack(means)), atol=1e-6)


@pytest.mark.parametrize("rule", ROBUST)
@pytest.mark.parametrize("lie", [-10.0, 100.0, -1.0])
@pytest.mark.parametrize(("num", "hostile"), [(3, 1), (8, 3), (16, 6)])
def test_robust_rules_bear_what_the_mean_does_not(rule: str, lie: float, num: int, hostile: int) -> None:
    means = replicas(num, 2000, 7)
    honest = torch.stack(means[hostile:]).mean(0)
    sent = [lie * one for one in means[:hostile]] + means[hostile:]

    def error(used: str) -> float:
        return float((aggregate(used, sent, [1] * num) - honest).norm() / honest.norm())

    assert error(rule) < min(0.55, error("mean"))


@pytest.mark.parametrize("rule", ROBUST)
def test_each_replica_counts_once_however_many_microbatches_it_did(rule: str) -> None:
    means = replicas(5, 50, 8)
    once = aggregate(rule, means, [1] * 5)
    counts = [1, 2, 4, 8, 16]
    assert torch.allclose(aggregate(rule, [m * c for m, c in zip(means, counts, strict=True)], counts), once, atol=1e-6)
    assert torch.equal(aggregate(rule, [*means, torch.full((50,), 9.0)], [1] * 5 + [0]), once), "no microbatch, no say"


@pytest.mark.parametrize("rule", ROBUST)
def test_too_few_replicas_give_the_mean(rule: str) -> None:
    means = replicas(2, 20, 9)
    assert torch.equal(aggregate(rule, means, [1, 1]), (means[0] + means[1]) / 2)
    assert torch.equal(aggregate(rule, means[:1], [1]), means[0])
    three = replicas(3, 20, 9)
    assert torch.allclose(aggregate(rule, three, [1, 1, 1], 0), aggregate("mean", three, [1, 1, 1]))
    assert torch.equal(aggregate(rule, three, [1, 1, 1], 9), aggregate(rule, three, [1, 1, 1], 1)), (
        "cut to what n allows"
    )


@pytest.mark.parametrize("rule", RULES)
def test_the_same_bits_again_and_inputs_untouched(rule: str) -> None:
    means = replicas(6, 3000, 10)
    before = [one.clone() for one in means]
    first = aggregate(rule, means, [1] * 6)
    assert first.dtype == torch.float32
    assert torch.equal(first, aggregate(rule, before, [1] * 6))
    assert all(torch.equal(a, b) for a, b in zip(means, before, strict=True))


def test_equal_replicas_tie_by_slot_and_give_themselves() -> None:
    one = torch.randn(30, generator=torch.Generator().manual_seed(1))
    assert multi_krum_choice([one] * 5, 2) == [0, 1, 2]
    for rule in RULES:
        assert torch.allclose(aggregate(rule, [one] * 5, [1] * 5), one)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(RULES),
    st.lists(st.sampled_from([0.0, 1.0, -1.0, 1e-45, 3e38, -3e38]), min_size=1, max_size=7),
    st.integers(0, 8),
)
def test_extreme_but_finite_sums_never_raise(rule: str, fills: list[float], f: int) -> None:
    found = aggregate(rule, [torch.full((4,), v) for v in fills], [1] * len(fills), f)
    assert found.shape == (4,) and not bool(torch.isnan(found).any())


def test_mean_is_sum_of_sums_over_sum_of_counts_in_slot_order() -> None:
    a, b = torch.tensor([1e8, 6.0]), torch.tensor([1.0, 3.0])
    before = a.clone()
    assert torch.equal(aggregate("mean", [a, b], [2, 1]), (a + b) / 3)
    assert torch.equal(a, before)
    assert torch.equal(aggregate("mean", [a], [4]), a / 4)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("sums", "counts"),
    [
        ([], []),
        ([torch.ones(2)], [1, 2]),
        ([torch.ones(2)], [0]),
        ([torch.ones(2)], [-1]),
        ([torch.ones(2), torch.ones(3)], [1, 1]),
        ([torch.ones(2, dtype=torch.float64)], [1]),
        ([torch.tensor([1.0, math.nan])], [1]),
        ([torch.ones(2, 2)], [1]),
    ],
)
def test_what_is_no_sum_is_refused(rule: str, sums: list[torch.Tensor], counts: list[int]) -> None:
    with pytest.raises(ValueError):
        aggregate(rule, sums, counts)


def test_unknown_rules_are_refused_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match="'median' is unknown; use one of mean, trimmed-mean"):
        aggregate("median", [torch.ones(1)], [1])
    with pytest.raises(ValueError, match="-1"):
        aggregate("mean", [torch.ones(1)], [1], -1)
    for rule in RULES:
        check_rule(rule)
    assert [default_byzantine(n) for n in (1, 2, 3, 4, 8, 16)] == [0, 0, 1, 1, 3, 7]
