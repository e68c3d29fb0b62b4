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
from verifier.check.kernels import Array, as_float32, blend, narrow, products
from verifier.check.metrics import TINY, log_of
from verifier.check.policy import Policy
from verifier.check.structure import FLOATS
from verifier.check.verdict import Score, Verdict, VerdictKind, to_e6

GRADIENT_METRICS = ("norm", "align", "peers", "ratio", "apart")
# Replicas see other data and different numbers of microbatches, so honest spreads are wide; no narrower than these.
FLOORS = {"norm": 0.12, "align": 0.06, "peers": 0.06, "ratio": 0.09, "apart": 0.09}
# Lengths have long tails (one odd batch), directions do not: how much wider than the policy's k.
WIDER = {"norm": 1.5, "align": 1.05, "peers": 1.05, "ratio": 1.2, "apart": 1.2}
EARLY = {"align": 0.15, "peers": 0.15, "ratio": 0.1, "apart": 0.12}
# In warm-up there may be no window yet. An honest mean is the common gradient plus noise: its projection on the others'
# mean is at most about one of theirs, and it does not point away from them.
SCALED = 1.7
OPPOSED = -0.05
STEADY_ROWS = 8
LEAST_STEADY = 4
_CHUNK = 1 << 15  # elements of one replica that are looked at together: three of them fit a core's cache


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


@dataclass(slots=True)
class _Sums:
    """Inner products in float64 of the gradient g, the others' mean o and the moving average m; 0 where absent."""

    gg: float = 0.0
    go: float = 0.0
    oo: float = 0.0
    gm: float = 0.0
    mm: float = 0.0
    apart: float = 0.0

    def add(self, g: Array, o: Array | None, m: Array | None) -> None:
        """Those of one more part [n]."""
        gg, go, oo, gm, mm, apart = products(g, g if o is None else o, g if m is None else m)
        self.gg += gg
        if o is not None:
            self.go, self.oo, self.apart = self.go + go, self.oo + oo, self.apart + apart
        if m is not None:
            self.gm, self.mm = self.gm + gm, self.mm + mm


def _sums(g: Array, others: Array | None, usual: Array | None) -> _Sums:
    found = _Sums()
    for begin in range(0, g.size, _CHUNK):
        part = slice(begin, begin + _CHUNK)
        found.add(g[part], None if others is None else others[part], None if usual is None else usual[part])
    return found


