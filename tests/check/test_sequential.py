"""Policy screen's sequential test: honest workers are not banned, cheats soon are."""

from __future__ import annotations

import random
from statistics import median

import pytest
import torch

from verifier.check.sequential import SequentialTest

ALPHA = 1e-4


class Stage:
    """R workers of one stage with one frame a step; honest flags come in bursts that hit the stage and alone."""

    def __init__(self, seed: int, *, num: int = 8, hostile: int = 0, onset: int = 50, rate: float = 0.03) -> None:
        self.rng = random.Random(seed)
        self.num, self.hostile, self.onset, self.rate = num, hostile, onset, rate
        self.test = SequentialTest(ALPHA)
        self.bans: dict[int, int] = {}
        self.flags = self.frames = 0

    def run(self, steps: int, cheat: float = 0.0, frames: int = 1) -> None:
        for step in range(steps):
            burst = self.rng.random() < self.rate / 2
            for worker in range(self.num):
                if worker in self.bans:
                    continue
                cheats = worker < self.hostile and step >= self.onset
                share = cheat if cheats else 0.9 if burst else self.rate / 2
                for _ in range(frames):
                    flagged = self.rng.random() < share
                    self.test.note(0, worker, flagged)
                    if not cheats:
                        self.flags, self.frames = self.flags + flagged, self.frames + 1
            for worker, reason in self.test.close_step():
                assert "evidence" in reason
                self.bans[worker] = step

    def honest_bans(self) -> int:
        return sum(worker >= self.hostile for worker in self.bans)


@pytest.mark.parametrize("frames", [1, 2, 6])
def test_honest_workers_under_correlated_flags_are_not_banned(frames: int) -> None:
    stages = [Stage(seed) for seed in range(40)]
    for stage in stages:
        stage.run(300, frames=frames)
    rate = sum(s.flags for s in stages) / sum(s.frames for s in stages)
    assert 0.025 < rate < 0.035
    assert sum(s.honest_bans() for s in stages) == 0  # of 320; alpha allows 0.03


@pytest.mark.parametrize(("num", "hostile"), [(3, 1), (8, 3), (16, 6)])
@pytest.mark.parametrize("onset", [0, 50])
def test_a_cheat_flagged_half_the_time_is_banned_after_about_a_dozen_frames(num: int, hostile: int, onset: int) -> None:
    stages = [Stage(seed, num=num, hostile=hostile, onset=onset) for seed in range(30)]
    for stage in stages:
        stage.run(onset + 100, cheat=0.5)
    waits = [step - onset + 1 for stage in stages for worker, step in stage.bans.items() if worker < hostile]
    assert len(waits) == 30 * hostile, "every cheat was banned"
    assert median(waits) <= 16 and sorted(waits)[int(0.9 * len(waits))] <= 30
    assert sum(stage.honest_bans() for stage in stages) == 0


def test_a_cheat_flagged_always_is_banned_within_eight_frames() -> None:
    stages = [Stage(seed, hostile=3) for seed in range(20)]
    for stage in stages:
        stage.run(70, cheat=1.0)
    assert all(set(stage.bans) == {0, 1, 2} for stage in stages)
    assert max(step for stage in stages for step in stage.bans.values()) - 50 < 8


def test_steps_in_which_the_boundary_is_flagged_count_for_nothing() -> None:
    test = SequentialTest(ALPHA)
    for _ in range(200):
        for worker in range(8):
            test.note(0, worker, True)
        assert test.close_step() == []
    for worker in range(8):
        test.note(0, worker, False)
    assert test.close_step() == []


def test_the_hostile_can_not_pass_their_flags_off_as_shared() -> None:
    test = SequentialTest(ALPHA)
    banned: set[int] = set()
    for _ in range(12):
        for worker in range(8):
            if worker not in banned:
                test.note(0, worker, worker < 3)
        banned |= {worker for worker, _ in test.close_step()}
    assert banned == {0, 1, 2}


def test_a_convict_is_no_peer_and_not_tested_again() -> None:
    free, held = SequentialTest(ALPHA), SequentialTest(ALPHA)
    for test in (free, held):
        for step in range(100):  # worker 0's only peer is as bad as itself
            test.note(0, 0, step % 2 == 0)
            test.note(0, 1, step % 2 == 1)
            test.close_step()
    free.forget(1)
    bans = []
    for _ in range(10):
        for test in (free, held):
            test.note(0, 0, True)
        free.note(0, 1, True)
        held.note(0, 1, False)
        bans += [worker for worker, _ in free.close_step()]
        assert held.close_step() == []
    assert bans == [0]


def test_another_stage_is_no_peer() -> None:
    test, rng = SequentialTest(ALPHA), random.Random(0)
    bans: list[int] = []
    for step in range(72):
        for worker in range(4):
            test.note(0, worker, worker == 0 and step >= 60)
            test.note(1, 10 + worker, rng.random() < 0.3)
        bans += [worker for worker, _ in test.close_step()]
    assert bans == [0]


def test_capital_never_grows_in_expectation_at_the_bound() -> None:
    """One bet, both outcomes weighed by the bound: a supermartingale, also when n x rate is large."""
    for frames in (1, 3, 20, 60):
        expected = 0.0
        bound = min(1.0, frames * 0.01)
        for flagged, weight in ((True, bound), (False, 1.0 - bound)):
            test = SequentialTest(ALPHA)
            for index in range(frames):
                test.note(0, 0, flagged and index == 0)
            test.close_step()
            state = test.state_dict()["capital"][0]
            expected += weight * float(state[0] + state[3:].sum())
        assert expected <= 1.0 + 1e-12


def test_state_comes_back_in_the_middle_of_a_step() -> None:
    first = Stage(3, hostile=2, onset=5)
    first.run(30, cheat=0.4)
    first.test.note(0, 4, True)
    again = SequentialTest(ALPHA)
    again.load({name: tensor.clone() for name, tensor in first.test.state_dict().items()})
    rng = random.Random(1)
    for _ in range(60):
        for worker in range(8):
            flagged = rng.random() < (0.5 if worker == 3 else 0.03)
            first.test.note(0, worker, flagged)
            again.note(0, worker, flagged)
        assert first.test.close_step() == again.close_step()
    for name, tensor in first.test.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
