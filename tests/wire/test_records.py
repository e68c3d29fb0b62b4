"""A step record counts when a quorum of distinct seats signed exactly it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from sentinel_market.chain.eip712 import Domain, digest
from sentinel_market.chain.signing import HotKey, recover
from sentinel_market.domain import step_record
from sentinel_market.domain.messages import StepRecord
from sentinel_market.errors import ProtocolError
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.records import check_quorum, from_record, to_record

JOB = 3
DOMAIN = Domain("JobMarket", "1", 31337, "0x" + "22" * 20)
KEYS = {f"0x{index:040x}": HotKey(hashlib.sha256(b"seat%d" % index).digest()) for index in range(1, 4)}
HOT = {account: key.address for account, key in KEYS.items()}
ACCOUNTS = sorted(KEYS)
STRANGER = HotKey(hashlib.sha256(b"stranger").digest())


def word(n: int) -> bytes:
    return n.to_bytes(32, "big")


def signed(signers: list[str] | None = None) -> pb.SignedRecord:
    weights, states = [word(10), word(11)], [word(20), word(21)]
    record = StepRecord(
        JOB, 5, 0, word(1), word(2), word(3), word(4), step_record.aggregates_digest(weights, states), word(6), word(7)
    )
    signatures = {a: KEYS[a].sign(digest(DOMAIN, record)) for a in (ACCOUNTS if signers is None else signers)}
    return from_record(record, weights, states, signatures)


def check(record: pb.SignedRecord, quorum: int = 2) -> StepRecord:
    return check_quorum(JOB, record, lambda r, s: recover(digest(DOMAIN, r), s), HOT, quorum)


def refused(record: pb.SignedRecord, quorum: int = 2) -> str:
    with pytest.raises(ProtocolError) as caught:
        check(record, quorum)
    return caught.value.code


def test_a_quorum_of_seats_makes_a_record() -> None:
    assert check(signed(ACCOUNTS[:2])).step == 5
    assert check(signed(), quorum=3) == to_record(JOB, signed())


def test_too_few_signatures_are_no_quorum() -> None:
    assert refused(signed([])) == "record"
    assert refused(signed(ACCOUNTS[:1])) == "record"
    assert refused(signed(ACCOUNTS[:2]), quorum=3) == "record"


def test_one_seat_twice_is_one_signature() -> None:
    record = signed(ACCOUNTS[:1])
    record.signatures.append(record.signatures[0])
    assert refused(record) == "record"


def test_a_signature_under_the_name_of_another_seat_does_not_count() -> None:
    record = signed(ACCOUNTS[:1])
    record.signatures.add(verifier=ACCOUNTS[1], signature=record.signatures[0].signature)
    assert refused(record) == "record"


def test_somebody_without_a_seat_does_not_count() -> None:
    record = signed(ACCOUNTS[:1])
    good = STRANGER.sign(digest(DOMAIN, to_record(JOB, record)))
    record.signatures.add(verifier=STRANGER.address, signature=good)
    record.signatures.add(verifier=ACCOUNTS[2], signature=good)
    assert refused(record) == "record"


def test_a_signature_for_another_chain_does_not_count() -> None:
    record = signed(ACCOUNTS[:1])
    other = Domain("JobMarket", "1", 1, DOMAIN.verifying_contract)
    account = ACCOUNTS[1]
    record.signatures.add(verifier=account, signature=KEYS[account].sign(digest(other, to_record(JOB, record))))
    assert refused(record) == "record"


@pytest.mark.parametrize(
    "change",
    [
        lambda r: setattr(r, "step", 6),
        lambda r: setattr(r, "view", 1),
        lambda r: setattr(r, "previous", word(99)),
        lambda r: setattr(r, "live_seats", word(99)),
        lambda r: setattr(r, "driver_roots", word(99)),
        lambda r: setattr(r, "multisets", word(99)),
        lambda r: setattr(r, "quarantines", word(99)),
        lambda r: setattr(r, "checkpoint", word(99)),
        lambda r: r.new_weights.__setitem__(0, word(99)),
        lambda r: r.new_states.__setitem__(1, word(99)),
        lambda r: (r.new_weights.append(word(1)), r.new_states.append(word(1))),
        lambda r: r.new_weights.reverse(),
    ],
)
def test_a_record_that_was_changed_after_signing_is_refused(change: Callable[[pb.SignedRecord], object]) -> None:
    record = signed()
    change(record)
    assert refused(record) == "record"


@pytest.mark.parametrize(
    "field", ["previous", "live_seats", "driver_roots", "multisets", "aggregates", "quarantines", "checkpoint"]
)
@pytest.mark.parametrize("value", [b"", bytes(31), bytes(33)])
def test_a_hash_of_another_length_is_refused(field: str, value: bytes) -> None:
    record = signed()
    setattr(record, field, value)
    assert refused(record) == "record"


def test_weight_hashes_of_another_length_are_refused() -> None:
    for field in ("new_weights", "new_states"):
        record = signed()
        getattr(record, field)[0] = bytes(31)
        assert refused(record) == "record"


def test_lists_of_unequal_length_are_refused_and_raise_nothing_else() -> None:
    for field in ("new_weights", "new_states"):
        record = signed()
        getattr(record, field).append(word(1))
        assert refused(record) == "record"


def test_one_malformed_signature_cannot_spoil_a_quorum() -> None:
    record = signed(ACCOUNTS[1:])
    record.signatures.insert(0, pb.SeatSignature(verifier=ACCOUNTS[0], signature=b"short"))
    assert check(record).step == 5


def test_an_empty_record_is_refused() -> None:
    assert refused(pb.SignedRecord()) == "record"
