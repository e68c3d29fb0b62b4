"""The data-parallel axis: one replica's mean gradient of a step against the others' and against what was usual.

A suspect here goes to a whole-gradient recompute. The gradient is flat, [N], as in ``models.layout``; the baseline
keeps a moving average of the *aggregate* and a window of the metrics of accepted replicas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import mode

import numpy as np
import torch

from sentinel_market.errors import ProtocolError
from sentinel_market.wire.tensors import all_finite
from verifier.check.baseline import Window
from verifier.check.check import Screening
from verifier.check.fences import fences
from verifier.check.frame import BACKWARD
from verifier.check.kernels import Array, as_float32, blend, dot, narrow
from verifier.check.metrics import TINY, log_of
from verifier.check.policy import Policy
from verifier.check.structure import FLOATS
from verifier.check.verdict import Score, Verdict, VerdictKind, to_e6

GRADIENT_METRICS = ("norm", "align", "peers", "ratio", "apart", "twin")
# Replicas see other data and different numbers of microbatches, so honest spreads are wide; no narrower than these.
FLOORS = {"norm": 0.12, "align": 0.06, "peers": 0.06, "ratio": 0.09, "apart": 0.09, "twin": 0.1}
# Lengths have long tails (one odd batch), directions do not: how much wider than the policy's k.
WIDER = {"norm": 1.5, "align": 1.05, "peers": 1.05, "ratio": 1.2, "apart": 1.2, "twin": 2.0}
EARLY = {"align": 0.15, "peers": 0.15, "ratio": 0.1, "apart": 0.12}
SAME = 1e-12  # cosines of two replicas closer to 1 than this are equal
# In warm-up there may be no window yet. An honest mean is the common gradient plus noise: its projection on the others'
# mean is at most about one of theirs, and it does not point away from them.
SCALED = 1.7
OPPOSED = -0.05
COPIED = 0.9999  # other data never gives the same gradient
STEADY_ROWS = 8
LEAST_STEADY = 4
_CHUNK = 1 << 15  # elements of a replica that are looked at together: those of a few fit a core's cache


@dataclass(kw_only=True)
class GradientBaseline(Window):
    """What is known about honest stage gradients of one stage. ``mean`` [N] float32: moving average of the aggregate;
    ``step``: the last whose aggregate is in; ``updates``: how many are."""

    updates: int = 0
    step: int = -1
    mean: Array | None = None
    window: Array = field(default_factory=lambda: np.zeros((0, len(GRADIENT_METRICS))))

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Contiguous tensors; an absent average is an empty one."""
        return {
            "meta": torch.tensor([self.frames, self.updates, self.step], dtype=torch.int64),
            "mean": torch.zeros(0) if self.mean is None else torch.from_numpy(self.mean.copy()),
            "window": torch.from_numpy(self.window.copy()),
            "workers": torch.from_numpy(self.workers.copy()),
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, torch.Tensor]) -> GradientBaseline:
        """The inverse; ProtocolError("baseline") for a state that does not fit together."""
        try:
            frames, updates, step = (int(v) for v in state["meta"])
            mean, window, workers = state["mean"], state["window"].double(), state["workers"].long()
            if mean.dim() != 1 or window.dim() != 2 or window.shape[1] != len(GRADIENT_METRICS):
                raise ValueError(f"mean {list(mean.shape)}, window {list(window.shape)}")
            if workers.shape != window.shape[:1]:
                raise ValueError(f"window {list(window.shape)} and workers {list(workers.shape)}")
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise ProtocolError("baseline", f"not a gradient baseline's state: {error}") from error
        return cls(
            frames=frames,
            updates=updates,
            step=step,
            mean=mean.float().numpy().copy() if mean.numel() else None,
            window=window.numpy().copy(),
            workers=workers.numpy().copy(),
        )


@dataclass(frozen=True, slots=True)
class _Products:
    """Inner products of the mean gradient g of a replica, the mean o of the other replicas' and the moving average m; 0
    where absent. ``closest``: the largest cosine to any other replica; NaN where there is none."""

    gg: float
    go: float
    oo: float
    gm: float
    mm: float
    closest: float

    @property
    def apart(self) -> float:
        """(g - o)^2."""
        return max(self.gg - 2 * self.go + self.oo, 0.0)


