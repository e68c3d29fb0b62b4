"""The screen: one frame against one baseline. ``screen`` only reads; what an accept needs travels in ``Screening``."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from sentinel_market.wire.tensors import all_finite
from verifier.check import paper
from verifier.check.baseline import FRAME_METRICS, Baseline
from verifier.check.fences import fences
from verifier.check.frame import Frame
from verifier.check.kernels import Array, as_float32, blend, dot, fit, moments
from verifier.check.metrics import frame_metrics, loss_metrics
from verifier.check.policy import PPM, Policy
from verifier.check.structure import structural_problem
from verifier.check.verdict import E6, Score, Verdict, VerdictKind

# A window can be tighter than the next honest frame: no spread is taken below these (natural logarithms, except
# sfr, cosine and zeros, which are shares).
FLOORS = {
    "l1": 0.02,
    "l2": 0.02,
    "sfr": 0.008,
    "sw": 0.05,
    "align": 0.04,
    "rms": 0.02,
    "even": 0.01,
    "cosine": 0.008,
    "blur": 0.025,
    "gain": 0.02,
    "change": 0.02,
    "drift": 0.1,
    "mean": 0.04,
    "std": 0.04,
    "zeros": 0.005,
}
# In warm-up the window is young and perhaps a third of it hostile: only these are judged, by these wide spreads.
EARLY = {"align": 0.15, "cosine": 0.06, "blur": 0.08, "gain": 0.15, "change": 0.2, "rms": 0.25, "even": 0.08}
UPPER_ONLY = {"sfr", "zeros"}
# The mean of few sequences has heavier tails than its spread tells: one table among prose. Measured at one sequence
# (docs/verification.md): of what lay outside fences of the usual width, 9 in 10 lay within 1.74 times them.
MOVED = 3.0  # as many times as wide as in warm-up: what moved may go on moving while the window is of before
USUAL_SEQUENCES = 4
TAIL = 0.4

IDENTITY = math.log(1e-3)  # |out - in| / |in| of a stage that did nothing
VANISHED = math.log(1e-4)  # |out| / |in| of a stage that returned next to nothing
OPPOSED = -0.2  # cos(out, in); in warm-up only: later the window knows what is usual here
NEGATIVE_LOSS = -1e-4  # nats; cross-entropy is not negative, its fp32 rounding may be


@dataclass(frozen=True, slots=True)
class Screening:
    """A verdict (ACCEPT, SUSPECT or INCONCLUSIVE) and what ``accept`` folds into the baseline later.

    ``values`` [M]: metric values. ``mean`` [T, D] and ``change`` [D]: this frame's contributions to the EMAs; None
    where the frame has none. ``microbatch``: set by ``Engine.screen``. ``broken``: wrong whatever the window says. A
    screening never changes and refers to no state, so other frames may be accepted first.
    """

    verdict: Verdict
    policy: Policy
    worker: int
    values: tuple[float, ...] = ()
    mean: Array | None = None
    change: Array | None = None
    crossed: tuple[int, ...] = ()
    in_warmup: bool = False
    microbatch: int = -1
    broken: bool = False

    @property
    def scores_judged(self) -> bool:
        """Whether any metric was held against a fence."""
        return any(s.low_e6 is not None or s.high_e6 is not None for s in self.verdict.scores)


def screen(frame: Frame, baseline: Baseline, policy: Policy) -> Screening:
    """Judge ``frame``. Pure: the baseline is only read. Never raises for anything a worker can send."""
    in_warmup = baseline.is_young(policy.warmup_frames)
    if policy.name == "paper":
        in_warmup = in_warmup or frame.step < policy.paper_warmup_steps

    def plain(verdict: Verdict) -> Screening:
        return Screening(verdict, policy, frame.worker, in_warmup=in_warmup)

    problem = structural_problem(frame)
    if problem is not None:
        return plain(problem)
    out = frame.output
    if frame.is_silent or out is None:
        return plain(Verdict(VerdictKind.ACCEPT, "no tensor is due here; the sketch is judged by recompute"))
    if not policy.screens:
        if all_finite(out):
            return plain(Verdict(VerdictKind.ACCEPT, "policy none: structure only"))
        return plain(Verdict(VerdictKind.SUSPECT, "nonfinite: NaN or Inf in the frame"))
    if policy.name == "paper":
        return _screen_paper(out, frame, baseline, policy, in_warmup)
    if frame.is_loss:
        return _screen_loss(out, frame, baseline, policy, in_warmup)
    return _screen_tensor(out, frame, baseline, policy, in_warmup)


def _screen_tensor(out: torch.Tensor, frame: Frame, baseline: Baseline, policy: Policy, in_warmup: bool) -> Screening:
    x = as_float32(out)
    y = None if frame.input is None else as_float32(frame.input)
    ema = baseline.mean if baseline.mean is not None and baseline.mean.shape == x.shape[1:] else None
    change = baseline.change if baseline.change is not None and baseline.change.shape == x.shape[2:] else None
    found = moments(x, y, ema, baseline.directions(x.shape[2]))
    if not math.isfinite(found.out2):
        verdict = Verdict(VerdictKind.SUSPECT, "nonfinite: NaN or Inf in the frame")
        return Screening(verdict, policy, frame.worker, in_warmup=in_warmup)
    if not math.isfinite(found.in2):
        verdict = Verdict(VerdictKind.INCONCLUSIVE, "input: NaN or Inf in what the frame was made from")
        return Screening(verdict, policy, frame.worker, in_warmup=in_warmup)
    values = frame_metrics(
        found,
        num_tokens=x.shape[0] * x.shape[1],
        width=x.shape[2],
        has_input=y is not None,
        has_ema=ema is not None,
        change=change,
    )
    absolute = _absolute(frame, values, in_warmup)
    return _judge(
        frame, baseline, policy, values, absolute, found.mean, None if y is None else found.change_mean, in_warmup
    )


def _screen_paper(out: torch.Tensor, frame: Frame, baseline: Baseline, policy: Policy, in_warmup: bool) -> Screening:
    if frame.is_loss:
        if all_finite(out):
            verdict = Verdict(VerdictKind.ACCEPT, "policy paper: the last stage's loss is taken on trust")
        else:
            verdict = Verdict(VerdictKind.SUSPECT, "nonfinite: NaN or Inf in the loss")
        return Screening(verdict, policy, frame.worker, in_warmup=in_warmup)
    x = as_float32(out)
    ema = baseline.mean if baseline.mean is not None and baseline.mean.shape == x.shape[1:] else None
    found = moments(x, None, ema, baseline.directions(x.shape[2]))
    if not math.isfinite(found.out2):
        verdict = Verdict(VerdictKind.SUSPECT, "nonfinite: NaN or Inf in the frame")
        return Screening(verdict, policy, frame.worker, in_warmup=in_warmup)
    values = paper.paper_metrics(found, num_tokens=x.shape[0] * x.shape[1], width=x.shape[2], has_ema=ema is not None)
    scores, crossed = paper.tukey(baseline, policy, values, in_warmup)
    if crossed:
        verdict = Verdict(VerdictKind.SUSPECT, "; ".join(scores[i].text() for i in crossed), scores)
    else:
        verdict = Verdict(VerdictKind.ACCEPT, "warm-up" if in_warmup else "inside every fence", scores)
    return Screening(verdict, policy, frame.worker, values, found.mean, None, crossed, in_warmup)


def _absolute(frame: Frame, values: tuple[float, ...], in_warmup: bool) -> str:
    """What is wrong whatever the window says; "" if nothing. Values as in FRAME_METRICS."""
    named = dict(zip(FRAME_METRICS, values, strict=True))
    rms, cosine, gain, shift = named["rms"], named["cosine"], named["gain"], named["change"]
    if rms <= math.log(1e-29):
        return "vanished: every element is zero"
    if math.isnan(cosine):
        return ""
    residual = frame.direction == 0 or frame.stage < frame.num_stages - 1
    if residual and shift < IDENTITY:
        return f"identity: |out - in| / |in| = {math.exp(shift):.3g}, below {math.exp(IDENTITY):.3g}"
    if residual and gain < VANISHED:
        return f"vanished: |out| / |in| = {math.exp(gain):.3g}, below {math.exp(VANISHED):.3g}"
    if in_warmup and cosine < OPPOSED:
        return f"opposed: mean cosine of output and input is {cosine:.4f} during warm-up, below {OPPOSED}"
    return ""


def _screen_loss(out: torch.Tensor, frame: Frame, baseline: Baseline, policy: Policy, in_warmup: bool) -> Screening:
    values, smallest = loss_metrics(out)
    absolute = ""
    if not math.isfinite(smallest):
        verdict = Verdict(VerdictKind.SUSPECT, "nonfinite: NaN or Inf in the loss")
        return Screening(verdict, policy, frame.worker, in_warmup=in_warmup)
    if smallest < NEGATIVE_LOSS:
        absolute = f"negative: a token's loss is {smallest:.4g} nats"
    elif values[2] >= 0.5:
        absolute = f"vanished: {values[2]:.0%} of the tokens have no loss"
    return _judge(frame, baseline, policy, values, absolute, None, None, in_warmup)


def _judge(
    frame: Frame,
    baseline: Baseline,
    policy: Policy,
    values: tuple[float, ...],
    absolute: str,
    mean: Array | None,
    change: Array | None,
    in_warmup: bool,
) -> Screening:
    sequences = 0 if frame.output is None else len(frame.output)
    scores, crossed = _fences(baseline, policy, values, sequences, in_warmup)
    if absolute:
        verdict = Verdict(VerdictKind.SUSPECT, absolute, scores)
    elif crossed:
        verdict = Verdict(VerdictKind.SUSPECT, "; ".join(scores[i].text() for i in crossed), scores)
    else:
        reason = "warm-up: inside the wide fences" if in_warmup else "inside every fence"
        verdict = Verdict(VerdictKind.ACCEPT, reason, scores)
    return Screening(verdict, policy, frame.worker, values, mean, change, crossed, in_warmup, broken=bool(absolute))


def _fences(
    baseline: Baseline, policy: Policy, values: tuple[float, ...], sequences: int, in_warmup: bool
) -> tuple[tuple[Score, ...], tuple[int, ...]]:
    """Scores with their fences, and the columns that lie outside. ``sequences`` of the frame."""
    widening = (USUAL_SEQUENCES / sequences) ** TAIL if 0 < sequences < USUAL_SEQUENCES else 1.0
    early = policy.k_early * (MOVED if baseline.frames >= policy.warmup_frames else 1.0)
    return fences(
        baseline.metrics,
        values,
        baseline.fitted(),
        floors=EARLY if in_warmup else FLOORS,
        k=lambda index: early if in_warmup else widening * baseline.k(index, policy.k_init),
        least=policy.early_frames,
        upper_only=UPPER_ONLY,
    )


def accept(baseline: Baseline, screening: Screening) -> None:
    """Fold a frame with a *final* ACCEPT in; in place. Deterministic: the order of accepts is the only freedom.

    A suspect that was cleared is accepted too; a flagged frame never reaches a baseline (sentinel.md, section 2).
    """
    if not screening.values:
        return
    policy = screening.policy
    beta = policy.beta(baseline.direction)
    baseline.mean = _ema(baseline.mean, screening.mean, min(beta, baseline.frames / (baseline.frames + 1)))
    baseline.change = _ema(baseline.change, screening.change, min(beta, baseline.frames / (baseline.frames + 1)))
    baseline.append(screening.values, screening.worker, policy.window)


def _ema(old: Array | None, new: Array | None, beta: float) -> Array | None:
    if new is None or (old is not None and old.shape != new.shape):
        return old
    # at the very end of float32's range a mean may overflow: then this frame teaches nothing
    if old is None:
        return new if math.isfinite(float(new.sum(dtype=np.float64))) else None
    mixed = blend(old, new, beta)
    return old if mixed is None else mixed


def cleared_by_recompute(baseline: Baseline, screening: Screening) -> bool:
    """Note that a recompute cleared this suspect; returns whether a fence moved. Call before ``accept``.

    The only thing that moves k (sentinel.md, section 3.6): 5 % wider if clearances come more often than the target,
    5 % narrower if the last one is four times as long ago, at most once in 100 frames a metric, inside
    [k_min, k_max]; a worker's clearances count once a window.
    """
    policy = screening.policy
    if not screening.crossed or screening.in_warmup:
        return False
    last = baseline.clearances.get(screening.worker)
    if last is not None and baseline.frames - last < policy.window:
        return False
    baseline.clearances[screening.worker] = baseline.frames
    period = PPM // max(policy.target_flags_ppm, 1)
    moved = False
    for index in screening.crossed:
        before = int(baseline.k_moved[index])
        gap = baseline.frames - before if before >= 0 else 100
        if gap < 100:
            continue
        factor = 0.95 if before >= 0 and gap > 4 * period else 1.05
        k = min(policy.k_max, max(policy.k_min, baseline.k(index, policy.k_init) * factor))
        baseline.k_e6[index] = round(k * E6)
        baseline.k_moved[index] = baseline.frames
        moved = True
    return moved


def forget(baseline: Baseline, worker: int) -> int:
    """Take a convicted worker's frames out of the windows; returns how many. The EMAs can not be unmixed: they
    forget by themselves within ten to twenty frames."""
    return baseline.forget(worker)


def warm() -> None:
    """Compile the fast path (about 1.3 s once); call it in the parent process before forking."""
    x = np.zeros((1, 2, 2), dtype=np.float32)
    moments(x, x, x[0], np.zeros((2, 8), dtype=np.float32))
    blend(x[0], x[0], 0.5)
    fit(np.zeros((4, 2)))
    dot(x[0, 0], x[0, 0])
