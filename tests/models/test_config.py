"""Sizes, cuts, layouts and costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel_market.models.config import (
    ALIGNMENT,
    ModelConfig,
    flops_per_token,
    memory_estimate,
    num_parameters,
    partition,
)
from sentinel_market.models.layout import flat_size, layout

SMALL = ModelConfig(dim=16, num_layers=4, num_heads=4, num_kv_heads=2, ffn_dim=24, seq_len=8)


@st.composite
def cut_models(draw: st.DrawFn) -> tuple[ModelConfig, int]:
    """A valid model and a number of stages it can be cut into."""
    num_kv_heads = draw(st.integers(1, 3))
    num_heads = num_kv_heads * draw(st.integers(1, 3))
    config = ModelConfig(
        dim=num_heads * 2 * draw(st.integers(1, 5)),
        num_layers=draw(st.integers(1, 13)),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        ffn_dim=draw(st.integers(1, 40)),
        vocab_size=draw(st.integers(2, 300)),
        seq_len=draw(st.integers(1, 32)),
    )
    return config, draw(st.integers(1, config.num_layers))


@given(st.integers(1, 200), st.integers(1, 200))
def test_partition_covers_all_layers_evenly_or_refuses(num_layers: int, num_stages: int) -> None:
    if num_stages > num_layers:
        with pytest.raises(ValueError, match=f"at most {num_layers} stages"):
            partition(num_layers, num_stages)
        return
    stages = partition(num_layers, num_stages)
    assert [layer for stage in stages for layer in stage] == list(range(num_layers))
    sizes = [len(stage) for stage in stages]
    assert len(sizes) == num_stages
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


def test_partition_refuses_no_stages() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        partition(4, 0)


@given(cut_models())
def test_layout_is_aligned_disjoint_and_complete(cut: tuple[ModelConfig, int]) -> None:
    config, num_stages = cut
    assert config.validate() == []
    names: list[str] = []
    count = 0
    for stage in range(num_stages):
        end = 0
        for spec in layout(config, stage, num_stages):
            assert spec.offset % ALIGNMENT == 0
            assert end <= spec.offset < end + ALIGNMENT
            assert spec.decay == (len(spec.shape) == 2)
            end = spec.offset + spec.size
            names.append(spec.name)
            count += spec.size
        size = flat_size(config, stage, num_stages)
        assert size % ALIGNMENT == 0
        assert end <= size < end + ALIGNMENT
    # The same names in the same order whatever the cut.
    assert names == [spec.name for spec in layout(config, 0, 1)]
    assert len(set(names)) == len(names) == 3 + 9 * config.num_layers
    assert count == sum(num_parameters(config, stage, num_stages) for stage in range(num_stages))


@given(cut_models())
def test_flops_do_not_depend_on_the_cut(cut: tuple[ModelConfig, int]) -> None:
    config, num_stages = cut
    assert sum(flops_per_token(config, s, num_stages) for s in range(num_stages)) == flops_per_token(config, 0, 1)


def test_layer_ten_follows_layer_nine() -> None:
    config = ModelConfig(dim=16, num_layers=12, num_heads=4, num_kv_heads=2, ffn_dim=24, seq_len=8)
    layers = [spec.name.split(".")[2] for spec in layout(config, 0, 1) if ".layers." in spec.name]
    assert layers == sorted(layers, key=int)


def test_flops_are_about_six_a_parameter() -> None:
    config = ModelConfig(dim=256, num_layers=4, num_heads=4, num_kv_heads=4, ffn_dim=704, seq_len=1)
    # The embedding takes no matrix product, so it is left out.
    parameters = num_parameters(config, 0, 1) - config.vocab_size * config.dim
    assert flops_per_token(config, 0, 1) == pytest.approx(6 * parameters, rel=0.01)


def test_memory_grows_with_what_is_held() -> None:
    def estimate(**held: int) -> int:
        return memory_estimate(SMALL, 1, 2, **{"batch_size": 2, **held})

    parameters = num_parameters(SMALL, 1, 2)
    assert estimate() > 8 * parameters
    assert estimate(num_in_flight=3) > estimate()
    assert estimate(batch_size=4) > estimate()
    assert memory_estimate(SMALL, 1, 2, batch_size=2, optimizer=True) - estimate() == 8 * parameters


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dim": 18}, "dim 18 does not divide by num_heads 4"),
        ({"dim": 12}, "even"),
        ({"num_kv_heads": 3}, "num_kv_heads 3"),
        ({"num_layers": 0}, "num_layers is 0"),
        ({"vocab_size": 1}, "vocab_size is 1"),
        ({"rope_theta": 0.0}, "rope_theta"),
        ({"norm_eps": 0.0}, "norm_eps"),
    ],
)
def test_bad_sizes_are_named(change: dict[str, float], message: str) -> None:
    from dataclasses import replace

    problems = replace(SMALL, **change).validate()
    assert len(problems) == 1
    assert message in problems[0]


def test_all_problems_come_at_once() -> None:
    from dataclasses import replace

    assert len(replace(SMALL, dim=0, ffn_dim=-1, vocab_size=0).validate()) == 3
