"""What holds for every shipped attack, whatever the frame: finite, same kind, arguments untouched, replays agree."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sentinel_market.attacks import BACKWARD, FORWARD, AttackContext, ScheduledAttack, directions, get_attack, ladder
from sentinel_market.attacks import names as shipped
from sentinel_market.attacks.lazy import round_mantissa
from sentinel_market.models.config import ModelConfig
from sentinel_market.models.init import init_flat
from sentinel_market.models.sketch import Sketch
from sentinel_market.models.stage import Stage
from worker.compute import StageRunner

FRAMES = [name for name in shipped() if directions(name) == ("forward", "backward")]
PARALLEL = [name for name in shipped() if directions(name) == ("gradient",)]
CONFIG = ModelConfig(dim=16, num_layers=4, num_heads=2, num_kv_heads=2, ffn_dim=32, seq_len=8)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def context_of(attack: ScheduledAttack, step: int, direction: int = FORWARD, **more: object) -> AttackContext:
    plain = AttackContext(
        input=None, incoming=None, step=step, direction=direction, stage=1, num_stages=3,
        rng=attack.rng, memory=attack.memory, microbatch=0,
    )  # fmt: skip
    return replace(plain, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FRAMES)
@settings(max_examples=12, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=3),
    size=st.sampled_from([0.0, 1e-40, 1.0, 3e38]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    way=st.sampled_from([FORWARD, BACKWARD]),
)
def test_any_shape_and_size_gives_a_finite_frame_and_leaves_the_arguments(
    name: str, shapes: list[tuple[int, int, int]], size: float, dtype: torch.dtype, way: int
) -> None:
    attack = get_attack(f"{name}:direction=both", seed=3, onset=2)
    for step, shape in enumerate(s for s in shapes for _ in range(2)):
        x = (draw(step, *shape).clamp(-1, 1) * size).to(dtype)
        given_, incoming = draw(step + 50, *shape).to(dtype), draw(step + 90, *shape).to(dtype)
        kept = [t.clone() for t in (x, given_, incoming)]
        sent = attack.apply(x, context_of(attack, step, way, input=given_, incoming=incoming))
        assert sent.shape == x.shape and sent.dtype == dtype and sent.isfinite().all()
        assert all(torch.equal(a, b) for a, b in zip((x, given_, incoming), kept, strict=True))
        assert step >= 2 or sent is x


KEEP_LOSSES = ("invisible_noise", "ema_mimic", "delta_mimic", "threshold")


@pytest.mark.parametrize("name", shipped())
@settings(max_examples=8, deadline=None)
@given(
    batch=st.integers(1, 4),
    length=st.integers(1, 9),
    size=st.sampled_from([0.0, 1e-40, 1.0, 3e38]),
    consistent=st.booleans(),
)
def test_a_loss_stays_finite_too_and_the_mimics_leave_it(
    name: str, batch: int, length: int, size: float, consistent: bool
) -> None:
    spec = f"{name}:direction=both" if name in FRAMES else name
    attack = get_attack(spec, seed=3, onset=2)
    for step in range(5):
        loss = draw(step, batch if consistent else 1 + step % batch, length).clamp(-1, 1).abs() * size
        kept, given_ = loss.clone(), draw(step + 50, batch, length, 4)
        sent = attack.apply(loss, context_of(attack, step, stage=2, input=given_))
        assert sent.shape == loss.shape and sent.dtype == loss.dtype and sent.isfinite().all()
        assert torch.equal(loss, kept)
        if step < 2 or name in KEEP_LOSSES or name in PARALLEL:
            assert sent is loss


@pytest.mark.parametrize("name", FRAMES)
def test_a_forward_attack_leaves_the_loss_of_the_last_stage(name: str) -> None:
    attack = get_attack(name, seed=3, onset=0)
    loss = draw(0, 2, 5)
    assert attack.apply(loss, context_of(attack, 4, stage=2)) is loss


@pytest.mark.parametrize("name", FRAMES)
def test_between_the_steps_of_a_duty_cycle_a_worker_is_honest_to_the_bit(name: str) -> None:
    attack = get_attack(f"{name}:duty=4", seed=3, onset=2)
    cheated = []
    for step in range(16):
        x = draw(step, 2, 3, 4)
        sent = attack.apply(x, context_of(attack, step, input=draw(step + 50, 2, 3, 4)))
        if sent is not x:
            cheated.append(step)
    assert set(cheated) <= {2, 6, 10, 14} and (cheated or name == "threshold")


@pytest.mark.parametrize("name", FRAMES)
def test_one_broken_honest_frame_does_not_stay_in_what_a_worker_learned(name: str) -> None:
    attack = get_attack(name, seed=3, onset=4)
    broken = torch.full((2, 3, 4), float("nan"))
    for step, x in enumerate((broken, torch.full((2, 3, 4), float("inf")), draw(2, 2, 3, 4), draw(3, 2, 3, 4))):
        attack.apply(x, context_of(attack, step, input=broken))
    for step in range(4, 40):
        sent = attack.apply(draw(step, 2, 3, 4), context_of(attack, step, input=draw(step + 50, 2, 3, 4)))
        assert sent.isfinite().all()


@pytest.mark.parametrize(
    "spec", ["noise", "random_value", "random_sign", "drift", "zeros", "bias", "scale", "sign_flip"]
)
def test_a_replay_by_an_accomplice_gives_the_same_false_frame(spec: str) -> None:
    first, second = (get_attack(f"{spec}:share_seed=9", seed=seed, onset=5) for seed in (1, 2))
    x = draw(0, 2, 3, 4)
    second.apply(draw(1, 2, 3, 4), context_of(second, 6, microbatch=3))  # the other one did other work before
    found = [attack.apply(x, context_of(attack, 8, microbatch=1)) for attack in (first, second)]
    assert torch.equal(*found) and not torch.equal(found[0], x)


def test_workers_that_are_not_accomplices_drift_apart() -> None:
    x = draw(0, 2, 3, 64)
    a, b = (get_attack("drift:rate=1", seed=seed, onset=0) for seed in (1, 2))
    offsets = [(attack.apply(x, context_of(attack, 3)) - x).flatten() for attack in (a, b)]
    assert abs(float(torch.corrcoef(torch.stack(offsets))[0, 1])) < 0.6


def test_the_band_is_that_of_each_element_and_wider_for_a_higher_percentile() -> None:
    spread = torch.tensor([0.0, 0.1, 10.0])
    largest = {}
    for percentile in (90, 99):
        attack = get_attack(f"invisible_noise:percentile={percentile},strength=8", seed=1, onset=16)
        for step in range(16):
            attack.apply(draw(step, 4, 32, 3) * spread, context_of(attack, step))
        x = torch.zeros(4, 32, 3)
        moved = (attack.apply(x, context_of(attack, 16)) - x).abs()
        assert not moved[..., 0].any()
        assert moved[..., 1].max() < 0.5 < moved[..., 2].max()
        largest[percentile] = float(moved[..., 2].mean())
    assert largest[90] < largest[99]


def test_threshold_alone_stays_where_its_own_honest_frames_were() -> None:
    attack = get_attack("threshold", seed=1, onset=20)
    middle = draw(500, 8, 16) * 3
    for step in range(20):
        attack.apply(middle + draw(step, 2, 8, 16), context_of(attack, step))
    x = middle + 0.2 * draw(99, 2, 8, 16)
    sent = attack.apply(x, context_of(attack, 20))
    factor = float((sent * x).sum() / x.square().sum())
    assert 0.3 < factor < 0.99, "a step towards the negative, cut short by what it knows to be usual"


def test_one_odd_honest_frame_gives_the_threshold_rider_no_more_room() -> None:
    middle, sent = draw(500, 8, 16) * 3, []
    x = middle + 0.2 * draw(99, 2, 8, 16)
    for odd in (0.0, 30.0):
        attack = get_attack("threshold", seed=1, onset=60)
        for step in range(60):
            far = odd if step == 30 else 0.0
            attack.apply(middle + (1 + far) * draw(step, 2, 8, 16), context_of(attack, step))
        sent.append(attack.apply(x, context_of(attack, 60)))
    factors = [float((y * x).sum() / x.square().sum()) for y in sent]
    assert factors[1] > factors[0] - 0.5, "it goes by the usual frames, not by the farthest"


def test_a_frame_in_double_precision_has_the_limits_of_double() -> None:
    attack = get_attack("random_value", seed=1, onset=0)
    sent = attack.apply(draw(0, 2, 3, 4).double(), context_of(attack, 0))
    assert sent.dtype == torch.float64 and 0.5 < float(sent.std()) < 2


def test_a_ladder_needs_a_direction_of_the_attack() -> None:
    assert ladder("zeros", "both")[0] == "zeros:strength=0.125,direction=both"
    for name, way in (("zeros", "gradient"), ("identity", "forward"), ("alie", "both")):
        with pytest.raises(ValueError, match=f"'{name}' has no direction '{way}'"):
            ladder(name, way)


# ---- computing


@given(bits=st.integers(1, 22), size=st.sampled_from([1e-40, 1e-3, 1.0, 3.4e38]), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_rounding_is_finite_small_and_settled(bits: int, size: float, seed: int) -> None:
    x = draw(seed, 64).clamp(-1, 1) * size
    y = round_mantissa(x, bits)
    assert y.dtype == x.dtype and y.isfinite().all() and torch.equal(round_mantissa(y, bits), y)
    if size != 1e-40:  # denormals have fewer bits of their own
        assert bool(((y - x).abs() <= x.abs() * 2.0 ** -(bits + 1) * 1.001).all())


@pytest.mark.parametrize("kind", ["zeros", "huge"])
def test_a_surrogate_fitted_to_what_an_accomplice_upstream_sent_is_finite(kind: str) -> None:
    attack = get_attack("surrogate", seed=0, onset=2)
    stage = Stage(CONFIG, 1, 4)
    stage.load_flat(init_flat(CONFIG, 1, 4, 0))
    x = torch.zeros(2, 8, 16) if kind == "zeros" else torch.full((2, 8, 16), 3e38)
    for step in range(2):
        attack.apply(x, context_of(attack, step, input=x))
    context = context_of(attack, 2, input=x)
    assert attack.apply(attack.run(stage, x, context), context).isfinite().all()


def test_a_surrogate_of_lower_rank_fits_worse() -> None:
    wrong = []
    exact = draw(1, 16, 16) / 4
    for shrink in (1, 4, 16):
        attack = get_attack(f"surrogate:shrink={shrink}", seed=0, onset=30)
        for step in range(30):
            x = draw(step + 10, 2, 8, 16)
            attack.apply(x + x @ exact, context_of(attack, step, input=x))
        x = draw(99, 2, 8, 16)
        sent = attack.run(Stage(CONFIG, 1, 4), x, context_of(attack, 30, input=x))
        wrong.append(float((sent - x - x @ exact).norm() / (x @ exact).norm()))
    assert wrong[0] < 0.05 < wrong[1] < wrong[2]


def test_accomplices_keep_one_copy_of_old_weights() -> None:
    shared: dict[str, object] = {}
    pair = [get_attack("stale_weights:age=2", seed=seed, onset=0) for seed in (1, 2)]
    for attack in pair:
        attack.memory["shared"] = shared
    for step in range(6):
        found = [attack.weights(torch.full((4,), float(step)), 1, step) for attack in pair]
        assert all(float(w[0]) == max(0, step - 2) for w in found)
    assert set(shared) == {"stale/1"} and len(shared["stale/1"]) == 3  # type: ignore[arg-type]


# ---- the data-parallel axis


@pytest.mark.parametrize("name", PARALLEL)
@settings(max_examples=12, deadline=None)
@given(size=st.sampled_from([0.0, 1e-40, 1.0, 3e38]), length=st.integers(1, 70), consistent=st.sampled_from([0, 1]))
def test_gradients_are_finite_of_the_same_kind_and_only_one_of_the_two_lies(
    name: str, size: float, length: int, consistent: int
) -> None:
    attack = get_attack(f"{name}:consistent={consistent}", seed=3, onset=2)
    for step in range(5):
        g = draw(step, length).clamp(-1, 1) * size
        kept = g.clone()
        each = attack.gradient(g, context_of(attack, step, BACKWARD))
        total = attack.submitted(g, context_of(attack, step, BACKWARD, microbatch=-1))
        assert (total if consistent else each) is g
        lies = each if consistent else total
        assert torch.equal(g, kept) and lies.shape == g.shape and lies.dtype == g.dtype and lies.isfinite().all()
        assert (lies is g) == (step < 2)


def test_alie_shifts_by_deviations_of_what_it_saw() -> None:
    attack = get_attack("alie:z=2", seed=0, onset=400)
    spread = torch.tensor([0.0, 1.0, 5.0])
    for step in range(400):
        attack.gradient(7 + spread * draw(step, 3), context_of(attack, step, BACKWARD))
    calm = get_attack("alie:z=0", seed=0, onset=0)
    calm.memory.update(attack.memory)
    g = torch.full((3,), 7.0)
    mean = calm.gradient(g, context_of(calm, 400, BACKWARD))
    shift = (mean - attack.gradient(g, context_of(attack, 400, BACKWARD))) / 2
    assert float(shift[0].abs()) < 1e-3
    assert 0.3 < float(shift[1]) < 1.7 and 1.5 < float(shift[2]) < 8.5


@pytest.mark.parametrize("name", ["alie", "ipm"])
def test_a_sum_asked_for_twice_in_one_step_is_the_same_sum(name: str) -> None:
    attack = get_attack(f"{name}:consistent=0", seed=0, onset=3)
    for step in range(5):
        total = draw(step, 20)
        asked = [attack.submitted(total, context_of(attack, step, BACKWARD, microbatch=-1)) for _ in range(2)]
        assert torch.equal(*asked)


def test_what_alie_hands_in_contradicts_its_sketches_once_it_knows_a_deviation() -> None:
    total, sketches = {}, {}
    for consistent in (0, 1):
        attack = get_attack(f"alie:z=4,consistent={consistent}", seed=0, onset=1)
        made = StageRunner(CONFIG, 1, 4, 1, attack)
        for step in range(2):
            made.load(step, init_flat(CONFIG, 1, 4, 0), b"")
            parts = []
            for index in range(4):
                made.forward(("v", index), index, draw(4 * step + index, 2, 8, 16))
                parts.append(made.backward(("v", index), draw(4 * step + index + 50, 2, 8, 16)).sketch)
            total[consistent], sketches[consistent] = made.gradient(), torch.stack(parts).sum(0)
        assert made.first_attacked_step == 1
        size = float(total[consistent].norm())
        agrees = torch.allclose(
            Sketch(1, 1).sketch(total[consistent]), sketches[consistent], rtol=1e-4, atol=1e-4 * size
        )
        assert agrees == bool(consistent)


@pytest.mark.parametrize("name", ["alie", "ipm"])
def test_accomplices_learn_from_each_other(name: str) -> None:
    shared: dict[str, object] = {}
    one, other = (get_attack(name, seed=seed, onset=1) for seed in (1, 2))
    for attack in (one, other):
        attack.memory["shared"] = shared
    one.gradient(torch.full((3,), 4.0), context_of(one, 0, BACKWARD))
    sent = other.gradient(torch.zeros(3), context_of(other, 1, BACKWARD))
    alone = get_attack(name, seed=2, onset=1).gradient(torch.zeros(3), context_of(other, 1, BACKWARD, memory={}))
    assert not torch.equal(sent, alone)
