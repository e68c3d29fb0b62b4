"""The chain of stages equals the whole model, and the whole model equals one written the long way."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sentinel_market.models.config import ModelConfig
from sentinel_market.models.export import to_state_dict
from sentinel_market.models.init import init_flat
from sentinel_market.models.stage import Stage, flat_size, layout

CONFIG = ModelConfig(dim=32, num_layers=4, num_heads=4, num_kv_heads=2, ffn_dim=48, vocab_size=40, seq_len=12)


def build(num_stages: int, seed: int = 3) -> list[Stage]:
    """A freshly initialised chain. Norm weights are moved off 1, so that a forgotten one would show."""
    stages = []
    for index in range(num_stages):
        stage = Stage(CONFIG, index, num_stages)
        flat = init_flat(CONFIG, index, num_stages, seed)
        for spec in stage.specs:
            if len(spec.shape) == 1:
                flat[spec.offset : spec.offset + spec.size] = torch.linspace(0.5, 1.5, spec.size)
        stage.load_flat(flat)
        stages.append(stage)
    return stages


def data(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, CONFIG.vocab_size, (3, CONFIG.seq_len + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def pipeline_pass(stages: list[Stage], tokens: Tensor, targets: Tensor) -> Tensor:
    """Forward and backward with graphs cut between stages, as workers run them; returns the loss [B, T]."""
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    x = tokens
    for stage in stages[:-1]:
        inputs.append(x)
        outputs.append(stage(x))
        x = outputs[-1].detach().requires_grad_()
    inputs.append(x)
    loss = stages[-1].token_loss(x, targets)
    loss.mean().backward()
    for i in range(len(stages) - 2, -1, -1):
        gradient = inputs[i + 1].grad
        assert gradient is not None
        outputs[i].backward(gradient)
    return loss.detach()


def named_gradients(stages: list[Stage]) -> dict[str, Tensor]:
    return to_state_dict(CONFIG, [stage.flat_grad for stage in stages])


@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_a_chain_equals_the_whole_model(num_stages: int) -> None:
    tokens, targets = data()
    whole, chain = build(1), build(num_stages)
    loss = pipeline_pass(whole, tokens, targets)
    chained = pipeline_pass(chain, tokens, targets)
    torch.testing.assert_close(chained, loss, rtol=1e-6, atol=1e-6)
    wanted, found = named_gradients(whole), named_gradients(chain)
    assert wanted.keys() == found.keys()
    for name, gradient in wanted.items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-7, msg=lambda m, n=name: f"{n}: {m}")


def reference_logits(weights: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """Llama's forward pass in double, from its published formulas and Hugging Face's half-split rotary convention."""
    w = {name: value.double() for name, value in weights.items()}
    c = CONFIG

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return weight * x / torch.sqrt((x**2).mean(-1, keepdim=True) + c.norm_eps)

    half = c.head_dim // 2
    inverse = 1.0 / c.rope_theta ** (torch.arange(half, dtype=torch.float64) / half)
    angle = torch.outer(torch.arange(tokens.shape[1], dtype=torch.float64), inverse)

    def rotate(x: Tensor) -> Tensor:
        first, second = x[..., :half], x[..., half:]
        return torch.cat((first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()), -1)

    h = w["model.embed_tokens.weight"][tokens]
    hidden = torch.full((tokens.shape[1],) * 2, -math.inf, dtype=torch.float64).triu(1)
    for i in range(c.num_layers):
        p = f"model.layers.{i}."
        x = norm(h, w[p + "input_layernorm.weight"])
        heads = []
        for head in range(c.num_heads):
            kv = head // (c.num_heads // c.num_kv_heads)
            rows, kv_rows = (slice(n * c.head_dim, (n + 1) * c.head_dim) for n in (head, kv))
            q = rotate(x @ w[p + "self_attn.q_proj.weight"][rows].T)
            k = rotate(x @ w[p + "self_attn.k_proj.weight"][kv_rows].T)
            v = x @ w[p + "self_attn.v_proj.weight"][kv_rows].T
            scores = q @ k.transpose(1, 2) / math.sqrt(c.head_dim) + hidden
            heads.append(torch.softmax(scores, -1) @ v)
        h = h + torch.cat(heads, -1) @ w[p + "self_attn.o_proj.weight"].T
        x = norm(h, w[p + "post_attention_layernorm.weight"])
        gate = x @ w[p + "mlp.gate_proj.weight"].T
        up = x @ w[p + "mlp.up_proj.weight"].T
        h = h + (gate * torch.sigmoid(gate) * up) @ w[p + "mlp.down_proj.weight"].T
    return norm(h, w["model.norm.weight"]) @ w["lm_head.weight"].T


def test_the_whole_model_equals_the_formulas() -> None:
    tokens, targets = data()
    (stage,) = build(1)
    wanted = reference_logits(to_state_dict(CONFIG, [stage.flat]), tokens)
    torch.testing.assert_close(stage(tokens).double(), wanted, rtol=1e-4, atol=1e-5)
    loss = -torch.log_softmax(wanted, -1).gather(-1, targets[..., None])[..., 0]
    found = stage.token_loss(tokens, targets)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), loss, rtol=1e-5, atol=1e-5)


def test_the_same_weights_twice_give_the_same_bits() -> None:
    tokens, targets = data()
    results = []
    for _ in range(2):
        stages = build(2)
        loss = pipeline_pass(stages, tokens, targets)
        results.append((loss, [stage.flat_grad.clone() for stage in stages]))
    assert torch.equal(results[0][0], results[1][0])
    for first, second in zip(results[0][1], results[1][1], strict=True):
        assert torch.equal(first, second)


def test_gradients_add_up_in_the_flat_buffer_and_stay_views() -> None:
    tokens, targets = data()
    stages = build(2)
    pipeline_pass(stages, tokens, targets)
    once = [stage.flat_grad.clone() for stage in stages]
    pipeline_pass(stages, tokens, targets)
    for stage, first in zip(stages, once, strict=True):
        torch.testing.assert_close(stage.flat_grad, 2 * first)
        for spec, (name, parameter) in zip(stage.specs, sorted_by_layout(stage), strict=True):
            assert name == spec.name
            assert parameter.shape == spec.shape
            assert parameter.data_ptr() == stage.flat.data_ptr() + 4 * spec.offset
            assert parameter.grad is not None
            assert parameter.grad.data_ptr() == stage.flat_grad.data_ptr() + 4 * spec.offset
        stage.zero_grad()
        assert not stage.flat_grad.any()
    pipeline_pass(stages, tokens, targets)
    for stage, first in zip(stages, once, strict=True):
        assert torch.equal(stage.flat_grad, first)


def sorted_by_layout(stage: Stage) -> list[tuple[str, Tensor]]:
    order = {spec.name: i for i, spec in enumerate(stage.specs)}
    return sorted(stage.named_parameters(), key=lambda item: order[item[0]])


def test_padding_stays_zero() -> None:
    tokens, targets = data()
    (stage,) = build(1)
    pipeline_pass([stage], tokens, targets)
    padding = torch.ones(stage.flat.numel(), dtype=torch.bool)
    for spec in stage.specs:
        padding[spec.offset : spec.offset + spec.size] = False
    assert padding.any()
    assert not stage.flat[padding].any()
    assert not stage.flat_grad[padding].any()


def test_parameter_names_are_hugging_faces_with_global_layers() -> None:
    names = {name for name, _ in Stage(CONFIG, 1, 2).named_parameters()}
    assert "model.layers.2.self_attn.q_proj.weight" in names
    assert "model.layers.3.mlp.down_proj.weight" in names
    assert "lm_head.weight" in names
    assert not any(".layers.0." in name or "embed" in name for name in names)
    assert names == {spec.name for spec in layout(CONFIG, 1, 2)}


def test_embed_is_the_input_of_stage_zero() -> None:
    tokens, _ = data()
    first = build(2)[0]
    weight = dict(first.named_parameters())["model.embed_tokens.weight"]
    assert torch.equal(first.embed(tokens), weight[tokens])


def test_no_position_sees_the_future() -> None:
    tokens, _ = data()
    (stage,) = build(1)
    changed = tokens.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % CONFIG.vocab_size
    torch.testing.assert_close(stage(tokens)[:, :7], stage(changed)[:, :7])
    assert not torch.allclose(stage(tokens)[:, 7:], stage(changed)[:, 7:])


def test_using_computes_with_the_weights_it_is_given_and_then_forgets_them() -> None:
    tokens, targets = data()
    own, other = build(1, seed=3)[0], build(1, seed=4)[0]
    before, expected = own.token_loss(tokens, targets), other.token_loss(tokens, targets)
    expected.mean().backward()
    flat = other.flat.clone().requires_grad_()
    with own.using(flat):
        loss = own.token_loss(tokens, targets)
    loss.mean().backward()
    assert torch.equal(loss, expected)
    assert flat.grad is not None and torch.equal(flat.grad, other.flat_grad)
    assert not own.flat_grad.any(), "gradients belong to the weights that were used"
    with pytest.raises(ValueError, match="seq_len 12"), own.using(flat):
        own(torch.zeros(1, 13, dtype=torch.int64))
    assert torch.equal(own.token_loss(tokens, targets), before), "an error inside leaves the stage as it was"


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_using_takes_a_batch_of_workers_at_once() -> None:
    tokens, _ = data()
    stages = [build(2, seed=seed)[0] for seed in (1, 2, 3)]

    def forward(flat: Tensor) -> Tensor:
        with stages[0].using(flat):
            found: Tensor = stages[0](tokens)
        return found

    together = torch.func.vmap(forward)(torch.stack([stage.flat for stage in stages]))
    for stage, found in zip(stages, together, strict=True):
        torch.testing.assert_close(found, stage(tokens), rtol=1e-5, atol=1e-5)


def test_a_skipped_sublayer_adds_nothing_and_gets_no_gradient() -> None:
    tokens, _ = data()
    first = build(4)[0]
    honest, skipped = first(tokens), frozenset({"model.layers.0.self_attn", "model.layers.0.mlp"})
    with first.skipping(skipped):
        assert torch.equal(first(tokens), first.embed(tokens))
    for part in ("self_attn", "mlp"):
        weight = next(name for name, _ in first.named_parameters() if part in name)
        silent = build(4)[0]
        with silent.skipping(frozenset({f"model.layers.0.{part}"})):
            found = silent(tokens)
            found.sum().backward()
        assert not torch.allclose(found, honest) and not torch.allclose(found, first.embed(tokens))
        gradients = {name: parameter.grad for name, parameter in silent.named_parameters()}
        grad = gradients[weight]
        assert grad is not None and not grad.any()
        assert silent.flat_grad.any()
    assert torch.equal(first(tokens), honest), "outside, everything is computed again"


def test_mistakes_are_named() -> None:
    stage = Stage(CONFIG, 0, 2)
    with pytest.raises(ValueError, match="only the last stage"):
        stage.token_loss(*data())
    with pytest.raises(ValueError, match="takes fp32"):
        stage.load_flat(torch.zeros(64))
    with pytest.raises(ValueError, match="takes fp32"):
        stage.load_flat(torch.zeros(flat_size(CONFIG, 0, 2), dtype=torch.float64))
    with pytest.raises(ValueError, match="seq_len 12"):
        stage(torch.zeros(1, 13, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="cut"):
        stage.double()
    with pytest.raises(ValueError, match="num_kv_heads 3"):
        Stage(ModelConfig(dim=32, num_layers=1, num_heads=4, num_kv_heads=3, ffn_dim=8, seq_len=8), 0, 1)
