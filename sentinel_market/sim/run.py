"""One simulated run: R replicas of S stages train a byte model while some of them cheat.

The engine, the policies, the confirmation and the attacks are those of the live network; the relay, the chain and the
processes are not there. A run is a pure function of its settings.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import embedding

from sentinel_market.data.corpus import Corpus, batch, load_corpus, validation_batches
from sentinel_market.models.config import ModelConfig
from sentinel_market.models.layout import LM_HEAD
from sentinel_market.models.optimizer import AdamWConfig
from sentinel_market.models.plain import evaluate
from sentinel_market.sim.conditions import prose
from sentinel_market.sim.judge import Judge
from sentinel_market.sim.mesh import Pass, StageMesh
from sentinel_market.sim.settings import NO_LOSS, UNVERIFIED, RunResult, RunSettings
from sentinel_market.sim.workers import BaselineView, Claim, Roster, Work, Worker, as_tensor
from sentinel_market.wire.tensors import all_finite
from verifier.check import Policy, Screening, VerdictKind, robust
from verifier.check.engine import Engine
from verifier.check.frame import BACKWARD, FORWARD

PAPER_MARGIN = 5
"""Steps between the end of policy ``paper``'s warm-up and the onset of the attacks."""
PAPER_WINDOW_STEPS = 8
CORPUS_BYTES = 2_000_000
VALIDATION_SEED = 0
Progress = Callable[[int, int], None]


@lru_cache(maxsize=2)
def _corpus(seq_len: int) -> Corpus:
    return load_corpus("stdlib", max_bytes=CORPUS_BYTES, seq_len=seq_len)


def policy_of(settings: RunSettings) -> Policy:
    """The engine's policy of a run."""
    name = "none" if settings.policy == UNVERIFIED else settings.policy
    shares: dict[str, object] = {
        "audit_share_ppm": settings.audit_ppm,
        "warmup_audit_share_ppm": settings.warmup_audit_ppm,
    }
    if settings.is_paper:
        # Its warm-up is assumed honest, so it ends shortly before the attacks begin; a window of several steps.
        frames = settings.replicas * max(1, settings.onset - PAPER_MARGIN)
        shares |= {"warmup_frames": max(frames, 40), "window": min(4096, PAPER_WINDOW_STEPS * settings.replicas)}
    return Policy.named(name, **shares)


