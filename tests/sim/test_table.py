"""What is made of the cells: bounds, figures, the table, the plots."""

from __future__ import annotations

import dataclasses
import math
import xml.etree.ElementTree as ET
from collections.abc import Callable
from fractions import Fraction

import pytest

from sentinel_market.sim.bounds import at_most, said, upper_bound
from sentinel_market.sim.cell import Cell, Losses
from sentinel_market.sim.conditions import CONDITIONS, FRAMES
from sentinel_market.sim.figures import Figure, clean_sigma, figures
from sentinel_market.sim.group import Group, groups
from sentinel_market.sim.measure import measure
from sentinel_market.sim.plan import DEFAULT, bench_plan
from sentinel_market.sim.plots import CHARTS
from sentinel_market.sim.pool import Inline
from sentinel_market.sim.resume import Record
from sentinel_market.sim.settings import UNVERIFIED, RunSettings
from sentinel_market.sim.table import HEADER, report, row
from tests.sim import fakes

BASE = RunSettings(steps=40, onset=10)


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    record = Record(None)
    measure(bench_plan(BASE, fakes.all_rows(), big=True, conditions=CONDITIONS), record, Inline(fakes.run_cell))
    return record.all()


def changed(cells: list[Cell], which: Callable[[Cell], bool], **changes: object) -> list[Cell]:
    """The cells, the first of ``which`` with other values."""
    one = next(cell for cell in cells if which(cell))
    return [dataclasses.replace(cell, **changes) if cell is one else cell for cell in cells]  # type: ignore[arg-type]


def figure(cells: list[Cell], number: int) -> Figure:
    return figures(cells)[number - 1]


# --- bounds


def exact(successes: int, trials: int, share: Fraction) -> float:
    return float(sum(math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(successes + 1)))


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (1, 10), (3, 100), (9, 10), (40, 300)])
def test_the_bound_is_where_so_few_successes_have_five_percent(successes: int, trials: int) -> None:
    bound = upper_bound(successes, trials)
    assert exact(successes, trials, Fraction(bound)) == pytest.approx(0.05, rel=1e-6)
    assert at_most(successes, trials, 0.2) == pytest.approx(exact(successes, trials, Fraction(1, 5)), rel=1e-9)


def test_bounds_at_the_ends() -> None:
    assert upper_bound(0, 3000) == pytest.approx(3 / 3000, rel=2e-3)  # the rule of three
    assert upper_bound(5, 5) == upper_bound(0, 0) == 1.0
    assert upper_bound(5_000, 1_000_000) == pytest.approx(0.005 + 1.645 * math.sqrt(0.005 / 1e6), rel=1e-3)
    assert said(0, 960) == "0 of 960 (upper 95 % bound 0.31 %)"
    with pytest.raises(ValueError, match="4 of 3"):
        upper_bound(4, 3)


# --- figures


def test_all_figures_hold_where_everything_is_as_it_should_be(cells: list[Cell]) -> None:
    found = figures(cells)
    assert [one.number for one in found] == [1, 2, 3, 4, 5, 6]
    assert [one.verdict for one in found[1:]] == ["pass"] * 5, found


def test_nothing_measured_is_no_pass() -> None:
    assert {one.verdict for one in figures([])} == {"not measured"}


def test_the_shape_of_the_paper(cells: list[Cell]) -> None:
    found = figure(cells, 1)
    text = "\n".join(found.lines)
    assert "holds: strong forward attacks, whole as published, are caught: mean F1 100.0 %" in text
    assert "holds: signs of the gradient are missed: mean recall 0.0 %" in text
    assert "holds: `paper:l1`: mean F1 0.0 %" in text
    assert "FAILS: `paper:no-ema`" in text  # the fake's ablation is as good as the whole
    assert "median 7" in text
    assert "delay backward (recall 0 %)" in text
    # A delay costs one honest worker a direction and mesh.
    assert "honest workers banned: 6 of" in text


