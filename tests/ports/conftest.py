"""Fixtures of the adapters that the suites run against: a real coordinator, a real chain."""

from __future__ import annotations

from tests.chain.conftest import net
from tests.coordinator.conftest import app, chain, settings
from tests.coordinator.test_client import client, url

__all__ = ["app", "chain", "client", "net", "settings", "url"]
