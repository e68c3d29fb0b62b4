"""The public record of seats: who may write it, what is refused, and what becomes of documents that differ."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from sentinel_market.domain.cross_audit import LAG, FaultKind
from sentinel_market.wire import dto
from tests.coordinator.conftest import (
    NOW,
    SEAT_KEYS,
    SEATS,
    SPEC,
    STRANGER,
    SUBMITTER,
    FakeChain,
    address,
    fault,
    seats_record,
    sign,
    standing,
)
from tests.coordinator.test_api import code, post

PATH = "/jobs/1/seats/record"


def of(http: TestClient, seat: int) -> dict[str, Any]:
    found: list[dict[str, Any]] = http.get(PATH).json()["seats"]
    return next(one for one in found if one["account"] == SEATS[seat])


def tell(http: TestClient, seat: int, record: dto.SeatsRecord) -> None:
    answer = post(http, f"/jobs/{record.job_id}/seats/record", record, SEAT_KEYS[seat])
    assert answer.status_code == 201, answer.text


def test_the_names_on_the_wire_are_those_of_the_rules() -> None:
    assert set(get_args(dto.FaultName)) == {kind.name for kind in FaultKind}


def test_before_anybody_reports_there_is_an_empty_record(http: TestClient) -> None:
    empty = {"job_id": 1, "step": None, "num_seats": 3, "reporters": 0, "documents": 0, "seats": []}
    assert http.get(PATH).json() == empty


def test_seats_that_agree_give_one_record(http: TestClient) -> None:
    record = seats_record(10, standing(1, fault(), voided=2, charged=10))
    for seat in range(3):
        tell(http, seat, record)
    answer = http.get(PATH).json()
    assert [answer[key] for key in ("step", "num_seats", "reporters", "documents")] == [10, 3, 3, 3]
    assert [one["account"] for one in answer["seats"]] == SEATS
    assert of(http, 1) == {
        "account": SEATS[1],
        "agree": 3,
        "drawn": 9,
        "audits_due": 7,
        "audits_done": 6,
        "voided": 2,
        "charged": 10,
        "faults": [{"kind": "FALSE_ALARM", "step": 2, "recorded": 4, "subject": "ab" * 32, "said_by": 3}],
        "earlier": {},
    }
    assert of(http, 0)["faults"] == [] and of(http, 0)["agree"] == 3


def test_older_documents_and_replays_change_nothing(http: TestClient) -> None:
    tell(http, 0, seats_record(10, issued=1000))
    for stale in (seats_record(10, issued=1000), seats_record(10, issued=999), seats_record(9, issued=5000)):
        assert code(post(http, PATH, stale)) == (409, "stale")
    tell(http, 0, seats_record(10, standing(1, fault()), issued=1001))
    tell(http, 0, seats_record(11, issued=5))
    assert http.get(PATH).json()["step"] == 11


# ---- what strangers and seats cannot do


def test_strangers_and_tampered_requests(http: TestClient) -> None:
    body = seats_record().model_dump_json().encode()
    assert code(http.post(PATH, content=body)) == (401, "unsigned")
    assert code(post(http, PATH, body, STRANGER)) == (403, "not-a-seat")
    other = sign(SEAT_KEYS[0], "/jobs/1/metrics", body)
    assert code(http.post(PATH, content=body, headers=other)) == (403, "not-a-seat")
    tampered = body.replace(b'"charged":0', b'"charged":9', 1)
    assert code(http.post(PATH, content=tampered, headers=sign(SEAT_KEYS[0], PATH, body))) == (403, "not-a-seat")
    assert http.get(PATH).json()["reporters"] == 0


def test_jobs_and_accounts_that_are_not_there(http: TestClient) -> None:
    away = seats_record(job_id=7)
    assert code(post(http, "/jobs/7/seats/record", away)) == (404, "unknown-job")
    assert code(post(http, PATH, away)) == (400, "other-job")
    assert code(http.get("/jobs/7/seats/record")) == (404, "unknown-job")
    assert code(http.get(f"/seats/{SUBMITTER}/record")) == (404, "unknown-account")
    assert code(http.get("/seats/0x12/record")) == (422, "bad-request")


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (seats_record(10, standing(0), standing(0)), "an account is listed twice"),
        (
            seats_record(10, standing(0).model_copy(update={"account": SUBMITTER})),
            f"{SUBMITTER} holds no seat of job 1",
        ),
        (seats_record(10, standing(0, audits_done=8)), f"{SEATS[0]} did 8 audits of 7"),
        (seats_record(10, standing(0, fault(), fault(recorded=5))), f"a fault of {SEATS[0]} is listed twice"),
        (
            seats_record(10, standing(0, fault(recorded=11))),
            f"a fault of {SEATS[0]} in step 2, recorded in step 11, in the record of step 10",
        ),
        (
            seats_record(10, standing(0, fault(step=5))),
            f"a fault of {SEATS[0]} in step 5, recorded in step 4, in the record of step 10",
        ),
    ],
)
def test_records_that_no_ledger_gives(http: TestClient, record: dto.SeatsRecord, problem: str) -> None:
    answer = post(http, PATH, record)
    assert (*code(answer), answer.json()["error"]["message"]) == (400, "bad-record", problem)
    assert http.get(PATH).json()["reporters"] == 0


def test_records_of_steps_that_the_job_does_not_have(http: TestClient) -> None:
    http.post("/specs", content=SPEC.canonical_json())
    last = SPEC.training.steps + LAG - 1
    assert code(post(http, PATH, seats_record(last + 1))) == (400, "bad-step")
    assert code(post(http, PATH, seats_record(issued=int(NOW * 1000) + 10**7))) == (400, "clock")
    tell(http, 0, seats_record(last))


BODY = seats_record(10, standing(0, fault())).model_dump_json().encode()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"FALSE_ALARM", b"MURDER"),
        (b'"drawn":9', b'"drawn":-1'),
        (b'"drawn":9', b'"drawn":9.5'),
        (b'"drawn":9', b'"drawn":' + b"9" * 40),
        (b"ab" * 32, b"ab" * 31),
        (b'"earlier":{}', b'"earlier":{"MURDER":1}'),
        (b'"earlier":{}', b'"earlier":{},"note":"hello"'),
        (b'"seats":[', b'"seats":[],"x":['),
    ],
)
def test_bodies_of_the_wrong_form(http: TestClient, old: bytes, new: bytes) -> None:
    assert old in BODY
    assert code(post(http, PATH, BODY.replace(old, new, 1))) == (422, "bad-body")


def test_sizes_are_bounded_and_the_fullest_record_fits(http: TestClient) -> None:
    most = 2**63 - 1
    faults = [
        dto.SeatFault(kind="UNSERVED_UPDATE", step=most, recorded=most, subject=f"{number:064x}")
        for number in range(dto.MAX_FAULTS)
    ]
    counts = dict.fromkeys(("drawn", "audits_due", "audits_done", "voided", "charged"), most)
    earlier: Any = dict.fromkeys(get_args(dto.FaultName), most)
    full = standing(0, *faults, **counts, earlier=earlier)
    seats = [full.model_copy(update={"account": address(number)}) for number in range(dto.MAX_SEATS)]
    record = dto.SeatsRecord(job_id=1, step=most, issued=most, seats=seats)
    assert dto.MAX_JSON_BYTES < len(record.model_dump_json()) < dto.MAX_RECORD_BYTES
    assert code(post(http, PATH, bytes(dto.MAX_RECORD_BYTES + 1))) == (413, "too-large")
    body = record.model_copy(update={"seats": [*seats, full]}).model_dump_json().encode()
    assert code(post(http, PATH, body)) == (422, "bad-body")
    body = record.model_copy(update={"seats": [full.model_copy(update={"faults": [*faults, fault()]})]})
    assert code(post(http, PATH, body)) == (422, "bad-body")


# ---- seats that differ


def test_the_step_that_a_majority_has_reached(http: TestClient) -> None:
    shown = []
    for seat, step in ((0, 10), (1, 10), (2, 10), (0, 20), (1, 20)):
        tell(http, seat, seats_record(step, standing(0, drawn=step)))
        answer = http.get(PATH).json()
        shown.append((answer["step"], answer["documents"], answer["reporters"], of(http, 0)["drawn"]))
    assert shown == [(10, 1, 1, 10), (10, 2, 2, 10), (10, 3, 3, 10), (10, 2, 3, 10), (20, 2, 3, 20)]


def test_a_fault_that_one_seat_lists_is_said_by_one(http: TestClient) -> None:
    false = fault("WRONG_UPDATE", word="cd")
    tell(http, 0, seats_record(10, standing(1, fault())))
    tell(http, 1, seats_record(10, standing(1, fault())))
    tell(http, 2, seats_record(10, standing(1, fault(), false, voided=99)))
    one = of(http, 1)
    assert (one["agree"], one["voided"]) == (2, 2), "the numbers are those of the majority"
    assert [(f["kind"], f["said_by"]) for f in one["faults"]] == [("FALSE_ALARM", 2 + 1), ("WRONG_UPDATE", 1)]
    account = http.get(f"/seats/{SEATS[1]}/record").json()
    assert (account["faults"], account["disputed"], account["voided"]) == ({"FALSE_ALARM": 1}, 1, 2)


def test_a_tie_goes_to_fewer_faults(http: TestClient) -> None:
    tell(http, 0, seats_record(10, standing(1, fault(), voided=2)))
    tell(http, 1, seats_record(10))
    one = of(http, 1)
    assert (one["agree"], one["voided"], [f["said_by"] for f in one["faults"]]) == (1, 0, [1])


def test_a_liar_alone_at_a_step_is_not_summed(http: TestClient) -> None:
    """It stands between the steps of two honest seats, so that the majority's step is its own."""
    tell(http, 0, seats_record(10))
    tell(http, 1, seats_record(20))
    tell(http, 2, seats_record(15, standing(0, fault(word="cd"), voided=10**9, earlier={"LAZY_AUDIT": 10**6})))
    assert (http.get(PATH).json()["step"], of(http, 0)["agree"]) == (15, 1)
    account = http.get(f"/seats/{SEATS[0]}/record").json()
    assert account["jobs"][0]["agreed"] is False
    assert (account["voided"], account["faults"], account["disputed"]) == (0, {}, 1)


