"""What seats write, and their public record. Every write is signed; the body is read within its limit and checked
before it is parsed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import APIRouter, Path, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel

from sentinel_market.coordinator import standings
from sentinel_market.coordinator.limits import parse, read_body
from sentinel_market.coordinator.roster import SeatState
from sentinel_market.coordinator.routes.common import JobIdPath, TheService, documented
from sentinel_market.coordinator.service import Service
from sentinel_market.wire import dto

router = APIRouter()
_M = TypeVar("_M", bound=BaseModel)
Account = Annotated[str, Path(pattern=r"^0x[0-9a-fA-F]{40}$", description="an account: 0x and 40 hex digits")]
Write = Callable[[Service, int, SeatState, _M], dto.Stored]


async def _signed(
    request: Request, service: Service, job_id: int, model: type[_M], write: Write[_M], limit: int
) -> dto.Stored:
    body = await read_body(request, limit)
    signature = request.headers.get(dto.SIGNATURE_HEADER)

    def work() -> dto.Stored:
        seat = service.signer(job_id, request.url.path, body, signature)
        return write(service, job_id, seat, parse(model, body))

    return await run_in_threadpool(work)


@router.post(
    "/jobs/{job_id}/endpoints", status_code=201, openapi_extra=documented(dto.EndpointAnnouncement), tags=["discovery"]
)
async def post_endpoint(job_id: JobIdPath, request: Request, service: TheService) -> dto.Stored:
    """Announce where a seat's relay listens: EIP-712 ``Endpoint`` signed by its hot key; the newest ``issued`` wins."""
    body = await read_body(request, dto.MAX_JSON_BYTES)
    announcement = parse(dto.EndpointAnnouncement, body)
    return await run_in_threadpool(service.announce, job_id, announcement)


@router.post("/jobs/{job_id}/metrics", status_code=201, openapi_extra=documented(dto.StepMetrics), tags=["progress"])
async def post_metrics(job_id: JobIdPath, request: Request, service: TheService) -> dto.Stored:
    """Publish a step as one seat saw it. Signed with ``X-Sentinel-Signature``; the newest ``issued`` wins."""
    return await _signed(request, service, job_id, dto.StepMetrics, Service.put_metrics, dto.MAX_JSON_BYTES)


@router.post("/jobs/{job_id}/verdicts", status_code=201, openapi_extra=documented(dto.VerdictBatch), tags=["progress"])
async def post_verdicts(job_id: JobIdPath, request: Request, service: TheService) -> dto.Stored:
    """Publish verdict events of one seat. Signed with ``X-Sentinel-Signature``; a repeated event changes nothing."""
    return await _signed(request, service, job_id, dto.VerdictBatch, Service.put_verdicts, dto.MAX_JSON_BYTES)


@router.post("/jobs/{job_id}/seats/record", status_code=201, openapi_extra=documented(dto.SeatsRecord), tags=["seats"])
async def post_seats_record(job_id: JobIdPath, request: Request, service: TheService) -> dto.Stored:
    """Publish what the records say of every seat. Signed with ``X-Sentinel-Signature``; the newest step wins."""
    return await _signed(request, service, job_id, dto.SeatsRecord, Service.put_seats_record, dto.MAX_RECORD_BYTES)


@router.get("/jobs/{job_id}/seats/record", tags=["seats"])
def get_seats_record(job_id: JobIdPath, service: TheService) -> dto.JobRecordView:
    """Draws, audits, faults and their effect on pay, of every seat of a job, with how many seats say so."""
    return standings.job_record(service, job_id)


@router.get("/seats/{account}/record", tags=["seats"])
def get_account_record(account: Account, service: TheService) -> dto.AccountRecordView:
    """The same of one account, over the newest 100 jobs in which it took a seat."""
    return standings.account_record(service, account)


@router.post(
    "/jobs/{job_id}/settlements", status_code=201, openapi_extra=documented(dto.SettlementProposal), tags=["money"]
)
async def post_settlement(job_id: JobIdPath, request: Request, service: TheService) -> dto.Stored:
    """Publish the leaves of a settlement root. Signed with ``X-Sentinel-Signature``; the root is recomputed."""
    return await _signed(
        request, service, job_id, dto.SettlementProposal, Service.put_settlement, dto.MAX_SETTLEMENT_BYTES
    )
