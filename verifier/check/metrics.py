"""From moments to named metric values. NaN means: this metric can not be computed for this frame."""

from __future__ import annotations

import math

import numpy as np
import torch

from verifier.check.kernels import Array, Moments

TINY = 1e-30
ABSENT = math.nan


def log_of(value: float) -> float:
    """Natural logarithm of a length; of none at all, that of ``TINY``."""
    return math.log(max(value, TINY))


def frame_metrics(
    moments: Moments, *, num_tokens: int, width: int, has_input: bool, has_ema: bool, change: Array | None
) -> tuple[float, ...]:
    """Values in the order of ``baseline.FRAME_METRICS``. ``num_tokens`` = B x T; ``change`` [D]: EMA of
    mean(out - in). Distances to the EMA: the paper's four (sentinel.md, section 2); the rest is ours (section 3)."""
    elements = num_tokens * width
    root = math.sqrt
    l1 = l2 = sfr = sw = align = cosine = blur = gain = shift = drift = ABSENT
    if has_ema:
        l1 = log_of(moments.l1 / elements)
        l2 = log_of(root(moments.l2) / max(root(moments.ema2), TINY))
        sfr = moments.flips / elements
        sw = log_of(moments.sliced)
        align = moments.align
    if has_input:
        length_in = max(root(moments.in2), TINY)
        cosine = moments.cosines / num_tokens
        gain = log_of(root(moments.out2) / length_in)
        shift = log_of(root(moments.change2) / length_in)
        if change is not None:
            usual = change.astype(np.float64)
            apart = moments.change_mean - usual
            drift = log_of(root(float(apart.dot(apart))) / max(root(float(usual.dot(usual))), TINY))
    rms = log_of(root(moments.out2 / elements))
    # geometric over arithmetic mean of the token norms: 0 if all tokens are equally long; noise fills up the short ones
    even = moments.log_norms / num_tokens - log_of(moments.norms / num_tokens)
    if has_input:
        # in honest frames evenness and cosine rise and fall together; noise raises the one and lowers the other
        blur = even - cosine
    return l1, l2, sfr, sw, align, rms, even, cosine, blur, gain, shift, drift


def loss_metrics(loss: torch.Tensor) -> tuple[tuple[float, ...], float]:
    """Values in the order of ``baseline.LOSS_METRICS`` for a per-token loss [B, T] in nats, and its smallest
    element (NaN or infinite if any element is)."""
    flat = loss.detach().to(device="cpu", dtype=torch.float64).reshape(-1)
    total = float(flat.sum())
    if not math.isfinite(total):
        return (ABSENT, ABSENT, ABSENT), math.nan
    mean = total / flat.numel()
    std = float((flat - mean).square().mean().sqrt())
    zeros = float((flat <= 0).double().mean())
    return (log_of(mean), log_of(std), zeros), float(flat.min())
