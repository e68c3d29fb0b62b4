"""Reading bodies within limits, before anything is parsed or checked."""

from __future__ import annotations

from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from sentinel_market.coordinator.service import Refusal

_M = TypeVar("_M", bound=BaseModel)


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body; refused as soon as it is over ``limit`` bytes, whatever it said of its length."""
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared[:20]) > limit:
        raise Refusal(413, "too-large", f"the body has {declared[:20]} bytes, the limit is {limit}")
    parts: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise Refusal(413, "too-large", f"the body is over the limit of {limit} bytes")
        parts.append(chunk)
    return b"".join(parts)


def parse(model: type[_M], body: bytes) -> _M:
    """The body as a model; every problem with it in one refusal."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        found = [f"{'.'.join(map(str, one['loc'])) or 'body'}: {one['msg']}" for one in error.errors()[:5]]
        raise Refusal(422, "bad-body", "; ".join(found)[:1000]) from None
