"""First weights: a function of the seed and the parameter's name only."""

from __future__ import annotations

import blake3
import numpy as np
import pytest
import torch

from sentinel_market.models.config import ModelConfig
from sentinel_market.models.export import to_state_dict
from sentinel_market.models.init import EMBEDDING_STD, init_flat, normals

CONFIG = ModelConfig(dim=64, num_layers=4, num_heads=4, num_kv_heads=2, ffn_dim=96, seq_len=16)


@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_the_cut_does_not_change_the_weights(num_stages: int) -> None:
    whole = to_state_dict(CONFIG, [init_flat(CONFIG, 0, 1, seed=7)])
    torch.manual_seed(0)  # must not matter
    cut = to_state_dict(CONFIG, [init_flat(CONFIG, stage, num_stages, seed=7) for stage in range(num_stages)])
    assert whole.keys() == cut.keys()
    for name, weight in whole.items():
        assert torch.equal(cut[name], weight), name


def test_seed_and_name_matter() -> None:
    one, two = (to_state_dict(CONFIG, [init_flat(CONFIG, 0, 1, seed=seed)]) for seed in (1, 2))
    name = "model.layers.{}.self_attn.q_proj.weight"
    assert not torch.equal(one[name.format(0)], two[name.format(0)])
    assert not torch.equal(one[name.format(0)], one[name.format(1)])


def test_spread_follows_fan_in_and_depth() -> None:
    weights = to_state_dict(CONFIG, [init_flat(CONFIG, 0, 1, seed=1)])
    layer = "model.layers.1."
    assert weights["model.embed_tokens.weight"].std().item() == pytest.approx(EMBEDDING_STD, rel=0.05)
    assert weights[layer + "self_attn.q_proj.weight"].std().item() == pytest.approx(64**-0.5, rel=0.05)
    assert weights[layer + "self_attn.o_proj.weight"].std().item() == pytest.approx((64 * 8) ** -0.5, rel=0.05)
    assert weights[layer + "mlp.down_proj.weight"].std().item() == pytest.approx((96 * 8) ** -0.5, rel=0.05)
    assert torch.equal(weights["model.norm.weight"], torch.ones(64))


def test_normals_are_normal_and_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = normals(1, "x", 100_000)
    assert abs(numbers.mean()) < 0.02
    assert numbers.std() == pytest.approx(1, abs=0.02)
    assert (np.abs(numbers) < 1).mean() == pytest.approx(0.6827, abs=0.01)
    monkeypatch.setattr("sentinel_market.models.init._CHUNK", 777)
    assert np.array_equal(normals(1, "x", 100_000), numbers)


def test_the_bits_are_pinned() -> None:
    """Seats on different machines and versions sign this digest: a change of it is a change of the protocol."""
    flat = init_flat(CONFIG, 1, 4, seed=42)
    assert blake3.blake3(flat.numpy().tobytes()).hexdigest() == (
        "b51ab11d5398dceaf67d579c77b6126680430c8efa3ba5b8e48cd7ba4f1e8279"
    )
