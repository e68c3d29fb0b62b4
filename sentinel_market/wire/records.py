"""Step records between their wire form and the domain, and the check that a quorum signed one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from sentinel_market.domain import step_record
from sentinel_market.domain.messages import StepRecord
from sentinel_market.errors import ProtocolError
from sentinel_market.wire.relay_pb2 import SeatSignature, SignedRecord


def to_record(job_id: int, signed: SignedRecord) -> StepRecord:
    """The signed struct of a wire record. Raises ProtocolError("record") for malformed hashes."""
    hashes = (
        signed.previous,
        signed.live_seats,
        signed.driver_roots,
        signed.multisets,
        signed.aggregates,
        signed.quarantines,
        signed.checkpoint,
    )
    if any(len(value) != 32 for value in (*hashes, *signed.new_weights, *signed.new_states)):
        raise ProtocolError("record", "a step record holds 32-byte hashes only")
    return StepRecord(job_id, signed.step, signed.view, *hashes)


def from_record(
    record: StepRecord,
    new_weights: Sequence[bytes],
    new_states: Sequence[bytes],
    signatures: Mapping[str, bytes],
) -> SignedRecord:
    return SignedRecord(
        step=record.step,
        view=record.view,
        previous=record.previous,
        live_seats=record.live_seats,
        driver_roots=record.driver_roots,
        multisets=record.multisets,
        aggregates=record.aggregates,
        quarantines=record.quarantines,
        checkpoint=record.checkpoint,
        new_weights=new_weights,
        new_states=new_states,
        signatures=[SeatSignature(verifier=v, signature=s) for v, s in sorted(signatures.items())],
    )


def check_quorum(
    job_id: int,
    signed: SignedRecord,
    signer_of: Callable[[StepRecord, bytes], str],
    hot_keys: Mapping[str, str],
    quorum: int,
) -> StepRecord:
    """Raises ProtocolError("record") unless ``quorum`` distinct seats [account -> hot key] signed it.

    ``signer_of(record, signature)`` recovers the address under a signature.
    """
    record = to_record(job_id, signed)
    if len(signed.new_weights) != len(signed.new_states):
        raise ProtocolError("record", "a step record lists weights and optimizer state of every stage, as many of each")
    if step_record.aggregates_digest(signed.new_weights, signed.new_states) != record.aggregates:
        raise ProtocolError("record", f"the weights listed with step {record.step} are not those it was signed for")
    good = set()
    for entry in signed.signatures:
        expected = hot_keys.get(entry.verifier)
        with suppress(ProtocolError):  # a malformed signature is one that is missing; it must not spoil the others
            if expected is not None and signer_of(record, entry.signature) == expected:
                good.add(entry.verifier)
    if len(good) < quorum:
        raise ProtocolError("record", f"step {record.step} is signed by {len(good)} seats, {quorum} are needed")
    return record
