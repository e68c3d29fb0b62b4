"""What a coordinator is made of."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sentinel_market.coordinator.indexer import EventSource


@dataclass(frozen=True, kw_only=True)
class CoordinatorSettings:
    """Settings of one coordinator; sizes in bytes, times in seconds."""

    database: Path
    """SQLite file; created or migrated at start."""
    blob_dir: Path
    chain_id: int
    contracts: Mapping[str, str]
    """Addresses by contract name; ``JobMarket`` is the EIP-712 domain of what seats sign."""
    events: EventSource | None = None
    """Where chain events come from; None: the index stays as it is."""
    first_block: int = 0
    """The block of the deployment: nothing of interest is before it."""
    confirmations: int = 0
    """Blocks that must lie above one before it is indexed."""
    poll_seconds: float = 0.5
    max_blob_bytes: int = 512 * 1024 * 1024
    max_total_blob_bytes: int = 16 * 1024 * 1024 * 1024
    max_unposted_specs: int = 1000
    max_verdicts_a_seat: int = 200_000
    max_settlements_a_seat: int = 20_000
    max_clock_skew: float = 600.0
    """How far in the future ``issued`` may lie."""
    clock: Callable[[], float] = time.time
    """Unix seconds."""
