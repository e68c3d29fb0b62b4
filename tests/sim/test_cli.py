"""The verbs ``sim`` and ``bench``, over a simulation that takes no time, and once over the real one."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sentinel_market import attacks
from sentinel_market.cli.common import wants_json
from sentinel_market.cli.main import cli
from sentinel_market.domain.job_spec import parse_job, template
from sentinel_market.errors import ConfigError
from sentinel_market.sim import run, specs
from sentinel_market.sim.calibrate import calibrate
from sentinel_market.sim.settings import RunResult, RunSettings
from tests.sim import fakes


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that take no time, and ladders that a test can predict."""
    monkeypatch.setattr(run, "run_cell", fakes.run_cell)
    monkeypatch.setattr(attacks, "ladder", fakes.ladder)
    monkeypatch.setattr(attacks, "directions", fakes.directions)
    monkeypatch.setattr(attacks, "names", lambda: tuple(fakes.SUITE))


def call(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, [str(arg) for arg in args])
    assert result.exit_code == code, result.output
    return result


def mine(tensor: Any, context: Any) -> Any:
    """A user's own attack."""
    del context
    return 0 * tensor


# --- naming attacks


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["zeros,sign_flip"], ["zeros", "sign_flip"]),
        (["noise:strength=2,direction=backward,zeros"], ["noise:strength=2,direction=backward", "zeros"]),
        (["noise:strength=2", "zeros, noise:strength=2"], ["noise:strength=2", "zeros"]),
        (["my.module:cheat:x=1,y=2,other:thing"], ["my.module:cheat:x=1,y=2", "other:thing"]),
    ],
)
def test_attacks_in_a_list(given: list[str], names: list[str]) -> None:
    assert specs.split_names(given) == names


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="between two commas"):
        specs.split_names(["zeros,,ones"])


@pytest.mark.usefixtures("fast")
def test_rows_of_strengths_and_directions() -> None:
    def found(*given: str, **options: str) -> list[tuple[str, list[tuple[str, float | None]]]]:
        rows = specs.rows_of(given, **options)
        return [(row.direction, [(level.spec, level.strength) for level in row.levels]) for row in rows]

    assert found("noise", strength="3", direction="backward") == [
        ("backward", [("noise:strength=3,direction=backward", 3.0)])
    ]
    assert found("noise:strength=2", direction="forward") == [
        ("forward", [("noise:strength=2,direction=forward", 2.0)])
    ]
    assert [way for way, _ in found("zeros:direction=backward", direction="both")] == ["backward"]
    assert [way for way, _ in found("zeros", "identity")] == ["forward", "backward", "both"]
    climbing = found("noise", strength="ladder", direction="forward")[0][1]
    assert [strength for _, strength in climbing] == [0.5, 1.0, 2.0, 4.0, 8.0]
    with pytest.raises(ConfigError, match="'zeros' has no strength"):
        specs.rows_of(["zeros"], strength="2")
    with pytest.raises(ConfigError, match="a ladder would change them"):
        specs.rows_of(["noise:strength=2"], strength="ladder")


@pytest.mark.usefixtures("fast")
def test_every_shipped_attack_has_its_rows() -> None:
    assert [(row.attack, row.direction) for row in specs.all_rows()] == [
        (name, way) for name, ways in fakes.SUITE.items() for way in ways
    ]


def test_every_shipped_ladder_makes_attacks_and_climbs() -> None:
    for row in specs.all_rows():
        for level in row.levels:
            specs.check(level.spec)
        strengths = [level.strength for level in row.levels]
        assert None not in strengths, row
        assert len(set(strengths)) == len(strengths), row


# --- sim


