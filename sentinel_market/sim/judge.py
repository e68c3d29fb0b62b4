"""From a claim to a final verdict, as the live driver does it: screen, draw, replay, recompute, convict.

A confirmation never reads the tensor that an honest worker would have sent: it draws a confirmer among the replicas,
hostile ones included, lets it compute (or vouch for an accomplice), and recomputes when they disagree, with the noise
of honest machines on top.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sentinel_market.models.sketch import Sketch
from sentinel_market.sim.hearing import Hearing, Wants
from sentinel_market.sim.workers import Claim, Roster, Work, Worker
from verifier.check import (
    Event,
    Frame,
    Policy,
    Screening,
    Tolerance,
    VerdictKind,
    compare,
    compare_sketch,
    goes_straight_to_recompute,
    numeric_edge,
)
from verifier.check.audit import owes_audit
from verifier.check.engine import Engine
from verifier.check.frame import FORWARD

HONEST_NOISE = 4e-7
"""Relative error of honest replays, the largest measured (docs/verification.md, Measured: tolerance)."""
JOB_ID = 1


@dataclass
class Counters:
    """Of a run."""

    confirmations: int = 0
    recomputes: int = 0
    audits: int = 0
    replays: int = 0
    honest_frames: int = 0
    honest_flags: int = 0
    hostile_frames: int = 0
    hostile_flags: int = 0
    accepted_false: int = 0
    seconds: float = 0.0
    """CPU seconds of screens, replays, recomputes and audits."""


@dataclass(frozen=True)
class Reference:
    """What a recompute gave: tensor and, for a backward, the parameter gradient [N]."""

    output: Tensor | None
    gradient: Tensor | None


class Judge:
    """Judges the claims of all drivers; one engine a driver, as live."""

    def __init__(
        self,
        policy: Policy,
        roster: Roster,
        workers: list[Worker],
        engines: list[Engine],
        rng: random.Random,
        *,
        warmup_steps: int,
        counted_from: int,
        tolerance: Tolerance,
        recompute: bool,
        convict: Callable[[int, str], None],
    ) -> None:
        """``convict(slot, reason)`` bans. ``counted_from``: first step whose frames are counted.
        ``recompute=False`` lets whoever replays have the last word."""
        self.policy = policy
        self.tolerance = tolerance
        self.counters = Counters()
        self._roster = roster
        self._workers = workers
        self._engines = engines
        self._rng = rng
        self._noise = torch.Generator().manual_seed(rng.getrandbits(63))
        self._warmup_steps = warmup_steps
        self._counted_from = counted_from
        self._recompute_allowed = recompute
        self._convict = convict
        self._secret = b""
        self._sketch = Sketch(JOB_ID, 0)
        self._step = 0
        self._draws = 0
        self.cross_audits: list[Claim] = []

    def begin_step(self, step: int) -> None:
        """A new secret, as the driver committed to it a step before."""
        self._step = step
        self._secret = self._rng.randbytes(32)
        self._sketch = Sketch(JOB_ID, step)
        self.cross_audits = []
        for engine in self._engines:
            engine.begin_step(step)

    def frame(self, work: Work, direction: int, slot: int, shown: Tensor | None, output: Tensor | None) -> Frame:
        """What ``slot`` returns for a row, as the engine sees it."""
        return Frame(
            output=output,
            input=shown,
            direction=direction,
            stage=work.stage,
            num_stages=len(self._workers),
            step=self._step,
            worker=slot,
        )

    def accepts(self, claim: Claim, driver: int, *, in_the_plot: bool) -> tuple[bool, Screening | None]:
        """Whether the claim travels on; folds it into the baselines if so."""
        if in_the_plot and claim.slot in self._roster.hostile:
            self._accepted(claim)
            return True, None
        began = time.thread_time()
        try:
            return self._judge(claim, self._engines[driver])
        finally:
            self.counters.seconds += time.thread_time() - began

    def _judge(self, claim: Claim, engine: Engine) -> tuple[bool, Screening | None]:
        frame = self.frame(claim.work, claim.direction, claim.slot, claim.shown, claim.output)
        hearing = Hearing(engine, claim.slot, claim.stage, (claim.direction,), self._convict)
        hearing.screen([frame], claim.row)
        screening = hearing.screenings[0][1]
        self._count(claim, screening.verdict.kind is VerdictKind.SUSPECT)
        self._draws += 1
        name = self._draws.to_bytes(32, "big")
        audited = owes_audit(
            self.policy,
            self._secret,
            [(claim.direction, name)],
            stage=claim.stage,
            num_stages=len(self._workers),
            in_warmup=self._step < self._warmup_steps or engine.has_moved(claim.stage),
        )
        watched = self._recompute_allowed and hearing.watched
        if hearing.suspect is None and not audited and not watched:
            hearing.accept()
            self._accepted(claim)
            return True, screening
        if not self.policy.confirms:
            return False, screening
        return self._confirm(claim, hearing, audited, name), screening

    def _count(self, claim: Claim, flagged: bool) -> None:
        if self._step < self._counted_from:
            return
        c = self.counters
        if self._roster.attack_of(claim.slot, self._step) is not None:
            c.hostile_frames += 1
            c.hostile_flags += flagged
        else:
            c.honest_frames += 1
            c.honest_flags += flagged

    def _accepted(self, claim: Claim) -> None:
        self.counters.accepted_false += claim.false
        if self.draws_again(self._rng):
            self.cross_audits.append(claim)

    def draws_again(self, rng: random.Random) -> bool:
        """The share p / 4 that is looked at after the step: cross-audits of frames, audits of whole gradients."""
        return self.policy.audits and rng.random() < self.policy.audit_share_ppm / 4e6

    # ---- confirmation

    def _confirm(self, claim: Claim, hearing: Hearing, audited: bool, name: bytes) -> bool:
        self.counters.confirmations += 1
        self.counters.audits += audited
        others = [slot for slot in self._roster.live(claim.stage) if slot != claim.slot]
        straight = self._recompute_allowed and goes_straight_to_recompute(self._secret, name)
        hearing.open(audited=audited, straight=straight, others=len(others), recomputes=self._recompute_allowed)
        replay: Claim | None = None
        reference: Reference | None = None
        while (wants := hearing.wants) is not Wants.NOTHING:
            if wants is Wants.REPLAY:
                replay = self._replay(claim, self._rng.choice(others))
                agrees = self._agrees(claim, replay)
                hearing.heard(Event.REPLAY_AGREES if agrees else Event.REPLAY_DISAGREES)
            elif not self._recompute_allowed:
                # Recompute switched off: the majority of accused and two replicas decides, accomplices included.
                rest = [slot for slot in others if replay is None or slot != replay.slot]
                second = self._replay(claim, self._rng.choice(rest)) if rest else None
                agrees = second is None or self._agrees(claim, second)
                if agrees:
                    hearing.accept()
                    self._accepted(claim)
                else:
                    self._convict(claim.slot, "two replays disagree (recompute switched off)")
                return agrees
            elif wants is Wants.RECOMPUTE:
                reference = self.recompute(claim)
                if self._at_edge(reference):
                    hearing.heard(Event.RECOMPUTE_EDGE)
                    continue
                agrees = self._agrees(claim, reference)
                hearing.heard(Event.RECOMPUTE_AGREES if agrees else Event.RECOMPUTE_DISAGREES)
            else:
                assert replay is not None and reference is not None
                upheld = self._agrees(replay, reference)
                hearing.heard(Event.REPLAY_UPHELD if upheld else Event.REPLAY_REFUTED, replay.slot)
        accepted = hearing.close()
        if accepted:
            self._accepted(claim)
        return accepted

    def _replay(self, claim: Claim, slot: int) -> Claim:
        """The same work by another replica, which may be hostile: it cheats here as anywhere, or vouches."""
        self.counters.replays += 1
        if self._roster.vouches(slot, claim.slot, self._step):
            return replace(claim, slot=slot)
        return self._repeat(claim, slot)

    def _repeat(self, claim: Claim, slot: int) -> Claim:
        worker = self._workers[claim.stage]
        done = worker.one(slot, self._step, claim.work)
        if claim.direction == FORWARD:
            output = done.output[0].detach()
            made = worker.forward(slot, self._step, claim.work, output, done.honest, None)
        else:
            incoming = claim.incoming
            computed = worker.mesh.backward_one(done, incoming)
            made = worker.backward(slot, self._step, claim.work, incoming, computed, done.honest, claim.shown, None)
        if made.output is not None:
            made.output = self._noisy(made.output)
        return made

    def recompute(self, claim: Claim) -> Reference:
        """The seat's own computation of the same work from the canonical weights."""
        self.counters.recomputes += 1
        worker = self._workers[claim.stage]
        done = worker.as_agreed(claim.work)
        if claim.direction == FORWARD:
            return Reference(self._noisy(done.output[0].detach()), None)
        outgoing, gradient = worker.mesh.backward_one(done, claim.incoming)
        return Reference(None if outgoing is None else self._noisy(outgoing), gradient)

    def _noisy(self, tensor: Tensor) -> Tensor:
        rms = float(tensor.square().mean().sqrt())
        return tensor + HONEST_NOISE * rms * torch.randn(tensor.shape, generator=self._noise)

    def _agrees(self, claim: Claim, reference: Claim | Reference) -> bool:
        """Whether a claim agrees with a replay or a recompute of the same work: the tensor, and for a backward the
        sketch of the parameter gradient."""
        mine, other = claim.output, reference.output
        if mine is not None and other is not None and not compare(mine, other, self.tolerance).agrees:
            return False
        if claim.direction == FORWARD or claim.gradient is None or reference.gradient is None:
            return True
        ours, theirs = self._sketch.sketch(claim.gradient), self._sketch.sketch(reference.gradient)
        return compare_sketch(ours, theirs, self.tolerance).agrees

    def _at_edge(self, reference: Reference) -> bool:
        # Inputs travel in the job's dtype, so the recompute from rounded inputs is this one (evidence's edge_inputs).
        tensors = [t for t in (reference.output, reference.gradient) if t is not None]
        return any(numeric_edge(t, t, self.tolerance) for t in tensors)

    # ---- after the step

    def cross_audit(self) -> None:
        """The share x = p / 4 of accepted frames that another seat fetches and recomputes; a wrong one is a case."""
        began = time.thread_time()
        for claim in self.cross_audits:
            self.counters.audits += 1
            reference = self.recompute(claim)
            if not self._at_edge(reference) and not self._agrees(claim, reference):
                self._convict(claim.slot, "a cross-audit's recompute disagrees")
        self.counters.seconds += time.thread_time() - began

    def sketches_agree(self, submitted: Tensor, claims: list[Claim]) -> bool:
        """Whether the sketch of a submitted sum [N] is the sum of the accepted sketches."""
        found = torch.stack([self._sketch.sketch(c.gradient) for c in claims if c.gradient is not None]).sum(0)
        return compare_sketch(self._sketch.sketch(submitted), found, self.tolerance).agrees

    def whole_gradient(self, slot: int, submitted: Tensor, claims: list[Claim]) -> bool:
        """Recompute a replica's whole sum [N] of a step from its rows; convicts, and returns False, if it differs."""
        began = time.thread_time()
        self.counters.recomputes += 1
        worker = self._workers[claims[0].stage]
        total = torch.zeros_like(submitted)
        for claim in claims:
            total += worker.mesh.backward_one(worker.as_agreed(claim.work), claim.incoming)[1]
        agrees = compare_sketch(submitted, total, self.tolerance).agrees
        if not agrees:
            self._convict(slot, "the recompute of its whole gradient disagrees")
        self.counters.seconds += time.thread_time() - began
        return agrees
