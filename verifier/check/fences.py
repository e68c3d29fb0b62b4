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
    for index, (name, value) in enumerate(zip(names, values, strict=True)):
        if math.isnan(value):
            scores.append(Score(name, 0))
            continue
        floor = floors.get(name)
        if floor is None or found.counts[index] < least:
            scores.append(Score(name, to_e6(value)))
            continue
        reach = (0.5 + k(index)) * max(found.spreads[index], floor)
        level, trend = found.levels[index], found.trends[index]
        value_e6, high = to_e6(value), to_e6(max(level, trend) + reach)
        low = None if name in upper_only else to_e6(min(level, trend) - reach)
        scores.append(Score(name, value_e6, low, high))
        if value_e6 > high or (low is not None and value_e6 < low):
            crossed.append(index)
    return tuple(scores), tuple(crossed)
