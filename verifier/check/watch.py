"""Who is looked at more closely: what statistics may do where only a recompute convicts.

**Near its fences.** A cheat that stays just inside the fences is never flagged, and by an audit of one frame in a
hundred it is found late. But honest frames are seldom in the outer part of their fences: with ``NEAR`` 0.6 about 5 %
forward and 9 % backward were, of a rider's frames all (8 x 8 mesh, docs/verification.md). So each worker's share of
such frames is tested against its peers' by the sequential test of policy ``screen``, in each direction by itself. Where
that test would ban, nobody is banned: the worker is *watched*, its frames of that direction are recomputed until
``UPHELD`` of them were right, and then its test begins anew. By Ville's inequality an honest worker is watched with a
chance of at most ``ALPHA`` a direction and driver, and again at most that after each time: so few recomputes does it
cost.

**Far outside its fences.** A replay's word counts where a frame lies near its fence and can do little harm. Two
colluding replicas that make the same wrong tensor could clear each other in three of four cases; a frame that lies more
than ``FAR`` half-widths from the middle of its fences, or breaks a rule that no window can excuse, is recomputed at
once. Of honest suspects that is about 7 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from verifier.check.check import Screening
from verifier.check.sequential import SequentialTest
from verifier.check.verdict import Verdict, VerdictKind

NEAR = 0.6
FAR = 2.0
"""Distances from the middle of the fences, in halves of their width: 1 at a fence."""
FLOOR = 0.2
"""So often an honest worker's frames may be near, while its peers' rate is not known yet: twice the honest rate."""
ALPHA = 0.01
UPHELD = 2


def is_far(screening: Screening) -> bool:
    """Whether a suspect is so far out that no replay is asked for."""
    if screening.verdict.kind is not VerdictKind.SUSPECT:
        return False
    crossed = [score for score in screening.verdict.scores if score.crossed]
    return screening.broken or not crossed or any(score.reach > FAR for score in crossed)


class Watch:
    """One driver's. ``note`` each screened frame; ``close_step`` after each step."""

    def __init__(self) -> None:
        self._tests = [SequentialTest(ALPHA, FLOOR), SequentialTest(ALPHA, FLOOR)]
        self._owed: dict[tuple[int, int], int] = {}

    def note(self, stage: int, direction: int, worker: int, verdict: Verdict) -> None:
        """Count a screened frame, suspects included; one that was held against no fences says nothing."""
        reaches = [score.reach for score in verdict.scores if score.low_e6 is not None]
        if reaches and (worker, direction) not in self._owed:
            self._tests[direction].note(stage, worker, max(reaches) >= NEAR)

    def close_step(self) -> None:
        """Weigh the step that ends."""
        for direction, test in enumerate(self._tests):
            for worker, _ in test.close_step():
                self._owed[worker, direction] = UPHELD

    def watched(self, worker: int, directions: Iterable[int]) -> bool:
        """Whether its next frame of one of these directions is to be recomputed."""
        return any((worker, direction) in self._owed for direction in directions)

    def upheld(self, worker: int, directions: Iterable[int]) -> None:
        """A recompute bore its frame out."""
        for key in [(worker, direction) for direction in directions if (worker, direction) in self._owed]:
            self._owed[key] -= 1
            if not self._owed[key]:
                del self._owed[key]
                self._tests[key[1]].restart(worker)

    def forget(self, worker: int) -> None:
        """A convict is nobody's peer."""
        for direction, test in enumerate(self._tests):
            self._owed.pop((worker, direction), None)
            test.forget(worker)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Both tests, and what is owed as int64 [n, 3]."""
        owed = [(*key, count) for key, count in sorted(self._owed.items())]
        state = {"owed": torch.tensor(owed, dtype=torch.int64).reshape(-1, 3)}
        for direction, test in enumerate(self._tests):
            state |= {f"{direction}.{name}": tensor for name, tensor in test.state_dict().items()}
        return state

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """The inverse of ``state_dict``. KeyError or ValueError for anything else."""
        self._owed = {(w, d): n for w, d, n in state["owed"].reshape(-1, 3).tolist()}
        for direction, test in enumerate(self._tests):
            prefix = f"{direction}."
            test.load({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})
