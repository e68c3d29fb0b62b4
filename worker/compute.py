"""The stage itself: forward and backward keyed by dispatch, one gradient accumulator a step.

A worker runs one task at a time. Stateless between steps: loading weights clears the stash and the accumulator. What
was summed is kept as inputs, so that a sum without some of it can be made: a frame that was lost on its way, or that
nobody could judge, is no reason to lose a whole step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from sentinel_market.attacks import AttackContext, ScheduledAttack
from sentinel_market.domain.ids import BACKWARD, FORWARD
from sentinel_market.errors import ProtocolError
from sentinel_market.models.config import ModelConfig
from sentinel_market.models.sketch import Sketch
from sentinel_market.models.stage import Stage

Key = tuple[str, int]
"""(verifier account, dispatch)."""


@dataclass
class _Kept:
    """What a backward needs of its forward."""

    microbatch: int
    input: torch.Tensor
    output: torch.Tensor
    shown: torch.Tensor
    """The stage's input as an attack or a screen sees it: embedding rows at stage 0."""


@dataclass(frozen=True)
class Summed:
    """One microbatch in the accumulator. ``input``: tokens [B, T] or activation [B, T, D]; ``given``: the incoming
    gradient [B, T, D], at the last stage the targets [B, T]."""

    microbatch: int
    input: torch.Tensor
    given: torch.Tensor


@dataclass
class BackwardResult:
    """``gradient`` is None at stage 0; ``sketch`` [64] fp32 is this microbatch's share of the accumulator's."""

    gradient: torch.Tensor | None
    sketch: torch.Tensor
    summed: Summed


