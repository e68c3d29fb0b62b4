"""A real local chain for tests: one Hardhat node a session, contracts deployed, identities with stake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sentinel_market.chain.client import ChainClient
from sentinel_market.chain.local import HOST, Child, LocalChain, free_port, start_node
from sentinel_market.chain.network import Network
from sentinel_market.chain.signing import HotKey

TOKEN = 10**18


@dataclass(frozen=True)
class Actor:
    """An identity with a client for each of its keys."""

    cold_key: HotKey
    hot_key: HotKey
    cold: ChainClient
    hot: ChainClient

    @property
    def account(self) -> str:
        return self.cold_key.address


@dataclass(frozen=True)
class LocalNet:
    """A running local chain."""

    chain: LocalChain
    network: Network
    node: Child

    def client(self, key: HotKey | None = None, journal_dir: Path | None = None) -> ChainClient:
        return ChainClient.connect(self.network, key=key, journal_dir=journal_dir)

    def actor(self, seed: int, tokens: int = 0, stake: int = 0) -> Actor:
        """Keys of ``seed`` with gas, tokens for the account, ``stake`` deposited and hot key registered."""
        cold_key = HotKey((2 * seed + 1).to_bytes(31, "big").rjust(32, b"\x01"))
        hot_key = HotKey((2 * seed + 2).to_bytes(31, "big").rjust(32, b"\x01"))
        self.chain.give(
            self.network,
            gas=[cold_key.address, hot_key.address],
            tokens={cold_key.address: tokens + stake} if tokens + stake else {},
        )
        actor = Actor(cold_key, hot_key, self.client(cold_key), self.client(hot_key))
        if stake:
            actor.cold.vault.deposit(stake)
            actor.cold.vault.register_signer(hot_key)
        return actor


@contextmanager
def local_net(folder: Path, port: int | None = None) -> Iterator[LocalNet]:
    """Start a node, deploy, and stop it at the end."""
    port = port or free_port()
    with start_node(port, folder / "node.log") as node:
        chain = LocalChain([f"http://{HOST}:{port}"])
        yield LocalNet(chain, chain.deploy(), node)
