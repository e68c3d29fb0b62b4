"""Where each parameter of a stage lies in its flat buffer. No torch: prices, sizes and digests need no module.

Canonical order: ``model.embed_tokens.weight`` (stage 0), the layers by ascending global number, each in the order of
``LAYER_PARAMETERS`` (layer 10 comes after layer 9, not after layer 1), then ``model.norm.weight`` and
``lm_head.weight`` (last stage). Every parameter starts at a multiple of 64 elements; the padding is zero for ever:
its gradient is never written, so neither is its weight.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from sentinel_market.models.config import ALIGNMENT, ModelConfig, stage_layers

if TYPE_CHECKING:
    from torch import Tensor

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"


class ParamSpec(NamedTuple):
    """One parameter: Hugging Face name, shape, first element in the flat buffer, and whether AdamW decays it."""

    name: str
    shape: tuple[int, ...]
    offset: int
    decay: bool

    @property
    def size(self) -> int:
        """Number of elements, without padding."""
        return math.prod(self.shape)

    def of(self, flat: Tensor) -> Tensor:
        """This parameter as a view of its stage's flat buffer [N]."""
        return flat[self.offset : self.offset + self.size].view(self.shape)


def _shapes(config: ModelConfig, stage: int, num_stages: int) -> list[tuple[str, tuple[int, ...]]]:
    dim, ffn, kv_dim = config.dim, config.ffn_dim, config.kv_dim
    shapes: list[tuple[str, tuple[int, ...]]] = []
    if stage == 0:
        shapes.append((EMBEDDING, (config.vocab_size, dim)))
    for layer in stage_layers(config, stage, num_stages):
        prefix = f"model.layers.{layer}."
        shapes += [
            (prefix + "input_layernorm.weight", (dim,)),
            (prefix + "self_attn.q_proj.weight", (dim, dim)),
            (prefix + "self_attn.k_proj.weight", (kv_dim, dim)),
            (prefix + "self_attn.v_proj.weight", (kv_dim, dim)),
            (prefix + "self_attn.o_proj.weight", (dim, dim)),
            (prefix + "post_attention_layernorm.weight", (dim,)),
            (prefix + "mlp.gate_proj.weight", (ffn, dim)),
            (prefix + "mlp.up_proj.weight", (ffn, dim)),
            (prefix + "mlp.down_proj.weight", (dim, ffn)),
        ]
    if stage == num_stages - 1:
        shapes += [(FINAL_NORM, (dim,)), (LM_HEAD, (config.vocab_size, dim))]
    return shapes


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def layout(config: ModelConfig, stage: int, num_stages: int) -> tuple[ParamSpec, ...]:
    """The parameters of one stage in canonical order with their offsets."""
    specs: list[ParamSpec] = []
    offset = 0
    for name, shape in _shapes(config, stage, num_stages):
        specs.append(ParamSpec(name, shape, offset, decay=len(shape) == 2))
        offset += _padded(math.prod(shape))
    return tuple(specs)


def parameter(flat: Tensor, config: ModelConfig, stage: int, num_stages: int, name: str) -> Tensor:
    """A view of one named parameter in a stage's flat buffer [N]."""
    return next(spec for spec in layout(config, stage, num_stages) if spec.name == name).of(flat)


def flat_size(config: ModelConfig, stage: int, num_stages: int) -> int:
    """N: elements of the flat buffer of one stage, padding included; always a multiple of 64."""
    last = layout(config, stage, num_stages)[-1]
    return last.offset + _padded(last.size)
