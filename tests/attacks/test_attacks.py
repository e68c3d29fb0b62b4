"""Each attack does what its formula says, and only when and where it should."""

from __future__ import annotations

import itertools
import re
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sentinel_market.attacks import (
    BACKWARD,
    FORWARD,
    AttackContext,
    ScheduledAttack,
    directions,
    get_attack,
    ladder,
    names,
)
from sentinel_market.attacks.lazy import round_mantissa
from sentinel_market.errors import ConfigError
from sentinel_market.models.config import ModelConfig
from sentinel_market.models.init import init_flat
from sentinel_market.models.sketch import Sketch
from sentinel_market.models.stage import Stage
from worker.compute import StageRunner

NUM_STAGES = 4
SHAPE = (4, 32, 16)


def tensor(seed: int = 0, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3 + 0.5


def run(
    attack: ScheduledAttack,
    x: Tensor,
    *,
    step: int = 10,
    direction: int | None = None,
    stage: int | None = None,
    given: Tensor | None = None,
) -> Tensor:
    """Apply at a direction and stage where it acts, unless told otherwise."""
    direction = min(attack.attack.directions, default=FORWARD) if direction is None else direction
    stage = attack.attack.stages(NUM_STAGES)[0] if stage is None else stage
    given = tensor(99) if given is None else given
    context = AttackContext(
        input=given,
        incoming=given * 2,
        step=step,
        direction=direction,
        stage=stage,
        num_stages=NUM_STAGES,
        rng=attack.rng,
        memory=attack.memory,
    )
    before = x.clone()
    result = attack.apply(x, context)
    assert torch.equal(x.nan_to_num(), before.nan_to_num()), "an attack must not change the honest tensor"
    return result


def make(spec: str, seed: int = 1, onset: int = 10) -> ScheduledAttack:
    return get_attack(spec, seed=seed, onset=onset)


FORMULAS = {
    "sign_flip": lambda x: -x,
    "scale": lambda x: 10 * x,
    "scale:factor=0.1": lambda x: x * 0.1,
    "sign_flip:direction=backward": lambda x: -x,
    "sign_flip:strength=0.25": lambda x: 0.5 * x,
    "scale:factor=2,direction=backward": lambda x: 2 * x,
    "zeros": torch.zeros_like,
    "zeros:strength=0.5": lambda x: 0.5 * x,
    "ones:strength=0.25": lambda x: 0.75 * x + 0.25,
    "ones": torch.ones_like,
    "bias:strength=0.5": lambda x: x + 0.5 * x.std(correction=0),
    "random_sign:fraction=1": lambda x: -x,
    "random_sign:fraction=0": lambda x: x,
}


@pytest.mark.parametrize("spec", FORMULAS)
def test_formulas(spec: str) -> None:
    x = tensor()
    torch.testing.assert_close(run(make(spec), x), FORMULAS[spec](x))


@pytest.mark.parametrize("spec", ["noise", "noise:strength=0.25", "noise:direction=backward,strength=4"])
def test_noise_is_in_units_of_the_tensors_own_spread(spec: str) -> None:
    strength = float(spec.partition("strength=")[2] or 1)
    x = tensor(shape=(8, 128, 64))
    noise = run(make(spec), x) - x
    assert noise.std().item() == pytest.approx(strength * x.std().item(), rel=0.02)
    assert abs(noise.mean().item()) < 0.02 * strength * x.std().item()
    assert abs(torch.corrcoef(torch.stack((noise.flatten(), x.flatten())))[0, 1]) < 0.02


def test_random_value_ignores_the_tensor() -> None:
    x = tensor(shape=(8, 128, 64))
    assert torch.equal(run(make("random_value"), x), run(make("random_value"), -x))
    assert run(make("random_value:std=3"), x).std().item() == pytest.approx(3, rel=0.02)


def test_random_sign_flips_the_named_share() -> None:
    x = tensor(shape=(8, 128, 64))
    y = run(make("random_sign:fraction=0.1"), x)
    assert torch.equal(y.abs(), x.abs())
    assert (y != x).float().mean().item() == pytest.approx(0.1, abs=0.01)


def test_delay_sends_old_frames() -> None:
    attack = make("delay:num_steps=3", onset=5)
    sent = [run(attack, tensor(step), step=step) for step in range(9)]
    for step in range(5):
        assert torch.equal(sent[step], tensor(step))
    for step in range(5, 9):
        assert torch.equal(sent[step], tensor(step - 3)), step
    assert len(attack.memory) == 1
    (history,) = attack.memory.values()
    assert isinstance(history, dict)
    assert len(history) == 4  # bounded


def test_delay_from_the_first_step_and_across_shapes() -> None:
    attack = make("delay:num_steps=3", onset=0)
    assert torch.equal(run(attack, tensor(0), step=0), tensor(0))
    assert torch.equal(run(attack, tensor(1), step=1), tensor(0))
    other = tensor(2, (2, 8, 16))
    assert torch.equal(run(attack, other, step=2), other)


@pytest.mark.parametrize("name", names())
def test_nothing_before_the_onset_nor_where_it_does_not_act(name: str) -> None:
    attack, x = make(name), tensor()
    assert run(attack, x, step=9, direction=FORWARD) is x
    for direction in {FORWARD, BACKWARD} - attack.attack.directions:
        for stage in range(NUM_STAGES):
            assert run(attack, x, direction=direction, stage=stage) is x
    for stage in set(range(NUM_STAGES)) - set(attack.attack.stages(NUM_STAGES)):
        for direction in (FORWARD, BACKWARD):
            assert run(attack, x, direction=direction, stage=stage) is x
    empty = torch.zeros(0)  # what stage 0 returns backward
    assert run(attack, empty, direction=BACKWARD) is empty


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["usual", "huge", "nan"])
def test_output_is_finite_and_of_the_same_kind(name: str, dtype: torch.dtype, kind: str) -> None:
    x = tensor().to(dtype)
    given = tensor(99).to(dtype)
    if kind == "huge":
        x = x / x.abs().max() * torch.finfo(dtype).max
    if kind == "nan" and name in ("zeros", "ones", "random_value"):
        x = x.clone()
        x[0, 0, 0] = float("nan")  # a formula that does not use the tensor does not spread it
    y = run(make(name), x, given=given)
    assert y.shape == x.shape
    assert y.dtype == dtype
    assert y.isfinite().all()


