"""Flat buffers to named weights and back, and the Hugging Face description of the model. No files here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sentinel_market.models.config import ModelConfig
from sentinel_market.models.layout import flat_size, layout


def to_state_dict(config: ModelConfig, flats: Sequence[Tensor]) -> dict[str, Tensor]:
    """Named copies of all parameters of a model, given the flat weights [N] of its stages in order."""
    num_stages = len(flats)
    weights: dict[str, Tensor] = {}
    for stage, flat in enumerate(flats):
        if flat.numel() != flat_size(config, stage, num_stages):
            raise ValueError(
                f"flat weights of stage {stage} of {num_stages} have {flat.numel()} elements, "
                f"the model needs {flat_size(config, stage, num_stages)}"
            )
        for spec in layout(config, stage, num_stages):
            weights[spec.name] = spec.of(flat).clone()
    return weights


def from_state_dict(config: ModelConfig, weights: Mapping[str, Tensor], num_stages: int) -> list[Tensor]:
    """Inverse of ``to_state_dict``, for any number of stages. ValueError names weights that do not fit."""
    specs = [layout(config, stage, num_stages) for stage in range(num_stages)]
    wanted = {spec.name: spec.shape for stage in specs for spec in stage}
    problems = [f"{name} is missing" for name in wanted if name not in weights]
    problems += [f"{name} is unknown" for name in weights if name not in wanted]
    problems += [
        f"{name} has shape {list(weights[name].shape)}, not {list(shape)}"
        for name, shape in wanted.items()
        if name in weights and tuple(weights[name].shape) != shape
    ]
    if problems:
        raise ValueError("weights do not fit the model: " + "; ".join(problems[:8]))
    flats = []
    for stage, stage_specs in enumerate(specs):
        flat = torch.zeros(flat_size(config, stage, num_stages))
        for spec in stage_specs:
            flat[spec.offset : spec.offset + spec.size] = weights[spec.name].reshape(-1)
        flats.append(flat)
    return flats


def hf_config(config: ModelConfig) -> dict[str, object]:
    """Content of ``config.json`` for ``LlamaForCausalLM``."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": config.dim,
        "intermediate_size": config.ffn_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.seq_len,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "torch_dtype": "float32",
        "use_cache": True,
    }
