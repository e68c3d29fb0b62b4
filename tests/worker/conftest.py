"""Workers that dial fake seats; each is stopped after its test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.worker.rig import Rig
from worker import session as session_module


@pytest.fixture
def rig_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Rig]]:
    monkeypatch.setattr(session_module, "RECONNECT_SECONDS", 0.02)
    rigs: list[Rig] = []

    def make(**options: int) -> Rig:
        rigs.append(Rig(tmp_path, **options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()
        assert rig.crash is None, f"the worker died of {rig.crash!r}"


@pytest.fixture
def rig(rig_of: Callable[..., Rig]) -> Rig:
    """The last stage, with two open sessions."""
    return rig_of().ready()
