"""The contracts' ABIs as exported by ``scripts/export_abi.mjs``; read once, when first needed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

CONTRACTS: Final = (
    "MarketAccess",
    "TestToken",
    "MarketParams",
    "StakeVault",
    "JobMarket",
    "JobEscrow",
    "ViolationCourt",
)


@dataclass(frozen=True)
class Artifact:
    """One contract: its ABI and, where it was compiled, its creation code."""

    name: str
    abi: list[dict[str, Any]]
    bytecode: str

    def items(self, kind: str) -> list[dict[str, Any]]:
        """ABI entries of a kind: function, event, error, constructor."""
        return [item for item in self.abi if item["type"] == kind]


@cache
def artifact(name: str) -> Artifact:
    """The artifact of one contract."""
    content = _read(f"{name}.json")
    return Artifact(name, content["abi"], content["bytecode"])


@cache
def deployment_plan() -> dict[str, Any]:
    """``deployment.json``: the order, arguments, calls and local parameters of a deployment."""
    return _read("deployment.json")


def signature(item: dict[str, Any]) -> str:
    """``transfer(address,uint256)``: what selectors and topics are hashes of."""
    return f"{item['name']}({','.join(canonical_type(part) for part in item.get('inputs', []))})"


def canonical_type(part: dict[str, Any]) -> str:
    """The ABI type of an input or output, structs written out as tuples."""
    kind: str = part["type"]
    if not kind.startswith("tuple"):
        return kind
    inner = ",".join(canonical_type(member) for member in part["components"])
    return f"({inner}){kind.removeprefix('tuple')}"


def _read(file: str) -> dict[str, Any]:
    text = (resources.files("sentinel_market.chain") / "abi" / file).read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content
