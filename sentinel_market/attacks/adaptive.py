"""Attacks that aim at the detector: they keep inside what honest frames look like, as far as they know it.

What a worker knows by itself it learns from its own honest frames, before its onset and after; a ``PublicView`` in the
context, where there is one, is the detector's own baseline: the strongest observer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from sentinel_market.attacks.base import FORWARD, AttackContext, derived, finite
from sentinel_market.attacks.library import FrameAttack, blend, normal, number, std

_MEMORY = 0.9
_PERCENTILES = (90, 95, 99)
_HISTORY = 64
"""Honest sequences that a band is estimated from."""


@dataclass
class _Own:
    """A worker's estimate from its own honest frames: moving averages, and its last distances to them."""

    mean: Tensor
    """[T, D]"""
    change: Tensor
    """[D]: of mean(out - in)"""
    distances: list[float]


def _source(context: AttackContext) -> Tensor | None:
    return context.input if context.direction == FORWARD else context.incoming


class _Learner(FrameAttack):
    """Keeps ``_Own`` up to date with every honest frame that the worker computes."""

    def _learn(self, tensor: Tensor, context: AttackContext) -> _Own:
        # What an accomplice upstream sent may be enormous; one NaN would stay in an average for ever.
        found = finite(tensor.detach(), tensor).double()
        source = _source(context)
        change = torch.zeros(tensor.shape[-1], dtype=torch.float64, device=tensor.device)
        if source is not None and source.shape == tensor.shape:
            change = (found - finite(source, source).double()).mean(dim=(0, 1))
        key = f"own/{context.direction}"
        own = cast("_Own | None", context.memory.get(key))
        if own is None or own.mean.shape != tensor.shape[1:]:
            own = _Own(found.mean(0), change, [])
            context.memory[key] = own
            return own
        own.distances.append(float((found - own.mean).norm() / own.mean.norm().clamp_min(1e-30)))
        del own.distances[:-64]
        own.mean.lerp_(found.mean(0), 1 - _MEMORY)
        own.change.lerp_(change, 1 - _MEMORY)
        return own

    def observe(self, tensor: Tensor, context: AttackContext) -> None:
        """An honest frame before the onset."""
        if tensor.ndim == 3:
            self._learn(tensor, context)


class InvisibleNoise(FrameAttack):
    """Noise shaped to stay inside the band that holds ``percentile`` per cent of each element's honest values."""

    name = "invisible_noise"

    def __init__(self, percentile: int = 99, strength: float = 1.0, direction: str = "forward") -> None:
        super().__init__(direction)
        if percentile not in _PERCENTILES:
            raise ValueError(f"percentile is {percentile!r}; use one of {', '.join(map(str, _PERCENTILES))}")
        self.percentile = percentile
        self.strength = number("strength", strength, low=0)

    def observe(self, tensor: Tensor, context: AttackContext) -> None:
        """Keeps the last 64 honest sequences [64, T, D], from before the onset on."""
        if tensor.ndim == 3:
            self._history(tensor, context)

    def _history(self, tensor: Tensor, context: AttackContext) -> Tensor:
        key = f"band/{context.direction}"
        known, found = cast("Tensor | None", context.memory.get(key)), finite(tensor.detach(), tensor)
        if known is not None and known.shape[1:] == found.shape[1:]:
            found = torch.cat((known.to(found), found))[-_HISTORY:]
        context.memory[key] = found
        return found

    def __call__(self, tensor: Tensor, context: AttackContext) -> Tensor:
        """x_i -> clip(x_i + strength * s_i * n, low_i, high_i), the band never so narrow as to move x_i by itself;
        low_i, high_i: quantiles (1 -+ percentile / 100) / 2 of element i over the history, s_i its deviation there."""
        if tensor.ndim != 3:
            return tensor
        known = self._history(tensor, context).double()
        tail = (1 - self.percentile / 100) / 2
        low, high = torch.quantile(known, torch.tensor([tail, 1 - tail], dtype=known.dtype, device=known.device), dim=0)
        x = tensor.double()
        noisy = x + self.strength * known.std(0, correction=0) * normal(tensor, context)
        return finite(torch.clamp(noisy, torch.minimum(x, low), torch.maximum(x, high)), tensor)


