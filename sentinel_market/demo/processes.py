"""Child processes of a demo, each running one `sentinel` verb in a home of its own, with its output in a log."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_PR_SET_PDEATHSIG = 1


@dataclass
class Child:
    """A running verb. ``exit_code`` is None while it runs, negative for a signal."""

    name: str
    process: ForkServerProcess
    log: Path

    @property
    def exit_code(self) -> int | None:
        return self.process.exitcode

    def tail(self, lines: int = 6) -> str:
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


class Nursery:
    """Starts children from a fork server that has torch, gRPC and the agents loaded."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["sentinel_market.demo.preload"])
        self.children: list[Child] = []

    def start(self, name: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> Child:
        """Run ``sentinel ARGUMENTS``."""
        log.parent.mkdir(parents=True, exist_ok=True)
        process = self._context.Process(
            target=_run, args=(list(arguments), dict(environment), str(log)), name=name, daemon=False
        )
        process.start()
        child = Child(name, process, log)
        self.children.append(child)
        return child

    def stop(self, grace: float = 8.0) -> None:
        """Ask everybody to stop, then insist. Returns when all are gone."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            alive = [c for c in self.children if c.process.is_alive()]
            for child in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.process.pid or 0, number)
            until = time.monotonic() + grace
            for child in alive:
                child.process.join(max(0.0, until - time.monotonic()))
            if not any(c.process.is_alive() for c in self.children):
                return


def _run(arguments: list[str], environment: dict[str, str], log: str) -> None:
    """In the child: away from the terminal's Ctrl-C (the demo stops its children in order), gone with its parent."""
    os.setsid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    for name in [name for name in os.environ if name.startswith("SENTINEL_")]:
        del os.environ[name]
    os.environ.update(environment)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.stdin = open(os.devnull)  # noqa: SIM115, PTH123
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    from sentinel_market.cli.main import cli

    os.write(1, f"pid {os.getpid()}: sentinel {' '.join(arguments)}\n".encode())
    cli.main(args=arguments)
