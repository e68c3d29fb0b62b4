"""Liveness is not integrity (sentinel.md, section 3.5): a worker whose frames are too often INCONCLUSIVE loses work,
never stake. It is held against its peers, so that a fault that hits many at once is nobody's."""

from __future__ import annotations

from statistics import median

import torch

FACTOR = 3.0
LEAST = 5
FLOOR = 0.01


class InconclusiveRates:
    """Frames and INCONCLUSIVE ones of each (stage, worker) of one driver."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int], list[int]] = {}

    def seen(self, stage: int, worker: int) -> None:
        """One frame arrived and was screened."""
        self._counts.setdefault((stage, worker), [0, 0])[0] += 1

    def inconclusive(self, stage: int, worker: int) -> None:
        """One frame was lost, or its final verdict was INCONCLUSIVE."""
        self._counts.setdefault((stage, worker), [0, 0])[1] += 1

    def forget(self, worker: int) -> None:
        """It is gone: what it lost is held against nobody who takes its place, and it is nobody's peer."""
        self._counts = {key: counts for key, counts in self._counts.items() if key[1] != worker}

    @staticmethod
    def _rate(counts: list[int]) -> float:
        # a lost frame was never seen, an unclear one was: never above 1, and the same for all workers
        return counts[1] / max(1, sum(counts))

    def overloaded(self, worker: int) -> bool:
        """At least five, and a rate above 3 x the median of the other workers of its stage (taken as at least 1 %).
        Without another worker there is nothing to compare with, and nobody else to do the work: False. It says who is
        asked last, not who is asked no more: whoever chooses takes an overloaded worker before nobody."""
        for (stage, who), counts in self._counts.items():
            if who != worker or counts[1] < LEAST:
                continue
            peers = [self._rate(c) for (s, w), c in self._counts.items() if s == stage and w != worker]
            if peers and self._rate(counts) > FACTOR * max(FLOOR, median(peers)):
                return True
        return False

    def state(self) -> torch.Tensor:
        """[n, 4] int64: stage, worker, frames, INCONCLUSIVE ones."""
        rows = [(*key, *counts) for key, counts in sorted(self._counts.items())]
        return torch.tensor(rows, dtype=torch.int64).reshape(-1, 4)

    def load(self, state: torch.Tensor) -> None:
        """The inverse of ``state``."""
        self._counts = {(s, w): [n, i] for s, w, n, i in state.reshape(-1, 4).tolist()}
