"""From a job's specification to the settings of the model: the same for workers, seats and the command line."""

from __future__ import annotations

from sentinel_market.domain.job_spec import JobSpec
from sentinel_market.domain.shapes import FrameShapes
from sentinel_market.models.config import ModelConfig
from sentinel_market.models.layout import flat_size
from sentinel_market.models.optimizer import AdamWConfig


def model_config(spec: JobSpec) -> ModelConfig:
    m = spec.model
    return ModelConfig(
        dim=m.dim,
        num_layers=m.num_layers,
        num_heads=m.num_heads,
        num_kv_heads=m.num_kv_heads,
        ffn_dim=m.ffn_dim,
        vocab_size=m.vocab_size,
        seq_len=m.seq_len,
        rope_theta=float(m.rope_theta),
        norm_eps=float(m.norm_eps),
    )


def optimizer_config(spec: JobSpec) -> AdamWConfig:
    t = spec.training
    return AdamWConfig(
        learning_rate=float(t.learning_rate),
        min_learning_rate=float(t.min_learning_rate),
        warmup_steps=t.warmup_steps,
        total_steps=t.steps,
        beta1=float(t.beta1),
        beta2=float(t.beta2),
        eps=float(t.eps),
        weight_decay=float(t.weight_decay),
    )


def frame_shapes(spec: JobSpec) -> FrameShapes:
    config = model_config(spec)
    stages = spec.parallelism.stages
    largest = max(flat_size(config, stage, stages) for stage in range(stages))
    return FrameShapes(spec.training.microbatch_size, config.seq_len, config.dim, largest)