def _peers(sums: list[Array], counts: list[int], usual: Array | None) -> list[_Sums]:
    """Each replica's mean beside the mean of the others' means, all float32 [N], in one sweep: what is made of a chunk
    stays in the cache."""
    num = len(sums)
    found = [_Sums() for _ in sums]
    means, others = np.empty((num, _CHUNK), dtype=np.float32), np.empty(_CHUNK, dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # a hostile sum may be anything: its products say so
        for begin in range(0, sums[0].size, _CHUNK):
            part = slice(begin, begin + _CHUNK)
            size = sums[0][part].size
            for row, one, count in zip(means, sums, counts, strict=True):
                np.divide(one[part], np.float32(max(count, 1)), out=row[:size])
            m = None if usual is None else usual[part]
            for index in range(num):
                rest = [row[:size] for other, row in enumerate(means) if other != index]
                o = others[:size] if rest else None
                if o is not None:
                    o[:] = rest[0]
                    for row in rest[1:]:
                        o += row
                    o /= np.float32(len(rest))
                found[index].add(means[index, :size], o, m)
    return found


def _usable(tensor: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    """A reference that is absent, of another shape or type says nothing about this replica."""
    if tensor is None or tensor.dtype not in FLOATS or tensor.shape != like.shape:
        return None
    return tensor.detach().cpu()


def _cosine(dot: float, a2: float, b2: float) -> float:
    below = math.sqrt(a2) * math.sqrt(b2)
    return dot / below if below > 0 else 0.0


def gradient_metrics(sums: _Sums, *, has_others: bool, has_mean: bool) -> tuple[float, ...]:
    """Values in the order of GRADIENT_METRICS; NaN where a reference is absent."""
    align = peers = ratio = apart = math.nan
    if has_mean:
        align = _cosine(sums.gm, sums.gg, sums.mm)
    if has_others:
        peers = _cosine(sums.go, sums.gg, sums.oo)
        ratio = log_of(math.sqrt(sums.gg)) - log_of(math.sqrt(sums.oo))
        apart = log_of(math.sqrt(sums.apart)) - log_of(math.sqrt(sums.oo))
    return log_of(math.sqrt(sums.gg)), align, peers, ratio, apart


def screen_gradient(
    baseline: GradientBaseline, worker: int, gradient: torch.Tensor, others: torch.Tensor | None, policy: Policy
) -> Screening:
    """Judge a replica's mean gradient [N]; ``others`` [N]: the mean of the other replicas' means, None where there is
    no other. Pure, and never raises for anything a worker can send."""
    due = others.shape if others is not None else None if baseline.mean is None else baseline.mean.shape
    problem = _structure(gradient, due)
    if problem:
        return _plain(baseline, worker, policy, VerdictKind.SUSPECT, problem)
    o = _usable(others, gradient)
    usual = _usable(None if baseline.mean is None else torch.from_numpy(baseline.mean), gradient)
    arrays = [None if one is None else _array(one) for one in (gradient, o, usual)]
    assert arrays[0] is not None
    return _judge(baseline, worker, _sums(arrays[0], arrays[1], arrays[2]), o is not None, usual is not None, policy)


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
    while left:
        made = _peers([one for one, _ in left.values()], [count for _, count in left.values()], baseline.mean)
        broken = any(not math.isfinite(one.gg) for one in made)
        for worker, one in zip(list(left), made, strict=True):
            if not broken or not math.isfinite(one.gg):  # beside a broken one the others' mean is broken too
                found[worker] = _judge(baseline, worker, one, len(made) > 1, baseline.mean is not None, policy)
                del left[worker]
    return {worker: found[worker] for worker in sums}


def _structure(gradient: torch.Tensor, due: torch.Size | tuple[int, ...] | None) -> str:
    """What is wrong with shape and type; "" if nothing."""
    if gradient.dtype not in FLOATS:
        return f"dtype: {gradient.dtype} is no floating-point type"
    if gradient.dim() != 1 or not gradient.numel() or (due is not None and gradient.shape != due):
        return f"shape: a gradient of {list(gradient.shape)} where {'[N]' if due is None else list(due)} is due"
    return ""


def _array(tensor: torch.Tensor) -> Array:
    """As float32 where it is, else as float64: nothing is cut."""
    wide = tensor.detach().cpu()
    found: Array = (wide if wide.dtype == torch.float32 else wide.double()).numpy()
    return found


def _plain(baseline: GradientBaseline, worker: int, policy: Policy, kind: VerdictKind, reason: str) -> Screening:
    return Screening(Verdict(kind, reason), policy, worker, in_warmup=baseline.frames < policy.warmup_frames)


def _judge(
    baseline: GradientBaseline, worker: int, sums: _Sums, has_others: bool, has_mean: bool, policy: Policy
) -> Screening:
    if not math.isfinite(sums.gg):
        reason = "nonfinite: NaN or Inf in the gradient, or a norm that leaves the range of numbers"
        return _plain(baseline, worker, policy, VerdictKind.SUSPECT, reason)
    if not policy.screens:
        return _plain(baseline, worker, policy, VerdictKind.ACCEPT, "policy none: structure only")
    # a reference that is not finite says nothing about this replica
    has_others, has_mean = has_others and math.isfinite(sums.oo), has_mean and math.isfinite(sums.mm)
    if has_others and not math.isfinite(sums.apart):
        return _plain(
            baseline, worker, policy, VerdictKind.SUSPECT, "nonfinite: the gradient's norm leaves the range of numbers"
        )
    in_warmup = baseline.frames < policy.warmup_frames
    values = gradient_metrics(sums, has_others=has_others, has_mean=has_mean)
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
    absolute = _absolute(sums, has_others, in_warmup)
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


def _absolute(sums: _Sums, has_others: bool, in_warmup: bool) -> str:
    if sums.gg <= TINY * TINY:
        return "vanished: every element of the gradient is zero"
    if not has_others or not in_warmup or sums.oo <= 0.0:
        return ""
    share, cosine = sums.go / sums.oo, _cosine(sums.go, sums.gg, sums.oo)
    if cosine < OPPOSED:
        return f"opposed: cosine to the other replicas' mean is {cosine:.4f} during warm-up, below {OPPOSED}"
    if share > SCALED:
        return f"scaled: {share:.3g} times the other replicas' mean along it during warm-up, above {SCALED}"
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
