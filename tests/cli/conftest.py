"""A coordinator on a socket over a fake chain, for verbs that need nothing else."""

from __future__ import annotations

from tests.coordinator.conftest import app, chain, settings
from tests.coordinator.test_client import client, url

__all__ = ["app", "chain", "client", "settings", "url"]
