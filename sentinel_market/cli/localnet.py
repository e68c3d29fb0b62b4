"""A local network as one thing: node, contracts, coordinator, network file. Used by ``net up`` and by the demo."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sentinel_market.chain.local import (
    DEFAULT_PORT,
    HOST,
    Child,
    LocalChain,
    require_free_port,
    start_node,
    wait_until,
)
from sentinel_market.chain.network import Network
from sentinel_market.config import Settings
from sentinel_market.errors import ConfigError

COORDINATOR_PORT: Final = 8700


@dataclass(frozen=True)
class RunningNet:
    """A local network that this process started."""

    network: Network
    node: Child
    coordinator: Child | None
    logs: Path

    def problem(self) -> str | None:
        """Which part has died, with the end of its output; None while all is well."""
        for child, what in ((self.node, "the local chain"), (self.coordinator, "the coordinator")):
            if child is not None and not child.alive():
                return f"{what} has stopped: {child.tail()}"
        return None


@contextmanager
def running_net(
    settings: Settings,
    *,
    rpc_port: int = DEFAULT_PORT,
    port: int = COORDINATOR_PORT,
    with_coordinator: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[RunningNet]:
    """Start everything, write the network file, and at the end stop everything and remove the file.

    ConfigError when a network of this home is running already, or when a port is in use.
    """
    with ExitStack() as stack:
        stack.enter_context(_only_one(settings.home))
        require_free_port(rpc_port, "the local chain", "--rpc-port")
        if with_coordinator:
            require_free_port(port, "the coordinator", "--port")
        logs = settings.home / "logs"
        node = stack.enter_context(start_node(rpc_port, logs / "node.log"))
        say(f"local chain on http://{HOST}:{rpc_port}")
        url = f"http://{HOST}:{port}" if with_coordinator else None
        network = LocalChain([f"http://{HOST}:{rpc_port}"]).deploy(coordinator=url)
        network = dataclasses.replace(network, pids={"net": os.getpid(), "node": node.pid})
        network.save(settings.network_file)
        stack.callback(settings.network_file.unlink, missing_ok=True)
        say(f"contracts deployed; network file {settings.network_file}")
        coordinator = None
        if with_coordinator:
            coordinator = stack.enter_context(_start_coordinator(settings, port, logs / "coordinator.log"))
            network = dataclasses.replace(network, pids={**network.pids, "coordinator": coordinator.pid})
            network.save(settings.network_file)
            say(f"coordinator on {url}")
        yield RunningNet(network, node, coordinator, logs)


def lock_path(home: Path) -> Path:
    """The file whose lock says that a local network of this home runs; it holds the process id."""
    return home / "net.lock"


def running_pid(home: Path) -> int | None:
    """The process that runs this home's local network; None when there is none. A stale file does not count."""
    path = lock_path(home)
    if not path.exists():
        return None
    with path.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            text = file.read(32).strip()
            return int(text) if text.isdigit() else None
    return None


@contextmanager
def _only_one(home: Path) -> Iterator[None]:
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(lock_path(home), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"a local network of {home} is running already (pid {running_pid(home) or 'unknown'}); use it, stop "
                "it with `sentinel net down`, or choose another SENTINEL_HOME"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)


def _start_coordinator(settings: Settings, port: int, log_file: Path) -> Child:
    # A module, not the script of the virtual environment: that need not be on the PATH.
    command = [sys.executable, "-m", "sentinel_market.cli.main", "coordinator", "start", "--port", str(port)]
    environment = {
        **os.environ,
        "SENTINEL_HOME": str(settings.home),
        "SENTINEL_NETWORK": str(settings.network_file),
        "PYTHONUNBUFFERED": "1",
    }
    for name in ("SENTINEL_RPC", "SENTINEL_COORDINATOR", "SENTINEL_PASSWORD", "SENTINEL_PASSWORD_FILE"):
        environment.pop(name, None)
    child = Child(command, log_file=log_file, env=environment)
    try:
        wait_until(lambda: _healthy(port), child, f"the coordinator on port {port}")
    except BaseException:
        child.stop()
        raise
    return child


def _healthy(port: int) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{HOST}:{port}/healthz", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