@pytest.mark.usefixtures("fast")
def test_sim_prints_a_table_and_writes_everything(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    shown = call("sim", "--attack", "zeros,noise:strength=4", "--direction", "both", "--jobs", 1, "--json", file)
    assert "noise" in shown.stdout and "100.0 %" in shown.stdout and "screen+confirm+audit" in shown.stdout
    cells = json.loads(file.read_text())
    rows = {(c["attack"], c["direction"], c["policy"]) for c in cells}
    assert rows == {("clean", "none", "unverified")} | {
        (attack, way, policy)
        for attack in ("zeros", "noise")
        for way in ("forward", "backward")
        for policy in ("unverified", "screen+confirm+audit")
    }
    assert {one.name for one in tmp_path.iterdir()} == {
        "out.json",
        "out.jsonl",
        "out.md",
        "out.f1.svg",
        "out.loss.svg",
        "out.wait.svg",
        "out.curve.svg",
    }


@pytest.mark.usefixtures("fast")
def test_sim_with_a_dash_prints_the_cells_alone() -> None:
    cells = json.loads(call("sim", "--attack", "zeros", "--seeds", 2, "--jobs", 1, "--json", "-").stdout)
    assert {cell["seed"] for cell in cells} == {0, 1}


@pytest.mark.usefixtures("fast")
def test_sim_takes_the_flags_into_the_settings() -> None:
    text = call(
        *("sim", "--attack", "noise", "--strength", 2, "--direction", "backward", "--policy", "paper", "--policy"),
        *("screen", "--replicas", 6, "--stages", 5, "--malicious", 0.3, "--steps", 30, "--model-dim", 24, "--seed", 3),
        *("--collude", "--duty", 4, "--drivers", 2, "--corrupt-drivers", 1, "--jobs", 1, "--json", "-"),
    ).stdout
    found = {cell["policy"]: cell["settings"] for cell in json.loads(text) if cell["attack"] == "noise"}
    assert set(found) == {"unverified", "paper", "screen"}
    assert (
        found["paper"] | {"policy": ""}
        == RunSettings(
            attack="noise:strength=2,direction=backward",
            direction="backward",
            policy="",
            replicas=6,
            stages=5,
            malicious=0.3,
            steps=30,
            onset=10,
            model_dim=24,
            seed=3,
            collude=True,
            duty=4,
            drivers=2,
            corrupt_drivers=1,
        ).to_json()
    )


@pytest.mark.usefixtures("fast")
def test_sim_without_an_attack_is_clean() -> None:
    cells = json.loads(call("sim", "--replicas", 2, "--jobs", 1, "--json", "-").stdout)
    assert [(c["attack"], c["policy"]) for c in cells] == [("clean", "unverified"), ("clean", "screen+confirm+audit")]


@pytest.mark.usefixtures("fast")
def test_sim_climbs_a_ladder() -> None:
    args = ("sim", "--attack", "noise", "--strength", "ladder", "--jobs", 1, "--json", "-")
    cells = json.loads(call(*args).stdout)
    assert {c["strength"] for c in cells if c["policy"] == "screen+confirm+audit"} == {4.0, 8.0}


@pytest.mark.usefixtures("fast")
def test_a_users_own_attack_is_loaded() -> None:
    name = f"{__name__}:mine"
    cells = json.loads(call("sim", "--attack", name, "--jobs", 1, "--json", "-").stdout)
    assert name in {cell["attack"] for cell in cells}


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--attack", "zero"], "'zero' is unknown; use one of "),
        (["--attack", "zeros:fraction=2"], "zeros:fraction=2"),
        (["--attack", "no.such:thing"], "cannot load 'thing' of module 'no.such'"),
        (["--attack", "zeros", "--malicious", "0.6"], "malicious = 0.6 must lie in 0 .. 0.5"),
        (["--attack", "zeros", "--malicious", "0.5"], "4 of 8 replicas hostile; give a share"),
        (["--attack", "zeros", "--replicas", "3", "--malicious", "0.1"], "0 of 3 replicas hostile"),
        (["--attack", "zeros", "--policy", "strict"], "policy 'strict' is unknown"),
        (["--attack", "noise", "--strength", "much"], "--strength 'much' is neither a number nor 'ladder'"),
        (["--attack", "zeros", "--steps", "10", "--onset", "10"], "--onset 10 lies beyond --steps 10"),
        (["--attack", "zeros", "--model-dim", "20"], "model_dim = 20 must be a multiple of 8"),
        (["--attack", "zeros", "--json", "out.jsonl"], "give --json out.json"),
        (["--attack", "zeros", "--json", "/no/such/folder/out.json"], "cannot write /no/such/folder/out.json"),
    ],
)
def test_mistakes_are_named_with_the_way_out(args: list[str], message: str) -> None:
    result = call("sim", *args, code=2)
    assert message in result.stderr, result.output
    assert "Traceback" not in result.output


@pytest.mark.usefixtures("fast")
def test_ctrl_c_leaves_a_file_to_go_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, done = tmp_path / "out.json", []

    def two_and_then(settings: RunSettings, progress: fakes.Progress = None) -> RunResult:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(settings)
        return fakes.run_cell(settings, progress)

    args = ("sim", "--attack", "zeros", "--jobs", 1, "--json", file)
    monkeypatch.setattr(run, "run_cell", two_and_then)
    stopped = call(*args, code=130)
    assert f"{tmp_path / 'out.jsonl'} holds 2 finished runs; give the same command again" in stopped.stderr
    assert not file.exists()
    monkeypatch.setattr(run, "run_cell", fakes.run_cell)
    again = call(*args)
    assert "about 3 runs, 2 of them done already" in again.stderr
    assert len(json.loads(file.read_text())) == 3


