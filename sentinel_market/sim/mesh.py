"""The computing side of the mesh: all replicas of a stage in one batched pass, every row with its own gradient.

A *row* is one microbatch on its way: [B, T, D]. Replicas share the canonical weights, so one ``vmap`` over rows gives
what R workers would return; weights are a batched argument, so that each row's parameter gradient comes out by
itself. Whoever computes otherwise (a lazy worker, a replacement) gets a pass of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sentinel_market.models.config import ModelConfig
from sentinel_market.models.init import init_flat
from sentinel_market.models.optimizer import AdamWConfig, decay_mask, step_
from sentinel_market.models.stage import Stage
from sentinel_market.sim.conditions import Way


@dataclass
class Pass:
    """A forward pass whose graph waits for its backward: ``rows`` n ids, ``leaf`` [n, B, T, D] (stage 0: tokens
    [n, B, T]), ``flat`` [n, N] batched weights, ``output`` [n, B, T, D], at the last stage the losses [n, B, T].
    ``honest``: the agreed stage. ``way``: the machine that computes it, None for the usual one."""

    stage: int
    rows: tuple[int, ...]
    leaf: Tensor
    flat: Tensor
    output: Tensor
    honest: bool
    way: Way | None = None

    @property
    def usual(self) -> bool:
        """Whether every honest replica with a usual machine returns this."""
        return self.honest and self.way is None


class StageMesh:
    """Canonical weights and optimizer state of one stage, and the passes over it."""

    def __init__(self, config: ModelConfig, stage: int, num_stages: int, seed: int, optim: AdamWConfig) -> None:
        self.stage, self.num_stages = stage, num_stages
        self.module = Stage(config, stage, num_stages)
        self.module.load_flat(init_flat(config, stage, num_stages, seed))
        self.m, self.v = torch.zeros_like(self.module.flat), torch.zeros_like(self.module.flat)
        self._mask = decay_mask(self.module.specs)
        self._optim = optim

    @property
    def flat(self) -> Tensor:
        """Canonical weights [N]."""
        return self.module.flat

    def forward(self, rows: Sequence[int], x: Tensor, targets: Tensor | None) -> Pass:
        """Rows [n, B, T, D] (tokens [n, B, T] at stage 0) through the canonical weights."""
        leaf = x if self.module.is_first else x.detach().clone().requires_grad_(True)
        flat = self.flat.expand(len(rows), -1).clone().requires_grad_(True)
        with warnings.catch_warnings():
            # vmap loops over the rows in fused attention; that costs less here than scores by hand.
            warnings.filterwarnings("ignore", message=".*performance drop.*")
            if self.module.is_last:
                assert targets is not None
                output = torch.func.vmap(_loss(self.module))(flat, leaf, targets)
            else:
                output = torch.func.vmap(_hidden(self.module))(flat, leaf)
        return Pass(self.stage, tuple(rows), leaf, flat, output, True)

    def alone(self, row: int, x: Tensor, targets: Tensor, way: Way) -> Pass:
        """One row [B, T, D] through the canonical weights on a machine of another kind, which does its backward too."""

        def run(stage: Stage, given: Tensor) -> Tensor:
            return stage.token_loss(given, targets) if stage.is_last else stage.forward(given)

        with way():
            done = self.otherwise(row, x, run, self.flat)
        return replace(done, honest=True, way=way)

    def otherwise(self, row: int, x: Tensor, run: Callable[[Stage, Tensor], Tensor], weights: Tensor) -> Pass:
        """One row [B, T, D] through ``run(stage, x)`` on other weights [N] than the canonical ones, or another way."""
        leaf = x[None] if self.module.is_first else x.detach().clone()[None].requires_grad_(True)
        flat = weights.detach().clone()[None].requires_grad_(True)
        with self.module.using(flat[0]):
            output = run(self.module, leaf[0])[None]
        return Pass(self.stage, (row,), leaf, flat, output, False)

    def backward(self, done: Pass, incoming: Tensor | None) -> tuple[Tensor | None, Tensor]:
        """``incoming`` [n, B, T, D], None at the last stage (mean loss of each row). Returns the outgoing gradient
        [n, B, T, D] (None at stage 0) and each row's parameter gradient [n, N]. Uses the graph up."""
        inputs = [done.flat] if self.module.is_first else [done.flat, done.leaf]
        output = done.output
        if incoming is None:
            output = output.flatten(1).mean(1).sum()
        if not output.requires_grad:  # a lazy worker that computed nothing
            found: list[Tensor | None] = [None] * len(inputs)
        else:
            with done.way() if done.way is not None else nullcontext():
                found = list(torch.autograd.grad(output, inputs, incoming, allow_unused=True))
        gradients = torch.zeros_like(done.flat) if found[0] is None else found[0]
        if self.module.is_first:
            return None, gradients
        outgoing = torch.zeros_like(done.leaf) if found[1] is None else found[1]
        return outgoing, gradients

    def backward_one(self, done: Pass, incoming: Tensor | None) -> tuple[Tensor | None, Tensor]:
        """``backward`` of a pass over one row, without the row's dimension."""
        outgoing, gradients = self.backward(done, None if incoming is None else incoming[None])
        return None if outgoing is None else outgoing[0], gradients[0]

    def update(self, gradient: Tensor, step: int, rate: float = 1.0) -> None:
        """One AdamW step by the aggregate [N], at ``rate`` times the learning rate."""
        o = self._optim
        optim = replace(o, learning_rate=rate * o.learning_rate, min_learning_rate=rate * o.min_learning_rate)
        step_(self.module.flat, gradient, self.m, self.v, step, optim, self._mask)


def _hidden(module: Stage) -> Callable[[Tensor, Tensor], Tensor]:
    def run(flat: Tensor, x: Tensor) -> Tensor:
        with module.using(flat):
            return module.forward(x)

    return run


def _loss(module: Stage) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def run(flat: Tensor, x: Tensor, targets: Tensor) -> Tensor:
        with module.using(flat):
            return module.token_loss(x, targets)

    return run