@pytest.mark.parametrize(
    ("number", "policy", "attack", "changes"),
    [
        (2, "screen", "zeros", {"honest_bans": 50}),
        (2, "screen", "zeros", {"recall": 0.5}),
        (3, "screen+confirm", "zeros", {"honest_bans": 1}),
        (3, "screen+confirm", "clean", {"honest_bans": 1}),
        (4, DEFAULT, "alie", {"recall": 13 / 14}),
        (5, DEFAULT, "zeros", {"val_loss": Losses(clean=2.0, verified=2.03)}),
        (6, DEFAULT, "clean", {"flag_rate_honest": 0.5}),
        (6, DEFAULT, "clean", {"honest_bans": 1}),
        (6, "screen+confirm", "clean", {"honest_bans": 1}),
    ],
)
def test_one_bad_cell_fails_a_figure(
    cells: list[Cell], number: int, policy: str, attack: str, changes: dict[str, object]
) -> None:
    assert figure(cells, number).holds
    bad = changed(cells, lambda c: (c.policy, c.attack) == (policy, attack) and c.mesh == (8, 8), **changes)
    assert figure(bad, number).holds is False


@pytest.mark.parametrize("changes", [{"flag_rate_honest": 0.2}, {"honest_bans": 1}])
def test_each_condition_is_judged_by_itself_with_bounds(cells: list[Cell], changes: dict[str, object]) -> None:
    bad = changed(cells, lambda c: c.settings.condition == "joiner", **changes)
    found = figure(bad, 6)
    assert found.holds is False
    wrong = [line for line in found.lines if line.startswith("FAILS")]
    assert len(wrong) == 1 and wrong[0].startswith("FAILS: `joiner`, 6 runs: ")
    for name in CONDITIONS:
        own = [line for line in found.lines if f"`{name}`" in line]
        assert len(own) == 2 and all("upper 95 % bound" in line for line in own)
    # The clean runs beside it are what they were.
    assert clean_sigma(bad) == clean_sigma([c for c in cells if not c.settings.condition])


def test_too_few_frames_or_a_missing_condition_leave_the_figure_open(cells: list[Cell]) -> None:
    some = [c for c in cells if c.settings.condition != "bf16" and (c.settings.condition, c.seed) != ("threads", 0)]
    found = figure(some, 6)
    assert found.holds is None and found.verdict == "not measured"
    threads = sum(c.honest_frames for c in some if c.settings.condition == "threads")
    assert 0 < threads < FRAMES
    assert found.lines[-1] == f"too few to judge: `bf16` 0 frames, `threads` {threads:,} frames"
    banned = changed(some, lambda c: c.settings.condition == "threads", honest_bans=1)
    assert figure(banned, 6).holds is False


def test_colluding_confirmers_are_counted_by_themselves(cells: list[Cell]) -> None:
    bad = changed(cells, lambda c: c.settings.collude, honest_bans=1)
    found = figure(bad, 3)
    assert [line.split(":")[0] for line in found.lines] == ["holds", "FAILS", "holds"]
    assert "colluding confirmers, 21 runs: honest workers banned: 1 of" in found.lines[1]


def test_more_is_allowed_where_more_is_hostile(cells: list[Cell]) -> None:
    at_37 = dataclasses.replace
    worse = [
        at_37(c, val_loss=Losses(clean=2.0, verified=2.03))
        if c.policy == DEFAULT and c.settings.malicious == 0.375
        else c
        for c in cells
    ]
    assert figure(worse, 5).holds is True
    worst = changed(
        worse,
        lambda c: c.policy == DEFAULT and c.settings.malicious == 0.375,
        val_loss=Losses(clean=2.0, verified=2.05),
    )
    assert figure(worst, 5).holds is False


