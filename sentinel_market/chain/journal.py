"""The nonce journal: every transaction is on disk before it is on the wire.

A process that dies between signing and the receipt must neither send the same intent twice nor leave a gap in
its nonces. So (nonce, intent, hash, raw transaction) is committed with an fsync first; at the next start what is
unfinished is looked up on the chain, and sent again byte for byte where the chain has forgotten it.

One journal a (chain, sender). ``exclusive`` spans nonce choice to sending, across the threads and processes of a
machine: a person may run ``sentinel slot exit`` beside the worker whose hot key it uses.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

State = Literal["prepared", "mined", "reverted", "dropped"]

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS tx (
  hash TEXT PRIMARY KEY,
  nonce INTEGER NOT NULL,
  intent TEXT NOT NULL,
  target TEXT NOT NULL,
  data BLOB NOT NULL,
  raw BLOB NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('prepared', 'mined', 'reverted', 'dropped')),
  block INTEGER,
  created REAL NOT NULL
)
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One transaction as it was signed. ``intent`` says in words what it is for."""

    hash: str
    nonce: int
    intent: str
    target: str
    data: bytes
    raw: bytes
    state: State = "prepared"
    block: int | None = None


class Journal:
    """Transactions of one sender on one chain, in one SQLite file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = path
        self._thread_lock = threading.RLock()
        self._db = sqlite3.connect(path, check_same_thread=False, timeout=30)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")  # the point of a journal: on disk when commit returns
        self._db.execute(_SCHEMA)
        self._db.commit()

    @classmethod
    def open(cls, directory: Path, chain_id: int, genesis: bytes, sender: str) -> Journal:
        """The journal of ``sender``. The genesis hash is in the name: a local chain that was started anew has the same
        chain id and knows nothing of the old one's nonces."""
        return cls(directory / f"{chain_id}-{genesis[:4].hex()}-{sender.lower()}.sqlite3")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """One sender of transactions at a time, over all threads and processes of this machine."""
        with self._thread_lock:
            fd = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                yield
            finally:
                os.close(fd)

    def prepare(self, entry: Entry) -> None:
        """Record a signed transaction; durable when this returns."""
        with self._thread_lock, self._db:
            self._db.execute(
                "INSERT INTO tx (hash, nonce, intent, target, data, raw, state, created) VALUES (?,?,?,?,?,?,?,?)",
                (entry.hash, entry.nonce, entry.intent, entry.target, entry.data, entry.raw, "prepared", time.time()),
            )

    def finish(self, tx_hash: str, state: State, block: int | None = None) -> None:
        """Record how a transaction ended."""
        with self._thread_lock, self._db:
            self._db.execute("UPDATE tx SET state = ?, block = ? WHERE hash = ?", (state, block, tx_hash))

    def unfinished(self) -> list[Entry]:
        """Transactions whose end is not known, by nonce."""
        return self._select("WHERE state = 'prepared' ORDER BY nonce")

    def entries(self) -> list[Entry]:
        """Everything, by nonce."""
        return self._select("ORDER BY nonce, created")

    def next_nonce(self, chain_nonce: int) -> int:
        """The nonce to use: past the chain's and past everything that is still on its way."""
        return max([chain_nonce, *(entry.nonce + 1 for entry in self.unfinished())])

    def _select(self, clause: str) -> list[Entry]:
        with self._thread_lock:
            rows = self._db.execute(
                f"SELECT hash, nonce, intent, target, data, raw, state, block FROM tx {clause}"
            ).fetchall()
        return [Entry(*row) for row in rows]
