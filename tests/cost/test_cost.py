"""The accounting of ``sentinel bench cost``, and that nothing but the benchmark runs without hashes and signatures."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sentinel_market.cost.check import measure, needs
from sentinel_market.cost.clock import SERVING, Clock, leave_out
from sentinel_market.cost.live import CostSettings, Run, figures, parts_of, read_runs, report
from sentinel_market.errors import ConfigError


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_what_runs_inside_another_category_counts_once() -> None:
    clock = Clock()
    inner = clock.timed("hash", lambda: burn(0.02))

    def work() -> None:
        burn(0.01)
        inner()

    began = time.thread_time()
    clock.timed("compute", work)()
    spent = time.thread_time() - began
    assert clock.seconds["hash"] >= 0.02
    assert 0.01 <= clock.seconds["compute"] < spent - 0.02
    assert clock.seconds["hash"] + clock.seconds["compute"] <= spent


def test_an_error_inside_is_counted_and_passed_on() -> None:
    clock = Clock()

    def fail() -> None:
        burn(0.005)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        clock.timed("outer", clock.timed("inner", fail))()
    assert clock.seconds["inner"] >= 0.005
    assert clock.seconds["outer"] < 0.005


def mark(process: float, clock: dict[str, float], **seat: object) -> dict[str, object]:
    return {"process": process, "wall": process, "clock": clock, **seat}


def test_parts_are_what_was_used_between_the_marks() -> None:
    worker = (
        mark(1.0, {"compute": 0.5, "sketch": 0.1}),
        mark(11.0, {"compute": 8.5, "sketch": 0.2, "hash": 0.5}),
    )
    seat = (
        mark(2.0, {"hash": 0.1}, sections={"check": 0.2}, replay=0.0),
        mark(4.0, {"hash": 0.4, "sketch": 5.0}, sections={"check": 0.4, "recompute": 0.25, "reduce": 0.3}, replay=0.75),
    )
    cpu, _, parts = parts_of([worker, seat])
    assert cpu == pytest.approx(12.0)
    wanted = {
        "compute": 8.0,
        "sketch": 0.1,
        "hash": 0.8,
        "check": 0.2,
        "recompute": 0.25,
        "reduce": 0.3,
        "replay": 0.75,
    }
    assert parts == pytest.approx(wanted)
    run = Run("default", 0, cpu, 1.0, parts, {})
    assert run.compute == pytest.approx(7.25)  # 0.75 of it was done for the second time
    assert run.watching == pytest.approx((0.1 + 0.8 + 0.2) / 7.25)
    assert run.second_looks == pytest.approx((0.75 + 0.25) / 7.25)
    assert run.other == pytest.approx(12.0 - (8.0 + 0.1 + 0.8 + 0.2 + 0.25))  # replays are compute, not another part


def runs() -> list[Run]:
    cpu = {"unverified": 95.0, "screen": 98.0, "default": 100.0, "duplicated": 190.0}
    parts = {"compute": 80.0, "check": 1.0, "hash": 1.0, "replay": 1.0}
    return [Run(mode, n, c + n, 50.0, parts, {"confirmations": 2}) for mode, c in cpu.items() for n in range(3)]


def test_figures_are_medians_of_ratios_of_the_same_round() -> None:
    found = {one.text: one for one in figures(runs())}
    assert found["unverified / verified CPU, default"].values == pytest.approx((95 / 100, 96 / 101, 97 / 102))
    assert found["duplicated / verified CPU"].value == pytest.approx(191 / 101)
    assert all(one.holds for one in found.values())
    worse = [one if one.mode != "screen" else Run("screen", one.round, 120.0, 1.0, one.parts, {}) for one in runs()]
    assert not figures(worse)[2].holds
    assert "| no |" in report(worse, figures(worse))


def test_runs_are_taken_up_again_but_not_those_of_other_sizes(tmp_path: Path) -> None:
    from dataclasses import asdict

    settings = CostSettings()
    path = tmp_path / "runs.jsonl"
    assert read_runs(path, settings) == []
    path.write_text("".join(json.dumps({**asdict(one), "settings": asdict(settings)}) + "\n" for one in runs()))
    assert read_runs(path, settings) == runs()
    with pytest.raises(ConfigError, match="other sizes"):
        read_runs(path, CostSettings(dim=1024))
    path.write_text("{}\n")
    with pytest.raises(ConfigError, match="line 1"):
        read_runs(path, settings)


def test_sizes_that_cannot_be_measured_are_refused() -> None:
    with pytest.raises(ConfigError, match="two other replicas"):
        CostSettings(replicas=2)
    with pytest.raises(ConfigError, match="multiple of 64"):
        CostSettings(dim=100)


def test_the_modes_differ_in_policy_alone() -> None:
    settings = CostSettings()
    assert not settings.policy("unverified").screens
    assert settings.policy("screen").screens and not settings.policy("screen").confirms
    assert settings.policy("default").audit_share_ppm == 10_000
    assert settings.policy("duplicated").audit_share_ppm == 1_000_000


@pytest.mark.parametrize("module", SERVING)
def test_a_process_that_serves_a_market_leaves_nothing_out(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SERVING:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, module, sys)
    with pytest.raises(ConfigError, match=module):
        leave_out()


def test_what_a_stripped_worker_signs_nobody_else_accepts() -> None:
    """In a process of its own: the switch holds until the process ends."""
    code = """
from sentinel_market.chain import signing
from sentinel_market.cost.clock import leave_out
import worker.session, verifier.answers
key = signing.HotKey(bytes(31) + b"\\x01")
honest = signing.recover(bytes(32), key.sign(bytes(32)))
leave_out()
forged = key.sign(bytes(32))
assert worker.session.encoded_hash(b"a") == verifier.answers.encoded_hash(b"b")
assert verifier.answers.recover(bytes(32), forged) == honest == key.address
try:
    signing.recover(bytes(32), forged)  # what every other process still does
except Exception as error:
    print(type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "ProtocolError"


def test_the_check_is_measured_beside_the_least_loop() -> None:
    found = measure(64, 64, 3)
    assert found.frame_bytes == 2 * 4 * 64 * 64 + 2 * 4 * 16 * 64
    assert found.least > 0 and found.one_pass > 0 and found.check > 0
    assert found.gigabytes == pytest.approx(found.frame_bytes / found.check / 1e3)


def test_a_faster_worker_needs_more_of_its_verifiers() -> None:
    ten, fifty, hundred = needs(dim=1024, tokens=2048, check_gbs=5.0, hash_gbs=4.0, recover_seconds=1e-4)
    assert fifty.cores == pytest.approx(5 * ten.cores) and hundred.mbits == pytest.approx(10 * ten.mbits)
    units = 10e12 / (6 * 12 * 1024**2 * 2048)
    assert ten.mbits == pytest.approx(units * 4 * 4 * 2048 * 1024 * 8 / 1e6)
