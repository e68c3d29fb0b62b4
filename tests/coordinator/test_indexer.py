"""The indexer: order, once, confirmations, trouble, another chain."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from sentinel_market.coordinator import CoordinatorSettings, create_app
from sentinel_market.coordinator.indexer import Indexer
from sentinel_market.errors import Fatal
from sentinel_market.store import Store, open_store
from tests.coordinator.conftest import SUBMITTER, FakeChain, down


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path / "index.db")
    yield opened
    opened.close()


def indexer(store: Store, chain: FakeChain, *, confirmations: int = 0, first_block: int = 0) -> Indexer:
    return Indexer(store, chain, first_block=first_block, confirmations=confirmations, clock=lambda: 0.0)


def count(store: Store) -> int:
    with store.read() as unit:
        return len(unit.events.all())


def test_everything_once_and_across_restarts(store: Store, chain: FakeChain) -> None:
    assert indexer(store, chain).tick() == len(chain.events)
    again = indexer(store, chain)
    assert again.tick() == 0
    chain.add("JobMarket", "JobStateChanged", jobId=1, state=4, timestamp=9)
    assert again.tick() == 1
    with store.read() as unit:
        job = unit.jobs.get(1)
        assert job is not None and job["state"] == "Settled"
        assert unit.events.cursor() == chain.length - 1


def test_long_histories_are_read_in_chunks(store: Store, chain: FakeChain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel_market.coordinator.indexer.CHUNK_BLOCKS", 4)
    asked: list[tuple[int, int]] = []
    fetch = chain.fetch_events
    monkeypatch.setattr(chain, "fetch_events", lambda start, end: asked.append((start, end)) or fetch(start, end))
    assert indexer(store, chain, first_block=2).tick() == len(chain.events) - 2
    assert asked[0] == (2, 5) and asked[-1][1] == chain.length - 1
    assert all(one[1] + 1 == two[0] for one, two in itertools.pairwise(asked))


def test_unconfirmed_blocks_wait(store: Store, chain: FakeChain) -> None:
    one = indexer(store, chain, confirmations=3)
    assert one.tick() == len(chain.events) - 3
    chain.length += 3
    assert one.tick() == 3


def test_trouble_of_the_rpc_is_survived(store: Store, chain: FakeChain) -> None:
    one = indexer(store, chain)
    chain.broken = down()
    assert one.tick() == 0 and one.problem is not None and not one.failed
    chain.broken = None
    assert one.tick() == len(chain.events) and one.problem is None


def test_trouble_half_way_loses_nothing(store: Store, chain: FakeChain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel_market.coordinator.indexer.CHUNK_BLOCKS", 5)
    fetch, calls = chain.fetch_events, []

    def flaky(start: int, end: int) -> list[dict[str, object]]:
        calls.append(start)
        if len(calls) == 3:
            raise down()
        return fetch(start, end)

    monkeypatch.setattr(chain, "fetch_events", flaky)
    one = indexer(store, chain)
    assert one.tick() == 0 and count(store) == 10
    one.tick()
    assert count(store) == len(chain.events)


def test_a_chain_that_went_back_is_another_chain(store: Store, chain: FakeChain) -> None:
    one = indexer(store, chain)
    one.tick()
    chain.length = 3
    with pytest.raises(Fatal, match="another chain"):
        one.tick()
    assert one.failed and one.problem is not None and "another chain" in one.problem
    assert one.tick() == 0


def test_events_of_blocks_that_were_not_asked_for(store: Store, chain: FakeChain) -> None:
    chain.fetch_events = lambda start, end: [{**chain.events[0], "block": 10_000}]  # type: ignore[method-assign]
    one = indexer(store, chain)
    with pytest.raises(Fatal, match="block 10000"):
        one.tick()
    assert count(store) == 0


def test_the_background_task_keeps_up_and_stops(settings: CoordinatorSettings, chain: FakeChain) -> None:
    app = create_app(dataclasses.replace(settings, poll_seconds=0.01))
    with TestClient(app) as http:
        chain.add("JobMarket", "JobPosted", jobId=2, submitter=SUBMITTER, specDigest=bytes(32), budget=5, uri="")
        deadline = time.monotonic() + 5
        while http.get("/jobs/2").status_code != 200 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert http.get("/jobs/2").json()["state"] == "Open"
        chain.length = 1
        while http.get("/healthz").status_code != 503 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert "another chain" in http.get("/healthz").json()["problem"]