@pytest.mark.parametrize("name", names())
def test_a_seed_gives_the_same_frames(name: str) -> None:
    first, second = make(name, seed=7), make(name, seed=7)
    for step in range(10, 13):
        x = tensor(step)
        assert torch.equal(run(first, x, step=step), run(second, x, step=step))


FRAMES = [name for name in names() if directions(name) == ("forward", "backward")]


@pytest.mark.parametrize("name", [name for name in FRAMES if name not in ("delay", "threshold")])
def test_the_attack_changes_the_frame_and_noise_differs_by_step(name: str) -> None:
    attack, x = make(name), tensor()
    for step in range(10):
        run(attack, tensor(step + 100), step=step)
    first, second = run(attack, x), run(attack, x, step=11)
    assert not torch.allclose(first, x)
    steady = ("zeros", "ones", "scale", "sign_flip", "bias")
    assert torch.equal(first, second) == (name in steady)


def test_the_stages_of_the_demo() -> None:
    assert make("sign_flip").attack.stages(4) == range(3)
    assert make("identity").attack.stages(4) == range(3)
    assert make("noise:direction=backward").attack.stages(4) == range(1, 4)
    assert make("bias:direction=both").attack.stages(4) == range(4)
    assert make("noise:direction=backward").attack.stages(1) == range(1, 1)
    assert make("alie").attack.stages(4) == make("stale_weights").attack.stages(4) == range(4)


# ---- schedule and strengths


def test_one_step_in_so_many() -> None:
    attack, x = make("zeros:duty=3"), tensor()
    assert [step for step in range(9, 20) if run(attack, x, step=step) is not x] == [10, 13, 16, 19]


