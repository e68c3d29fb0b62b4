"""Attacks along the data-parallel axis: a worker lies about the gradient of its own parameters.

With ``consistent=1`` (default) it lies in every microbatch, before the sketch, so its signed sketches agree with what
it hands in; with ``consistent=0`` only in the sum, which its own sketches then contradict.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from sentinel_market.attacks.base import AttackContext, finite
from sentinel_market.attacks.library import number

_MEMORY = 0.9


class ParallelAttack:
    """Common part: no frame is touched; every stage has parameters."""

    name: str
    directions: frozenset[int] = frozenset()

    def __init__(self, consistent: int = 1) -> None:
        if consistent not in (0, 1):
            raise ValueError(f"consistent is {consistent!r}; it must be 0 or 1")
        self.consistent = bool(consistent)

    def stages(self, num_stages: int) -> range:
        """Every stage."""
        return range(num_stages)

    def __call__(self, tensor: Tensor, context: AttackContext) -> Tensor:  # noqa: ARG002
        """Frames stay honest."""
        return tensor

    def gradient(self, flat: Tensor, context: AttackContext, *, active: bool) -> Tensor:
        """g -> the false gradient when active."""
        return finite(self._false(flat, context), flat) if active else flat

    def _false(self, flat: Tensor, context: AttackContext) -> Tensor:
        raise NotImplementedError


class GradSignFlip(ParallelAttack):
    """The negative gradient."""

    name = "grad_sign_flip"

    def __init__(self, strength: float = 1.0, consistent: int = 1) -> None:
        super().__init__(consistent)
        self.strength = number("strength", strength, low=0)

    def _false(self, flat: Tensor, context: AttackContext) -> Tensor:  # noqa: ARG002
        """g -> (1 - 2 strength) g."""
        return (1 - 2 * self.strength) * flat.double()


class GradScale(ParallelAttack):
    """The gradient times a factor."""

    name = "grad_scale"

    def __init__(self, factor: float = 10.0, consistent: int = 1) -> None:
        super().__init__(consistent)
        self.factor = number("factor", factor)

    def _false(self, flat: Tensor, context: AttackContext) -> Tensor:  # noqa: ARG002
        """g -> factor g."""
        return self.factor * flat.double()


class _Population(ParallelAttack):
    """Knows mean and variance of honest gradients: of all accomplices of its stage where they share, else its own."""

    def gradient(self, flat: Tensor, context: AttackContext, *, active: bool) -> Tensor:
        """Looks at every honest gradient, before the onset too."""
        mean, square = self._learn(flat, context)
        if not active:
            return flat
        return finite(self._from(finite(flat, flat).double(), mean, (square - mean.square()).clamp_min(0).sqrt()), flat)

    def _learn(self, flat: Tensor, context: AttackContext) -> tuple[Tensor, Tensor]:
        store = cast("dict[str, object]", context.memory.get("shared", context.memory))
        key, g = f"population/{context.stage}", finite(flat, flat).double()
        known = cast("tuple[Tensor, Tensor] | None", store.get(key))
        if context.microbatch < 0:
            # A sum may be asked for again in the same step; a second answer that differs would convict by itself.
            again = context.memory.get("population/step") == context.step
            context.memory["population/step"] = context.step
            if again and known is not None:
                return known
        if known is None:
            known = (g.clone(), g.square())
        else:
            known = (torch.lerp(known[0], g, 1 - _MEMORY), torch.lerp(known[1], g.square(), 1 - _MEMORY))
        store[key] = known
        return known

    def _from(self, flat: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
        raise NotImplementedError


class Alie(_Population):
    """A little is enough: a shift of z deviations, small beside honest noise in every coordinate."""

    name = "alie"

    def __init__(self, z: float = 1.0, consistent: int = 1) -> None:
        super().__init__(consistent)
        self.z = number("z", z, low=0)

    def _from(self, flat: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:  # noqa: ARG002
        """g -> mean - z * deviation, coordinate by coordinate."""
        return mean - self.z * deviation


class Ipm(_Population):
    """Inner product manipulation: against the mean of honest gradients."""

    name = "ipm"

    def __init__(self, epsilon: float = 1.0, consistent: int = 1) -> None:
        super().__init__(consistent)
        self.epsilon = number("epsilon", epsilon, low=0)

    def _from(self, flat: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:  # noqa: ARG002
        """g -> -epsilon * mean."""
        return -self.epsilon * mean