def _gram(sums: list[Array], counts: list[int], usual: Array | None) -> Array:
    """Inner products [R + 1, R + 1], in float64 and one sweep, of the replicas' means and last the moving average, [N]
    each. Not finite where a row is not, in that row and column alone."""
    rows = [*sums, *([] if usual is None else [usual])]
    gram = np.zeros((len(sums) + 1, len(sums) + 1))
    for begin in range(0, sums[0].size, _CHUNK):
        parts = [one[begin : begin + _CHUNK] for one in rows]
        for i, one in enumerate(parts):
            for j in range(i + 1):
                gram[i, j] += dot(one, parts[j])
    scale = 1.0 / np.array([*(max(count, 1) for count in counts), 1])
    lower = gram * np.outer(scale, scale)
    return lower + np.tril(lower, -1).T


def _products(gram: Array, index: int, others: list[int]) -> _Products:
    """Of the replica in row ``index`` beside those in the rows ``others``."""
    gg, gm, mm = float(gram[index, index]), float(gram[index, -1]), float(gram[-1, -1])
    if not others:
        return _Products(gg, 0.0, 0.0, gm, mm, math.nan)
    go = float(gram[index, others].mean())
    oo = float(gram[np.ix_(others, others)].mean())
    closest = max(_cosine(float(gram[index, other]), gg, float(gram[other, other])) for other in others)
    return _Products(gg, go, oo, gm, mm, closest)


def _cosine(dot: float, a2: float, b2: float) -> float:
    below = math.sqrt(a2) * math.sqrt(b2)
    return dot / below if below > 0 else 0.0


def gradient_metrics(of: _Products, *, has_others: bool, has_mean: bool) -> tuple[float, ...]:
    """Values in the order of GRADIENT_METRICS; NaN where a reference is absent."""
    align = peers = ratio = apart = twin = math.nan
    if has_mean:
        align = _cosine(of.gm, of.gg, of.mm)
    if has_others:
        peers = _cosine(of.go, of.gg, of.oo)
        ratio = log_of(math.sqrt(of.gg)) - log_of(math.sqrt(of.oo))
        apart = log_of(math.sqrt(of.apart)) - log_of(math.sqrt(of.oo))
        twin = math.log(max(1.0 - of.closest, SAME))
    return log_of(math.sqrt(of.gg)), align, peers, ratio, apart, twin


def screen_gradients(
    baseline: GradientBaseline, sums: Mapping[int, tuple[torch.Tensor, int]], policy: Policy
) -> dict[int, Screening]:
    """Judge all replicas of a step: worker -> (sum of its microbatches' gradients, float32 [N], their number). Each
    one's mean is held against the mean of the others' means; a sum that is not finite is nobody's other.

    Pure, and never raises for anything a worker can send.
    """
    shapes = [one.shape for one, _ in sums.values()] if baseline.mean is None else [baseline.mean.shape]
    due = mode(shapes) if shapes else None
    found, left = {}, {}
    for worker, (total, count) in sums.items():
        problem = _structure(total, due)
        if not problem and total.dtype != torch.float32:
            problem = f"dtype: {total.dtype} where float32 is due"
        if problem:
            found[worker] = _plain(baseline, worker, policy, VerdictKind.SUSPECT, problem)
        else:
            left[worker] = (as_float32(total), count)
    if left:
        gram = _gram([one for one, _ in left.values()], [count for _, count in left.values()], baseline.mean)
        finite = [index for index in range(len(left)) if math.isfinite(gram[index, index])]
        for index, worker in enumerate(left):
            others = [other for other in finite if other != index]
            of = _products(gram, index, others)
            found[worker] = _judge(baseline, worker, of, bool(others), baseline.mean is not None, policy)
    return {worker: found[worker] for worker in sums}


def _structure(gradient: torch.Tensor, due: torch.Size | tuple[int, ...] | None) -> str:
    """What is wrong with shape and type; "" if nothing."""
    if gradient.dtype not in FLOATS:
        return f"dtype: {gradient.dtype} is no floating-point type"
    if gradient.dim() != 1 or not gradient.numel() or (due is not None and gradient.shape != due):
        return f"shape: a gradient of {list(gradient.shape)} where {'[N]' if due is None else list(due)} is due"
    return ""


def _plain(baseline: GradientBaseline, worker: int, policy: Policy, kind: VerdictKind, reason: str) -> Screening:
    return Screening(Verdict(kind, reason), policy, worker, in_warmup=baseline.frames < policy.warmup_frames)


