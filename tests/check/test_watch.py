"""Who is looked at more closely: suspects far outside their fences, and workers that are near them too often."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from tests.check.helpers import POLICY, Stage, trained
from verifier.check import BACKWARD, FORWARD, Policy, Score, Screening, Verdict, VerdictKind, screen
from verifier.check.engine import Engine
from verifier.check.watch import ALPHA, FAR, NEAR, UPHELD, Watch, is_far

LOW, HIGH = -1_000_000, 3_000_000  # middle 1, half-width 2


def scored(*values: int, kind: VerdictKind = VerdictKind.SUSPECT) -> Screening:
    scores = tuple(Score(f"m{index}", value, LOW, HIGH) for index, value in enumerate(values))
    return Screening(Verdict(kind, "test", scores), POLICY, 3)


def near(is_near: bool) -> Verdict:
    edge = 1_000_000 + round(NEAR * 2_000_000)
    return scored(1_000_000, edge if is_near else edge - 1, kind=VerdictKind.ACCEPT).verdict


@pytest.mark.parametrize(
    ("value", "far"),
    [
        (HIGH + 1, False),
        (5_000_000, False),
        (5_000_001, True),
        (LOW - 1, False),
        (-3_000_000, False),
        (-3_000_001, True),
    ],
)
def test_a_suspect_is_far_from_a_half_width_beyond_its_fence_on(value: int, far: bool) -> None:
    assert FAR == 2.0
    assert is_far(scored(1_000_000, value)) == far
    assert is_far(scored(value, HIGH + 1)) == far, "any metric"


def test_what_no_window_can_excuse_is_far_and_an_accepted_frame_never() -> None:
    assert is_far(scored()), "nothing to hold it against: NaN, a forward repeated otherwise"
    assert is_far(replace(scored(HIGH + 1), broken=True))
    for kind in (VerdictKind.ACCEPT, VerdictKind.INCONCLUSIVE):
        assert not is_far(scored(9_000_000, kind=kind)) and not is_far(scored(kind=kind))


def test_a_score_with_one_fence_has_no_reach() -> None:
    assert Score("sfr", 900_000, None, 300_000).reach == 0.0
    assert Score("l1", 5, 3, 3).reach == 0.0
    assert Score("l1", HIGH, LOW, HIGH).reach == Score("l1", LOW, LOW, HIGH).reach == 1.0


@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
def test_the_screen_tells_broken_frames_and_distances(direction: int) -> None:
    stage = Stage()
    baseline = trained(stage, direction=direction)
    honest = stage.frame(direction=direction)
    assert honest.input is not None and honest.output is not None
    idle = screen(replace(honest, output=honest.input.clone()), baseline, POLICY)
    assert idle.broken and is_far(idle)
    opposed = screen(replace(honest, output=-honest.output), baseline, POLICY)
    assert not opposed.broken and is_far(opposed)
    high = next(s.high_e6 for s in screen(honest, baseline, POLICY).verdict.scores if s.metric == "rms")
    scale = torch.exp(torch.tensor((high or 0) / 1e6)) / honest.output.square().mean().sqrt()
    just = screen(replace(honest, output=honest.output * (scale * 1.01)), baseline, POLICY)
    assert just.verdict.kind is VerdictKind.SUSPECT and not is_far(just)


class Crowd:
    """Eight workers of a stage with a frame a step and direction; ``riders`` of them are always near, forward."""

    def __init__(self, seed: int, rate: float, riders: int = 0, onset: int = 30) -> None:
        self.rng = random.Random(seed)
        self.rate, self.riders, self.onset = rate, riders, onset
        self.watch = Watch()
        self.crossed: dict[int, int] = {}

    def run(self, steps: int) -> None:
        for step in range(steps):
            burst = self.rng.random() < self.rate / 2
            for worker in range(8):
                rides = worker < self.riders and step >= self.onset
                share = 1.0 if rides else 0.9 if burst else self.rate / 2
                self.watch.note(1, FORWARD, worker, near(self.rng.random() < share))
            self.watch.close_step()
            for worker in range(8):
                if self.watch.watched(worker, (FORWARD,)):
                    self.crossed.setdefault(worker, step)


@pytest.mark.parametrize("riders", [1, 2, 3])
def test_a_rider_is_watched_within_eight_frames_and_nobody_else(riders: int) -> None:
    crowds = [Crowd(seed, 0.06, riders) for seed in range(20)]
    for crowd in crowds:
        crowd.run(60)
    waits = [step - 30 + 1 for crowd in crowds for worker, step in crowd.crossed.items() if worker < riders]
    assert len(waits) == 20 * riders and max(waits) <= 8
    assert sum(worker >= riders for crowd in crowds for worker in crowd.crossed) <= ALPHA * 20 * (8 - riders) + 1


@pytest.mark.parametrize("rate", [0.02, 0.06, 0.1, 0.15])
def test_an_honest_worker_is_watched_with_chance_alpha_at_most(rate: float) -> None:
    """A new job's first frames included, when its peers have shown little yet."""
    crowds = [Crowd(seed, rate) for seed in range(40)]
    for crowd in crowds:
        crowd.run(150)
    assert sum(len(crowd.crossed) for crowd in crowds) <= ALPHA * 40 * 8


