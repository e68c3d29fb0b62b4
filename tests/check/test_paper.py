"""Policy paper: the published detector as published, its ablations, and where it is blind."""

from __future__ import annotations

import math

import pytest
import torch

from sentinel_market.errors import ConfigError
from tests.check.helpers import B, D, Stage, T
from verifier.check import BACKWARD, FORWARD, Frame, Policy, VerdictKind
from verifier.check.baseline import FRAME_METRICS
from verifier.check.engine import Ban, Engine

WORKERS = 8
ONSET = 30
PAPER = Policy(name="paper", warmup_frames=40, paper_warmup_steps=10)


class Run:
    """One inner stage whose workers take turns: one forward and one backward frame each in every step."""

    def __init__(self, policy: Policy = PAPER, seed: int = 0) -> None:
        self.engine = Engine(policy, 4, 5)
        self.stage = Stage(seed)
        self.bans: dict[int, int] = {}
        self.flags = {FORWARD: 0, BACKWARD: 0}
        self.honest_flags = self.honest_checks = 0

    def frame(self, worker: int, direction: int, step: int, sigma: float | None) -> Frame:
        frame = self.stage.frame(stage=1, direction=direction, worker=worker, step=step)
        assert frame.output is not None
        if sigma is not None:
            frame = Frame(**{**vars(frame), "output": sigma * frame.output})
        return frame

    def step(self, step: int, *, cheat: int = 0, sigma: float = -1.0, direction: int = FORWARD) -> None:
        self.engine.begin_step(step)
        for worker in range(WORKERS):
            if worker in self.bans:
                continue
            for way in (FORWARD, BACKWARD):
                cheats = worker == cheat and step >= ONSET and way == direction
                frame = self.frame(worker, way, step, sigma if cheats else None)
                screening = self.engine.screen(frame, microbatch=worker)
                flagged = screening.verdict.kind is VerdictKind.SUSPECT
                self.flags[way] += flagged and cheats
                if not cheats:
                    self.honest_flags += flagged
                    self.honest_checks += screening.scores_judged
                ban = self.engine.note(frame, screening)
                if ban is not None:
                    assert ban.worker == worker and "strikes" in ban.reason
                    self.bans[ban.worker] = step
                if screening.verdict.kind is VerdictKind.ACCEPT:
                    self.engine.accept(1, way, screening)


@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
@pytest.mark.parametrize("sigma", [-1.0, 0.0, 10.0])
def test_a_cheat_is_banned_six_to_ten_steps_after_its_onset(direction: int, sigma: float) -> None:
    run = Run()
    for step in range(ONSET + 15):
        run.step(step, sigma=sigma, direction=direction)
    assert set(run.bans) == {0}
    assert 6 <= run.bans[0] - ONSET + 1 <= 10  # counted in steps in which it cheated


def test_honest_flags_stay_under_one_in_a_hundred() -> None:
    flags = checks = 0
    for seed in range(3):
        run = Run(seed=seed)
        for step in range(200):
            run.step(step, cheat=-1)
        assert not run.bans
        flags, checks = flags + run.honest_flags, checks + run.honest_checks
    assert checks > 5000 and flags < 0.01 * checks


def test_warm_up_flags_nothing_but_what_is_not_finite() -> None:
    run = Run()
    for index in range(PAPER.warmup_frames + 20):  # of step 0: both the frames and the steps have to pass
        frame = run.frame(0, FORWARD, 0, -1.0 if index % 2 else 7.0)
        screening = run.engine.screen(frame, index)
        assert screening.verdict.kind is VerdictKind.ACCEPT
        assert not screening.scores_judged
        run.engine.accept(1, FORWARD, screening)
    broken = run.engine.screen(run.frame(0, FORWARD, 0, math.nan), 1000)
    assert broken.verdict.kind is VerdictKind.SUSPECT and "NaN" in broken.verdict.reason


def trained(policy: Policy = PAPER, seed: int = 0) -> Run:
    run = Run(policy, seed)
    for step in range(ONSET):
        run.step(step, cheat=-1)
    return run


def test_only_the_four_distances_are_judged_on_both_sides() -> None:
    run = trained()
    found = run.engine.screen(run.frame(1, FORWARD, 40, None), 99)
    assert [s.metric for s in found.verdict.scores] == ["l1", "l2", "sfr", "sw"]
    assert all(s.low_e6 is not None and s.high_e6 is not None for s in found.verdict.scores)
    assert all(math.isnan(v) for v in found.values[4:]) and len(found.values) == len(FRAME_METRICS)


def test_the_average_itself_sent_as_output_lies_below_the_fence() -> None:
    run = trained()
    mean = run.engine.baselines[1, FORWARD].mean
    assert mean is not None
    frame = Frame(**{**vars(run.frame(1, FORWARD, 40, None)), "output": torch.from_numpy(mean).expand(B, T, D).clone()})
    assert "below its fence" in run.engine.screen(frame, 99).verdict.reason


