"""The demo's job and its sizes, in one place."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sentinel_market.domain.job_spec import JobSpec, parse_job
from sentinel_market.domain.quote import QuoteParams, quote

TOKEN = 10**18
PASSWORD = "demo"


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """Sizes of a demo. The defaults are the main job; tests make it shorter."""

    seed: int = 0
    steps: int = 400
    stages: int = 4
    replicas: int = 3
    dim: int = 64
    seq_len: int = 128
    microbatches: int = 6
    microbatch_size: int = 4
    epoch_steps: int = 50
    validation_sequences: int = 128
    policy: str = "screen+confirm+audit"
    hostile: bool = True
    slot_stake: int = 100 * TOKEN
    seat_stake: int = 500 * TOKEN
    deposit_worker: int = 120 * TOKEN
    deposit_verifier: int = 700 * TOKEN


def job_toml(s: DemoSettings) -> str:
    """The job file as a submitter would write it; the budget is filled in by ``demo_spec``."""
    audits = s.policy.endswith("+audit")
    return f"""name = "standard-library"
seed = {s.seed}
[model]
dim = {s.dim}
num_layers = {s.stages}
num_heads = 4
num_kv_heads = 2
ffn_dim = {3 * s.dim}
seq_len = {s.seq_len}
[data]
kind = "stdlib"
[training]
steps = {s.steps}
microbatches = {s.microbatches}
microbatch_size = {s.microbatch_size}
learning_rate = 0.01
min_learning_rate = 0.001
warmup_steps = {min(20, s.steps // 4)}
epoch_steps = {min(s.epoch_steps, s.steps)}
validation_sequences = {s.validation_sequences}
[parallelism]
stages = {s.stages}
replicas = {s.replicas}
[verification]
policy = "{s.policy}"
audit_ppm = {10_000 if audits else 0}
warmup_audit_ppm = {100_000 if audits else 0}
warmup_steps = {min(10, s.steps // 2)}
[market]
budget = "1000000"
price_per_microbatch = "0.1"
relay_price = "0.01"
audit_price = "0.01"
slot_stake = "{s.slot_stake // TOKEN}"
seat_stake = "{s.seat_stake // TOKEN}"
planned_seconds = 60
"""


def demo_spec(s: DemoSettings, params: QuoteParams) -> JobSpec:
    """The job with a budget a fifth above what its own plan needs, rounded up to whole tokens."""
    spec = parse_job(job_toml(s))
    needed = quote(spec, params).minimum
    budget = -(-needed * 6 // (5 * TOKEN)) * TOKEN
    return replace(spec, market=replace(spec.market, budget=budget))
