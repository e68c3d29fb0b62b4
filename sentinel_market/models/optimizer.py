"""AdamW as specified: the same bits from every IEEE machine and every number of threads.

Order of operations on fp32 buffers, one rounding an operation (no fused multiply-add, no foreach, no fused kernel);
scalars are computed in double and rounded once to fp32 where they meet a tensor. With t = step + 1 and
lr = learning_rate_at(step):

1. m <- m * beta1                    m <- m + grad * (1 - beta1)
2. v <- v * beta2                    v <- v + (grad * grad) * (1 - beta2)
3. weights <- weights - (weights * mask) * (lr * weight_decay)          mask: 1 on matrices, else 0
4. d <- sqrt(v / (1 - beta2^t)) + eps
5. weights <- weights - (m / d) * (lr / (1 - beta1^t))

Powers are taken by repeated squaring, and the learning rate is rounded to 12 decimals, so that libm cannot differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sentinel_market.models.config import ALIGNMENT
from sentinel_market.models.layout import ParamSpec


@dataclass(frozen=True, kw_only=True)
class AdamWConfig:
    """Settings of the optimizer and its schedule; ``step`` counts from 0."""

    learning_rate: float
    min_learning_rate: float
    warmup_steps: int
    total_steps: int
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1

    def validate(self) -> list[str]:
        """Every problem at once; empty when the settings can be used."""
        problems = []
        if not 0 < self.learning_rate < math.inf:
            problems.append(f"learning_rate is {self.learning_rate}; it must be positive")
        if not 0 <= self.min_learning_rate <= self.learning_rate:
            problems.append(f"min_learning_rate is {self.min_learning_rate}; it must lie in 0..learning_rate")
        if self.total_steps < 1:
            problems.append(f"total_steps is {self.total_steps}; it must be at least 1")
        if not 0 <= self.warmup_steps <= self.total_steps:
            problems.append(f"warmup_steps is {self.warmup_steps}; it must lie in 0..total_steps")
        for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not 0 <= beta < 1:
                problems.append(f"{name} is {beta}; it must lie in 0 <= {name} < 1")
        if not 0 < self.eps < math.inf:
            problems.append(f"eps is {self.eps}; it must be positive")
        if not 0 <= self.weight_decay < math.inf:
            problems.append(f"weight_decay is {self.weight_decay}; it must not be negative")
        return problems

    def learning_rate_at(self, step: int) -> float:
        """Linear warm-up to ``learning_rate``, then a cosine to ``min_learning_rate`` at the last step, then flat."""
        if step < self.warmup_steps:
            return round(self.learning_rate * (step + 1) / self.warmup_steps, 12)
        last = self.total_steps - 1
        span = last - self.warmup_steps
        progress = min(1.0, (step - self.warmup_steps) / span) if span > 0 else 1.0
        share = 0.5 * (1.0 + math.cos(math.pi * progress))
        return round(self.min_learning_rate + (self.learning_rate - self.min_learning_rate) * share, 12)


def decay_mask(specs: tuple[ParamSpec, ...]) -> Tensor:
    """fp32 [N]: 1 where a parameter is decayed (matrices), 0 on norms and padding."""
    last = specs[-1]
    mask = torch.zeros(-(-(last.offset + last.size) // ALIGNMENT) * ALIGNMENT)
    for spec in specs:
        if spec.decay:
            mask[spec.offset : spec.offset + spec.size] = 1.0
    return mask


def _power(base: float, exponent: int) -> float:
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


@torch.no_grad()
def step_(
    weights: Tensor, grad: Tensor, m: Tensor, v: Tensor, step: int, config: AdamWConfig, decay_mask: Tensor
) -> None:
    """Update ``weights``, ``m`` and ``v`` (fp32 [N]) in place by ``grad`` (fp32 [N], not changed)."""
    lr = config.learning_rate_at(step)
    correction1 = 1.0 - _power(config.beta1, step + 1)
    correction2 = 1.0 - _power(config.beta2, step + 1)
    m.mul_(config.beta1).add_(grad * (1.0 - config.beta1))
    v.mul_(config.beta2).add_((grad * grad).mul_(1.0 - config.beta2))
    if config.weight_decay:
        weights.sub_((weights * decay_mask).mul_(lr * config.weight_decay))
    denominator = (v / correction2).sqrt_().add_(config.eps)
    weights.sub_((m / denominator).mul_(lr / correction1))
