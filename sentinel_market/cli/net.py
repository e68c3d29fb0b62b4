"""``sentinel net``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from types import FrameType

import click

from sentinel_market.cli.common import App, verb
from sentinel_market.errors import ConfigError, Fatal

_DETACH_SECONDS = 90


@click.group()
def net() -> None:
    """A local network on 127.0.0.1: Hardhat chain with our contracts, play money, coordinator."""


@verb(net, "up", example="sentinel net up\nsentinel net up --detach --rpc-port 9545 --port 9700")
@click.option("--rpc-port", default=8545, show_default=True, help="Port of the chain.")
@click.option("--port", default=8700, show_default=True, help="Port of the coordinator and its page.")
@click.option("--chain-only", is_flag=True, help="No coordinator.")
@click.option("--detach", is_flag=True, help="Return when it is up; stop it with `sentinel net down`.")
def up(app: App, rpc_port: int, port: int, chain_only: bool, detach: bool) -> None:
    """Start chain and coordinator, deploy the contracts, write the network file; run until Ctrl-C."""
    if detach:
        _detached(app, rpc_port, port, chain_only)
        return
    from sentinel_market.cli.localnet import running_net

    stop = threading.Event()

    def asked(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    previous = signal.signal(signal.SIGTERM, asked)
    try:
        with running_net(
            app.settings, rpc_port=rpc_port, port=port, with_coordinator=not chain_only, say=app.note
        ) as running:
            page = f"; page: {running.network.coordinator}/" if running.network.coordinator else ""
            app.emit(
                {"network_file": str(app.settings.network_file), "network": running.network},
                f"the network is up{page}; Ctrl-C or `sentinel net down` stops it",
            )
            sys.stdout.flush()
            while not stop.wait(0.5):
                problem = running.problem()
                if problem is not None:
                    raise Fatal(problem)
    except KeyboardInterrupt:
        pass  # the documented way to stop it
    finally:
        signal.signal(signal.SIGTERM, previous)
    app.note("the network is down")


def _detached(app: App, rpc_port: int, port: int, chain_only: bool) -> None:
    log_file = app.settings.home / "logs" / "net.log"
    log_file.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "sentinel_market.cli.main", "net", "up"]
    command += ["--rpc-port", str(rpc_port), "--port", str(port), *(["--chain-only"] if chain_only else [])]
    start = log_file.stat().st_size if log_file.exists() else 0
    with log_file.open("ab") as out:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    deadline = time.monotonic() + _DETACH_SECONDS
    while True:
        text = log_file.read_bytes()[start:].decode("utf-8", "replace")
        if "the network is up" in text:
            break
        if child.poll() is not None:
            reason = text.strip().splitlines()[-1:] or ["no reason given"]
            raise ConfigError(reason[0].removeprefix("Error: "))
        if time.monotonic() > deadline:
            child.terminate()
            raise ConfigError(f"the network was not up in {_DETACH_SECONDS} s; see {log_file}")
        time.sleep(0.1)
    app.emit(
        {"network_file": str(app.settings.network_file), "network": app.network, "pid": child.pid},
        f"the network is up (pid {child.pid}, log {log_file}); stop it with `sentinel net down`",
    )


@verb(net, "down", example="sentinel net down")
def down(app: App) -> None:
    """Stop this home's local network. Its chain is gone for good: keys stay, stake and jobs do not."""
    from sentinel_market.cli.localnet import running_pid

    pid = running_pid(app.settings.home)
    if pid is None:
        raise ConfigError(f"no local network of {app.settings.home} is running")
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 30
    while running_pid(app.settings.home) is not None:
        if time.monotonic() > deadline:
            raise ConfigError(f"process {pid} does not stop; look at it, or end it with `kill -9 {pid}`")
        time.sleep(0.05)
    app.emit({"stopped": pid}, "the network is down")


@verb(net, "status", example="sentinel net status --json")
def status(app: App) -> None:
    """Show the network file, the chain's head, and whether the coordinator answers."""
    from sentinel_market.cli.localnet import running_pid

    network, client = app.network, app.reader
    head, now = client.block_number(), client.now()
    state: dict[str, object] = {"ok": None}
    if network.coordinator:
        from sentinel_market.errors import SentinelError

        try:
            health = app.coordinator.health()
            state = {"ok": health.ok, "indexed_block": health.indexed_block}
        except SentinelError as exc:
            state = {"ok": False, "problem": str(exc)}
    pid = running_pid(app.settings.home)
    jobs = client.market.job_count()
    app.emit(
        {
            "network_file": str(app.settings.network_file),
            "rpc": list(network.rpc),
            "chain_id": network.chain_id,
            "block": head,
            "head_age_seconds": round(time.time() - now, 1),
            "contracts": dict(network.contracts),
            "coordinator": {"url": network.coordinator, **state},
            "jobs": jobs,
            "pid": pid,
        },
        "\n".join(
            [
                f"network file    {app.settings.network_file}",
                f"chain           {network.chain_id} at {', '.join(network.rpc)}, block {head}, "
                f"{max(0.0, time.time() - now):.0f} s old" + (f", pid {pid}" if pid else ""),
                f"coordinator     {network.coordinator or 'none'}"
                + ("" if state["ok"] is None else " answers" if state["ok"] else " DOES NOT ANSWER"),
                f"jobs            {jobs}",
                *(f"{name:<14}  {where}" for name, where in network.contracts.items()),
            ]
        ),
    )
