"""A coordinator over a fake chain, with three seats and twelve workers of a job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from sentinel_market.chain import eip712, signing
from sentinel_market.coordinator import CoordinatorSettings, create_app
from sentinel_market.domain.job_spec import JobSpec, parse_job, template
from sentinel_market.domain.messages import Endpoint
from sentinel_market.errors import ChainUnavailable
from sentinel_market.wire import dto

CHAIN_ID = 31337
CONTRACTS = {"JobMarket": "0x" + "c1" * 20, "JobEscrow": "0x" + "c2" * 20, "StakeVault": "0x" + "c3" * 20}
SPEC: JobSpec = parse_job(template(training__steps=100, training__epoch_steps=10))
NOW = 1_800_000_000.0


def address(number: int) -> str:
    return f"0x{number:040x}"


SEATS = [address(900 + number) for number in range(3)]
SEAT_KEYS = [signing.HotKey(bytes([7]) * 31 + bytes([number + 1])) for number in range(3)]
STRANGER = signing.HotKey(bytes([9]) * 32)
WORKERS = [address(100 + number) for number in range(12)]
SUBMITTER = address(1)


class FakeChain:
    """An event source with one event a block, which can fail."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.broken: Exception | None = None
        self.length = 0

    def add(self, contract: str, name: str, **args: Any) -> None:
        self.events.append(
            {
                "contract": contract,
                "name": name,
                "args": args,
                "block": self.length,
                "log_index": 0,
                "tx": bytes([self.length % 256]) * 32,
            }
        )
        self.length += 1

    def head(self) -> int:
        if self.broken:
            raise self.broken
        return self.length - 1

    def fetch_events(self, from_block: int, to_block: int) -> list[dict[str, Any]]:
        if self.broken:
            raise self.broken
        return [event for event in self.events if from_block <= event["block"] <= to_block]


def down() -> ChainUnavailable:
    return ChainUnavailable("the RPC does not answer")


@pytest.fixture
def chain() -> FakeChain:
    fake = FakeChain()
    fake.add(
        "JobMarket",
        "JobPosted",
        jobId=1,
        submitter=SUBMITTER,
        specDigest=SPEC.digest(),
        budget=SPEC.market.budget,
        paramsVersion=1,
        uri="",
    )
    fake.add("JobEscrow", "JobFunded", jobId=1, submitter=SUBMITTER, budget=SPEC.market.budget)
    for number, (account, key) in enumerate(zip(SEATS, SEAT_KEYS, strict=True)):
        fake.add("JobMarket", "SeatTaken", jobId=1, seat=number, account=account, hotKey=key.address, lockId=number)
    for slot, account in enumerate(WORKERS):
        fake.add("StakeVault", "Deposited", account=account, amount=200)
        fake.add(
            "StakeVault",
            "LockCreated",
            lockId=10 + slot,
            account=account,
            controller=CONTRACTS["JobMarket"],
            amount=100,
        )
        fake.add(
            "JobMarket", "SlotClaimed", jobId=1, slot=slot, account=account, nonce=0, hotKey=account, lockId=10 + slot
        )
    fake.add("JobMarket", "JobStateChanged", jobId=1, state=2, timestamp=5)
    return fake


@pytest.fixture
def settings(tmp_path: Path, chain: FakeChain) -> CoordinatorSettings:
    return CoordinatorSettings(
        database=tmp_path / "coordinator.db",
        blob_dir=tmp_path / "blobs",
        chain_id=CHAIN_ID,
        contracts=CONTRACTS,
        events=chain,
        poll_seconds=0.02,
        max_blob_bytes=3_000_000,
        max_total_blob_bytes=5_000_000,
        clock=lambda: NOW,
    )


@pytest.fixture
def app(settings: CoordinatorSettings) -> FastAPI:
    return create_app(settings)


@pytest.fixture
def http(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, raise_server_exceptions=False) as client:
        app.state.service.indexer.tick()
        yield client


def sign(key: signing.HotKey, path: str, body: bytes, *, chain_id: int = CHAIN_ID, market: str = "") -> dict[str, str]:
    digest = dto.request_digest(
        chain_id=chain_id, market=market or CONTRACTS["JobMarket"], method="POST", path=path, body=body
    )
    return {dto.SIGNATURE_HEADER: "0x" + key.sign(digest).hex()}


def announcement(seat: int, endpoint: str, issued: int, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """A signed endpoint announcement as JSON; ``changes`` are made after the signature."""
    message = Endpoint(1, SEATS[seat], endpoint, issued)
    domain = eip712.Domain("JobMarket", "1", CHAIN_ID, CONTRACTS["JobMarket"])
    signature = SEAT_KEYS[seat].sign(eip712.digest(domain, message))
    return {
        "job_id": 1,
        "verifier": SEATS[seat],
        "endpoint": endpoint,
        "issued": issued,
        "signature": "0x" + signature.hex(),
    } | (changes or {})


def metrics(step: int, *, issued: int = 1000, **changes: Any) -> dto.StepMetrics:
    return dto.StepMetrics(job_id=1, step=step, issued=issued, **{"loss": 3.0, "tokens": 1024, **changes})


def verdict(kind: dto.VerdictName = "suspect", *, slot: int = 4, **changes: Any) -> dto.VerdictEvent:
    base = {"step": 3, "slot": slot, "nonce": 0, "kind": kind, "reason": "l1 9 > 3", "issued": 1000}
    return dto.VerdictEvent.model_validate({**base, **changes})


def fault(kind: dto.FaultName = "FALSE_ALARM", step: int = 2, recorded: int = 4, word: str = "ab") -> dto.SeatFault:
    return dto.SeatFault(kind=kind, step=step, recorded=recorded, subject=word * 32)


def standing(seat: int, *faults: dto.SeatFault, **changes: Any) -> dto.SeatStanding:
    base = {"drawn": 9, "audits_due": 7, "audits_done": 6, "voided": 2 * len(faults), "charged": 0}
    return dto.SeatStanding(account=SEATS[seat], **{**base, "faults": list(faults), **changes})


def seats_record(
    step: int = 10, *seats: dto.SeatStanding, issued: int = 1000, job_id: int = 1, clean: bool = True
) -> dto.SeatsRecord:
    """``seats``: those that are not as always; with ``clean`` the others are added."""
    named = {one.account: one for one in seats}
    rest = [standing(seat) for seat in range(3) if SEATS[seat] not in named] if clean else []
    return dto.SeatsRecord(job_id=job_id, step=step, issued=issued, seats=[*seats, *rest])
