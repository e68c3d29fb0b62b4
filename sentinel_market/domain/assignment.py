"""Who does what in a step: pure functions of (job seed, step, live seats), so that every seat agrees (protocol.md)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def slot_of(stage: int, replica: int, num_replicas: int) -> int:
    return stage * num_replicas + replica


def stage_of(slot: int, num_replicas: int) -> int:
    return slot // num_replicas


def replica_of(slot: int, num_replicas: int) -> int:
    return slot % num_replicas


def microbatches_of(seat: int, num_microbatches: int, live_seats: Sequence[int]) -> tuple[int, ...]:
    """Microbatch i belongs to live seat i mod n."""
    live = sorted(live_seats)
    position = live.index(seat)
    return tuple(range(position, num_microbatches, len(live)))


def driver_of(microbatch: int, live_seats: Sequence[int]) -> int:
    live = sorted(live_seats)
    return live[microbatch % len(live)]


def primary_of(stage: int, live_seats: Sequence[int]) -> int:
    """Stage s has live seat s mod n as primary."""
    live = sorted(live_seats)
    return live[stage % len(live)]


def lead_of(live_seats: Sequence[int]) -> int:
    return min(live_seats)


def draw_seed(job_seed: int, step: int, seat: int) -> int:
    """Seed (64 bits) of the replica draws of one driver in one step."""
    data = b"".join(value.to_bytes(8, "big") for value in (job_seed & (2**64 - 1), step, seat))
    return int.from_bytes(hashlib.sha256(b"replica-draw" + data).digest()[:8], "big")
