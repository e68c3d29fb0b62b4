"""Run the coordinator under uvicorn."""

from __future__ import annotations

import socket

import uvicorn

from sentinel_market.coordinator.app import create_app
from sentinel_market.coordinator.settings import CoordinatorSettings
from sentinel_market.errors import UserError


def serve(settings: CoordinatorSettings, host: str, port: int, *, log_level: str = "warning") -> None:
    """Serve until stopped by a signal. UserError when the port is in use."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(
                f"the coordinator cannot listen on {host}:{port}: {error.strerror}; "
                "stop what uses it or choose another port"
            ) from error
    uvicorn.run(create_app(settings), host=host, port=port, log_level=log_level, access_log=False, ws="none")
