"""What a seat tells of screenings and confirmations: its own log in full, the coordinator what people look at."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sentinel_market.domain.cross_audit import CHARGED_AUDITS, Fault, FaultKind, Ledger
from sentinel_market.wire import dto
from tests.support.mesh import ListEvents
from verifier.check import Score, Verdict, VerdictKind
from verifier.check.confirm import Event
from verifier.events import SeatEvents
from verifier.evidence import Happened
from verifier.telling import Teller

SEAT = "0x" + "22" * 20
WHERE = {"step": 3, "stage": 1, "direction": 1, "microbatch": 4}
FLAGGED = Verdict(
    VerdictKind.SUSPECT, "cosine low", (Score("l1", 1, 0, 2), Score("cosine", -900_000, 800_000), Score("sw", 9, 1, 2))
)


OTHER = "0x" + "33" * 20


class Coordinator:
    def __init__(self) -> None:
        self.posted: list[dto.VerdictEvent] = []
        self.records: list[dto.SeatsRecord] = []

    def post_seats_record(self, record: dto.SeatsRecord) -> None:
        self.records.append(record)

    def post_verdicts(self, job_id: int, events: list[dto.VerdictEvent]) -> None:
        self.posted += events


def teller(events: Any) -> Teller:
    seats = [SimpleNamespace(account=account, index=index) for index, account in enumerate((SEAT, OTHER))]
    slots = {2: SimpleNamespace(nonce=7)}
    context: Any = SimpleNamespace(account=SEAT, slots=slots, seats=seats, share_of=lambda index: 4 - index)
    return Teller(context, events)


def test_a_suspect_is_told_with_the_number_that_crossed() -> None:
    events = ListEvents()
    one = teller(events)
    one.verdict(2, FLAGGED, dict(WHERE))
    one.verdict(2, Verdict(VerdictKind.ACCEPT, "fine"), dict(WHERE))
    (told,) = events.verdicts
    assert told == {
        "kind": "suspect", "slot": 2, "nonce": 7, "reason": "cosine low", "driver": SEAT, **WHERE,
        "metric": "cosine", "value_e6": -900_000, "fence_e6": 800_000,
    }  # fmt: skip
    assert [entry["kind"] for entry in one.series_of(2)] == ["SUSPECT", "ACCEPT"]


def test_the_end_of_a_confirmation_is_told_with_its_history_and_is_no_screening() -> None:
    events = ListEvents()
    one = teller(events)
    history = [Happened(Event.SUSPECT, note="x").to_json(), Happened(Event.REPLAY_AGREES, 5).to_json()]
    one.verdict(2, Verdict(VerdictKind.ACCEPT, "the same"), {**WHERE, "history": history})
    (told,) = events.verdicts
    assert (told["kind"], told["verdict"], told["history"], told["driver"]) == ("confirmed", "ACCEPT", history, SEAT)
    assert one.series_of(2) == []


def test_the_coordinator_hears_of_suspects_and_how_they_ended(tmp_path: Path) -> None:
    coordinator: Any = Coordinator()
    events = SeatEvents(tmp_path / "events.jsonl", coordinator, 1)
    one = teller(events)
    suspect, audit = Happened(Event.SUSPECT, note="x").to_json(), Happened(Event.AUDIT).to_json()
    one.verdict(2, FLAGGED, dict(WHERE))
    for kind, history in (
        (VerdictKind.ACCEPT, [suspect]),
        (VerdictKind.INCONCLUSIVE, [suspect]),
        (VerdictKind.VIOLATION, [suspect]),  # the quarantine tells it
        (VerdictKind.ACCEPT, [audit]),  # one frame in a hundred: only in the log
    ):
        one.verdict(2, Verdict(kind, "why"), {**WHERE, "history": history})
    events.close()
    assert [event.kind for event in coordinator.posted] == ["suspect", "cleared", "inconclusive"]
    first = coordinator.posted[0]
    assert (first.metric, first.value_e6, first.fence_e6) == ("cosine", -900_000, 800_000)
    assert (first.direction, first.microbatch, first.nonce) == (1, 4, 7)
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["suspect", *["confirmed"] * 4]


# ---- the record of seats


def late(step: int, word: int = 0, kind: FaultKind = FaultKind.FALSE_ALARM) -> Fault:
    return Fault(kind, OTHER, step, bytes([word]) * 32)


def told_at(one: Teller, events: ListEvents, ledger: Ledger, steps: range) -> list[object]:
    for step in steps:
        ledger.step = step
        one.record(ledger)
    return [told["step"] for told in events.seats]


def test_the_record_is_told_at_new_faults_and_every_ten_steps_and_at_the_end() -> None:
    events, ledger = ListEvents(), Ledger(1, (SEAT, OTHER), (SEAT,))
    one = teller(events)
    one.record(ledger, last=True)
    assert events.seats == [], "no record yet, nothing to tell"
    assert told_at(one, events, ledger, range(13)) == [0, 10]
    ledger.faults[late(12)] = 13
    assert told_at(one, events, ledger, range(13, 24)) == [0, 10, 13, 23]
    one.record(ledger, last=True)
    assert len(events.seats) == 4, "told already"
    ledger.step = 24
    one.record(ledger, last=True)
    assert events.seats[-1]["step"] == 24


def test_the_record_says_what_the_ledger_knows_and_what_it_takes_from_pay() -> None:
    events, ledger = ListEvents(), Ledger(1, (SEAT, OTHER), (SEAT,))
    ledger.step, ledger.drawn, ledger.due, ledger.audited = 9, {SEAT: 5}, {OTHER: 5}, {OTHER: 4}
    ledger.faults |= {late(7, 1): 9, late(6, 2, FaultKind.LAZY_AUDIT): 8}
    teller(events).record(ledger)
    (told,) = events.seats
    clean = {"faults": [], "earlier": {}, "voided": 0, "charged": 0}
    assert told == {
        "kind": "record",
        "step": 9,
        "seats": [
            {"account": SEAT, "drawn": 5, "audits_due": 0, "audits_done": 0, **clean},
            {
                "account": OTHER,
                "drawn": 0,
                "audits_due": 5,
                "audits_done": 4,
                "faults": [
                    {"kind": "LAZY_AUDIT", "step": 6, "recorded": 8, "subject": "02" * 32},
                    {"kind": "FALSE_ALARM", "step": 7, "recorded": 9, "subject": "01" * 32},
                ],
                "earlier": {},
                "voided": 3,
                "charged": CHARGED_AUDITS,
            },
        ],
    }


def test_a_long_record_keeps_the_newest_faults_and_counts_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator: Any = Coordinator()
    events = SeatEvents(tmp_path / "events.jsonl", coordinator, 5)
    ledger = Ledger(5, (SEAT, OTHER), (SEAT,), step=200)
    kinds = (FaultKind.LAZY_AUDIT, FaultKind.FALSE_ALARM, FaultKind.FALSE_ALARM)
    ledger.faults |= {late(at, at, kinds[at % 3]): at + 1 for at in range(dto.MAX_FAULTS + 7)}
    one = teller(events)
    one.record(ledger)
    one.recorded(late(3), 4)
    events.close()
    (posted,) = coordinator.records
    assert (posted.job_id, posted.step) == (5, 200) and posted.issued > 1.7e12
    line = posted.seats[1]
    assert [fault.step for fault in line.faults] == list(range(7, dto.MAX_FAULTS + 7))
    assert line.earlier == {"LAZY_AUDIT": 3, "FALSE_ALARM": 4}
    lines = [json.loads(text) for text in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [text["kind"] for text in lines] == ["record", "fault"], "the log has both"
    assert "could not be told" not in caplog.text
