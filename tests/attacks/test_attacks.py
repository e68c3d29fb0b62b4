"""Each attack does what its formula says, and only when and where it should."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sentinel_market.attacks import BACKWARD, FORWARD, AttackContext, ScheduledAttack, get_attack, names

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
    directions = attack.attack.directions
    direction = min(directions) if direction is None else direction
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
    "grad_sign_flip": lambda x: -x,
    "grad_scale:factor=2": lambda x: 2 * x,
    "zeros": torch.zeros_like,
    "ones": torch.ones_like,
    "bias:strength=0.5": lambda x: x + 0.5 * x.std(correction=0),
    "random_sign:fraction=1": lambda x: -x,
    "random_sign:fraction=0": lambda x: x,
}


@pytest.mark.parametrize("spec", FORMULAS)
def test_formulas(spec: str) -> None:
    x = tensor()
    torch.testing.assert_close(run(make(spec), x), FORMULAS[spec](x))


@pytest.mark.parametrize("spec", ["noise", "grad_noise", "noise:strength=0.25", "grad_noise:strength=4"])
def test_noise_is_in_units_of_the_tensors_own_spread(spec: str) -> None:
    strength = float(spec.partition("=")[2] or 1)
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


def test_free_rider_hands_on_what_it_got() -> None:
    attack, x, given = make("identity"), tensor(), tensor(5)
    assert torch.equal(run(attack, x, given=given, direction=FORWARD), given)
    assert torch.equal(run(attack, x, given=given, direction=BACKWARD, stage=1), given * 2)
    assert attack.attack.stages(NUM_STAGES) == range(3)
    assert attack.attack.stages(1) == range(0)
    assert not attack.skips_compute(9)
    assert attack.skips_compute(10)
    # It sends a copy: whoever holds the frame cannot reach into the worker's input.
    assert run(attack, x, given=given).data_ptr() != given.data_ptr()


def test_only_the_free_rider_skips_compute() -> None:
    assert [name for name in names() if make(name).attack.skips_compute] == ["identity"]


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
    assert run(attack, x, step=9) is x
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
    if kind == "nan" and name in ("zeros", "ones", "random_value", "identity"):
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


@pytest.mark.parametrize("name", [name for name in names() if name not in ("identity", "delay")])
def test_the_attack_changes_the_frame_and_noise_differs_by_step(name: str) -> None:
    attack, x = make(name), tensor()
    first, second = run(attack, x), run(attack, x, step=11)
    assert not torch.allclose(first, x)
    random = name in ("noise", "grad_noise", "random_value", "random_sign")
    assert torch.equal(first, second) != random


def test_the_stages_of_the_demo() -> None:
    assert make("sign_flip").attack.stages(4) == range(3)
    assert make("identity").attack.stages(4) == range(3)
    assert make("grad_noise").attack.stages(4) == range(1, 4)
    assert make("bias:direction=both").attack.stages(4) == range(4)
    assert make("grad_noise").attack.stages(1) == range(1, 1)


class Halved:
    """A user's attack."""

    name = "halved"
    directions = frozenset({FORWARD})
    skips_compute = False

    def __init__(self, factor: float = 0.5) -> None:
        self.factor = factor

    def stages(self, num_stages: int) -> range:
        return range(num_stages)

    def __call__(self, x: Tensor, context: AttackContext) -> Tensor:
        return x * self.factor


@pytest.fixture
def users_module(monkeypatch: pytest.MonkeyPatch) -> str:
    module = types.ModuleType("users_attacks")
    module.__dict__.update(Halved=Halved, ready=Halved(0.25), number=3, NotOne=dict)
    monkeypatch.setitem(sys.modules, "users_attacks", module)
    return "users_attacks"


def test_a_users_own_attack(users_module: str) -> None:
    x = tensor()
    assert torch.equal(run(make(f"{users_module}:Halved"), x), x * 0.5)
    assert torch.equal(run(make(f"{users_module}:Halved:factor=2"), x), x * 2)
    assert torch.equal(run(make(f"{users_module}:ready"), x), x * 0.25)
    assert make(f"{users_module}:ready").name == "halved"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nonsense", "'nonsense' is unknown; use one of bias, delay"),
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
