"""A finished model on disk: safetensors beside a Hugging Face config, readable without this package."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from sentinel_market.errors import ConfigError
from sentinel_market.models.config import ModelConfig
from sentinel_market.models.export import from_state_dict, hf_config, to_state_dict

WEIGHTS = "model.safetensors"
_BYTES_NOTE = "Token ids are the bytes of UTF-8 text (vocabulary 256): ids = list(text.encode())."


def write_export(
    directory: str | Path, config: ModelConfig, flats: Sequence[Tensor], *, tokenizer: str = "bytes"
) -> list[Path]:
    """Write model.safetensors, config.json, generation_config.json and TOKENIZER.txt; returns their paths.

    ``flats``: final weights fp32 [N] of the stages in order. The directory is made when missing.
    """
    target = Path(directory)
    try:
        target.mkdir(parents=True, exist_ok=True)
        weights = target / WEIGHTS
        save_file(to_state_dict(config, flats), weights, metadata={"format": "pt"})
        generation = {"do_sample": True, "temperature": 0.8, "max_length": config.seq_len}
        note = _BYTES_NOTE if tokenizer == "bytes" else f"Token ids are those of the tokenizers file {tokenizer}."
        texts = {
            "config.json": json.dumps(hf_config(config), indent=2),
            "generation_config.json": json.dumps(generation, indent=2),
            "TOKENIZER.txt": note,
        }
        for name, text in texts.items():
            (target / name).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the model to {target}: {error.strerror or error}") from error
    return [weights, *(target / name for name in texts)]


def read_export(directory: str | Path, config: ModelConfig, num_stages: int) -> list[Tensor]:
    """Flat weights fp32 [N] a stage of an export, for any number of stages. ConfigError when it does not fit."""
    path = Path(directory) / WEIGHTS
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; give the directory that holds {WEIGHTS}")
    try:
        return from_state_dict(config, load_file(path), num_stages)
    except (ValueError, SafetensorError) as error:
        raise ConfigError(f"{path}: {error}") from error
