"""Along the data-parallel axis: one gradient out of the replicas' sums. Deterministic: replicas in slot order, fixed
chunks, one order of additions; part of the specified update, so that everybody who repeats it gets the same bits.

====================  ================================================================================================
rule                  with x_i the mean gradient of replica i (its sum / its count), n replicas, f hostile
====================  ================================================================================================
``mean``              sum of sums / sum of counts
``trimmed-mean``      per coordinate: without the f largest and the f smallest, the mean
``centred-clipping``  from the coordinate-wise median v, three times: v += mean_i((x_i - v) min(1, t / |x_i - v|)),
                      t the median of the |x_i - v|; needs no f
``multi-krum``        score of x_i: sum of its squared distances to its n - f - 1 nearest; the mean of the n - f
                      replicas of lowest score
====================  ================================================================================================

f is (n - 1) // 2, the most that any rule can bear, unless a smaller one is given. With fewer than three replicas f is
0: nobody is in the majority, and every robust rule is the plain mean of the replicas' means.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sentinel_market.errors import ConfigError

RULES = ("mean", "trimmed-mean", "centred-clipping", "multi-krum")
CLIPPING_ROUNDS = 3
_CHUNK = 1 << 20


def check_rule(rule: str) -> None:
    """ConfigError unless ``rule`` is known."""
    if rule not in RULES:
        raise ConfigError(f"aggregation rule {rule!r} is unknown; use one of {', '.join(RULES)}")


def default_byzantine(num: int) -> int:
    """How many of ``num`` replicas a robust rule bears where nothing else is said: fewer than half."""
    return (num - 1) // 2


def aggregate(
    rule: str, sums: Sequence[torch.Tensor], counts: Sequence[int], byzantine: int | None = None
) -> torch.Tensor:
    """The stage's gradient of a step, float32 [N].

    ``sums``: each replica's sum of microbatch gradients, flat float32 [N], *in slot order*. ``counts``: microbatches in
    each sum, duplicates counted. ``byzantine``: hostile replicas to bear, fewer than half; cut to what n allows.
    Non-finite or differing shapes are a ValueError: they must not get this far.
    """
    check_rule(rule)
    if not sums or len(sums) != len(counts):
        raise ValueError(f"{len(sums)} sums and {len(counts)} counts: one count a sum, at least one sum")
    if byzantine is not None and byzantine < 0:
        raise ValueError(f"{byzantine} hostile replicas")
    total = sum(counts)
    if min(counts) < 0 or total <= 0:
        raise ValueError(f"counts {list(counts)} hold no microbatch")
    for one in sums:
        if one.dtype != torch.float32 or one.dim() != 1 or one.shape != sums[0].shape:
            raise ValueError(f"a sum is {one.dtype} {list(one.shape)}, not float32 {list(sums[0].shape)}")
        if not bool(torch.isfinite(one).all()):
            raise ValueError("a sum holds NaN or Inf")
    if rule == "mean":
        out = sums[0].clone()
        for one in sums[1:]:
            out += one
        out /= float(total)
        return out
    means = [one / float(count) for one, count in zip(sums, counts, strict=True) if count > 0]
    num = len(means)
    limit = default_byzantine(num)
    f = limit if byzantine is None else min(byzantine, limit)
    if f == 0:
        return _mean(means)
    if rule == "trimmed-mean":
        return _trimmed(means, f)
    if rule == "multi-krum":
        return _mean([means[i] for i in multi_krum_choice(means, f)])
    return _clipped(means)


def _mean(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Accumulated in float64, so that two of the largest float32 do not overflow."""
    total = tensors[0].double()
    for one in tensors[1:]:
        total = total + one
    return (total / len(tensors)).float()


def _trimmed(means: Sequence[torch.Tensor], f: int) -> torch.Tensor:
    out = torch.empty_like(means[0])
    for begin in range(0, out.numel(), _CHUNK):
        part = slice(begin, begin + _CHUNK)
        ordered = torch.stack([one[part] for one in means]).sort(dim=0).values
        out[part] = _mean(list(ordered[f : len(means) - f]))
    return out


def _squared_distance(a: torch.Tensor, b: torch.Tensor) -> float:
    total = 0.0
    for begin in range(0, a.numel(), _CHUNK):
        part = slice(begin, begin + _CHUNK)
        total += float((a[part].double() - b[part].double()).square().sum())
    return total


def multi_krum_choice(means: Sequence[torch.Tensor], f: int) -> list[int]:
    """Indices, ascending, of the n - f replicas of lowest score; ties go to the lower slot."""
    num = len(means)
    apart = [[0.0] * num for _ in range(num)]
    for i in range(num):
        for j in range(i + 1, num):
            apart[i][j] = apart[j][i] = _squared_distance(means[i], means[j])
    scores = [sum(sorted(row[:i] + row[i + 1 :])[: num - f - 1]) for i, row in enumerate(apart)]
    return sorted(sorted(range(num), key=lambda i: (scores[i], i))[: num - f])


def clip_round(centre: torch.Tensor, means: Sequence[torch.Tensor], radius: float) -> torch.Tensor:
    """One round of centred clipping with a given radius; differences and their sum in float64."""
    total = torch.zeros_like(centre, dtype=torch.float64)
    for one in means:
        apart = one.double() - centre.double()
        length = float(apart.square().sum().sqrt())
        total += apart * (min(1.0, radius / length) if length > 0.0 else 1.0)
    return (centre.double() + total / len(means)).float()


def _clipped(means: Sequence[torch.Tensor]) -> torch.Tensor:
    centre = _median(means)
    for _ in range(CLIPPING_ROUNDS):
        lengths = sorted(_squared_distance(one, centre) ** 0.5 for one in means)
        centre = clip_round(centre, means, lengths[(len(lengths) - 1) // 2])
    return centre


def _median(means: Sequence[torch.Tensor]) -> torch.Tensor:
    """Coordinate-wise; of an even number the mean of the middle two."""
    return _trimmed(means, (len(means) - 1) // 2)