def test_accomplices_with_one_number_send_the_same_noise_for_the_same_work() -> None:
    first, second, alone = (
        make("noise:share_seed=5", seed=1),
        make("noise:share_seed=5", seed=2),
        make("noise", seed=2),
    )
    x = tensor()
    run(second, x, step=11)  # what one did before does not matter
    assert torch.equal(run(first, x, step=12), run(second, x, step=12))
    assert not torch.equal(run(first, x, step=12), run(first, x, step=13))
    assert not torch.equal(run(first, x, step=12), run(alone, x, step=12))


def test_confirms_accomplices_only() -> None:
    attack = get_attack("noise", seed=1, onset=0, accomplices=(3, 4))
    assert attack.confirms(3) and not attack.confirms(5)


@pytest.mark.parametrize("name", names())
def test_ladders_double_and_load(name: str) -> None:
    for way in directions(name):
        specs = ladder(name, way)
        assert specs and len(set(specs)) == len(specs)
        for spec in specs:
            assert get_attack(spec, seed=0, onset=0).name == name
        if way == "backward":
            assert all("direction=backward" in spec for spec in specs)
        values = [float(m[1]) for spec in specs if (m := re.search(r"[:,](?!direction)\w+=([\d.]+)", spec))]
        ratios = {b / a for a, b in itertools.pairwise(values)}
        assert ratios <= {2.0} or name == "low_precision"


def test_directions() -> None:
    assert directions("zeros") == ("forward", "backward")
    assert directions("identity") == ("both",)
    assert directions("ipm") == ("gradient",)
    with pytest.raises(ValueError, match="'nothing' is unknown"):
        directions("nothing")


# ---- adaptive


class View:
    """A baseline that flags whatever lies farther than 1 from its mean."""

    def __init__(self, mean: Tensor) -> None:
        self.mean: Tensor | None = mean
        self.change: Tensor | None = torch.full((SHAPE[2],), 0.5)

    def crosses(self, x: Tensor) -> bool:
        return float((x - tensor()).abs().max()) > 1.0


def seen(spec: str, x: Tensor, view: View | None, given: Tensor) -> Tensor:
    attack = make(spec, onset=0)
    context = AttackContext(
        input=given, incoming=None, step=3, direction=FORWARD, stage=1, num_stages=NUM_STAGES,
        rng=attack.rng, memory=attack.memory, public=view,
    )  # fmt: skip
    return attack.apply(x, context)


def test_mimics_use_what_the_public_knows() -> None:
    x, given, mean = tensor(), tensor(5), torch.full(SHAPE[1:], 2.0)
    assert torch.allclose(seen("ema_mimic:noise=0", x, View(mean), given), mean.expand(SHAPE))
    assert torch.allclose(seen("delta_mimic", x, View(mean), given), given + 0.5)
    own = seen("ema_mimic:noise=0", x, None, given)  # alone, it knows its own average
    assert torch.allclose(own, x.mean(0).expand(SHAPE), atol=1e-5)


def test_the_threshold_rider_stops_at_the_fence() -> None:
    x = tensor()
    sent = seen("threshold", x, View(x.mean(0)), tensor(5))
    moved = float((sent - x).abs().max())
    assert 0.9 < moved <= 1.0


def test_invisible_noise_stays_inside_the_band() -> None:
    attack = make("invisible_noise:percentile=90,strength=4", onset=40)
    for step in range(40):
        run(attack, tensor(step), step=step, stage=1)
    x = tensor(77)
    sent = run(attack, x, step=40, stage=1)
    usual = torch.stack([tensor(step) for step in range(20, 40)]).flatten(0, 1)
    low, high = usual.quantile(0.01, dim=0), usual.quantile(0.99, dim=0)
    outside = ((sent < torch.minimum(low, x)) | (sent > torch.maximum(high, x))).float().mean()
    assert not torch.allclose(sent, x) and outside < 0.1


def test_drift_grows_along_one_direction() -> None:
    attack, x = make("drift:rate=0.1"), tensor()
    offsets = [run(attack, x, step=step) - x for step in (10, 11, 19)]
    assert torch.allclose(offsets[1], 2 * offsets[0], atol=1e-4)
    assert torch.allclose(offsets[2], 10 * offsets[0], atol=1e-3)


