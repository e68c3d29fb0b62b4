"""When honest frames move for everybody the fences follow at once; a worker alone moves nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from verifier.check.engine import CALM_STEPS, MOVED_WORKERS, SETTLED_FRAMES, Engine
from verifier.check.frame import BACKWARD, FORWARD, Frame
from verifier.check.policy import Policy
from verifier.check.verdict import VerdictKind
from verifier.check.watch import is_far

POLICY = Policy()
STAGE = 1
SETTLED = POLICY.warmup_frames + SETTLED_FRAMES


def frame(worker: int, scale: float = 1.0, sequences: int = 4, step: int = 0) -> Frame:
    generator = torch.Generator().manual_seed(worker + 100 * step)
    x = torch.randn(sequences, 8, 16, generator=generator)
    y = x + 0.5 * torch.randn(sequences, 8, 16, generator=generator)
    return Frame(output=scale * y, input=x, direction=FORWARD, stage=STAGE, num_stages=4, step=step, worker=worker)


@pytest.fixture
def engine() -> Engine:
    """Past warm-up forward at two boundaries; nothing was ever seen elsewhere."""
    found = Engine(POLICY, 4, 7)
    for step in range(SETTLED):
        found.begin_step(step)
        for stage in (STAGE, STAGE + 1):
            one = replace(frame(step % 8, step=step), stage=stage)
            found.accept(stage, FORWARD, found.screen(one, 0))
    found.begin_step(SETTLED)
    return found


def clear(engine: Engine, workers: range, scale: float = 1.5) -> None:
    for worker in workers:
        screening = engine.screen(frame(worker, scale, step=500), worker)
        assert screening.crossed, "the move is seen"
        engine.cleared_by_recompute(STAGE, FORWARD, screening)


def test_three_workers_cleared_in_a_step_widen_every_fence(engine: Engine) -> None:
    clear(engine, range(MOVED_WORKERS - 1))
    assert not engine.has_moved(STAGE)
    assert engine.screen(frame(5, 1.5, step=501), 5).verdict.kind is VerdictKind.SUSPECT
    clear(engine, range(MOVED_WORKERS - 1, MOVED_WORKERS))
    assert [engine.has_moved(stage) for stage in range(4)] == [False, True, True, False]
    moved = engine.screen(frame(5, 1.5, step=501), 5)
    assert moved.verdict.kind is VerdictKind.ACCEPT and moved.in_warmup


def test_what_no_honest_move_does_is_still_seen(engine: Engine) -> None:
    clear(engine, range(MOVED_WORKERS))
    for wrong in (frame(5, 0.0), frame(5, -1.0), frame(5, 100.0), replace(frame(5), output=frame(5).input)):
        assert engine.screen(wrong, 5).verdict.kind is VerdictKind.SUSPECT


def test_one_worker_again_and_again_moves_nothing(engine: Engine) -> None:
    for _ in range(10):
        clear(engine, range(1))
    assert not engine.has_moved(STAGE)


def test_steps_do_not_add_up(engine: Engine) -> None:
    for step in range(10):
        engine.begin_step(1000 + step)
        clear(engine, range(step % 2, step % 2 + MOVED_WORKERS - 1))
    assert not engine.has_moved(STAGE)


def test_the_fences_close_when_the_window_is_new(engine: Engine) -> None:
    clear(engine, range(MOVED_WORKERS))
    for step in range(POLICY.window):
        assert engine.has_moved(STAGE)
        one = frame(step % 8, 1.5, step=2000 + step)
        engine.accept(STAGE, FORWARD, engine.screen(one, 0))
    assert not engine.has_moved(STAGE)
    assert engine.screen(frame(3, 1.5, step=3000), 0).verdict.kind is VerdictKind.ACCEPT, "the move is learnt"


def test_a_conviction_takes_the_fences_back_and_no_move_is_believed_for_a_while(engine: Engine) -> None:
    """Frames made from a cheat's are unlike others though honest; they must not open the fences for its accomplices."""
    clear(engine, range(MOVED_WORKERS))
    engine.convict(7)
    assert not any(engine.has_moved(stage) for stage in range(4))
    copy = Engine.from_state_dict(POLICY, engine.state_dict())
    for one in (engine, copy):
        one.begin_step(SETTLED + CALM_STEPS - 1)
        clear(one, range(MOVED_WORKERS))
        assert not one.has_moved(STAGE)
        one.begin_step(SETTLED + CALM_STEPS)
        clear(one, range(MOVED_WORKERS))
        assert one.has_moved(STAGE)


def test_young_windows_move_nothing(engine: Engine) -> None:
    for baseline in engine.baselines.values():
        baseline.frames = SETTLED - 1
    clear(engine, range(MOVED_WORKERS))
    assert not engine.has_moved(STAGE)


def test_once_one_is_cleared_the_suspects_of_others_get_no_replay(engine: Engine) -> None:
    """Whether honest frames moved must not wait for ten more flags."""
    near = [engine.screen(frame(worker, 1.14, step=500), worker) for worker in range(3)]
    assert all(one.crossed for one in near) and not any(is_far(one) for one in near)
    assert not any(engine.at_once(one) for one in near)
    engine.cleared_by_recompute(STAGE, FORWARD, near[0])
    assert [engine.at_once(one) for one in near] == [False, True, True]
    assert not engine.at_once(engine.screen(frame(3, step=500), 3)), "inside its fences"
    engine.begin_step(SETTLED + 1)
    assert not any(engine.at_once(one) for one in near)


def test_the_state_goes_round(engine: Engine) -> None:
    clear(engine, range(MOVED_WORKERS))
    copy = Engine.from_state_dict(POLICY, engine.state_dict())
    assert copy.has_moved(STAGE)
    assert copy.baselines[STAGE, FORWARD].moved_until == engine.baselines[STAGE, FORWARD].moved_until > 0
    assert copy.baselines[STAGE, BACKWARD].moved_until == 0


@pytest.mark.parametrize(("sequences", "wider"), [(1, 1.74), (2, 1.32), (4, 1.0), (8, 1.0)])
def test_few_sequences_have_wider_fences(engine: Engine, sequences: int, wider: float) -> None:
    def width(found: Frame) -> float:
        score = next(s for s in engine.screen(found, 0).verdict.scores if s.metric == "gain")
        assert score.low_e6 is not None and score.high_e6 is not None
        return score.high_e6 - score.low_e6

    # Half a spread of the reach is not multiplied.
    assert width(frame(0, sequences=sequences)) / width(frame(0)) == pytest.approx((0.5 + 3.5 * wider) / 4, rel=0.02)
