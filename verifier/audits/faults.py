"""Faults of seats: one seat claims, the others find out for themselves, q signatures make an entry of the record."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from sentinel_market.domain.cross_audit import LAG, Fault, FaultKind
from sentinel_market.domain.messages import SeatFault
from sentinel_market.errors import PeerGone, ProtocolError
from sentinel_market.wire import relay_pb2 as pb
from verifier.context import SeatContext
from verifier.peers import Peers

log = logging.getLogger("verifier")

MOST_OPEN = 256
"""Claims that are remembered of one claimant: a liar cannot fill the memory."""
KEPT_STEPS = 2 * LAG


class Faults:
    """Claims and certificates of the last steps."""

    def __init__(
        self,
        context: SeatContext,
        peers: Peers,
        verify: Callable[[Fault, bytes], Awaitable[bool]],
        told: Callable[[Fault, str], None],
    ) -> None:
        """``verify(fault, evidence)``: this seat's own look. ``told(fault, claimant)`` hears of each new claim."""
        self.context = context
        self._peers = peers
        self._verify = verify
        self._told = told
        self._claims: dict[Fault, dict[str, bytes]] = {}
        self._looking: set[Fault] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def claim(self, fault: Fault, evidence: bytes = b"") -> None:
        """This seat has found it out itself: sign, and tell the others."""
        c = self.context
        if fault.seat == c.account or c.account in self._claims.get(fault, {}):
            return
        signature = c.sign(_message(c, fault))
        self._claims.setdefault(fault, {})[c.account] = signature
        self._told(fault, c.account)
        claim = pb.FaultClaim(fault=_proto(fault, {c.account: signature}), evidence=evidence)
        self._start(self._spread(fault, pb.SeatMessage(fault_claim=claim)))

    async def _spread(self, fault: Fault, message: pb.SeatMessage) -> None:
        async def tell(account: str) -> None:
            try:
                await self._peers.insist(account, message)
            except (PeerGone, ProtocolError) as error:
                log.info("seat %s did not hear that seat %s is at fault: %s", account, fault.seat, error)

        await asyncio.gather(*(tell(seat.account) for seat in self.context.others if seat.account != fault.seat))

    def hear(self, sender: str, claim: pb.FaultClaim, now: int) -> None:
        """Somebody's claim, in step ``now``: checked, remembered, and looked into once. Raises ProtocolError."""
        c = self.context
        fault = _parsed(c, claim.fault)
        if not now - KEPT_STEPS <= fault.step <= now:
            raise ProtocolError("fault", f"a fault of step {fault.step}; this seat is at {now}")
        signature = next((s.signature for s in claim.fault.signatures if s.verifier == sender), b"")
        if fault.seat == sender:
            raise ProtocolError("fault", "nobody signs its own fault")
        c.check_seat(sender, _message(c, fault), signature)
        known = self._claims.get(fault)
        if known is None and sum(sender in claims for claims in self._claims.values()) >= MOST_OPEN:
            raise ProtocolError("fault", f"{MOST_OPEN} claims of {sender} are open already")
        claims = self._claims.setdefault(fault, {})
        if sender not in claims:
            claims[sender] = signature
            self._told(fault, sender)
        if fault.seat != c.account and c.account not in claims and fault not in self._looking:
            self._looking.add(fault)
            self._start(self._look(fault, claim.evidence))

    async def _look(self, fault: Fault, evidence: bytes) -> None:
        try:
            if await self._verify(fault, evidence):
                self.claim(fault, evidence)
        finally:
            self._looking.discard(fault)

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- certificates

    def certified(self, but: Iterable[Fault]) -> list[pb.Fault]:
        """What q seats have signed and no record says yet (``but``)."""
        recorded, c = set(but), self.context
        return [
            _proto(fault, signatures)
            for fault, signatures in sorted(self._claims.items(), key=lambda one: (one[0].step, one[0].subject))
            if len(signatures) >= c.quorum and fault not in recorded
        ]

    def check(self, certificate: pb.Fault) -> Fault:
        """Raises ProtocolError unless q distinct seats, the accused not among them, signed it."""
        c = self.context
        fault = _parsed(c, certificate)
        good = set()
        for entry in certificate.signatures:
            if entry.verifier == fault.seat:
                raise ProtocolError("fault", "nobody signs its own fault")
            c.check_seat(entry.verifier, _message(c, fault), entry.signature)
            good.add(entry.verifier)
        if len(good) < c.quorum:
            raise ProtocolError("fault", f"a fault of {fault.seat} with {len(good)} signatures, {c.quorum} are due")
        return fault

    def forget(self, now: int) -> None:
        """Drop what is too old to be recorded."""
        for fault in [fault for fault in self._claims if fault.step < now - KEPT_STEPS]:
            del self._claims[fault]

    async def settled(self) -> None:
        """Wait until nothing is being looked into or told."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()


def _message(context: SeatContext, fault: Fault) -> SeatFault:
    return SeatFault(context.job_id, int(fault.kind), fault.seat, fault.step, fault.subject)


def _proto(fault: Fault, signatures: dict[str, bytes]) -> pb.Fault:
    return pb.Fault(
        kind=int(fault.kind),
        seat=fault.seat,
        step=fault.step,
        subject=fault.subject,
        signatures=[pb.SeatSignature(verifier=a, signature=s) for a, s in sorted(signatures.items())],
    )


def _parsed(context: SeatContext, message: pb.Fault) -> Fault:
    try:
        kind = FaultKind(message.kind)
    except ValueError:
        raise ProtocolError("fault", f"there is no fault of kind {message.kind}") from None
    if message.seat not in context.hot_keys:
        raise ProtocolError("fault", f"{message.seat} holds no seat of job {context.job_id}")
    if len(message.subject) != 32:
        raise ProtocolError("fault", f"a subject has 32 bytes, not {len(message.subject)}")
    return Fault(kind, message.seat, message.step, message.subject)
