"""The compiled pass against plain torch, and the fit against its definition."""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verifier.check import kernels
from verifier.check.baseline import make_directions


def close(a: kernels.Moments, b: kernels.Moments, scale: float) -> None:
    """To float64 rounding; the means, and what is made of them, are float32 by nature: to float32 rounding."""
    for item in fields(kernels.Moments):
        one, two = getattr(a, item.name), getattr(b, item.name)
        loose = item.name in ("mean", "change_mean", "align")
        unit = 1.0 if item.name == "align" else scale
        assert np.allclose(one, two, rtol=1e-9, atol=1e-6 * unit if loose else 0.0), (item.name, one, two)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 40), st.integers(1, 70)),
    scale=st.sampled_from([1e-20, 1e-4, 1.0, 1e6]),
    has_input=st.booleans(),
    has_ema=st.booleans(),
    seed=st.integers(0, 100),
)
def test_both_backends_agree(
    shape: tuple[int, int, int], scale: float, has_input: bool, has_ema: bool, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    x = kernels.as_float32(torch.randn(shape, generator=g) * scale)
    y = kernels.as_float32(torch.randn(shape, generator=g) * scale) if has_input else None
    m = kernels.as_float32(torch.randn(shape[1:], generator=g) * scale) if has_ema else None
    directions = make_directions(shape[2], 1)
    close(kernels.moments_numba(x, y, m, directions), kernels.moments_torch(x, y, m, directions), scale)


def test_the_fast_path_is_compiled_here() -> None:
    assert kernels.COMPILED
    assert kernels.moments is kernels.moments_numba


def test_moments_by_hand() -> None:
    x = np.array([[[3.0, 4.0]], [[0.0, 1.0]]], dtype=np.float32)  # B = 2, T = 1, D = 2
    y = np.array([[[4.0, 3.0]], [[1.0, 0.0]]], dtype=np.float32)
    m = np.array([[1.0, -1.0]], dtype=np.float32)
    for backend in (kernels.moments_numba, kernels.moments_torch):
        got = backend(x, y, m, np.eye(2, 8, dtype=np.float32))
        assert got.out2 == 26 and got.norms == 6 and got.in2 == 26 and got.ema2 == 4
        assert got.l1 == 2 + 5 + 1 + 2
        assert got.l2 == 4 + 25 + 1 + 4
        assert got.flips == 2  # 4 and 1 against -1; 0 against 1 counts as equal
        assert got.change2 == 1 + 1 + 1 + 1
        assert got.log_norms == pytest.approx(math.log(5))
        assert got.cosines == pytest.approx(24 / 25)
        assert got.mean.tolist() == [[1.5, 2.5]]
        assert got.change_mean.tolist() == [-1.0, 1.0]
        assert got.align == pytest.approx(-1 / math.sqrt(8.5 * 2))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_bad_element_anywhere_is_seen(value: float) -> None:
    for position in (0, 77, 2 * 9 * 11 - 1):
        x = np.ones((2, 9, 11), dtype=np.float32)
        x.reshape(-1)[position] = value
        for backend in (kernels.moments_numba, kernels.moments_torch):
            assert not math.isfinite(backend(x, None, None, make_directions(11, 0)).out2)


def test_the_largest_finite_elements_are_finite() -> None:
    x = np.full((2, 9, 11), 3.4028235e38, dtype=np.float32)
    for backend in (kernels.moments_numba, kernels.moments_torch):
        got = backend(x, -x, -x[0], make_directions(11, 0))
        assert all(np.isfinite(getattr(got, item.name)).all() for item in fields(got))


def test_sampled_rows_are_spread_and_inside() -> None:
    for sequences, tokens in ((4, 128), (1, 3), (70, 1), (64, 64), (3, 64), (200, 2)):
        rows = kernels.sampled_rows(tokens, sequences)
        assert len(rows) == min(64, sequences * tokens)
        assert rows.min() >= 0 and rows[:, 0].max() < sequences and rows[:, 1].max() < tokens
        if tokens >= 64:
            assert len(set(rows[:, 1].tolist())) == 64
    assert len({tuple(row) for row in kernels.sampled_rows(3, 2).tolist()}) == 6


def test_fit_by_its_definition() -> None:
    line = np.arange(32.0)
    wiggle = np.tile([0.5, -0.5], 16)
    found = kernels.fit(np.stack([line, np.full(32, 7.0) + wiggle, np.full(32, np.nan)], axis=1))
    assert found.counts == [32, 32, 0]
    assert found.trends[0] == pytest.approx(32.0)  # where the line goes on
    assert found.levels[0] == pytest.approx(23.5)  # median of 16..31
    assert found.spreads[0] == pytest.approx(0.0)
    assert found.levels[1] == pytest.approx(7.0) and found.spreads[1] == pytest.approx(1.0)


def test_fit_equals_the_interquartile_range_of_a_symmetric_sample_and_bears_a_hostile_third() -> None:
    sample = np.random.default_rng(0).normal(size=4096)
    found = kernels.fit(sample.reshape(-1, 1))
    q1, q3 = np.quantile(sample, [0.25, 0.75])
    assert found.spreads[0] == pytest.approx(q3 - q1, rel=0.05)
    hostile = sample.copy()
    hostile[::3] = 50.0
    poisoned = kernels.fit(hostile.reshape(-1, 1))
    assert poisoned.trends[0] < 1.0 and poisoned.spreads[0] < 3.5
    assert np.quantile(hostile, 0.75) > 40  # what plain quartiles would have made of it


def test_fit_of_nothing() -> None:
    found = kernels.fit(np.zeros((0, 3)))
    assert found.counts == [0, 0, 0]


def naive(x: np.ndarray, y: np.ndarray, m: np.ndarray) -> dict[str, float]:
    """The definition, one Python float at a time."""
    found = dict.fromkeys(("out2", "l1", "l2", "flips", "in2", "change2", "norms", "cosines", "ema2"), 0.0)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            out2 = in2 = dot = 0.0
            for d in range(x.shape[2]):
                one, two, usual = float(x[b, t, d]), float(y[b, t, d]), float(m[t, d])
                out2, in2, dot = out2 + one * one, in2 + two * two, dot + one * two
                found["l1"] += abs(one - usual)
                found["l2"] += (one - usual) ** 2
                found["flips"] += (one < 0) != (usual < 0)
                found["change2"] += (one - two) ** 2
                found["ema2"] += usual * usual
            found["out2"] += out2
            found["in2"] += in2
            found["norms"] += math.sqrt(out2)
            found["cosines"] += dot / math.sqrt(out2 * in2) if out2 * in2 > 0 else 0.0
    return found


def sliced_by_hand(x: np.ndarray, m: np.ndarray, directions: np.ndarray) -> float:
    rows = kernels.sampled_rows(x.shape[1], x.shape[0])
    ours = np.sort(x[rows[:, 0], rows[:, 1]].astype(np.float64) @ directions.astype(np.float64), axis=0)
    theirs = np.sort(m[rows[:, 1]].astype(np.float64) @ directions.astype(np.float64), axis=0)
    return float(np.abs(ours - theirs).mean())


@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1.0, 1e18, 1e37])
@pytest.mark.parametrize("shape", [(2, 5, 67), (1, 1, 1), (3, 40, 8)])
def test_both_backends_equal_a_plain_loop(shape: tuple[int, int, int], scale: float) -> None:
    rng = np.random.default_rng(1)
    x, y = ((rng.standard_normal(shape) * scale).astype(np.float32) for _ in range(2))
    m = (rng.standard_normal(shape[1:]) * scale).astype(np.float32)
    directions = make_directions(shape[2], 3)
    wanted = naive(x, y, m)
    for backend in (kernels.moments_numba, kernels.moments_torch):
        got = backend(x, y, m, directions)
        for name, value in wanted.items():
            assert getattr(got, name) == pytest.approx(value, rel=1e-11), (backend.__name__, name)
        assert got.sliced == pytest.approx(sliced_by_hand(x, m, directions), rel=1e-9)


