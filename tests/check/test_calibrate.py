"""Tolerances from samples: above all honest noise, below the cheats, and stated only where something was measured."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel_market.errors import ConfigError
from verifier.check.calibrate import TOLERANCES, Sample, calibrate, passes, tolerance_for
from verifier.check.tolerance import Tolerance

noise = st.floats(0, 1e-3)
samples = st.lists(st.builds(Sample, noise, noise, noise), min_size=1, max_size=20)


@given(samples, st.integers(1, 50))
def test_every_honest_sample_passes_with_its_margin(honest: list[Sample], margin: int) -> None:
    found = calibrate(honest, margin=margin)
    assert all(passes(one, found.tolerance) for one in honest)
    for name, value in found.margins(found.tolerance).items():
        assert value >= margin * (1 - 1e-9)
        worst = max(getattr(one, name) for one in honest)
        # not wider than it must be: the next finer step would be below the margin
        limit = getattr(found.tolerance, f"{name}_e6")
        assert limit == 1 or limit / 2.5 - 1e-6 <= worst * margin * 1e6 * (1 + 1e-9)


@given(samples, samples)
def test_order_and_repeats_change_nothing(one: list[Sample], two: list[Sample]) -> None:
    assert calibrate([*one, *two]).tolerance == calibrate([*two, *one, *one]).tolerance


def test_figures() -> None:
    honest = [Sample(4e-7, 5e-6, None), Sample(None, None, 3e-5), Sample(1e-7, 1e-6, 1e-6)]
    cheats = [Sample(5e-4, 2e-3, 3e-3), Sample(9e-6, 1e-6, None), Sample(math.inf, 0.0, 0.0), Sample(None, None, 1e-4)]
    found = calibrate(honest, cheats, margin=20)
    assert found.tolerance == Tolerance(relative_e6=10, element_e6=100, sketch_e6=1_000)
    assert found.noise == Sample(4e-7, 5e-6, 3e-5)
    assert found.missed == (1, 3)
    assert found.margins(Tolerance())["relative"] == pytest.approx(250)
    assert calibrate([Sample(0.0, 0.0, 0.0)]).margins(Tolerance())["sketch"] == math.inf


@pytest.mark.parametrize(
    ("honest", "words"),
    [
        ([], "no honest sample measures relative, element, sketch"),
        ([Sample(1e-6, 1e-6, None)], "measures sketch"),
        ([Sample(math.nan, 0.0, 0.0)], "diverged"),
        ([Sample(0.0, math.inf, 0.0)], "diverged"),
        ([Sample(-1.0, 0.0, 0.0)], "relative error -1.0"),
        ([Sample(0.06, 0.0, 0.0)], "wider dtype"),
    ],
)
def test_what_cannot_be_calibrated_by(honest: list[Sample], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        calibrate(honest)


def test_a_job_states_only_what_was_measured() -> None:
    assert tolerance_for("float32", "cpu") == Tolerance() == TOLERANCES["float32", "cpu"]
    with pytest.raises(ConfigError, match=r"float32 on cpu.*bench\.tolerance"):
        tolerance_for("float32", "abacus")


def test_the_measurement_holds_the_stated_tolerance(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A small model, one round: honest ways stay far inside, cheats far outside; and the check can fail."""
    from bench import tolerance as bench

    monkeypatch.setattr(bench, "ROUNDS", 1)
    assert bench.main(["--dim", "64"]) == 0
    assert "0 cheated frames would pass" in capsys.readouterr().out
    monkeypatch.setitem(
        TOLERANCES, ("float32", "cpu"), Tolerance(relative_e6=900_000, element_e6=10**6, sketch_e6=10**6)
    )
    assert bench.main(["--dim", "64"]) == 1
    monkeypatch.delitem(TOLERANCES, ("float32", "cpu"))
    assert bench.main(["--dim", "64"]) == 0
    assert "no tolerance is stated" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        bench.main(["--dim", "64", "--margin", "10000000"])
    assert "smaller --margin" in capsys.readouterr().err