class Simulation:
    """Build, ``run``, read ``result``."""

    def __init__(self, settings: RunSettings) -> None:
        s = self.settings = settings
        self.policy = policy_of(settings)
        self.verified = s.policy != UNVERIFIED
        self.config = ModelConfig(
            dim=s.model_dim,
            num_layers=s.stages,
            num_heads=max(1, s.model_dim // 16),
            num_kv_heads=max(1, s.model_dim // 16),
            ffn_dim=3 * s.model_dim,
            seq_len=s.seq_len,
        )
        optim = AdamWConfig(
            learning_rate=s.learning_rate,
            min_learning_rate=s.learning_rate / 10,
            warmup_steps=min(s.warmup_steps, s.steps),
            total_steps=s.steps,
        )
        self.meshes = [StageMesh(self.config, stage, s.stages, s.seed, optim) for stage in range(s.stages)]
        self.roster = Roster.new(settings)
        self.workers = [Worker(mesh, self.roster) for mesh in self.meshes]
        self.engines = [Engine(self.policy, s.stages, s.seed) for _ in range(s.num_drivers)]
        self.rng = random.Random(f"wiring {s.seed}")
        self.judge = Judge(
            self.policy,
            self.roster,
            self.workers,
            self.engines,
            random.Random(f"secrets {s.seed}"),
            warmup_steps=s.warmup_steps,
            counted_from=s.counted_from,
            tolerance=s.otherwise.tolerance,
            recompute=s.recompute,
            convict=self._convict,
        )
        self.step = 0
        self.reasons: dict[int, str] = {}
        self._screened: dict[int, Screening] = {}
        self._dropped: set[int] = set()
        self.skipped = 0
        self.losses: list[float] = []
        self._seconds = 0.0

    # ---- a run

    def run(self, progress: Progress | None = None) -> RunResult:
        """Train all steps, then measure."""
        began, wall = time.thread_time(), time.perf_counter()
        for step in range(self.settings.steps):
            self._one_step(step)
            if progress is not None:
                progress(step + 1, self.settings.steps)
        self._seconds = time.thread_time() - began
        return self._result(time.perf_counter() - wall)

    def _one_step(self, step: int) -> None:
        self.step = step
        s = self.settings
        self.judge.begin_step(step)
        self._dropped.clear()
        self.roster.absent = s.otherwise.absent(s.replicas, step, onset=s.onset, steps=s.steps)
        for worker in self.workers:
            worker.begin_step(step)
        tokens = prose() if s.otherwise.prose and step >= s.onset else _corpus(s.seq_len).train
        pairs = [
            batch(tokens, seed=s.seed, step=step, microbatch=row, batch_size=s.sequences, seq_len=s.seq_len)
            for row in range(s.replicas)
        ]
        x = torch.stack([given for given, _ in pairs])
        targets = torch.stack([wanted for _, wanted in pairs])
        inputs: list[Tensor] = []
        passes: list[list[Pass]] = []
        owners: list[list[int]] = []
        for stage in range(s.stages):
            inputs.append(x)
            x, done, owner = self._forward(stage, x, targets)
            passes.append(done)
            owners.append(owner)
        self.losses.append(float(x.mean()))
        incoming: Tensor | None = None
        sums: list[list[Claim]] = []
        for stage in reversed(range(s.stages)):
            incoming, claims = self._backward(stage, inputs[stage], targets, incoming, passes[stage], owners[stage])
            sums.append(claims)
        if self.policy.audits:
            # Live they run beside the next step, with the weights of this one; here before these change.
            self.judge.cross_audit()
        for claims in reversed(sums):
            self._reduce(claims)

    def _driver(self, row: int) -> int:
        return row % self.settings.num_drivers

    def _wire(self, stage: int) -> list[int]:
        """A slot for every row: each live replica once, then again at random."""
        live = self.roster.live(stage)
        slots = self.rng.sample(live, len(live))
        while len(slots) < self.settings.replicas:
            slots.append(self.rng.choice(live))
        return slots[: self.settings.replicas]

    def _convict(self, slot: int, reason: str) -> None:
        if slot < 0 or slot in self.roster.banned:
            return
        self.roster.banned[slot] = self.step
        self.reasons[slot] = reason
        for engine in self.engines:
            engine.convict(slot)

    # ---- forward

    def _forward(self, stage: int, x: Tensor, targets: Tensor) -> tuple[Tensor, list[Pass], list[int]]:
        """Returns what travels on [R, B, T, D] (the losses [R, B, T] at the last stage), the passes whose graphs wait
        for their backward, and who did which row."""
        worker, mesh = self.workers[stage], self.meshes[stage]
        owners = self._wire(stage)
        usual = [r for r, slot in enumerate(owners) if worker.is_usual(slot, self.step)]
        others = [r for r in range(len(owners)) if r not in usual]
        passes = [mesh.forward(usual, x[usual], targets[usual])] if usual else []
        passes += [worker.one(owners[r], self.step, Work(stage, r, x[r], targets[r])) for r in others]
        out: dict[int, Tensor] = {}
        for done in list(passes):
            for index, row in enumerate(done.rows):
                work = Work(stage, row, x[row], targets[row])
                out[row], owners[row] = self._settle_forward(work, owners[row], done, index, passes)
        return torch.stack([out[row] for row in range(len(owners))]), passes, owners

    def _settle_forward(self, work: Work, slot: int, done: Pass, index: int, passes: list[Pass]) -> tuple[Tensor, int]:
        """Ask until somebody's frame is accepted."""
        worker = self.workers[work.stage]
        tried: set[int] = set()
        while True:
            public = self._public(work, FORWARD, slot, worker.shown(work.x))
            honest = done.output[index].detach()
            claim = worker.forward(slot, self.step, work, honest, done.honest, public)
            assert claim.output is not None
            if not self.verified or self._passes_on(claim, tried):
                return claim.output, slot
            tried.add(slot)
            slot = self._another(work.stage, tried)
            if not done.usual or not worker.is_usual(slot, self.step):
                done, index = worker.one(slot, self.step, work), 0
                passes.append(done)

    def _passes_on(self, claim: Claim, tried: set[int]) -> bool:
        driver = self._driver(claim.row)
        accepted, screening = self.judge.accepts(claim, driver, in_the_plot=driver < self.settings.corrupt_drivers)
        if accepted:
            return True
        if self.policy.confirms:
            return False
        assert screening is not None
        if self.settings.is_paper:
            # A flagged activation travels on, its microbatch tainted: nothing of it enters a sum. A flagged gradient is
            # replaced by its average, so that the stages upstream are not poisoned.
            flagged = screening.verdict.kind is VerdictKind.SUSPECT
            if flagged and claim.direction == FORWARD:
                self._dropped.add(claim.row)
            elif flagged and claim.output is not None:
                mean = self.engines[driver].substitute(claim.stage)
                usual = torch.zeros_like(claim.output[0]) if mean is None else torch.as_tensor(mean)
                claim.output = usual.expand_as(claim.output).clone()
            return True
        # Policy screen: others are asked; when a third replica is flagged too, it is the boundary that moved, and its
        # frame is what the baseline learns the move from.
        moved = len(tried) >= 2
        if moved:
            self.engines[driver].accept(claim.stage, claim.direction, screening)
        return moved

    def _another(self, stage: int, tried: set[int]) -> int:
        live = self.roster.live(stage)
        rest = [slot for slot in live if slot not in tried]
        if not rest:
            tried.clear()
            rest = live
        return self.rng.choice(rest)

    # ---- backward

    def _backward(
        self,
        stage: int,
        x: Tensor,
        targets: Tensor,
        incoming: Tensor | None,
        passes: list[Pass],
        owners: list[int],
    ) -> tuple[Tensor | None, list[Claim]]:
        """Returns the gradient that travels on [R, B, T, D] (None below stage 0) and the accepted claims."""
        worker, mesh = self.workers[stage], self.meshes[stage]
        newest: dict[int, Pass] = {row: done for done in passes for row in done.rows}
        works = [Work(stage, row, x[row], targets[row]) for row in range(len(owners))]
        for row, slot in enumerate(owners):
            if slot in self.roster.banned:  # since its forward: another replica does both passes
                owners[row] = self._another(stage, set())
                if not newest[row].usual or not worker.is_usual(owners[row], self.step):
                    newest[row] = worker.one(owners[row], self.step, works[row])
        computed: dict[int, tuple[Tensor | None, Tensor]] = {}
        for done in {id(p): p for p in newest.values()}.values():
            outgoing, gradients = mesh.backward(done, None if incoming is None else incoming[list(done.rows)])
            for index, row in enumerate(done.rows):
                if newest[row] is done:
                    computed[row] = (None if outgoing is None else outgoing[index], gradients[index])
        claims = []
        for row, slot in enumerate(owners):
            given = None if incoming is None else incoming[row]
            claims.append(self._settle_backward(works[row], slot, given, computed[row], newest[row]))
        if mesh.module.is_first:
            return None, claims
        return torch.stack([c.output for c in claims if c.output is not None]), claims

    def _settle_backward(
        self,
        work: Work,
        slot: int,
        incoming: Tensor | None,
        computed: tuple[Tensor | None, Tensor],
        done: Pass,
    ) -> Claim:
        """Ask until somebody's frame is accepted. ``computed``: what ``slot`` computed, by ``done``."""
        worker = self.workers[work.stage]
        reference = -embedding(work.targets, self._head()) if worker.mesh.module.is_last else incoming
        tried: set[int] = set()
        while True:
            public = self._public(work, BACKWARD, slot, reference)
            claim = worker.backward(slot, self.step, work, incoming, computed, done.honest, reference, public)
            if not self.verified or self._passes_on(claim, tried):
                return claim
            tried.add(slot)
            slot = self._another(work.stage, tried)
            if not done.usual or not worker.is_usual(slot, self.step):
                done = worker.one(slot, self.step, work)
                computed = worker.mesh.backward_one(done, incoming)

    def _head(self) -> Tensor:
        return self.meshes[-1].module.get_parameter(LM_HEAD).detach()

    # ---- the data-parallel axis

    def _reduce(self, claims: list[Claim]) -> None:
        """Sums a replica, screened and audited, aggregated by the job's rule; then the stage's update."""
        s, mesh = self.settings, self.meshes[claims[0].stage]
        claims = [claim for claim in claims if claim.row not in self._dropped]
        if not claims:
            return
        by_slot: dict[int, list[Claim]] = {}
        for claim in claims:
            by_slot.setdefault(claim.slot, []).append(claim)
        sums = {slot: self._sum(own) for slot, own in sorted(by_slot.items())}
        if self.policy.confirms:
            self._check_gradients(by_slot, sums)
        counts = [len(by_slot[slot]) for slot in sums]
        values = list(sums.values())
        if not all(all_finite(value) for value in values):
            self.skipped += 1
            return
        aggregate = robust.aggregate(s.aggregation, values, counts)
        if self.policy.confirms:
            self._accept_gradients(mesh.stage, sums, aggregate)
        mesh.update(aggregate, self.step, s.otherwise.rate if self.step >= s.onset else 1.0)

    def _sum(self, claims: list[Claim]) -> Tensor:
        total = torch.zeros_like(self.meshes[claims[0].stage].flat)
        for claim in claims:
            assert claim.gradient is not None
            total += claim.gradient
        return self.workers[claims[0].stage].submitted(claims[0].slot, self.step, total)

    def _check_gradients(self, by_slot: dict[int, list[Claim]], sums: dict[int, Tensor]) -> None:
        """The primary's look at every sum; what fails its recompute is made again by somebody honest enough."""
        stage = next(iter(by_slot.values()))[0].stage
        engine = self.engines[stage % len(self.engines)]
        self._screened = {}
        screened = self._screen(engine, stage, by_slot, sums)
        for slot in list(sums):
            own = by_slot[slot]
            self._screened[slot] = screening = screened[slot]
            suspect = screening.verdict.kind is not VerdictKind.ACCEPT
            drawn = self.judge.draws_again(self.rng)
            contradicts = not self.judge.sketches_agree(sums[slot], own)
            if not suspect and not drawn and not contradicts:
                continue
            self.judge.counters.audits += drawn
            if not self.judge.whole_gradient(slot, sums[slot], own):
                del sums[slot], by_slot[slot], self._screened[slot]
                for claim in own:
                    self._again(claim, by_slot, sums)
                screened = self._screen(engine, stage, by_slot, sums)

    def _screen(
        self, engine: Engine, stage: int, by_slot: dict[int, list[Claim]], sums: dict[int, Tensor]
    ) -> dict[int, Screening]:
        began = time.thread_time()
        given = {slot: (total, len(by_slot[slot])) for slot, total in sums.items()}
        screened = engine.screen_gradients(stage, given)
        self.judge.counters.seconds += time.thread_time() - began
        return screened

    def _again(self, claim: Claim, by_slot: dict[int, list[Claim]], sums: dict[int, Tensor]) -> None:
        """A dropped sum's row on another replica, frame by frame as before."""
        worker = self.workers[claim.stage]
        slot = self._another(claim.stage, set())
        done = worker.one(slot, self.step, claim.work)
        computed = worker.mesh.backward_one(done, claim.incoming)
        again = self._settle_backward(claim.work, slot, claim.incoming, computed, done)
        by_slot.setdefault(again.slot, []).append(again)
        sums[again.slot] = self._sum(by_slot[again.slot])

    def _accept_gradients(self, stage: int, sums: dict[int, Tensor], aggregate: Tensor) -> None:
        engine = self.engines[stage % len(self.engines)]
        for slot, screening in self._screened.items():
            if slot in sums:
                engine.accept_gradient(stage, slot, screening, aggregate)

    # ---- what the attacker knows, and what came out

    def _public(self, work: Work, direction: int, slot: int, shown: Tensor | None) -> BaselineView | None:
        if slot not in self.roster.hostile or not self.verified:
            return None
        engine = self.engines[self._driver(work.row)]
        baseline = engine.baselines[work.stage, direction]

        def crosses(tensor: Tensor) -> bool:
            frame = self.judge.frame(work, direction, slot, shown, tensor)
            return engine.screen(frame, work.row).verdict.kind is VerdictKind.SUSPECT

        return BaselineView(as_tensor(baseline.mean), as_tensor(baseline.change), crosses)

    def _result(self, wall: float) -> RunResult:
        s, c = self.settings, self.judge.counters
        hostile, banned = set(self.roster.hostile), set(self.roster.banned)
        caught = len(hostile & banned)
        honest_bans = len(banned - hostile)
        precision = caught / len(banned) if banned else None
        recall = caught / len(hostile) if hostile else None
        f1 = 2 * caught / (len(banned) + len(hostile)) if hostile else None
        waits = [
            self.roster.banned[slot] - self.roster.first_attack[slot]
            for slot in sorted(hostile & banned)
            if slot in self.roster.first_attack
        ]
        val = evaluate(
            self.config,
            [mesh.flat for mesh in self.meshes],
            validation_batches(_corpus(s.seq_len), s.seq_len, s.validation_sequences, VALIDATION_SEED, batch_size=32),
        )
        tokens = s.steps * s.replicas * s.sequences * s.seq_len
        return RunResult(
            settings=s,
            val_loss=val if math.isfinite(val) else NO_LOSS,
            precision=precision,
            recall=recall,
            f1=f1,
            honest_bans=honest_bans,
            honest_workers=s.stages * s.replicas - len(hostile),
            honest_frames=c.honest_frames,
            flag_rate_honest=c.honest_flags / c.honest_frames if c.honest_frames else 0.0,
            steps_to_quarantine=statistics.median(waits) if waits else None,
            confirmations=c.confirmations,
            recomputes=c.recomputes,
            audits=c.audits,
            tokens_per_second=tokens / self._seconds if self._seconds > 0 else 0.0,
            verification_share=c.seconds / self._seconds if self._seconds > 0 else 0.0,
            hostile_workers=len(hostile),
            banned=sorted(banned),
            bans_at=dict(sorted(self.roster.banned.items())),
            first_attack_step=min(self.roster.first_attack.values(), default=None),
            hostile_frames=c.hostile_frames,
            flagged_hostile_frames=c.hostile_flags,
            accepted_false_frames=c.accepted_false,
            skipped_steps=self.skipped,
            losses=[round(loss, 5) for loss in self.losses],
            seconds=wall,
        )


def run_cell(settings: RunSettings, progress: Progress | None = None) -> RunResult:
    """One run, on one thread, the same numbers every time. Raises ConfigError or ValueError for bad settings."""
    torch.set_num_threads(1)
    return Simulation(settings).run(progress)
