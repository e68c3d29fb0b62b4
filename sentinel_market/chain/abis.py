"""The contracts' ABIs as exported by ``scripts/export_abi.mjs``; read once, when first needed."""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

from sentinel_market.chain.eip712 import keccak256
from sentinel_market.chain.signing import checksum_address

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


@dataclass(frozen=True)
class FunctionCodec:
    """Calldata and answers of one function. Structs come out as named tuples, addresses checksummed.

    web3's own contract objects walk the ABI at every call, which costs a millisecond a value; a dozen agents
    that look at their slots several times a second would spend a core on that.
    """

    selector: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shape: tuple[Callable[[Any], Any], ...]

    def encode(self, args: Sequence[Any]) -> bytes:
        """Calldata."""
        from eth_abi.abi import encode

        return self.selector + encode(self.inputs, args)

    def decode(self, data: bytes) -> Any:
        """The answer: the value itself when there is one, else a tuple."""
        from eth_abi.abi import decode

        values = decode(self.outputs, data)
        shaped = tuple(shape(value) for shape, value in zip(self.shape, values, strict=True))
        return shaped[0] if len(shaped) == 1 else shaped


@cache
def function(contract: str, name: str, num_args: int) -> FunctionCodec:
    """The codec of a function; overloads differ in the number of their arguments."""
    found = [
        item
        for item in artifact(contract).items("function")
        if item["name"] == name and len(item["inputs"]) == num_args
    ]
    if len(found) != 1:
        raise LookupError(f"{contract} has {len(found)} functions {name} with {num_args} arguments")
    item = found[0]
    return FunctionCodec(
        selector=keccak256(signature(item).encode())[:4],
        inputs=tuple(canonical_type(part) for part in item["inputs"]),
        outputs=tuple(canonical_type(part) for part in item["outputs"]),
        shape=tuple(_shape(part) for part in item["outputs"]),
    )


def _shape(part: dict[str, Any]) -> Callable[[Any], Any]:
    """How a decoded value is turned into what we hand out."""
    kind: str = part["type"]
    if kind.endswith("[]"):
        inner = _shape({**part, "type": kind[:-2]})
        return lambda values: [inner(value) for value in values]
    if kind == "tuple":
        row = namedtuple("row", [member["name"] for member in part["components"]])  # type: ignore[misc]
        shapes = [_shape(member) for member in part["components"]]
        return lambda values: row(*[shape(value) for shape, value in zip(shapes, values, strict=True)])
    if kind == "address":
        return lambda value: checksum_address(bytes.fromhex(value[2:]))
    return lambda value: value


def _read(file: str) -> dict[str, Any]:
    text = (resources.files("sentinel_market.chain") / "abi" / file).read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content
