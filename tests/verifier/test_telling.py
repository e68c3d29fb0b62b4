"""What a seat tells of screenings and confirmations: its own log in full, the coordinator what people look at."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


class Coordinator:
    def __init__(self) -> None:
        self.posted: list[dto.VerdictEvent] = []

    def post_verdicts(self, job_id: int, events: list[dto.VerdictEvent]) -> None:
        self.posted += events


def teller(events: Any) -> Teller:
    context: Any = SimpleNamespace(account=SEAT, slots={2: SimpleNamespace(nonce=7)})
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