class Drift(FrameAttack):
    """An offset that grows by ``rate`` standard deviations a step along one fixed direction."""

    name = "drift"

    def __init__(self, rate: float = 0.02, direction: str = "forward") -> None:
        super().__init__(direction)
        self.rate = number("rate", rate, low=0)

    def __call__(self, tensor: Tensor, context: AttackContext) -> Tensor:
        """x -> x + rate * (t - t0 + 1) * std(x) * u, t0 the onset, u [D] of unit root mean square drawn once from the
        worker's secret: accomplices drift together."""
        width = tensor.shape[-1]
        where = derived(context.secret, context.stage, context.direction, width)
        u = torch.randn(width, generator=torch.Generator().manual_seed(where)).to(tensor.device).double()
        u /= u.square().mean().sqrt().clamp_min(1e-30)
        return finite(tensor.double() + self.rate * (context.step - context.onset + 1) * std(tensor) * u, tensor)


class EmaMimic(_Learner):
    """The average frame with a little noise: right for every distance to the average, right for no input."""

    name = "ema_mimic"

    def __init__(self, noise: float = 0.1, strength: float = 1.0, direction: str = "forward") -> None:
        super().__init__(direction)
        self.noise = number("noise", noise, low=0)
        self.strength = number("strength", strength, low=0)

    def __call__(self, tensor: Tensor, context: AttackContext) -> Tensor:
        """x -> blend of x and EMA(x) + noise * std(x) * n."""
        if tensor.ndim != 3:
            return tensor
        mean = self._learn(tensor, context).mean
        if context.public is not None and context.public.mean is not None:
            mean = context.public.mean.double()
        false = mean + self.noise * std(tensor) * normal(tensor, context)
        return blend(tensor, finite(false, tensor), self.strength)


class DeltaMimic(_Learner):
    """The input plus the average change: right for the average and nearly right for the input."""

    name = "delta_mimic"

    def __init__(self, strength: float = 1.0, direction: str = "forward") -> None:
        super().__init__(direction)
        self.strength = number("strength", strength, low=0)

    def __call__(self, tensor: Tensor, context: AttackContext) -> Tensor:
        """x -> blend of x and input + EMA(mean(out - in)); without an input, the honest tensor."""
        source = _source(context)
        if tensor.ndim != 3 or source is None or source.shape != tensor.shape:
            return tensor
        change = self._learn(tensor, context).change
        if context.public is not None and context.public.change is not None:
            change = context.public.change.double()
        return blend(tensor, finite(source.double() + change, tensor), self.strength)


class Threshold(_Learner):
    """The longest step towards the negative that the last fences let pass, found by bisection."""

    name = "threshold"

    def __init__(self, margin: float = 1.0, direction: str = "forward") -> None:
        super().__init__(direction)
        self.margin = number("margin", margin, low=0)

    def __call__(self, tensor: Tensor, context: AttackContext) -> Tensor:
        """x -> (1 - 2 margin s) x, s in 0 .. 1 the largest (to 1/256) that crosses no fence. Without a public view:
        whose distance to the own average is inside the 95 % of the honest ones."""
        if tensor.ndim != 3:
            return tensor
        own = self._learn(tensor, context)
        low, high = 0.0, 1.0
        if not self._seen(blend(tensor, -tensor, high), own, context):
            low = high
        while high - low > 1 / 256:
            middle = (low + high) / 2
            if self._seen(blend(tensor, -tensor, middle), own, context):
                high = middle
            else:
                low = middle
        return blend(tensor, -tensor, self.margin * low) if low > 0 else tensor

    def _seen(self, tensor: Tensor, own: _Own, context: AttackContext) -> bool:
        if context.public is not None:
            return context.public.crosses(tensor)
        if not own.distances:
            return True
        limit = sorted(own.distances)[int(0.95 * (len(own.distances) - 1))]
        return float((tensor.double() - own.mean).norm() / own.mean.norm().clamp_min(1e-30)) > limit
