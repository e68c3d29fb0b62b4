"""The lists behind a step record and their digests. SHA-256 over a canonical byte form; integers and bytes only.

A list is hashed as: a tag, the number of rows (u32), then each row as length-prefixed fields. No two different
lists share a byte form.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Field = int | bytes | str

GENESIS = hashlib.sha256(b"sentinel genesis").digest()
"""``previous`` of the record of step 0."""
NONE = bytes(32)


def digest_rows(tag: str, rows: Iterable[Sequence[Field]]) -> bytes:
    """32 bytes that bind a tag and a list of rows."""
    listed = [tuple(row) for row in rows]
    out = hashlib.sha256()
    _feed(out, tag)
    out.update(len(listed).to_bytes(4, "big"))
    for row in listed:
        out.update(len(row).to_bytes(4, "big"))
        for field in row:
            _feed(out, field)
    return out.digest()


def _feed(out: hashlib._Hash, field: Field) -> None:
    if isinstance(field, int):
        kind, data = b"i", field.to_bytes(16, "big", signed=True)
    elif isinstance(field, bytes):
        kind, data = b"b", field
    else:
        kind, data = b"s", field.encode()
    out.update(kind + len(data).to_bytes(8, "big") + data)


@dataclass(frozen=True, slots=True)
class AcceptedSet:
    """What one driver accepted of one replica in a step: ordered backward commitments and their microbatches."""

    slot: int
    session: int
    commitments: tuple[bytes, ...]
    microbatches: tuple[int, ...]


def sets_digest(sets: Iterable[AcceptedSet]) -> bytes:
    """``DriverDone.sets``."""
    return digest_rows(
        "sets",
        [
            (s.slot, s.session, b"".join(s.commitments), b"".join(m.to_bytes(4, "big") for m in s.microbatches))
            for s in sorted(sets, key=lambda s: (s.slot, s.session))
        ],
    )


def accepted_set_digest(commitments: Iterable[bytes]) -> bytes:
    """``StageGradient.acceptedSet``: the ordered union over drivers, in seat order."""
    return digest_rows("accepted", [(c,) for c in commitments])


@dataclass(frozen=True, slots=True)
class StageSum:
    """One replica's sum as the primary accepted it."""

    slot: int
    session: int
    count: int
    accepted_set: bytes
    gradient_hash: bytes
    microbatches: tuple[int, ...]


def gradient_set_digest(sums: Iterable[StageSum]) -> bytes:
    """``AggregateCommitment.gradientSet``."""
    return digest_rows("sums", [(s.slot, s.session, s.count, s.accepted_set, s.gradient_hash) for s in sums])


def multisets_digest(stages: Iterable[Iterable[StageSum]]) -> bytes:
    """``StepRecord.multisets``: for each stage and replica the microbatches in its sum, with multiplicity."""
    return digest_rows(
        "multisets",
        [
            (stage, s.slot, b"".join(m.to_bytes(4, "big") for m in s.microbatches))
            for stage, sums in enumerate(stages)
            for s in sums
        ],
    )


def aggregates_digest(new_weights: Sequence[bytes], new_states: Sequence[bytes]) -> bytes:
    """``StepRecord.aggregates``: what a worker checks new weights against."""
    return digest_rows("aggregates", list(zip(new_weights, new_states, strict=True)))


def live_seats_digest(accounts: Iterable[str]) -> bytes:
    return digest_rows("live", [(a,) for a in accounts])


def driver_roots_digest(roots: Iterable[tuple[str, bytes, int, bytes, bytes]]) -> bytes:
    """Rows (verifier, root, leaves, next secret hash, digest of what it says of secrets, audits and faults) in seat
    order."""
    return digest_rows("roots", roots)


def quarantines_digest(rows: Iterable[tuple[int, int, int, bytes, bytes]]) -> bytes:
    """Rows (slot, nonce, step of the offence, commitment hash, evidence hash), sorted."""
    return digest_rows("quarantines", sorted(rows))
