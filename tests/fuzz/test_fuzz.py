"""The fuzzer's targets on their seeds, and short runs of the fuzzer itself: the same inputs each time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
RUNS = {"frames": 300, "gradients": 600, "codec": 3000, "shapes": 3000, "assembly": 3000}


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_every_seed_holds(name: str) -> None:
    target, seeds = TARGETS[name]
    for seed in seeds:
        target(seed)


def fuzz(name: str, runs: int, home: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("atheris", reason="no wheel of the fuzzer for this Python or machine")
    command = [sys.executable, "-m", "tests.fuzz.run", "--home", str(home), name, f"-runs={runs}", "-seed=1"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_short_run_finds_nothing(name: str, tmp_path: Path) -> None:
    done = fuzz(name, RUNS[name], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"Done {RUNS[name]} runs" in done.stderr
    assert len(list((tmp_path / name).iterdir())) > len(TARGETS[name][1]), "nothing new was kept: no coverage is seen"


def test_a_planted_bug_is_found(tmp_path: Path) -> None:
    done = fuzz("planted", 400_000, tmp_path)
    assert done.returncode != 0 and "the planted bug" in done.stdout + done.stderr
    (crash,) = tmp_path.glob("crash-*")
    assert crash.read_bytes().startswith(b"SNT\xf1\x07")
