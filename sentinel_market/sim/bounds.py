"""Exact bounds of a share from counts (Clopper and Pearson, 1934), by bisection of the binomial distribution."""

from __future__ import annotations

import math


def _log_term(successes: int, trials: int, share: float) -> float:
    ways = math.lgamma(trials + 1) - math.lgamma(successes + 1) - math.lgamma(trials - successes + 1)
    return ways + successes * math.log(share) + (trials - successes) * math.log1p(-share)


def at_most(successes: int, trials: int, share: float) -> float:
    """Probability of at most so many successes in so many trials of probability ``share``, 0 < share < 1."""
    # From the largest term down, stopping where nothing is added any more: flags of millions of frames stay cheap.
    top = min(successes, int((trials + 1) * share))
    peak = _log_term(top, trials, share)
    total = 0.0
    for steps in (range(top, -1, -1), range(top + 1, successes + 1)):
        for count in steps:
            term = math.exp(_log_term(count, trials, share) - peak)
            total += term
            if term < 1e-18 * total:
                break
    return min(1.0, total * math.exp(peak))


def upper_bound(successes: int, trials: int, confidence: float = 0.95) -> float:
    """The one-sided upper bound of a share: 0 of n gives 1 - (1 - confidence)^(1/n), about 3 / n at 95 %.

    1.0 for no trials at all. ValueError unless 0 <= successes <= trials.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} of {trials} is no share")
    if trials in (0, successes):
        return 1.0
    if successes == 0:
        return -math.expm1(math.log(1 - confidence) / trials)
    low, high = successes / trials, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if at_most(successes, trials, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def said(successes: int, trials: int) -> str:
    """``0 of 960 (upper 95 % bound 0.31 %)``."""
    return f"{successes:,} of {trials:,} (upper 95 % bound {100 * upper_bound(successes, trials):.2g} %)"
