"""A frame computed again, here, in fp32 from the canonical weights. Only this convicts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import torch

from sentinel_market.models.stage import Stage
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.tensors import decode
from verifier.context import SeatContext
from verifier.evidence.gradient import RunningSum
from verifier.evidence.recompute import Recomputed, recompute
from verifier.meter import Meter
from verifier.weights import WeightsStore

if TYPE_CHECKING:
    from verifier.answers import Held

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

    async def forward(self, step: int, stage: int, x: torch.Tensor) -> Recomputed:
        """Tokens [B, T] or activation [B, T, D] -> [B, T, D]."""
        return await self._run(step, stage, x, None)

    async def backward(self, step: int, stage: int, x: torch.Tensor, incoming: torch.Tensor) -> Recomputed:
        """``incoming``: gradient [B, T, D], or the targets [B, T] at the last stage (whose output is its loss)."""
        return await self._run(step, stage, x, incoming)

    async def again(self, step: int, stage: int, held: Held, operation: int) -> Recomputed:
        """A unit of work that a driver holds: what its worker should have returned. Raises PeerGone, ProtocolError."""
        shapes = self.context.shapes
        x = held.tokens if stage == 0 else decode(held.inputs[stage], shape=shapes.activation, dtype=torch.float32)
        if operation == pb.FORWARD:
            return await self.forward(step, stage, x)
        if operation == pb.LOSS:
            return await self.backward(step, stage, x, held.targets)
        incoming = decode(held.incoming[stage], shape=shapes.activation, dtype=torch.float32)
        return await self.backward(step, stage, x, incoming)

    async def add_gradient(
        self, step: int, stage: int, x: torch.Tensor, incoming: torch.Tensor, total: RunningSum
    ) -> None:
        """Recompute one microbatch's parameter gradient and add it to ``total``. Arguments as of ``backward``."""
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

    async def _run(self, step: int, stage: int, x: torch.Tensor, incoming: torch.Tensor | None) -> Recomputed:
        flat = await self._weights.flat(step, stage)
        async with self._lock:
            self.count += 1
            return await asyncio.to_thread(self._compute, step, stage, flat, x, incoming)

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
