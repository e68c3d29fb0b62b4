"""Attacks on frames that need no knowledge but the frame: SENTINEL's section on attacks (arXiv 2603.03592).

Each keyword of a constructor is a parameter of the specification ``name:key=value,...``; ``direction`` is ``forward``,
``backward`` or ``both``.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor

from sentinel_market.attacks.base import BACKWARD, FORWARD, AttackContext, finite, honest_stages

DIRECTIONS = {
    "forward": frozenset({FORWARD}),
    "backward": frozenset({BACKWARD}),
    "both": frozenset({FORWARD, BACKWARD}),
}


def std(tensor: Tensor) -> float:
    # In double: the square of a large gradient must not overflow, and one element has no sample deviation.
    return float(tensor.double().std(correction=0))


def normal(tensor: Tensor, context: AttackContext) -> Tensor:
    # On CPU from the worker's generator, so that a seed gives the same noise on every device.
    return torch.randn(tensor.shape, generator=context.rng).to(tensor.device)


def uniform(tensor: Tensor, context: AttackContext) -> Tensor:
    return torch.rand(tensor.shape, generator=context.rng).to(tensor.device)


def number(name: str, value: object, low: float = -math.inf, high: float = math.inf) -> float:
    # Parameters come from a command line, so a wrong one is the user's and must be named.
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} is {value!r}; it must be a finite number")
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; it must lie in {low}..{high}")
    return float(value)


class FrameAttack:
    """Common part: a name, directions, and acting at every stage that sends such a frame."""

    name: str

    def __init__(self, direction: str) -> None:
        if direction not in DIRECTIONS:
            raise ValueError(f"direction {direction!r} is unknown; use one of {', '.join(DIRECTIONS)}")
        self.directions = DIRECTIONS[direction]

    def stages(self, num_stages: int) -> range:
        """Every stage that sends such a frame to another."""
        return honest_stages(self.directions, num_stages)


def blend(honest: Tensor, false: Tensor, strength: float) -> Tensor:
    """x + strength * (false - x): how attacks without a size of their own come in degrees; 1 is the attack itself."""
    if strength == 1.0:
        return finite(false.double(), honest)
    return finite(torch.lerp(honest.double(), false.double(), strength), honest)


class Constant(FrameAttack):
    """Every element one value."""

    def __init__(self, name: str, value: float, strength: float = 1.0, direction: str = "forward") -> None:
        super().__init__(direction)
        self.name = name
        self.value = value
        self.strength = number("strength", strength, low=0)

    def __call__(self, tensor: Tensor, context: AttackContext) -> Tensor:  # noqa: ARG002
        """x -> x + strength * (value - x)."""
        return blend(tensor, torch.full_like(tensor, self.value), self.strength)


class RandomValue(FrameAttack):
    """Normal noise instead of the tensor."""

    name = "random_value"

    def __init__(self, std: float = 1.0, strength: float = 1.0, direction: str = "forward") -> None:
        super().__init__(direction)
        self.std = number("std", std, low=0)
        self.strength = number("strength", strength, low=0)

    def __call__(self, tensor: Tensor, context: AttackContext) -> Tensor:
        """x -> x + strength * (std * n - x), n standard normal."""
        return blend(tensor, finite(self.std * normal(tensor, context), tensor), self.strength)


class SignFlip(FrameAttack):
    """The tensor's negative: the paper's scaling attack with sigma = -1."""

    name = "sign_flip"

    def __init__(self, strength: float = 1.0, direction: str = "forward") -> None:
        super().__init__(direction)
        self.strength = number("strength", strength, low=0)

    def __call__(self, tensor: Tensor, context: AttackContext) -> Tensor:  # noqa: ARG002
        """x -> (1 - 2 * strength) * x."""
        return blend(tensor, -tensor, self.strength)


class Scale(FrameAttack):
    """The tensor times a factor."""

    name = "scale"

    def __init__(self, factor: float = 10.0, direction: str = "forward") -> None:
        super().__init__(direction)
        self.factor = number("factor", factor)

    def __call__(self, tensor: Tensor, context: AttackContext) -> Tensor:  # noqa: ARG002
        """x -> factor * x."""
        return finite(tensor.double() * self.factor, tensor)


class RandomSign(FrameAttack):
    """A random share of the elements change sign."""

    name = "random_sign"

    def __init__(self, fraction: float = 0.3, direction: str = "forward") -> None:
        super().__init__(direction)
        self.fraction = number("fraction", fraction, low=0, high=1)

    def __call__(self, tensor: Tensor, context: AttackContext) -> Tensor:
        """x_i -> -x_i with probability ``fraction``."""
        return torch.where(uniform(tensor, context) < self.fraction, -tensor, tensor)


class Bias(FrameAttack):
    """A constant shift in units of the tensor's own spread."""

    name = "bias"

    def __init__(self, strength: float = 1.0, direction: str = "forward") -> None:
        super().__init__(direction)
        self.strength = number("strength", strength)

    def __call__(self, tensor: Tensor, context: AttackContext) -> Tensor:  # noqa: ARG002
        """x -> x + strength * std(x)."""
        return finite(tensor.double() + self.strength * std(tensor), tensor)


class Noise(FrameAttack):
    """Additive normal noise in units of the tensor's own spread."""

    name = "noise"

    def __init__(self, strength: float = 1.0, direction: str = "forward") -> None:
        super().__init__(direction)
        self.strength = number("strength", strength)

    def __call__(self, tensor: Tensor, context: AttackContext) -> Tensor:
        """x -> x + strength * std(x) * n, n standard normal."""
        return finite(tensor.double() + self.strength * std(tensor) * normal(tensor, context), tensor)


class Delay(FrameAttack):
    """What the worker sent ``num_steps`` steps ago, whatever it is asked now.

    It keeps the first frame of every step and direction, from before the onset on. While it has no frame that old, it
    sends the oldest one it has; with none, or one of another shape, the honest tensor.
    """

    name = "delay"

    def __init__(self, num_steps: int = 100, direction: str = "forward") -> None:
        super().__init__(direction)
        if not isinstance(num_steps, int) or num_steps < 1:
            raise ValueError(f"num_steps is {num_steps!r}; it must be a whole number, at least 1")
        self.num_steps = num_steps

    def _history(self, context: AttackContext) -> dict[int, Tensor]:
        return cast("dict[int, Tensor]", context.memory.setdefault(f"delay/{context.direction}", {}))

    def observe(self, tensor: Tensor, context: AttackContext) -> None:
        """Keep a copy of the step's first honest frame, and no more than the ``num_steps`` + 1 latest steps."""
        history = self._history(context)
        if context.step not in history:
            history[context.step] = finite(tensor.detach(), tensor)
        for step in [step for step in history if step < context.step - self.num_steps]:
            del history[step]

    def __call__(self, tensor: Tensor, context: AttackContext) -> Tensor:
        """x_t -> x_(t - num_steps)."""
        self.observe(tensor, context)
        history = self._history(context)
        step = min(history)
        stale = history[step]
        return stale.clone() if step < context.step and stale.shape == tensor.shape else tensor
