"""The local node as a child process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sentinel_market.chain.local import HOST, Child, LocalChain, start_node, wait_until
from sentinel_market.errors import ChainMismatch, ConfigError
from tests.support.localnet import LocalNet

PARENT = """
import sys, time
from pathlib import Path
from sentinel_market.chain.local import Child
child = Child([sys.executable, "-c", sys.argv[2]], log_file=Path(sys.argv[1]))
print("ready", flush=True)
time.sleep(60)
"""
GRANDCHILD = (
    "import subprocess, sys, time; p = subprocess.Popen(['sleep', '61']); print(p.pid, flush=True); time.sleep(60)"
)


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return True
    return state == "Z"


def wait_for(condition: object, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_children_and_grandchildren_end_with_the_parent(tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "log"
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(log), GRANDCHILD], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        assert wait_for(lambda: log.exists() and log.read_text().strip())
        grandchild = int(log.read_text())
        assert not gone(grandchild)
        parent.send_signal(number)
    assert wait_for(lambda: gone(grandchild))


def test_stop_ends_the_group_and_tail_tells_the_end(tmp_path: Path) -> None:
    with Child([sys.executable, "-c", GRANDCHILD], log_file=tmp_path / "log") as child:
        assert wait_for(lambda: child.tail())
        grandchild = int(child.tail())
        assert child.alive()
    assert not child.alive()
    assert gone(grandchild)


def test_a_child_that_dies_is_quoted(tmp_path: Path) -> None:
    with (
        Child([sys.executable, "-c", "raise SystemExit('out of luck')"], log_file=tmp_path / "log") as child,
        pytest.raises(ConfigError, match="the thing did not start: out of luck"),
    ):
        wait_until(lambda: False, child, "the thing")


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} on 127.0.0.1 is in use.*--rpc-port"):
            start_node(port, tmp_path / "log")
    assert not (tmp_path / "log").exists()


@pytest.mark.chain
def test_only_a_test_node_gives_play_money(net: LocalNet, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(net.chain.accounts) == 20
    monkeypatch.setattr("sentinel_market.chain.local.rpc", lambda *_: "Geth/v1.15")
    with pytest.raises(ChainMismatch, match="no local test chain"):
        LocalChain(net.network.rpc)


@pytest.mark.chain
def test_the_node_runs_in_its_own_group(net: LocalNet) -> None:
    assert net.node.alive()
    assert os.getpgid(net.node.pid) != os.getpgid(0)
