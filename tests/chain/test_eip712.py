"""Digests and signatures against eth_account's golden vectors."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from sentinel_market.chain.eip712 import Domain, digest, encode_type, struct_hash, type_hash
from sentinel_market.chain.signing import CURVE_ORDER, HotKey, recover
from sentinel_market.domain import messages
from sentinel_market.errors import ProtocolError

GOLDEN = json.loads((Path(__file__).parent.parent / "vectors" / "eip712.json").read_text())
KEY = HotKey(b"\x11" * 32)
CLASSES = {c.__name__: c for c in messages.Typed.__subclasses__() if c.__module__ == messages.__name__}


def parse(kind: str, text: str) -> Any:
    if kind.startswith("uint"):
        return int(text)
    return bytes.fromhex(text[2:]) if kind == "bytes32" else text


def domain_of(name: str) -> Domain:
    d = GOLDEN["domains"][name]
    return Domain(d["name"], d["version"], d["chainId"], d["verifyingContract"])


def cases() -> list[tuple[str, dict[str, Any]]]:
    return [(name, case) for name, vector in GOLDEN["vectors"].items() for case in vector["cases"]]


def test_the_vectors_cover_every_message() -> None:
    assert set(GOLDEN["vectors"]) == set(CLASSES)


@pytest.mark.parametrize("name", sorted(GOLDEN["domains"]))
def test_separator(name: str) -> None:
    assert "0x" + domain_of(name).separator.hex() == GOLDEN["domains"][name]["separator"]


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_type(name: str) -> None:
    vector = GOLDEN["vectors"][name]
    assert encode_type(CLASSES[name]) == vector["encodeType"]
    assert "0x" + type_hash(CLASSES[name]).hex() == vector["typeHash"]


@pytest.mark.parametrize(("name", "case"), cases())
def test_digest_signature_and_recovery(name: str, case: dict[str, Any]) -> None:
    cls = CLASSES[name]
    message = cls(*(parse(kind, case["message"][member]) for kind, member in cls.MEMBERS))
    value = digest(domain_of(cls.CONTRACT), message)
    assert "0x" + struct_hash(message).hex() == case["structHash"]
    assert "0x" + value.hex() == case["digest"]
    assert "0x" + KEY.sign(value).hex() == case["signature"]
    assert recover(value, bytes.fromhex(case["signature"][2:])) == GOLDEN["signer"] == KEY.address


def test_members_out_of_range_are_refused_not_truncated() -> None:
    done = messages.DriverDone(1, 2, 3, KEY.address, bytes(32))
    for bad in (
        messages.DriverDone(1, 2**64, 3, KEY.address, bytes(32)),
        messages.DriverDone(1, -1, 3, KEY.address, bytes(32)),
        messages.DriverDone(1, 2, 2**32, KEY.address, bytes(32)),
        messages.DriverDone(1, 2, 3, KEY.address[:-2], bytes(32)),
        messages.DriverDone(1, 2, 3, KEY.address, bytes(31)),
    ):
        with pytest.raises(ValueError, match=r"fit|address|bytes32"):
            struct_hash(bad)
    assert len(struct_hash(done)) == 32


def test_only_the_canonical_signature_is_accepted() -> None:
    value = bytes(range(32))
    good = KEY.sign(value)
    s = int.from_bytes(good[32:64], "big")
    high = good[:32] + (CURVE_ORDER - s).to_bytes(32, "big") + bytes([55 - good[64]])
    for bad in (
        b"",
        good[:64],
        good + b"\0",
        good[:64] + b"\0",
        good[:64] + b"\x01",
        high,
        bytes(64) + b"\x1b",
    ):
        with pytest.raises(ProtocolError) as caught:
            recover(value, bad)
        assert caught.value.code == "signature"
    assert recover(value, good) == KEY.address
    assert recover(bytes(32), good) != KEY.address


def test_the_secret_is_not_shown_or_pickled() -> None:
    assert "11111111" not in repr(KEY) + str(KEY)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(KEY)
    with pytest.raises(ValueError, match="private key") as caught:
        HotKey(b"\x22" * 31)
    assert "2222" not in str(caught.value)
