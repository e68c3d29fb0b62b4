"""The network file: which chain, where, and at which addresses our contracts are."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sentinel_market.chain.abis import CONTRACTS
from sentinel_market.chain.eip712 import Domain
from sentinel_market.errors import ConfigError

DOMAIN_VERSION = "1"


@dataclass(frozen=True, kw_only=True)
class Network:
    """One deployment of the contracts."""

    rpc: tuple[str, ...]
    chain_id: int
    contracts: Mapping[str, str]
    deployed_block: int = 0
    coordinator: str | None = None
    confirmations: int = 0
    local: bool = False
    """A throwaway chain on this machine: test token, faucet, weak keystores are allowed."""
    pids: Mapping[str, int] = field(default_factory=dict)
    """Processes of a local network, for ``net down``."""

    def domain(self, contract: str) -> Domain:
        """The EIP-712 domain of a contract; messages name theirs in ``Typed.CONTRACT``."""
        return Domain(contract, DOMAIN_VERSION, self.chain_id, self.contracts[contract])

    def save(self, path: Path) -> None:
        """Write atomically, so that a reader never sees half a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_text(json.dumps({**asdict(self), "rpc": list(self.rpc)}, indent=2) + "\n", encoding="utf-8")
        partial.replace(path)


def load_network(path: Path) -> Network:
    """Read a network file; ConfigError lists everything that is wrong with it."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"there is no network file {path}; start a local network with `sentinel net up`, or set "
            "SENTINEL_NETWORK to the file of the network that you want to join"
        ) from None
    except (OSError, ValueError) as exc:
        raise ConfigError(f"cannot read the network file {path}: {exc}") from None
    problems = _problems(raw)
    if problems:
        raise ConfigError(f"the network file {path} is wrong: {'; '.join(problems)}")
    return Network(
        rpc=tuple(raw["rpc"]),
        chain_id=raw["chain_id"],
        contracts=dict(raw["contracts"]),
        deployed_block=raw.get("deployed_block", 0),
        coordinator=raw.get("coordinator"),
        confirmations=raw.get("confirmations", 0),
        local=raw.get("local", False),
        pids=dict(raw.get("pids", {})),
    )


def _problems(raw: Any) -> list[str]:
    if not isinstance(raw, dict):
        return ["it is not a JSON object"]
    found = []
    rpc = raw.get("rpc")
    if not isinstance(rpc, list) or not rpc or not all(isinstance(url, str) for url in rpc):
        found.append("rpc must be a list of URLs")
    for key in ("chain_id", "deployed_block", "confirmations"):
        value = raw.get(key, None if key == "chain_id" else 0)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            found.append(f"{key} must be a whole number")
    contracts = raw.get("contracts")
    if not isinstance(contracts, dict):
        found.append("contracts must name the address of each contract")
    else:
        for name in CONTRACTS:
            if not re.fullmatch(r"0x[0-9a-fA-F]{40}", str(contracts.get(name))):
                found.append(f"contracts.{name} must be an address")
    return found