@pytest.mark.usefixtures("fast")
def test_a_failed_run_is_told_at_the_end_and_the_rest_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "run_cell", fakes.fails_on_noise)
    file = tmp_path / "out.json"
    result = call("sim", "--attack", "noise,zeros", "--jobs", 1, "--json", file, code=1)
    assert "2 runs failed; give the same command to try them again" in result.stderr
    assert "ZeroDivisionError" in result.stderr and "Traceback" not in result.output
    assert {cell["attack"] for cell in json.loads(file.read_text())} == {"clean", "zeros"}


def test_json_asks_for_json_errors_only_where_it_is_a_flag() -> None:
    assert wants_json(cli, ["sim", "calibrate", "job.toml", "--json"])
    assert wants_json(cli, ["sim", "--json", "-"])
    assert wants_json(cli, ["bench", "report", "--json", "out.json"])
    assert not wants_json(cli, ["sim", "--json", "out.json"])
    assert not wants_json(cli, ["bench", "detect", "--json", "out.json"])
    assert not wants_json(cli, ["sim"])


# --- bench


@pytest.mark.usefixtures("fast")
def test_bench_detect_then_report(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    call("bench", "detect", "--quick", "--jobs", 1, "--json", file)
    cells = json.loads(file.read_text())
    assert {c["attack"] for c in cells} == {"clean", "zeros", "sign_flip", "identity", "noise"}
    assert {c["seed"] for c in cells} == {0, 1}
    page = (tmp_path / "out.md").read_text()
    for one in tmp_path.glob("out.*"):
        if one.suffix in (".md", ".svg"):
            one.unlink()
    file.unlink()
    told = json.loads(call("bench", "report", tmp_path / "out.jsonl", "--json").stdout)
    assert told["cells"] == len(cells)
    assert [one["number"] for one in told["figures"]] == [1, 2, 3, 4, 5, 6]
    assert (tmp_path / "out.md").read_text() == page
    assert all(Path(name).exists() for name in told["files"])


@pytest.mark.usefixtures("fast")
def test_bench_honest_prints_the_bounds_and_adds_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    call("bench", "detect", "--quick", "--no-conditions", "--jobs", 1, "--json", file)
    before = json.loads(file.read_text())
    assert {cell["condition"] for cell in before} == {""}
    shown = call("bench", "honest", "--quick", "--condition", "bf16,joiner", "--jobs", 1, "--json", file).stdout
    after = json.loads(file.read_text())
    assert [cell for cell in after if not cell["condition"]] == before
    assert [(c["condition"], c["policy"], c["seed"]) for c in after if c["condition"]] == [
        ("bf16", "screen+confirm+audit", 0),
        ("joiner", "screen+confirm+audit", 0),
    ]
    assert "6. **not measured** honest workers" in shown
    assert "holds: `joiner`, 1 run: workers banned 0 of 16 (upper 95 % bound 17 %)" in shown
    assert "clean (bf16)" in shown


@pytest.mark.usefixtures("fast")
def test_a_condition_by_hand_and_mistakes_about_it() -> None:
    cells = json.loads(call("sim", "--condition", "domain", "--jobs", 1, "--json", "-").stdout)
    assert [(c["condition"], c["policy"]) for c in cells] == [
        ("domain", "unverified"),
        ("domain", "screen+confirm+audit"),
    ]
    for args in (("sim", "--condition", "bf17"), ("bench", "honest", "--condition", "bf17")):
        stderr = call(*args, code=2).stderr
        assert "condition = 'bf17' is unknown; use one of bf16, threads" in stderr and "Traceback" not in stderr
    both = call("sim", "--condition", "bf16", "--attack", "zeros", code=2).stderr
    assert "condition = 'bf16' is an honest mesh; leave out the attack 'zeros:" in both
    late = call("bench", "honest", "--steps", 30, "--onset", 30, code=2).stderr
    assert "condition = 'lr-jump' begins at step 30 of 30" in late


@pytest.mark.usefixtures("fast")
def test_bench_report_of_what_is_none(tmp_path: Path) -> None:
    assert "cannot read" in call("bench", "report", tmp_path / "none.json", code=2).stderr
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    assert "holds no JSON array" in call("bench", "report", bad, code=2).stderr
    bad.write_text('[{"attack": 1}]')
    assert "entry 1: a cell without" in call("bench", "report", bad, code=2).stderr
    lines = tmp_path / "bad.jsonl"
    lines.write_text("{}\n")
    assert "line 1: a cell without" in call("bench", "report", lines, code=2).stderr


@pytest.mark.usefixtures("fast")
def test_bench_names_an_unknown_attack() -> None:
    assert "'zero' is unknown" in call("bench", "detect", "--attack", "zero", code=2).stderr


# --- calibrate


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(template())
    return path


def test_calibrate_is_what_can_be_worked_out_by_hand(job: Path) -> None:
    data = json.loads(call("sim", "calibrate", job, "--json").stdout)
    spec = parse_job(template())
    frames = 2 * spec.training.microbatches * spec.parallelism.stages
    assert data["frames_a_step"] == frames
    assert data["flags_a_step"] == pytest.approx(0.005 * frames)
    # Four stages: 3 p, p, p, p forward and p, p, p, 6 p backward.
    assert data["audits_a_step"] == pytest.approx(spec.training.microbatches * 0.15)
    assert data["confirmations_a_step"] == pytest.approx(data["audits_a_step"] + data["flags_a_step"])
    # A false frame at 1 % is worth a hundredth of the slash, and a quarter of that with accomplices.
    assert int(data["break_even"]) == spec.market.slot_stake // 100
    assert int(data["break_even_shielded"]) == spec.market.slot_stake // 400
    ten, fifty, hundred = data["needs"]
    assert ten["audit_cores"] == pytest.approx(data["seat_share"] * 10_000 / 50)
    for one, times in ((fifty, 5), (hundred, 10)):
        for name in ("audit_cores", "screen_cores", "mbits", "cores"):
            assert one[name] == pytest.approx(times * ten[name])


def test_at_plain_shares_a_seat_needs_about_the_share_that_the_protocol_names() -> None:
    """About 0.9 % of the workers' FLOP/s over n seats, where the threefold share of the two ends weighs little.

    A quarter of p + 0.5 % of flags and the cross-audits p/4, a repeat being 4/3 of the work, and p/4 whole gradients.
    """
    text = template().replace("stages = 4", "stages = 64").replace("num_layers = 4", "num_layers = 64")
    found = calibrate(parse_job(text))
    by_hand = (0.25 * 0.015 + 0.0025) * 4 / 3 + 0.0025
    assert 0.009 < by_hand < found.seat_share < 1.07 * by_hand
    assert found.seat_share_each == found.seat_share / 3


def test_calibrate_by_its_switches(job: Path) -> None:
    spec = parse_job(template())
    usual, fast = calibrate(spec), calibrate(spec, core_gflops=100.0, core_gbytes=2.0, slash_bps=5_000)
    assert fast.needs[0].audit_cores == pytest.approx(usual.needs[0].audit_cores / 2)
    assert fast.needs[0].screen_cores == pytest.approx(usual.needs[0].screen_cores / 2)
    assert fast.break_even == usual.break_even // 2
    text = call("sim", "calibrate", job).stdout
    assert "never pays" in text and "100 TFLOP/s" in text
    bare = calibrate(spec.with_policy("none"))
    assert bare.confirmations_a_step == bare.seat_share == bare.break_even == bare.needs[0].cores == 0
    assert math.isfinite(bare.needs[0].mbits)


def test_calibrate_names_a_job_file_that_is_not_there(tmp_path: Path) -> None:
    assert "cannot read the job file" in call("sim", "calibrate", tmp_path / "no.toml", code=2).stderr


# --- the real thing


def test_a_real_run_of_the_smallest_mesh(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    call(
        *("sim", "--attack", "zeros", "--replicas", 3, "--stages", 2, "--malicious", 0.34, "--steps", 6, "--onset", 2),
        *("--model-dim", 8, "--jobs", 1, "--json", file),
    )
    cells = {cell["policy"] if cell["attack"] != "clean" else "clean": cell for cell in json.loads(file.read_text())}
    verified = cells["screen+confirm+audit"]
    assert verified["val_loss"]["clean"] == cells["clean"]["val_loss"]["clean"]
    assert verified["val_loss"]["unverified"] == cells["unverified"]["val_loss"]["unverified"]
    assert verified["hostile_workers"] == 1 and verified["honest_bans"] == 0
    assert verified["recall"] == 1.0
