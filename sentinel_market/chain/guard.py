"""Runs a command that must not outlive its parent. Standard library only; started by path, so nothing is imported.

The guard gives the command a process group of its own, waits for its end or for the end of its standard input (which
the parent holds open: however the parent ends, the pipe closes), and then kills the whole group. This works on every
Unix and from every thread, unlike PR_SET_PDEATHSIG.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from types import FrameType

GRACE_SECONDS = 3.0


def _kill(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def main() -> int:
    """``guard.py COMMAND ARGUMENT...``; returns the command's exit status."""
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)
    over = threading.Event()

    def parent_gone() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        over.set()

    def asked(_number: int, _frame: FrameType | None) -> None:
        over.set()

    def child_gone() -> None:
        child.wait()
        over.set()

    signal.signal(signal.SIGTERM, asked)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal group; the parent decides
    threading.Thread(target=parent_gone, daemon=True).start()
    threading.Thread(target=child_gone, daemon=True).start()
    over.wait()
    _kill(child.pid, signal.SIGTERM)
    end = time.monotonic() + GRACE_SECONDS
    while child.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    _kill(child.pid, signal.SIGKILL)  # also what the child left behind in its group
    return child.wait()


if __name__ == "__main__":
    sys.exit(main())