def test_a_flagged_microbatch_is_tainted_for_the_rest_of_the_step() -> None:
    run = trained()
    run.engine.begin_step(40)
    bad, good = run.frame(0, FORWARD, 40, -1.0), run.frame(1, FORWARD, 40, None)
    asked = run.engine.screen(bad, 3)
    assert asked.verdict.kind is VerdictKind.SUSPECT
    assert run.engine.screen(good, 3).verdict.kind is VerdictKind.ACCEPT, "asking alone taints nothing"
    run.engine.note(bad, asked)
    for direction in (FORWARD, BACKWARD):
        for stage in (1, 2):
            later = Frame(**{**vars(run.frame(1, direction, 40, -1.0)), "stage": stage})
            held = run.engine.screen(later, 3)
            assert held.verdict.kind is VerdictKind.INCONCLUSIVE and "tainted" in held.verdict.reason
            assert run.engine.note(later, held) is None
    assert run.engine.screen(good, 4).verdict.kind is VerdictKind.ACCEPT, "another microbatch is clean"
    run.engine.begin_step(41)
    assert run.engine.screen(good, 3).verdict.kind is VerdictKind.ACCEPT


def test_a_flagged_frame_never_updates_and_its_gradient_has_a_substitute() -> None:
    run = trained()
    baseline = run.engine.baselines[1, BACKWARD]
    before = baseline.state_dict()
    frame = run.frame(0, BACKWARD, 40, -1.0)
    flagged = run.engine.screen(frame, 3)
    assert flagged.verdict.kind is VerdictKind.SUSPECT
    run.engine.accept(1, BACKWARD, flagged)
    for name, tensor in baseline.state_dict().items():
        assert torch.allclose(before[name], tensor, rtol=0, atol=0, equal_nan=True), name
    assert run.engine.substitute(1) is baseline.mean
    assert Engine(PAPER, 4, 5).substitute(1) is None


def test_strikes_are_forgiven_after_a_run_of_clean_checks() -> None:
    def outcome(clean: int) -> Ban | None:
        run = trained()
        ban: Ban | None = None
        for step in range(40, 40 + 2 * (PAPER.paper_strikes - 1)):
            run.engine.begin_step(step)
            bad = run.frame(0, FORWARD, step, -1.0)
            ban = ban or run.engine.note(bad, run.engine.screen(bad, 0))
            for index in range(clean):
                good = run.frame(0, FORWARD, step, None)
                screening = run.engine.screen(good, 1 + index)
                run.engine.note(good, screening)
        return ban

    assert outcome(2) is not None
    assert outcome(PAPER.paper_forgive) is None


def test_k_follows_the_boundarys_own_flags_within_its_bounds() -> None:
    run = trained()
    baseline = run.engine.baselines[1, FORWARD]
    calm = baseline.k(0, PAPER.paper_k)
    assert PAPER.paper_k_min <= calm < PAPER.paper_k
    for step in range(40, 240):
        run.engine.begin_step(step)
        frame = run.frame(0, FORWARD, step, 50.0)
        run.engine.note(frame, run.engine.screen(frame, 0))
    assert baseline.k(0, PAPER.paper_k) == PAPER.paper_k_max


def test_the_paper_is_blind_where_we_say_it_is() -> None:
    """A free rider whose input looks like its output, and the loss of the last stage."""
    run = trained()
    loss = Frame(
        output=torch.full((B, T), 9.0), input=None, direction=FORWARD, stage=3, num_stages=4, step=40, worker=9
    )
    assert "on trust" in run.engine.screen(loss, 50).verdict.reason
    bad = Frame(**{**vars(loss), "output": torch.full((B, T), math.inf)})
    assert run.engine.screen(bad, 50).verdict.kind is VerdictKind.SUSPECT


# --- ablations


def test_ablations_by_name_and_in_json() -> None:
    assert Policy.named("paper:no-ema") == Policy(name="paper", paper_ema=False)
    assert Policy.named("paper:l1", warmup_frames=50) == Policy(name="paper", paper_metrics="l1", warmup_frames=50)
    assert Policy.named("paper:l2,sw:no-ema") == Policy(name="paper", paper_metrics="l2,sw", paper_ema=False)
    for name in ("none", "paper", "screen", "screen+confirm", "screen+confirm+audit"):
        assert Policy.named(name) == Policy(name=name)
    for policy in (Policy.named("paper:sfr:no-ema"), Policy()):
        assert Policy.from_json(policy.to_json()) == policy
    assert Policy.named("paper:no-ema").to_json()["paper_ema"] == 0
    for bad in (2, True, "no"):
        with pytest.raises(ConfigError, match="paper_ema"):
            Policy.from_json({"name": "paper", "paper_ema": bad})


@pytest.mark.parametrize("text", ["paper:l3", "paper:", "screen:no-ema", "papers", "", "paper:no-ema:x"])
def test_what_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Policy.named(text)


def test_without_an_average_the_last_frame_is_all_there_is() -> None:
    run = trained(Policy.named("paper:no-ema", warmup_frames=40, paper_warmup_steps=10))
    frame = run.frame(1, FORWARD, 40, None)
    run.engine.accept(1, FORWARD, run.engine.screen(frame, 9))
    mean = run.engine.baselines[1, FORWARD].mean
    assert mean is not None and frame.output is not None
    assert torch.allclose(torch.from_numpy(mean), frame.output.mean(0), atol=1e-6)


def test_one_distance_alone_sees_less_than_all_four() -> None:
    """Scaling keeps every sign, so the sign-flip ratio alone sees nothing."""
    whole, alone = trained(), trained(Policy.named("paper:sfr", warmup_frames=40, paper_warmup_steps=10))
    verdicts = [run.engine.screen(run.frame(0, FORWARD, 40, 3.0), 9).verdict for run in (whole, alone)]
    assert [v.kind for v in verdicts] == [VerdictKind.SUSPECT, VerdictKind.ACCEPT]
    assert [s.high_e6 is not None for s in verdicts[1].scores] == [False, False, True, False]
