"""EIP-712 digests computed directly.

``eth_account`` needs about 3 ms a digest because it walks a JSON description of the types; a relay signs
or checks hundreds of messages a second. Every message that we sign is a flat struct of static members
(``uintN``, ``bytes32``, ``address``) and, in one case, a ``string``, so an encoder can be compiled once a
class. Equality with ``eth_account`` is pinned by ``tests/vectors/eip712.json``, which we never write here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any

from Crypto.Hash import keccak as _keccak

from sentinel_market.domain.messages import Typed

_new_keccak = _keccak.new


def keccak256(data: bytes) -> bytes:
    """Keccak-256 (the one of Ethereum, not SHA3-256)."""
    return _new_keccak(digest_bits=256, data=data).digest()


_DOMAIN_TYPE_HASH = keccak256(b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)")


@dataclass(frozen=True)
class Domain:
    """The signing domain of one contract on one chain: it stops the replay of a signature elsewhere."""

    name: str
    version: str
    chain_id: int
    verifying_contract: str

    @cached_property
    def separator(self) -> bytes:
        """The domain separator, as ``EIP712._domainSeparatorV4()`` of the contract returns it."""
        return keccak256(
            _DOMAIN_TYPE_HASH
            + keccak256(self.name.encode())
            + keccak256(self.version.encode())
            + _uint(256)(self.chain_id)
            + _address(self.verifying_contract)
        )

    @cached_property
    def _prefix(self) -> bytes:
        return b"\x19\x01" + self.separator


def _uint(bits: int) -> Callable[[int], bytes]:
    limit = 1 << bits

    def encode(value: int) -> bytes:
        if not 0 <= value < limit:
            raise ValueError(f"{value} does not fit uint{bits}")
        return value.to_bytes(32, "big")

    return encode


def _bytes32(value: bytes) -> bytes:
    if len(value) != 32:
        raise ValueError(f"a bytes32 member has {len(value)} bytes")
    return bytes(value)


@lru_cache(maxsize=4096)
def _address(value: str) -> bytes:
    if len(value) != 42 or not value.startswith("0x"):
        raise ValueError(f"{value!r} is not an address")
    return bytes(12) + bytes.fromhex(value[2:])


def _string(value: str) -> bytes:
    return keccak256(value.encode())


def _encoder(solidity_type: str) -> Callable[[Any], bytes]:
    if solidity_type.startswith("uint"):
        return _uint(int(solidity_type[4:]))
    encoders: dict[str, Callable[[Any], bytes]] = {
        "bytes32": _bytes32,
        "address": _address,
        "string": _string,
    }
    if solidity_type not in encoders:
        raise TypeError(f"no EIP-712 encoder for member type {solidity_type!r}")
    return encoders[solidity_type]


def encode_type(cls: type[Typed]) -> str:
    """``"Settlement(uint256 jobId,...)"``: what the type hash is taken of."""
    return f"{cls.__name__}({','.join(f'{kind} {name}' for kind, name in cls.MEMBERS)})"


def type_hash(cls: type[Typed]) -> bytes:
    """The type hash of a message class, equal to the ``*_TYPEHASH`` constant of its contract."""
    return keccak256(encode_type(cls).encode())


@dataclass(frozen=True)
class _Plan:
    """How a message class is encoded: compiled once a class."""

    type_hash: bytes
    members: Callable[[Any], tuple[Any, ...]]
    encoders: tuple[Callable[[Any], bytes], ...]


_plans: dict[type[Typed], _Plan] = {}


def _plan(cls: type[Typed]) -> _Plan:
    plan = _plans.get(cls)
    if plan is None:
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]  # each is a dataclass
        if len(names) != len(cls.MEMBERS):
            raise TypeError(f"{cls.__name__} has {len(names)} fields and {len(cls.MEMBERS)} members")
        encoders = tuple(_encoder(kind) for kind, _ in cls.MEMBERS)
        plan = _plans[cls] = _Plan(type_hash(cls), attrgetter(*names), encoders)
    return plan


def struct_hash(message: Typed) -> bytes:
    """``hashStruct(message)``. A member out of range raises ValueError; it is never truncated."""
    plan = _plan(type(message))
    parts = [plan.type_hash]
    for encode, value in zip(plan.encoders, plan.members(message), strict=True):
        parts.append(encode(value))
    return keccak256(b"".join(parts))


def digest(domain: Domain, message: Typed) -> bytes:
    """The 32 bytes that are signed: ``keccak(0x1901 || separator || hashStruct)``."""
    return keccak256(domain._prefix + struct_hash(message))
