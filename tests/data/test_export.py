"""A model written to disk reads back to the same bits, for any cut, without pickle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from sentinel_market.data.export import read_export, write_export
from sentinel_market.errors import ConfigError
from sentinel_market.models.config import ModelConfig
from sentinel_market.models.export import to_state_dict
from sentinel_market.models.init import init_flat

CONFIG = ModelConfig(dim=16, num_layers=3, num_heads=2, num_kv_heads=1, ffn_dim=24, vocab_size=32, seq_len=8)


def test_round_trip_over_another_cut(tmp_path: Path) -> None:
    flats = [init_flat(CONFIG, stage, 3, 1) for stage in range(3)]
    paths = write_export(tmp_path / "new" / "model", CONFIG, flats)
    assert sorted(path.name for path in paths) == [
        "TOKENIZER.txt",
        "config.json",
        "generation_config.json",
        "model.safetensors",
    ]
    for found, stage in zip(read_export(tmp_path / "new" / "model", CONFIG, 2), range(2), strict=True):
        assert torch.equal(found, init_flat(CONFIG, stage, 2, 1))


def test_others_can_read_it(tmp_path: Path) -> None:
    flats = [init_flat(CONFIG, 0, 1, 1)]
    write_export(tmp_path, CONFIG, flats)
    described = json.loads((tmp_path / "config.json").read_text())
    assert described["model_type"] == "llama"
    assert json.loads((tmp_path / "generation_config.json").read_text())["max_length"] == 8
    assert "bytes of UTF-8" in (tmp_path / "TOKENIZER.txt").read_text()
    with safe_open(tmp_path / "model.safetensors", "pt") as weights:
        assert weights.metadata() == {"format": "pt"}
        assert set(weights.keys()) == set(to_state_dict(CONFIG, flats))
        assert weights.get_tensor("lm_head.weight").shape == (32, 16)


def test_trouble_is_named(tmp_path: Path) -> None:
    flats = [init_flat(CONFIG, 0, 1, 1)]
    with pytest.raises(ConfigError, match=r"model\.safetensors does not exist"):
        read_export(tmp_path, CONFIG, 1)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write the model to"):
        write_export(tmp_path / "file", CONFIG, flats)
    write_export(tmp_path, CONFIG, flats)
    other = ModelConfig(dim=16, num_layers=4, num_heads=2, num_kv_heads=1, ffn_dim=24, vocab_size=32, seq_len=8)
    with pytest.raises(ConfigError, match=r"model\.layers\.3.* is missing"):
        read_export(tmp_path, other, 1)
    (tmp_path / "model.safetensors").write_bytes(b"garbage")
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        read_export(tmp_path, CONFIG, 1)
