"""One pipeline stage of a Llama-family model whose parameters and gradients are views of two flat buffers.

One buffer a kind means one frame a weight synchronisation, one pass a sketch, one call an update. Shapes: B sequences,
T positions, D = dim, V = vocab_size, N = flat_size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from sentinel_market.models.config import ModelConfig, partition
from sentinel_market.models.layout import EMBEDDING, FINAL_NORM, LM_HEAD, ParamSpec, flat_size, layout

__all__ = ["ParamSpec", "Stage", "flat_size", "layout", "partition"]


class Stage(nn.Module):
    """Stage ``stage`` of ``num_stages``. ``named_parameters`` gives Hugging Face names with global layer numbers.

    A new stage holds zeros; call ``load_flat``. Gradients add up in ``flat_grad`` over backward passes until
    ``zero_grad_flat``. Do not use ``zero_grad`` or ``.to``: both would cut the views off.
    """

    flat: Tensor
    flat_grad: Tensor
    rope_cos: Tensor
    rope_sin: Tensor

    def __init__(self, config: ModelConfig, stage: int, num_stages: int) -> None:
        super().__init__()
        problems = config.validate()
        if problems:
            raise ValueError("; ".join(problems))
        self.config = config
        self.stage = stage
        self.num_stages = num_stages
        self.layers = partition(config.num_layers, num_stages)[stage]
        self.specs = layout(config, stage, num_stages)
        self.is_first = stage == 0
        self.is_last = stage == num_stages - 1
        size = flat_size(config, stage, num_stages)
        # Plain attributes, not registered buffers: a state dict holds the named views only.
        self.flat = torch.zeros(size)
        self.flat_grad = torch.zeros(size)
        self._weights: dict[str, Tensor] = {spec.name: self._add_parameter(spec) for spec in self.specs}
        self.rope_cos, self.rope_sin = _rotary_tables(config)
        self._skipped: frozenset[str] = frozenset()

    def _add_parameter(self, spec: ParamSpec) -> nn.Parameter:
        parameter = nn.Parameter(spec.of(self.flat))
        # With .grad set beforehand, autograd's accumulation adds in place, so it lands in flat_grad.
        parameter.grad = spec.of(self.flat_grad)
        *path, leaf = spec.name.split(".")
        module: nn.Module = self
        for part in path:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            child = module._modules[part]
            assert child is not None
            module = child
        module.register_parameter(leaf, parameter)
        return parameter

    def load_flat(self, flat: Tensor) -> None:
        """Copy weights [N] in; shape and dtype must be those of ``.flat``."""
        if flat.shape != self.flat.shape or flat.dtype != self.flat.dtype:
            raise ValueError(
                f"stage {self.stage} of {self.num_stages} takes fp32 [{self.flat.numel()}], "
                f"got {flat.dtype} {list(flat.shape)}"
            )
        self.flat.copy_(flat)

    @contextmanager
    def using(self, flat: Tensor) -> Iterator[None]:
        """Inside, the stage computes with views of ``flat`` [N] in place of its own parameters (a batched argument of
        ``torch.func.vmap``, say); gradients then belong to ``flat``."""
        own = self._weights
        self._weights = {spec.name: spec.of(flat) for spec in self.specs}
        try:
            yield
        finally:
            self._weights = own

    @contextmanager
    def skipping(self, sublayers: frozenset[str]) -> Iterator[None]:
        """Inside, these sublayers (``model.layers.3.self_attn``, ``model.layers.3.mlp``) add nothing: what a worker
        that saves itself the work computes."""
        self._skipped = sublayers
        try:
            yield
        finally:
            self._skipped = frozenset()

    def zero_grad_flat(self) -> None:
        """Set the whole gradient to zero; the views stay."""
        self.flat_grad.zero_()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Same as ``zero_grad_flat``: torch's own would drop the views."""
        del set_to_none
        self.zero_grad_flat()

    def _apply(self, *_args: object, **_kwargs: object) -> Stage:
        raise RuntimeError("a Stage cannot be moved or cast: that would cut its parameters off the flat buffers")

    def embed(self, tokens_BT: Tensor) -> Tensor:
        """Stage 0: the embedding rows [B, T, D] of int64 tokens, which a screen treats as this stage's input."""
        return F.embedding(tokens_BT, self._weights[EMBEDDING])

    def forward(self, x: Tensor) -> Tensor:
        """Stage 0 takes int64 tokens [B, T], others h [B, T, D]; the last returns logits [B, T, V], others h."""
        h_BTD = self.embed(x) if self.is_first else x
        for layer in self.layers:
            h_BTD = self._layer(h_BTD, f"model.layers.{layer}.")
        if not self.is_last:
            return h_BTD
        return F.linear(self._norm(h_BTD, FINAL_NORM), self._weights[LM_HEAD])

    def token_loss(self, x: Tensor, targets_BT: Tensor) -> Tensor:
        """Last stage: cross entropy a token, fp32 [B, T] in nats. ``x`` as in ``forward``."""
        if not self.is_last:
            raise ValueError(f"stage {self.stage} of {self.num_stages} has no loss; only the last stage has")
        logits_BTV = self(x)
        loss = F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), reduction="none")
        return loss.view(targets_BT.shape)

    def _norm(self, h_BTD: Tensor, name: str) -> Tensor:
        return F.rms_norm(h_BTD, (self.config.dim,), self._weights[name], self.config.norm_eps)

    def _layer(self, h_BTD: Tensor, prefix: str) -> Tensor:
        w = self._weights
        if prefix + "self_attn" not in self._skipped:
            h_BTD = h_BTD + self._attention(self._norm(h_BTD, prefix + "input_layernorm.weight"), prefix + "self_attn.")
        if prefix + "mlp" in self._skipped:
            return h_BTD
        x = self._norm(h_BTD, prefix + "post_attention_layernorm.weight")
        gate = F.silu(F.linear(x, w[prefix + "mlp.gate_proj.weight"]))
        up = F.linear(x, w[prefix + "mlp.up_proj.weight"])
        return h_BTD + F.linear(gate * up, w[prefix + "mlp.down_proj.weight"])

    def _attention(self, x_BTD: Tensor, prefix: str) -> Tensor:
        w, config = self._weights, self.config
        batch, length, dim = x_BTD.shape
        if length > config.seq_len:
            raise ValueError(f"{length} positions, but the model was built for seq_len {config.seq_len}")
        heads = (batch, length, -1, config.head_dim)
        q = F.linear(x_BTD, w[prefix + "q_proj.weight"]).view(heads).transpose(1, 2)
        k = F.linear(x_BTD, w[prefix + "k_proj.weight"]).view(heads).transpose(1, 2)
        v = F.linear(x_BTD, w[prefix + "v_proj.weight"]).view(heads).transpose(1, 2)
        q, k = self._rotate(q), self._rotate(k)
        shared = config.num_heads // config.num_kv_heads
        if shared > 1:
            k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
        # One thread, dim 64 / 256, forward + backward: this kernel 1.5 / 3.8 ms, scores by hand 3.0 / 5.1 ms.
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.linear(out.transpose(1, 2).reshape(batch, length, dim), w[prefix + "o_proj.weight"])

    def _rotate(self, x_BHTC: Tensor) -> Tensor:
        # rotate_half(x) = cat(-x2, x1) = roll(x, half) * (-1, ..., +1, ...); the sign is folded into rope_sin.
        length, channels = x_BHTC.shape[2:]
        turned = torch.roll(x_BHTC, channels // 2, dims=-1)
        return x_BHTC * self.rope_cos[:length] + turned * self.rope_sin[:length]


def _rotary_tables(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """cos [T, C] and signed sin [T, C] in the half-split convention of Hugging Face's Llama, C = head_dim."""
    half = config.head_dim // 2
    frequency = [config.rope_theta ** (-i / half) for i in range(half)]
    angles = [[position * f for f in frequency] for position in range(config.seq_len)]
    cos = torch.tensor([[math.cos(a) for a in row] * 2 for row in angles])
    sin = torch.tensor([[-math.sin(a) for a in row] + [math.sin(a) for a in row] for row in angles])
    return cos, sin
