"""An engine that tells what it answers and what it is told to remember. The same live and when a recording is judged
again: the two tales are what is compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from sentinel_market.wire.tensors import tensor_hash
from verifier.check.check import Screening
from verifier.check.engine import Ban, Engine
from verifier.check.frame import Frame
from verifier.check.kernels import Array
from verifier.check.policy import Policy
from verifier.check.verdict import Verdict

Told = dict[str, object]


def verdict_told(verdict: Verdict) -> Told:
    """Integers and strings: scores are [metric, value, lower fence, upper fence], each x 1e6."""
    scores = [[s.metric, s.value_e6, s.low_e6, s.high_e6] for s in verdict.scores]
    return {"kind": verdict.kind.value, "reason": verdict.reason, "scores": scores}


def _nobody(_: Told) -> None:
    """Nobody listens yet."""


class TracedEngine(Engine):
    """``tell`` gets one ``{"out": ...}`` a call, after it."""

    def __init__(self, policy: Policy, num_stages: int, seed: int) -> None:
        super().__init__(policy, num_stages, seed)
        self.tell: Callable[[Told], None] = _nobody

    def screen(self, frame: Frame, microbatch: int) -> Screening:
        found = super().screen(frame, microbatch)
        where = {"stage": frame.stage, "direction": frame.direction, "slot": frame.worker, "microbatch": microbatch}
        self.tell({"out": "screened", **where, **verdict_told(found.verdict)})
        return found

    def note(self, frame: Frame, screening: Screening) -> Ban | None:
        ban = super().note(frame, screening)
        if ban is not None:
            self.tell({"out": "ban", "slot": ban.worker, "step": ban.step, "reason": ban.reason})
        return ban

    def accept(self, stage: int, direction: int, screening: Screening) -> None:
        super().accept(stage, direction, screening)
        self.tell({"out": "accept", "stage": stage, "direction": direction, "slot": screening.worker})

    def cleared_by_recompute(self, stage: int, direction: int, screening: Screening) -> bool:
        moved = super().cleared_by_recompute(stage, direction, screening)
        where = {"stage": stage, "direction": direction, "slot": screening.worker}
        self.tell({"out": "cleared", **where, "moved": int(moved)})
        return moved

    def convict(self, worker: int) -> None:
        super().convict(worker)
        self.tell({"out": "convict", "slot": worker})

    def substitute(self, stage: int) -> Array | None:
        mean = super().substitute(stage)
        digest = None if mean is None else tensor_hash(torch.from_numpy(mean)).hex()
        self.tell({"out": "substitute", "stage": stage, "tensor": digest})
        return mean

    def screen_gradients(self, stage: int, sums: Mapping[int, tuple[torch.Tensor, int]]) -> dict[int, Screening]:
        found = super().screen_gradients(stage, sums)
        for worker, one in found.items():
            self.tell({"out": "gradient", "stage": stage, "slot": worker, **verdict_told(one.verdict)})
        return found

    def inconclusive(self, worker: int, stage: int) -> None:
        super().inconclusive(worker, stage)
        self.tell({"out": "inconclusive", "stage": stage, "slot": worker})
