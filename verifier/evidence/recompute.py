"""What an honest replica would have returned, and whether a claim agrees with it. One recompute for all who ask:
the driver that confirms, the seat that co-signs, and whoever replays a bundle."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from sentinel_market.models.sketch import Sketch
from sentinel_market.models.stage import Stage
from verifier.check.frame import BACKWARD, FORWARD
from verifier.check.tolerance import Comparison, Tolerance, compare, compare_sketch, numeric_edge
from verifier.check.verdict import E6, Verdict, VerdictKind

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""What a job's tensors may be made in, by the name in the manifest."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One frame's content: ``output`` is an activation, a per-token loss or an outgoing gradient (None for a stage-0
    backward); ``sketch`` [64] of a backward frame."""

    output: torch.Tensor | None
    sketch: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A pass through a stage: activation [B, T, D] or per-token loss [B, T]; with a backward also the outgoing gradient
    [B, T, D] (None at stage 0) and the sketch [64] of the parameter gradient."""

    output: torch.Tensor
    gradient: torch.Tensor | None = None
    sketch: torch.Tensor | None = None

    def frame(self, direction: int) -> Claim:
        """The part that a frame of ``direction`` holds."""
        return Claim(self.output, None) if direction == FORWARD else Claim(self.gradient, self.sketch)

    def at_edge(self, tolerance: Tolerance, low: Recomputed | None = None) -> bool:
        """Whether rounding alone may do what is complained of. ``low``: the same from ``edge_inputs``; None where those
        are the inputs themselves (fp32 jobs): then only a recompute that is not finite lies at an edge."""
        return any(
            at_edge(self.frame(way), None if low is None else low.frame(way), tolerance) for way in (FORWARD, BACKWARD)
        )


def recompute(
    module: Stage,
    *,
    job_id: int,
    step: int,
    input: torch.Tensor,
    incoming: torch.Tensor | None = None,
    backward: bool,
) -> Recomputed:
    """What an honest replica returns, in fp32 on this CPU, from the weights that ``module`` holds.

    ``input`` [B, T] tokens at stage 0, else [B, T, D]; ``incoming``: gradient [B, T, D], at the last stage the targets
    [B, T] (needed for its forward too). Leaves the module's gradient zero. ValueError where something is missing.
    """
    if module.is_last and incoming is None:
        raise ValueError("the last stage needs the targets")
    if not backward:
        with torch.no_grad():
            return Recomputed(module.token_loss(input, _given(incoming)) if module.is_last else module(input))
    output, x = _backward(module, input, _given(incoming))
    sketch = Sketch(job_id, step).sketch(module.flat_grad)
    module.zero_grad_flat()
    return Recomputed(output.detach(), None if module.is_first else x.grad, sketch)


def _backward(module: Stage, input: torch.Tensor, given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Forward and backward from a zeroed gradient, which stays in the module; output and the leaf it was made from."""
    x = input if module.is_first else input.detach().clone().requires_grad_(True)
    module.zero_grad_flat()
    if module.is_last:
        output = module.token_loss(x, given)
        torch.autograd.backward(output.mean())
    else:
        output = module(x)
        torch.autograd.backward(output, given)
    return output, x


def parameter_gradient(module: Stage, *, input: torch.Tensor, incoming: torch.Tensor) -> torch.Tensor:
    """fp32 [N]: what a microbatch adds to a stage gradient. A view of the module's buffer: good until the next pass."""
    _backward(module, input, incoming)
    return module.flat_grad


def recompute_frame(
    module: Stage,
    *,
    job_id: int,
    step: int,
    direction: int,
    input: torch.Tensor,
    incoming: torch.Tensor | None = None,
) -> Claim:
    """``recompute`` for one frame: what its output and sketch should have been."""
    return recompute(
        module, job_id=job_id, step=step, input=input, incoming=incoming, backward=direction == BACKWARD
    ).frame(direction)


def _given(incoming: torch.Tensor | None) -> torch.Tensor:
    if incoming is None:
        raise ValueError("a backward frame needs its incoming gradient (last stage: the targets)")
    return incoming


def rounded(tensor: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A float tensor as the job's dtype can hold it, in float32 again; token ids and None stay what they are."""
    if tensor is None or not tensor.is_floating_point():
        return tensor
    return tensor.to(dtype).to(torch.float32)


def edge_inputs(
    input: torch.Tensor, incoming: torch.Tensor | None, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """What the second recompute of the numeric-edge rule is made from (``protocol.md``): input and incoming gradient
    rounded to the job's dtype. None where rounding changes nothing (fp32 jobs, or tensors that came rounded): then a
    second recompute would be the first."""
    low, low_incoming = rounded(input, dtype), rounded(incoming, dtype)
    assert low is not None
    same = torch.equal(low, input) if input.is_floating_point() else True
    if incoming is not None and low_incoming is not None and incoming.is_floating_point():
        same = same and torch.equal(low_incoming, incoming)
    return None if same else (low, low_incoming)


def at_edge(reference: Claim, low: Claim | None, tolerance: Tolerance) -> str:
    """Why rounding alone may do what is complained of; "" when it can not. ``low``: the recompute from the rounded
    inputs, None if that is the same."""
    other = reference if low is None else low
    for name in ("output", "sketch"):
        mine, theirs = getattr(reference, name), getattr(other, name)
        if mine is None or theirs is None:
            continue
        if not bool(torch.isfinite(mine).all()):
            return f"the recompute's {name} itself holds NaN or Inf"
        # a sketch is held against its own limit, and has no element criterion
        limits = replace(tolerance, relative_e6=tolerance.sketch_e6, element_e6=E6) if name == "sketch" else tolerance
        if numeric_edge(mine, theirs, limits):
            return (
                f"numeric edge: from inputs rounded to the job's dtype the {name} moves by more than a tenth of the "
                "tolerance"
            )
    return ""


def judge(
    claimed: Claim, reference: Claim, tolerance: Tolerance, low: Claim | None = None
) -> tuple[Verdict, tuple[Comparison, ...]]:
    """Hold what was signed against a recompute: ACCEPT, VIOLATION, or INCONCLUSIVE at a numeric edge.

    ``low``: the recompute from ``edge_inputs``; None where those are the inputs themselves, as in every fp32 job: then
    the edge is reached only where the recompute is not finite.
    """
    edge = at_edge(reference, low, tolerance)
    if edge:
        return Verdict(VerdictKind.INCONCLUSIVE, edge), ()
    comparisons: list[Comparison] = []
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
