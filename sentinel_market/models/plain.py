"""The reference: a plain single-process training loop, written to be read, that a pipeline's run must equal.

It follows protocol.md: the gradient of a microbatch is that of its mean token loss; a stage's gradient of a step is
the sum over its accepted multiset (an audited microbatch may count twice there) divided by the count; then AdamW.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sentinel_market.models.config import ModelConfig
from sentinel_market.models.generate import build_stages
from sentinel_market.models.init import init_flat
from sentinel_market.models.optimizer import AdamWConfig, decay_mask, step_
from sentinel_market.models.stage import Stage

Batch = tuple[Tensor, Tensor]
"""Inputs and targets, int64 [B, T] each."""
Multiset = Sequence[int] | Sequence[Sequence[Sequence[int]]]
"""A step's microbatch ids: one list for every stage, or ``[stage][replica] -> ids`` as in a step record."""


@dataclass(frozen=True)
class PlainResult:
    """``losses``: mean loss of a step in nats, every distinct microbatch once. ``flats``: final weights [N] a stage."""

    losses: list[float]
    flats: list[Tensor]


def _by_stage(multiset: Multiset, num_stages: int) -> list[list[list[int]]]:
    """Normalise to [stage][group] -> ids; a flat list is one group, the same at every stage."""
    flat = [item for item in multiset if isinstance(item, int)]
    if len(flat) == len(multiset):
        return [[flat] for _ in range(num_stages)]
    stages = [[list(group) for group in stage] for stage in multiset if not isinstance(stage, int)]
    if len(stages) != num_stages:
        raise ValueError(f"the multiset names {len(stages)} stages, the model has {num_stages}")
    return stages


def microbatch_losses(stages: Sequence[Stage], batch: Batch) -> Tensor:
    """Per-token loss [B, T] of one batch through the chained stages."""
    tokens, targets = batch
    x = tokens
    for stage in stages[:-1]:
        x = stage(x)
    return stages[-1].token_loss(x, targets)


@torch.no_grad()
def evaluate(config: ModelConfig, flats: Sequence[Tensor], batches: Sequence[Batch]) -> float:
    """Mean token loss in nats over ``batches``: the validation loss as a seat computes it on CPU."""
    stages = build_stages(config, flats)
    total, count = 0.0, 0
    for batch in batches:
        loss_BT = microbatch_losses(stages, batch)
        total += float(loss_BT.double().sum())
        count += loss_BT.numel()
    return total / count


def plain_loop(
    config: ModelConfig,
    corpus_batches: Callable[[int, int], Batch],
    num_steps: int,
    seed: int,
    optim: AdamWConfig,
    microbatch_lists: Sequence[Multiset],
    *,
    num_stages: int = 1,
    on_step: Callable[[int, float], None] | None = None,
) -> PlainResult:
    """Train ``num_steps`` steps from ``init_flat(seed)``.

    ``corpus_batches(step, microbatch)`` gives a batch; ``microbatch_lists[step]`` the ids of a step, with multiplicity,
    for all stages or by stage and replica (sums are then formed a replica and added in slot order, as a primary does).
    ``num_stages`` sets the cut of the returned weights; the mathematics does not depend on it.
    """
    stages = build_stages(config, [init_flat(config, stage, num_stages, seed) for stage in range(num_stages)])
    moments = [(torch.zeros_like(stage.flat), torch.zeros_like(stage.flat)) for stage in stages]
    masks = [decay_mask(stage.specs) for stage in stages]
    losses: list[float] = []
    for step in range(num_steps):
        groups = _by_stage(microbatch_lists[step], num_stages)
        counts = [[Counter(group) for group in stage_groups] for stage_groups in groups]
        sums = [[torch.zeros_like(stage.flat) for _ in groups[i]] for i, stage in enumerate(stages)]
        distinct = sorted({m for stage_groups in groups for group in stage_groups for m in group})
        step_loss = 0.0
        for microbatch in distinct:
            for stage in stages:
                stage.zero_grad_flat()
            loss = microbatch_losses(stages, corpus_batches(step, microbatch)).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            step_loss += float(loss.detach())
            for i, stage in enumerate(stages):
                for group, group_sum in zip(counts[i], sums[i], strict=True):
                    if group[microbatch]:
                        group_sum.add_(stage.flat_grad * group[microbatch])
        for i, stage in enumerate(stages):
            total = torch.zeros_like(stage.flat)
            for group_sum in sums[i]:
                total += group_sum
            total /= sum(len(group) for group in groups[i])
            step_(stage.flat, total, *moments[i], step, optim, masks[i])
        losses.append(step_loss / len(distinct))
        if on_step is not None:
            on_step(step, losses[-1])
    return PlainResult(losses, [stage.flat.clone() for stage in stages])
