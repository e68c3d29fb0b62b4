"""The coordinator: a convenience that nobody has to trust. ``create_app`` builds it, ``serve`` runs it."""

from __future__ import annotations

from sentinel_market.coordinator.app import create_app
from sentinel_market.coordinator.indexer import EventSource
from sentinel_market.coordinator.serve import serve
from sentinel_market.coordinator.settings import CoordinatorSettings

__all__ = ["CoordinatorSettings", "EventSource", "create_app", "serve"]