# ---- lazy and data-parallel, on a real stage

CONFIG = ModelConfig(dim=16, num_layers=4, num_heads=2, num_kv_heads=2, ffn_dim=32, seq_len=8)


def runner(spec: str, stage: int = 1, onset: int = 0, steps: int = 1) -> StageRunner:
    attack = get_attack(spec, seed=0, onset=onset) if spec else None
    made = StageRunner(CONFIG, stage, 4, 1, attack)
    for step in range(steps):
        made.load(step, init_flat(CONFIG, stage, 4, step), b"")
    return made


def passed(made: StageRunner, seed: int = 0) -> tuple[Tensor, Tensor | None, Tensor]:
    x = tensor(seed, (2, 8, 16)) if made.stage else torch.randint(0, 256, (2, 8), generator=torch.manual_seed(seed))
    out = made.forward(("v", seed), seed, x)
    done = made.backward(("v", seed), tensor(seed + 50, (2, 8, 16)))
    return out, done.gradient, done.sketch


@pytest.mark.parametrize("stage", [0, 1])
def test_the_free_rider_hands_on_what_it_got_and_adds_nothing(stage: int) -> None:
    made = runner("identity", stage)
    out, gradient, sketch = passed(made)
    if stage:
        assert torch.equal(out, tensor(0, (2, 8, 16)))
        assert gradient is not None and torch.equal(gradient, tensor(50, (2, 8, 16)))
    assert not sketch.any() and not made.gradient().any()
    assert made.first_attacked_step == 0


def test_before_its_onset_a_lazy_worker_is_honest() -> None:
    for honest, found in zip(passed(runner("")), passed(runner("skip_layers:share=1", onset=5)), strict=True):
        assert (honest is None and found is None) or torch.equal(honest, found)


def test_skipped_layers() -> None:
    everything = passed(runner("skip_layers:share=1"))[0]
    assert torch.equal(everything, tensor(0, (2, 8, 16)))
    half, honest = passed(runner("skip_layers"))[0], passed(runner(""))[0]
    assert not torch.allclose(half, honest) and not torch.allclose(half, everything)


def test_stale_weights_are_those_of_so_many_steps_ago() -> None:
    stale = runner("stale_weights:age=2", steps=4)
    assert torch.equal(stale.module.flat, init_flat(CONFIG, 1, 4, 1))
    assert torch.equal(runner("stale_weights:age=9", steps=3).module.flat, init_flat(CONFIG, 1, 4, 0))


def test_seven_bits_are_bfloat16() -> None:
    x = tensor(3, (64, 64)).flatten()
    assert torch.equal(round_mantissa(x, 7), x.bfloat16().float())
    sent = passed(runner("low_precision"))[0]
    assert torch.equal(sent, sent.bfloat16().float())


def test_the_surrogate_learns_from_its_honest_frames() -> None:
    made = runner("surrogate", onset=1, steps=1)
    for seed in range(20):
        passed(made, seed)
    honest = passed(made, 99)[0]
    made.load(1, init_flat(CONFIG, 1, 4, 0), b"")
    learned = passed(made, 99)[0]
    shown = tensor(99, (2, 8, 16))
    assert float((learned - honest).norm()) < 0.8 * float((shown - honest).norm())


@pytest.mark.parametrize("name", ["alie", "ipm", "grad_sign_flip", "grad_scale"])
def test_a_lie_about_the_gradient_agrees_with_its_sketches_or_contradicts_them(name: str) -> None:
    honest = runner("")
    for seed in range(3):
        passed(honest, seed)
    for consistent in (1,) if name == "alie" else (1, 0):  # from one sum alone alie knows no deviation
        made = runner(f"{name}:consistent={consistent}")
        frames = [passed(made, seed) for seed in range(3)]
        total, sketches = made.gradient(), torch.stack([sketch for _, _, sketch in frames]).sum(0)
        assert not torch.allclose(total, honest.gradient(), rtol=1e-3)
        assert torch.allclose(Sketch(1, 0).sketch(total), sketches, rtol=1e-3, atol=1e-3) == bool(consistent)