def test_who_gave_its_seat_away_has_no_voice(http: TestClient, chain: FakeChain, app: FastAPI) -> None:
    tell(http, 2, seats_record(10))
    chain.add("JobMarket", "SeatReleased", jobId=1, seat=2, account=SEATS[2])
    app.state.service.indexer.tick()
    assert http.get(PATH).json()["reporters"] == 1, "released at the end of the job: it stays"
    chain.add("JobMarket", "SeatTaken", jobId=1, seat=2, account=address(903), hotKey=STRANGER.address, lockId=9)
    app.state.service.indexer.tick()
    assert http.get(PATH).json()["reporters"] == 0


# ---- over jobs


def test_an_account_over_its_jobs(http: TestClient, chain: FakeChain, app: FastAPI) -> None:
    for job_id in (2, 3):
        chain.add(
            "JobMarket", "JobPosted", jobId=job_id, submitter=SUBMITTER, specDigest=bytes(32), budget=5, uri="",
            paramsVersion=1,
        )  # fmt: skip
        for number in range(2):
            account, key = SEATS[number], SEAT_KEYS[number].address
            chain.add("JobMarket", "SeatTaken", jobId=job_id, seat=number, account=account, hotKey=key, lockId=number)
    app.state.service.indexer.tick()
    lazy = fault("LAZY_AUDIT", word="ef")
    for seat in range(2):
        tell(http, seat, seats_record(10, standing(0, fault(), charged=0)))
        both = (standing(0, fault(), lazy, charged=10, earlier={"LAZY_AUDIT": 2}), standing(1))
        tell(http, seat, seats_record(5, *both, job_id=2, clean=False))
    answer = http.get(f"/seats/{SEATS[0].upper().replace('0X', '0x')}/record").json()
    assert [(one["job_id"], one["step"], one["agree"], one["faults"]) for one in answer["jobs"]] == [
        (2, 5, 2, {"FALSE_ALARM": 1, "LAZY_AUDIT": 3}),
        (1, 10, 2, {"FALSE_ALARM": 1}),
    ], "nobody reported of job 3"
    sums = ("drawn", "audits_due", "audits_done", "voided", "charged", "disputed", "jobs_left_out")
    assert [answer[key] for key in sums] == [18, 14, 12, 6, 10, 0, 0]
    assert answer["faults"] == {"FALSE_ALARM": 2, "LAZY_AUDIT": 3}
    clean = http.get(f"/seats/{SEATS[2]}/record").json()
    assert (clean["drawn"], clean["faults"], len(clean["jobs"])) == (9, {}, 1)
