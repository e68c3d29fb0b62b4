"""BlobStore and Events: one suite for the fakes of the mesh and for the coordinator's."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import blake3
import pytest

from sentinel_market.errors import PeerGone
from sentinel_market.ports import BlobStore, Events
from sentinel_market.wire.http_client import CoordinatorClient
from tests.coordinator.conftest import CHAIN_ID, CONTRACTS, SEAT_KEYS
from tests.support.mesh import ListEvents, MemoryBlobs
from verifier.events import SeatEvents

# ---- blobs


@pytest.fixture(params=["memory", "coordinator"])
def store(request: pytest.FixtureRequest) -> BlobStore:
    return MemoryBlobs() if request.param == "memory" else request.getfixturevalue("client")


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 5000], ids=["empty", "a byte", "1.2 MB"])
def test_a_blob_comes_back_under_its_digest(store: BlobStore, data: bytes) -> None:
    digest = store.put(data)
    assert digest == blake3.blake3(data).hexdigest()
    assert store.get(digest) == data
    assert store.put(data) == digest, "putting it again changes nothing"
    assert store.get(digest) == data


def test_blobs_do_not_touch_each_other(store: BlobStore) -> None:
    first, second = store.put(b"first"), store.put(b"second")
    assert first != second
    assert (store.get(first), store.get(second)) == (b"first", b"second")


def test_a_blob_that_is_not_there_is_a_peer_that_is_gone(store: BlobStore) -> None:
    with pytest.raises(PeerGone):
        store.get(blake3.blake3(b"nobody put this").hexdigest())


def test_a_store_that_cannot_be_reached_is_a_peer_that_is_gone() -> None:
    with CoordinatorClient(
        "http://127.0.0.1:9", signer=SEAT_KEYS[0].sign, chain_id=CHAIN_ID, market=CONTRACTS["JobMarket"], timeout=1.0
    ) as away:
        for call in (lambda: away.put(b"x"), lambda: away.get("00" * 32)):
            with pytest.raises(PeerGone):
                call()


# ---- events


class Told:
    """An Events port, and what it has told by the end."""

    def __init__(self, port: Events, read: Callable[[], list[tuple[str, dict[str, Any]]]]) -> None:
        self.port, self.read = port, read


def _in_memory() -> Told:
    events = ListEvents()
    lists = (
        ("step", events.steps),
        ("verdict", events.verdicts),
        ("settlement", events.settlements),
        ("seat", events.seats),
    )
    return Told(events, lambda: [(topic, data) for topic, found in lists for data in found])  # type: ignore[misc]


def _to_file(path: Path, coordinator: Any) -> Told:
    events = SeatEvents(path, coordinator, 1)

    def read() -> list[tuple[str, dict[str, Any]]]:
        events.close()
        found = [json.loads(line) for line in path.read_text().splitlines()]
        return [(data.pop("topic"), data) for data in found]

    return Told(events, read)


class Broken:
    """A coordinator that is down, in every way that it can be."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*_: object) -> None:
            raise PeerGone("the coordinator is down")

        return call


@pytest.fixture(params=["memory", "coordinator", "coordinator down"])
def told(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Told]:
    if request.param == "memory":
        yield _in_memory()
        return
    coordinator = request.getfixturevalue("client") if request.param == "coordinator" else Broken()
    found = _to_file(tmp_path / "deep" / "events.jsonl", coordinator)
    yield found
    found.port.close()  # type: ignore[attr-defined]


SAID: list[tuple[str, Mapping[str, object]]] = [
    ("step", {"step": 3, "loss": 2.5, "tokens": 64, "tokens_per_second": 10.0}),
    ("verdict", {"kind": "suspect", "slot": 4, "nonce": 0, "step": 3, "reason": "l1"}),
    ("settlement", {"finish": "0x00", "step": 3}),
    ("seat", {"kind": "record", "step": 3, "seats": []}),
]


def say(events: Events, topic: str, data: Mapping[str, object]) -> None:
    getattr(events, topic)(data)


def test_everything_that_was_said_is_told_in_order(told: Told) -> None:
    for step in range(3):
        for topic, data in SAID:
            say(told.port, topic, {**data, "step": step})
    found = told.read()
    for topic, data in SAID:
        mine = [entry for name, entry in found if name == topic]
        assert [entry["step"] for entry in mine] == [0, 1, 2]
        assert all(entry[key] == value for entry in mine for key, value in data.items() if key != "step")


def test_what_is_said_is_copied(told: Told) -> None:
    data = {"step": 1, "loss": 2.0}
    told.port.step(data)
    data["step"] = 99
    assert [entry["step"] for _, entry in told.read()] == [1]


@pytest.mark.parametrize("topic", ["step", "verdict", "settlement", "seat"])
def test_what_cannot_be_told_raises_nothing_and_holds_up_nothing_else(told: Told, topic: str) -> None:
    """Nothing that a key is missing from, or that no JSON can hold, ends the telling."""
    for strange in ({}, {"step": "three"}, {"step": 1, "what": object()}, {"step": 1, "what": b"bytes"}):
        say(told.port, topic, strange)
    told.port.step({"step": 7, "loss": 1.0})
    assert (7, 1.0) in [(entry.get("step"), entry.get("loss")) for _, entry in told.read()]


def test_a_seat_does_not_wait_for_a_slow_coordinator(tmp_path: Path) -> None:
    class Slow:
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_: time.sleep(0.2)

    told = _to_file(tmp_path / "events.jsonl", Slow())
    began = time.monotonic()
    for step in range(5):
        told.port.step({"step": step, "loss": 1.0})
    said = time.monotonic() - began
    assert len(told.read()) == 5
    assert said < time.monotonic() - began - 0.8, "saying took less than the coordinator did"
