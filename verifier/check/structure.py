"""The structural check, before any statistics: is this a tensor of the right kind at all?

Who is to blame, and the choice made:

- an *absent or empty* output, or a counterpart that is itself broken, is what a crash, a lost connection or a
  tainted input produces: INCONCLUSIVE. The unit is lost, never stake.
- a *wrong shape or type* under a valid signature is no crash, but also no proof against anybody whose driver asked
  for something else: SUSPECT, so that the recompute convicts (it has the shape that was asked for) or clears.
- *NaN or Inf*: SUSPECT for the same reason. A run that diverges makes honest infinities; then the recompute is not
  finite either and the final verdict is INCONCLUSIVE (``tolerance.numeric_edge``).
"""

from __future__ import annotations

import torch

from verifier.check.frame import Frame
from verifier.check.verdict import Verdict, VerdictKind

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def structural_problem(frame: Frame) -> Verdict | None:
    """None if shape and type are right (finiteness is found by the pass over the elements)."""
    out, counterpart = frame.output, frame.input
    if frame.is_silent:
        if out is None or out.numel() == 0:
            return None
        return Verdict(VerdictKind.SUSPECT, f"shape: stage 0 returned a gradient of {list(out.shape)}, none is due")
    if out is None or out.numel() == 0:
        return Verdict(VerdictKind.INCONCLUSIVE, "missing: the frame holds no elements")
    if out.dtype not in FLOATS:
        return Verdict(VerdictKind.SUSPECT, f"dtype: {out.dtype} is no floating-point type")
    due = 2 if frame.is_loss else 3
    if out.dim() != due:
        return Verdict(VerdictKind.SUSPECT, f"shape: {list(out.shape)} has {out.dim()} dimensions, {due} are due")
    if counterpart is None or frame.is_loss:
        return None
    if counterpart.dtype not in FLOATS:
        return Verdict(VerdictKind.INCONCLUSIVE, f"input: {counterpart.dtype} is no floating-point type")
    if counterpart.shape != out.shape:
        return Verdict(
            VerdictKind.SUSPECT, f"shape: {list(out.shape)} returned for an input of {list(counterpart.shape)}"
        )
    return None
