"""Which runs are wanted when, how they are done, and that a stopped measurement goes on where it was."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from sentinel_market.errors import ConfigError, Fatal
from sentinel_market.sim.cell import Cell, cell_of, clean_of
from sentinel_market.sim.conditions import CONDITIONS
from sentinel_market.sim.measure import Display, measure, span
from sentinel_market.sim.plan import BIG, DEFAULT, Plan, bench_plan, choose, honest_plan, one_plan, wanted
from sentinel_market.sim.pool import Inline, Pool
from sentinel_market.sim.resume import Record, lines_path, read_cells, read_lines
from sentinel_market.sim.settings import UNVERIFIED, RunResult, RunSettings
from tests.sim import fakes

BASE = RunSettings(steps=40, onset=10)


def known(plan: Plan) -> dict[RunSettings, Cell]:
    record = Record(None)
    assert measure(plan, record, Inline(fakes.run_cell)) == {}
    return record.cells


def small_plan() -> Plan:
    rows = [fakes.row("noise", "forward"), fakes.row("zeros", "forward")]
    return bench_plan(BASE, rows, seeds=2, clean_runs=2, ablations=["paper:l1"])


# --- what is wanted


def test_a_ladder_is_climbed_until_the_loss_is_five_percent_worse() -> None:
    noise = fakes.row("noise", "forward")
    plan = bench_plan(BASE, [noise], clean_runs=0)
    first = wanted(plan, {})
    assert [want.settings.attack for want in first] == ["", noise.levels[0].spec]
    cells = known(plan)
    # 2 % a unit of strength: 0.5, 1 and 2 do not hurt, 4 does, 8 is only run with checks.
    alone = {cell.strength for cell in cells.values() if cell.policy == UNVERIFIED and cell.attack != "clean"}
    assert alone == {0.5, 1.0, 2.0, 4.0}
    choice = choose(plan, noise, cells)
    assert (choice.level, choice.decided, choice.hurts) == (3, True, True)
    checked = {(cell.strength, cell.seed) for cell in cells.values() if cell.policy == DEFAULT}
    assert checked == {(4.0, 0), (4.0, 1), (4.0, 2), (8.0, 0)}
    assert {(c.strength, c.seed) for c in cells.values() if c.policy == "paper"} == {(4.0, 0)}


def test_the_paper_is_measured_with_whole_attacks_too() -> None:
    """As published, whatever strength the ladder ends at; once where it ends there."""
    row = dataclasses.replace(fakes.row("noise", "forward"), attack="ones")
    cells = known(bench_plan(BASE, [row], clean_runs=0)).values()
    strengths = {
        policy: sorted(c.strength or 0 for c in cells if c.policy == policy) for policy in ("paper", "paper:l1")
    }
    assert strengths == {"paper": [1.0, 4.0], "paper:l1": [1.0]}


def test_next_everywhere_runs_the_next_strength_on_every_seed() -> None:
    plan = bench_plan(BASE, [fakes.row("noise", "forward")], clean_runs=0, next_everywhere=True)
    assert {c.seed for c in known(plan).values() if c.strength == 8.0} == {0, 1, 2}


def test_a_ladder_that_never_hurts_ends_at_its_strongest() -> None:
    row = fakes.row("noise", "forward")
    weak = dataclasses.replace(row, levels=row.levels[:2])
    plan = bench_plan(BASE, [weak], clean_runs=0)
    cells = known(plan)
    choice = choose(plan, weak, cells)
    assert (choice.level, choice.decided, choice.hurts) == (1, True, False)
    assert {cell.strength for cell in cells.values() if cell.policy == DEFAULT} == {1.0}


def test_the_bench_measures_what_it_is_meant_to() -> None:
    cells = known(bench_plan(BASE, fakes.all_rows(), big=True)).values()
    rows = {(name, way) for name, ways in fakes.SUITE.items() for way in ways}
    ordinary = [c for c in cells if c.mesh == (8, 8) and not c.settings.collude and c.settings.duty == 1]
    for policy in (UNVERIFIED, "paper", DEFAULT):
        assert {(c.attack, c.direction) for c in ordinary if c.policy == policy} - {("clean", "none")} == rows
    some = {row for row in rows if row[0] in ("zeros", "sign_flip", "identity", "delay")}
    for policy in ("screen", "screen+confirm"):
        found = {(c.attack, c.direction, c.seed) for c in ordinary if c.policy == policy and c.attack != "clean"}
        assert found == {(*row, seed) for row in some for seed in range(3)}
    for policy in ("screen+confirm", DEFAULT):
        assert {c.seed for c in cells if c.policy == policy and c.attack == "clean"} == set(range(20))
    for mesh in BIG:
        found = [c for c in cells if (c.settings.replicas, c.settings.stages) == (mesh["replicas"], mesh["stages"])]
        attacked = [c for c in found if c.attack != "clean"]
        assert {(c.attack, c.direction) for c in attacked} == some
        assert {(c.policy, c.seed, c.settings.malicious) for c in attacked} == {
            ("paper", 0, mesh["malicious"]),
            (DEFAULT, 0, mesh["malicious"]),
        }
        assert [c.policy for c in found if c.attack == "clean"] == [UNVERIFIED]
    assert {c.attack for c in cells if c.settings.collude} == {"zeros", "sign_flip", "identity", "delay"}
    assert {c.policy for c in cells if c.policy.startswith("paper:")} == {
        "paper:no-ema",
        "paper:l1",
        "paper:l2",
        "paper:sfr",
        "paper:sw",
    }
    whole = {(c.attack, c.direction, c.strength, c.seed) for c in cells if c.policy.startswith("paper:")}
    assert whole == {(name, "forward", 1.0, 0) for name in ("zeros", "sign_flip")}
    # What a cell is compared with is there: the clean run of its seed and mesh.
    for cell in cells:
        if cell.attack != "clean":
            assert clean_of(cell.settings) in {one.settings for one in cells}


def test_conditions_are_run_on_as_many_seeds_as_their_frames_need() -> None:
    base = RunSettings()
    cells = known(honest_plan(base, CONDITIONS)).values()
    assert {c.settings.condition for c in cells} == set(CONDITIONS)
    assert {(c.attack, c.policy, c.settings.malicious) for c in cells} == {("clean", DEFAULT, 0.0)}
    for name in CONDITIONS:
        found = [c for c in cells if c.settings.condition == name]
        frames = sum(c.settings.counted_frames for c in found)
        assert 20_000 <= frames < 20_000 + found[0].settings.counted_frames
        assert {c.seed for c in found} == {0, 1, 2}
    with pytest.raises(ConfigError, match="'dark' is unknown"):
        honest_plan(base, ["dark"])
    table = bench_plan(BASE, [], clean_runs=0, conditions=["joiner"], condition_seeds=2)
    assert [(want.settings.condition, want.settings.seed) for want in wanted(table, {})] == [
        ("joiner", 0),
        ("joiner", 1),
    ]


def test_every_run_is_wanted_once_and_the_outlook_holds_what_is_certain() -> None:
    plan = bench_plan(BASE, fakes.all_rows())
    now = [want.settings for want in wanted(plan, {})]
    ahead = [want.settings for want in wanted(plan, {}, outlook=True)]
    assert len(set(now)) == len(now)
    assert set(now) < set(ahead)
    cells = known(plan)
    assert {want.settings for want in wanted(plan, cells)} == set(cells)


def test_a_few_cells_come_with_what_they_are_compared_with() -> None:
    plan = one_plan(BASE, [fakes.row("zeros", "forward")], ["paper", "screen"], 2, ladder=False)
    found = {(c.attack, c.policy, c.seed) for c in known(plan).values()}
    wants = {("clean", UNVERIFIED), ("zeros", UNVERIFIED), ("zeros", "paper"), ("zeros", "screen")}
    assert found == {(*one, seed) for one in wants for seed in (0, 1)}


# --- doing it


def test_a_stopped_measurement_goes_on_where_it_was(tmp_path: Path) -> None:
    path, plan = tmp_path / "out.json", small_plan()
    calls: list[RunSettings] = []

    def counting(settings: RunSettings, progress: fakes.Progress = None) -> RunResult:
        if len(calls) == 5:
            raise KeyboardInterrupt
        calls.append(settings)
        return fakes.run_cell(settings, progress)

    with Record(path) as record, pytest.raises(KeyboardInterrupt):
        measure(plan, record, Inline(counting))
    lines = lines_path(path)
    assert len(lines.read_text().splitlines()) == 5
    with lines.open("a") as file:
        file.write('{"attack": "noi')  # the process ended here
    again: list[RunSettings] = []

    def going_on(settings: RunSettings, progress: fakes.Progress = None) -> RunResult:
        again.append(settings)
        return fakes.run_cell(settings, progress)

    with Record(path) as record:
        assert measure(plan, record, Inline(going_on)) == {}
        record.write_array()
        everything = record.all()
    assert not set(calls) & set(again)
    assert set(calls) | set(again) == set(known(plan))
    assert len(read_lines(lines)[0]) == len(everything) == len(json.loads(path.read_text()))
    assert sorted(map(repr, read_cells(path))) == sorted(map(repr, read_cells(lines))) == sorted(map(repr, everything))
    with Record(path) as record:  # nothing is left to do
        measure(plan, record, Inline(fakes.dies))


def test_cells_carry_the_losses_that_they_are_compared_with(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    with Record(path) as record:
        measure(small_plan(), record, Inline(fakes.run_cell))
        record.write_array()
    cells = json.loads(path.read_text())
    cell = next(c for c in cells if c["attack"] == "noise" and c["policy"] == DEFAULT and c["seed"] == 0)
    assert cell["strength"] == 4.0
    assert cell["val_loss"] == {
        "clean": pytest.approx(2.0),
        "unverified": pytest.approx(2.16),
        "verified": pytest.approx(2.002),
    }
    needed = (
        "attack strength direction policy seed precision recall f1 honest_bans honest_workers honest_frames "
        "flag_rate_honest steps_to_quarantine confirmations recomputes audits val_loss tokens_per_second "
        "verification_share stages replicas malicious steps model_dim onset spec hostile_workers banned bans_at "
        "first_attack_step seconds"
    )
    assert all(set(needed.split()) <= set(one) for one in cells)
    # The lines say the same as they are written: a cell's comparisons are done before it.
    lines = [json.loads(line) for line in lines_path(path).read_text().splitlines()]
    assert next(c for c in lines if c["settings"] == cell["settings"])["val_loss"] == cell["val_loss"]


def test_a_line_in_the_middle_that_is_no_cell_is_named(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    with Record(path) as record:
        measure(small_plan(), record, Inline(fakes.run_cell))
    lines = lines_path(path).read_text().splitlines()
    for broken in ('{"attack": 1}', "nonsense", "[]", lines[1].replace('"replicas": 8', '"replicas": 0')):
        lines_path(path).write_text("\n".join([lines[0], broken, *lines[2:]]) + "\n")
        with pytest.raises(ConfigError, match=r"out\.jsonl, line 2: .*; remove the line"), Record(path):
            pass


def test_a_whole_last_line_without_its_line_break_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    with Record(path) as record:
        measure(small_plan(), record, Inline(fakes.run_cell))
        count = len(record.cells)
    text = lines_path(path).read_text()
    lines_path(path).write_text(text.rstrip("\n"))
    with Record(path) as record:
        assert len(record.cells) == count
    assert lines_path(path).read_text() == text


def test_two_processes_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    with Record(path), pytest.raises(ConfigError, match="another process writes"), Record(path):
        pass


@pytest.mark.parametrize("name", ["missing/out.json", "folder.json"])
def test_a_file_that_cannot_be_written_is_told_before_the_work(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ConfigError, match=r"cannot write .*choose another --json FILE"), Record(tmp_path / name):
        pass


def test_a_failed_run_does_not_stop_the_others() -> None:
    record, plan = Record(None), small_plan()
    failed = measure(plan, record, Inline(fakes.fails_on_noise))
    assert set(failed.values()) == {"ZeroDivisionError: division by zero"}
    assert all(settings.attack.startswith("noise") for settings in failed)
    assert {c.policy for c in record.cells.values() if c.attack == "zeros"} >= {UNVERIFIED, "paper", DEFAULT}


def test_processes_find_what_one_finds() -> None:
    record, plan = Record(None), small_plan()
    pool = Pool(fakes.run_cell, 2)
    try:
        assert measure(plan, record, pool) == {}
    finally:
        pool.close()
    alone = known(plan)
    assert {s: c.to_json() for s, c in record.cells.items()} == {s: c.to_json() for s, c in alone.items()}
    assert not multiprocessing.active_children()


def test_a_process_that_dies_is_told_and_the_others_end() -> None:
    pool = Pool(fakes.dies, 2)
    try:
        with pytest.raises(Fatal, match=r"ended with code 7 in the run .*--jobs 1"):
            measure(small_plan(), Record(None), pool)
    finally:
        pool.close()
    assert not multiprocessing.active_children()


def test_progress_without_a_terminal_is_a_line_a_run_with_the_time_left() -> None:
    out, now = StringIO(), [0.0]

    def clock() -> float:
        now[0] += 60.0
        return now[0]

    with Display(Console(file=out, width=200), 1, clock) as display:
        measure(small_plan(), Record(None), Inline(fakes.run_cell, display.stepped), display)
    lines = out.getvalue().splitlines()
    assert len(lines) == len(known(small_plan()))
    assert "clean, unverified, 8x8, seed 0: loss 2.000" in lines[0] and "min left" in lines[0]
    assert lines[-1].startswith(f"[{len(lines)}/{len(lines)}]") and lines[-1].endswith("all done")
    assert any("noise:strength=4,direction=forward" in line and "+8.0% of clean" in line for line in lines)


def test_the_bars_of_a_terminal_come_and_go() -> None:
    out = StringIO()
    with Display(Console(file=out, width=160, force_terminal=True), 1) as display:
        measure(small_plan(), Record(None), Inline(fakes.run_cell, display.stepped), display)
    assert "all done" in out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"), [(10, "less than a minute"), (1800, "about 30 min"), (7500, "about 2 h 05 min")]
)
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_a_cell_survives_json_even_when_the_loss_diverged() -> None:
    settings = dataclasses.replace(BASE, attack="noise:strength=8", policy=UNVERIFIED)
    cell = cell_of(fakes.run_cell(settings), "noise", 8.0)
    data = json.loads(json.dumps(cell.to_json(), allow_nan=False))
    assert Cell.from_json(data) == cell
    for name in ("policy", "val_loss", "settings"):
        with pytest.raises(ConfigError, match=name):
            Cell.from_json({key: value for key, value in data.items() if key != name})
    with pytest.raises(ConfigError, match="unknown run settings"):
        Cell.from_json({**data, "settings": {**data["settings"], "colour": "red"}})
