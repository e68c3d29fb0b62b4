"""JSON-RPC with fallback: several endpoints of one chain, tried in turn; web3's provider interface outside."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import requests
from web3.providers.base import JSONBaseProvider
from web3.types import RPCEndpoint, RPCResponse

from sentinel_market.errors import ChainUnavailable

TIMEOUT_SECONDS: Final = 10.0
_PAUSES: Final = (0.1, 0.3, 0.8)
"""Seconds between rounds over all endpoints."""


class RevertError(Exception):
    """A call reverted; ``data`` is what the contract returned (empty when the node does not say)."""

    def __init__(self, data: bytes, message: str) -> None:
        self.data = data
        super().__init__(message)


class RpcError(ChainUnavailable):
    """The node answered with an error that is no revert: it is behind, overloaded, or knows no such method."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


class FallbackProvider(JSONBaseProvider):
    """Sends each request to the endpoint that answered last, else to the next one.

    Repeating a request is safe: reads have no effect, and a signed transaction is the same transaction
    wherever and however often it is sent.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        timeout: float = TIMEOUT_SECONDS,
        pauses: Sequence[float] = _PAUSES,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__()
        if not urls:
            raise ValueError("no RPC endpoint given")
        self.urls = tuple(urls)
        self._timeout = timeout
        self._pauses = tuple(pauses)
        self._sleep = sleep
        self._current = 0
        self._local = threading.local()

    def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        """One request; RevertError and RpcError for the node's refusals, ChainUnavailable when none answers."""
        body = self.encode_rpc_request(method, params)
        failures: dict[str, str] = {}
        for pause in (*self._pauses, None):
            for offset in range(len(self.urls)):
                index = (self._current + offset) % len(self.urls)
                try:
                    response = self._post(self.urls[index], body)
                except (requests.RequestException, ValueError) as exc:
                    failures[self.urls[index]] = _short(exc)
                    continue
                self._current = index
                _raise_error(cast(dict[str, Any], response))
                return response
            if pause is not None:
                self._sleep(pause)
        shown = "; ".join(f"{url}: {why}" for url, why in failures.items())
        raise ChainUnavailable(f"no RPC endpoint answers ({shown})")

    def _post(self, url: str, body: bytes) -> RPCResponse:
        session = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = requests.Session()
            session.trust_env = False  # a proxy must not see, or break, the way to a local node
        answer = session.post(url, data=body, headers={"Content-Type": "application/json"}, timeout=self._timeout)
        if answer.status_code >= 500 or answer.status_code == 429:
            answer.raise_for_status()
        return self.decode_rpc_response(answer.content)


def _short(exc: Exception) -> str:
    text = str(exc)
    for sign in ("Connection refused", "timed out", "Name or service not known"):
        if sign in text:
            return sign.lower()
    return text.splitlines()[0][:160] if text else type(exc).__name__


def _raise_error(response: dict[str, Any]) -> None:
    error = response.get("error")
    if error is None:
        return
    if isinstance(error, str):
        raise RpcError(0, error)
    message = str(error.get("message", ""))
    data = error.get("data")
    while isinstance(data, dict):
        data = data.get("data")
    if isinstance(data, str) and data.startswith("0x"):
        raise RevertError(bytes.fromhex(data[2:]), message)
    if error.get("code") == 3 or "revert" in message.lower():
        raise RevertError(b"", message)
    raise RpcError(int(error.get("code", 0)), message)
