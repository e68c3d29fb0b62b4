"""Answers to questions about one job: list, detail, workers, settlements, ledger."""

from __future__ import annotations

from typing import Any

from sentinel_market.coordinator.service import Refusal, Service, money_view
from sentinel_market.domain.job_spec import JobSpec
from sentinel_market.store import UnitOfWork
from sentinel_market.wire import dto


def _summary(unit: UnitOfWork, row: dict[str, Any], spec: JobSpec | None) -> dict[str, Any]:
    return {
        "job_id": row["job_id"],
        "name": spec.name if spec else None,
        "submitter": row["submitter"],
        "state": row["state"],
        "budget": row["budget"],
        "spec_digest": row["spec_digest"],
        "last_step": unit.metrics.last_step(row["job_id"]),
        "steps": spec.training.steps if spec else None,
    }


def job_list(service: Service, before: int | None, limit: int) -> dto.JobList:
    """A page of jobs, newest first."""
    with service.store.read() as unit:
        rows = unit.jobs.page(before, limit)
        jobs = [dto.JobSummary(**_summary(unit, row, service.spec_of(unit, row))) for row in rows]
    return dto.JobList(jobs=jobs, next_before=jobs[-1].job_id if len(jobs) == limit else None)


def job_view(service: Service, job_id: int) -> dto.JobView:
    """One job."""
    money = service.money(job_id)
    with service.store.read() as unit:
        row = service.job_row(unit, job_id)
        spec = service.spec_of(unit, row)
        people = service.roster(unit, job_id)
        return dto.JobView(
            **_summary(unit, row, spec),
            uri=row["uri"],
            posted_block=row["posted_block"],
            stages=spec.parallelism.stages if spec else None,
            replicas=spec.parallelism.replicas if spec else None,
            quorum=spec.seats.quorum if spec else None,
            policy=spec.verification.policy if spec else None,
            slots_claimed=people.slots_claimed(),
            seats=[
                dto.SeatView(seat=one.seat, account=one.account, hot_key=one.hot_key, released=one.released)
                for _, one in sorted(people.seats.items())
            ],
            money=money,
        )


def stage_and_replica(slot: int, spec: JobSpec | None) -> tuple[int | None, int | None]:
    """(stage, replica) of a slot; unknown without the spec."""
    return divmod(slot, spec.parallelism.replicas) if spec else (None, None)


def workers(service: Service, job_id: int) -> list[dto.WorkerView]:
    """Every assignment of a job, by slot and nonce."""
    ledger, lock = service.ledger()
    with service.store.read() as unit:
        spec = service.spec_of(unit, service.job_row(unit, job_id))
        people = service.roster(unit, job_id)
        counts = unit.verdicts.counts(job_id)
        quarantines = unit.quarantines.of_job(job_id)
    with lock:
        banned = {one.account.lower() for one in ledger.accounts.values() if one.banned}
    last_nonce: dict[int, int] = {}
    for slot, nonce in people.assignments:
        last_nonce[slot] = max(nonce, last_nonce.get(slot, 0))
    lines = []
    for (slot, nonce), held in sorted(people.assignments.items()):
        own = [row for row in quarantines if (row["slot"], row["nonce"]) == (slot, nonce)]
        stage, replica = stage_and_replica(slot, spec)
        current = last_nonce[slot] == nonce
        lines.append(
            dto.WorkerView(
                slot=slot,
                stage=stage,
                replica=replica,
                nonce=nonce,
                account=held.account,
                hot_key=held.hot_key,
                state=held.state,
                suspects=counts.get((slot, "suspect"), 0) if current else 0,
                violations=counts.get((slot, "violation"), 0) if current else 0,
                quarantined_at_step=min((row["step"] for row in own), default=None),
                quarantine_seats=len(own),
                quarantine_reason=own[0]["reason"] if own else None,
                banned=held.account.lower() in banned,
                slashed=str(held.slashed),
            )
        )
    return lines


def cases(service: Service, job_id: int) -> list[dto.CaseView]:
    """The court's cases on a job, in the order of their first event."""
    with service.store.read() as unit:
        service.job_row(unit, job_id)
        people = service.roster(unit, job_id)
    return [
        dto.CaseView(
            case_id=one.case_id,
            slot=one.slot,
            nonce=one.nonce,
            accused=one.accused,
            state=one.state,
            reporters=one.reporters,
            slashed=str(one.slashed),
            tx=one.tx,
        )
        for one in people.cases.values()
    ]


