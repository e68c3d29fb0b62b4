"""One real Hardhat node for all chain tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.localnet import LocalNet, local_net


@pytest.fixture(scope="session")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNet]:
    with local_net(tmp_path_factory.mktemp("chain")) as running:
        yield running
