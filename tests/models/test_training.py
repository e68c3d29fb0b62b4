"""The reference loop, the export and the sampler."""

from __future__ import annotations

import math

import pytest
import torch

from sentinel_market.models.config import ModelConfig
from sentinel_market.models.export import from_state_dict, hf_config, to_state_dict
from sentinel_market.models.generate import sample
from sentinel_market.models.init import init_flat
from sentinel_market.models.optimizer import AdamWConfig
from sentinel_market.models.plain import Batch, evaluate, plain_loop
from sentinel_market.models.stage import Stage

CONFIG = ModelConfig(dim=16, num_layers=3, num_heads=2, num_kv_heads=1, ffn_dim=24, vocab_size=8, seq_len=8)
OPTIM = AdamWConfig(learning_rate=0.02, min_learning_rate=0.002, warmup_steps=2, total_steps=60)


def counting(step: int, microbatch: int) -> Batch:
    """Sequences that count up modulo the vocabulary from a start that depends on (step, microbatch)."""
    starts = torch.tensor([[step * 5 + microbatch], [microbatch * 3 + 1]])
    rows = (starts + torch.arange(9)) % CONFIG.vocab_size
    return rows[:, :-1], rows[:, 1:]


def test_the_cut_does_not_change_the_training() -> None:
    lists = [[0, 1, 2]] * 6
    whole = plain_loop(CONFIG, counting, 6, 1, OPTIM, lists)
    cut = plain_loop(CONFIG, counting, 6, 1, OPTIM, lists, num_stages=3)
    assert cut.losses == pytest.approx(whole.losses, rel=1e-5)
    wanted, found = to_state_dict(CONFIG, whole.flats), to_state_dict(CONFIG, cut.flats)
    for name, weight in wanted.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-4, atol=1e-4)


def test_it_learns_and_reports() -> None:
    seen: list[int] = []
    result = plain_loop(CONFIG, counting, 60, 1, OPTIM, [[0, 1]] * 60, on_step=lambda step, _: seen.append(step))
    assert seen == list(range(60))
    assert result.losses[0] > 1.5
    assert result.losses[-1] < 0.2
    held_out = [counting(1000, 77)]
    assert evaluate(CONFIG, result.flats, held_out) < 0.3
    assert sample(CONFIG, result.flats, [2, 3, 4], 12, temperature=0) == [(5 + i) % 8 for i in range(12)]
    assert sample(CONFIG, result.flats, [2], 9, 0.5, seed=4) == sample(CONFIG, result.flats, [2], 9, 0.5, seed=4)


def test_a_step_is_the_mean_over_the_multiset() -> None:
    """A microbatch counted twice pulls twice: the same as a loop that lists it twice, and not as one that does not."""
    once = plain_loop(CONFIG, counting, 1, 1, OPTIM, [[0, 1]])
    twice = plain_loop(CONFIG, counting, 1, 1, OPTIM, [[0, 1, 1]])
    grouped = plain_loop(CONFIG, counting, 1, 1, OPTIM, [[[[0, 1], [1]]]])
    torch.testing.assert_close(twice.flats[0], grouped.flats[0], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(once.flats[0], twice.flats[0], rtol=1e-4)
    # Each distinct microbatch counts once in the displayed loss.
    assert once.losses == twice.losses == grouped.losses


def test_the_gradient_is_that_of_the_mean_loss_of_the_multiset() -> None:
    """With a huge eps AdamW's first step is minus the gradient, so its size shows, which AdamW otherwise hides."""
    optim = AdamWConfig(
        learning_rate=1000, min_learning_rate=0, warmup_steps=0, total_steps=9, eps=1000, weight_decay=0
    )
    result = plain_loop(CONFIG, counting, 1, 1, optim, [[[[0, 1], [1]]]])
    stage = Stage(CONFIG, 0, 1)
    stage.load_flat(init_flat(CONFIG, 0, 1, 1))
    first, second = (stage.token_loss(*counting(0, microbatch)).mean() for microbatch in (0, 1))
    ((first + 2 * second) / 3).backward()
    torch.testing.assert_close(init_flat(CONFIG, 0, 1, 1) - result.flats[0], stage.flat_grad, rtol=1e-3, atol=1e-5)


def test_multisets_may_differ_by_stage() -> None:
    """An audit at one stage counts twice there only."""
    base = plain_loop(CONFIG, counting, 1, 1, OPTIM, [[[[0, 1]], [[0, 1]], [[0, 1]]]], num_stages=3)
    audited = plain_loop(CONFIG, counting, 1, 1, OPTIM, [[[[0, 1]], [[0], [1, 0]], [[0, 1]]]], num_stages=3)
    same = [torch.allclose(a, b, rtol=1e-4) for a, b in zip(base.flats, audited.flats, strict=True)]
    assert same == [True, False, True]
    with pytest.raises(ValueError, match="names 1 stages, the model has 3"):
        plain_loop(CONFIG, counting, 1, 1, OPTIM, [[[[0, 1]]]], num_stages=3)


@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_weights_survive_names(num_stages: int) -> None:
    flats = [init_flat(CONFIG, stage, num_stages, 5) for stage in range(num_stages)]
    weights = to_state_dict(CONFIG, flats)
    for found, wanted in zip(from_state_dict(CONFIG, weights, num_stages), flats, strict=True):
        assert torch.equal(found, wanted)


def test_weights_that_do_not_fit_are_named() -> None:
    weights = to_state_dict(CONFIG, [init_flat(CONFIG, 0, 1, 5)])
    weights["surplus"] = weights.pop("lm_head.weight")
    weights["model.norm.weight"] = torch.ones(3)
    with pytest.raises(
        ValueError, match=r"lm_head\.weight is missing.*surplus is unknown.*model\.norm\.weight has shape"
    ):
        from_state_dict(CONFIG, weights, 1)
    with pytest.raises(ValueError, match="flat weights of stage 0"):
        to_state_dict(CONFIG, [torch.zeros(64)])


def test_hugging_face_description() -> None:
    described = hf_config(CONFIG)
    assert described["architectures"] == ["LlamaForCausalLM"]
    assert described["hidden_size"] == 16
    assert described["num_key_value_heads"] == 1
    assert described["tie_word_embeddings"] is False


def test_sampling_refuses_nonsense() -> None:
    flats = [init_flat(CONFIG, 0, 1, 5)]
    with pytest.raises(ValueError, match="prompt is empty"):
        sample(CONFIG, flats, [], 1)
    with pytest.raises(ValueError, match="token 8 is outside"):
        sample(CONFIG, flats, [8], 1)
    with pytest.raises(ValueError, match="temperature is -1"):
        sample(CONFIG, flats, [1], 1, -1)


def test_a_fresh_model_knows_nothing() -> None:
    flats = [init_flat(CONFIG, stage, 2, 5) for stage in range(2)]
    assert evaluate(CONFIG, flats, [counting(0, 0)]) > math.log(8) - 0.5
