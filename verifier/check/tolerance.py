"""How far two honest computations of one frame may lie apart, and the comparison itself; integers at the edge."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch

from sentinel_market.errors import ConfigError
from verifier.check.verdict import E6

_MAX_ERROR = 10**15


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """Parts per million; part of the job. Defaults: fp32 on CPUs of different kinds (docs/verification.md has the
    measured noise: honest ways to compute a frame lie within 5e-7, elements within 6e-6, sketches within 3e-5; bf16
    matrix products, the smallest cheat measured, begin at 5e-4).

    ``relative_e6``: |claimed - reference| / |reference| over the whole frame. ``element_e6``: largest element error
    over the reference's root mean square. ``sketch_e6``: the same relative error for the 64 sketch numbers.
    """

    relative_e6: int = 100
    element_e6: int = 1_000
    sketch_e6: int = 1_000

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 1 <= value <= E6:
                raise ConfigError(f"tolerance {name} = {value} must lie in 1 .. {E6} parts per million")

    def to_json(self) -> dict[str, int]:
        """Plain JSON data."""
        return {
            "relative_e6": self.relative_e6,
            "element_e6": self.element_e6,
            "sketch_e6": self.sketch_e6,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """``error_e6`` against ``limit_e6``: those of the criterion that lies nearest to (or farthest beyond) its limit."""

    agrees: bool
    error_e6: int
    limit_e6: int
    criterion: str = "relative"

    def text(self) -> str:
        """For people."""
        relation = "within" if self.agrees else "beyond"
        return f"{self.criterion} error {self.error_e6 / E6:.6g} {relation} the limit {self.limit_e6 / E6:.6g}"


def _ceil_e6(value: float) -> int:
    return _MAX_ERROR if not math.isfinite(value) or value > 1e9 else math.ceil(value * E6)


def _worst(found: list[tuple[str, int, int]]) -> Comparison:
    criterion, error, limit = max(found, key=lambda item: item[1] / item[2])
    return Comparison(error <= limit, error, limit, criterion)


def _errors(claimed: torch.Tensor, reference: torch.Tensor) -> tuple[float, float]:
    """Relative L2 error, and largest element error over the reference's root mean square; inf if not comparable."""
    if claimed.shape != reference.shape:
        return math.inf, math.inf
    if reference.numel() == 0:
        return 0.0, 0.0
    a = claimed.detach().to(device="cpu", dtype=torch.float64)
    b = reference.detach().to(device="cpu", dtype=torch.float64)
    apart = a - b
    length = float(b.square().sum().sqrt())
    error, largest = float(apart.square().sum().sqrt()), float(apart.abs().max())
    if not math.isfinite(error) or not math.isfinite(length):
        return math.inf, math.inf
    if error == 0.0:
        return 0.0, 0.0
    if length == 0.0:
        return math.inf, math.inf
    return error / length, largest / (length / math.sqrt(b.numel()))


def compare(claimed: torch.Tensor, reference: torch.Tensor, tolerance: Tolerance) -> Comparison:
    """Whether ``claimed`` could be an honest computation, given ``reference``: both criteria must hold.

    Another shape, or NaN or Inf on either side, never agrees; ``numeric_edge`` keeps a reference that is itself not
    finite from convicting anybody.
    """
    relative, element = _errors(claimed, reference)
    return _worst(
        [
            ("relative", _ceil_e6(relative), tolerance.relative_e6),
            ("element", _ceil_e6(element), tolerance.element_e6),
        ]
    )


def compare_sketch(claimed: torch.Tensor, reference: torch.Tensor, tolerance: Tolerance) -> Comparison:
    """The same for a gradient sketch of 64 numbers, by its relative error alone."""
    relative, _ = _errors(claimed, reference)
    return Comparison(_ceil_e6(relative) <= tolerance.sketch_e6, _ceil_e6(relative), tolerance.sketch_e6, "sketch")


def compare_sum(claimed: torch.Tensor, reference: torch.Tensor, lengths: float, tolerance: Tolerance) -> Comparison:
    """The same for a sum of gradients [N], held to the limit of sketches. ``lengths``: the norms of its parts, added.
    Where the parts cancel, the sum may be as wrong as they may: the error counts against whatever is larger, the
    reference's norm or the parts' norms times ``relative_e6 / sketch_e6``."""
    error = math.inf
    if claimed.shape == reference.shape and math.isfinite(lengths):
        b = reference.double()
        apart = float((claimed.detach().cpu().double() - b).square().sum().sqrt())
        scale = max(float(b.square().sum().sqrt()), lengths * tolerance.relative_e6 / tolerance.sketch_e6)
        if math.isfinite(apart) and math.isfinite(scale):
            error = apart / scale if scale > 0.0 else 0.0 if apart == 0.0 else math.inf
    return Comparison(_ceil_e6(error) <= tolerance.sketch_e6, _ceil_e6(error), tolerance.sketch_e6, "gradient")


def numeric_edge(recompute_a: torch.Tensor, recompute_b: torch.Tensor, tolerance: Tolerance) -> bool:
    """Whether this frame lies where rounding alone may exceed the tolerance: then the verdict is INCONCLUSIVE.

    ``recompute_a`` from the input in fp32, ``recompute_b`` from the input rounded to the job's dtype (for fp32 jobs
    the same tensor). True unless both are finite and agree to a tenth of the tolerance.
    """
    if not bool(torch.isfinite(recompute_a).all()) or not bool(torch.isfinite(recompute_b).all()):
        return True
    relative, element = _errors(recompute_b, recompute_a)
    return relative * E6 > tolerance.relative_e6 / 10 or element * E6 > tolerance.element_e6 / 10
