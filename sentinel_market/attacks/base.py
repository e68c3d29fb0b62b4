"""What an attack is, what it sees, and when it acts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

FORWARD = 0
BACKWARD = 1


@dataclass(frozen=True, kw_only=True)
class AttackContext:
    """What a hostile worker knows of a frame. Tensors are [B, T, D]; an attack must not change them in place.

    ``input``: the stage's forward input, at stage 0 its embedding rows. ``incoming``: the incoming gradient in the
    backward pass. ``rng`` and ``memory`` belong to the worker and live as long as its attack does.
    """

    input: Tensor | None
    incoming: Tensor | None
    step: int
    direction: int
    stage: int
    num_stages: int
    rng: torch.Generator
    memory: dict[str, object]


@runtime_checkable
class Attack(Protocol):
    """One way to cheat. ``directions`` where it changes tensors; ``skips_compute``: it adds no parameter gradients."""

    name: str
    directions: frozenset[int]
    skips_compute: bool

    def stages(self, num_stages: int) -> range:
        """The stages where it acts on a frame that travels on."""

    def __call__(self, tensor: Tensor, context: AttackContext) -> Tensor:
        """The false tensor, given the honest one. Neither argument is changed."""


def honest_stages(directions: frozenset[int], num_stages: int) -> range:
    """Forward frames of shape [B, T, D] leave stages 0..S-2, backward ones stages 1..S-1: where a direction can act."""
    first = 0 if FORWARD in directions else 1
    last = num_stages if BACKWARD in directions else num_stages - 1
    return range(first, max(first, last))


def finite(tensor: Tensor, like: Tensor) -> Tensor:
    """``tensor`` in the dtype of ``like``, overflow cut to the largest finite number and NaN to 0.

    An attack that sends Inf is caught by the structural check at once; these are meant to get past it.
    """
    limit = torch.finfo(like.dtype).max
    return torch.nan_to_num(tensor.clamp(-limit, limit), nan=0.0).to(like.dtype)


@dataclass
class ScheduledAttack:
    """An attack with its seed and its first step. ``rng`` and ``memory`` are for the worker's AttackContext."""

    attack: Attack
    seed: int
    onset: int
    memory: dict[str, object] = field(default_factory=dict)
    rng: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = torch.Generator().manual_seed(self.seed)

    @property
    def name(self) -> str:
        """The attack's name."""
        return self.attack.name

    def active(self, step: int) -> bool:
        """Whether the worker cheats at ``step``."""
        return step >= self.onset

    def skips_compute(self, step: int) -> bool:
        """Whether the worker contributes zero parameter gradients at ``step``."""
        return self.attack.skips_compute and self.active(step)

    def apply(self, tensor: Tensor, context: AttackContext) -> Tensor:
        """The tensor to send: untouched before the onset, in other directions, at other stages, or when empty."""
        if (
            context.direction not in self.attack.directions
            or context.stage not in self.attack.stages(context.num_stages)
            or tensor.numel() == 0
        ):
            return tensor
        if not self.active(context.step):
            observe = getattr(self.attack, "observe", None)
            if observe is not None:
                observe(tensor, context)
            return tensor
        with torch.no_grad():
            return self.attack(tensor, context)
