"""The screen on make-believe frames: what it flags, what it lets through, and what it must never do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.check.helpers import BACKWARD, FORWARD, POLICY, B, D, Stage, T, trained, trained_loss
from verifier.check import (
    Baseline,
    Frame,
    Policy,
    VerdictKind,
    accept,
    cleared_by_recompute,
    forget,
    screen,
    warm,
)
from verifier.check.baseline import FRAME_METRICS, make_directions


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    warm()


def snapshot(baseline: Baseline) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in baseline.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and torch.equal(a[k].nan_to_num(-77.0), b[k].nan_to_num(-77.0)) for k in a
    )


def noise(frame: Frame, strength: float) -> torch.Tensor:
    assert frame.output is not None
    g = torch.Generator().manual_seed(9)
    return frame.output + strength * frame.output.std() * torch.randn(frame.output.shape, generator=g)


ATTACKS = {
    "flip": lambda f: -f.output,
    "identity": lambda f: f.input,
    "noise": lambda f: noise(f, 1.0),
    "zeros": lambda f: torch.zeros_like(f.output),
    "ones": lambda f: torch.ones_like(f.output),
    "double": lambda f: 2 * f.output,
    "tenth": lambda f: 0.1 * f.output,
    "other sequences": lambda f: f.output.roll(1, 0),
    "swapped channels": lambda f: f.output.flip(2),
}


@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_are_suspect_and_say_which_fence(name: str, direction: int) -> None:
    stage = Stage()
    baseline = trained(stage, direction=direction)
    before = snapshot(baseline)
    for _ in range(5):
        frame = stage.frame(direction=direction)
        verdict = screen(replace(frame, output=ATTACKS[name](frame)), baseline, POLICY).verdict
        assert verdict.kind is VerdictKind.SUSPECT
        assert verdict.reason
        assert any(s.crossed for s in verdict.scores), verdict.reason
    assert same(before, snapshot(baseline)), "a screening changed the baseline"


def test_honest_frames_are_accepted() -> None:
    stage = Stage(1)
    baseline = trained(stage)
    flagged = 0
    for index in range(300):
        screening = screen(stage.frame(worker=3 + index % 3), baseline, POLICY)
        flagged += screening.verdict.kind is not VerdictKind.ACCEPT
        accept(baseline, screening)
    assert flagged <= 3


def test_losses_have_fences_too() -> None:
    stage = Stage()
    baseline = trained_loss(stage)
    honest = stage.loss_frame()
    assert honest.output is not None
    assert screen(honest, baseline, POLICY).verdict.kind is VerdictKind.ACCEPT
    for bad, word in (
        (-honest.output, "negative"),
        (torch.zeros_like(honest.output), "vanished"),
        (honest.output * 3, "mean"),
        (honest.output * 0.3, "mean"),
        (torch.full_like(honest.output, 1.1), "std"),
    ):
        verdict = screen(replace(honest, output=bad), baseline, POLICY).verdict
        assert verdict.kind is VerdictKind.SUSPECT
        assert word in verdict.reason


@pytest.mark.parametrize("name", ["identity", "flip", "zeros"])
def test_absolute_checks_hold_from_the_very_first_frame(name: str) -> None:
    frame = Stage().frame()
    verdict = screen(replace(frame, output=ATTACKS[name](frame)), Baseline.new(1, 4, FORWARD, 5), POLICY).verdict
    assert verdict.kind is VerdictKind.SUSPECT


def test_a_hostile_third_does_not_hide_itself_in_warmup() -> None:
    """Noise has no absolute sign; it must be found by wide fences although a third of the window is noise."""
    stage = Stage()
    baseline = Baseline.new(1, 4, FORWARD, 5)
    flagged, sent = 0, 0
    for index in range(24):
        frame = stage.frame(worker=3 + index % 3)
        if index % 3 == 0:
            frame = replace(frame, output=noise(frame, 1.0))
            sent += 1
        screening = screen(frame, baseline, POLICY)
        flagged += screening.verdict.kind is VerdictKind.SUSPECT
        accept(baseline, screening)  # as if nobody confirmed
    assert screening.in_warmup
    assert flagged >= sent - 3


def test_poisoned_windows_recover_when_the_convict_is_forgotten() -> None:
    stage = Stage()
    baseline = Baseline.new(1, 4, FORWARD, 5)
    for index in range(60):
        frame = stage.frame(worker=3 + index % 3)
        if index % 3 == 0:
            frame = replace(frame, output=noise(frame, 0.5))
        accept(baseline, screen(frame, baseline, POLICY))
    hostile = int((baseline.workers == 3).sum())
    assert hostile
    assert forget(baseline, 3) == hostile
    assert forget(baseline, 3) == 0
    assert not (baseline.workers == 3).any()
    frame = stage.frame()
    cosine = screen(frame, baseline, POLICY).verdict.scores[FRAME_METRICS.index("cosine")]
    assert not cosine.crossed
    bad = screen(replace(frame, output=noise(frame, 0.5)), baseline, POLICY).verdict
    assert bad.scores[FRAME_METRICS.index("cosine")].crossed


def test_fences_follow_an_honest_drift() -> None:
    """Gradients shrink by 2 % a frame: e^4 over the run, and hardly a flag."""
    stage = Stage(3)
    baseline = Baseline.new(1, 4, BACKWARD, 5)
    flagged = 0
    for index in range(200):
        frame = stage.frame(direction=BACKWARD, worker=3 + index % 3)
        assert frame.output is not None and frame.input is not None
        scale = 0.98**index
        frame = replace(frame, output=frame.output * scale, input=frame.input * scale)
        screening = screen(frame, baseline, POLICY)
        flagged += screening.verdict.kind is not VerdictKind.ACCEPT
        accept(baseline, screening)
    assert flagged <= 4


def test_a_screening_stays_valid_while_others_are_accepted() -> None:
    stage = Stage()
    one, other = trained(stage, frames=30), Baseline.new(1, 4, FORWARD, 5)
    other = Baseline.from_state_dict(one.state_dict())
    frames = [stage.frame() for _ in range(3)]
    early = screen(frames[0], one, POLICY)
    copy = early.values
    for frame in frames[1:]:
        accept(one, screen(frame, other, POLICY))
    assert early.values == copy
    accept(one, early)
    assert one.frames == 33
    assert one.window[-1].tolist() == list(early.values)


def test_accept_is_deterministic_and_state_survives_a_checkpoint() -> None:
    a, b = trained(Stage()), trained(Stage())
    assert same(snapshot(a), snapshot(b))
    back = Baseline.from_state_dict(snapshot(a))
    assert same(snapshot(back), snapshot(a))
    frame = Stage(8).frame()
    assert screen(frame, back, POLICY).verdict == screen(frame, a, POLICY).verdict
    empty = Baseline.new(0, 4, FORWARD, 2)
    assert same(snapshot(Baseline.from_state_dict(snapshot(empty))), snapshot(empty))


def test_state_goes_through_safetensors() -> None:
    from safetensors.torch import load, save

    baseline = trained(Stage())
    assert same(snapshot(Baseline.from_state_dict(load(save(baseline.state_dict())))), snapshot(baseline))


def test_a_broken_state_is_refused_by_name() -> None:
    from sentinel_market.errors import ProtocolError

    state = trained(Stage()).state_dict()
    for change in (
        {"meta": torch.zeros(6, dtype=torch.int64)},
        {"meta": torch.zeros(2, dtype=torch.int64)},
        {"window": torch.zeros(3, 2, dtype=torch.float64)},
        {"k_e6": torch.zeros(1, dtype=torch.int64)},
        {"mean": torch.zeros(3)},
    ):
        with pytest.raises(ProtocolError, match="baseline"):
            Baseline.from_state_dict(state | change)
    with pytest.raises(ProtocolError, match="baseline"):
        Baseline.from_state_dict({})


def test_k_moves_only_by_recompute_a_little_and_not_twice_by_one_worker() -> None:
    stage = Stage()
    baseline = trained(stage)
    frame = stage.frame(worker=3)
    assert frame.output is not None
    flagged = screen(replace(frame, output=2 * frame.output), baseline, POLICY)
    assert flagged.crossed
    before = [baseline.k(i, POLICY.k_init) for i in range(len(FRAME_METRICS))]
    assert before == [POLICY.k_init] * len(FRAME_METRICS)
    assert cleared_by_recompute(baseline, flagged)
    for index in range(len(FRAME_METRICS)):
        factor = 1.05 if index in flagged.crossed else 1.0
        assert baseline.k(index, POLICY.k_init) == pytest.approx(POLICY.k_init * factor)
    assert not cleared_by_recompute(baseline, flagged), "the same worker within the window"
    assert not cleared_by_recompute(baseline, replace(flagged, worker=4)), "at most once in 100 frames"
    for _ in range(100):
        accept(baseline, screen(stage.frame(), baseline, POLICY))
    assert cleared_by_recompute(baseline, replace(flagged, worker=4))
    for _ in range(40):
        baseline.frames += 100
        cleared_by_recompute(baseline, flagged)
    assert max(baseline.k(i, POLICY.k_init) for i in flagged.crossed) == POLICY.k_max
    for _ in range(60):
        baseline.frames += 10_000
        cleared_by_recompute(baseline, flagged)
    assert min(baseline.k(i, POLICY.k_init) for i in flagged.crossed) == POLICY.k_min


def test_policy_none_looks_at_structure_only() -> None:
    policy = Policy(name="none")
    frame = Stage().frame()
    baseline = trained(Stage())
    assert frame.output is not None
    screening = screen(replace(frame, output=-frame.output), baseline, policy)
    assert screening.verdict.kind is VerdictKind.ACCEPT
    accept(baseline, screening)
    assert baseline.frames == 60, "nothing was measured, so nothing is learnt"
    broken = frame.output.clone()
    broken[0, 0, 0] = float("nan")
    assert screen(replace(frame, output=broken), baseline, policy).verdict.kind is VerdictKind.SUSPECT


def test_silent_stage_returns_nothing_and_is_accepted() -> None:
    frame = Frame(output=None, input=torch.ones(B, T, D), direction=BACKWARD, stage=0, num_stages=4, step=0)
    baseline = Baseline.new(0, 4, BACKWARD, 5)
    screening = screen(frame, baseline, POLICY)
    assert screening.verdict.kind is VerdictKind.ACCEPT
    accept(baseline, screening)
    assert baseline.frames == 0
    assert screen(replace(frame, output=torch.ones(B, T, D)), baseline, POLICY).verdict.kind is VerdictKind.SUSPECT


def test_another_batch_size_is_the_same_boundary() -> None:
    stage = Stage()
    baseline = trained(stage)
    frame = stage.frame()
    assert frame.output is not None and frame.input is not None
    screening = screen(replace(frame, output=frame.output[:3], input=frame.input[:3]), baseline, POLICY)
    assert not any(s.crossed for s in screening.verdict.scores if s.metric in ("cosine", "change", "gain"))
    accept(baseline, screening)
    assert baseline.mean is not None and baseline.mean.shape == (T, D)


def test_non_contiguous_tensors_give_the_same_verdict() -> None:
    stage = Stage()
    baseline = trained(stage)
    frame = stage.frame()
    assert frame.output is not None and frame.input is not None
    turned = replace(
        frame,
        output=frame.output.transpose(0, 2).contiguous().transpose(0, 2),
        input=frame.input.transpose(0, 1).contiguous().transpose(0, 1),
    )
    assert screen(turned, baseline, POLICY).verdict == screen(frame, baseline, POLICY).verdict


SPECIAL = [
    float("nan"),
    float("inf"),
    float("-inf"),
    0.0,
    -0.0,
    1e-45,
    1.1754942e-38,
    torch.finfo(torch.float32).min,
    torch.finfo(torch.float32).max,
    1.0,
    -1.0,
    1e-30,
]


@st.composite
def hostile(draw: st.DrawFn) -> torch.Tensor | None:
    """Anything that can come out of ``decode``, and some that can not."""
    shape = draw(
        st.sampled_from(
            [
                None,
                (B, T, D),
                (B, T, D),
                (B, T, D),
                (B, T),
                (0, T, D),
                (B, T, 0),
                (D,),
                (),
                (1, 1, 1),
                (B, 2, D),
                (1, 1, 1, 1),
            ]
        )
    )
    if shape is None:
        return None
    kind = draw(
        st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8])
    )
    fill = draw(st.sampled_from(SPECIAL))
    seed = draw(st.integers(0, 3))
    if not kind.is_floating_point:
        return torch.ones(shape, dtype=kind)
    tensor = torch.full(shape, fill, dtype=torch.float32)
    how = draw(st.sampled_from(["all", "one", "mixed", "scaled"]))
    random = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    if how == "one" and tensor.numel():
        tensor = random.clone()
        tensor.view(-1)[-1] = fill
    elif how == "mixed":
        tensor = torch.where(random > 0, tensor, random)
    elif how == "scaled":
        tensor = random * fill
    tensor = tensor.to(kind)
    return tensor.transpose(0, -1).contiguous().transpose(0, -1) if tensor.dim() > 1 and seed == 1 else tensor


@pytest.fixture(scope="module")
def baselines() -> list[Baseline]:
    return [
        Baseline.new(1, 4, FORWARD, 5),
        trained(Stage(), frames=5),
        trained(Stage()),
        trained(Stage(), boundary=3, direction=BACKWARD),
        trained_loss(Stage()),
    ]


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_hostile_tensors_get_a_verdict_and_poison_nothing(data: st.DataObject, baselines: list[Baseline]) -> None:
    base = data.draw(st.sampled_from(baselines))
    frame = Frame(
        output=data.draw(hostile()),
        input=data.draw(hostile()),
        direction=base.direction,
        stage=base.stage,
        num_stages=4,
        step=0,
    )
    before = snapshot(base)
    screening = screen(frame, base, POLICY)
    assert screening.verdict.reason
    assert screening.verdict.kind in (VerdictKind.ACCEPT, VerdictKind.SUSPECT, VerdictKind.INCONCLUSIVE)
    assert same(before, snapshot(base))
    if frame.output is not None and frame.output.is_floating_point() and not frame.output.isfinite().all():
        assert screening.verdict.kind is not VerdictKind.ACCEPT
    # even if a recompute cleared it: whatever is folded in is finite
    copy = Baseline.from_state_dict(before)
    cleared_by_recompute(copy, screening)
    accept(copy, screening)
    for tensor in (copy.mean, copy.change):
        assert tensor is None or np.isfinite(tensor).all()
    assert not np.isinf(copy.window).any()
    honest = screen(Stage(4).frame(), trained_copy(copy), POLICY) if copy.stage == 1 else None
    assert honest is None or honest.verdict.reason


def trained_copy(baseline: Baseline) -> Baseline:
    return Baseline.from_state_dict(baseline.state_dict())


def test_directions_are_unit_vectors_that_depend_on_the_seed_only() -> None:
    a = make_directions(64, 3)
    assert a.shape == (64, 8) and a.dtype == np.float32
    assert np.allclose(np.linalg.norm(a, axis=0), 1, atol=1e-6)
    assert np.array_equal(a, make_directions(64, 3))
    assert not np.allclose(a, make_directions(64, 4))
    gram = a.T @ a - np.eye(8)
    assert np.abs(gram).max() < 0.6


def test_baseline_refuses_a_boundary_that_is_none() -> None:
    for stage, direction in ((4, FORWARD), (-1, FORWARD), (1, 2)):
        with pytest.raises(ValueError, match="boundary"):
            Baseline.new(stage, 4, direction, 0)


def test_the_end_of_the_float_range_teaches_nothing() -> None:
    largest = torch.finfo(torch.float32).max
    frame = replace(Stage().frame(), output=torch.full((3, T, D), largest), input=torch.full((3, T, D), -largest))
    for baseline in (Baseline.new(1, 4, FORWARD, 5), trained(Stage())):
        screening = screen(frame, baseline, POLICY)
        accept(baseline, screening)
        accept(baseline, screening)
        assert baseline.mean is None or np.isfinite(baseline.mean).all()
        assert baseline.change is not None and np.isfinite(baseline.change).all()
        assert not np.isinf(baseline.window).any()


def test_zeros_are_seen_without_a_counterpart() -> None:
    frame = replace(Stage().frame(stage=3, direction=BACKWARD), input=None)
    assert frame.output is not None
    zeros = replace(frame, output=torch.zeros_like(frame.output))
    verdict = screen(zeros, Baseline.new(3, 4, BACKWARD, 5), POLICY).verdict
    assert verdict.kind is VerdictKind.SUSPECT and verdict.reason.startswith("vanished")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_broken_input_is_nobodys_fault(value: float) -> None:
    frame = Stage().frame()
    assert frame.input is not None
    given = frame.input.clone()
    given[0, 3, 1] = value
    for baseline in (Baseline.new(1, 4, FORWARD, 5), trained(Stage())):
        verdict = screen(replace(frame, input=given), baseline, POLICY).verdict
        assert verdict.kind is VerdictKind.INCONCLUSIVE and verdict.reason.startswith("input")


def test_one_workers_clearances_count_once_a_window() -> None:
    baseline = trained(Stage())
    flagged = screen(replace(Stage().frame(worker=3), output=torch.zeros(B, T, D)), baseline, POLICY)
    first, second = replace(flagged, crossed=(0,)), replace(flagged, crossed=(1,))
    assert cleared_by_recompute(baseline, first)
    assert not cleared_by_recompute(baseline, second)
    assert cleared_by_recompute(baseline, replace(second, worker=4))
    baseline.frames += POLICY.window
    assert cleared_by_recompute(baseline, replace(flagged, crossed=(2,)))


def test_an_ema_at_the_end_of_the_float_range_stays_finite() -> None:
    baseline = trained(Stage())
    assert baseline.mean is not None
    screening = screen(Stage().frame(), baseline, POLICY)
    before = baseline.mean.copy()
    accept(baseline, replace(screening, mean=np.full_like(before, np.inf)))
    assert np.array_equal(baseline.mean, before)
    fresh = Baseline.new(1, 4, FORWARD, 5)
    accept(fresh, replace(screening, mean=np.full_like(before, np.inf)))
    assert fresh.mean is None


@pytest.mark.parametrize("kind", [torch.int64, torch.uint8])
def test_integers_are_no_activation(kind: torch.dtype) -> None:
    frame = Stage().frame()
    assert frame.output is not None
    verdict = screen(replace(frame, output=frame.output.to(kind)), Baseline.new(1, 4, FORWARD, 5), POLICY).verdict
    assert verdict.kind is VerdictKind.SUSPECT and verdict.reason.startswith("dtype")
    verdict = screen(replace(frame, input=frame.output.to(kind)), Baseline.new(1, 4, FORWARD, 5), POLICY).verdict
    assert verdict.kind is VerdictKind.INCONCLUSIVE


def test_half_precision_frames_are_screened_like_others() -> None:
    stage = Stage()
    baseline = trained(stage)
    frame = stage.frame()
    assert frame.output is not None
    kinds = [
        screen(replace(frame, output=frame.output.to(d)), baseline, POLICY).verdict.kind
        for d in (torch.bfloat16, torch.float16)
    ]
    assert kinds == [VerdictKind.ACCEPT, VerdictKind.ACCEPT]
