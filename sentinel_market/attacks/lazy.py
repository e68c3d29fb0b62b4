"""Workers that compute something cheaper than agreed. Their gradients follow from what they did compute."""

from __future__ import annotations

import math
from collections import deque
from typing import cast

import torch
from torch import Tensor

from sentinel_market.attacks.base import BACKWARD, FORWARD, AttackContext, finite
from sentinel_market.attacks.library import number
from sentinel_market.models.stage import Stage

_BOTH = frozenset({FORWARD, BACKWARD})


def _shown(stage: Stage, x: Tensor) -> Tensor:
    # Detached: a worker that computes nothing has no gradient for its embedding either.
    return stage.embed(x).detach() if stage.is_first else x


class _Lazy:
    """Acts in both directions at every stage; sends what it computed."""

    name: str
    directions = _BOTH

    def stages(self, num_stages: int) -> range:
        """Every stage."""
        return range(num_stages)

    def weights(self, flat: Tensor, stage: int, step: int, memory: dict[str, object]) -> Tensor:  # noqa: ARG002
        """The canonical ones."""
        return flat

    def run(self, stage: Stage, x: Tensor, context: AttackContext) -> Tensor:  # noqa: ARG002
        """As agreed."""
        return stage.forward(x)

    def __call__(self, tensor: Tensor, context: AttackContext) -> Tensor:  # noqa: ARG002
        """What it computed, cut to finite numbers."""
        return finite(tensor, tensor)


class Identity(_Lazy):
    """The free rider: it hands its input on, and adds nothing to its parameters' gradient."""

    name = "identity"

    def stages(self, num_stages: int) -> range:
        """All but the last, which must name a loss."""
        return range(max(0, num_stages - 1))

    def run(self, stage: Stage, x: Tensor, context: AttackContext) -> Tensor:  # noqa: ARG002
        """f(x) -> x (stage 0: its embedding rows); the outgoing gradient is then the incoming one."""
        return _shown(stage, x)


class StaleWeights(_Lazy):
    """It missed the last ``age`` updates, or saved itself the download."""

    name = "stale_weights"

    def __init__(self, age: int = 50) -> None:
        if not isinstance(age, int) or age < 1:
            raise ValueError(f"age is {age!r}; it must be a whole number of steps, at least 1")
        self.age = age

    def weights(self, flat: Tensor, stage: int, step: int, memory: dict[str, object]) -> Tensor:
        """w_t -> w_(t - age), the oldest it has while it has none that old. Accomplices keep one copy."""
        store = cast("dict[str, object]", memory.get("shared", memory))
        kept = cast("deque[tuple[int, Tensor]]", store.setdefault(f"stale/{stage}", deque(maxlen=self.age + 1)))
        if not kept or kept[-1][0] < step:
            kept.append((step, flat.clone()))
        return kept[0][1]


class SkipLayers(_Lazy):
    """It leaves out the last ``share`` of its sublayers: each layer is attention, then MLP."""

    name = "skip_layers"

    def __init__(self, share: float = 0.5) -> None:
        self.share = number("share", share, low=0, high=1)

    def run(self, stage: Stage, x: Tensor, context: AttackContext) -> Tensor:  # noqa: ARG002
        """h + f(h) -> h at the skipped sublayers."""
        with stage.skipping(self._left_out(stage)):
            return stage.forward(x)

    def loss(self, stage: Stage, x: Tensor, targets: Tensor, context: AttackContext) -> Tensor:  # noqa: ARG002
        """The loss with the same sublayers left out."""
        with stage.skipping(self._left_out(stage)):
            return stage.token_loss(x, targets)

    def _left_out(self, stage: Stage) -> frozenset[str]:
        sublayers = [f"model.layers.{layer}.{part}" for layer in stage.layers for part in ("self_attn", "mlp")]
        return frozenset(sublayers[len(sublayers) - math.ceil(self.share * len(sublayers)) :])


def round_mantissa(tensor: Tensor, bits: int) -> Tensor:
    """To ``bits`` bits behind the leading one, ties to even; bfloat16 has 7, half precision 10, fp32 23."""
    mantissa, exponent = torch.frexp(tensor)
    scale = 2.0 ** (bits + 1)
    return finite(torch.ldexp(torch.round(mantissa * scale) / scale, exponent), tensor)


class LowPrecision(_Lazy):
    """It computes with fewer bits than agreed: weights and what it sends have ``bits`` bits behind the leading one."""

    name = "low_precision"

    def __init__(self, bits: int = 7) -> None:
        if not isinstance(bits, int) or not 1 <= bits <= 22:
            raise ValueError(f"bits is {bits!r}; it must be a whole number in 1..22")
        self.bits = bits

    def weights(self, flat: Tensor, stage: int, step: int, memory: dict[str, object]) -> Tensor:  # noqa: ARG002
        """w -> round(w)."""
        return round_mantissa(flat, self.bits)

    def run(self, stage: Stage, x: Tensor, context: AttackContext) -> Tensor:  # noqa: ARG002
        """f(x; w) -> round(f(x; round(w))); gradients pass the rounding straight through."""
        y = stage.forward(x)
        return (y - y.detach()) + round_mantissa(y.detach(), self.bits)


class Surrogate(_Lazy):
    """A cheap map in place of the stage: out = in + in W, W [D, D] of rank D / shrink, a ridge regression on its own
    honest frames: those before the onset and, with a duty cycle, between attacks. With none it hands its input on."""

    name = "surrogate"

    def __init__(self, shrink: int = 1) -> None:
        if not isinstance(shrink, int) or shrink < 1:
            raise ValueError(f"shrink is {shrink!r}; it must be a whole number, at least 1")
        self.shrink = shrink

    def stages(self, num_stages: int) -> range:
        """All but the last, which must name a loss."""
        return range(max(0, num_stages - 1))

    def observe(self, tensor: Tensor, context: AttackContext) -> None:
        """Adds an honest pair to the normal equations of the fit; old pairs fade."""
        if context.direction != FORWARD or context.input is None or context.input.shape != tensor.shape:
            return
        a = finite(context.input.detach(), tensor).double().flatten(0, 1)
        b = finite(tensor.detach(), tensor).double().flatten(0, 1) - a
        old = context.memory.get("surrogate/sums")
        aa, ab = cast("tuple[Tensor, Tensor]", old) if old is not None else (torch.zeros(()), torch.zeros(()))
        context.memory["surrogate/sums"] = (0.95 * aa + a.T @ a, 0.95 * ab + a.T @ b)
        context.memory.pop("surrogate/map", None)

    def run(self, stage: Stage, x: Tensor, context: AttackContext) -> Tensor:
        """f(x) -> x + x W."""
        given = _shown(stage, x)
        fitted = self._map(context, given.shape[-1])
        return given + given @ fitted.to(given)

    def _map(self, context: AttackContext, width: int) -> Tensor:
        known = context.memory.get("surrogate/map")
        if known is None:
            sums = context.memory.get("surrogate/sums")
            if sums is None:
                return torch.zeros(width, width)
            aa, ab = cast("tuple[Tensor, Tensor]", sums)
            # The second part: an accomplice upstream may have sent nothing but zeros.
            ridge = (1e-3 * aa.diagonal().mean() + 1e-12) * torch.eye(width).to(aa)
            u, s, v = torch.linalg.svd(torch.linalg.solve(aa + ridge, ab))
            rank = max(1, width // self.shrink)
            known = context.memory["surrogate/map"] = (u[:, :rank] * s[:rank]) @ v[:rank]
        return cast(Tensor, known)
