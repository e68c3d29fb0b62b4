"""The shipped attacks: SENTINEL's section on attacks (arXiv 2603.03592) and the lazy worker. Formulas: docs/attacks.md.

Each keyword of a constructor is a parameter of the specification ``name:key=value,...``; ``direction`` is ``forward``,
``backward`` or ``both``.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor

from sentinel_market.attacks.base import BACKWARD, FORWARD, AttackContext, finite, honest_stages

_DIRECTIONS = {
    "forward": frozenset({FORWARD}),
    "backward": frozenset({BACKWARD}),
    "both": frozenset({FORWARD, BACKWARD}),
}


def _std(tensor: Tensor) -> float:
    # In double: the square of a large gradient must not overflow, and one element has no sample deviation.
    return float(tensor.double().std(correction=0))


def _normal(tensor: Tensor, context: AttackContext) -> Tensor:
    # On CPU from the worker's generator, so that a seed gives the same noise on every device.
    return torch.randn(tensor.shape, generator=context.rng).to(tensor.device)


def _uniform(tensor: Tensor, context: AttackContext) -> Tensor:
    return torch.rand(tensor.shape, generator=context.rng).to(tensor.device)


def _number(name: str, value: object, low: float = -math.inf, high: float = math.inf) -> float:
    # Parameters come from a command line, so a wrong one is the user's and must be named.
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} is {value!r}; it must be a finite number")
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; it must lie in {low}..{high}")
    return float(value)


class _FrameAttack:
    """Common part: a name, directions, and acting at every stage that sends such a frame."""

    name: str
    skips_compute = False

    def __init__(self, direction: str) -> None:
        if direction not in _DIRECTIONS:
            raise ValueError(f"direction {direction!r} is unknown; use one of {', '.join(_DIRECTIONS)}")
        self.directions = _DIRECTIONS[direction]

    def stages(self, num_stages: int) -> range:
        """Every stage that sends such a frame to another."""
        return honest_stages(self.directions, num_stages)


class Constant(_FrameAttack):
    """Every element one value."""

    def __init__(self, name: str, value: float, direction: str = "forward") -> None:
        super().__init__(direction)
        self.name = name
        self.value = value

    def __call__(self, tensor: Tensor, context: AttackContext) -> Tensor:  # noqa: ARG002
        """x -> value."""
        return torch.full_like(tensor, self.value)


class RandomValue(_FrameAttack):
    """Normal noise instead of the tensor."""

    name = "random_value"

    def __init__(self, std: float = 1.0, direction: str = "forward") -> None:
        super().__init__(direction)
        self.std = _number("std", std, low=0)

    def __call__(self, tensor: Tensor, context: AttackContext) -> Tensor:
        """x -> std * n, n standard normal."""
        return finite(self.std * _normal(tensor, context), tensor)


class Scale(_FrameAttack):
    """The tensor times a factor; -1 is the sign flip."""

    def __init__(self, name: str = "scale", factor: float = 10.0, direction: str = "forward") -> None:
        super().__init__(direction)
        self.name = name
        self.factor = _number("factor", factor)

    def __call__(self, tensor: Tensor, context: AttackContext) -> Tensor:  # noqa: ARG002
        """x -> factor * x."""
        return finite(tensor.double() * self.factor, tensor)


class RandomSign(_FrameAttack):
    """A random share of the elements change sign."""

    name = "random_sign"

    def __init__(self, fraction: float = 0.3, direction: str = "forward") -> None:
        super().__init__(direction)
        self.fraction = _number("fraction", fraction, low=0, high=1)

    def __call__(self, tensor: Tensor, context: AttackContext) -> Tensor:
        """x_i -> -x_i with probability ``fraction``."""
        return torch.where(_uniform(tensor, context) < self.fraction, -tensor, tensor)


class Bias(_FrameAttack):
    """A constant shift in units of the tensor's own spread."""

    name = "bias"

    def __init__(self, strength: float = 1.0, direction: str = "forward") -> None:
        super().__init__(direction)
        self.strength = _number("strength", strength)

    def __call__(self, tensor: Tensor, context: AttackContext) -> Tensor:  # noqa: ARG002
        """x -> x + strength * std(x)."""
        return finite(tensor.double() + self.strength * _std(tensor), tensor)


class Noise(_FrameAttack):
    """Additive normal noise in units of the tensor's own spread."""

    def __init__(self, name: str = "noise", strength: float = 1.0, direction: str = "forward") -> None:
        super().__init__(direction)
        self.name = name
        self.strength = _number("strength", strength)

    def __call__(self, tensor: Tensor, context: AttackContext) -> Tensor:
        """x -> x + strength * std(x) * n, n standard normal."""
        return finite(tensor.double() + self.strength * _std(tensor) * _normal(tensor, context), tensor)


class Delay(_FrameAttack):
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
            history[context.step] = tensor.detach().clone()
        for step in [step for step in history if step < context.step - self.num_steps]:
            del history[step]

    def __call__(self, tensor: Tensor, context: AttackContext) -> Tensor:
        """x_t -> x_(t - num_steps)."""
        self.observe(tensor, context)
        history = self._history(context)
        step = min(history)
        stale = history[step]
        return stale.clone() if step < context.step and stale.shape == tensor.shape else tensor


class Identity(_FrameAttack):
    """The free rider: it computes nothing, hands its input on, and adds nothing to its parameters' gradient."""

    name = "identity"
    skips_compute = True

    def __init__(self) -> None:
        super().__init__("both")

    def stages(self, num_stages: int) -> range:
        """All but the last, which must name a loss."""
        return range(max(0, num_stages - 1))

    def __call__(self, tensor: Tensor, context: AttackContext) -> Tensor:  # noqa: ARG002
        """Forward: f(x) -> x (stage 0: its embedding rows). Backward: outgoing gradient -> incoming gradient."""
        source = context.input if context.direction == FORWARD else context.incoming
        if source is None:
            wanted = "input" if context.direction == FORWARD else "incoming"
            raise ValueError(f"the identity attack needs context.{wanted} in direction {context.direction}")
        return source.detach().clone()