def test_each_direction_is_watched_by_itself_until_recomputes_bear_it_out_and_then_anew() -> None:
    watch = Watch()

    def ride(steps: int) -> int:
        for step in range(steps):
            if watch.watched(0, (FORWARD,)):
                return step
            for worker in range(6):
                watch.note(1, FORWARD, worker, near(worker == 0))
                watch.note(1, BACKWARD, worker, near(False))
            watch.close_step()
        return steps

    first = ride(20)
    assert first < 10
    assert (
        watch.watched(0, (BACKWARD, FORWARD)) and not watch.watched(0, (BACKWARD,)) and not watch.watched(1, (FORWARD,))
    )
    watch.upheld(0, (BACKWARD,))
    watch.upheld(1, (FORWARD,))
    for _ in range(UPHELD):
        assert watch.watched(0, (FORWARD,)), "one recompute is not enough"
        watch.note(1, FORWARD, 0, near(True))  # while it is watched its frames prove nothing
        watch.upheld(0, (FORWARD, BACKWARD))
    assert not watch.watched(0, (FORWARD,))
    assert ride(20) == first, "its test began anew, with nothing carried over"
    watch.forget(0)
    assert not watch.watched(0, (FORWARD,)) and ride(20) == 20


def test_frames_without_fences_say_nothing() -> None:
    watch = Watch()
    bare = Verdict(VerdictKind.SUSPECT, "nonfinite", (Score("l1", 10**15), Score("sfr", 10**6, None, 10)))
    for _ in range(30):
        for worker in range(4):
            watch.note(1, FORWARD, worker, bare if worker == 0 else near(False))
        watch.close_step()
    assert not watch.watched(0, (FORWARD,))


def test_state_comes_back_in_the_middle_of_a_step() -> None:
    first, rng = Crowd(1, 0.06, riders=1, onset=5), random.Random(2)
    first.run(20)
    assert first.watch.watched(0, (FORWARD,))
    first.watch.upheld(0, (FORWARD,))
    first.watch.note(1, BACKWARD, 2, near(True))
    again = Watch()
    again.load({name: tensor.clone() for name, tensor in first.watch.state_dict().items()})
    for step in range(40):
        for watch, noise in ((first.watch, random.Random(step)), (again, random.Random(step))):
            for worker in range(8):
                watch.note(1, BACKWARD, worker, near(worker == 3 or noise.random() < 0.05))
            watch.close_step()
            if step == 30:
                watch.upheld(0, (FORWARD,))
        assert all(torch.equal(t, again.state_dict()[name]) for name, t in first.watch.state_dict().items())
        assert first.watch.watched(0, (FORWARD,)) == again.watched(0, (FORWARD,)) == (step < 30)
    assert again.watched(3, (BACKWARD,)) and rng is not None


class Rider:
    """An engine over six workers of a stage, one frame each and step; worker 0's lie as far out as its fences let."""

    def __init__(self, name: str, direction: int) -> None:
        self.engine = Engine(Policy(name=name, warmup_frames=24, window=32), 4, 5)
        self.direction, self.stage = direction, Stage()

    def run(self, steps: int, onset: int) -> None:
        for step in range(steps):
            self.engine.begin_step(step)
            for worker in range(6):
                frame = self.stage.frame(direction=self.direction, worker=worker, step=step)
                found = self.engine.screen(frame, worker)
                if worker == 0 and step >= onset:
                    assert frame.output is not None
                    for scale in torch.arange(1.0, 2.0, 0.005):
                        further = replace(frame, output=frame.output * scale)
                        tried = self.engine.screen(further, worker)
                        if tried.verdict.kind is not VerdictKind.ACCEPT:
                            break
                        frame, found = further, tried
                self.engine.note(frame, found)
                self.engine.accept(frame.stage, frame.direction, found)


@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
def test_a_rider_that_is_never_flagged_is_watched_by_the_engine_and_is_again_after_a_checkpoint(direction: int) -> None:
    rider = Rider("screen+confirm+audit", direction)
    rider.run(8, onset=99)
    assert not any(rider.engine.watched(worker, (FORWARD, BACKWARD)) for worker in range(6))
    rider.run(25, onset=8)
    engine = Engine.from_state_dict(rider.engine.policy, rider.engine.state_dict())
    for one in (rider.engine, engine):
        assert one.watched(0, (direction,)) and not one.watched(0, (1 - direction,))
        assert not any(one.watched(worker, (direction,)) for worker in range(1, 6))
    for _ in range(UPHELD):
        engine.upheld(0, (direction,))
    assert not engine.watched(0, (direction,))
    rider.engine.convict(0)
    assert not rider.engine.watched(0, (direction,))


@pytest.mark.parametrize("name", ["screen", "screen+confirm"])
def test_policies_without_audits_watch_nobody(name: str) -> None:
    rider = Rider(name, FORWARD)
    rider.run(30, onset=8)
    assert not rider.engine.watched(0, (FORWARD,))
