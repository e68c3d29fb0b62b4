"""Fences around the next value of each metric: a window's fit, widened by k spreads (docs/verification.md, Fences)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set

from verifier.check.kernels import Fit
from verifier.check.verdict import Score, to_e6


def fences(
    names: Sequence[str],
    values: Sequence[float],
    found: Fit,
    *,
    floors: Mapping[str, float],
    k: Callable[[int], float],
    least: int,
    upper_only: Set[str] = frozenset(),
) -> tuple[tuple[Score, ...], tuple[int, ...]]:
    """Scores with their fences, and the indices of those that lie outside.

    ``floors``: the smallest spread of each metric; a metric without one is not judged. ``least``: rows a metric needs
    in its window before it is judged. NaN in ``values``: this metric is absent.
    """
    scores: list[Score] = []
    crossed: list[int] = []
    for index, name in enumerate(names):
        value = values[index]
        if math.isnan(value):
            scores.append(Score(name, 0))
            continue
        if found.counts[index] < least or name not in floors:
            scores.append(Score(name, to_e6(value)))
            continue
        reach = (0.5 + k(index)) * max(found.spreads[index], floors[name])
        level, trend = found.levels[index], found.trends[index]
        low = None if name in upper_only else to_e6(min(level, trend) - reach)
        score = Score(name, to_e6(value), low, to_e6(max(level, trend) + reach))
        scores.append(score)
        if score.crossed:
            crossed.append(index)
    return tuple(scores), tuple(crossed)
