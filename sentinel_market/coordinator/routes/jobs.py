"""Job specs, jobs, and what is read about a job."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from sentinel_market.coordinator import views
from sentinel_market.coordinator.limits import read_body
from sentinel_market.coordinator.routes.common import Digest, JobIdPath, TheService, documented
from sentinel_market.coordinator.service import merge_steps
from sentinel_market.domain.job_spec import MAX_SPEC_BYTES
from sentinel_market.wire import dto

router = APIRouter()
Limit = Annotated[int, Query(ge=1, le=1000)]
Account = Annotated[str | None, Query(pattern=r"^0x[0-9a-fA-F]{40}$")]


@router.post("/specs", status_code=201, openapi_extra=documented(None, media="application/json"), tags=["specs"])
async def post_spec(request: Request, service: TheService) -> dto.Stored:
    """Store a job spec: the canonical JSON. It is kept under its SHA-256, which must be the job's ``specDigest``."""
    body = await read_body(request, MAX_SPEC_BYTES)
    return await run_in_threadpool(service.put_spec, body)


@router.get(
    "/specs/{digest}", tags=["specs"], response_class=Response, responses={200: {"content": {"application/json": {}}}}
)
def get_spec(digest: Digest, service: TheService) -> Response:
    """The canonical JSON of a job spec. Check that its SHA-256 is the digest asked for."""
    return Response(service.get_spec(digest), media_type="application/json")


@router.get("/jobs", tags=["jobs"])
def get_jobs(
    service: TheService, before: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None, limit: Limit = 50
) -> dto.JobList:
    """The jobs on chain, newest first."""
    return views.job_list(service, before, limit)


@router.get("/jobs/{job_id}", tags=["jobs"])
def get_job(job_id: JobIdPath, service: TheService) -> dto.JobView:
    """One job: state, seats, money."""
    return views.job_view(service, job_id)


@router.get(
    "/jobs/{job_id}/spec",
    tags=["jobs"],
    response_class=Response,
    responses={200: {"content": {"application/json": {}}}},
)
def get_job_spec(job_id: JobIdPath, service: TheService) -> Response:
    """The canonical JSON of the job's spec: the one whose digest is on chain."""
    with service.store.read() as unit:
        digest = service.job_row(unit, job_id)["spec_digest"]
    return Response(service.get_spec(digest), media_type="application/json")


@router.get("/jobs/{job_id}/workers", tags=["jobs"])
def get_workers(job_id: JobIdPath, service: TheService) -> list[dto.WorkerView]:
    """Every assignment of a slot, past ones included: state, quarantine, ban."""
    return views.workers(service, job_id)


@router.get("/jobs/{job_id}/cases", tags=["jobs"])
def get_cases(job_id: JobIdPath, service: TheService) -> list[dto.CaseView]:
    """The court's cases on the job."""
    return views.cases(service, job_id)


@router.get("/jobs/{job_id}/ledger", tags=["money"])
def get_ledger(job_id: JobIdPath, service: TheService) -> dto.LedgerView:
    """Who earned, was promised, drew and lost what; replayed from the chain's events."""
    return views.ledger(service, job_id)


@router.get("/jobs/{job_id}/settlements", tags=["money"])
def get_settlements(job_id: JobIdPath, service: TheService) -> list[dto.SettlementView]:
    """The settlement roots of the job, without leaves."""
    return views.settlements(service, job_id)


@router.get("/jobs/{job_id}/settlements/{epoch}", tags=["money"])
def get_settlement(job_id: JobIdPath, epoch: int, service: TheService, account: Account = None) -> dto.SettlementDetail:
    """The root of an epoch with leaves and proofs, or those of one account: what ``JobEscrow.claim`` takes."""
    return views.settlement(service, job_id, epoch, account)


@router.get("/jobs/{job_id}/endpoints", tags=["discovery"])
def get_endpoints(job_id: JobIdPath, service: TheService) -> list[dto.EndpointView]:
    """Where the seats' relays listen, each with the seat's signature."""
    with service.store.read() as unit:
        service.job_row(unit, job_id)
        rows = unit.endpoints.of_job(job_id)
    return [dto.EndpointView(**{**row, "signature": "0x" + row["signature"].hex()}) for row in rows]


@router.get("/jobs/{job_id}/metrics", tags=["progress"])
def get_metrics(
    job_id: JobIdPath, service: TheService, since: Annotated[int, Query(ge=0, le=2**62)] = 0, limit: Limit = 1000
) -> dto.MetricsView:
    """Steps from ``since`` on, merged over the seats. What seats say of losses is for display only."""
    with service.store.read() as unit:
        service.job_row(unit, job_id)
        rows = unit.metrics.since(job_id, since, limit * 64)
    steps = merge_steps(rows)[:limit]
    return dto.MetricsView(steps=steps, next_since=steps[-1].step + 1 if steps else since)


@router.get("/jobs/{job_id}/verdicts", tags=["progress"])
def get_verdicts(
    job_id: JobIdPath,
    service: TheService,
    after: Annotated[int | None, Query(ge=0, le=2**62)] = None,
    limit: Limit = 200,
) -> list[dto.VerdictView]:
    """Verdict events: those with an id above ``after``, oldest first; without ``after`` the newest, newest first."""
    with service.store.read() as unit:
        spec = service.spec_of(unit, service.job_row(unit, job_id))
        rows = unit.verdicts.newest(job_id, limit) if after is None else unit.verdicts.after(job_id, after, limit)
    found = []
    for row in rows:
        stage, replica = views.stage_and_replica(row["slot"], spec)
        event = dto.VerdictEvent(**row["body"])
        found.append(dto.VerdictView(id=row["id"], verifier=row["verifier"], stage=stage, replica=replica, event=event))
    return found
