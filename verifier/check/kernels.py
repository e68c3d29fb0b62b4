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


@dataclass(frozen=True, slots=True)
class Moments:
    """Sums over one frame x [B, T, D] with counterpart y [B, T, D] and EMA m [T, D] (0 where absent)."""

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


def _narrow(array: Array) -> Array:
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
        mean=_narrow(mean.numpy()),
        change_mean=_narrow(change_mean.numpy()),
    )


def _pass(
    x: Array, y: Array, has_in: bool, m: Array, has_ema: bool, mean: Array, change_mean: Array
) -> tuple[float, float, float, float, float, float, float, float, float, float, float]:
    """Compiled by numba: x, y [B, T, D], m, mean [T, D], change_mean [D] float64 scratch."""
    batch, tokens, width = x.shape
    out2 = l1 = l2 = ema2 = flips = norms = log_norms = in2 = change2 = cosines = 0.0
    mean2 = mean_dot = 0.0
    share = np.float32(1.0 / batch)
    for t in range(tokens):
        mean_row = mean[t]
        m_row = m[t] if has_ema else m[0]
        row_m2 = 0.0
        if has_ema:
            for d in range(width):
                row_m2 += np.float64(m_row[d]) * np.float64(m_row[d])
            ema2 += row_m2 * batch
        for d in range(width):
            mean_row[d] = 0.0
        for b in range(batch):
            x_row = x[b, t]
            row_out2 = 0.0
            for d in range(width):
                value = np.float64(x_row[d])
                row_out2 += value * value
                mean_row[d] += x_row[d] * share
            out2 += row_out2
            length = math.sqrt(row_out2)
            norms += length
            log_norms += math.log(max(length, 1e-30))
            if has_ema:
                row_l1 = 0.0
                row_l2 = 0.0
                row_flips = 0
                for d in range(width):
                    apart = np.float64(x_row[d]) - np.float64(m_row[d])
                    row_l1 += abs(apart)
                    row_l2 += apart * apart
                    row_flips += (x_row[d] < 0) != (m_row[d] < 0)
                l1 += row_l1
                l2 += row_l2
                flips += row_flips
            if has_in:
                y_row = y[b, t]
                row_in2 = 0.0
                row_change2 = 0.0
                row_dot = 0.0
                for d in range(width):
                    value = np.float64(x_row[d])
                    other = np.float64(y_row[d])
                    change = value - other
                    row_in2 += other * other
                    row_change2 += change * change
                    row_dot += value * other
                    change_mean[d] += change
                in2 += row_in2
                change2 += row_change2
                below = math.sqrt(row_out2 * row_in2)
                if below > 0.0:
                    cosines += row_dot / below
        if has_ema:
            row_mean2 = 0.0
            row_dot = 0.0
            for d in range(width):
                row_mean2 += np.float64(mean_row[d]) * np.float64(mean_row[d])
                row_dot += np.float64(mean_row[d]) * np.float64(m_row[d])
            mean2 += row_mean2
            mean_dot += row_dot
    length = math.sqrt(mean2 * ema2 / batch)
    align = mean_dot / length if length > 0.0 else 0.0
    for d in range(width):
        change_mean[d] /= batch * tokens
    return out2, l1, l2, ema2, flips, norms, log_norms, in2, change2, cosines, align


def _sliced(x: Array, m: Array, rows: Array, directions: Array) -> float:
    """Compiled by numba: mean over directions of the distance between sorted projections."""
    count = rows.shape[0]
    width = x.shape[2]
    total = 0.0
    num_directions = directions.shape[0]
    for p in range(num_directions):
        ours = np.empty(count)
        theirs = np.empty(count)
        for i in range(count):
            x_row = x[rows[i, 0], rows[i, 1]]
            m_row = m[rows[i, 1]]
            a = 0.0
            b = 0.0
            for d in range(width):
                weight = np.float64(directions[p, d])
                a += np.float64(x_row[d]) * weight
                b += np.float64(m_row[d]) * weight
            ours[i] = a
            theirs[i] = b
        ours.sort()
        theirs.sort()
        for i in range(count):
            total += abs(ours[i] - theirs[i])
    distance: float = total / (count * num_directions)
    return distance


def _middle(values: Array, count: int) -> float:
    """Median of the first ``count`` values; sorts them in place."""
    part = values[:count]
    part.sort()
    half = count // 2
    middle: float = part[half] if count % 2 else 0.5 * (part[half - 1] + part[half])
    return middle


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
    global _pass, _sliced, _middle, _fit  # noqa: PLW0603 - chosen once, at import
    try:
        from numba import njit
    except ImportError:
        return False

    def build(function: Callable[..., Any]) -> Any:
        options: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "contract", "nsz"}}
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:  # no folder to cache in: compile for this process alone
            return njit(**options)(function)

    _middle = build(_middle)
    _pass, _sliced, _fit = build(_pass), build(_sliced), build(_fit)
    return True


COMPILED = _compile()
_NOTHING_3 = np.zeros((1, 1, 1), dtype=np.float32)
_NOTHING_2 = np.zeros((1, 1), dtype=np.float32)


def moments_numba(x: Array, y: Array | None, ema: Array | None, directions: Array) -> Moments:
    """The fast path (works, slowly, without numba too)."""
    mean = np.empty(x.shape[1:], dtype=np.float32)
    change_mean = np.zeros(x.shape[2], dtype=np.float64)
    sums = _pass(
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
        sliced = _sliced(x, ema, sampled_rows(x.shape[1], x.shape[0]), np.ascontiguousarray(directions.T))
    return Moments(*sums, sliced=sliced, mean=mean, change_mean=_narrow(change_mean))


moments = moments_numba if COMPILED else moments_torch


@dataclass(frozen=True, slots=True)
class Fit:
    """What a window says about the next value of each metric; four lists of M numbers, see ``_fit``."""

    levels: list[float]
    trends: list[float]
    spreads: list[float]
    counts: list[int]


def fit(window: Array) -> Fit:
    """Summarise a window [n, M]."""
    num_metrics = window.shape[1]
    levels, trends, spreads = np.zeros(num_metrics), np.zeros(num_metrics), np.zeros(num_metrics)
    counts = np.zeros(num_metrics, dtype=np.int64)
    if window.shape[0]:
        _fit(window, levels, trends, spreads, counts)
    return Fit(levels.tolist(), trends.tolist(), spreads.tolist(), counts.tolist())


def as_float32(tensor: torch.Tensor) -> Array:
    """A contiguous float32 array of a CPU tensor, without a copy where it already is one."""
    flat: Array = tensor.detach().to(device="cpu", dtype=torch.float32).contiguous().numpy()
    return flat
