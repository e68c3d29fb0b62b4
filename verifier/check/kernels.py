"""One pass over a frame, its counterpart and the EMA: every moment that a metric needs.

Two backends with equal results (to float64 rounding): numba where it imports, plain torch otherwise; chosen once at
import. Inputs are float32, accumulators float64, so finite elements can not overflow a sum of squares: a sum that is
not finite means an element that is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]

NUM_ROWS = 64  # sampled rows for the sliced Wasserstein distance; on all rows it costs 10-18x
NUM_DIRECTIONS = 8


@dataclass(slots=True)
class Moments:
    """Sums over one frame x [B, T, D] with counterpart y [B, T, D] and EMA m [T, D] (0 where absent). Never changed;
    not frozen, because that costs every frame a call for each field."""

    out2: float  # sum of x^2
    l1: float  # sum of |x - m|
    l2: float  # sum of (x - m)^2
    ema2: float  # sum of m^2, B times
    flips: float  # elements whose sign differs from m's
    norms: float  # sum over tokens of |x_token|
    log_norms: float  # sum over tokens of ln |x_token|, 1e-30 for a token of no length
    in2: float  # sum of y^2
    change2: float  # sum of (x - y)^2
    cosines: float  # sum over tokens of cos(x_token, y_token); 0 for a token of no length
    align: float  # cosine of the batch mean and the EMA, both [T, D] as one long vector
    sliced: float  # sliced Wasserstein distance of sampled rows to the EMA's rows
    mean: Array  # batch mean [T, D], float32
    change_mean: Array  # mean of x - y over batch and tokens [D], float32


@lru_cache(maxsize=64)
def sampled_rows(num_tokens: int, num_sequences: int) -> Array:
    """At most 64 (sequence, token) pairs [n, 2], spread evenly over tokens and round over sequences."""
    count = min(NUM_ROWS, num_tokens * num_sequences)
    index = np.arange(count, dtype=np.int64)
    tokens = (index * num_tokens) // count if num_tokens >= count else index % num_tokens
    sequences = index % num_sequences if num_tokens >= count else (index // num_tokens) % num_sequences
    rows = np.stack((sequences, tokens), axis=1)
    rows.setflags(write=False)
    return rows


_LARGEST = float(np.finfo(np.float32).max)


def narrow(array: Array) -> Array:
    """To float32, cut to its range: x - y can leave it although x and y do not."""
    return np.clip(array, -_LARGEST, _LARGEST).astype(np.float32)


def _sliced_torch(x: torch.Tensor, ema: torch.Tensor, directions: torch.Tensor) -> float:
    rows = torch.from_numpy(sampled_rows(x.shape[1], x.shape[0]).copy())
    ours = (x[rows[:, 0], rows[:, 1]].double() @ directions.double()).sort(dim=0).values
    theirs = (ema[rows[:, 1]].double() @ directions.double()).sort(dim=0).values
    return float((ours - theirs).abs().mean())


def moments_torch(x: Array, y: Array | None, ema: Array | None, directions: Array) -> Moments:
    """The fallback and the reference that numba is tested against."""
    out = torch.from_numpy(x).double()
    counterpart = None if y is None else torch.from_numpy(y).double()
    mean = out.mean(dim=0)
    l1 = l2 = ema2 = flips = sliced = align = in2 = change2 = cosines = 0.0
    change_mean = torch.zeros(out.shape[2], dtype=torch.float64)
    if ema is not None:
        m = torch.from_numpy(ema).double()
        apart = out - m
        l1, l2 = float(apart.abs().sum()), float(apart.square().sum())
        ema2, flips = float(m.square().sum()) * out.shape[0], float(((out < 0) != (m < 0)).sum())
        length = float(mean.norm() * m.norm())
        align = float((mean * m).sum()) / length if length > 0 else 0.0
        sliced = _sliced_torch(torch.from_numpy(x), torch.from_numpy(ema), torch.from_numpy(directions))
    token2 = out.square().sum(dim=2)
    if counterpart is not None:
        change = out - counterpart
        in2, change2 = float(counterpart.square().sum()), float(change.square().sum())
        change_mean = change.mean(dim=(0, 1))
        below = (token2 * counterpart.square().sum(dim=2)).sqrt()
        cosine = (out * counterpart).sum(dim=2) / below
        cosines = float(torch.where(below > 0, cosine, torch.zeros_like(cosine)).sum())
    return Moments(
        out2=float(token2.sum()),
        l1=l1,
        l2=l2,
        ema2=ema2,
        flips=flips,
        norms=float(token2.sqrt().sum()),
        log_norms=float(token2.sqrt().clamp_min(1e-30).log().sum()),
        in2=in2,
        change2=change2,
        cosines=cosines,
        align=align,
        sliced=sliced,
        mean=narrow(mean.numpy()),
        change_mean=narrow(change_mean.numpy()),
    )


def _row(x_row: Array, y_row: Array, m_row: Array) -> tuple[float, float, float, float, float, float, float]:
    """Compiled by numba: sums over one token. It writes nothing, so that the loop becomes vector instructions."""
    out2 = in2 = dot = change2 = l1 = l2 = flips = 0.0
    for d in range(x_row.shape[0]):
        value = np.float64(x_row[d])
        other = np.float64(y_row[d])
        usual = np.float64(m_row[d])
        change = value - other
        apart = value - usual
        out2 += value * value
        in2 += other * other
        dot += value * other
        change2 += change * change
        l1 += abs(apart)
        l2 += apart * apart
        flips += 1.0 if (value < 0) != (usual < 0) else 0.0
    return out2, in2, dot, change2, l1, l2, flips


def _pass(
    x: Array, y: Array, has_in: bool, m: Array, has_ema: bool, mean: Array, change_mean: Array
) -> tuple[tuple[float, float, float, float, float, float, float, float, float, float, float], float]:
    """Compiled by numba: x, y [B, T, D], m, mean [T, D], change_mean [D] float32. Returns the sums of ``Moments``, and
    that of the mean changes, which is not finite where one of them left float32's range on the way.

    An absent array is replaced by the frame itself, and its sums are dropped at the end: one loop for every case.
    """
    batch, tokens, width = x.shape
    out2 = l1 = l2 = ema2 = flips = norms = log_norms = in2 = change2 = cosines = 0.0
    mean2 = mean_dot = 0.0
    share = np.float32(1.0 / batch)
    change_row = np.zeros(width, dtype=np.float32)
    change_sum = np.zeros(width)
    for t in range(tokens):
        mean_row = mean[t]
        mean_row[:] = np.float32(0.0)
        for b in range(batch):
            x_row = x[b, t]
            y_row = y[b, t] if has_in else x_row
            m_row = m[t] if has_ema else x_row
            row_out2, row_in2, row_dot, row_change2, row_l1, row_l2, row_flips = _row(x_row, y_row, m_row)
            out2 += row_out2
            in2 += row_in2
            change2 += row_change2
            l1 += row_l1
            l2 += row_l2
            flips += row_flips
            length = math.sqrt(row_out2)
            norms += length
            log_norms += math.log(max(length, 1e-30))
            below = math.sqrt(row_out2 * row_in2)
            if below > 0.0:
                cosines += row_dot / below
            for d in range(width):
                mean_row[d] += x_row[d] * share
            if has_in:
                for d in range(width):
                    change_row[d] += x_row[d] - y_row[d]
                if b % 16 == 15 or b == batch - 1:  # few enough for float32: 16 roundings of 6e-8
                    for d in range(width):
                        change_sum[d] += change_row[d]
                    change_row[:] = np.float32(0.0)
        if has_ema:
            row_mean2, row_m2, row_dot, _, _, _, _ = _row(mean_row, m[t], mean_row)
            mean2 += row_mean2
            mean_dot += row_dot
            ema2 += row_m2 * batch
    length = math.sqrt(mean2 * ema2 / batch)
    align = mean_dot / length if length > 0.0 else 0.0
    if not has_in:
        in2 = change2 = cosines = 0.0
    if not has_ema:
        l1 = l2 = flips = 0.0
    total = 0.0
    for d in range(width):
        change_sum[d] /= batch * tokens
        total += change_sum[d]
        change_mean[d] = np.float32(min(max(change_sum[d], -_LARGEST), _LARGEST))
    return (out2, l1, l2, ema2, flips, norms, log_norms, in2, change2, cosines, align), total


def _project(row: Array, directions: Array, found: Array) -> None:
    """Compiled by numba: products of one row [D] with the eight rows of ``directions`` [8, D] float64."""
    d0, d1, d2, d3 = directions[0], directions[1], directions[2], directions[3]
    d4, d5, d6, d7 = directions[4], directions[5], directions[6], directions[7]
    a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = 0.0
    for d in range(row.shape[0]):
        value = np.float64(row[d])
        a0 += value * d0[d]
        a1 += value * d1[d]
        a2 += value * d2[d]
        a3 += value * d3[d]
        a4 += value * d4[d]
        a5 += value * d5[d]
        a6 += value * d6[d]
        a7 += value * d7[d]
    found[0], found[1], found[2], found[3] = a0, a1, a2, a3
    found[4], found[5], found[6], found[7] = a4, a5, a6, a7


def _exchange(low: Array, high: Array) -> None:
    """Compiled by numba: put the smaller of each pair into ``low``."""
    for p in range(NUM_DIRECTIONS):
        a, b = low[p], high[p]
        low[p] = min(a, b)
        high[p] = max(a, b)


def _sort_columns(table: Array) -> None:
    """Compiled by numba: Batcher's odd-even merge sort of all columns [n, 8] at once, in place. The order of the
    exchanges does not depend on the values, so eight columns go through one vector instruction."""
    count = table.shape[0]
    run = 1
    while run < count:
        step = run
        while step > 0:
            start = step % run
            while start + step < count:
                for i in range(min(step, count - start - step)):
                    if (start + i) // (2 * run) == (start + i + step) // (2 * run):
                        _exchange(table[start + i], table[start + i + step])
                start += 2 * step
            step //= 2
        run *= 2


def _sliced(x: Array, m: Array, rows: Array, directions: Array) -> float:
    """Compiled by numba: mean over directions [8, D] of the distance between sorted projections."""
    count = rows.shape[0]
    ours = np.empty((count, NUM_DIRECTIONS))
    theirs = np.empty((count, NUM_DIRECTIONS))
    for i in range(count):
        _project(x[rows[i, 0], rows[i, 1]], directions, ours[i])
        _project(m[rows[i, 1]], directions, theirs[i])
    _sort_columns(ours)
    _sort_columns(theirs)
    total = 0.0
    for i in range(count):
        for p in range(NUM_DIRECTIONS):
            total += abs(ours[i, p] - theirs[i, p])
    distance: float = total / (count * NUM_DIRECTIONS)
    return distance


def _blend(old: Array, new: Array, beta: float, mixed: Array) -> float:
    """Compiled by numba: mixed = beta old + (1 - beta) new, all [n] float32; returns the sum, which is finite if and
    only if every element is."""
    keep, take = np.float32(beta), np.float32(1.0 - beta)
    for i in range(old.shape[0]):
        mixed[i] = keep * old[i] + take * new[i]
    total = 0.0
    for i in range(old.shape[0]):
        total += np.float64(mixed[i])
    return total


def _dot(a: Array, b: Array) -> float:
    """Compiled by numba."""
    total = 0.0
    for i in range(a.shape[0]):
        total += np.float64(a[i]) * np.float64(b[i])
    return total


def _middle(values: Array, count: int) -> float:
    """Median of the first ``count`` values, by selection; reorders them."""
    half = count // 2
    low, high = 0, count - 1
    while low < high:
        pivot = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if half <= j:
            high = j
        elif half >= i:
            low = i
        else:
            break
    upper: float = values[half]
    if count % 2:
        return upper
    lower: float = values[0]
    for i in range(1, half):
        lower = max(lower, values[i])
    return 0.5 * (lower + upper)


def _fit(window: Array, levels: Array, trends: Array, spreads: Array, counts: Array) -> None:
    """For each column of ``window`` [n, M] (rows oldest first, NaN = absent): where the next value should lie.

    Between ``levels``, the median of the newer half, and ``trends``, the line through the medians of both halves
    carried on by one frame: honest drift (losses fall, gradients shrink) moves the fences along, and a drift that
    stops or turns is no surprise either. ``spreads`` is twice the median absolute residual from the line: it equals
    the interquartile range of a symmetric sample and, unlike it, bears that a third of the frames is hostile.
    """
    rows, num_metrics = window.shape
    column = np.empty(rows)
    scratch = np.empty(rows)
    for metric in range(num_metrics):
        count = 0
        for i in range(rows):
            if not math.isnan(window[i, metric]):
                column[count] = window[i, metric]
                count += 1
        counts[metric] = count
        levels[metric] = trends[metric] = spreads[metric] = 0.0
        if count == 0:
            continue
        slope = 0.0
        level = 0.0
        if count >= 16:
            half = count // 2
            for i in range(half):
                scratch[i] = column[i]
            old = _middle(scratch, half)
            for i in range(half):
                scratch[i] = column[count - half + i]
            level = _middle(scratch, half)
            slope = (level - old) / (count - half)
        for i in range(count):
            scratch[i] = column[i] - slope * (i - count)
        trend = _middle(scratch, count)
        for i in range(count):
            scratch[i] = abs(column[i] - slope * (i - count) - trend)
        trends[metric] = trend
        levels[metric] = level if count >= 16 else trend
        spreads[metric] = 2.0 * _middle(scratch, count)


def _compile() -> bool:
    """Replace the plain functions by compiled ones; False where numba is missing or can not work here."""
    try:
        from numba import njit
    except ImportError:
        return False

    def build(function: Callable[..., Any], relaxed: set[str]) -> Any:
        try:
            return njit(cache=True, nogil=True, fastmath=relaxed)(function)
        except RuntimeError:  # no folder to cache in: compile for this process alone
            return njit(nogil=True, fastmath=relaxed)(function)

    # The order matters: a compiled function calls those above it.
    for function in (_middle, _row, _dot, _project, _exchange, _sort_columns, _pass, _sliced, _fit):
        globals()[function.__name__] = build(function, {"reassoc", "contract", "nsz"})
    globals()["_blend"] = build(_blend, {"reassoc", "nsz"})  # not contracted: the same bits as without numba
    return True


COMPILED = _compile()
_NOTHING_3 = np.zeros((1, 1, 1), dtype=np.float32)
_NOTHING_2 = np.zeros((1, 1), dtype=np.float32)


def _columns(directions: Array) -> Array:
    """Directions [D, 8] as contiguous float64 rows [8, D]."""
    return np.ascontiguousarray(directions.T, dtype=np.float64)


def moments_numba(x: Array, y: Array | None, ema: Array | None, directions: Array) -> Moments:
    """The fast path (works, slowly, without numba too)."""
    mean = np.empty(x.shape[1:], dtype=np.float32)
    change_mean = np.empty(x.shape[2], dtype=np.float32)
    sums, total = _pass(
        x,
        _NOTHING_3 if y is None else y,
        y is not None,
        _NOTHING_2 if ema is None else ema,
        ema is not None,
        mean,
        change_mean,
    )
    sliced = 0.0
    if ema is not None:
        sliced = _sliced(x, ema, sampled_rows(x.shape[1], x.shape[0]), _columns(directions))
    if not math.isfinite(total) and math.isfinite(sums[0]) and math.isfinite(sums[7]):  # rare, so slowly
        assert y is not None, "without a counterpart nothing was added up"
        change_mean = narrow((x.astype(np.float64) - y).mean(axis=(0, 1)))
    return Moments(*sums, sliced, mean, change_mean)


moments = moments_numba if COMPILED else moments_torch


def blend(old: Array, new: Array, beta: float) -> Array | None:
    """beta old + (1 - beta) new of two float32 arrays of one shape; None where the result is not finite."""
    mixed = np.empty_like(old)
    total = _blend(old.reshape(-1), new.reshape(-1), beta, mixed.reshape(-1))
    return mixed if math.isfinite(total) else None


def dot(a: Array, b: Array) -> float:
    """Inner product of two float32 arrays [n], summed in float64; not finite where an element is not."""
    if COMPILED:
        return float(_dot(a, b))
    with np.errstate(over="ignore", invalid="ignore"):
        return float(a.astype(np.float64).dot(b.astype(np.float64)))


@dataclass(frozen=True, slots=True)
class Fit:
    """What a window says about the next value of each metric; four lists of M numbers, see ``_fit``."""

    levels: list[float]
    trends: list[float]
    spreads: list[float]
    counts: list[float]


def fit(window: Array) -> Fit:
    """Summarise a window [n, M]."""
    num_metrics = window.shape[1]
    table = np.zeros((4, num_metrics))
    if window.shape[0]:
        _fit(window, table[0], table[1], table[2], table[3])
    return Fit(*table.tolist())


def as_float32(tensor: torch.Tensor) -> Array:
    """A contiguous float32 array of a CPU tensor, without a copy where it already is one."""
    if tensor.dtype is not torch.float32 or not tensor.is_contiguous() or not tensor.is_cpu:
        tensor = tensor.to(device="cpu", dtype=torch.float32).contiguous()
    flat: Array = tensor.detach().numpy()
    return flat