def test_data_parallel_formulas() -> None:
    honest = runner("")
    passed(honest)
    for spec, factor in (("grad_sign_flip", -1), ("grad_scale:factor=3", 3), ("ipm:epsilon=2", -2)):
        made = runner(spec)
        passed(made)
        assert torch.allclose(made.gradient(), factor * honest.gradient(), rtol=1e-5, atol=1e-6), spec


# ---- a user's own


def halves(x: Tensor, context: AttackContext) -> Tensor:
    return x / 2


def cuts(x: Tensor, context: AttackContext) -> Tensor:
    return x[:1]


def nothing(x: Tensor, context: AttackContext) -> None:
    """Forgets to return."""


def one(x: Tensor) -> Tensor:
    return x


def three(x: Tensor, context: AttackContext, how: float) -> Tensor:
    return x * how


def in_place(x: Tensor, context: AttackContext) -> Tensor:
    return x.mul_(2)


class Thirds:
    """A callable object without the rest of the protocol."""

    def __call__(self, x: Tensor, context: AttackContext) -> Tensor:
        return x / 3


class Halved:
    """A user's attack."""

    name = "halved"
    directions = frozenset({FORWARD})

    def __init__(self, factor: float = 0.5) -> None:
        self.factor = factor

    def stages(self, num_stages: int) -> range:
        return range(num_stages)

    def __call__(self, x: Tensor, context: AttackContext) -> Tensor:
        return x * self.factor


class Widened(Halved):
    """A class that gives another type than it got."""

    def __call__(self, x: Tensor, context: AttackContext) -> Tensor:
        return x.double()


class Shortened(Halved):
    """A lie about the parameter gradient that is too short."""

    consistent = True

    def gradient(self, flat: Tensor, context: AttackContext, *, active: bool) -> Tensor:
        return flat[1:] if active else flat


class Guessed(Halved):
    """Replaces the computation at the last stage, loss included, by noise."""

    directions = frozenset({FORWARD, BACKWARD})

    def weights(self, flat: Tensor, stage: int, step: int, memory: dict[str, object]) -> Tensor:
        return flat

    def run(self, stage: Stage, x: Tensor, context: AttackContext) -> Tensor:
        return x + torch.randn(x.shape, generator=context.rng)

    def loss(self, stage: Stage, x: Tensor, targets: Tensor, context: AttackContext) -> Tensor:
        return torch.rand(targets.shape, generator=context.rng)

    def __call__(self, x: Tensor, context: AttackContext) -> Tensor:
        return x


@pytest.fixture
def users_module(monkeypatch: pytest.MonkeyPatch) -> str:
    module = types.ModuleType("users_attacks")
    module.__dict__.update(Halved=Halved, ready=Halved(0.25), number=3, NotOne=dict, halves=halves, cuts=cuts)
    module.__dict__.update(nothing=nothing, one=one, three=three, in_place=in_place, thirds=Thirds())
    module.__dict__.update(Widened=Widened, Shortened=Shortened, Guessed=Guessed)
    monkeypatch.setitem(sys.modules, "users_attacks", module)
    return "users_attacks"


def test_a_users_own_attack(users_module: str) -> None:
    x = tensor()
    assert torch.equal(run(make(f"{users_module}:Halved"), x), x * 0.5)
    assert torch.equal(run(make(f"{users_module}:Halved:factor=2"), x), x * 2)
    assert torch.equal(run(make(f"{users_module}:ready"), x), x * 0.25)
    assert make(f"{users_module}:ready").name == "halved"
    assert torch.equal(run(make(f"{users_module}:halves"), x), x / 2)
    assert torch.equal(run(make(f"{users_module}:halves:direction=backward"), x, stage=1), x / 2)
    assert torch.equal(run(make(f"{users_module}:thirds"), x), x / 3)
    assert torch.equal(run(make(f"{users_module}:in_place"), x), x * 2), "a plain callable works on a copy"
    assert torch.equal(run(make(f"{users_module}:halves:duty=2"), x, step=11), x), "the schedule is for all"


