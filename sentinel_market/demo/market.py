"""The stage of a demo: a local chain, a coordinator, and funded identities, each in a home of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from sentinel_market.chain.client import ChainClient
from sentinel_market.chain.job_market import JobTerms
from sentinel_market.chain.local import Child, LocalChain, require_free_port, start_node
from sentinel_market.chain.network import Network
from sentinel_market.config import PasswordSource, Settings
from sentinel_market.demo.processes import Nursery
from sentinel_market.demo.settings import PASSWORD
from sentinel_market.domain.job_spec import JobSpec
from sentinel_market.domain.quote import QuoteParams
from sentinel_market.errors import Fatal, PeerGone
from sentinel_market.keys.keystore import Identity, Keystore
from sentinel_market.wire.http_client import CoordinatorClient

HOST = "127.0.0.1"
READY_SECONDS = 60.0


@dataclass(frozen=True)
class Participant:
    """One identity with its own home folder: no two processes share a file but the network file."""

    name: str
    home: Path
    identity: Identity

    @property
    def account(self) -> str:
        return self.identity.account


@dataclass
class LocalMarket:
    """Chain, coordinator, people. ``close`` ends everything that was started."""

    directory: Path
    rpc_port: int
    coordinator_port: int
    nursery: Nursery
    network: Network = field(init=False)
    people: dict[str, Participant] = field(default_factory=dict)
    _node: Child | None = None

    def start(self) -> None:
        """Chain up, contracts deployed, coordinator answering. ConfigError names a port in use."""
        require_free_port(self.rpc_port, "the local chain", "--rpc-port")
        require_free_port(self.coordinator_port, "the coordinator", "--port")
        self._node = start_node(self.rpc_port, self.directory / "logs" / "chain.log")
        self.chain = LocalChain([f"http://{HOST}:{self.rpc_port}"])
        self.network = self.chain.deploy(coordinator=f"http://{HOST}:{self.coordinator_port}")
        self.network.save(self.network_file)
        environment = self.environment(self.directory / "homes" / "coordinator")
        child = self.nursery.start(
            "coordinator",
            ["coordinator", "start", "--port", str(self.coordinator_port)],
            environment,
            self.directory / "logs" / "coordinator.log",
        )
        self.coordinator = CoordinatorClient(str(self.network.coordinator), timeout=30.0)
        until = time.monotonic() + READY_SECONDS
        while True:
            try:
                self.coordinator.health()
                break
            except PeerGone as error:
                if child.exit_code is not None or time.monotonic() > until:
                    raise Fatal(f"the coordinator did not start: {error}\n{child.tail()}") from error
            time.sleep(0.1)
        self.reader = ChainClient.connect(self.network)

    @property
    def network_file(self) -> Path:
        return self.directory / "network.json"

    def environment(self, home: Path) -> dict[str, str]:
        return {
            "SENTINEL_HOME": str(home),
            "SENTINEL_NETWORK": str(self.network_file),
            "SENTINEL_PASSWORD": PASSWORD,
        }

    def settings(self, person: Participant) -> Settings:
        return Settings(home=person.home, network_file=self.network_file, password=PasswordSource(value=PASSWORD))

    def close(self) -> None:
        self.nursery.stop()
        if hasattr(self, "coordinator"):
            self.coordinator.close()
        if self._node is not None:
            self._node.stop()
            self._node = None

    # ---- people

    def enroll(self, names: Sequence[str]) -> None:
        """Keys for everybody, each in a home of its own."""

        def one(name: str) -> Participant:
            home = self.directory / "homes" / name
            return Participant(name, home, Keystore(home / "keys").create(name, PASSWORD, light=True))

        with ThreadPoolExecutor(4) as pool:
            for person in pool.map(one, names):
                self.people[person.name] = person

    def fund(self, tokens: dict[str, int]) -> None:
        """Gas for every key, test tokens for every account."""
        people = [self.people[name] for name in tokens]
        gas = [address for p in people for address in (p.identity.account, p.identity.hot)]
        self.chain.give(self.network, gas=gas, tokens={self.people[n].account: v for n, v in tokens.items()})

    def client(self, name: str) -> ChainClient:
        """Sends as the cold account."""
        person = self.people[name]
        key = Keystore(person.home / "keys").open_cold(name, PASSWORD)
        return ChainClient.connect(self.network, key=key, journal_dir=self.settings(person).journal_dir)

    def stake(self, deposits: dict[str, int]) -> None:
        """Deposit and register the hot key, as `sentinel stake deposit` does."""

        def one(item: tuple[str, int]) -> None:
            name, amount = item
            client = self.client(name)
            client.vault.deposit(amount)
            client.vault.register_signer(Keystore(self.people[name].home / "keys").open_hot(name, PASSWORD))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(one, deposits.items()))

    def post(self, name: str, spec: JobSpec) -> int:
        """Spec to the coordinator, budget into the escrow; returns the job id."""
        client = self.client(name)
        self.coordinator.put_spec(spec)
        client.token.ensure_allowance(self.network.contracts["JobEscrow"], spec.market.budget)
        terms = JobTerms.of(spec, now=client.now(), params_version=client.params.latest())
        _, job_id = client.market.post_job(terms, "")
        assert job_id is not None, "a client with a key is never dry"
        return job_id

    def quote_params(self) -> QuoteParams:
        return self.reader.params.get().quote_params()

    def verb(self, name: str, *arguments: str) -> tuple[int, str]:
        """Run a `sentinel` verb in a participant's home; (exit code, output)."""
        from sentinel_market.cli.main import cli

        result = CliRunner().invoke(cli, list(arguments), env=self.environment(self.people[name].home))
        return result.exit_code, result.output

    def balances(self) -> dict[str, dict[str, Any]]:
        """Stake and wallet of everybody, from the chain."""
        found = {}
        for name, person in self.people.items():
            stake = self.reader.vault.stake_of(person.account)
            found[name] = {
                "stake": stake.total,
                "bonded": stake.bonded,
                "unbonding": stake.unbonding,
                "credits": stake.credits,
                "banned": self.reader.vault.is_banned(person.account),
                "wallet": self.reader.token.balance_of(person.account),
            }
        return found
