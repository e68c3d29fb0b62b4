"""Who sits at which slot of the mesh, and what each of them returns for a row. Slot = stage x R + replica."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sentinel_market.attacks import AttackContext, ScheduledAttack, get_attack
from sentinel_market.attacks.base import PublicView
from sentinel_market.models.stage import Stage
from sentinel_market.sim.conditions import Way
from sentinel_market.sim.mesh import Pass, StageMesh
from sentinel_market.sim.settings import RunSettings
from verifier.check.frame import BACKWARD, FORWARD


@dataclass(frozen=True)
class Work:
    """One row at one stage: ``x`` its input (tokens [B, T] at stage 0, else [B, T, D]), ``targets`` [B, T]."""

    stage: int
    row: int
    x: Tensor
    targets: Tensor


@dataclass(kw_only=True)
class Claim:
    """What one worker returned for one row in one direction.

    ``output``: activation, per-token loss, or outgoing gradient (None at stage 0); ``gradient`` [N]: the row's
    parameter gradient as the worker adds and sketches it (backward only). ``shown``: what a screen holds the output
    against. ``false``: not what an honest worker returns.
    """

    work: Work
    direction: int
    slot: int
    shown: Tensor | None
    incoming: Tensor | None
    output: Tensor | None
    gradient: Tensor | None = None
    false: bool = False

    @property
    def stage(self) -> int:
        return self.work.stage

    @property
    def row(self) -> int:
        return self.work.row


@dataclass
class Roster:
    """Hostile workers by slot, and who is banned since when."""

    settings: RunSettings
    hostile: dict[int, ScheduledAttack] = field(default_factory=dict)
    banned: dict[int, int] = field(default_factory=dict)
    first_attack: dict[int, int] = field(default_factory=dict)
    """slot -> step of its first false tensor"""
    absent: frozenset[int] = frozenset()
    """Replicas of every stage that get no work at this step, without having done anything."""

    @classmethod
    def new(cls, settings: RunSettings) -> Roster:
        """Draw the hostile replicas of every stage where the attack can act."""
        roster = cls(settings)
        if not settings.attack:
            return roster
        rng = random.Random(f"hostile {settings.seed}")
        count = round(settings.malicious * settings.replicas)
        probe = _attack(settings, 0, ())
        slots = [
            stage * settings.replicas + replica
            for stage in probe.attack.stages(settings.stages)
            for replica in rng.sample(range(settings.replicas), count)
        ]
        shared: dict[str, object] = {}
        for slot in slots:
            roster.hostile[slot] = _attack(settings, slot, tuple(slots) if settings.collude else ())
            roster.hostile[slot].memory["shared"] = shared
        return roster

    def attack_of(self, slot: int, step: int) -> ScheduledAttack | None:
        """The attack that this worker carries out at ``step``, if it does."""
        attack = self.hostile.get(slot)
        return attack if attack is not None and attack.active(step) else None

    def live(self, stage: int) -> list[int]:
        """Slots of a stage that get work; a newcomer (a negative number, honest) where all were banned."""
        first = stage * self.settings.replicas
        there = [first + replica for replica in range(self.settings.replicas) if replica not in self.absent]
        slots = [slot for slot in there if slot not in self.banned]
        return slots or [-1 - stage]

    def vouches(self, confirmer: int, accused: int, step: int) -> bool:
        """Whether a replica asked for a replay would clear an accomplice whatever it sent."""
        attack = self.attack_of(confirmer, step)
        return attack is not None and attack.confirms(accused)


def _attack(settings: RunSettings, slot: int, accomplices: tuple[int, ...]) -> ScheduledAttack:
    seed = settings.seed * 100_003 + slot
    attack = get_attack(settings.spec, seed=seed, onset=settings.onset, duty=settings.duty, accomplices=accomplices)
    if settings.collude:
        attack.share_seed = settings.seed
    return attack


class Worker:
    """Computes rows for any slot of one stage."""

    def __init__(self, mesh: StageMesh, roster: Roster) -> None:
        self.mesh = mesh
        self.roster = roster
        self._weights: dict[int, Tensor] = {}

    def begin_step(self, step: int) -> None:
        """Every replica loads the step's weights [N]; what a lazy one loads is its own affair."""
        size = self.roster.settings.replicas
        for slot, attack in self.roster.hostile.items():
            if slot // size == self.mesh.stage:
                self._weights[slot] = attack.weights(self.mesh.flat, self.mesh.stage, step)

    def submitted(self, slot: int, step: int, total: Tensor) -> Tensor:
        """The sum [N] that a replica hands in."""
        attack = self.roster.hostile.get(slot)
        if attack is None:
            return total
        sent = attack.submitted(total, self._context(attack, step, -1, BACKWARD, None, None, None))
        if sent is not total:
            self.roster.first_attack.setdefault(slot, step)
        return sent

    def _context(
        self,
        attack: ScheduledAttack,
        step: int,
        row: int,
        direction: int,
        shown: Tensor | None,
        incoming: Tensor | None,
        public: PublicView | None,
    ) -> AttackContext:
        return attack.context(
            input=shown,
            incoming=incoming,
            step=step,
            direction=direction,
            stage=self.mesh.stage,
            num_stages=self.mesh.num_stages,
            microbatch=row,
            public=public,
        )

    def computes_otherwise(self, slot: int, step: int) -> bool:
        """Whether this worker does not run the agreed stage at ``step``."""
        attack = self.roster.attack_of(slot, step)
        return attack is not None and attack.computes(self.mesh.stage, self.mesh.num_stages)

    def way(self, slot: int) -> Way | None:
        """What machine a worker has; None for the usual one, which every newcomer has."""
        settings = self.roster.settings
        return None if slot < 0 else settings.otherwise.way(slot % settings.replicas)

    def is_usual(self, slot: int, step: int) -> bool:
        """Whether this worker runs the agreed stage on a usual machine at ``step``."""
        return self.way(slot) is None and not self.computes_otherwise(slot, step)

    def as_agreed(self, work: Work) -> Pass:
        """A pass over one row on the canonical weights."""
        return self.mesh.forward([work.row], work.x[None], work.targets[None])

    def one(self, slot: int, step: int, work: Work) -> Pass:
        """A pass over one row as this worker runs it."""
        if self.is_usual(slot, step):
            return self.as_agreed(work)
        way = self.way(slot)
        if way is not None and not self.computes_otherwise(slot, step):
            return self.mesh.alone(work.row, work.x, work.targets, way)
        attack = self.roster.hostile[slot]
        context = self._context(attack, step, work.row, FORWARD, self.shown(work.x), None, None)
        weights = self._weights.get(slot, self.mesh.flat)

        def run(stage: Stage, given: Tensor) -> Tensor:
            if stage.is_last:
                return attack.loss(stage, given, work.targets, context)
            return attack.run(stage, given, context)

        return self.mesh.otherwise(work.row, work.x, run, weights)

    def shown(self, x: Tensor) -> Tensor:
        """A row's input [B, T, D] as a screen sees it: the embedding rows at stage 0."""
        return self.mesh.module.embed(x).detach() if self.mesh.module.is_first else x

    def forward(
        self, slot: int, step: int, work: Work, honest: Tensor, usual: bool, public: PublicView | None
    ) -> Claim:
        """What ``slot`` says the forward of a row gave. ``honest``: what it computed; ``usual``: as agreed."""
        shown = self.shown(work.x)
        honest = self.roster.settings.otherwise.travels(honest)
        sent = self._send(slot, step, work.row, FORWARD, honest, shown, None, public)
        return self._claim(
            Claim(
                work=work,
                direction=FORWARD,
                slot=slot,
                shown=None if self.mesh.module.is_last else shown,
                incoming=None,
                output=sent,
                false=sent is not honest or not usual,
            ),
            step,
        )

    def backward(
        self,
        slot: int,
        step: int,
        work: Work,
        incoming: Tensor | None,
        computed: tuple[Tensor | None, Tensor],
        usual: bool,
        reference: Tensor | None,
        public: PublicView | None,
    ) -> Claim:
        """What ``slot`` says the backward of a row gave. ``computed``: outgoing gradient and parameter gradient [N] as
        it computed them; ``reference``: what the screen holds the gradient against."""
        outgoing, gradient = computed
        if outgoing is not None:
            outgoing = self.roster.settings.otherwise.travels(outgoing)
        sent, added = outgoing, gradient
        if outgoing is not None:
            sent = self._send(slot, step, work.row, BACKWARD, outgoing, self.shown(work.x), incoming, public)
        attack = self.roster.hostile.get(slot)
        if attack is not None:
            context = self._context(attack, step, work.row, BACKWARD, None, None, None)
            added = attack.gradient(gradient, context)
        return self._claim(
            Claim(
                work=work,
                direction=BACKWARD,
                slot=slot,
                shown=reference,
                incoming=incoming,
                output=sent,
                gradient=added,
                false=sent is not outgoing or added is not gradient or not usual,
            ),
            step,
        )

    def _send(
        self,
        slot: int,
        step: int,
        row: int,
        direction: int,
        honest: Tensor,
        shown: Tensor | None,
        incoming: Tensor | None,
        public: PublicView | None,
    ) -> Tensor:
        attack = self.roster.hostile.get(slot)
        if attack is None:
            return honest
        return attack.apply(honest, self._context(attack, step, row, direction, shown, incoming, public))

    def _claim(self, claim: Claim, step: int) -> Claim:
        if claim.false:
            self.roster.first_attack.setdefault(claim.slot, step)
        return claim


@dataclass
class BaselineView:
    """A ``PublicView`` of the strongest observer, who knows all of a boundary's baselines."""

    mean: Tensor | None
    change: Tensor | None
    crosses: Callable[[Tensor], bool]


def as_tensor(array: object) -> Tensor | None:
    """An engine's numpy array as a tensor; None stays None."""
    return None if array is None else torch.as_tensor(array)
