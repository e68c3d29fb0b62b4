"""What an attack is, what it sees, and when it acts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import blake3
import torch
from torch import Tensor

from sentinel_market.errors import ConfigError
from sentinel_market.models.stage import Stage

FORWARD = 0
BACKWARD = 1


@runtime_checkable
class PublicView(Protocol):
    """What an observer of the network could know of a boundary's baselines. Arrays may be absent."""

    mean: Tensor | None
    """[T, D]: moving average of the batch mean of accepted frames."""
    change: Tensor | None
    """[D]: moving average of mean(out - in)."""

    def crosses(self, tensor: Tensor) -> bool:
        """Whether the last fences would flag this tensor [B, T, D] here."""


@dataclass(frozen=True, kw_only=True)
class AttackContext:
    """What a hostile worker knows of a frame. Tensors are [B, T, D]; an attack must not change them in place.

    ``input``: the stage's forward input, at stage 0 its embedding rows. ``incoming``: the incoming gradient in the
    backward pass. ``rng`` and ``memory`` belong to the worker and live as long as its attack does; ``memory["shared"]``
    is one dict for all accomplices where there are any. ``public``: None for a worker that only knows its own frames.
    """

    input: Tensor | None
    incoming: Tensor | None
    step: int
    direction: int
    stage: int
    num_stages: int
    rng: torch.Generator
    memory: dict[str, object]
    public: PublicView | None = None
    microbatch: int = -1
    onset: int = 0
    """The first step of the attack; the schedule fills it in."""
    secret: int = 0
    """What accomplices with one ``share_seed`` have in common, else the worker's own; the schedule fills it in."""


@runtime_checkable
class Attack(Protocol):
    """One way to cheat with frames. ``directions``: where it changes tensors.

    Optional members: ``observe(tensor, context)`` sees honest frames before the onset; ``ComputeAttack`` and
    ``GradientAttack`` add theirs.
    """

    name: str
    directions: frozenset[int]

    def stages(self, num_stages: int) -> range:
        """The stages where it acts."""

    def __call__(self, tensor: Tensor, context: AttackContext) -> Tensor:
        """The false tensor, given what the worker computed. Neither argument is changed."""


@runtime_checkable
class ComputeAttack(Protocol):
    """A worker that computes something else than the agreed stage; gradients then follow from what it computed."""

    def weights(self, flat: Tensor, stage: int, step: int, memory: dict[str, object]) -> Tensor:
        """The weights [N] that it uses in place of the canonical ``flat``; called in every step, also before onset."""

    def run(self, stage: Stage, x: Tensor, context: AttackContext) -> Tensor:
        """In place of ``stage(x)``; differentiable."""


@runtime_checkable
class GradientAttack(Protocol):
    """A worker that lies along the data-parallel axis. ``consistent``: it lies in each microbatch's parameter gradient
    before it is sketched; otherwise only in the sum that it submits, which its sketches then contradict."""

    consistent: bool

    def gradient(self, flat: Tensor, context: AttackContext, *, active: bool) -> Tensor:
        """The false gradient [N]; with ``active`` false it only looks and returns ``flat``."""


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
    wide = tensor.to(torch.promote_types(tensor.dtype, like.dtype))  # where the limit is a number, too
    return torch.nan_to_num(wide.clamp(-limit, limit), nan=0.0).to(like.dtype)


def derived(*parts: int) -> int:
    """A generator's seed, in 0 .. 2^63 - 1, from whole numbers."""
    return int.from_bytes(blake3.blake3(repr(parts).encode()).digest()[:8], "big") >> 1


