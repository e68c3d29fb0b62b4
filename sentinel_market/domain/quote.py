"""What a job costs, in integers of base units: the formulas of ``protocol.md`` ("Pay"), every term named.

Units are counted in passes: one accepted forward or backward is 1, a microbatch at a stage is 2. The price of
a unit is proportional to the FLOPs of its stage. So that no base unit is lost to rounding, prices are kept a
*stage*, for two passes; they add up to ``price_per_microbatch`` exactly, and ``unit_pay`` rounds once, down,
over all units of an account at a stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sentinel_market.domain.ids import BACKWARD, FORWARD
from sentinel_market.domain.job_spec import BPS, PPM, JobSpec, ModelSection, format_amount
from sentinel_market.errors import JobSpecError

HONEST_FLAG_PPM: Final = 5_000
"""Share of honest frames that the screen is set to flag at most (0.5 %), in parts per million."""
RECOMPUTE_PPM: Final = 250_000
"""Share of audits and confirmations that goes straight to a recompute: a random quarter."""
SHIELD_FACTOR: Final = 4
"""A frame shielded by colluding replicas is convicted at a quarter of the audit share."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuoteParams:
    """What a quote needs of the market parameters on chain. Amounts in base units, times in seconds."""

    fee_bps: int = 0
    slash_bad_compute_bps: int = BPS
    kappa_bps: int = BPS
    evidence_tail: int = 0
    objection_window: int = 0
    min_slot_stake: int = 0
    min_seat_stake: int = 0
    gas_settlement: int = 0
    gas_report: int = 0
    gas_execute: int = 0
    gas_settle_bond: int = 0


@dataclass(frozen=True, slots=True)
class Term:
    """One line of a quote: what it is called, the amount in base units, how it was reached."""

    name: str
    amount: int
    formula: str


@dataclass(frozen=True, slots=True)
class StakeCheck:
    """One inequality between a stake and what it must outweigh, both in base units."""

    name: str
    needed: int
    had: int
    formula: str

    @property
    def holds(self) -> bool:
        """Whether the stake is enough."""
        return self.had >= self.needed


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


# ----------------------------------------------------------------------------------------------------------
# Prices


def layers_per_stage(num_layers: int, stages: int) -> tuple[int, ...]:
    """Blocks of each stage; the first ``num_layers % stages`` stages hold one more."""
    base, extra = divmod(num_layers, stages)
    return tuple(base + (1 if stage < extra else 0) for stage in range(stages))


def stage_flops(model: ModelSection, stages: int) -> tuple[int, ...]:
    """Forward FLOPs of one sequence at each stage: matrix products, causal attention, output head.

    Lookups, norms and activations are left out. A backward pass is counted as twice the forward.
    """
    kv_dim = model.head_dim * model.num_kv_heads
    weights = 2 * model.dim * model.dim + 2 * model.dim * kv_dim + 3 * model.dim * model.ffn_dim
    attention = 2 * model.dim * model.seq_len * (model.seq_len + 1)
    layer = 2 * weights * model.seq_len + attention
    head = 2 * model.dim * model.vocab_size * model.seq_len
    counts = layers_per_stage(model.num_layers, stages)
    return tuple(count * layer + (head if stage == stages - 1 else 0) for stage, count in enumerate(counts))


