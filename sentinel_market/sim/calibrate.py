"""What a job's verification is expected to cost and to deter, from its file alone. Arithmetic, no torch.

Costs are in forward passes of a frame's stage: a forward frame is 1, a backward frame 2, and whoever repeats a backward
frame does its forward again, 3. Honest workers after warm-up are assumed, so every replay agrees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sentinel_market.domain.ids import BACKWARD, FORWARD
from sentinel_market.domain.job_spec import BPS, PPM, JobSpec
from sentinel_market.domain.quote import HONEST_FLAG_PPM, RECOMPUTE_PPM, SHIELD_FACTOR, stage_flops, stage_prices

WORK_A_FRAME: Final = 1.5
"""Mean of a forward (1) and a backward frame (2)."""
REPEAT_A_FRAME: Final = 2.0
"""Mean of a repeated forward (1) and a repeated backward frame (3)."""
CROSS_AUDIT: Final = 0.25
"""Cross-audits, and whole-gradient audits, are this share of the audit share (protocol.md: x = p_g = p/4)."""
FLOAT_BYTES: Final = 4
TENSORS_A_TOKEN: Final = 4
"""In and out, forward and backward: what a worker's link carries of the boundary tensors."""
SPEEDS: Final = (10, 50, 100)
"""TFLOP/s of the workers in the table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerNeeds:
    """What one worker of ``tflops`` TFLOP/s asks of all verifiers together, and of its link."""

    tflops: int
    tokens_per_second: float
    audit_cores: float
    screen_cores: float
    mbits: float

    @property
    def cores(self) -> float:
        """Cores in all."""
        return self.audit_cores + self.screen_cores


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Shares are of frames (or of the workers' computation), money is in base units."""

    frames_a_step: int
    flags_a_step: float
    audits_a_step: float
    warmup_audits_a_step: float
    confirmations_a_step: float
    replay_share: float
    """Work that replays add, a share of all workers' computation."""
    seat_share: float
    """Work of all seats: recomputes, cross-audits and whole-gradient audits, a share of all workers' computation."""
    seats: int
    audit_ppm: int
    slash: int
    unit_price: int
    """Price of one pass at the dearest stage, rounded down."""
    break_even: int
    """A free rider's gain a false frame above which cheating would pay on average, audits alone finding it."""
    break_even_shielded: int
    """The same with replicas that vouch for it."""
    needs: tuple[WorkerNeeds, ...]

    @property
    def seat_share_each(self) -> float:
        """Of all workers' FLOP/s, what one seat's CPU must be able to add."""
        return self.seat_share / self.seats

    def times_price(self, gain: int) -> float:
        """A gain in prices of a pass."""
        return gain / self.unit_price if self.unit_price else float("inf")


def calibrate(
    spec: JobSpec,
    *,
    core_gflops: float = 50.0,
    core_gbytes: float = 1.0,
    slash_bps: int = BPS,
    speeds: tuple[int, ...] = SPEEDS,
) -> Calibration:
    """The expectations of a job. ``core_gflops``: fp32 GFLOP/s of a verifier's core; ``core_gbytes``: GB/s of frames
    that a core screens and hashes; ``slash_bps``: part of the slot stake slashed for a wrong frame, basis points."""
    stages, training = spec.parallelism.stages, spec.training
    audits = spec.verification.audits
    confirms = spec.verification.policy != "none"
    late = training.steps - 1
    shares, warm = ([_share(spec, stage, step) if audits else 0.0 for stage in range(stages)] for step in (late, 0))
    least = [spec.least_audit_ppm(stage, late) / PPM if audits else 0.0 for stage in range(stages)]
    flops = stage_flops(spec.model, stages)
    flags = HONEST_FLAG_PPM / PPM if confirms else 0.0
    straight = RECOMPUTE_PPM / PPM if spec.parallelism.replicas >= 3 else 1.0
    frames_a_stage = 2 * training.microbatches
    # A frame that is flagged and drawn is looked at once; both together are too rare to matter.
    looked = [share + flags for share in shares]
    mean = sum(flops[s] * looked[s] for s in range(stages)) / sum(flops)
    drawn = sum(flops[s] * shares[s] for s in range(stages)) / sum(flops)
    repeat = REPEAT_A_FRAME / WORK_A_FRAME
    cross = CROSS_AUDIT * drawn * repeat
    whole = CROSS_AUDIT * drawn  # all that the replica did in the step, so nothing is done twice
    seat_share = mean * straight * repeat + cross + whole
    slash = spec.market.slot_stake * slash_bps // BPS
    prices = [price // 2 for price in stage_prices(spec)]
    even = [int(slash * share) for share in least]
    worst = min(range(stages), key=lambda s: even[s] / prices[s] if prices[s] else float("inf"))
    return Calibration(
        frames_a_step=frames_a_stage * stages,
        flags_a_step=flags * frames_a_stage * stages,
        audits_a_step=frames_a_stage * sum(shares),
        warmup_audits_a_step=frames_a_stage * sum(warm),
        confirmations_a_step=frames_a_stage * sum(looked),
        replay_share=mean * (1 - straight) * repeat,
        seat_share=seat_share,
        seats=spec.seats.num,
        audit_ppm=round(PPM * least[worst]),
        slash=slash,
        unit_price=prices[worst],
        break_even=even[worst],
        break_even_shielded=even[worst] // SHIELD_FACTOR,
        needs=tuple(_needs(spec, speed, seat_share, core_gflops, core_gbytes) for speed in speeds),
    )


def _share(spec: JobSpec, stage: int, step: int) -> float:
    """Of the stage's passes, both directions alike."""
    return sum(spec.audit_ppm(stage, step, direction) for direction in (FORWARD, BACKWARD)) / (2 * PPM)


def _needs(spec: JobSpec, tflops: int, seat_share: float, core_gflops: float, core_gbytes: float) -> WorkerNeeds:
    """Of a worker at the stage with the most FLOPs, which sets the pace of all."""
    model, stages, training = spec.model, spec.parallelism.stages, spec.training
    heaviest = max(stage_flops(model, stages))
    tokens = tflops * 1e12 * model.seq_len / (3 * heaviest)
    activations = TENSORS_A_TOKEN * FLOAT_BYTES * model.dim * tokens
    # Once a step its gradient goes out and the new weights come in; it computes its part of the step's tokens.
    own_tokens = training.microbatches * training.microbatch_size * model.seq_len / spec.parallelism.replicas
    updates = 2 * FLOAT_BYTES * _weights(spec) * tokens / own_tokens
    return WorkerNeeds(
        tflops=tflops,
        tokens_per_second=tokens,
        audit_cores=seat_share * tflops * 1e3 / core_gflops,
        screen_cores=activations / (core_gbytes * 1e9) if spec.verification.policy != "none" else 0.0,
        mbits=8 * (activations + updates) / 1e6,
    )


def _weights(spec: JobSpec) -> int:
    """Parameters of the largest stage, from above."""
    model, stages = spec.model, spec.parallelism.stages
    kv_dim = model.head_dim * model.num_kv_heads
    layer = 2 * model.dim * model.dim + 2 * model.dim * kv_dim + 3 * model.dim * model.ffn_dim + 2 * model.dim
    return -(-model.num_layers // stages) * layer + model.vocab_size * model.dim + model.dim
