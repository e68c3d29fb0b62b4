"""Event logs as typed values, and a cursor over them: what indexers and agents consume."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hexbytes import HexBytes
from web3 import Web3
from web3._utils.events import get_event_data

from sentinel_market.chain.abis import artifact, signature
from sentinel_market.chain.eip712 import keccak256

if TYPE_CHECKING:
    from sentinel_market.chain.client import ChainClient

MAX_RANGE: Final = 2_000
"""Blocks asked for at once; public endpoints refuse long ranges."""


@dataclass(frozen=True, slots=True)
class ChainEvent:
    """One event. ``args`` are ints, bool, bytes, checksummed addresses, strings; structs are dicts."""

    name: str
    contract: str
    block: int
    log_index: int
    tx_hash: str
    args: dict[str, Any]
    block_hash: str = ""


class LogReader:
    """Decodes the logs of a fixed set of contracts; what others emit is passed over."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._names = {address: name for name, address in addresses.items()}
        self._codec = Web3().codec
        self._events: dict[tuple[str, bytes], dict[str, Any]] = {}
        for name in addresses:
            for item in artifact(name).items("event"):
                self._events[name, keccak256(signature(item).encode())] = item

    def fetch(self, w3: Web3, from_block: int, to_block: int) -> list[ChainEvent]:
        """Events in [from_block, to_block], in chain order."""
        found: list[ChainEvent] = []
        for start in range(from_block, to_block + 1, MAX_RANGE):
            logs = w3.eth.get_logs(
                {
                    "address": [Web3.to_checksum_address(address) for address in self._names],
                    "fromBlock": start,
                    "toBlock": min(to_block, start + MAX_RANGE - 1),
                }
            )
            found += self.decode(logs)
        return sorted(found, key=lambda event: (event.block, event.log_index))

    def decode(self, logs: Iterable[Any]) -> list[ChainEvent]:
        """Decode raw logs."""
        found = []
        for entry in logs:
            name = self._names.get(entry["address"])
            topics = entry["topics"]
            item = self._events.get((name, bytes(topics[0]))) if name and topics else None
            if name is None or item is None:
                continue
            data = get_event_data(self._codec, item, entry)
            found.append(
                ChainEvent(
                    name=item["name"],
                    contract=name,
                    block=int(entry["blockNumber"]),
                    log_index=int(entry["logIndex"]),
                    tx_hash="0x" + bytes(entry["transactionHash"]).hex(),
                    args={key: _plain(value) for key, value in data["args"].items()},
                    block_hash="0x" + bytes(entry["blockHash"]).hex(),
                )
            )
        return found


def _plain(value: Any) -> Any:
    if isinstance(value, (HexBytes, bytes)):
        return bytes(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


class EventCursor:
    """Walks the chain once: each event is returned exactly once, when its block is deep enough.

    ``next_block`` is all the state there is; save it in the transaction that saves what the events caused.
    """

    def __init__(self, client: ChainClient, next_block: int | None = None, max_blocks: int = MAX_RANGE) -> None:
        self._client = client
        self.next_block = client.network.deployed_block if next_block is None else next_block
        self._max_blocks = max_blocks

    def poll(self) -> list[ChainEvent]:
        """The next events; empty when there is no deep enough block yet. Advances ``next_block``."""
        end = min(self._client.confirmed_block(), self.next_block + self._max_blocks - 1)
        if end < self.next_block:
            return []
        events = self._client.fetch_events(self.next_block, end)
        self.next_block = end + 1
        return events


class EventFeed:
    """The chain as the coordinator's indexer reads it (``coordinator.indexer.EventSource``)."""

    def __init__(self, client: ChainClient) -> None:
        self._client = client

    def head(self) -> int:
        """Number of the newest block."""
        return self._client.block_number()

    def fetch_events(self, from_block: int, to_block: int) -> list[dict[str, Any]]:
        """Events of our contracts in [from_block, to_block], as plain mappings."""
        return [
            {
                "contract": event.contract,
                "name": event.name,
                "args": event.args,
                "block": event.block,
                "log_index": event.log_index,
                "tx": event.tx_hash,
            }
            for event in self._client.fetch_events(from_block, to_block)
        ]
