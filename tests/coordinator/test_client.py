"""The client against a real server on a socket."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from sentinel_market.chain import eip712
from sentinel_market.coordinator import CoordinatorSettings, serve
from sentinel_market.domain.merkle import pay_tree
from sentinel_market.domain.messages import Endpoint
from sentinel_market.errors import PeerGone, UserError
from sentinel_market.wire import dto
from sentinel_market.wire.http_client import CoordinatorClient, Refused
from tests.coordinator.conftest import (
    CHAIN_ID,
    CONTRACTS,
    SEAT_KEYS,
    SEATS,
    SPEC,
    WORKERS,
    fault,
    metrics,
    seats_record,
    standing,
    verdict,
)


@pytest.fixture
def url(app: FastAPI) -> Iterator[str]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.005)
    app.state.service.indexer.tick()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()
    listener.close()


@pytest.fixture
def client(url: str) -> Iterator[CoordinatorClient]:
    with CoordinatorClient(url, signer=SEAT_KEYS[0].sign, chain_id=CHAIN_ID, market=CONTRACTS["JobMarket"]) as one:
        yield one


def test_all_that_a_seat_does(client: CoordinatorClient, tmp_path: Path) -> None:
    assert client.put_spec(SPEC) == SPEC.digest().hex()
    assert client.spec(SPEC.digest()) == SPEC
    message = Endpoint(1, SEATS[0], "127.0.0.1:7001", 1000)
    domain = eip712.Domain("JobMarket", "1", CHAIN_ID, CONTRACTS["JobMarket"])
    client.announce(message, SEAT_KEYS[0].sign(eip712.digest(domain, message)))
    assert client.endpoints(1)[0].endpoint == "127.0.0.1:7001"
    client.post_metrics(metrics(0, loss=2.0))
    assert client.metrics(1).steps[0].loss == 2.0
    client.post_seats_record(seats_record(3, standing(2, fault(recorded=3))))
    assert client.seats_record(1).seats[2].faults[0].said_by == 1
    assert client.account_record(SEATS[2]).faults == {"FALSE_ALARM": 1}
    client.post_verdicts(1, [verdict(step=step) for step in range(150)])
    assert len(client.verdicts(1)) == 150
    tree_root = pay_tree(1, {WORKERS[0]: 5}, eip712.keccak256).root.hex()
    client.post_settlement(
        dto.SettlementProposal(
            job_id=1,
            epoch=1,
            root=tree_root,
            total="5",
            step_record_hash="00" * 32,
            leaves=[dto.SettlementLeaf(account=WORKERS[0], cumulative="5")],
        )
    )
    assert client.settlement(1, 1, WORKERS[0]).leaves[0].cumulative == "5"
    assert client.settlements(1)[0].root == tree_root
    assert client.health().ok and client.jobs().jobs[0].job_id == 1 and client.job(1).state == "Active"
    assert len(client.workers(1)) == 12 and client.cases(1) == [] and client.ledger(1).problems == []
    path = tmp_path / "model"
    path.write_bytes(bytes(range(256)) * 5000)
    digest = client.put_file(path)
    assert client.put(path.read_bytes()) == digest and client.get(digest) == path.read_bytes()


def test_refusals_carry_the_code(client: CoordinatorClient, url: str) -> None:
    with pytest.raises(Refused, match="there is no job 5") as caught:
        client.job(5)
    assert (caught.value.status, caught.value.code) == (404, "unknown-job")
    with pytest.raises(PeerGone, match="does not have the blob"):
        client.get("00" * 32)
    with pytest.raises(PeerGone):
        client.get("../jobs")
    with CoordinatorClient(url) as reader, pytest.raises(UserError, match="hot key of a seat"):
        reader.post_metrics(metrics(0))
    with (
        CoordinatorClient(url, signer=SEAT_KEYS[1].sign, chain_id=1, market=CONTRACTS["JobMarket"]) as other,
        pytest.raises(Refused, match="is not the hot key of a seat"),
    ):
        other.post_metrics(metrics(0))


def lying(content: bytes, status: int = 200) -> CoordinatorClient:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, content=content))
    return CoordinatorClient("http://coordinator.test", transport=transport)


def test_a_lying_coordinator_is_not_believed() -> None:
    with pytest.raises(PeerGone, match="other bytes"):
        lying(b"other").get("00" * 32)
    with pytest.raises(PeerGone, match="another job spec"):
        lying(SPEC.canonical_json()).spec(bytes(32))
    for content in (b"", b"[]", b"{", b'{"ok": 1}', b"[1]", b"null"):
        with pytest.raises(PeerGone, match="something else"):
            lying(content).job(1)
    for content in (b"{", b"[1]", b"3"):
        with pytest.raises(PeerGone, match="something else"):
            lying(content).workers(1)
    with pytest.raises(PeerGone, match="in trouble"):
        lying(b"<html>", 502).jobs()
    with pytest.raises(Refused, match="HTTP status 418"):
        lying(b"<html>", 418).jobs()


def test_a_coordinator_that_is_not_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(PeerGone, match="does not answer"):
        CoordinatorClient(f"http://127.0.0.1:{port}", timeout=1).jobs()


def test_a_port_in_use_is_named(settings: CoordinatorSettings) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"127.0.0.1:{port}"):
            serve(settings, "127.0.0.1", port)
