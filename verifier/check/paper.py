"""Policy ``paper``: the published detector and nothing else (sentinel.md, section 2), so that it can be measured.

Four distances of a tensor to the moving average of the batch mean, Tukey's fences on a window of accepted distances, a
width k that follows the boundary's own flags, strikes with forgiveness. No conditional metric, no replay, no recompute;
the first stage's input and the last stage's loss are taken on trust, as the paper does. Two choices of ours where the
paper leaves it open: both fences are used for each distance, and the interquartile range is taken as at least one
hundredth of the median, so that a window of equal values flags no rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from verifier.check.baseline import FRAME_METRICS, Baseline
from verifier.check.kernels import Moments
from verifier.check.policy import PPM, Policy
from verifier.check.verdict import E6, Score, to_e6

METRICS = FRAME_METRICS[:4]
_LEAST_SPREAD = 0.01
_LEARNING_RATE = 0.05


def paper_metrics(moments: Moments, *, num_tokens: int, width: int, has_ema: bool) -> tuple[float, ...]:
    """Plain distances (no logarithms) in the first four columns of FRAME_METRICS, NaN in the others."""
    found = [math.nan] * len(FRAME_METRICS)
    if has_ema:
        elements = num_tokens * width
        length = max(math.sqrt(moments.ema2), 1e-30)
        found[:4] = [
            moments.l1 / elements,
            min(math.sqrt(moments.l2) / length, 1e300),
            moments.flips / elements,
            moments.sliced,
        ]
    return tuple(found)


def tukey(
    baseline: Baseline, policy: Policy, values: tuple[float, ...], in_warmup: bool
) -> tuple[tuple[Score, ...], tuple[int, ...]]:
    """Scores against Q1 - k IQR and Q3 + k IQR of the accepted distances, and the columns that lie outside; in warm-up
    nothing is judged."""
    wanted = policy.paper_metrics.split(",")
    scores: list[Score] = []
    crossed: list[int] = []
    for index, name in enumerate(METRICS):
        value = values[index]
        column = baseline.window[:, index]
        column = column[~np.isnan(column)]
        if math.isnan(value):
            scores.append(Score(name, 0))
            continue
        if in_warmup or name not in wanted or column.size < policy.early_frames:
            scores.append(Score(name, to_e6(value)))
            continue
        first, middle, third = (float(q) for q in np.quantile(column, (0.25, 0.5, 0.75)))
        reach = baseline.k(index, policy.paper_k) * max(third - first, _LEAST_SPREAD * abs(middle))
        score = Score(name, to_e6(value), to_e6(first - reach), to_e6(third + reach))
        scores.append(score)
        if score.crossed:
            crossed.append(index)
    return tuple(scores), tuple(crossed)


def adapt(baseline: Baseline, policy: Policy, crossed: tuple[int, ...]) -> None:
    """After each judged frame of this boundary: k of a metric that crossed grows by 5 %, of one that did not shrinks by
    5 % of the target rate, so that about the target share of frames crosses; within [paper_k_min, paper_k_max].

    The published rule listens to its own flags, whoever caused them: a hostile worker widens it.
    """
    target = policy.paper_target_flags_ppm / PPM
    for index in range(len(METRICS)):
        step = 1.0 - target if index in crossed else -target
        k = baseline.k(index, policy.paper_k) * math.exp(_LEARNING_RATE * step)
        baseline.k_e6[index] = round(min(policy.paper_k_max, max(policy.paper_k_min, k)) * E6)


@dataclass(slots=True)
class _Record:
    strikes: int = 0
    clean: int = 0


class Strikes:
    """Unconfirmed flags a worker: one strike a flag, all forgiven after a run of clean checks, a ban at a number."""

    def __init__(self, policy: Policy) -> None:
        self._limit = policy.paper_strikes
        self._forgive = policy.paper_forgive
        self._records: dict[int, _Record] = {}

    def note(self, worker: int, flagged: bool) -> int:
        """Count one check; returns the strikes if they reach the limit (the count then starts anew), else 0."""
        record = self._records.setdefault(worker, _Record())
        if not flagged:
            record.clean += 1
            if record.clean >= self._forgive:
                record.strikes = 0
            return 0
        record.clean = 0
        record.strikes += 1
        if record.strikes < self._limit:
            return 0
        strikes, record.strikes = record.strikes, 0
        return strikes

    def state(self) -> torch.Tensor:
        """[n, 3] int64: worker, strikes, clean checks in a row."""
        rows = [(w, r.strikes, r.clean) for w, r in sorted(self._records.items())]
        return torch.tensor(rows, dtype=torch.int64).reshape(-1, 3)

    def load(self, state: torch.Tensor) -> None:
        """The inverse of ``state``."""
        self._records = {w: _Record(s, c) for w, s, c in state.reshape(-1, 3).tolist()}
