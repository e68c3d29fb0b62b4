"""The stage runner: what it refuses, and that its sums are sums."""

from __future__ import annotations

import pytest
import torch

from sentinel_market.attacks import get_attack
from sentinel_market.errors import ProtocolError
from sentinel_market.models.init import init_flat
from sentinel_market.models.jobs import model_config
from sentinel_market.models.sketch import Sketch
from sentinel_market.models.stage import Stage
from tests.worker.rig import small_spec
from worker.compute import StageRunner, Summed

SPEC = small_spec()
CONFIG = model_config(SPEC)
SHAPE = (4, 8, 16)


def runner(stage: int) -> StageRunner:
    found = StageRunner(CONFIG, stage, 2, 1)
    found.load(0, init_flat(CONFIG, stage, 2, SPEC.seed), b"h" * 32)
    return found


def activation(seed: int) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))


def tokens(seed: int) -> torch.Tensor:
    return torch.randint(0, 256, SHAPE[:2], generator=torch.Generator().manual_seed(seed))


def own_gradient(stage: int, x: torch.Tensor, incoming: torch.Tensor) -> torch.Tensor:
    """The parameter gradient [N] of one microbatch alone."""
    module = Stage(CONFIG, stage, 2)
    module.load_flat(init_flat(CONFIG, stage, 2, SPEC.seed))
    if stage == 1:
        module.token_loss(x, incoming).mean().backward()
    else:
        module(x).backward(incoming)
    return module.flat_grad.clone()


def test_a_backward_without_its_forward_is_refused() -> None:
    stage = runner(0)
    with pytest.raises(ProtocolError) as caught:
        stage.backward(("0xA", 1), activation(0))
    assert caught.value.code == "dispatch"
    stage.forward(("0xA", 1), 0, tokens(0))
    with pytest.raises(ProtocolError, match="dispatch"):
        stage.backward(("0xB", 1), activation(0))  # another verifier's
    stage.backward(("0xA", 1), activation(0))
    with pytest.raises(ProtocolError, match="dispatch"):
        stage.backward(("0xA", 1), activation(0))  # twice
    assert torch.count_nonzero(stage.gradient())


def test_a_gradient_of_another_shape_is_refused_and_adds_nothing() -> None:
    stage = runner(0)
    stage.forward(("0xA", 1), 0, tokens(0))
    with pytest.raises(ProtocolError) as caught:
        stage.backward(("0xA", 1), torch.randn(4, 8, 15))
    assert caught.value.code == "shape"
    assert not torch.count_nonzero(stage.gradient())


def test_loading_weights_forgets_the_step() -> None:
    stage = runner(0)
    stage.forward(("0xA", 1), 0, tokens(0))
    stage.forward(("0xA", 2), 1, tokens(1))
    stage.backward(("0xA", 1), activation(0))
    stage.summed[b"c"] = 0
    stage.load(1, init_flat(CONFIG, 0, 2, 5), b"i" * 32)
    assert not torch.count_nonzero(stage.gradient())
    assert not stage.summed
    with pytest.raises(ProtocolError, match="dispatch"):
        stage.backward(("0xA", 2), activation(0))


@pytest.mark.parametrize("stage_index", [0, 1])
def test_the_gradient_is_the_sum_over_the_set_and_each_sketch_is_its_own_share(stage_index: int) -> None:
    stage = runner(stage_index)
    sketch = Sketch(1, 0)
    expected = torch.zeros_like(stage.gradient())
    for index in range(4):
        if stage_index == 1:
            x, incoming = activation(index), tokens(index)
            _, done = stage.loss(index, x.clone(), incoming)
        else:
            x, incoming = tokens(index), activation(index)
            stage.forward(("0xA", index), index, x)
            done = stage.backward(("0xA", index), incoming)
        stage.summed[bytes([index])] = index
        mine = own_gradient(stage_index, x, incoming)
        expected += mine
        assert torch.allclose(done.sketch, sketch.sketch(mine), rtol=1e-4, atol=1e-4 * float(mine.norm()))
    assert torch.allclose(stage.gradient(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30])
