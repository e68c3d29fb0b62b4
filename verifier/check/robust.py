"""Along the data-parallel axis: one gradient out of the replicas' sums."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sentinel_market.errors import ConfigError

RULES = ("mean",)
_LATER = ("trimmed_mean", "centred_clipping", "multi_krum")


def check_rule(rule: str) -> None:
    """ConfigError unless ``rule`` can be used today."""
    if rule in _LATER:
        raise ConfigError(f"aggregation rule {rule!r} is not built yet (number 2 brings it); use 'mean'")
    if rule not in RULES:
        raise ConfigError(f"aggregation rule {rule!r} is unknown; use 'mean'")


def aggregate(rule: str, sums: Sequence[torch.Tensor], counts: Sequence[int]) -> torch.Tensor:
    """Sum of accepted sums / sum of their counts, fp32.

    ``sums``: each replica's sum of microbatch gradients, flat fp32 [N], *in slot order*: the order is part of the
    specified update, so that everybody who repeats it gets the same bits. ``counts``: microbatches in each sum,
    duplicates counted. Non-finite or differing shapes are a ValueError: they must not get this far.
    """
    check_rule(rule)
    if not sums or len(sums) != len(counts):
        raise ValueError(f"{len(sums)} sums and {len(counts)} counts: one count a sum, at least one sum")
    total = sum(counts)
    if min(counts) < 0 or total <= 0:
        raise ValueError(f"counts {list(counts)} hold no microbatch")
    for one in sums:
        if one.dtype != torch.float32 or one.dim() != 1 or one.shape != sums[0].shape:
            raise ValueError(f"a sum is {one.dtype} {list(one.shape)}, not float32 {list(sums[0].shape)}")
        if not bool(torch.isfinite(one).all()):
            raise ValueError("a sum holds NaN or Inf")
    out = sums[0].clone()
    for one in sums[1:]:
        out += one
    out /= float(total)
    return out
