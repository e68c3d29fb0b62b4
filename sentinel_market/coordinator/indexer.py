"""Reads the chain's events into the store: in order, once, confirmed, with a cursor that moves with them.

Trouble of the RPC (``Recoverable``) is remembered and tried again. Anything else, such as a chain that is behind what
was indexed, stops the indexer and is shown by ``/healthz``: an index that may be wrong is not served as right.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from sentinel_market.errors import Fatal, Recoverable
from sentinel_market.store import Store, UnitOfWork

CHUNK_BLOCKS: Final = 2_000
JOB_STATES: Final = ("None", "Open", "Active", "Closing", "Settled", "Cancelled")


class EventSource(Protocol):
    """Where events come from. Both methods may raise ``ChainUnavailable``."""

    def head(self) -> int:
        """Number of the newest block."""
        ...

    def fetch_events(self, from_block: int, to_block: int) -> Iterable[Mapping[str, Any]]:
        """All events of our contracts in blocks ``from_block`` to ``to_block``, both included.

        Each has ``contract``, ``name``, ``args`` (by their names in the contract), ``block``, ``log_index``, ``tx``.
        """
        ...


def _plain(value: Any) -> Any:
    """Arguments as JSON holds them: bytes as 0x hex."""
    if isinstance(value, (bytes, bytearray)):
        return "0x" + bytes(value).hex()
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value


def stored_event(event: Mapping[str, Any]) -> dict[str, Any]:
    """An event as a row of the store."""
    args = _plain(event["args"])
    tx = _plain(event["tx"])
    return {
        "block": int(event["block"]),
        "log_index": int(event["log_index"]),
        "tx": tx if str(tx).startswith("0x") else f"0x{tx}",
        "contract": str(event["contract"]),
        "name": str(event["name"]),
        "job_id": int(args["jobId"]) if "jobId" in args else None,
        "args": args,
    }


class Indexer:
    """Moves the cursor. ``tick`` may be called from any thread; two never run at once."""

    def __init__(
        self,
        store: Store,
        source: EventSource,
        *,
        first_block: int,
        confirmations: int,
        clock: Callable[[], float],
    ) -> None:
        self._store, self._source = store, source
        self._first_block, self._confirmations = first_block, confirmations
        self._clock = clock
        self._lock = threading.Lock()
        self.head: int | None = None
        self.problem: str | None = None
        """The trouble of the last tick; None when it went well."""
        self.failed = False
        """True when the indexer has stopped for good."""
        self.last_tick = 0.0

    def tick(self) -> int:
        """Index what is there; returns the number of new events. Raises nothing that another try could mend."""
        with self._lock:
            if self.failed:
                return 0
            try:
                added = self._advance()
            except Recoverable as error:
                self.problem = str(error)
                return 0
            except Exception as error:
                self.failed = True
                self.problem = f"the index has stopped: {type(error).__name__}: {error}"
                raise
            self.problem = None
            self.last_tick = self._clock()
            return added

    def refresh(self, least_seconds: float = 0.1) -> None:
        """Look at the chain now, unless that was done a moment ago: a seat may have been taken just now."""
        if self._clock() - self.last_tick >= least_seconds:
            with suppress(Fatal):  # ``problem`` tells it
                self.tick()

    def _advance(self) -> int:
        self.head = self._source.head()
        with self._store.read() as unit:
            cursor = unit.events.cursor()
        if cursor is not None and self.head < cursor:
            raise Fatal(
                f"the chain is at block {self.head}, but block {cursor} was indexed: this is another chain; "
                "start the coordinator with a new database"
            )
        target = self.head - self._confirmations
        start = self._first_block if cursor is None else cursor + 1
        added = 0
        while start <= target:
            end = min(target, start + CHUNK_BLOCKS - 1)
            rows = [stored_event(event) for event in self._source.fetch_events(start, end)]
            rows.sort(key=lambda row: (row["block"], row["log_index"]))
            strays = [row["block"] for row in rows if not start <= row["block"] <= end]
            if strays:
                raise Fatal(f"the RPC answered with events of block {strays[0]} for blocks {start} to {end}")
            with self._store.write() as unit:
                added += unit.events.add(rows)
                for row in rows:
                    _apply(unit, row)
                unit.events.set_cursor(end)
            start = end + 1
        return added


def _apply(unit: UnitOfWork, row: Mapping[str, Any]) -> None:
    """The few events that the list of jobs is made of."""
    args = row["args"]
    if row["name"] == "JobPosted":
        digest = str(args["specDigest"]).removeprefix("0x")
        unit.jobs.posted(
            row["job_id"], args["submitter"], digest, int(args["budget"]), row["block"], str(args.get("uri", ""))[:500]
        )
    elif row["name"] == "JobStateChanged":
        state = int(args["state"])
        unit.jobs.set_state(row["job_id"], JOB_STATES[state] if state < len(JOB_STATES) else str(state))