def _judge(
    baseline: GradientBaseline, worker: int, of: _Products, has_others: bool, has_mean: bool, policy: Policy
) -> Screening:
    if not math.isfinite(of.gg):
        reason = "nonfinite: NaN or Inf in the gradient, or a norm that leaves the range of numbers"
        return _plain(baseline, worker, policy, VerdictKind.SUSPECT, reason)
    if not policy.screens:
        return _plain(baseline, worker, policy, VerdictKind.ACCEPT, "policy none: structure only")
    in_warmup = baseline.frames < policy.warmup_frames
    values = gradient_metrics(of, has_others=has_others, has_mean=has_mean)
    scores, crossed = fences(
        GRADIENT_METRICS,
        values,
        baseline.fitted(),
        floors=EARLY if in_warmup else FLOORS,
        k=lambda index: policy.k_early if in_warmup else policy.k_init * WIDER[GRADIENT_METRICS[index]],
        least=policy.early_frames,
    )
    if not in_warmup:
        steady = _steady(baseline, worker, values, policy)
        crossed += tuple(len(scores) + i for i, score in enumerate(steady) if score.crossed)
        scores += steady
    absolute = _absolute(of, has_others, in_warmup)
    if absolute:
        verdict = Verdict(VerdictKind.SUSPECT, absolute, scores)
    elif crossed:
        verdict = Verdict(VerdictKind.SUSPECT, "; ".join(scores[i].text() for i in crossed), scores)
    else:
        verdict = Verdict(VerdictKind.ACCEPT, "inside every fence", scores)
    return Screening(verdict, policy, worker, values, crossed=crossed, in_warmup=in_warmup)


def _steady(baseline: GradientBaseline, worker: int, values: tuple[float, ...], policy: Policy) -> tuple[Score, ...]:
    """A small lie told in every step: the mean over this worker's rows in the window, this one included, has a spread
    that is smaller by the root of their number, and so are its fences."""
    found = baseline.fitted()
    own = baseline.window[baseline.workers == worker][1 - STEADY_ROWS :]
    scores = []
    for name in ("ratio", "peers"):
        index = GRADIENT_METRICS.index(name)
        rows = [*own[:, index].tolist(), values[index]]
        rows = [value for value in rows if not math.isnan(value)]
        if len(rows) < LEAST_STEADY or math.isnan(values[index]):
            continue
        mean = sum(rows) / len(rows)
        reach = (0.5 + policy.k_init) * max(found.spreads[index], FLOORS[name]) / math.sqrt(len(rows))
        level, trend = found.levels[index], found.trends[index]
        low, high = to_e6(min(level, trend) - reach), to_e6(max(level, trend) + reach)
        scores.append(Score(f"steady {name}", to_e6(mean), low, high))
    return tuple(scores)


def _absolute(of: _Products, has_others: bool, in_warmup: bool) -> str:
    if of.gg <= TINY * TINY:
        return "vanished: every element of the gradient is zero"
    if not has_others or not in_warmup or of.oo <= 0.0:
        return ""
    share, cosine = of.go / of.oo, _cosine(of.go, of.gg, of.oo)
    if cosine < OPPOSED:
        return f"opposed: cosine to the other replicas' mean is {cosine:.4f} during warm-up, below {OPPOSED}"
    if share > SCALED:
        return f"scaled: {share:.3g} times the other replicas' mean along it during warm-up, above {SCALED}"
    if of.closest > COPIED:
        return f"copied: cosine to another replica is {of.closest:.6f} during warm-up, above {COPIED}"
    return ""


def accept_gradient(
    baseline: GradientBaseline, worker: int, screening: Screening, aggregate: torch.Tensor, step: int
) -> None:
    """Fold an accepted replica in; the aggregate [N] of ``step`` enters the moving average once. A broken aggregate
    teaches nothing."""
    policy = screening.policy
    if step != baseline.step and _fold(baseline, aggregate, policy.beta(BACKWARD)):
        baseline.step = step
        baseline.updates += 1
    if not screening.values:
        return
    baseline.append(screening.values, worker, policy.window)


def _fold(baseline: GradientBaseline, aggregate: torch.Tensor, beta: float) -> bool:
    if aggregate.dim() != 1 or not aggregate.numel() or aggregate.dtype not in FLOATS:
        return False
    new, old = aggregate.detach().cpu(), baseline.mean
    if old is not None and old.shape != new.shape:
        return False
    if not all_finite(new):
        return False
    if new.dtype != torch.float32:
        new = torch.from_numpy(narrow(new.double().numpy()))
    beta = min(beta, baseline.updates / (baseline.updates + 1))
    # each share is within float32's range and so is their sum; a copy, for the aggregate is the caller's
    baseline.mean = new.numpy().copy() if old is None else blend(old, as_float32(new), beta)
    return True
