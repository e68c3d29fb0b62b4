"""Seats, slots, bans and cases of a job, folded from its events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

CASE_STATES: Final = {
    "CaseOpened": "Collecting",
    "CaseQuorum": "Appealable",
    "CaseUpheld": "Upheld",
    "CaseExecuted": "Executed",
    "CaseExpired": "Expired",
}


@dataclass(slots=True)
class SeatState:
    """A verifier seat; ``hot_key`` is the snapshot that signs for it."""

    seat: int
    account: str
    hot_key: str
    released: bool = False


@dataclass(slots=True)
class Assignment:
    """A worker on a slot under one nonce."""

    slot: int
    nonce: int
    account: str
    hot_key: str
    state: str = "claimed"
    slashed: int = 0
    """Base units, by cases of this job."""


@dataclass(slots=True)
class CaseLine:
    """A case of the court."""

    case_id: str
    slot: int = 0
    nonce: int = 0
    accused: str = ""
    state: str = "Collecting"
    reporters: int = 0
    slashed: int = 0
    tx: str = ""


@dataclass(slots=True)
class Roster:
    """Everybody in a job."""

    seats: dict[int, SeatState] = field(default_factory=dict)
    assignments: dict[tuple[int, int], Assignment] = field(default_factory=dict)
    cases: dict[str, CaseLine] = field(default_factory=dict)

    def seat_of_key(self, hot_key: str) -> SeatState | None:
        """The seat that a hot key signs for, None when it holds none (any more)."""
        wanted = hot_key.lower()
        return next((one for one in self.seats.values() if one.hot_key.lower() == wanted and not one.released), None)

    def accounts(self) -> dict[str, str]:
        """Role by account: ``verifier`` or ``worker``."""
        roles = {one.account: "worker" for one in self.assignments.values()}
        return roles | {one.account: "verifier" for one in self.seats.values()}

    def slots_claimed(self) -> int:
        """Slots held right now."""
        return sum(one.state in ("claimed", "exiting") for one in self.assignments.values())


def roster(events: Iterable[Mapping[str, Any]]) -> Roster:
    """Fold the events of one job, in chain order."""
    result = Roster()
    for event in events:
        name, args = event["name"], event["args"]
        if name == "SeatTaken":
            seat = int(args["seat"])
            result.seats[seat] = SeatState(seat, args["account"], args["hotKey"])
        elif name == "SeatReleased" and int(args["seat"]) in result.seats:
            result.seats[int(args["seat"])].released = True
        elif name == "SlotClaimed":
            slot, nonce = int(args["slot"]), int(args["nonce"])
            result.assignments[slot, nonce] = Assignment(slot, nonce, args["account"], args["hotKey"])
        elif name in ("SlotExited", "SlotReleased", "SlotTerminated"):
            held = result.assignments.get((int(args["slot"]), int(args["nonce"])))
            if held is not None:
                held.state = {"SlotExited": "exiting", "SlotReleased": "released"}.get(name, "terminated")
        elif "caseId" in args:
            _case(result, event)
    return result


def _case(result: Roster, event: Mapping[str, Any]) -> None:
    name, args = event["name"], event["args"]
    case = result.cases.setdefault(args["caseId"], CaseLine(args["caseId"]))
    case.tx = event["tx"]
    case.accused = args.get("accused", case.accused)
    if name == "ReportFiled":
        case.slot, case.nonce = int(args["slot"]), int(args["nonce"])
        case.reporters += 1
    case.state = CASE_STATES.get(name, case.state)
    if name == "CaseExecuted":
        case.slashed = int(args["slashed"])
        held = result.assignments.get((case.slot, case.nonce))
        if held is not None:
            held.slashed += case.slashed
