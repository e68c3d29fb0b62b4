"""The FastAPI application: routes, refusals as JSON, the indexer in the background, the page."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from pydantic.json_schema import models_json_schema
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sentinel_market import __version__, web
from sentinel_market.coordinator.indexer import Indexer
from sentinel_market.coordinator.routes import blobs, jobs, seats
from sentinel_market.coordinator.routes.common import REF, ErrorAnswer
from sentinel_market.coordinator.service import Refusal, Service
from sentinel_market.coordinator.settings import CoordinatorSettings
from sentinel_market.store import BlobStore, open_store
from sentinel_market.wire import dto

_LOG: Final = logging.getLogger(__name__)
_STATIC: Final = Path(web.__file__).parent / "static"
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_CODES: Final = {404: "not-found", 405: "method-not-allowed"}
_BODIES: Final = (dto.EndpointAnnouncement, dto.StepMetrics, dto.VerdictBatch, dto.SettlementProposal, dto.SeatsRecord)


def create_app(settings: CoordinatorSettings) -> FastAPI:
    """Open the store and build the application. The indexer runs while the application does."""
    store = open_store(settings.database)
    folder = BlobStore(
        settings.blob_dir, max_bytes=settings.max_blob_bytes, max_total_bytes=settings.max_total_blob_bytes
    )
    service = Service(settings, store, folder)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(_index(service.indexer, settings.poll_seconds)) if service.indexer else None
        yield
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        store.close()

    app = FastAPI(
        title="Sentinel Market coordinator",
        version=__version__,
        description="A convenience that nobody has to trust: everything here can be checked against the chain, a "
        "signature or a digest. Amounts are decimal strings of base units, digests lower-case hex.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses={"4XX": {"model": ErrorAnswer, "description": "refused"}},
    )
    app.state.service = service
    for module in (jobs, seats, blobs):
        app.include_router(module.router)
    _add_page(app, service)
    _add_errors(app)
    app.add_middleware(_SecureHeaders)
    generate = app.openapi
    app.openapi = lambda: _with_bodies(generate())  # type: ignore[method-assign]
    return app


async def _index(indexer: Indexer, poll_seconds: float) -> None:
    """Tick until cancelled, or until the indexer has stopped for good (``/healthz`` says why)."""
    while not indexer.failed:
        before = indexer.problem
        try:
            await run_in_threadpool(indexer.tick)
        except Exception:  # noqa: BLE001  # it is over, and /healthz shows it; the store still serves
            _LOG.exception("the indexer has stopped")
            return
        if indexer.problem and indexer.problem != before:
            _LOG.warning("the chain cannot be read, trying again: %s", indexer.problem)
        await asyncio.sleep(poll_seconds)


class _SecureHeaders:
    """Adds the headers to every answer. Plain ASGI: the framework's own middleware costs more than most routes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, sending if scope["type"] == "http" else send)


def _error(status: int, code: str, message: str) -> JSONResponse:
    return JSONResponse({"error": {"code": code, "message": message}}, status_code=status)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(Refusal)
    async def refused(_: Request, error: Refusal) -> JSONResponse:
        return _error(error.status, error.code, error.message)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        found = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:5]]
        return _error(422, "bad-request", "; ".join(found)[:1000])

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        code = _CODES.get(error.status_code, "refused")
        return _error(error.status_code, code, f"{request.method} {request.url.path[:200]}: {error.detail}")


def _add_page(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", tags=["health"], responses={503: {"model": dto.Health}})
    def healthz(response: Response) -> dto.Health:
        """Whether the coordinator is of use: status 503 and a ``problem`` when not."""
        health = service.health()
        response.status_code = 200 if health.ok else 503
        return health

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(_STATIC / "index.html")

    app.mount("/static", StaticFiles(directory=_STATIC), name="static")


def _with_bodies(schema: dict[str, Any]) -> dict[str, Any]:
    """Add the models that routes read by themselves, so that their references lead somewhere."""
    _, definitions = models_json_schema([(model, "validation") for model in _BODIES], ref_template=REF)
    schema.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
    return schema
