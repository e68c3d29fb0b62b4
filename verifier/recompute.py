"""A frame computed again, here, in fp32 from the canonical weights. Only this convicts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import torch

from sentinel_market.models.sketch import Sketch
from sentinel_market.models.stage import Stage
from verifier.context import SeatContext
from verifier.meter import Meter
from verifier.weights import WeightsStore


@dataclass(frozen=True)
class Recomputed:
    """What the stage should have returned: activation or per-token loss; outgoing gradient; sketch [64]."""

    output: torch.Tensor
    gradient: torch.Tensor | None = None
    sketch: torch.Tensor | None = None


class Recomputer:
    """One recompute at a time, in a thread: a seat is a relay first."""

    def __init__(self, context: SeatContext, weights: WeightsStore, meter: Meter) -> None:
        self.context = context
        self._weights = weights
        self._meter = meter
        self._lock = asyncio.Lock()
        self._stages: dict[int, Stage] = {}
        self.count = 0

    async def forward(self, step: int, stage: int, x: torch.Tensor) -> Recomputed:
        """Tokens [B, T] or activation [B, T, D] -> [B, T, D]."""
        return await self._run(step, stage, x, None)

    async def backward(self, step: int, stage: int, x: torch.Tensor, incoming: torch.Tensor) -> Recomputed:
        """``incoming``: gradient [B, T, D], or the targets [B, T] at the last stage (whose output is its loss)."""
        return await self._run(step, stage, x, incoming)

    async def _run(self, step: int, stage: int, x: torch.Tensor, incoming: torch.Tensor | None) -> Recomputed:
        flat = await self._weights.flat(step, stage)
        async with self._lock:
            self.count += 1
            return await asyncio.to_thread(self._compute, step, stage, flat, x, incoming)

    def _compute(
        self, step: int, stage: int, flat: torch.Tensor, x: torch.Tensor, incoming: torch.Tensor | None
    ) -> Recomputed:
        with self._meter.section("recompute"):
            module = self._stages.get(stage)
            if module is None:
                module = self._stages[stage] = Stage(self.context.config, stage, self.context.num_stages)
            return recompute(module, flat, self.context.job_id, step, x, incoming)


def recompute(
    module: Stage, flat: torch.Tensor, job_id: int, step: int, x: torch.Tensor, incoming: torch.Tensor | None
) -> Recomputed:
    """Forward, and backward where ``incoming`` is given (targets at the last stage)."""
    module.load_flat(flat)
    if incoming is None:
        with torch.no_grad():
            return Recomputed(module(x))
    module.zero_grad_flat()
    leaf = x if module.is_first else x.detach().clone().requires_grad_(True)
    if module.is_last:
        output = module.token_loss(leaf, incoming)
        torch.autograd.backward(output.mean())
    else:
        output = module(leaf)
        torch.autograd.backward(output, incoming)
    return Recomputed(
        output.detach(), None if module.is_first else leaf.grad, Sketch(job_id, step).sketch(module.flat_grad)
    )
