"""The routes: what they answer, and what they refuse of what a stranger can send."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from fastapi import FastAPI
from fastapi.testclient import TestClient

from sentinel_market.chain import eip712
from sentinel_market.chain.eip712 import keccak256
from sentinel_market.domain.merkle import pay_leaf, pay_tree, verify
from sentinel_market.domain.messages import Endpoint
from sentinel_market.wire import dto
from tests.coordinator.conftest import (
    CHAIN_ID,
    CONTRACTS,
    NOW,
    SEAT_KEYS,
    SEATS,
    SPEC,
    STRANGER,
    SUBMITTER,
    WORKERS,
    FakeChain,
    address,
    announcement,
    down,
    metrics,
    sign,
    verdict,
)


def code(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def post(http: TestClient, path: str, body: Any, key: Any = SEAT_KEYS[0], **options: Any) -> Any:
    content = body if isinstance(body, bytes) else body.model_dump_json().encode()
    return http.post(path, content=content, headers=sign(key, path, content, **options))


def batch(*events: dto.VerdictEvent) -> dto.VerdictBatch:
    return dto.VerdictBatch(job_id=1, events=list(events))


# --- specs and jobs


def test_a_spec_is_kept_under_its_digest(http: TestClient) -> None:
    body, digest = SPEC.canonical_json(), SPEC.digest().hex()
    assert code(http.get("/jobs/1/spec")) == (404, "unknown-spec")
    assert http.get("/jobs/1").json()["name"] is None
    answer = http.post("/specs", content=body)
    assert (answer.status_code, answer.json()) == (201, {"new": True, "digest": digest})
    assert http.post("/specs", content=body).json()["new"] is False
    assert http.get(f"/specs/{digest}").content == body
    assert http.get("/jobs/1/spec").content == body
    job = http.get("/jobs/1").json()
    assert (job["name"], job["stages"], job["state"], job["slots_claimed"]) == (SPEC.name, 4, "Active", 12)
    assert [seat["account"] for seat in job["seats"]] == SEATS


def test_the_list_of_jobs_is_paged(http: TestClient, chain: FakeChain, app: FastAPI) -> None:
    for job_id in range(2, 6):
        chain.add(
            "JobMarket",
            "JobPosted",
            jobId=job_id,
            submitter=SUBMITTER,
            specDigest=bytes(32),
            budget=5,
            uri="",
            paramsVersion=1,
        )
    app.state.service.indexer.tick()
    first = http.get("/jobs?limit=3").json()
    assert ([job["job_id"] for job in first["jobs"]], first["next_before"]) == ([5, 4, 3], 3)
    rest = http.get(f"/jobs?limit=3&before={first['next_before']}").json()
    assert ([job["job_id"] for job in rest["jobs"]], rest["next_before"]) == ([2, 1], None)


@pytest.mark.parametrize("body", [b"", b"{}", SPEC.canonical_json() + b"\n", b"\xff", b"[" * 60_000, b"9" * 60_000])
def test_bodies_that_are_no_spec(http: TestClient, body: bytes) -> None:
    assert code(http.post("/specs", content=body)) == (400, "bad-spec")


def test_a_body_over_the_limit_is_refused_whatever_it_says_of_its_length(http: TestClient) -> None:
    assert code(http.post("/specs", content=bytes(70_000))) == (413, "too-large")
    assert code(http.post("/specs", content=(bytes(10_000) for _ in range(10)))) == (413, "too-large")
    assert code(http.post("/jobs/1/metrics", content=bytes(70_000))) == (413, "too-large")


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/2",
        "/jobs/2/spec",
        "/jobs/2/workers",
        "/jobs/2/cases",
        "/jobs/2/ledger",
        "/jobs/2/settlements",
        "/jobs/2/endpoints",
        "/jobs/2/metrics",
        "/jobs/2/verdicts",
        "/jobs/2/seats/record",
    ],
)
def test_an_unknown_job(http: TestClient, path: str) -> None:
    assert code(http.get(path)) == (404, "unknown-job")


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/0",
        "/jobs/x",
        "/jobs/99999999999999999999",
        "/jobs?limit=0",
        "/jobs?limit=1001",
        "/specs/ab",
        "/blobs/..%2f..%2fetc",
    ],
)
def test_parameters_out_of_bounds(http: TestClient, path: str) -> None:
    status, what = code(http.get(path))
    assert (status, what) in ((422, "bad-request"), (404, "not-found"))


def test_wrong_methods_and_paths_answer_in_the_same_form(http: TestClient) -> None:
    assert code(http.delete("/jobs")) == (405, "method-not-allowed")
    assert code(http.get("/nothing")) == (404, "not-found")


# --- endpoints


def test_the_newest_endpoint_of_a_seat_wins(http: TestClient) -> None:
    path = "/jobs/1/endpoints"
    assert http.post(path, json=announcement(0, "127.0.0.1:7001", 1000)).status_code == 201
    assert http.post(path, json=announcement(1, "[::1]:7002", 1000)).status_code == 201
    assert code(http.post(path, json=announcement(0, "127.0.0.1:7001", 1000))) == (409, "stale")
    assert code(http.post(path, json=announcement(0, "127.0.0.1:7009", 999))) == (409, "stale")
    assert http.post(path, json=announcement(0, "relay.example:7003", 1001)).status_code == 201
    assert [row["endpoint"] for row in http.get(path).json()] == ["relay.example:7003", "[::1]:7002"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"endpoint": "127.0.0.1:7002"}, (403, "not-a-seat")),
        ({"issued": 1001}, (403, "not-a-seat")),
        ({"verifier": SEATS[1]}, (403, "not-a-seat")),
        ({"job_id": 2}, (400, "other-job")),
        ({"signature": "0x" + "00" * 65}, (401, "signature")),
        ({"signature": "0x00"}, (422, "bad-body")),
        ({"endpoint": "127.0.0.1"}, (422, "bad-body")),
        ({"endpoint": "127.0.0.1:70000"}, (400, "bad-endpoint")),
        ({"endpoint": "http://a/b:1"}, (422, "bad-body")),
        ({"endpoint": "a" * 300 + ":1"}, (422, "bad-body")),
        ({"issued": int(NOW * 1000) + 3_600_000}, (400, "clock")),
        ({"issued": -1}, (422, "bad-body")),
        ({"issued": "1000"}, (422, "bad-body")),
        ({"extra": 1}, (422, "bad-body")),
    ],
)
def test_announcements_that_were_tampered_with(
    http: TestClient, changes: dict[str, Any], expected: tuple[int, str]
) -> None:
    assert code(http.post("/jobs/1/endpoints", json=announcement(0, "127.0.0.1:7001", 1000, changes))) == expected
    assert http.get("/jobs/1/endpoints").json() == []


def test_a_seat_cannot_speak_for_another(http: TestClient) -> None:
    domain = eip712.Domain("JobMarket", "1", CHAIN_ID, CONTRACTS["JobMarket"])
    signature = SEAT_KEYS[0].sign(eip712.digest(domain, Endpoint(1, SEATS[1], "127.0.0.1:1", 5)))
    body = announcement(1, "127.0.0.1:1", 5, {"signature": "0x" + signature.hex()})
    assert code(http.post("/jobs/1/endpoints", json=body)) == (403, "other-seat")


def test_a_seat_taken_a_moment_ago_is_known(http: TestClient, chain: FakeChain, app: FastAPI) -> None:
    app.state.service.indexer.refresh = app.state.service.indexer.tick
    chain.add("JobMarket", "SeatTaken", jobId=1, seat=3, account=address(903), hotKey=STRANGER.address, lockId=9)
    assert post(http, "/jobs/1/metrics", metrics(1), STRANGER).status_code == 201
    chain.add("JobMarket", "SeatReleased", jobId=1, seat=3, account=address(903))
    app.state.service.indexer.tick()
    assert code(post(http, "/jobs/1/metrics", metrics(2), STRANGER)) == (403, "not-a-seat")


# --- signed writes


def test_metrics_are_merged_over_seats(http: TestClient) -> None:
    assert post(http, "/jobs/1/metrics", metrics(0, loss=4.0, tokens=100, tokens_per_second=50.0)).status_code == 201
    other = metrics(0, loss=1.0, tokens=300, tokens_per_second=70.0, suspects=2, bans=1, validation_loss=2.5)
    assert post(http, "/jobs/1/metrics", other, SEAT_KEYS[1]).status_code == 201
    assert post(http, "/jobs/1/metrics", metrics(2, loss=None)).status_code == 201
    answer = http.get("/jobs/1/metrics").json()
    assert answer["next_since"] == 3
    assert answer["steps"][0] == {
        "step": 0,
        "seats": 2,
        "loss": 1.75,
        "tokens": 400,
        "tokens_per_second": 120.0,
        "suspects": 2,
        "quarantines": 0,
        "bans": 1,
        "validation_loss": 2.5,
        "checkpoint": None,
        "record": None,
    }
    assert answer["steps"][1]["loss"] is None
    assert [step["step"] for step in http.get("/jobs/1/metrics?since=1").json()["steps"]] == [2]
    assert http.get("/jobs").json()["jobs"][0]["last_step"] == 2


def test_replayed_and_older_metrics(http: TestClient) -> None:
    path = "/jobs/1/metrics"
    assert post(http, path, metrics(5, issued=10)).status_code == 201
    assert code(post(http, path, metrics(5, issued=10))) == (409, "stale")
    assert code(post(http, path, metrics(5, issued=9, loss=0.0))) == (409, "stale")
    assert post(http, path, metrics(5, issued=11, loss=1.0)).status_code == 201
    assert http.get(path).json()["steps"][0]["loss"] == 1.0


PATH = "/jobs/1/metrics"
BODY = metrics(1).model_dump_json().encode()


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, (401, "unsigned")),
        ({dto.SIGNATURE_HEADER: "0x12"}, (401, "signature")),
        ({dto.SIGNATURE_HEADER: "zz"}, (401, "signature")),
        ({dto.SIGNATURE_HEADER: "0x" + "11" * 70_00}, (401, "signature")),
        (sign(STRANGER, PATH, BODY), (403, "not-a-seat")),
        (sign(SEAT_KEYS[0], PATH, BODY + b" "), (403, "not-a-seat")),
        (sign(SEAT_KEYS[0], "/jobs/1/verdicts", BODY), (403, "not-a-seat")),
        (sign(SEAT_KEYS[0], "/jobs/2/metrics", BODY), (403, "not-a-seat")),
        (sign(SEAT_KEYS[0], PATH, BODY, chain_id=1), (403, "not-a-seat")),
        (sign(SEAT_KEYS[0], PATH, BODY, market="0x" + "c9" * 20), (403, "not-a-seat")),
    ],
)
def test_writes_without_the_right_signature(
    http: TestClient, headers: dict[str, str], expected: tuple[int, str]
) -> None:
    assert code(http.post(PATH, content=BODY, headers=headers)) == expected
    assert http.get(PATH).json()["steps"] == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", (422, "bad-body")),
        (b"[]", (422, "bad-body")),
        (b'{"job_id":1}', (422, "bad-body")),
        (BODY.replace(b'"step":1', b'"step":-1'), (422, "bad-body")),
        (BODY.replace(b'"step":1', b'"step":1e3'), (422, "bad-body")),
        (BODY.replace(b'"step":1', b'"step":' + b"9" * 40), (422, "bad-body")),
        (BODY.replace(b'"loss":3.0', b'"loss":NaN'), (422, "bad-body")),
        (BODY.replace(b'"loss":3.0', b'"loss":1e999'), (422, "bad-body")),
        (BODY.replace(b'"loss":3.0', b'"loss":"3"'), (422, "bad-body")),
        (BODY.replace(b'"job_id":1', b'"job_id":2'), (400, "other-job")),
        (b"[" * 50_000, (422, "bad-body")),
    ],
)
def test_signed_bodies_that_make_no_sense(http: TestClient, body: bytes, expected: tuple[int, str]) -> None:
    assert code(post(http, PATH, body)) == expected


def test_a_step_beyond_the_job(http: TestClient) -> None:
    http.post("/specs", content=SPEC.canonical_json())
    assert code(post(http, PATH, metrics(100))) == (400, "bad-step")
    assert post(http, PATH, metrics(99)).status_code == 201


def test_writing_to_a_job_that_is_not_there(http: TestClient) -> None:
    body = BODY.replace(b'"job_id":1', b'"job_id":7')
    assert code(post(http, "/jobs/7/metrics", body)) == (404, "unknown-job")


def test_verdicts_and_quarantines(http: TestClient) -> None:
    http.post("/specs", content=SPEC.canonical_json())
    path = "/jobs/1/verdicts"
    events = [
        verdict(),
        verdict("violation", metric="l1", value_e6=9_000_000, fence_e6=3_000_000),
        verdict("quarantine"),
    ]
    assert post(http, path, batch(*events)).json()["new"] is True
    assert post(http, path, batch(*events)).json()["new"] is False  # a replay changes nothing
    assert post(http, path, batch(verdict("quarantine", step=4)), SEAT_KEYS[1]).status_code == 201
    newest = http.get(path).json()
    assert [row["event"]["kind"] for row in newest] == ["quarantine", "quarantine", "violation", "suspect"]
    assert (newest[0]["stage"], newest[0]["replica"], newest[2]["event"]["value_e6"]) == (1, 1, 9_000_000)
    assert [row["id"] for row in http.get(f"{path}?after={newest[1]['id']}").json()] == [newest[0]["id"]]
    worker = http.get("/jobs/1/workers").json()[4]
    assert (worker["suspects"], worker["violations"], worker["quarantined_at_step"], worker["quarantine_seats"]) == (
        1,
        1,
        3,
        2,
    )
    assert worker["quarantine_reason"] == "l1 9 > 3" and not worker["banned"]


def test_verdicts_that_are_refused(http: TestClient, app: FastAPI) -> None:
    path = "/jobs/1/verdicts"
    assert code(post(http, path, batch(verdict(slot=40)))) == (400, "unknown-slot")
    assert code(post(http, path, batch(verdict(), verdict(nonce=1)))) == (400, "unknown-slot")
    assert http.get(path).json() == []  # all or nothing
    many = json.dumps({"job_id": 1, "events": [verdict().model_dump()] * 129}).encode()
    assert code(post(http, path, many)) == (422, "bad-body")
    assert code(post(http, path, batch(verdict(issued=int(NOW * 1000) + 10**7)))) == (400, "clock")
    object.__setattr__(app.state.service.settings, "max_verdicts_a_seat", 1)
    assert code(post(http, path, batch(verdict(), verdict("violation")))) == (429, "too-many")


# --- money


def proposal(epoch: int = 1, amounts: dict[str, int] | None = None, **changes: Any) -> bytes:
    chosen = amounts or {WORKERS[0]: 50, WORKERS[4]: 70, SEATS[0]: 30}
    root = pay_tree(1, chosen, keccak256).root.hex()
    leaves = [{"account": account, "cumulative": str(amount)} for account, amount in chosen.items()]
    body = {
        "job_id": 1,
        "epoch": epoch,
        "root": root,
        "total": str(sum(chosen.values())),
        "step_record_hash": "ab" * 32,
        "leaves": leaves,
    }
    return json.dumps(body | changes).encode()


def submit_root(chain: FakeChain, app: FastAPI, epoch: int, amounts: dict[str, int], active_at: int) -> None:
    chain.add(
        "JobEscrow",
        "SettlementSubmitted",
        jobId=1,
        epoch=epoch,
        root=pay_tree(1, amounts, keccak256).root,
        totalCumulative=sum(amounts.values()),
        stepRecordHash=bytes(32),
        activeAt=active_at,
    )
    app.state.service.indexer.tick()


def test_settlements_with_proofs(http: TestClient, chain: FakeChain, app: FastAPI) -> None:
    path = "/jobs/1/settlements"
    assert post(http, path, proposal()).status_code == 201
    assert post(http, path, proposal(), SEAT_KEYS[1]).json()["new"] is False
    other = {WORKERS[0]: 51}
    assert post(http, path, proposal(amounts=other), SEAT_KEYS[1]).json()["new"] is True
    assert [row["on_chain"] for row in http.get(path).json()] == [False, False]
    submit_root(chain, app, 1, {WORKERS[0]: 50, WORKERS[4]: 70, SEATS[0]: 30}, int(NOW) + 5)
    (row,) = http.get(path).json()  # the proposal that the chain did not take is gone from sight
    assert (row["on_chain"], row["total"], row["active_at"]) == (True, "150", int(NOW) + 5)
    detail = http.get(f"{path}/1?account={WORKERS[4]}").json()
    (leaf,) = detail["leaves"]
    node = pay_leaf(1, leaf["account"], int(leaf["cumulative"]), keccak256)
    assert verify(bytes.fromhex(detail["root"]), node, [bytes.fromhex(one) for one in leaf["proof"]], keccak256)
    assert len(http.get(f"{path}/1").json()["leaves"]) == 3
    assert code(http.get(f"{path}/2")) == (404, "unknown-root")
    assert code(http.get(f"{path}/1?account={address(5)}")) == (404, "no-leaf")
    assert code(http.get(f"{path}/1?account=0x12")) == (422, "bad-request")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"root": "00" * 32}, (400, "bad-root")),
        ({"total": "149"}, (400, "bad-root")),
        ({"total": "0150"}, (422, "bad-body")),
        ({"epoch": 0}, (422, "bad-body")),
        ({"leaves": []}, (422, "bad-body")),
        (
            {"leaves": [{"account": WORKERS[0], "cumulative": "1"}, {"account": WORKERS[0], "cumulative": "2"}]},
            (400, "bad-root"),
        ),
        (
            {
                "leaves": [
                    {"account": "0x" + "ab" * 20, "cumulative": "1"},
                    {"account": "0x" + "AB" * 20, "cumulative": "2"},
                ]
            },
            (400, "bad-root"),
        ),
        ({"leaves": [{"account": WORKERS[0], "cumulative": str(2**256)}]}, (400, "bad-root")),
        ({"leaves": [{"account": WORKERS[0], "cumulative": 5}]}, (422, "bad-body")),
    ],
)
def test_roots_that_do_not_add_up(http: TestClient, changes: dict[str, Any], expected: tuple[int, str]) -> None:
    assert code(post(http, "/jobs/1/settlements", proposal(**changes))) == expected
    assert http.get("/jobs/1/settlements").json() == []


def test_the_ledger_follows_chain_and_roots(http: TestClient, chain: FakeChain, app: FastAPI) -> None:
    one, two = {WORKERS[0]: 50, SEATS[0]: 30}, {WORKERS[0]: 90, SEATS[0]: 60}
    for epoch, amounts in ((1, one), (2, two)):
        assert post(http, "/jobs/1/settlements", proposal(epoch, amounts)).status_code == 201
    assert post(http, "/jobs/1/settlements", proposal(3, {WORKERS[0]: 100, SEATS[0]: 60})).status_code == 201
    submit_root(chain, app, 1, one, int(NOW) - 5)
    submit_root(chain, app, 2, two, int(NOW) + 1)
    chain.add("JobEscrow", "PayClaimed", jobId=1, account=WORKERS[0], amount=20, cumulative=20)
    market, court, treasury = CONTRACTS["JobMarket"], address(77), address(78)
    case = bytes([5]) * 32
    chain.add(
        "ViolationCourt",
        "ReportFiled",
        caseId=case,
        jobId=1,
        verifier=SEATS[0],
        accused=WORKERS[4],
        slot=4,
        nonce=0,
        kind=2,
        commitmentHash=bytes(32),
        evidenceHash=bytes(32),
        bondLockId=1,
    )
    chain.add("StakeVault", "CreditAdded", account=court, source=market, amount=15)
    chain.add("StakeVault", "CreditAdded", account=treasury, source=market, amount=35)
    chain.add("StakeVault", "Slashed", lockId=14, account=WORKERS[4], controller=market, amount=50)
    chain.add("StakeVault", "AccountBanned", account=WORKERS[4], controller=market)
    chain.add("JobMarket", "SlotTerminated", jobId=1, slot=4, account=WORKERS[4], nonce=0)
    chain.add(
        "ViolationCourt",
        "CaseExecuted",
        caseId=case,
        jobId=1,
        accused=WORKERS[4],
        slashed=50,
        toReporters=15,
        toSubmitter=0,
        toTreasury=35,
    )
    app.state.service.indexer.tick()
    ledger = http.get("/jobs/1/ledger").json()
    assert ledger["problems"] == []
    assert ledger["money"]["promised"] == "150" and ledger["money"]["claimed"] == "20"
    rows = {row["account"]: row for row in ledger["rows"]}
    worker = rows[WORKERS[0]]
    assert [worker[key] for key in ("earned", "claimed", "claimable", "pending")] == ["100", "20", "30", "50"]
    banned = rows[WORKERS[4]]
    assert (banned["slashed"], banned["bonded"], banned["banned"]) == ("50", "150", True)
    assert rows[SUBMITTER]["role"] == "submitter" and rows[SEATS[0]]["role"] == "verifier"
    line = http.get("/jobs/1/workers").json()[4]
    assert (line["state"], line["banned"], line["slashed"]) == ("terminated", True, "50")
    (found,) = http.get("/jobs/1/cases").json()
    assert (found["state"], found["slot"], found["reporters"], found["slashed"]) == ("Executed", 4, 1, "50")


# --- blobs


def test_blobs(http: TestClient) -> None:
    content = bytes(range(256)) * 8000
    digest = blake3(content).hexdigest()
    assert code(http.get(f"/blobs/{digest}")) == (404, "unknown-blob")
    assert http.put(f"/blobs/{digest}", content=content).json() == {"new": True, "digest": digest}
    assert http.put(f"/blobs/{digest}", content=content).json()["new"] is False
    answer = http.get(f"/blobs/{digest}")
    assert answer.content == content
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert "attachment" in answer.headers["content-disposition"]


def test_blobs_that_are_refused_leave_nothing(http: TestClient, app: FastAPI) -> None:
    digest = "00" * 32
    assert code(http.put(f"/blobs/{digest}", content=b"x")) == (400, "wrong-digest")
    assert code(http.put(f"/blobs/{digest}", content=bytes(3_000_001))) == (413, "too-large")
    assert code(http.put(f"/blobs/{digest}", content=(bytes(500_000) for _ in range(7)))) == (413, "too-large")
    assert code(http.put("/blobs/" + "A" * 64, content=b"x")) == (422, "bad-request")
    for number in range(2):
        content = bytes([number]) * 2_000_000
        assert http.put(f"/blobs/{blake3(content).hexdigest()}", content=content).status_code == 201
    content = b"\x09" * 2_000_000
    assert code(http.put(f"/blobs/{blake3(content).hexdigest()}", content=content)) == (507, "full")
    folder: Path = app.state.service.blobs.folder
    assert len(list(folder.iterdir())) == 2 and app.state.service.blobs.total_bytes == 4_000_000


# --- health, page, documents


def test_health_tells_what_is_wrong(http: TestClient, chain: FakeChain, app: FastAPI) -> None:
    health = http.get("/healthz")
    assert health.status_code == 200 and health.json()["indexed_block"] == chain.length - 1
    chain.broken = down()
    app.state.service.indexer.tick()
    health = http.get("/healthz")
    assert health.status_code == 503 and "does not answer" in health.json()["problem"]
    assert http.get("/jobs").status_code == 200  # what is known is still served
    chain.broken = None
    app.state.service.indexer.tick()
    assert http.get("/healthz").status_code == 200


def test_the_page_needs_nothing_from_outside(http: TestClient) -> None:
    page = http.get("/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    for path in Path("sentinel_market/web/static").iterdir():
        text = path.read_text(encoding="utf-8")
        for marker in ("http://", "https://", "//cdn", "@import", "<style", "onclick="):
            assert marker not in text.replace("http://www.w3.org/2000/svg", ""), (path, marker)
        assert http.get(f"/static/{path.name}").status_code == 200


def test_every_route_is_documented(http: TestClient) -> None:
    schema = http.get("/openapi.json").json()
    text = Path("docs/api.md").read_text(encoding="utf-8")
    names = set(schema["components"]["schemas"])
    assert {
        "EndpointAnnouncement",
        "StepMetrics",
        "VerdictBatch",
        "VerdictEvent",
        "SettlementProposal",
        "SeatsRecord",
    } <= names
    for reference in set(json.dumps(schema).split("#/components/schemas/")[1:]):
        assert reference.split('"')[0] in names
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            assert operation.get("description"), (method, path)
            assert f"{method.upper()} {path}" in text, (method, path)
    for name in ("X-Sentinel-Signature", "unsigned", "not-a-seat", "stale", "too-large", "wrong-digest", "bad-root"):
        assert name in text
