"""The database: engine, migrations at start, unit of work.

SQLite in WAL mode: readers never wait for the writer. A unit of work is one transaction; a writing one takes the
write lock at its start, so that two of them wait for each other instead of failing half way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from sqlalchemy import URL, Connection, Engine, create_engine, event

from sentinel_market.store.repositories import (
    BlobRows,
    ChainEvents,
    Endpoints,
    Jobs,
    Metrics,
    Quarantines,
    SeatRecords,
    Settlements,
    Specs,
    Verdicts,
)

MIGRATIONS: Final = Path(__file__).parent / "migrations"
_BUSY_SECONDS: Final = 15.0


class UnitOfWork:
    """Repositories over one transaction: committed when its block ends well, else rolled back."""

    def __init__(self, connection: Connection) -> None:
        self.specs = Specs(connection)
        self.jobs = Jobs(connection)
        self.endpoints = Endpoints(connection)
        self.metrics = Metrics(connection)
        self.verdicts = Verdicts(connection)
        self.seat_records = SeatRecords(connection)
        self.quarantines = Quarantines(connection)
        self.events = ChainEvents(connection)
        self.blobs = BlobRows(connection)
        self.settlements = Settlements(connection)


class Store:
    """An open database. ``close`` it when done."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @contextmanager
    def read(self) -> Iterator[UnitOfWork]:
        """A consistent view; writes in it are an error of ours and are never committed."""
        with self.engine.connect() as connection:
            yield UnitOfWork(connection)

    @contextmanager
    def write(self) -> Iterator[UnitOfWork]:
        """A transaction that holds the write lock from its start."""
        with self.engine.connect().execution_options(sentinel_write=True) as connection, connection.begin():
            yield UnitOfWork(connection)

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def _connected(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # SQLAlchemy begins transactions itself, see ``_begun``
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begun(connection: Connection) -> None:
    write = connection.get_execution_options().get("sentinel_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN DEFERRED")


def make_engine(path: Path) -> Engine:
    """An engine over a database file; nothing is created or changed in it yet."""
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False},
    )
    event.listen(engine, "connect", _connected)
    event.listen(engine, "begin", _begun)
    return engine


def migrate(engine: Engine, revision: str = "head") -> None:
    """Bring the schema to a revision, in one transaction."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    with engine.connect().execution_options(sentinel_write=True) as connection, connection.begin():
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def open_store(path: Path) -> Store:
    """Open the database file, create or migrate it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    engine = make_engine(path)
    migrate(engine)
    return Store(engine)