def split_exactly(total: int, weights: Sequence[int]) -> tuple[int, ...]:
    """Divide ``total`` in proportion to ``weights``; the parts add up to it.

    Each part is rounded down, then what is left (less than one unit a part) goes one each to the first parts.
    """
    whole = sum(weights)
    parts = [total * weight // whole for weight in weights]
    for index in range(total - sum(parts)):
        parts[index] += 1
    return tuple(parts)


def stage_prices(spec: JobSpec) -> tuple[int, ...]:
    """Base units for two passes at each stage; their sum is ``price_per_microbatch``."""
    return split_exactly(spec.market.price_per_microbatch, stage_flops(spec.model, spec.parallelism.stages))


def unit_pay(stage_price: int, units: int) -> int:
    """Pay of ``units`` passes at a stage of ``stage_price`` base units for two passes, rounded down."""
    return units * stage_price // 2


def fee_on(amount: int, fee_bps: int) -> int:
    """Fee on top of a paid amount, in base units, rounded up."""
    return _ceil_div(amount * fee_bps, BPS)


def payable(budget: int, fee_bps: int) -> int:
    """The most that can be paid of a budget such that the fee on it still fits."""
    return budget * BPS // (BPS + fee_bps)


# ----------------------------------------------------------------------------------------------------------
# The quote


@dataclass(frozen=True, kw_only=True, slots=True)
class Quote:
    """The price of a job. Build with ``quote``; amounts in base units."""

    stage_prices: tuple[int, ...]
    lines: tuple[Term, ...]
    """The terms that add up to ``minimum``."""
    minimum: int
    budget: int
    expected_recomputes: int
    mean_audit_ppm: int
    """Mean audit share over stages and steps, parts per million, rounded up."""
    checks: tuple[StakeCheck, ...]
    train_flops: int
    """FLOPs of all workers over the run."""
    seat_flops: int
    """Expected FLOPs of recomputes a seat over the run: what its CPU must be able to add."""
    relay_bytes: int
    """Bytes a seat is expected to receive and send over the run, without protocol overhead."""
    roots_needed: int
    """Least number of settlement roots that can pay the plan out: a root may raise the total by at most twice
    the planned rate times the objection window (0 when the window is not known)."""

    @property
    def surplus(self) -> int:
        """Budget beyond the minimum, in base units; negative when it is short."""
        return self.budget - self.minimum

    def terms(self) -> tuple[Term, ...]:
        """Everything to print: the lines, the minimum, the budget and what is left or missing."""
        return (
            *self.lines,
            Term("minimum budget", self.minimum, "the sum of the lines above"),
            Term("budget", self.budget, "market.budget"),
            Term("surplus" if self.surplus >= 0 else "short by", abs(self.surplus), "budget - minimum"),
        )


def quote(spec: JobSpec, params: QuoteParams) -> Quote:
    """Price a job under the market parameters of its chain."""
    market, training, seats = spec.market, spec.training, spec.seats
    num_microbatches = training.steps * training.microbatches
    plan = num_microbatches * (market.price_per_microbatch + market.relay_price)
    audit_sum, audit_cells = _audit_sum(spec), 2 * spec.parallelism.stages * training.steps
    audits = _ceil_div(plan * audit_sum, audit_cells * PPM)
    reserve = _ceil_div(plan * market.reserve_bps, BPS)
    recomputes = expected_recomputes(spec)
    epochs = _ceil_div(training.steps, training.epoch_steps)
    case_gas = seats.quorum * (params.gas_report + params.gas_settle_bond) + params.gas_execute
    gas = epochs * params.gas_settlement + spec.parallelism.num_slots * case_gas
    subtotal = plan + audits + reserve + recomputes * market.audit_price + gas
    fee = fee_on(subtotal, params.fee_bps)
    lines = (
        Term(
            "plan",
            plan,
            f"{training.steps} steps x {training.microbatches} microbatches x (price_per_microbatch "
            f"{format_amount(market.price_per_microbatch)} + relay_price {format_amount(market.relay_price)})",
        ),
        Term("audits", audits, f"plan x mean audit share of {_ceil_div(audit_sum, audit_cells)} parts per million"),
        Term("reserve", reserve, f"plan x reserve_bps {market.reserve_bps} / {BPS}"),
        Term(
            "recomputes",
            recomputes * market.audit_price,
            f"{recomputes} expected x audit_price {format_amount(market.audit_price)}",
        ),
        Term(
            "gas repaid",
            gas,
            f"{epochs} settlement roots and at most one case for each of {spec.parallelism.num_slots} slots",
        ),
        Term("fee", fee, f"{params.fee_bps} / {BPS} of all above"),
    )
    flops = stage_flops(spec.model, spec.parallelism.stages)
    passes = [3 * one * training.microbatch_size for one in flops]
    recompute_flops = recomputes * sum(passes) // (2 * len(passes))
    return Quote(
        stage_prices=stage_prices(spec),
        lines=lines,
        minimum=subtotal + fee,
        budget=market.budget,
        expected_recomputes=recomputes,
        mean_audit_ppm=_ceil_div(audit_sum, audit_cells),
        checks=_checks(spec, params),
        train_flops=num_microbatches * sum(passes),
        seat_flops=recompute_flops // seats.num,
        relay_bytes=_relay_bytes(spec) // seats.num,
        roots_needed=_roots_needed(market.budget, market.planned_seconds, subtotal, params.objection_window),
    )


def _phases(spec: JobSpec) -> list[tuple[int, int]]:
    """(first step, number of steps) of warm-up and of the rest, empty ones left out."""
    warm = min(spec.verification.warmup_steps, spec.training.steps)
    return [(start, count) for start, count in ((0, warm), (warm, spec.training.steps - warm)) if count]


def _audit_sum(spec: JobSpec) -> int:
    """Audit share of a pass, parts per million, summed over all stages, steps and both directions."""
    if not spec.verification.audits:
        return 0
    stages = range(spec.parallelism.stages)
    return sum(
        count * spec.audit_ppm(stage, start, direction)
        for start, count in _phases(spec)
        for stage in stages
        for direction in (FORWARD, BACKWARD)
    )


def expected_recomputes(spec: JobSpec) -> int:
    """Recomputes by seats over the whole run, rounded up: a quarter of audits and of honest flags.

    With fewer than three replicas no third one can clear a frame, so each of them is recomputed.
    """
    if spec.verification.policy == "none":
        return 0
    flags = 2 * HONEST_FLAG_PPM * spec.parallelism.stages * spec.training.steps
    share = RECOMPUTE_PPM if spec.parallelism.replicas >= 3 else PPM
    return _ceil_div((_audit_sum(spec) + flags) * spec.training.microbatches * share, PPM * PPM)


def _relay_bytes(spec: JobSpec) -> int:
    """Bytes of tensors over the whole run: each boundary in and out of a relay, both directions, float32."""
    training, model = spec.training, spec.model
    tensor = 4 * training.microbatch_size * model.seq_len * model.dim
    passes = 2 * 2 * (spec.parallelism.stages - 1)
    return training.steps * training.microbatches * passes * tensor


def _roots_needed(budget: int, planned_seconds: int, amount: int, window: int) -> int:
    return _ceil_div(amount * planned_seconds, 2 * budget * window) if window else 0


def _checks(spec: JobSpec, params: QuoteParams) -> tuple[StakeCheck, ...]:
    market = spec.market
    prices = stage_prices(spec)
    checks = [
        StakeCheck("slot stake, market minimum", params.min_slot_stake, market.slot_stake, "minSlotStake"),
        StakeCheck("seat stake, market minimum", params.min_seat_stake, market.seat_stake, "minSeatStake"),
    ]
    num_microbatches = spec.training.steps * spec.training.microbatches
    window = min(2 * params.evidence_tail, market.planned_seconds)
    payable_in_tail = _ceil_div(num_microbatches * max(prices) * window, market.planned_seconds)
    checks.append(
        StakeCheck(
            "slot stake, pay within the evidence tail",
            _ceil_div(payable_in_tail * params.kappa_bps, BPS),
            market.slot_stake,
            f"kappa {params.kappa_bps} / {BPS} x the pay of the dearest stage in {params.evidence_tail} s "
            "at twice the planned rate",
        )
    )
    slash = market.slot_stake * params.slash_bad_compute_bps // BPS
    if spec.verification.audits:
        late = spec.training.steps - 1
        worst = max(
            (_ceil_div(SHIELD_FACTOR * price * PPM, 2 * spec.least_audit_ppm(stage, late)), stage)
            for stage, price in enumerate(prices)
        )
        checks.append(
            StakeCheck(
                "slash for BAD_COMPUTE",
                worst[0],
                slash,
                f"{SHIELD_FACTOR} x unit price / audit share, worst at stage {worst[1]}; slash = "
                f"{params.slash_bad_compute_bps} / {BPS} of slot_stake",
            )
        )
    return tuple(checks)


def check_budget(spec: JobSpec, params: QuoteParams) -> Quote:
    """The quote, or ``JobSpecError`` that prints each term when budget or a stake does not suffice."""
    result = quote(spec, params)
    problems = []
    if result.surplus < 0:
        terms = ", ".join(f"{term.name} {format_amount(term.amount)} ({term.formula})" for term in result.lines)
        problems.append(
            f"market.budget = {format_amount(result.budget)} is below the plan's {format_amount(result.minimum)}: "
            f"{terms}; raise market.budget by {format_amount(-result.surplus)} or plan less"
        )
    for check in result.checks:
        if not check.holds:
            key = "seat_stake" if check.name.startswith("seat") else "slot_stake"
            problems.append(
                f"{check.name}: {format_amount(check.had)} is below {format_amount(check.needed)} "
                f"({check.formula}); raise market.{key}"
            )
    if problems:
        raise JobSpecError(problems)
    return result
