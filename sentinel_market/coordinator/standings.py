"""The public record of seats: what is refused of it, and how the documents of several seats become one answer.

Honest seats keep the same ledger, so their documents of one step are equal; who differs is shown as who differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sentinel_market.coordinator.roster import Roster
from sentinel_market.coordinator.service import Refusal, Service
from sentinel_market.store import UnitOfWork
from sentinel_market.wire import dto

MAX_ACCOUNT_JOBS: Final = 100
"""Jobs that one answer about an account looks at, the newest."""
_SUMS: Final = ("drawn", "audits_due", "audits_done", "voided", "charged")
_FaultKey = tuple[int, int, str, str]
"""(recorded, step, kind, subject): the order in which they are shown."""


def job_record(service: Service, job_id: int) -> dto.JobRecordView:
    """Every seat of a job."""
    with service.store.read() as unit:
        service.job_row(unit, job_id)
        return _of_job(service, unit, job_id)


def account_record(service: Service, account: str) -> dto.AccountRecordView:
    """One account over the newest jobs in which it took a seat; a 404 when it never did."""
    with service.store.read() as unit:
        jobs = unit.events.jobs_with_seat(account)
        if not jobs:
            raise Refusal(404, "unknown-account", f"{account} never took a seat on this chain, as indexed")
        views = [_of_job(service, unit, job_id) for job_id in jobs[:MAX_ACCOUNT_JOBS]]
    lines = [line for view in views for line in [_line(view, account)] if line is not None]
    faults: Counter[str] = Counter()
    for line in lines:
        faults.update(line.faults)
    return dto.AccountRecordView(
        account=account,
        **{name: sum(getattr(line, name) for line in lines if line.agreed) for name in _SUMS},
        faults=dict(sorted(faults.items())),
        disputed=sum(line.disputed for line in lines),
        jobs=lines,
        jobs_left_out=len(jobs[MAX_ACCOUNT_JOBS:]),
    )


def _of_job(service: Service, unit: UnitOfWork, job_id: int) -> dto.JobRecordView:
    people = service.roster(unit, job_id)
    # Whoever took over a seat speaks for it, nobody before it: one voice a seat.
    holders = {one.account.lower() for one in people.seats.values()}
    bodies = [row["body"] for row in unit.seat_records.of_job(job_id) if row["verifier"] in holders]
    return merged(job_id, people, bodies)


def merged(job_id: int, people: Roster, bodies: Sequence[Mapping[str, Any]]) -> dto.JobRecordView:
    """One answer from the newest document of each reporter."""
    steps = sorted((int(body["step"]) for body in bodies), reverse=True)
    step = steps[len(steps) // 2] if steps else None
    current = [body for body in bodies if body["step"] == step]
    accounts = [one.account for _, one in sorted(people.seats.items())] if bodies else []
    views = (_seat(account, bodies, current) for account in accounts)
    return dto.JobRecordView(
        job_id=job_id,
        step=step,
        num_seats=len(people.seats),
        reporters=len(bodies),
        documents=len(current),
        seats=[view for view in views if view is not None],
    )


def _standing(body: Mapping[str, Any], account: str) -> Mapping[str, Any] | None:
    return next((one for one in body["seats"] if one["account"].lower() == account.lower()), None)


def _keys(standing: Mapping[str, Any]) -> list[_FaultKey]:
    return [(one["recorded"], one["step"], one["kind"], one["subject"]) for one in standing["faults"]]


def _seat(
    account: str, bodies: Sequence[Mapping[str, Any]], current: Sequence[Mapping[str, Any]]
) -> dto.SeatRecordView | None:
    found = [one for body in current for one in [_standing(body, account)] if one is not None]
    if not found:
        return None
    alike: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for one in found:
        alike.setdefault(_content(one), []).append(one)
    # A tie goes to the document with fewer faults: what as many deny as say is not held against anybody.
    content = min(alike, key=lambda one: (-len(alike[one]), _num_faults(alike[one][0]), one))
    chosen = alike[content][0]
    said: Counter[_FaultKey] = Counter()
    for body in bodies:
        said.update(_keys(_standing(body, account) or {"faults": []}))
    return dto.SeatRecordView(
        account=account,
        agree=len(alike[content]),
        **{name: chosen[name] for name in _SUMS},
        faults=[
            dto.FaultView(kind=kind, step=step, recorded=recorded, subject=subject, said_by=num)
            for (recorded, step, kind, subject), num in sorted(said.items())
        ],
        earlier=dict(chosen["earlier"]),
    )


def _content(standing: Mapping[str, Any]) -> tuple[Any, ...]:
    numbers = tuple(standing[name] for name in _SUMS)
    return numbers, tuple(sorted(_keys(standing))), tuple(sorted(standing["earlier"].items()))


def _num_faults(standing: Mapping[str, Any]) -> int:
    return len(standing["faults"]) + sum(int(num) for num in standing["earlier"].values())


def _line(view: dto.JobRecordView, account: str) -> dto.AccountJobView | None:
    seat = next((one for one in view.seats if one.account.lower() == account.lower()), None)
    if seat is None or view.step is None:
        return None
    agreed = 2 * seat.agree >= view.reporters
    faults = Counter(seat.earlier if agreed else {})
    faults.update(one.kind for one in seat.faults if 2 * one.said_by > view.reporters)
    return dto.AccountJobView(
        job_id=view.job_id,
        step=view.step,
        reporters=view.reporters,
        documents=view.documents,
        agree=seat.agree,
        agreed=agreed,
        **{name: getattr(seat, name) for name in _SUMS},
        faults=dict(sorted(faults.items())),
        disputed=sum(2 * one.said_by <= view.reporters for one in seat.faults),
    )
