"""What an honest replica would have returned, and whether the claim agrees with it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sentinel_market.models.sketch import Sketch
from sentinel_market.models.stage import Stage
from verifier.check.frame import BACKWARD, FORWARD
from verifier.check.tolerance import Comparison, Tolerance, compare, compare_sketch, numeric_edge
from verifier.check.verdict import Verdict, VerdictKind


@dataclass(frozen=True, slots=True)
class Recomputed:
    """``output``: activation, per-token loss or outgoing gradient (None for a stage-0 backward); ``sketch`` [64] of a
    backward frame."""

    output: torch.Tensor | None
    sketch: torch.Tensor | None


def recompute_frame(
    module: Stage,
    *,
    job_id: int,
    step: int,
    direction: int,
    input: torch.Tensor,
    incoming: torch.Tensor | None = None,
) -> Recomputed:
    """What an honest replica returns, in fp32 on this CPU, from the weights that ``module`` holds.

    ``input`` [B, T] tokens at stage 0, else [B, T, D]; ``incoming``: gradient [B, T, D], at the last stage the targets
    [B, T] (needed for its forward frame too). Leaves the module's gradient zero.
    """
    if module.is_last and incoming is None:
        raise ValueError("the last stage needs the targets")
    x = input if module.is_first else input.detach().clone().requires_grad_(direction == BACKWARD)
    if direction == FORWARD:
        with torch.no_grad():
            return Recomputed(module.token_loss(x, _given(incoming)) if module.is_last else module(x), None)
    given = _given(incoming)
    module.zero_grad_flat()
    if module.is_last:
        module.token_loss(x, given).mean().backward()  # type: ignore[no-untyped-call]
    else:
        module(x).backward(given)
    sketch = Sketch(job_id, step).sketch(module.flat_grad)
    module.zero_grad_flat()
    return Recomputed(None if module.is_first else x.grad, sketch)


def _given(incoming: torch.Tensor | None) -> torch.Tensor:
    if incoming is None:
        raise ValueError("a backward frame needs its incoming gradient (last stage: the targets)")
    return incoming


def judge(claimed: Recomputed, reference: Recomputed, tolerance: Tolerance) -> tuple[Verdict, tuple[Comparison, ...]]:
    """Hold what was signed against a recompute: ACCEPT, VIOLATION, or INCONCLUSIVE at a numeric edge.

    Jobs are fp32 today, so the recompute from the input rounded to the job's dtype is the recompute itself, and the
    edge is reached only where the recompute is not finite.
    """
    comparisons: list[Comparison] = []
    for mine in (reference.output, reference.sketch):
        if mine is not None and numeric_edge(mine, mine, tolerance):
            return Verdict(VerdictKind.INCONCLUSIVE, "the recompute itself holds NaN or Inf"), ()
    if reference.output is not None:
        theirs = torch.empty(0) if claimed.output is None else claimed.output
        comparisons.append(compare(theirs, reference.output, tolerance))
    if reference.sketch is not None:
        theirs = torch.empty(0) if claimed.sketch is None else claimed.sketch
        comparisons.append(compare_sketch(theirs, reference.sketch, tolerance))
    bad = [c for c in comparisons if not c.agrees]
    if bad:
        reason = "the recompute disagrees: " + "; ".join(c.text() for c in bad)
        return Verdict(VerdictKind.VIOLATION, reason), tuple(comparisons)
    reason = "the recompute agrees: " + "; ".join(c.text() for c in comparisons)
    return Verdict(VerdictKind.ACCEPT, reason), tuple(comparisons)
