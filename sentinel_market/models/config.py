"""Sizes of a model, its cut into stages, and what a stage costs in FLOPs and bytes. Pure arithmetic, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

ALIGNMENT = 64
"""Parameters start at multiples of this many elements, so that a flat buffer is also a matrix [N/64, 64]."""

_FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A Llama-family decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU, untied lm_head."""

    dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    ffn_dim: int
    vocab_size: int = 256
    seq_len: int
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        """Channels of one attention head."""
        return self.dim // self.num_heads

    @property
    def kv_dim(self) -> int:
        """Channels of all key (or value) heads together."""
        return self.head_dim * self.num_kv_heads

    def validate(self) -> list[str]:
        """Every problem at once, each naming the value and what to change; empty when the model can be built."""
        sizes = {
            "dim": self.dim,
            "num_layers": self.num_layers,
            "num_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads,
            "ffn_dim": self.ffn_dim,
            "seq_len": self.seq_len,
        }
        problems = [f"{name} is {value}; it must be at least 1" for name, value in sizes.items() if value < 1]
        if self.vocab_size < 2:
            problems.append(f"vocab_size is {self.vocab_size}; it must be at least 2 (256 for bytes)")
        if self.rope_theta <= 0:
            problems.append(f"rope_theta is {self.rope_theta}; it must be positive (10000 is usual)")
        if self.norm_eps <= 0:
            problems.append(f"norm_eps is {self.norm_eps}; it must be positive (1e-5 is usual)")
        if problems:
            return problems
        if self.dim % self.num_heads:
            problems.append(f"dim {self.dim} does not divide by num_heads {self.num_heads}; change one of them")
        elif self.head_dim % 2:
            problems.append(
                f"dim / num_heads is {self.head_dim}; rotary positions need an even number, so change dim or num_heads"
            )
        if self.num_heads % self.num_kv_heads:
            problems.append(
                f"num_heads {self.num_heads} does not divide by num_kv_heads {self.num_kv_heads}; "
                "each key head must serve the same number of query heads"
            )
        return problems


def partition(num_layers: int, num_stages: int) -> tuple[range, ...]:
    """Cut layers 0..num_layers-1 into contiguous stages whose sizes differ by at most one, larger ones first.

    The last stage also has the output matrix, so it is the one to keep small. ValueError when a stage would be empty.
    """
    if num_stages < 1:
        raise ValueError(f"num_stages is {num_stages}; it must be at least 1")
    if num_stages > num_layers:
        raise ValueError(
            f"{num_stages} stages for {num_layers} layers leave a stage empty; use at most {num_layers} stages"
        )
    size, larger = divmod(num_layers, num_stages)
    starts = [stage * size + min(stage, larger) for stage in range(num_stages + 1)]
    return tuple(range(first, end) for first, end in pairwise(starts))


def stage_layers(config: ModelConfig, stage: int, num_stages: int) -> range:
    """The global layer numbers of one stage."""
    layers = partition(config.num_layers, num_stages)
    if not 0 <= stage < num_stages:
        raise ValueError(f"stage {stage} is not one of 0..{num_stages - 1}")
    return layers[stage]


def _matmul_weights_per_layer(config: ModelConfig) -> int:
    return config.dim * (2 * config.dim + 2 * config.kv_dim + 3 * config.ffn_dim)


def flops_per_token(config: ModelConfig, stage: int, num_stages: int) -> int:
    """FLOPs of one token at one stage, forward plus backward (three times the forward), as the price is set by them.

    A multiply-add counts 2. Attention counts the causal half of the T x T scores. Norms, softmax, rotary and the
    embedding look-up are left out: they are under 1 % at any size that matters.
    """
    layers = stage_layers(config, stage, num_stages)
    attention = 2 * config.dim * (config.seq_len + 1)  # scores and mix: 2 x 2 x dim x (T + 1) / 2
    forward = len(layers) * (2 * _matmul_weights_per_layer(config) + attention)
    if stage == num_stages - 1:
        forward += 2 * config.dim * config.vocab_size
    return 3 * forward


def num_parameters(config: ModelConfig, stage: int, num_stages: int) -> int:
    """Parameters of one stage, without padding."""
    layers = stage_layers(config, stage, num_stages)
    count = len(layers) * (_matmul_weights_per_layer(config) + 2 * config.dim)
    if stage == 0:
        count += config.vocab_size * config.dim
    if stage == num_stages - 1:
        count += config.vocab_size * config.dim + config.dim
    return count


def memory_estimate(
    config: ModelConfig,
    stage: int,
    num_stages: int,
    *,
    batch_size: int,
    num_in_flight: int = 1,
    optimizer: bool = False,
) -> int:
    """Bytes a process needs for one stage, beside the runtime itself; an estimate from above, for job quotes.

    Weights and gradients, the two AdamW moments with ``optimizer`` (a seat), and what autograd keeps of
    ``num_in_flight`` microbatches of [batch_size, seq_len]: per layer and token about 14 dim-sized rows, 4 ffn-sized
    rows and the attention probabilities (as if no fused kernel saved them).
    """
    parameters = num_parameters(config, stage, num_stages)
    tokens = batch_size * config.seq_len
    per_layer = tokens * (14 * config.dim + 4 * config.ffn_dim + config.num_heads * config.seq_len)
    activations = len(stage_layers(config, stage, num_stages)) * per_layer
    if stage == num_stages - 1:
        activations += 3 * tokens * config.vocab_size
    copies = 4 if optimizer else 2
    return _FLOAT_BYTES * (copies * parameters + num_in_flight * activations)
