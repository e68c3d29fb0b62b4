"""Where a seat's CPU time goes: what `verification_share` in summary.json is made of. For display, never consensus."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Meter:
    """CPU seconds by category (check, crypto, recompute, replay, reduce); replays are reported by the workers."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Count this thread's CPU time in the block; the block must not await."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.add(name, time.thread_time() - began)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
