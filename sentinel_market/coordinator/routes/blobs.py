"""Blobs by BLAKE3: checkpoints, evidence. Content-addressed, so they need no signature; sizes are limited."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse

from sentinel_market.coordinator.routes.common import Digest, TheService, documented
from sentinel_market.coordinator.service import Refusal, Service
from sentinel_market.store import BlobTooLarge, StoreFull, WrongDigest
from sentinel_market.wire import dto

router = APIRouter(tags=["blobs"])
_BUFFER: Final = 1024 * 1024


@router.put("/blobs/{digest}", status_code=201, openapi_extra=documented(None, media="application/octet-stream"))
async def put_blob(digest: Digest, request: Request, service: TheService) -> dto.Stored:
    """Store a blob. Refused when its BLAKE3 is not ``digest``; visible only when it is whole."""
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared[:20]) > service.blobs.max_bytes:
        raise Refusal(
            413, "too-large", f"a blob may have {service.blobs.max_bytes} bytes, this one has {declared[:20]}"
        )
    if service.blobs.has(digest):
        return dto.Stored(new=False, digest=digest)
    try:
        await _receive(digest, request, service)
    except BlobTooLarge as error:
        raise Refusal(413, "too-large", str(error)) from None
    except StoreFull as error:
        raise Refusal(507, "full", str(error)) from None
    except WrongDigest as error:
        raise Refusal(400, "wrong-digest", str(error)) from None
    return dto.Stored(new=True, digest=digest)


async def _receive(digest: str, request: Request, service: Service) -> None:
    writer = await run_in_threadpool(service.blobs.writer, digest)
    try:
        buffer = bytearray()
        async for chunk in request.stream():
            buffer += chunk
            if len(buffer) >= _BUFFER:
                await run_in_threadpool(writer.write, bytes(buffer))
                buffer.clear()
        await run_in_threadpool(writer.write, bytes(buffer))
        size = await run_in_threadpool(writer.commit)
    finally:
        writer.abort()

    def record() -> None:
        with service.store.write() as unit:
            unit.blobs.put(digest, size, int(service.settings.clock()))

    await run_in_threadpool(record)


@router.get("/blobs/{digest}", response_class=FileResponse)
def get_blob(digest: Digest, service: TheService) -> Response:
    """The bytes of a blob. Check that their BLAKE3 is the digest asked for."""
    if not service.blobs.has(digest):
        raise Refusal(404, "unknown-blob", f"no blob {digest} is stored here")
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "ETag": f'"{digest}"'}
    return FileResponse(
        service.blobs.path(digest), media_type="application/octet-stream", filename=f"{digest}.bin", headers=headers
    )
