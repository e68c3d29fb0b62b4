"""Decoded refusals, without a chain."""

from __future__ import annotations

from typing import Any

import pytest
from eth_abi.abi import encode

from sentinel_market.chain.abis import CONTRACTS, artifact, canonical_type, signature
from sentinel_market.chain.eip712 import keccak256
from sentinel_market.chain.reverts import SENTENCES, decode, error_names, rejected

TOKEN = 10**18
ALICE = "0x19E7E376E7C213B7E7e7e46cc70A5dD086DAff2A"


def revert_data(name: str, *values: Any) -> bytes:
    item = next(i for c in CONTRACTS for i in artifact(c).items("error") if i["name"] == name)
    types = [canonical_type(part) for part in item["inputs"]]
    return keccak256(signature(item).encode())[:4] + encode(types, values)


def test_every_sentence_belongs_to_an_error() -> None:
    assert set(SENTENCES) <= error_names()


@pytest.mark.parametrize("name", sorted(error_names()))
def test_every_error_of_every_contract_becomes_words(name: str) -> None:
    item = next(i for c in CONTRACTS for i in artifact(c).items("error") if i["name"] == name)
    samples = {"address": ALICE, "string": "slotStake", "bytes32": b"\x01" * 32, "bytes4": b"\x01" * 4, "bool": True}
    values = [samples.get(canonical_type(part), 3) for part in item["inputs"]]
    error = rejected(revert_data(name, *values), intent="try something")
    assert str(error).startswith("try something: ")
    assert error.name == name
    assert error.exit_code == 3
    assert set(error.values) == {part["name"] for part in item["inputs"]}


def test_numbers_are_in_the_message() -> None:
    error = rejected(revert_data("InsufficientFreeStake", ALICE, 100 * TOKEN, 40 * TOKEN))
    assert str(error) == (
        f"{ALICE} has 40 tokens of free stake and needs 100 tokens: deposit 60 tokens more (`sentinel stake deposit`)"
    )
    assert error.values == {"account": ALICE, "needed": 100 * TOKEN, "had": 40 * TOKEN}
    assert "in 15 s" in str(rejected(revert_data("NotMatured", 1_800_000_015, 1_800_000_000)))


def test_other_reverts() -> None:
    plain = bytes.fromhex("08c379a0") + encode(["string"], ["no way"])
    assert str(rejected(plain, intent="x")) == "x: no way"
    panic = bytes.fromhex("4e487b71") + encode(["uint256"], [0x11])
    assert "overflow" in str(rejected(panic))
    assert "0xdeadbeef" in str(rejected(bytes.fromhex("deadbeef")))
    assert "no reason" in str(rejected(b""))
    assert rejected(b"", fallback="out of gas").name == "Reverted"


@pytest.mark.parametrize("data", [b"", b"\x01", bytes.fromhex("08c379a0"), bytes.fromhex("08c379a0") + b"\xff" * 64])
def test_damaged_data_never_raises(data: bytes) -> None:
    assert decode(data) is None
    assert str(rejected(data))


def test_a_truncated_custom_error_is_unknown() -> None:
    assert decode(revert_data("NotMatured", 1, 2)[:20]) is None
