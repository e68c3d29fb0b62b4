"""What seats write. Every write is signed; the body is read within its limit and checked before it is parsed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel

from sentinel_market.coordinator.limits import parse, read_body
from sentinel_market.coordinator.roster import SeatState
from sentinel_market.coordinator.routes.common import JobIdPath, TheService, documented
from sentinel_market.coordinator.service import Service
from sentinel_market.wire import dto

router = APIRouter()
_M = TypeVar("_M", bound=BaseModel)
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


@router.post(
    "/jobs/{job_id}/settlements", status_code=201, openapi_extra=documented(dto.SettlementProposal), tags=["money"]
)
async def post_settlement(job_id: JobIdPath, request: Request, service: TheService) -> dto.Stored:
    """Publish the leaves of a settlement root. Signed with ``X-Sentinel-Signature``; the root is recomputed."""
    return await _signed(
        request, service, job_id, dto.SettlementProposal, Service.put_settlement, dto.MAX_SETTLEMENT_BYTES
    )
