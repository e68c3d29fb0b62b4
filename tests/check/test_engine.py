"""The engine as a whole: policies and bans, liveness, a restored state judges alike, nothing sent hurts."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel_market.errors import ProtocolError
from tests.check.helpers import D, Stage, T
from verifier.check import BACKWARD, FORWARD, Frame, Policy, Screening, VerdictKind
from verifier.check.engine import Ban, Engine

NAMES = ("none", "paper", "screen", "screen+confirm", "screen+confirm+audit")
REPLICAS = 4


def policy_of(name: str) -> Policy:
    return Policy(name=name, warmup_frames=24, window=32, paper_warmup_steps=5)


class Run:
    """Inner stages 1 and 2 of four; ``REPLICAS`` replicas each, one frame a direction and step; replica 0 of stage 1
    cheats from step 20 on."""

    def __init__(self, name: str, seed: int = 0) -> None:
        self.engine = Engine(policy_of(name), 4, 5)
        self.stage = Stage(seed)
        self.choice = random.Random(seed)
        self.bans: list[Ban] = []
        self.said: list[tuple[str, str]] = []

    def step(self, step: int) -> None:
        self.engine.begin_step(step)
        for microbatch in range(REPLICAS):
            for stage, direction in ((1, FORWARD), (2, FORWARD), (2, BACKWARD), (1, BACKWARD)):
                worker = stage * REPLICAS + microbatch
                frame = self.stage.frame(stage=stage, direction=direction, worker=worker, step=step)
                if worker == REPLICAS and step >= 20:
                    frame = opposite(frame)
                self.one(frame, microbatch)
        for replica in range(REPLICAS):
            mean = torch.randn(50, generator=self.stage.generator) + self.stage.common.flatten()[:50]
            found = self.engine.screen_gradients(1, {REPLICAS + replica: (mean, 1)})[REPLICAS + replica]
            self.engine.accept_gradient(1, REPLICAS + replica, found, mean)
            self.said.append((found.verdict.kind, found.verdict.reason))

    def one(self, frame: Frame, microbatch: int) -> Screening:
        if self.choice.random() < 0.05:
            self.engine.inconclusive(frame.worker, frame.stage)
        screening = self.engine.screen(frame, microbatch)
        self.said.append((screening.verdict.kind, screening.verdict.reason))
        ban = self.engine.note(frame, screening)
        if ban is not None:
            self.bans.append(ban)
            self.engine.convict(ban.worker)
        if screening.verdict.kind is VerdictKind.ACCEPT:
            self.engine.accept(frame.stage, frame.direction, screening)
        elif self.choice.random() < 0.3 and self.engine.policy.confirms:
            self.engine.cleared_by_recompute(frame.stage, frame.direction, screening)
        return screening


@pytest.mark.parametrize("name", NAMES)
def test_who_bans(name: str) -> None:
    run = Run(name)
    for step in range(40):
        run.step(step)
    bans = {ban.worker: ban for ban in reversed(run.bans)}  # the first of each: this run lets a convict go on
    if name in ("paper", "screen"):
        assert set(bans) == {REPLICAS}
        assert 23 < bans[REPLICAS].step <= 30 and bans[REPLICAS].reason
    else:
        assert not bans, "only a recompute convicts"
    assert any(kind is VerdictKind.SUSPECT for kind, _ in run.said) == (name != "none")


def test_a_convict_leaves_every_window_and_is_not_banned_again() -> None:
    run = Run("screen")
    for step in range(15):
        run.step(step)
    run.engine.convict(REPLICAS)
    frames, gradients = run.engine.baselines[1, FORWARD].workers, run.engine.gradients[1].workers
    for workers in (frames, gradients, run.engine.baselines[1, BACKWARD].workers):
        assert REPLICAS not in workers and REPLICAS + 1 in workers
    for step in range(15, 40):
        run.step(step)
    assert run.bans == []


def opposite(frame: Frame) -> Frame:
    assert frame.output is not None
    return replace(frame, output=-frame.output)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("at", [3, 23])
def test_a_restored_engine_judges_on_as_if_nothing_had_happened(name: str, at: int) -> None:
    run, again = Run(name), Run(name)
    for step in range(at):
        run.step(step)
        again.step(step)
    work = run.stage.frame(stage=1, direction=FORWARD, worker=REPLICAS, step=at)
    later = run.stage.frame(stage=2, direction=FORWARD, worker=2 * REPLICAS, step=at)
    again.stage.generator.set_state(run.stage.generator.get_state())
    for one in (
        run,
        again,
    ):  # in the middle of a step: a first worker was flagged for a piece of work, a second is next
        one.engine.begin_step(at)
        one.one(opposite(work), 0)
    state = {key: tensor.clone() for key, tensor in again.engine.state_dict().items()}
    assert all(tensor.is_contiguous() for tensor in state.values())
    again.engine = Engine.from_state_dict(policy_of(name), state)
    for one in (run, again):
        one.one(replace(opposite(work), worker=REPLICAS + 1), 0)
        for microbatch in (0, 1):
            one.one(opposite(later), microbatch)
    for step in range(at + 1, at + 15):
        run.step(step)
        again.step(step)
    assert run.said == again.said
    assert run.bans == again.bans
    for worker in range(4 * REPLICAS):
        assert run.engine.overloaded(worker) == again.engine.overloaded(worker)
    ours, theirs = run.engine.state_dict(), again.engine.state_dict()
    assert set(ours) == set(theirs)
    for key, tensor in ours.items():
        assert torch.allclose(tensor, theirs[key], rtol=0, atol=0, equal_nan=True), key


def test_a_state_that_does_not_fit_is_refused() -> None:
    state = Run("screen").engine.state_dict()
    broken: list[dict[str, torch.Tensor]] = [
        {},
        {k: v for k, v in state.items() if k != "engine.meta"},
        {k: v for k, v in state.items() if k != "test.capital"},
        {k: v for k, v in state.items() if not k.startswith("gradient.1")},
        state | {"engine.meta": state["engine.meta"] + 1},
        state | {"engine.due": torch.tensor([1, 2, 3], dtype=torch.uint8)},
        state | {"engine.rates": torch.zeros(3, dtype=torch.int64)},
        state | {"baseline.1.0.meta": state["baseline.2.0.meta"]},
    ]
    for one in broken:
        with pytest.raises(ProtocolError, match="baseline"):
            Engine.from_state_dict(policy_of("screen"), one)


# --- liveness


def counted(worst: int, others: list[int], frames: int = 60) -> Engine:
    engine, stage = Engine(policy_of("screen+confirm"), 4, 5), Stage(0)
    for worker, lost in enumerate([worst, *others]):
        for _ in range(frames):
            frame = stage.frame(worker=worker)
            engine.note(frame, Screening(engine.screen(frame, 0).verdict, engine.policy, worker))
        for _ in range(lost):
            engine.inconclusive(worker, 1)
    return engine


@pytest.mark.parametrize(
    ("worst", "others", "gets_none"),
    [
        (0, [0, 0, 0], False),
        (4, [0, 0, 0], False),  # too few to say
        (5, [0, 0, 0], True),
        (5, [2, 2, 2], False),  # not three times its peers'
        (20, [2, 2, 2], True),
        (20, [20, 20, 20], False),  # a fault that hit them all is nobody's
        (20, [2, 2, 50], True),  # one bad peer does not hide it
        (50, [], False),  # nobody else is there
    ],
)
def test_who_gets_no_more_work(worst: int, others: list[int], gets_none: bool) -> None:
    engine = counted(worst, others)
    assert engine.overloaded(0) is gets_none
    assert not engine.overloaded(99)


def test_losing_work_is_no_flag_and_bans_nobody() -> None:
    for name in ("paper", "screen"):
        engine, stage = Engine(policy_of(name), 4, 5), Stage(0)
        for step in range(100):
            engine.begin_step(step)
            frame = replace(stage.frame(worker=5), output=None)
            screening = engine.screen(frame, 0)
            assert screening.verdict.kind is VerdictKind.INCONCLUSIVE
            assert engine.note(frame, screening) is None
            engine.inconclusive(5, 1)


# --- whatever a worker sends

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
FILLS = [0.0, -0.0, 1.0, -1.0, 1e-45, 1e-38, 3e38, -3e38, 1e300, math.nan, math.inf, -math.inf]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor | None:
    if draw(st.integers(0, 19)) == 0:
        return None
    right = draw(st.booleans())
    shape = (2, T, D) if right else tuple(draw(st.lists(st.integers(0, 4), min_size=0, max_size=4)))
    fill = draw(st.one_of(st.none(), st.sampled_from(FILLS)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 3)))
    tensor = torch.randn(shape, generator=generator, dtype=torch.float64)
    if fill is not None:
        if draw(st.booleans()) or not tensor.numel():
            tensor = torch.full(shape, fill, dtype=torch.float64)
        else:
            tensor.view(-1)[draw(st.integers(0, tensor.numel() - 1))] = fill
    tensor = tensor.to(draw(st.sampled_from([torch.float32, *DTYPES])))
    form = draw(st.sampled_from(["plain", "strided", "transposed", "expanded", "graph"]))
    if form == "strided" and tensor.dim():
        tensor = tensor.repeat_interleave(2, dim=-1)[..., ::2]
    elif form == "transposed" and tensor.dim() >= 2:
        tensor = tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    elif form == "expanded" and tensor.dim() == 3 and tensor.shape[0]:
        tensor = tensor[:1].expand(tensor.shape)
    elif form == "graph" and tensor.is_floating_point():
        tensor = tensor.clone().requires_grad_()
    return tensor


@pytest.fixture(scope="module")
def states() -> dict[str, dict[str, torch.Tensor]]:
    """A young and a trained engine of each policy, as their states."""
    found = {}
    for name in NAMES:
        run = Run(name)
        for step in range(14):
            if step in (1, 13):
                found[f"{name} {step}"] = {k: v.clone() for k, v in run.engine.state_dict().items()}
            run.step(step)
    return found


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(NAMES), st.sampled_from([1, 13]), tensors(), tensors(), st.integers(0, 3), st.integers(0, 1))
def test_anything_gets_a_verdict_with_a_reason_and_poisons_nothing(
    states: dict[str, dict[str, torch.Tensor]],
    name: str,
    at: int,
    output: torch.Tensor | None,
    given_: torch.Tensor | None,
    stage: int,
    direction: int,
) -> None:
    policy = policy_of(name)
    engine = Engine.from_state_dict(policy, states[f"{name} {at}"])
    engine.begin_step(14)
    frame = Frame(
        output=output, input=given_, direction=direction, stage=stage, num_stages=4, step=14, worker=stage * REPLICAS
    )
    screening = engine.screen(frame, 0)
    verdict = screening.verdict
    assert verdict.reason
    assert verdict.kind in (VerdictKind.ACCEPT, VerdictKind.SUSPECT, VerdictKind.INCONCLUSIVE)
    assert all(type(score.value_e6) is int for score in verdict.scores)
    if output is not None and output.numel() and output.is_floating_point() and not torch.isfinite(output).all():
        assert verdict.kind is not VerdictKind.ACCEPT or frame.is_silent
    engine.note(frame, screening)
    if verdict.kind is VerdictKind.ACCEPT:
        engine.accept(stage, direction, screening)
    for (where, way), baseline in engine.baselines.items():
        for array in (baseline.mean, baseline.change):
            assert array is None or bool(torch.isfinite(torch.from_numpy(array)).all())
        assert not bool(torch.isinf(torch.from_numpy(baseline.window)).any()), (where, way)
    if verdict.kind is not VerdictKind.ACCEPT:
        untouched = Engine.from_state_dict(policy, states[f"{name} {at}"]).baselines[stage, direction].state_dict()
        for key, tensor in engine.baselines[stage, direction].state_dict().items():
            if not (name == "paper" and key == "k_e6"):  # k follows the flags there, within its bounds
                assert torch.allclose(tensor, untouched[key], rtol=0, atol=0, equal_nan=True), key


def test_a_boundary_that_jumps_condemns_nobody() -> None:
    run = Run("screen")
    for step in range(20):
        run.step(step)
    flagged = 0
    for step in range(20, 60):
        run.engine.begin_step(step)
        for replica in range(REPLICAS):
            frame = run.stage.frame(worker=REPLICAS + replica, step=step)
            assert frame.output is not None
            found = run.one(replace(frame, output=3 * frame.output), replica)
            flagged += found.verdict.kind is VerdictKind.SUSPECT
    assert flagged == 40 * REPLICAS and not run.bans


@pytest.mark.parametrize("two_were_flagged", [False, True])
def test_what_is_made_from_a_doubtful_tensor_is_held_against_nobody(two_were_flagged: bool) -> None:
    """Policy ``screen`` lets the second answer to the same work through although it was flagged as well."""
    run = Run("screen")
    for step in range(20):
        run.step(step)
    later = 2 * REPLICAS
    for step in range(20, 45):
        run.engine.begin_step(step)
        for worker in (REPLICAS, REPLICAS + 1) if two_were_flagged else (REPLICAS,):
            run.one(opposite(run.stage.frame(worker=worker, step=step)), 0)
        run.one(opposite(run.stage.frame(stage=2, worker=later, step=step)), 0)
        for replica in range(1, REPLICAS):
            run.one(run.stage.frame(stage=2, worker=later + replica, step=step), replica)
    assert (later in {ban.worker for ban in run.bans}) != two_were_flagged
