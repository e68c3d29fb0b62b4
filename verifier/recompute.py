"""A frame computed again, here, in fp32 from the canonical weights. Only this convicts."""

from __future__ import annotations

import asyncio

import torch

from sentinel_market.models.stage import Stage
from verifier.context import SeatContext
from verifier.evidence.gradient import RunningSum
from verifier.evidence.recompute import Recomputed, recompute
from verifier.meter import Meter
from verifier.weights import WeightsStore

__all__ = ["Recomputed", "Recomputer"]


class Recomputer:
    """One recompute at a time, in a thread: a seat is a relay first."""

    def __init__(self, context: SeatContext, weights: WeightsStore, meter: Meter) -> None:
        self.context = context
        self._weights = weights
        self._meter = meter
        self._lock = asyncio.Lock()
        self._stages: dict[int, Stage] = {}
        self.count = 0

    async def run(
        self,
        step: int,
        stage: int,
        x: torch.Tensor,
        incoming: torch.Tensor | None,
        flat: torch.Tensor | None = None,
    ) -> Recomputed:
        """Tokens [B, T] or activation [B, T, D] forward, and with ``incoming`` backward: gradient [B, T, D], or the
        targets [B, T] at the last stage (whose output is its loss). ``flat`` [N]: other weights than the step's."""
        flat = await self._weights.flat(step, stage) if flat is None else flat
        async with self._lock:
            self.count += 1
            return await asyncio.to_thread(self._compute, step, stage, flat, x, incoming)

    async def add_gradient(
        self, step: int, stage: int, x: torch.Tensor, incoming: torch.Tensor, total: RunningSum
    ) -> None:
        """Recompute one microbatch's parameter gradient and add it to ``total``. Arguments as of ``run``."""
        flat = await self._weights.flat(step, stage)
        async with self._lock:
            self.count += 1
            await asyncio.to_thread(self._add, stage, flat, x, incoming, total)

    def _add(self, stage: int, flat: torch.Tensor, x: torch.Tensor, incoming: torch.Tensor, total: RunningSum) -> None:
        with self._meter.section("recompute"):
            total.add(self._module(stage, flat), x, incoming)

    def _module(self, stage: int, flat: torch.Tensor) -> Stage:
        module = self._stages.get(stage)
        if module is None:
            module = self._stages[stage] = Stage(self.context.config, stage, self.context.num_stages)
        module.load_flat(flat)
        return module

    def _compute(
        self, step: int, stage: int, flat: torch.Tensor, x: torch.Tensor, incoming: torch.Tensor | None
    ) -> Recomputed:
        with self._meter.section("recompute"):
            return recompute(
                self._module(stage, flat),
                job_id=self.context.job_id,
                step=step,
                input=x,
                incoming=incoming,
                backward=incoming is not None,
            )