@dataclass
class StageRunner:
    """Computes for one slot. ``attack`` is None for everybody honest."""

    config: ModelConfig
    stage: int
    num_stages: int
    job_id: int
    attack: ScheduledAttack | None = None
    step: int = -1
    weights_hash: bytes = b""
    first_attacked_step: int | None = None
    summed: dict[bytes, Summed] = field(default_factory=dict)
    """Digests of the backward commitments in the accumulator, to what was summed."""

    def __post_init__(self) -> None:
        self.module = Stage(self.config, self.stage, self.num_stages)
        self._sum = torch.zeros_like(self.module.flat_grad)
        self._kept: dict[Key, _Kept] = {}
        self._sketch: Sketch | None = None

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.num_stages - 1

    def load(self, step: int, flat: torch.Tensor, weights_hash: bytes) -> None:
        """Begin ``step`` from these canonical weights [N]; everything of the step before is dropped."""
        self.module.load_flat(flat if self.attack is None else self.attack.weights(flat, self.stage, step))
        self.drop_sum()
        self.step, self.weights_hash = step, weights_hash
        self._sketch = Sketch(self.job_id, step)

    def drop_sum(self) -> None:
        """Forget what was done in this step; the weights stay."""
        self._sum.zero_()
        self._kept.clear()
        self.summed.clear()

    def forward(self, key: Key, microbatch: int, x: torch.Tensor) -> torch.Tensor:
        """Tokens [B, T] at stage 0, else an activation [B, T, D]; returns [B, T, D]."""
        if not self.is_first:
            x = x.requires_grad_(True)
        shown = self.module.embed(x).detach() if self.is_first else x.detach()
        y = self._run(microbatch, x, shown)
        self._kept[key] = _Kept(microbatch, x, y, shown)
        return self._attacked(y.detach(), FORWARD, microbatch, shown=shown)

    def backward(self, key: Key, gradient: torch.Tensor) -> BackwardResult:
        """Incoming gradient [B, T, D] of a forward that this worker did for the same verifier."""
        kept = self._kept.pop(key, None)
        if kept is None:
            raise ProtocolError("dispatch", f"no forward {key[1]} of this verifier is waiting for its backward")
        if gradient.shape != kept.output.shape:
            raise ProtocolError("shape", f"gradient {list(gradient.shape)}, output {list(kept.output.shape)}")
        sketch = self._accumulate(kept.microbatch, kept.output, gradient)
        outgoing = None
        if not self.is_first:
            outgoing = kept.input.grad
            if outgoing is None:  # a lazy attacker skipped the computation
                outgoing = torch.zeros_like(kept.shown)
            outgoing = self._attacked(outgoing, BACKWARD, kept.microbatch, shown=kept.shown, incoming=gradient)
        return BackwardResult(outgoing, sketch, Summed(kept.microbatch, kept.input.detach(), gradient))

    def loss(self, microbatch: int, x: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, BackwardResult]:
        """Last stage: per-token loss [B, T], and the backward of its mean, in one task."""
        if not self.is_first:
            x = x.requires_grad_(True)
        shown = self.module.embed(x).detach() if self.is_first else x.detach()
        losses = self._losses(microbatch, x, targets, shown)
        sketch = self._accumulate(microbatch, losses.mean(), None)
        shown_losses = self._attacked(losses.detach(), FORWARD, microbatch, shown=shown)
        outgoing = None
        if not self.is_first:
            outgoing = x.grad if x.grad is not None else torch.zeros_like(x)
            outgoing = self._attacked(outgoing.detach(), BACKWARD, microbatch, shown=shown)
        return shown_losses, BackwardResult(outgoing, sketch, Summed(microbatch, x.detach(), targets))

    def _run(self, microbatch: int, x: torch.Tensor, shown: torch.Tensor) -> torch.Tensor:
        lazy = self._lazy()
        if lazy is not None:
            return lazy.run(self.module, x, self._context(lazy, FORWARD, microbatch, shown))
        output: torch.Tensor = self.module(x)
        return output

    def _losses(self, microbatch: int, x: torch.Tensor, targets: torch.Tensor, shown: torch.Tensor) -> torch.Tensor:
        lazy = self._lazy()
        if lazy is not None:
            return lazy.loss(self.module, x, targets, self._context(lazy, FORWARD, microbatch, shown))
        return self.module.token_loss(x, targets)

    def _lazy(self) -> ScheduledAttack | None:
        """The attack, where it replaces the agreed computation in this step; notes that it does."""
        attack = self.attack
        if attack is None or not attack.active(self.step) or not attack.computes(self.stage, self.num_stages):
            return None
        self._note_attack()
        return attack

    def _accumulate(self, microbatch: int, output: torch.Tensor, incoming: torch.Tensor | None) -> torch.Tensor:
        assert self._sketch is not None, "weights are loaded before any task is admitted"
        found = self._gradient(microbatch, output, incoming)
        self._sum += found
        return self._sketch.sketch(found)

    def _gradient(self, microbatch: int, output: torch.Tensor, incoming: torch.Tensor | None) -> torch.Tensor:
        # From zero each time, then added: what one driver makes of the sum (NaN, 1e30) must not reach the sketch of
        # another driver's microbatch, because a recompute convicts by it.
        self.module.zero_grad_flat()
        if output.requires_grad:  # a lazy worker may have computed nothing that has a gradient
            torch.autograd.backward(output, incoming)
        found = self.module.flat_grad
        if self.attack is not None:
            found = self._noticed(found, self.attack.gradient(found, self._context(self.attack, BACKWARD, microbatch)))
        return found

    def _noticed(self, honest: torch.Tensor, sent: torch.Tensor) -> torch.Tensor:
        if sent is not honest:
            self._note_attack()
        return sent

    def _note_attack(self) -> None:
        if self.first_attacked_step is None:
            self.first_attacked_step = self.step

    def _context(
        self,
        attack: ScheduledAttack,
        direction: int,
        microbatch: int,
        shown: torch.Tensor | None = None,
        incoming: torch.Tensor | None = None,
    ) -> AttackContext:
        return attack.context(
            input=shown,
            incoming=incoming,
            step=self.step,
            direction=direction,
            stage=self.stage,
            num_stages=self.num_stages,
            microbatch=microbatch,
        )

    def _attacked(
        self,
        tensor: torch.Tensor,
        direction: int,
        microbatch: int,
        *,
        shown: torch.Tensor,
        incoming: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if self.attack is None:
            return tensor
        context = self._context(self.attack, direction, microbatch, shown, incoming)
        return self._noticed(tensor, self.attack.apply(tensor, context))

    def gradient(self) -> torch.Tensor:
        """A copy of the accumulator [N], as it is handed in."""
        return self._handed_in(self._sum)

    def gradient_of(self, digests: Iterable[bytes]) -> torch.Tensor:
        """The sum [N] of these alone, computed again: as dear as they were. KeyError for what was not summed."""
        total = torch.zeros_like(self._sum)
        for one in [self.summed[digest] for digest in digests]:
            shown = self.module.embed(one.input).detach() if self.is_first else one.input
            if self.is_last:
                losses = self._losses(one.microbatch, one.input, one.given, shown)
                total += self._gradient(one.microbatch, losses.mean(), None)
            else:
                total += self._gradient(one.microbatch, self._run(one.microbatch, one.input, shown), one.given)
        return self._handed_in(total)

    def _handed_in(self, total: torch.Tensor) -> torch.Tensor:
        if self.attack is None:
            return total.clone()
        return self._noticed(total, self.attack.submitted(total, self._context(self.attack, BACKWARD, -1))).clone()
