"""Policy ``screen``: when do a worker's unconfirmed flags condemn it? A sequential test against its peers.

**The null hypothesis.** One unit of evidence is a step: X = 1 if any of the worker's n frames of that step was flagged,
so flags that belong together within a step count once. For an honest worker

    P(X = 1 | everything before this step, and the shared part of it) <= q = max(n * rate, shared)

with rate = max(floor, FACTOR x the median, over its peers, of their own recent share of flagged frames): the worker may
be FACTOR times as unlucky as its typical peer, and fewer than half of the peers, hostile, can not move a median far.
*Peers* are the other workers of the stage; recent means an exponential memory of MEMORY steps.

**Shared steps.** Honest flags come together: a jump of the learning rate flags the whole boundary at once. Of the
peers flagged in the same step, as many are taken off as may be hostile (37.5 % of the stage); the share that is left
raises q, and from one half on the step counts for nothing, here and in the recent rates.

**The test.** A likelihood ratio against q of "flagged with probability p", p in {0.5, 0.9}, is a non-negative
supermartingale under the null. When the cheating began is not known: at the very start and after each flagged step a
new copy of the test begins, the j-th (from 0) with the share 1 / ((j + 1)(j + 2)) of the capital; the shares add up
to 1, and a copy that begins at a stopping time is a supermartingale again. So the total capital begins at 1, its
expectation never exceeds 1, and by Ville's inequality

    P(an honest worker is ever banned) <= alpha     (ban when the capital reaches 1 / alpha; alpha = 1e-4 by default)

for the whole job, however long, whatever the dependence between workers or steps, as long as the null holds. What
can break it: a worker whose honest frames are flagged more than FACTOR times as often as those of its typical peer
(other hardware, other numerics), or that is flagged because it was flagged the step before. That is why the default
policy confirms before it accuses. Each driver runs a test of its own, so a job with d drivers bears d x alpha.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

import torch

HOSTILE_SHARE = 0.375
FACTOR = 2.0
FLOOR = 0.01
MEMORY = 128
_SHARED_CAP = 0.5
_ALTERNATIVES = (0.5, 0.9)
_NUM_FLOATS = 3 + len(_ALTERNATIVES)


@dataclass(slots=True)
class _Worker:
    """``capital``: of the running copies, one number an alternative; ``reserve``: of those not begun; ``copies``: how
    many began."""

    capital: list[float] = field(default_factory=lambda: [0.5 / len(_ALTERNATIVES)] * len(_ALTERNATIVES))
    reserve: float = 0.5
    copies: int = 1
    frames: int = 0
    flags: int = 0
    recent_frames: float = 0.0
    recent_flags: float = 0.0

    @property
    def total(self) -> float:
        return sum(self.capital) + self.reserve

    def bet(self, flagged: bool, bound: float) -> None:
        for index, p in enumerate(_ALTERNATIVES):
            if p > bound:
                self.capital[index] *= p / bound if flagged else (1.0 - p) / (1.0 - bound)
        if flagged:
            share = 1.0 / ((self.copies + 1) * (self.copies + 2))
            self.copies += 1
            self.reserve -= share
            for index in range(len(_ALTERNATIVES)):
                self.capital[index] += share / len(_ALTERNATIVES)

    def count(self, frames: int, flags: int) -> None:
        keep = 1.0 - 1.0 / MEMORY
        self.recent_frames = keep * self.recent_frames + frames
        self.recent_flags = keep * self.recent_flags + flags

    def rate(self) -> float:
        return self.recent_flags / self.recent_frames


class SequentialTest:
    """One driver's test of all workers. ``note`` counts frames; ``close_step`` bets on them."""

    def __init__(self, alpha: float, floor: float = FLOOR) -> None:
        self._limit = 1.0 / alpha
        self._floor = floor
        self._workers: dict[tuple[int, int], _Worker] = {}
        self._open: dict[tuple[int, int], list[int]] = {}
        self._convicts: set[int] = set()

    def note(self, stage: int, worker: int, flagged: bool) -> None:
        """Count one screened frame of the running step."""
        row = self._open.setdefault((stage, worker), [0, 0])
        row[0] += 1
        row[1] += flagged

    def forget(self, worker: int) -> None:
        """A convict is nobody's peer and is not tested again."""
        self._convicts.add(worker)

    def restart(self, worker: int) -> None:
        """A worker that the test condemned and a recompute bore out: its capital and its counts begin anew."""
        self._convicts.discard(worker)
        for key in [key for key in self._workers if key[1] == worker]:
            del self._workers[key]

    def close_step(self) -> list[tuple[int, str]]:
        """Judge the step that ends: workers to ban, each with the reason. The others' counts of this step enter only
        through ``_shared``; the bound's rates are of earlier steps."""
        due: list[tuple[int, str]] = []
        counted: list[tuple[_Worker, int, int]] = []
        for (stage, worker), (frames, flags) in sorted(self._open.items()):
            if worker in self._convicts:
                continue
            record = self._workers.setdefault((stage, worker), _Worker())
            record.frames += frames
            record.flags += flags
            shared = self._shared(stage, worker)
            if shared >= _SHARED_CAP:
                continue
            counted.append((record, frames, flags))
            rate = self._rate(stage, worker)
            record.bet(flags > 0, max(frames * rate, shared))
            if record.total >= self._limit:
                reason = (
                    f"{record.flags} of its {record.frames} frames were flagged; {FACTOR:g} times its peers' rate is "
                    f"{rate:.4f}: evidence {record.total:.3g} reaches {self._limit:.3g}"
                )
                due.append((worker, reason))
        for record, frames, flags in counted:
            record.count(frames, flags)
        self._open = {}
        self._convicts.update(worker for worker, _ in due)
        return due

    def _rate(self, stage: int, worker: int) -> float:
        gone = self._convicts | {worker}
        rates = [r.rate() for (s, w), r in self._workers.items() if s == stage and w not in gone and r.recent_frames]
        return max(self._floor, FACTOR * median(rates)) if rates else self._floor

    def _shared(self, stage: int, worker: int) -> float:
        """Share of the peers flagged in this step, beyond what the hostile ones among them may explain."""
        gone = self._convicts | {worker}
        peers = [flags > 0 for (s, w), (_, flags) in self._open.items() if s == stage and w not in gone]
        hostile = math.floor(HOSTILE_SHARE * (len(peers) + 1))
        left = len(peers) - hostile
        return max(0, sum(peers) - hostile) / left if left > 0 else 0.0

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Counts [n, 5] int64, capitals and recent counts [n, 5] float64, the running step, the convicts."""
        keys = sorted(self._workers)
        records = [self._workers[key] for key in keys]
        counts = [(*key, r.copies, r.frames, r.flags) for key, r in zip(keys, records, strict=True)]
        opened = [(*key, *row) for key, row in sorted(self._open.items())]
        return {
            "counts": torch.tensor(counts, dtype=torch.int64).reshape(-1, 5),
            "capital": torch.tensor(
                [[r.reserve, r.recent_frames, r.recent_flags, *r.capital] for r in records], dtype=torch.float64
            ).reshape(-1, _NUM_FLOATS),
            "open": torch.tensor(opened, dtype=torch.int64).reshape(-1, 4),
            "convicts": torch.tensor(sorted(self._convicts), dtype=torch.int64),
        }

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """The inverse of ``state_dict``. KeyError or ValueError for anything else."""
        counts, capital = state["counts"].reshape(-1, 5).tolist(), state["capital"].reshape(-1, _NUM_FLOATS).tolist()
        self._workers = {
            (stage, worker): _Worker(money[3:], money[0], copies, frames, flags, *money[1:3])
            for (stage, worker, copies, frames, flags), money in zip(counts, capital, strict=True)
        }
        self._open = {(s, w): [n, f] for s, w, n, f in state["open"].reshape(-1, 4).tolist()}
        self._convicts = set(state["convicts"].tolist())