def test_an_attack_that_never_hurts_may_stay_if_it_costs_nothing(cells: list[Cell]) -> None:
    def mild(cell: Cell) -> bool:
        return cell.attack == "alie"

    losses = Losses(clean=2.0, unverified=2.01, verified=2.001)
    kept = [
        dataclasses.replace(
            c,
            recall=0.0,
            val_loss=Losses(clean=2.0, unverified=2.01) if c.policy == UNVERIFIED else losses,
        )
        if mild(c)
        else c
        for c in cells
    ]
    found = figure(kept, 4)
    assert found.holds, found.lines
    assert "never 5 % worse at any strength of the ladder: alie gradient" in found.lines
    costly = changed(
        kept, lambda c: mild(c) and c.policy == DEFAULT, val_loss=Losses(clean=2.0, unverified=2.01, verified=2.03)
    )
    assert figure(costly, 4).holds is False


# --- table and plots


def test_a_row_takes_the_seeds_together(cells: list[Cell]) -> None:
    group = next(
        g
        for g in groups(cells)
        if g.name == "noise" and g.direction == "forward" and g.settings.policy == DEFAULT and g.strength == "4"
    )
    assert len(group.cells) == 3
    found = dict(zip(HEADER, row(group), strict=True))
    assert found == {
        "attack": "noise",
        "direction": "forward",
        "strength": "4",
        "policy": f"`{DEFAULT}`",
        "seeds": "3",
        "precision": "100.0 %",
        "recall": "100.0 %",
        "F1": "100.0 %",
        "false bans": "0 of 150",
        "honest flags": "0.40 %",
        "steps to ban": "1",
        "loss clean": "2.010",
        "unverified": "2.160",  # of the first seed, the only one that it was run on
        "verified": "2.012",
        "tokens/s": "1,000",
        "verification": "10.0 %",
    }


def test_counts_are_added_not_shares_averaged() -> None:
    cell = Record(None)
    measure(bench_plan(BASE, [fakes.row("zeros", "forward")], clean_runs=0), cell, Inline(fakes.run_cell))
    one = next(c for c in cell.all() if c.policy == DEFAULT)
    group = Group((one, dataclasses.replace(one, seed=1, recall=0.5, honest_bans=7)))
    assert (group.caught, group.hostile, group.honest_bans) == (14 + 7, 28, 7)
    assert group.precision == pytest.approx(21 / 28)
    assert group.recall == pytest.approx(21 / 28)
    assert group.f1 == pytest.approx(21 / 28)


def test_the_page_has_figures_a_section_a_mesh_and_every_group(cells: list[Cell]) -> None:
    text = report(cells, [("F1", "out.f1.svg")])
    assert "4. **pass**" in text
    assert "![F1](out.f1.svg)" in text
    for mesh in ("8 x 8 = 64 workers", "8 x 16 = 128 workers", "11 x 16 = 176 workers"):
        assert f"## {mesh}" in text
    assert "37.5 % hostile" in text
    assert text.count("\n| ") == len(groups(cells)) + 2 * text.count("| attack |")
    assert "| sign_flip (colluding) |" in text and "verifiers in the plot" in text
    assert "No run is finished yet" in report([])


@pytest.mark.parametrize("name", CHARTS)
def test_plots_are_well_formed_and_say_what_they_show(cells: list[Cell], name: str) -> None:
    draw = CHARTS[name][1]
    for some in (cells, [c for c in cells if c.attack == "clean"], []):
        root = ET.fromstring(draw(some))
        assert root.tag.endswith("svg")
    texts = [node.text or "" for node in ET.fromstring(draw(cells)).iter() if node.text]
    if name == "curve":
        assert any("Training loss under" in text for text in texts)
    else:
        rows = {(c.attack, c.direction) for c in cells if c.attack != "clean"}
        assert {f"{attack} {direction}" for attack, direction in rows} <= set(texts)


def test_the_f1_chart_marks_honest_bans(cells: list[Cell]) -> None:
    texts = [node.text or "" for node in ET.fromstring(CHARTS["f1"][1](cells)).iter()]
    assert any(text.endswith("(1 honest)") for text in texts)
