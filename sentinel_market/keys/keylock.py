"""One process a hot key, on one machine.

Two processes with one hot key would sign two different commitments under one number, which is an objective
fault and slashed. ``flock`` is used because the system drops it with the process, however that ends: a lock
that outlives its owner would make people delete lock files by hand.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from sentinel_market.errors import KeystoreError


class KeyLock:
    """Exclusive use of a hot key, held until ``release`` or the end of the process."""

    def __init__(self, path: Path, *, label: str) -> None:
        self.path = path
        self._label = label
        self._fd: int | None = None

    def acquire(self) -> KeyLock:
        """Take the lock; KeystoreError naming the holder when another process has it."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(fd, 64).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise KeystoreError(
                f"the hot key of {self._label} is in use by another process (pid {holder}); two processes with "
                "one hot key would sign against each other and be slashed. Stop that process, or start this "
                "one under another key (`sentinel key new NAME`)"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd
        return self

    def release(self) -> None:
        """Give the lock back; harmless when it is not held. The file stays: removing it would race."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._fd is not None

    def __enter__(self) -> KeyLock:
        return self if self.held else self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