def _on_chain(unit: UnitOfWork, job_id: int) -> dict[int, tuple[str, int]]:
    """Epoch -> (root, active from second) of the roots that the escrow took."""
    events = unit.events.of_job(job_id, ["SettlementSubmitted"])
    return {
        int(one["args"]["epoch"]): (str(one["args"]["root"]).removeprefix("0x"), int(one["args"]["activeAt"]))
        for one in events
    }


def _settlement(row: dict[str, Any], taken: dict[int, tuple[str, int]]) -> dict[str, Any]:
    root, active_at = taken.get(row["epoch"], ("", 0))
    on_chain = root == row["root"]
    return {
        "epoch": row["epoch"],
        "root": row["root"],
        "total": row["total"],
        "step_record_hash": row["step_record_hash"],
        "verifier": row["verifier"],
        "on_chain": on_chain,
        "active_at": active_at if on_chain else None,
    }


def _shown(rows: list[dict[str, Any]], taken: dict[int, tuple[str, int]]) -> list[dict[str, Any]]:
    """Once the chain has taken a root for an epoch, other proposals for it are not shown."""
    return [row for row in rows if row["epoch"] not in taken or taken[row["epoch"]][0] == row["root"]]


def settlements(service: Service, job_id: int) -> list[dto.SettlementView]:
    """All roots of a job, without leaves."""
    with service.store.read() as unit:
        service.job_row(unit, job_id)
        taken = _on_chain(unit, job_id)
        rows = _shown(unit.settlements.of_job(job_id), taken)
    return [dto.SettlementView(**_settlement(row, taken)) for row in rows]


def settlement(service: Service, job_id: int, epoch: int, account: str | None) -> dto.SettlementDetail:
    """The root of an epoch, that on chain if there is one, with leaves and proofs."""
    with service.store.read() as unit:
        service.job_row(unit, job_id)
        taken = _on_chain(unit, job_id)
        rows = [row for row in _shown(unit.settlements.of_job(job_id), taken) if row["epoch"] == epoch]
        if not rows:
            raise Refusal(404, "unknown-root", f"the leaves of epoch {epoch} of job {job_id} are not stored here")
        leaves = unit.settlements.leaves(job_id, epoch, rows[0]["root"], account)
    if account is not None and not leaves:
        raise Refusal(404, "no-leaf", f"{account} has no leaf in epoch {epoch} of job {job_id}")
    return dto.SettlementDetail(
        **_settlement(rows[0], taken),
        leaves=[
            dto.ProofView(account=one["account"], cumulative=one["cumulative"], proof=one["proof"]) for one in leaves
        ],
    )


def ledger(service: Service, job_id: int) -> dto.LedgerView:
    """Who earned, was promised, drew and lost what."""
    book, lock = service.ledger()
    now = int(service.settings.clock())
    with service.store.read() as unit:
        row = service.job_row(unit, job_id)
        people = service.roster(unit, job_id)
        taken = _on_chain(unit, job_id)
        roots = unit.settlements.of_job(job_id)
        block = unit.events.cursor()
        active_epoch = max((epoch for epoch, (_, active_at) in taken.items() if active_at <= now), default=0)

        def leaves(epoch: int, root: str) -> dict[str, int]:
            return {one["account"]: int(one["cumulative"]) for one in unit.settlements.leaves(job_id, epoch, root)}

        active = leaves(active_epoch, taken[active_epoch][0]) if active_epoch else {}
        promised = leaves(max(taken), taken[max(taken)][0]) if taken else {}
        proposed = leaves(roots[-1]["epoch"], roots[-1]["root"]) if roots else {}
    roles = people.accounts()
    for account in proposed:
        if not any(account == known.lower() for known in roles):
            roles[account] = "former"
    roles.setdefault(row["submitter"], "submitter")
    lines = []
    with lock:
        for account, role in roles.items():
            key = account.lower()
            line = book.row(
                job_id,
                account,
                earned=proposed.get(key, 0),
                active=active.get(key, 0),
                promised=promised.get(key, 0),
            )
            lines.append(
                dto.LedgerLine(
                    account=account,
                    role=role,
                    earned=str(line.earned),
                    pending=str(line.pending),
                    claimable=str(line.claimable),
                    claimed=str(line.claimed),
                    slashed=str(line.slashed),
                    bonded=str(line.bonded),
                    unbonding=str(line.unbonding),
                    credits=str(line.credits),
                    banned=line.banned,
                )
            )
        money = money_view(book.job(job_id))
        problems = book.problems()
    lines.sort(key=lambda one: (one.role, one.account.lower()))
    return dto.LedgerView(job_id=job_id, block=block, rows=lines, money=money, problems=problems)
