"""The store on a real SQLite file: migrations, transactions, each repository, blobs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from blake3 import blake3
from sqlalchemy import text

from sentinel_market.store import BlobStore, BlobTooLarge, Store, StoreFull, WrongDigest, open_store
from sentinel_market.store.database import make_engine, migrate
from sentinel_market.store.schema import metadata

A, B = "0x" + "aA" * 20, "0x" + "bB" * 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path / "deep" / "coordinator.db")
    yield opened
    opened.close()


def chain_event(block: int, log_index: int, name: str = "JobPosted", job_id: int | None = 1) -> dict[str, Any]:
    return {
        "block": block,
        "log_index": log_index,
        "tx": "0x" + "00" * 32,
        "contract": "JobMarket",
        "name": name,
        "job_id": job_id,
        "args": {"amount": 2**130},
    }


def test_migrations_make_exactly_the_schema(store: Store) -> None:
    with store.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"


def test_reopening_keeps_everything(tmp_path: Path) -> None:
    first = open_store(tmp_path / "a.db")
    with first.write() as unit:
        unit.specs.put("ab" * 32, b"{}", 1, 10)
    first.close()
    second = open_store(tmp_path / "a.db")
    with second.read() as unit:
        assert unit.specs.get("ab" * 32) == b"{}"
    second.close()


def test_a_failed_unit_leaves_nothing(store: Store) -> None:
    with pytest.raises(RuntimeError), store.write() as unit:
        unit.events.add([chain_event(1, 0)])
        unit.events.set_cursor(1)
        raise RuntimeError("half way")
    with store.read() as unit:
        assert unit.events.all() == [] and unit.events.cursor() is None


def test_writes_in_a_reading_unit_are_not_kept(store: Store) -> None:
    with store.read() as unit:
        unit.events.set_cursor(5)
    with store.read() as unit:
        assert unit.events.cursor() is None


def test_many_writers_wait_for_each_other(store: Store) -> None:
    def work(number: int) -> None:
        for index in range(20):
            with store.write() as unit:
                cursor = unit.events.cursor() or 0
                unit.events.set_cursor(cursor + 1)
                unit.metrics.put(1, index, f"0x{number:040x}", 1, {"step": index})

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.read() as unit:
        assert unit.events.cursor() == 80
        assert len(unit.metrics.since(1, 0, 1000)) == 80


def test_specs_that_no_job_names_are_limited(store: Store) -> None:
    digests = [f"{number:064x}" for number in range(6)]
    with store.write() as unit:
        unit.jobs.posted(1, A, digests[0], 10**30, 5, "")
        for now, digest in enumerate(digests):
            unit.specs.put(digest, digest.encode(), now, 3)
    with store.read() as unit:
        assert [unit.specs.get(digest) is not None for digest in digests] == [True, False, False, True, True, True]


def test_jobs(store: Store) -> None:
    with store.write() as unit:
        for job_id in range(1, 6):
            unit.jobs.posted(job_id, A, "ab" * 32, 10**30, 5, "uri")
        unit.jobs.posted(1, B, "cd" * 32, 1, 9, "")  # a repeated event
        unit.jobs.set_state(2, "Active")
    with store.read() as unit:
        first = unit.jobs.get(1)
        assert first is not None and (first["submitter"], first["budget"]) == (A, str(10**30))
        assert [row["job_id"] for row in unit.jobs.page(None, 2)] == [5, 4]
        assert [row["state"] for row in unit.jobs.page(4, 2)] == ["Open", "Active"]
        assert unit.jobs.count() == 5 and unit.jobs.get(9) is None


def test_the_newest_endpoint_wins(store: Store) -> None:
    with store.write() as unit:
        assert unit.endpoints.put(1, A, "127.0.0.1:1", 10, b"s")
        assert not unit.endpoints.put(1, A.lower(), "127.0.0.1:2", 10, b"t")
        assert not unit.endpoints.put(1, A, "127.0.0.1:3", 9, b"u")
        assert unit.endpoints.put(1, A, "127.0.0.1:4", 11, b"v")
        assert unit.endpoints.put(2, A, "127.0.0.1:5", 1, b"w")
        assert [row["endpoint"] for row in unit.endpoints.of_job(1)] == ["127.0.0.1:4"]


def test_metrics_and_verdicts(store: Store) -> None:
    with store.write() as unit:
        for step in (3, 1, 2):
            assert unit.metrics.put(1, step, A, 5, {"loss": step})
        assert unit.metrics.put(1, 1, B, 5, {"loss": 9})
        assert not unit.metrics.put(1, 3, A, 5, {"loss": 7})
        assert unit.metrics.put(1, 3, A, 6, {"loss": 8})
        assert [row["body"]["loss"] for row in unit.metrics.since(1, 2, 10)] == [2, 8]
        assert len(unit.metrics.since(1, 0, 2)) == 2
        assert unit.metrics.last_step(1) == 3 and unit.metrics.last_step(2) is None
        event = {"step": 1, "slot": 4, "kind": "suspect"}
        assert unit.verdicts.put("aa" * 32, 1, A, event)
        assert not unit.verdicts.put("aa" * 32, 1, A, event)
        assert unit.verdicts.put("bb" * 32, 1, A, {**event, "kind": "violation"})
        assert [row["kind"] for row in unit.verdicts.after(1, 0, 10)] == ["suspect", "violation"]
        assert [row["kind"] for row in unit.verdicts.newest(1, 1)] == ["violation"]
        assert unit.verdicts.counts(1) == {(4, "suspect"): 1, (4, "violation"): 1}
        assert unit.verdicts.count(1, A) == 2 and unit.verdicts.count(1, B) == 0


def test_the_newest_record_of_a_seat_wins_and_never_goes_back_a_step(store: Store) -> None:
    with store.write() as unit:
        put = unit.seat_records.put
        assert put(1, A, 10, 500, {"step": 10})
        assert not put(1, A.lower(), 9, 900, {"step": 9}), "an older step, however new it says it is"
        assert not put(1, A, 10, 500, {"step": 10, "again": True})
        assert not put(1, A, 10, 499, {"step": 10, "again": True})
        assert put(1, A, 10, 501, {"step": 10, "again": True})
        assert put(1, A, 11, 400, {"step": 11})
        assert put(1, B, 3, 1, {"step": 3}) and put(2, A, 1, 1, {"step": 1})
        assert [(row["verifier"], row["body"]) for row in unit.seat_records.of_job(1)] == [
            (A.lower(), {"step": 11}),
            (B.lower(), {"step": 3}),
        ]
        assert unit.seat_records.of_job(3) == []


def test_the_jobs_in_which_an_account_took_a_seat(store: Store) -> None:
    def taken(block: int, job_id: int, account: str, name: str = "SeatTaken") -> dict[str, Any]:
        return {**chain_event(block, 0, name, job_id), "args": {"account": account, "seat": 0}}

    events = [taken(1, 1, A), taken(2, 2, B), taken(3, 3, A.lower()), taken(4, 3, A), taken(5, 4, A, "SlotClaimed")]
    with store.write() as unit:
        unit.events.add(events)
        assert unit.events.jobs_with_seat(A) == unit.events.jobs_with_seat(A.lower()) == [3, 1]
        assert unit.events.jobs_with_seat("0x" + "cc" * 20) == []


def test_an_older_database_is_brought_up_to_date(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "old.db")
    migrate(engine, "0001")
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO cursors VALUES ('chain', 7)"))
    engine.dispose()
    opened = open_store(tmp_path / "old.db")
    with opened.write() as unit:
        assert unit.events.cursor() == 7
        assert unit.seat_records.put(1, A, 1, 1, {})
    opened.close()


def test_quarantines_keep_the_first_word(store: Store) -> None:
    with store.write() as unit:
        unit.quarantines.put(1, 4, 0, A, 7, "first")
        unit.quarantines.put(1, 4, 0, A, 9, "second")
        unit.quarantines.put(1, 4, 0, B, 8, "other seat")
        assert [(row["step"], row["reason"]) for row in unit.quarantines.of_job(1)] == [(7, "first"), (8, "other seat")]


def test_chain_events_are_stored_once_and_in_order(store: Store) -> None:
    with store.write() as unit:
        assert unit.events.add([chain_event(2, 1), chain_event(2, 0, job_id=None), chain_event(1, 5, "JobFunded")]) == 3
        assert unit.events.add([chain_event(2, 1)]) == 0
        assert [(row["block"], row["log_index"]) for row in unit.events.all()] == [(1, 5), (2, 0), (2, 1)]
        assert unit.events.all()[0]["args"]["amount"] == 2**130
        assert [row["block"] for row in unit.events.of_job(1)] == [1, 2]
        assert [row["block"] for row in unit.events.of_job(1, ["JobFunded"])] == [1]
        assert [(row["block"], row["log_index"]) for row in unit.events.after(2, 0)] == [(2, 1)]


def test_settlements(store: Store) -> None:
    key = {"job_id": 1, "epoch": 1, "root": "aa" * 32}
    row = {**key, "total": "12", "step_record_hash": "00" * 32, "verifier": A}
    leaves = [{"account": A, "cumulative": "5", "proof": ["bb"]}, {"account": B, "cumulative": "7", "proof": []}]
    with store.write() as unit:
        assert unit.settlements.put(row, leaves)
        assert not unit.settlements.put(row, leaves)
        assert [leaf["cumulative"] for leaf in unit.settlements.leaves(1, 1, "aa" * 32)] == ["5", "7"]
        assert unit.settlements.leaves(1, 1, "aa" * 32, B.upper().replace("0X", "0x"))[0]["cumulative"] == "7"
        assert len(unit.settlements.of_job(1)) == 1


# --- blobs


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs", max_bytes=100, max_total_bytes=250)


def test_blobs_are_content_addressed(blobs: BlobStore) -> None:
    digest = blobs.put(b"hello")
    assert digest == blake3(b"hello").hexdigest()
    assert blobs.path(digest).read_bytes() == b"hello"
    assert blobs.put(b"hello") == digest and blobs.total_bytes == 5


def test_wrong_content_is_refused_and_leaves_nothing(blobs: BlobStore) -> None:
    writer = blobs.writer("00" * 32)
    writer.write(b"hello")
    with pytest.raises(WrongDigest):
        writer.commit()
    writer.abort()
    assert list(blobs.folder.iterdir()) == [] and blobs.total_bytes == 0


def test_limits_of_blobs(blobs: BlobStore) -> None:
    with pytest.raises(BlobTooLarge):
        blobs.put(bytes(101))
    blobs.put(bytes(100))
    blobs.put(bytes(99))
    with pytest.raises(StoreFull):
        blobs.put(bytes(98))
    assert blobs.total_bytes == 199 and len(list(blobs.folder.iterdir())) == 2


def test_the_same_blob_twice_at_once_counts_once(blobs: BlobStore) -> None:
    digest = blake3(b"twice").hexdigest()
    writers = [blobs.writer(digest), blobs.writer(digest)]
    for writer in writers:
        writer.write(b"twice")
        writer.commit()
        writer.abort()
    assert blobs.total_bytes == 5


@pytest.mark.parametrize("name", ["", "../" + "a" * 61, "A" * 64, "a" * 63, "a" * 64 + "\n", "a" * 32 + "/" + "a" * 31])
def test_names_that_are_no_digests(blobs: BlobStore, name: str) -> None:
    with pytest.raises(ValueError, match="64 lower-case hex"):
        blobs.has(name)


def test_unfinished_blobs_are_swept_at_start(blobs: BlobStore) -> None:
    writer = blobs.writer("00" * 32)
    writer.write(b"half")
    kept = blobs.put(b"whole")
    again = BlobStore(blobs.folder, max_bytes=100, max_total_bytes=250)
    assert [path.name for path in again.folder.iterdir()] == [kept]
    assert again.total_bytes == 5
