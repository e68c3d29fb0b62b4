"""Tolerances from measured noise: how far honest computations of one frame lie apart decides what a job may demand.

``python -m bench.tolerance`` measures; ``calibrate`` turns the samples into a ``Tolerance``; ``TOLERANCES`` holds what
was measured for each (dtype, device class), and is what a job states.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sentinel_market.errors import ConfigError
from verifier.check.tolerance import Tolerance
from verifier.check.verdict import E6

CRITERIA = ("relative", "element", "sketch")
MARGIN = 20
"""A tolerance is at least this many times the largest honest noise."""

# (dtype of the computation, device class) -> tolerance against a recompute in fp32 on a CPU. docs/verification.md has
# the table of measurements behind each row.
TOLERANCES: dict[tuple[str, str], Tolerance] = {
    ("float32", "cpu"): Tolerance(relative_e6=100, element_e6=1_000, sketch_e6=1_000),
    # bf16's own rounding is 1/10 of the smallest cheat that can be told from it: only twice above honest noise. Single
    # elements have long tails: of 900 honest recomputes of `sentinel sim --condition bf16` one was 0.24 off.
    ("bfloat16", "cpu"): Tolerance(relative_e6=10_000, element_e6=500_000, sketch_e6=20_000),
}


def tolerance_for(dtype: str, device_class: str) -> Tolerance:
    """What a job of this dtype on these devices states; ConfigError where nothing was measured."""
    found = TOLERANCES.get((dtype, device_class))
    if found is None:
        known = ", ".join(f"{d} on {c}" for d, c in TOLERANCES)
        raise ConfigError(
            f"no tolerance was measured for {dtype} on {device_class}; measured are: {known}. Run "
            "`python -m bench.tolerance` on such a device"
        )
    return found


@dataclass(frozen=True, slots=True)
class Sample:
    """One frame computed on another way: its errors against the reference, as ``compare`` and ``compare_sketch``
    measure them. None: there is no such tensor in this frame."""

    relative: float | None = None
    element: float | None = None
    sketch: float | None = None


@dataclass(frozen=True, slots=True)
class Calibration:
    """``noise``: the largest honest error of each criterion. ``missed``: cheats among the samples that this tolerance
    would let pass, by their place."""

    tolerance: Tolerance
    noise: Sample
    missed: tuple[int, ...]

    def margins(self, tolerance: Tolerance) -> dict[str, float]:
        """How many times above the honest noise a tolerance lies, by criterion; infinite where there was none."""
        result = {}
        for name in CRITERIA:
            noise = getattr(self.noise, name)
            result[name] = math.inf if not noise else getattr(tolerance, f"{name}_e6") / E6 / noise
        return result


def passes(sample: Sample, tolerance: Tolerance) -> bool:
    """Whether a computation with these errors agrees: every criterion holds."""
    return all(
        value is None or (math.isfinite(value) and math.ceil(value * E6) <= getattr(tolerance, f"{name}_e6"))
        for name, value in ((name, getattr(sample, name)) for name in CRITERIA)
    )


def calibrate(honest: Iterable[Sample], cheats: Sequence[Sample] = (), *, margin: int = MARGIN) -> Calibration:
    """The tightest tolerance, rounded up to 1, 2 or 5 times a power of ten parts per million, that lies ``margin``
    times above all honest samples. Pure. ConfigError when there is nothing to measure by, or when honest noise is so
    large that no tolerance below 1 holds it."""
    worst: dict[str, float] = {}
    for sample in honest:
        for name in CRITERIA:
            value = getattr(sample, name)
            if value is None:
                continue
            if not math.isfinite(value) or value < 0:
                raise ConfigError(
                    f"an honest sample has {name} error {value}; a run that diverged cannot be measured by"
                )
            worst[name] = max(worst.get(name, 0.0), value)
    missing = [name for name in CRITERIA if name not in worst]
    if missing:
        raise ConfigError(f"no honest sample measures {', '.join(missing)}; forward and backward frames are needed")
    limits = {f"{name}_e6": _round_up(value * margin * E6) for name, value in worst.items()}
    for name, limit in limits.items():
        if limit > E6:
            raise ConfigError(
                f"honest noise of {worst[name.removesuffix('_e6')]:.3g} times {margin} is no tolerance: it must lie "
                "below 1; compute in a wider dtype"
            )
    tolerance = Tolerance(**limits)
    noise = Sample(**worst)
    return Calibration(tolerance, noise, tuple(i for i, one in enumerate(cheats) if passes(one, tolerance)))


def _round_up(value: float) -> int:
    """The next of 1, 2, 5, 10, 20, 50 ..."""
    power = 1
    while True:
        for step in (1, 2, 5):
            if value <= step * power:
                return step * power
        power *= 10