def test_arrays_that_are_not_contiguous_give_the_same_sums() -> None:
    rng = np.random.default_rng(2)
    wide = rng.standard_normal((4, 10, 66)).astype(np.float32)
    x, y, m = wide[::2, ::2, ::3], wide[1::2, ::2, ::3], wide[0, ::2, 1::3]
    directions = make_directions(22, 0)
    packed = kernels.moments_numba(*(np.ascontiguousarray(a) for a in (x, y, m)), directions)
    close(kernels.moments_numba(x, y, m, directions), packed, 1.0)
    close(kernels.moments_torch(x, y, m, directions), packed, 1.0)


def test_a_change_that_leaves_float32_on_the_way_is_still_right() -> None:
    """x - y is beyond float32 in one sequence and as far below in another: the mean is zero, not NaN."""
    x = np.full((2, 3, 5), 3e38, dtype=np.float32)
    x[1] = -3e38
    got = kernels.moments_numba(x, -x, None, make_directions(5, 0))
    assert got.change_mean.tolist() == [0.0] * 5
    half = kernels.moments_numba(x[:1], -x[:1], None, make_directions(5, 0))
    assert half.change_mean.tolist() == [float(np.finfo(np.float32).max)] * 5  # 6e38, cut to the range


def test_a_row_in_many_sequences_keeps_its_change_to_float32() -> None:
    x = np.full((1000, 1, 3), 1.1, dtype=np.float32)
    got = kernels.moments_numba(x, np.zeros_like(x), None, make_directions(3, 0))
    assert np.allclose(got.change_mean, 1.1, rtol=3e-7)


@given(st.integers(1, 70), st.integers(0, 1000))
@settings(max_examples=80, deadline=None)
def test_columns_are_sorted_and_the_middle_is_the_median(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = rng.integers(-5, 5, size=(count, 8)).astype(np.float64)
    wanted, column = np.sort(table, axis=0), table[:, 0].copy()
    kernels._sort_columns(table)
    assert np.array_equal(table, wanted)
    assert kernels._middle(column, count) == np.median(wanted[:, 0])


def test_blend_has_the_bits_of_its_definition_and_refuses_what_is_not_finite() -> None:
    rng = np.random.default_rng(3)
    old, new = (rng.standard_normal((7, 33)).astype(np.float32) for _ in range(2))
    got = kernels.blend(old, new, 0.9)
    assert got is not None
    assert np.array_equal(got, np.float32(0.9) * old + np.float32(1 - 0.9) * new)
    new[3, 3] = np.inf
    assert kernels.blend(old, new, 0.9) is None
    new[3, 3], new[4, 4] = np.nan, 1.0
    assert kernels.blend(old, new, 0.9) is None