@pytest.mark.parametrize(
    ("name", "given"),
    [("cuts", "torch.float32 [1, 32, 16]"), ("nothing", "NoneType"), ("Widened", "torch.float64 [4, 32, 16]")],
)
def test_a_users_attack_that_gives_no_such_tensor_is_told_so(users_module: str, name: str, given: str) -> None:
    shown = "halved" if name == "Widened" else name
    message = f"attack '{shown}' gave {given} for torch.float32 [4, 32, 16]; return a tensor of the same shape and type"
    with pytest.raises(ConfigError, match=re.escape(message)):
        run(make(f"{users_module}:{name}"), tensor())


def test_a_users_lie_about_the_gradient_has_its_length(users_module: str) -> None:
    made = runner(f"{users_module}:Shortened")
    with pytest.raises(ConfigError, match="attack 'halved' gave"):
        passed(made)


def test_a_users_own_loss_is_drawn_alike_by_accomplices(users_module: str) -> None:
    losses = []
    for seed in (1, 2):
        attack = get_attack(f"{users_module}:Guessed:share_seed=4", seed=seed, onset=0)
        made = StageRunner(CONFIG, 3, 4, 1, attack)
        made.load(0, init_flat(CONFIG, 3, 4, 0), b"")
        targets = torch.zeros((2, 8), dtype=torch.int64)
        losses += [made.loss(microbatch, tensor(0, (2, 8, 16)), targets)[0] for microbatch in (0, 1)]
        assert not made.gradient().any()
    assert torch.equal(losses[0], losses[2]) and torch.equal(losses[1], losses[3])
    assert not torch.equal(losses[0], losses[1])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nonsense", "'nonsense' is unknown; use one of alie, bias"),
        ("nonsense:factor=1", "'nonsense' is unknown; use one of"),
        ("", "'' is unknown"),
        ("scale:factor", "'factor' is not key=value"),
        ("scale:colour=1", "colour"),
        ("scale:direction=up", "direction 'up' is unknown; use one of forward"),
        ("random_sign:fraction=2", "fraction is 2"),
        ("delay:num_steps=0", "num_steps is 0"),
        ("delay:num_steps=2.5", "num_steps is 2.5"),
        ("noise:strength=nan", "strength is nan"),
        ("random_value:std=-1", "std is -1"),
        ("scale:factor=abc", "factor is 'abc'"),
        ("no.such.module:Thing", "cannot load 'Thing' of module 'no.such.module'"),
        ("users_attacks:Nothing", "cannot load 'Nothing'"),
        ("users_attacks:number", "neither an attack nor a callable"),
        ("users_attacks:NotOne", "gave dict, which lacks one of name"),
        ("users_attacks:ready:factor=1", "takes no parameters"),
        ("users_attacks:halves:colour=1", "unexpected keyword argument 'colour'; give parameters that it has"),
        (
            "users_attacks:one",
            "missing 1 required positional argument: 'x'; give parameters that it has, and as your own",
        ),
        (
            "users_attacks:three",
            "a callable (tensor, context), or a class or function whose parameters all have defaults",
        ),
        (":Thing", "cannot load 'Thing' of module ''"),
        (".mine:Thing", "cannot load 'Thing' of module '.mine'"),
        ("zeros:duty=0", "duty is 0"),
        ("zeros:duty=0.5", "duty is 0.5"),
        ("stale_weights:age=0", "age is 0"),
        ("low_precision:bits=30", "bits is 30"),
        ("alie:consistent=2", "consistent is 2"),
        ("invisible_noise:percentile=50", "percentile is 50"),
    ],
)
def test_bad_specifications(users_module: str, spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make(spec)


def test_negative_onset_is_refused() -> None:
    with pytest.raises(ValueError, match="onset is -1"):
        make("zeros", onset=-1)


def test_every_attack_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "attacks.md").read_text()
    rows = set(re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE))
    assert rows == set(names())
