"""What routes share: how they find the service, and how their bodies are documented."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Path, Request
from pydantic import BaseModel

from sentinel_market.coordinator.service import Service


def _service(request: Request) -> Service:
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


TheService = Annotated[Service, Depends(_service)]
JobIdPath = Annotated[int, Path(ge=1, le=2**63 - 1, description="id of the job on chain")]
Digest = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="64 lower-case hex digits")]
REF = "#/components/schemas/{model}"


class ErrorBody(BaseModel):
    """Why a request was refused: a stable code, and words for a person."""

    code: str
    message: str


class ErrorAnswer(BaseModel):
    """The body of every answer of status 400 and above."""

    error: ErrorBody


def documented(model: type[BaseModel] | None, *, media: str = "application/json") -> dict[str, Any]:
    """``openapi_extra`` of a route that reads its own body."""
    schema = {"$ref": REF.format(model=model.__name__)} if model else {"type": "string", "format": "binary"}
    return {"requestBody": {"required": True, "content": {media: {"schema": schema}}}}
