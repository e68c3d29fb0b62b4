"""The engine: all that one driver knows of honest frames and decides from it. The same object live and simulated.

Deterministic in the order of calls, and pure in the sense of this package: no clock, random state or I/O. Whoever
drives it (``verifier.driver``, ``sentinel_market.sim``) asks replicas and recomputes; the engine says what to think.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch

from sentinel_market.errors import ProtocolError
from verifier.check import check, gradient, paper
from verifier.check.baseline import Baseline
from verifier.check.check import Screening
from verifier.check.frame import BACKWARD, FORWARD, Frame
from verifier.check.gradient import GradientBaseline
from verifier.check.kernels import Array
from verifier.check.liveness import InconclusiveRates
from verifier.check.policy import PPM, Policy
from verifier.check.sequential import SequentialTest
from verifier.check.verdict import Verdict, VerdictKind
from verifier.check.watch import Watch, is_far

VERSION = 4
MOVED_WORKERS = 3
SETTLED_FRAMES = 32
"""Frames after warm-up in which no move is believed: young windows flag honest frames in bursts."""
CALM_STEPS = 32
"""Steps after a conviction in which no move is believed: what a cheat sent moves honest frames too, those that were
made from it, and wide fences are what the other cheats wait for."""
_WAYS = (FORWARD, BACKWARD)


@dataclass(frozen=True, slots=True)
class Ban:
    """A worker that statistics alone condemn (policies ``paper`` and ``screen``): no recompute stands behind it."""

    worker: int
    step: int
    reason: str


class Engine:
    """Baselines of every (boundary, direction) of one driver, and what is counted about each worker.

    Order of calls: ``begin_step``, then for each frame ``screen``, ``note``, and after a final ACCEPT ``accept``.
    """

    def __init__(self, policy: Policy, num_stages: int, seed: int) -> None:
        self.policy = policy
        self.num_stages = num_stages
        self.seed = seed
        self.baselines: dict[tuple[int, int], Baseline] = {
            (stage, direction): Baseline.new(stage, num_stages, direction, seed)
            for stage in range(num_stages)
            for direction in _WAYS
        }
        self.gradients = [GradientBaseline() for _ in range(num_stages)]
        self._step = -1
        self._tainted: dict[int, int] = {}
        self._suspects: dict[tuple[int, int, int], int] = {}
        self._strikes = paper.Strikes(policy)
        self._test = SequentialTest(policy.alpha_ppm / PPM)
        self._due: list[Ban] = []
        self._rates = InconclusiveRates()
        self._watch = Watch()
        self._cleared: set[int] = set()
        self._calm_from = 0

    def begin_step(self, step: int) -> None:
        """A new optimizer step: forget which microbatches are tainted; policy ``screen`` weighs the flags of the step
        that ends, and ``note`` hands out the bans that follow."""
        if self.policy.name == "screen":
            self._due += [Ban(worker, self._step, reason) for worker, reason in self._test.close_step()]
        self._watch.close_step()
        self._tainted, self._suspects, self._cleared = {}, {}, set()
        self._step = step

    def screen(self, frame: Frame, microbatch: int) -> Screening:
        """Judge a frame; changes nothing. Policy ``paper``: once a boundary has flagged a microbatch (``note``), its
        later frames of this step, in both directions, are INCONCLUSIVE (tainted)."""
        if self.policy.name == "paper" and microbatch in self._tainted:
            reason = f"tainted: stage {self._tainted[microbatch]} flagged this microbatch, later checks are suspended"
            verdict = Verdict(VerdictKind.INCONCLUSIVE, reason)
            return Screening(verdict, self.policy, frame.worker, microbatch=microbatch)
        found = check.screen(frame, self.baselines[frame.stage, frame.direction], self.policy)
        return replace(found, microbatch=microbatch)

    def note(self, frame: Frame, screening: Screening) -> Ban | None:
        """Count a worker's screened frame. Policies ``paper`` (strikes) and ``screen`` (sequential test) answer with a
        ban when one is due, which may be another worker's; the others never do."""
        self._rates.seen(frame.stage, frame.worker)
        if frame.is_silent or screening.verdict.kind is VerdictKind.INCONCLUSIVE:
            return self._next_ban()
        flagged = screening.verdict.kind is VerdictKind.SUSPECT
        if self.policy.name == "screen":
            self._note_screen(frame, screening.microbatch, flagged)
        elif self.policy.name == "paper":
            self._note_paper(frame, screening, flagged)
        elif self.policy.audits and not screening.in_warmup:
            self._watch.note(frame.stage, frame.direction, frame.worker, screening.verdict)
        return self._next_ban()

    def _note_screen(self, frame: Frame, microbatch: int, flagged: bool) -> None:
        """Once two workers were flagged for the same work, a wrong tensor may have travelled on, and what is made from
        it says nothing about who made it."""
        if self._tainted.get(microbatch, frame.stage) != frame.stage:
            return
        self._test.note(frame.stage, frame.worker, flagged)
        if flagged:
            work = (microbatch, frame.stage, frame.direction)
            if self._suspects.setdefault(work, frame.worker) != frame.worker:
                self._tainted.setdefault(microbatch, frame.stage)

    def _note_paper(self, frame: Frame, screening: Screening, flagged: bool) -> None:
        if flagged:
            self._tainted[screening.microbatch] = frame.stage
        if screening.scores_judged:
            paper.adapt(self.baselines[frame.stage, frame.direction], self.policy, screening.crossed)
        if not flagged and not screening.scores_judged:
            return
        strikes = self._strikes.note(frame.worker, flagged)
        if strikes:
            reason = f"{strikes} strikes, the last: {screening.verdict.reason}"
            self._due.append(Ban(frame.worker, self._step, reason))

    def _next_ban(self) -> Ban | None:
        return self._due.pop(0) if self._due else None

    def watched(self, worker: int, directions: Iterable[int]) -> bool:
        """Whether a worker's frames of these directions are to be recomputed, flagged or not."""
        return self._watch.watched(worker, directions)

    def at_once(self, screening: Screening) -> bool:
        """Whether a suspect gets no replay: it lies far outside its fences, or another worker's was cleared in this
        step. Whether honest frames moved must not wait until more of them are flagged."""
        suspect = screening.verdict.kind is VerdictKind.SUSPECT
        return is_far(screening) or (suspect and bool(self._cleared - {screening.worker}))

    def upheld(self, worker: int, directions: Iterable[int]) -> None:
        """A recompute bore out a worker's frame of these directions."""
        self._watch.upheld(worker, directions)

    def accept(self, stage: int, direction: int, screening: Screening) -> None:
        """A final ACCEPT: fold the frame into its baseline. Policy ``paper`` never folds in a flagged frame."""
        if self.policy.name == "paper" and screening.verdict.kind is not VerdictKind.ACCEPT:
            return
        check.accept(self.baselines[stage, direction], screening)

    def cleared_by_recompute(self, stage: int, direction: int, screening: Screening) -> bool:
        """A recompute cleared a suspect; returns whether a fence moved. Before ``accept``.

        Three workers cleared in one step: not they are unusual, honest frames are (a jump of the learning rate, other
        data). One engine sees all boundaries of its rows, and what moves one moves the rest: all of them get fences
        three times as wide as in warm-up, and its audits, until each window is new."""
        if screening.crossed and not screening.in_warmup:
            self._cleared.add(screening.worker)
            if len(self._cleared) == MOVED_WORKERS and self._step >= self._calm_from:
                for baseline in self.baselines.values():
                    if baseline.frames >= self.policy.warmup_frames + SETTLED_FRAMES:
                        baseline.moved_until = baseline.frames + self.policy.window
        return check.cleared_by_recompute(self.baselines[stage, direction], screening)

    def has_moved(self, stage: int) -> bool:
        """Whether a stage's fences are wide since honest frames moved: as many audits are due as in warm-up."""
        return any(self.baselines[stage, way].frames < self.baselines[stage, way].moved_until for way in _WAYS)

    def convict(self, worker: int) -> None:
        """Take a convict's frames out of every window, and the fences back to where they were if they had followed a
        move: it was its doing."""
        self._calm_from = self._step + CALM_STEPS
        for baseline in self.baselines.values():
            check.forget(baseline, worker)
            baseline.moved_until = 0
        for one in self.gradients:
            one.forget(worker)
        self._test.forget(worker)
        self._watch.forget(worker)
        self._rates.forget(worker)

    def gone(self, worker: int) -> None:
        """Another account holds its slot now: the frames that the last one lost count no more."""
        self._rates.forget(worker)

    def substitute(self, stage: int) -> Array | None:
        """Policy ``paper``: what a flagged gradient leaving ``stage`` is replaced by, the EMA gradient [T, D]."""
        return self.baselines[stage, BACKWARD].mean

    def screen_gradients(self, stage: int, sums: Mapping[int, tuple[torch.Tensor, int]]) -> dict[int, Screening]:
        """Judge all replicas of the step: worker -> (sum of gradients, float32 [N], how many). A suspect goes to a
        whole-gradient recompute. Changes nothing."""
        return gradient.screen_gradients(self.gradients[stage], sums, self.policy)

    def accept_gradient(self, stage: int, worker: int, screening: Screening, aggregate: torch.Tensor) -> None:
        """A final ACCEPT of a replica's gradient: fold it in, and once a step (``begin_step``) the aggregate [N]."""
        gradient.accept_gradient(self.gradients[stage], worker, screening, aggregate, self._step)

    def inconclusive(self, worker: int, stage: int) -> None:
        """Count a final INCONCLUSIVE, or a frame that never came."""
        self._rates.inconclusive(stage, worker)

    def overloaded(self, worker: int) -> bool:
        """Whether a worker's INCONCLUSIVE rate is above 3 x its peers': it gets no more work, and keeps its stake."""
        return self._rates.overloaded(worker)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Everything, as contiguous tensors under dotted names; goes into the checkpoint."""
        due = json.dumps([[b.worker, b.step, b.reason] for b in self._due]).encode()
        state = {
            "engine.meta": torch.tensor(
                [VERSION, self.num_stages, self.seed, self._step, self._calm_from], dtype=torch.int64
            ),
            "engine.tainted": torch.tensor(sorted(self._tainted.items()), dtype=torch.int64).reshape(-1, 2),
            "engine.suspects": torch.tensor(
                [(*work, worker) for work, worker in sorted(self._suspects.items())], dtype=torch.int64
            ).reshape(-1, 4),
            "engine.due": torch.tensor(list(due), dtype=torch.uint8),
            "engine.strikes": self._strikes.state(),
            "engine.rates": self._rates.state(),
        }
        parts = [(f"baseline.{s}.{d}", b.state_dict()) for (s, d), b in self.baselines.items()]
        parts += [(f"gradient.{s}", b.state_dict()) for s, b in enumerate(self.gradients)]
        parts += [("test", self._test.state_dict()), ("watch", self._watch.state_dict())]
        for prefix, part in parts:
            state |= {f"{prefix}.{name}": tensor for name, tensor in part.items()}
        return state

    @classmethod
    def from_state_dict(cls, policy: Policy, state: Mapping[str, torch.Tensor]) -> Self:
        """The inverse of ``state_dict``; ProtocolError("baseline") for a state that does not fit together."""

        def part(prefix: str) -> dict[str, torch.Tensor]:
            return {k.removeprefix(prefix + "."): v for k, v in state.items() if k.startswith(prefix + ".")}

        try:
            version, *rest = state["engine.meta"].tolist()
            if version != VERSION:
                raise ValueError(f"version {version}, this build reads {VERSION}")
            num_stages, seed, step, calm_from = rest
            engine = cls(policy, num_stages, seed)
            engine._step, engine._calm_from = step, calm_from
            for stage, direction in engine.baselines:
                found = Baseline.from_state_dict(part(f"baseline.{stage}.{direction}"))
                if (found.stage, found.direction, found.num_stages) != (stage, direction, num_stages):
                    raise ValueError(f"the baseline of stage {stage}, direction {direction} is another boundary's")
                engine.baselines[stage, direction] = found
            engine.gradients = [GradientBaseline.from_state_dict(part(f"gradient.{s}")) for s in range(num_stages)]
            engine._tainted = {int(m): int(s) for m, s in state["engine.tainted"].reshape(-1, 2).tolist()}
            engine._suspects = {(m, s, d): w for m, s, d, w in state["engine.suspects"].reshape(-1, 4).tolist()}
            engine._due = [Ban(*row) for row in json.loads(bytes(state["engine.due"].tolist()))]
            engine._strikes.load(state["engine.strikes"])
            engine._rates.load(state["engine.rates"])
            engine._test.load(part("test"))
            engine._watch.load(part("watch"))
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise ProtocolError("baseline", f"not an engine's state: {error}") from error
        return engine
