"""What a seat says of the others with its ``Done``: secrets, audits, faults. From the wire to the ledger."""

from __future__ import annotations

from dataclasses import replace

from sentinel_market.domain.cross_audit import Fault, FaultKind, Outcome, Said
from sentinel_market.domain.step_record import NONE
from sentinel_market.errors import ProtocolError
from sentinel_market.wire import relay_pb2 as pb
from verifier.context import SeatContext

MOST_AUDITED = 4096
MOST_FAULTS = 64
"""Rows of one ``Findings``."""
_KINDS = {int(one) for one in FaultKind}


def check_findings(context: SeatContext, findings: pb.Findings) -> None:
    """Raises ProtocolError for what no seat could have meant; signatures of faults are checked by ``Faults``."""
    if len(findings.secrets) > len(context.seats) or any(len(s) not in (0, 32) for s in findings.secrets):
        raise ProtocolError("findings", "secrets have 32 bytes, one a seat")
    if len(findings.audited) > MOST_AUDITED or len(findings.faults) > MOST_FAULTS:
        raise ProtocolError("findings", f"{len(findings.audited)} audits and {len(findings.faults)} faults at once")
    known = {int(one) for one in Outcome}
    if any(len(one.subject) != 32 or one.outcome not in known for one in findings.audited):
        raise ProtocolError("findings", "an audit names 32 bytes and an outcome")
    if any(one.kind not in _KINDS for one in findings.faults):
        raise ProtocolError("findings", f"there are no faults but {sorted(_KINDS)}")


def said_of(done: pb.Done) -> Said:
    """What a checked ``Done`` says, as the ledger and the record take it."""
    return replace(
        said_after(done.findings),
        root=done.root,
        leaves=tuple(done.leaf_digests),
        secret_hash=done.secret_hash,
        next_secret_hash=done.next_secret_hash,
    )


def said_after(findings: pb.Findings) -> Said:
    """The same of findings that come alone, after the last step."""
    return Said(
        root=NONE,
        leaves=(),
        secret_hash=b"",
        next_secret_hash=b"",
        secrets=tuple(findings.secrets),
        audited=tuple((one.step, one.subject, one.outcome) for one in findings.audited),
        faults=tuple(Fault(FaultKind(f.kind), f.seat, f.step, f.subject) for f in findings.faults),
    )