def test_one_poisoned_gradient_does_not_spoil_the_sketch_of_the_next_microbatch(poison: float) -> None:
    """Its driver may be hostile: the sketch that an honest driver gets next must still be right, for a recompute
    convicts by it."""
    stage = runner(0)
    stage.forward(("0xhostile", 1), 0, tokens(0))
    stage.forward(("0xhonest", 1), 1, tokens(1))
    stage.backward(("0xhostile", 1), torch.full(SHAPE, poison))
    stage.summed[b"poisoned"] = 0
    done = stage.backward(("0xhonest", 1), activation(1))
    expected = Sketch(1, 0).sketch(own_gradient(0, tokens(1), activation(1)))
    assert torch.allclose(done.sketch, expected, rtol=1e-4, atol=1e-4 * float(expected.norm()))


def test_a_task_that_fails_in_the_middle_adds_nothing_to_the_sum() -> None:
    stage = runner(1)
    stage.loss(0, activation(0), tokens(0))
    before = stage.gradient()
    with pytest.raises((IndexError, RuntimeError)):
        stage.loss(1, activation(1), tokens(1) + 100_000)
    with pytest.raises((IndexError, RuntimeError)):
        runner(0).forward(("0xA", 1), 0, tokens(1) - 100_000)
    assert torch.equal(stage.gradient(), before)


@pytest.mark.parametrize("spec", ["skip_layers:share=1", "low_precision:bits=2", "stale_weights:age=1"])
def test_a_lazy_worker_at_the_last_stage_names_the_loss_of_what_it_computed(spec: str) -> None:
    """Its loss, its outgoing gradient and its sketch belong together; from the onset on none is the agreed one."""
    honest, lazy = runner(1), runner(1)
    lazy.attack = get_attack(spec, seed=0, onset=1)
    for step in range(2):
        for stage in (honest, lazy):
            stage.load(step, init_flat(CONFIG, 1, 2, step), b"h" * 32)
        found = [stage.loss(0, activation(3), tokens(4)) for stage in (honest, lazy)]
        (agreed_loss, agreed_done), (lazy_loss, lazy_done) = found
        pairs = [
            (agreed_loss, lazy_loss),
            (agreed_done.sketch, lazy_done.sketch),
            (honest.gradient(), lazy.gradient()),
        ]
        for agreed, sent in pairs:
            assert torch.equal(agreed, sent) == (step == 0)
            assert sent.isfinite().all()
        assert torch.allclose(Sketch(1, step).sketch(lazy.gradient()), lazy_done.sketch, rtol=1e-4, atol=1e-5)
    assert lazy.first_attacked_step == 1


def test_the_sum_that_a_liar_hands_in_is_the_same_each_time_it_is_asked() -> None:
    liar = runner(0)
    liar.attack = get_attack("ipm:consistent=0", seed=0, onset=0)
    liar.forward(("0xA", 1), 0, tokens(0))
    done = liar.backward(("0xA", 1), activation(0))
    first, second = liar.gradient(), liar.gradient()
    assert torch.equal(first, second)
    assert not torch.allclose(Sketch(1, 0).sketch(first), done.sketch, rtol=1e-3)


@pytest.mark.parametrize("stage", [0, 1])
def test_a_sum_of_a_part_is_that_of_the_part(stage: int) -> None:
    """What was lost on its way, or judged by nobody, is left out; the rest of the step counts."""

    def summed(by: StageRunner, seed: int) -> Summed:
        if stage == 1:
            return by.loss(seed, activation(seed), tokens(seed))[1].summed
        by.forward(("0xA", seed), seed, tokens(seed))
        return by.backward(("0xA", seed), activation(seed)).summed

    whole, part = runner(stage), runner(stage)
    for seed in range(3):
        whole.summed[bytes([seed])] = summed(whole, seed)
        if seed != 1:
            summed(part, seed)
    everything = whole.gradient()
    again = whole.gradient_of([bytes([0]), bytes([2])])
    assert torch.equal(again, part.gradient()) and not torch.equal(again, everything)
    assert torch.equal(whole.gradient(), everything), "another seat may ask for all of it still"
    with pytest.raises(KeyError):
        whole.gradient_of([b"never"])
