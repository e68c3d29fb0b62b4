"""Sampling text from a finished model: all stages chained in one process, no cache, CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sentinel_market.models.config import ModelConfig
from sentinel_market.models.stage import Stage


def build_stages(config: ModelConfig, flats: Sequence[Tensor]) -> list[Stage]:
    """A whole model: one stage a flat buffer [N]."""
    stages = [Stage(config, stage, len(flats)) for stage in range(len(flats))]
    for stage, flat in zip(stages, flats, strict=True):
        stage.load_flat(flat)
    return stages


@torch.no_grad()
def sample(
    config: ModelConfig,
    flats: Sequence[Tensor],
    prompt_tokens: Sequence[int],
    num_tokens: int,
    temperature: float = 0.8,
    seed: int = 0,
) -> list[int]:
    """``num_tokens`` new token ids after the prompt (prompt not included); temperature 0 takes the likeliest.

    The model sees at most the last ``seq_len`` tokens. The prompt needs at least one token.
    """
    if not prompt_tokens:
        raise ValueError("the prompt is empty; give at least one token")
    wrong = [token for token in prompt_tokens if not 0 <= token < config.vocab_size]
    if wrong:
        raise ValueError(f"prompt token {wrong[0]} is outside the vocabulary 0..{config.vocab_size - 1}")
    if temperature < 0:
        raise ValueError(f"temperature is {temperature}; it must not be negative")
    stages = build_stages(config, flats)
    generator = torch.Generator().manual_seed(seed)
    tokens = list(prompt_tokens)
    for _ in range(num_tokens):
        x = torch.tensor([tokens[-config.seq_len :]])
        for stage in stages:
            x = stage(x)
        logits_V = x[0, -1].double()
        if temperature == 0:
            choice = int(logits_V.argmax())
        else:
            probabilities = torch.softmax(logits_V / temperature, dim=-1)
            choice = int(torch.multinomial(probabilities, 1, generator=generator))
        tokens.append(choice)
    return tokens[len(prompt_tokens) :]