@dataclass
class ScheduledAttack:
    """An attack with its seed, its first step and its rhythm. ``rng`` and ``memory`` are for the worker's context.

    ``duty``: it acts in one step of so many. ``share_seed``: accomplices with one value draw the same noise for the
    same work, so that a replay by one of them confirms the other. ``accomplices``: slots it vouches for where a
    simulation asks.
    """

    attack: Attack
    seed: int
    onset: int
    duty: int = 1
    share_seed: int | None = None
    accomplices: tuple[int, ...] = ()
    memory: dict[str, object] = field(default_factory=dict)
    rng: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        if self.duty < 1:
            raise ValueError(f"duty is {self.duty}; an attack acts in one step of at least 1")
        self.rng = torch.Generator().manual_seed(self.seed)

    @property
    def name(self) -> str:
        """The attack's name."""
        return self.attack.name

    def active(self, step: int) -> bool:
        """Whether the worker cheats at ``step``."""
        return step >= self.onset and (step - self.onset) % self.duty == 0

    def confirms(self, slot: int) -> bool:
        """Whether this worker, asked for a replay, vouches for ``slot`` whatever that one sent."""
        return slot in self.accomplices

    def context(
        self,
        *,
        step: int,
        direction: int,
        stage: int,
        num_stages: int,
        microbatch: int,
        input: Tensor | None = None,
        incoming: Tensor | None = None,
        public: PublicView | None = None,
    ) -> AttackContext:
        """What this worker knows of one frame: what is given, and its own random numbers and memory."""
        return AttackContext(
            input=input,
            incoming=incoming,
            step=step,
            direction=direction,
            stage=stage,
            num_stages=num_stages,
            rng=self.rng,
            memory=self.memory,
            public=public,
            microbatch=microbatch,
        )

    # ---- frames

    def apply(self, tensor: Tensor, context: AttackContext) -> Tensor:
        """The tensor to send: untouched before the onset, in other directions, at other stages, or when empty.

        ConfigError when a user's attack gives anything but a tensor of the same shape and type.
        """
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
            return self._checked(self.attack(tensor, self._prepared(context)), tensor)

    def _checked(self, sent: object, honest: Tensor) -> Tensor:
        if isinstance(sent, Tensor) and sent.shape == honest.shape and sent.dtype == honest.dtype:
            return sent
        what = f"{sent.dtype} {list(sent.shape)}" if isinstance(sent, Tensor) else type(sent).__name__
        raise ConfigError(
            f"attack {self.name!r} gave {what} for {honest.dtype} {list(honest.shape)}; "
            "return a tensor of the same shape and type"
        )

    def _prepared(self, context: AttackContext) -> AttackContext:
        secret = self.seed if self.share_seed is None else self.share_seed
        if self.share_seed is not None:
            # The same draw for the same work, whichever accomplice does it and however many frames it did before.
            context.rng.manual_seed(derived(secret, context.step, context.microbatch, context.stage, context.direction))
        return replace(context, onset=self.onset, secret=secret)

    # ---- computing

    def computes(self, stage: int, num_stages: int) -> bool:
        """Whether a worker of this stage replaces the agreed computation when active."""
        return isinstance(self.attack, ComputeAttack) and stage in self.attack.stages(num_stages)

    def weights(self, flat: Tensor, stage: int, step: int) -> Tensor:
        """The weights [N] in use at ``step``; call it once in every step."""
        if not isinstance(self.attack, ComputeAttack):
            return flat
        own = self.attack.weights(flat, stage, step, self.memory)
        return own if self.active(step) else flat

    def run(self, stage: Stage, x: Tensor, context: AttackContext) -> Tensor:
        """In place of ``stage(x)``; only where ``computes`` and ``active`` hold."""
        assert isinstance(self.attack, ComputeAttack)
        return self.attack.run(stage, x, self._prepared(context))

    def loss(self, stage: Stage, x: Tensor, targets: Tensor, context: AttackContext) -> Tensor:
        """In place of ``stage.token_loss(x, targets)``: as agreed unless the attack has a ``loss`` of its own."""
        own = getattr(self.attack, "loss", None)
        if own is None:
            return stage.token_loss(x, targets)
        losses: Tensor = own(stage, x, targets, self._prepared(context))
        return losses

    # ---- the data-parallel axis

    def gradient(self, flat: Tensor, context: AttackContext) -> Tensor:
        """One microbatch's parameter gradient [N] as it is added and sketched."""
        return self._gradient(flat, context, consistent=True)

    def submitted(self, flat: Tensor, context: AttackContext) -> Tensor:
        """The sum [N] as it is handed in."""
        return self._gradient(flat, context, consistent=False)

    def _gradient(self, flat: Tensor, context: AttackContext, *, consistent: bool) -> Tensor:
        attack = self.attack
        if not isinstance(attack, GradientAttack) or attack.consistent is not consistent:
            return flat
        with torch.no_grad():
            return self._checked(attack.gradient(flat, context, active=self.active(context.step)), flat)
