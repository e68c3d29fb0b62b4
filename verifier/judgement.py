"""A judgement under seal: committed to before anybody reveals, so that nobody can copy another seat's answer."""

from __future__ import annotations

from dataclasses import dataclass

import blake3

from sentinel_market.domain.messages import Judgement
from sentinel_market.errors import ProtocolError
from sentinel_market.wire import relay_pb2 as pb
from verifier.context import SeatContext

SALT_BYTES = 32
_PREFIX = b"sentinel judgement 1\0"


@dataclass(frozen=True)
class Opened:
    """A judgement that was committed to and revealed. ``agrees``: the seat's own recompute convicts."""

    agrees: bool
    reason: str
    committed: pb.Committed
    salt: bytes


def commitment_of(job_id: int, seat: str, evidence_hash: bytes, agrees: bool, salt: bytes) -> bytes:
    """32 bytes. ``seat``: the judging account, so that another's commitment opens for nobody else. ProtocolError for
    a salt or a hash that is not 32 bytes: the parts have no lengths in the hash."""
    if len(salt) != SALT_BYTES or len(evidence_hash) != 32:
        raise ProtocolError("judgement", f"salt of {len(salt)} and evidence hash of {len(evidence_hash)} bytes, not 32")
    account = bytes.fromhex(seat.removeprefix("0x"))
    return blake3.blake3(
        _PREFIX + job_id.to_bytes(32, "big") + account + evidence_hash + bytes([agrees]) + salt
    ).digest()


def seal(context: SeatContext, evidence_hash: bytes, agrees: bool, salt: bytes) -> pb.Committed:
    """This seat's own judgement, signed."""
    commitment = commitment_of(context.job_id, context.account, evidence_hash, agrees, salt)
    signed = Judgement(context.job_id, context.account, evidence_hash, commitment)
    return pb.Committed(commitment=commitment, signature=context.sign(signed))


def check_committed(context: SeatContext, seat: str, evidence_hash: bytes, committed: pb.Committed) -> None:
    """ProtocolError unless ``seat`` signed this commitment for this evidence."""
    if len(committed.commitment) != 32:
        raise ProtocolError("judgement", f"a commitment of {len(committed.commitment)} bytes")
    signed = Judgement(context.job_id, seat, evidence_hash, committed.commitment)
    context.check_seat(seat, signed, committed.signature)


def open_seal(
    context: SeatContext, seat: str, evidence_hash: bytes, committed: pb.Committed, reveal: pb.Reveal
) -> Opened:
    """ProtocolError unless ``reveal`` is what ``seat`` committed to; the signature was checked before."""
    wanted = commitment_of(context.job_id, seat, evidence_hash, reveal.agrees, reveal.salt)
    if wanted != committed.commitment:
        raise ProtocolError("judgement", f"seat {seat} reveals another answer than it committed to")
    return Opened(reveal.agrees, reveal.reason[:300], committed, reveal.salt)
