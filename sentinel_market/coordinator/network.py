"""A coordinator for a network file: the chain client as the source of events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sentinel_market.chain.client import ChainClient
from sentinel_market.coordinator.settings import CoordinatorSettings


class ChainEvents:
    """The ``EventSource`` over a chain client."""

    def __init__(self, client: ChainClient) -> None:
        self._client = client

    def head(self) -> int:
        """Number of the newest block."""
        return self._client.block_number()

    def fetch_events(self, from_block: int, to_block: int) -> Iterable[Mapping[str, Any]]:
        """All events of our contracts in [from_block, to_block]."""
        for event in self._client.fetch_events(from_block, to_block):
            yield {
                "contract": event.contract,
                "name": event.name,
                "args": event.args,
                "block": event.block,
                "log_index": event.log_index,
                "tx": event.tx_hash,
            }


def settings_for(client: ChainClient, folder: Path) -> CoordinatorSettings:
    """Settings of a coordinator of the client's network, with database and blobs in ``folder``."""
    network = client.network
    return CoordinatorSettings(
        database=folder / "coordinator.db",
        blob_dir=folder / "blobs",
        chain_id=network.chain_id,
        contracts=network.contracts,
        events=ChainEvents(client),
        first_block=network.deployed_block,
        confirmations=client.confirmations,
    )
