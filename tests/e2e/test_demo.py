"""The main job with everything real: a chain, a coordinator, 15 processes, money in and out."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel_market.chain.local import free_port
from sentinel_market.domain.summary import check_summary
from verifier.evidence import replay_bundle

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
STEPS = 104
SENTINEL = Path(sys.executable).with_name("sentinel")


def start(out: Path, *arguments: str) -> tuple[subprocess.Popen[str], int, int]:
    rpc_port, port = free_port(), free_port()
    command = [str(SENTINEL), "demo", "--out", str(out), "--rpc-port", str(rpc_port), "--port", str(port), *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    return process, rpc_port, port


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def process_ids(out: Path) -> dict[str, int]:
    """Participant -> process id, from the first line of each log."""
    found = {}
    for log in out.glob("*/logs/*.log"):
        first = log.read_text(errors="replace").partition("\n")[0]
        if first.startswith("pid "):
            found[log.stem] = int(first.removeprefix("pid ").partition(":")[0])
    return found


def alive(out: Path) -> list[str]:
    """Participants that still run."""
    return [name for name, number in process_ids(out).items() if Path(f"/proc/{number}").exists()]


def until_step_one(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if "step 1/" in line:
            return
    pytest.fail("the demo ended before its first step")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """One short demo to its end: (its folder, what it printed)."""
    out = tmp_path_factory.mktemp("runs")
    process, rpc_port, port = start(out, "--steps", str(STEPS), "--seed", "1")
    printed, _ = process.communicate(timeout=800)
    assert process.returncode == 0, printed[-3000:]
    assert not listening(rpc_port)
    assert not listening(port)
    assert alive(out) == []
    (directory,) = out.iterdir()
    yield directory, printed


def test_every_hostile_worker_is_banned_and_slashed_and_nobody_else(finished: tuple[Path, str]) -> None:
    summary = json.loads((finished[0] / "summary.json").read_text())
    assert check_summary(summary) == []
    assert summary["steps"] == STEPS
    hostile = [w for w in summary["workers"] if w["attack"]]
    assert len(hostile) == 3
    for worker in summary["workers"]:
        slashed = int(worker["stake_before"]) - int(worker["stake_after"])
        if worker["attack"]:
            assert worker["banned"]
            assert worker["quarantined_at_step"] is not None
            assert slashed > 0
        else:
            assert not worker["banned"]
            assert slashed == 0
            assert int(worker["paid"]) > 0
    assert summary["detection"]["median_steps_to_quarantine"] <= 3
    assert summary["detection"]["max_seconds_to_ban"] <= 30


def test_the_money_adds_up_to_the_base_unit(finished: tuple[Path, str]) -> None:
    summary = json.loads((finished[0] / "summary.json").read_text())
    job = {key: int(summary["job"][key]) for key in ("budget", "paid", "refunded", "fee")}
    assert job["budget"] == job["paid"] + job["refunded"] + job["fee"]
    drawn = sum(int(p["paid"]) for p in (*summary["workers"], *summary["verifiers"]))
    assert drawn == job["paid"], "everything promised was claimed"
    assert "everybody took its money out again" in finished[1]


def test_the_files_stand_by_themselves(finished: tuple[Path, str]) -> None:
    directory = finished[0]
    report = (directory / "report.html").read_text()
    assert "<svg" in report
    assert 'src="http' not in report
    assert 'href="http' not in report
    assert (directory / "model" / "model.safetensors").stat().st_size > 100_000
    bundles = [p.parent for p in (directory / "evidence").glob("*/manifest.json")]
    assert len(bundles) >= 3
    for bundle in bundles:
        assert replay_bundle(bundle).verdict.kind.value.upper() == "VIOLATION"


def test_nothing_about_the_attack_reaches_the_others(finished: tuple[Path, str]) -> None:
    """Only a hostile worker's own home and log, and the results written at the end, may name its attack."""
    directory = finished[0]
    names = (b"sign_flip", b"direction=backward", b"--attack")  # "identity" is also a word of the screen
    for path in directory.rglob("*"):
        parts = path.relative_to(directory).parts
        if path.is_file() and parts[0] in {"homes", "logs"} and not any(p.startswith("worker-") for p in parts[1:]):
            content = path.read_bytes()
            assert not any(name in content for name in names), path


def test_no_key_is_logged(finished: tuple[Path, str]) -> None:
    from sentinel_market.keys.keystore import Keystore

    directory = finished[0]
    home = directory / "homes" / "worker-1"
    keys = Keystore(home / "keys")
    secret = keys._open("worker-1", "hot", "demo").hex()
    for path in (*(directory / "logs").iterdir(), *home.rglob("*.jsonl")):
        assert secret not in path.read_text(errors="replace")


def test_ctrl_c_stops_everything_and_a_second_run_can_start_at_once(tmp_path: Path) -> None:
    process, rpc_port, port = start(tmp_path, "--steps", "5000")
    until_step_one(process)
    assert len(process_ids(tmp_path)) == 16
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130
    assert not listening(rpc_port)
    assert not listening(port)
    assert alive(tmp_path) == []


def test_a_verifier_that_dies_stops_the_run_which_says_who_and_what(tmp_path: Path) -> None:
    process, _, _ = start(tmp_path, "--steps", "5000", "--honest")
    until_step_one(process)
    os.kill(process_ids(tmp_path)["verifier-1"], signal.SIGKILL)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 4
    assert "stopped answering" in printed
    assert "it held stages" in printed
    assert "verifier-1 stopped with exit code -9" in printed
    assert "Traceback" not in printed
    assert alive(tmp_path) == []


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [str(SENTINEL), "demo", "--out", str(tmp_path), "--rpc-port", str(port), "--port", str(free_port())],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 2
    assert str(port) in done.stderr
    assert "--rpc-port" in done.stderr
    assert "Traceback" not in done.stderr
