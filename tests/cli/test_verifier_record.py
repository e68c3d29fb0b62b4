"""`sentinel verifier record`: what anybody reads of the seats, from a coordinator alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi import FastAPI

from sentinel_market.chain.abis import CONTRACTS as NAMES
from sentinel_market.chain.network import Network
from sentinel_market.wire.http_client import CoordinatorClient
from tests.cli.test_cli import Cli
from tests.coordinator.conftest import (
    CHAIN_ID,
    CONTRACTS,
    SEAT_KEYS,
    SEATS,
    SUBMITTER,
    FakeChain,
    address,
    fault,
    seats_record,
    standing,
)


@pytest.fixture
def sentinel(tmp_path: Path, url: str) -> Cli:
    """A home whose network has a coordinator, and a chain that does not answer."""
    home = tmp_path / "home"
    contracts = {name: address(700 + number) for number, name in enumerate(NAMES)}
    network = Network(rpc=("http://127.0.0.1:9",), chain_id=CHAIN_ID, contracts=contracts, coordinator=url)
    network.save(home / "network.json")
    return Cli(home)


@pytest.fixture
def published(url: str) -> None:
    """Three seats; the second has a false alarm, and the third alone says that it did more."""
    alarm, claim = fault(), fault("WRONG_UPDATE", word="cd")
    for number, key in enumerate(SEAT_KEYS):
        with CoordinatorClient(url, signer=key.sign, chain_id=CHAIN_ID, market=CONTRACTS["JobMarket"]) as one:
            said = (alarm, claim) if number == 2 else (alarm,)
            one.post_seats_record(seats_record(10, standing(1, *said, voided=2)))


def words(line: str) -> str:
    """Whatever the width of the columns."""
    return " ".join(line.split())


@pytest.mark.usefixtures("published")
def test_all_seats_of_a_job(sentinel: Cli) -> None:
    lines = sentinel("verifier", "record", "--job", 1).output.splitlines()
    assert lines[0] == "job 1 up to step 10, by 3 of 3 seats"
    assert words(lines[1]) == "ACCOUNT DRAWN AUDITS FAULTS VOIDED CHARGED AGREE"
    assert words(lines[2]) == f"{SEATS[0]} 9 6 of 7 0 0 0 3 of 3"
    assert words(lines[3]) == f"{SEATS[1]} 9 6 of 7 2 2 0 2 of 3"
    assert lines[5:] == [
        f"{SEATS[1]}: FALSE_ALARM in step 2, recorded in step 4, subject abababababababab, said by 3 of 3",
        f"{SEATS[1]}: WRONG_UPDATE in step 2, recorded in step 4, subject cdcdcdcdcdcdcdcd, said by 1 of 3",
    ]
    told = sentinel.json("verifier", "record", "--job", 1)
    assert (told["step"], told["reporters"], [seat["account"] for seat in told["seats"]]) == (10, 3, SEATS)
    (one,) = sentinel.json("verifier", "record", "--job", 1, "--account", SEATS[1])["seats"]
    assert [(f["kind"], f["said_by"]) for f in one["faults"]] == [("FALSE_ALARM", 3), ("WRONG_UPDATE", 1)]


@pytest.mark.usefixtures("published")
def test_an_account_over_its_jobs(sentinel: Cli) -> None:
    lines = sentinel("verifier", "record", "--account", SEATS[1]).output.splitlines()
    assert lines[0] == SEATS[1]
    assert words(lines[1]) == "JOB STEP DRAWN AUDITS VOIDED CHARGED AGREE FAULTS"
    assert words(lines[2]) == "1 10 9 6 of 7 2 0 2 of 3 FALSE_ALARM 1; disputed 1"
    assert words(lines[3]) == "all 9 6 of 7 2 0 FALSE_ALARM 1; disputed 1"
    told = sentinel.json("verifier", "record", "--account", SEATS[1])
    assert (told["faults"], told["disputed"], told["voided"]) == ({"FALSE_ALARM": 1}, 1, 2)


def test_by_default_it_is_ones_own(sentinel: Cli, chain: FakeChain, app: FastAPI) -> None:
    none = sentinel("verifier", "record", code=2).output
    assert f"{sentinel.home}/keys has no identity" in none and "--account" in none
    mine = sentinel.json("key", "new", "vera", "--light")["account"]
    refused = sentinel("verifier", "record", code=2).output
    assert f"{mine} never took a verifier seat" in refused and "sentinel seat list" in refused
    chain.add("JobMarket", "SeatTaken", jobId=1, seat=2, account=mine, hotKey=SEAT_KEYS[2].address, lockId=9)
    app.state.service.indexer.tick()
    assert f"no record of {mine} is published yet" in sentinel("verifier", "record").output
    assert sentinel.json("verifier", "record", "--account", "vera")["account"] == mine
    sentinel("key", "new", "victor", "--light")
    assert "has 2 identities (vera, victor)" in sentinel("verifier", "record", code=2).output


def test_a_job_without_a_record_yet(sentinel: Cli) -> None:
    assert "no seat of job 1 has published a record yet" in sentinel("verifier", "record", "--job", 1).output
    assert sentinel.json("verifier", "record", "--job", 1)["seats"] == []


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--job", 7], ("there is no job 7", "sentinel job list")),
        (["--job", 0], ("0 is not in the range",)),
        (["--job", 1, "--account", SUBMITTER], (f"{SUBMITTER} holds no seat of job 1", SEATS[0])),
        (["--account", SUBMITTER], (f"{SUBMITTER} never took a verifier seat", "sentinel seat list")),
        (["--account", "0x12"], ("'0x12' is not an address",)),
        (["--account", "nobody"], ("there is no key 'nobody'",)),
    ],
)
def test_what_cannot_be_shown_is_named_with_the_way_out(sentinel: Cli, args: list[object], parts: tuple[str]) -> None:
    result = sentinel("verifier", "record", *args, code=2)
    assert "Traceback" not in result.output
    for part in parts:
        assert part in result.output
    assert sentinel.json("verifier", "record", *args, code=2)["error"]["exit_code"] == 2


def test_a_coordinator_that_does_not_answer(sentinel: Cli) -> None:
    away = {"SENTINEL_COORDINATOR": "http://127.0.0.1:9"}
    result = sentinel("verifier", "record", "--job", 1, code=1, env=away)
    assert "the coordinator at http://127.0.0.1:9 does not answer" in result.output
