"""From a confirmed violation to a ban: evidence, the other seats' own recomputes, the certificate, the court."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from sentinel_market.domain.cross_audit import FaultKind
from sentinel_market.domain.ids import BACKWARD
from sentinel_market.domain.messages import ViolationReport
from sentinel_market.errors import PeerGone, ProtocolError, Rejected
from sentinel_market.ports import CaseInfo, Court, Events, SignedReport
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.tensors import decode
from verifier.answers import Offence, Signed
from verifier.audits.auditor import AuditOffence
from verifier.check.verdict import Verdict, VerdictKind
from verifier.context import SeatContext
from verifier.cosign import BAD_COMPUTE, OnFault, report_of
from verifier.evidence import (
    Bundle,
    GradientBundle,
    SignedCommitment,
    SignedGradient,
    SignedReplay,
    pack,
    write_bundle,
    write_gradient_bundle,
)
from verifier.judgement import Opened, check_committed, open_seal
from verifier.meter import Meter
from verifier.peers import Peers
from verifier.weights import WeightsStore
from verifier.whole import GradientOffence

log = logging.getLogger("verifier")

REPORT_SECONDS = 3600
"""Chain seconds that a signed report stays valid."""
REMEMBERED = 256
"""Cases whose step this seat knows."""
JUDGE_SECONDS = 30.0
"""How long another seat may take over its own recompute of one frame."""


AnyOffence = Offence | GradientOffence | AuditOffence
"""A violation that this seat's own recompute confirmed: of a frame that it drives, of a sum that it reduces, of a frame
that another seat accepted."""


class Accuser:
    """Builds bundles, has them judged by the others, collects their signatures."""

    def __init__(
        self,
        context: SeatContext,
        peers: Peers,
        weights: WeightsStore,
        court: Court,
        meter: Meter,
        evidence_dir: Path,
        events: Events,
        on_fault: OnFault,
        step_of: Callable[[bytes], int | None],
    ) -> None:
        """``step_of(evidence hash)``: of an offence that this seat judged to convict, None where it did not."""
        self.context = context
        self._peers = peers
        self._weights = weights
        self._court = court
        self._meter = meter
        self._dir = evidence_dir
        self._step_of = step_of
        self._accused: OrderedDict[bytes, int] = OrderedDict()
        self._events = events
        self._on_fault = on_fault

    # ---- accusing

    async def accuse(self, offence: AnyOffence) -> pb.Quarantine | None:
        """Ask the others. Returns a certificate of q signatures, in no step yet, or None: then nobody else saw it."""
        context, message = self.context, offence.signed.message
        patience = JUDGE_SECONDS * (len(offence.backwards) if isinstance(offence, GradientOffence) else 1)
        directory = self._dir / f"step{message.step}-slot{message.slot}-{offence.signed.digest.hex()[:12]}"
        accuse = await self._accusation(offence, directory, self._dir / "weights")
        self._remember(accuse.evidence_hash, message.step)
        opened = await self._poll(accuse, patience)
        if 1 + sum(one.agrees for one in opened.values()) < context.quorum:
            log.warning("no quorum against slot %d in step %d", message.slot, message.step)
            return None
        signatures = await self._signatures(accuse, opened)
        if len(signatures) < context.quorum:
            log.warning("no quorum of signatures against slot %d in step %d", message.slot, message.step)
            return None
        return pb.Quarantine(
            offence_step=message.step,
            slot=message.slot,
            nonce=message.nonce,
            session=message.session,
            commitment_hash=offence.signed.digest,
            evidence_hash=accuse.evidence_hash,
            deadline=accuse.deadline,
            signatures=[pb.SeatSignature(verifier=a, signature=s) for a, s in sorted(signatures.items())],
            reason=_reason(offence),
            accuser=context.account,
        )

    async def probe(self, canary: Offence) -> None:
        """Ask the others as ``accuse`` does, about a frame that is right; then say so. A seat that let itself be told
        that it is wrong did not look."""
        with TemporaryDirectory() as name:
            accuse = await self._accusation(canary, Path(name) / "bundle", Path(name) / "weights")
        opened = await self._poll(accuse, JUDGE_SECONDS)
        told = pb.SeatMessage(canary_reveal=pb.CanaryReveal(evidence_hash=accuse.evidence_hash))
        await asyncio.gather(*(self._tell(seat.account, told) for seat in self.context.others))
        answers = {account: "convicts" if one.agrees else "does not" for account, one in opened.items()}
        self._note("canary", accuse, answers=answers)
        for account, one in opened.items():
            if one.agrees:
                stamp = pb.RubberStamp(bundle=accuse.bundle, committed=one.committed, salt=one.salt)
                log.warning("seat %s convicts a frame that is right", account)
                self._on_fault(
                    FaultKind.RUBBER_STAMP, account, accuse.step, accuse.evidence_hash, stamp.SerializeToString()
                )

    async def _accusation(self, offence: AnyOffence, directory: Path, weights: Path) -> pb.Accuse:
        """The question; it says nothing of whether it is meant in earnest. The bundle is written to ``directory``."""
        message = offence.signed.message
        flat = await self._weights.flat(offence.step, self.context.stage_of(message.slot))
        evidence_hash, packed = await asyncio.to_thread(self._write, directory, weights, offence, flat)
        return pb.Accuse(
            step=message.step,
            slot=message.slot,
            nonce=message.nonce,
            session=message.session,
            bundle=packed,
            commitment_hash=offence.signed.digest,
            evidence_hash=evidence_hash,
            deadline=await asyncio.to_thread(self._court.now) + REPORT_SECONDS,
        )

    async def _poll(self, accuse: pb.Accuse, patience: float) -> dict[str, Opened]:
        """What the others say, by account. Nobody is asked to reveal before everybody has committed or is out of
        time: so nobody can say what another said."""
        asked = [seat.account for seat in self.context.others]
        committed = await asyncio.gather(*(self._commitment(account, accuse, patience) for account in asked))
        opened = await asyncio.gather(
            *(
                self._opened(account, accuse, given)
                for account, given in zip(asked, committed, strict=True)
                if given is not None
            )
        )
        return {account: one for account, one in opened if one is not None}

    async def _commitment(self, account: str, accuse: pb.Accuse, patience: float) -> pb.Committed | None:
        try:
            reply = (await self._peers.ask(account, pb.SeatMessage(accuse=accuse), time_limit=patience)).committed
            check_committed(self.context, account, accuse.evidence_hash, reply)
        except (PeerGone, ProtocolError) as error:
            log.warning("seat %s did not judge: %s", account, error)
            return None
        return reply

    async def _opened(self, account: str, accuse: pb.Accuse, committed: pb.Committed) -> tuple[str, Opened | None]:
        query = pb.SeatMessage(reveal_query=pb.RevealQuery(evidence_hash=accuse.evidence_hash))
        try:
            reply = (await self._peers.ask(account, query)).reveal
            opened = open_seal(self.context, account, accuse.evidence_hash, committed, reply)
        except (PeerGone, ProtocolError) as error:
            log.warning("seat %s did not say what it judged: %s", account, error)
            return account, None
        if not opened.agrees:
            log.warning("seat %s disagrees: %s", account, opened.reason)
        return account, opened

    async def _signatures(self, accuse: pb.Accuse, opened: dict[str, Opened]) -> dict[str, bytes]:
        """The report, signed here and by those who agree. Those who do not are asked as well: they hold it against
        this seat, and the others against them."""
        c = self.context
        case_id = await asyncio.to_thread(
            self._court.case_id, c.job_id, accuse.slot, accuse.nonce, BAD_COMPUTE, accuse.commitment_hash
        )
        signatures = {c.account: c.sign(report_of(accuse, case_id, c.account), c.court_domain)}
        query = pb.ReportQuery(evidence_hash=accuse.evidence_hash, signature=signatures[c.account])
        asked = await asyncio.gather(*(self._signature(account, accuse, case_id, query) for account in opened))
        signatures.update((account, signature) for account, signature in asked if signature)
        refused = sorted(account for account, signature in asked if signature == b"")
        if refused and len(signatures) >= c.quorum:
            self._note("report refused", accuse, seats=refused)
        return signatures

    async def _signature(
        self, account: str, accuse: pb.Accuse, case_id: bytes, query: pb.ReportQuery
    ) -> tuple[str, bytes | None]:
        """Empty: refused; None: not there."""
        try:
            reply = (await self._peers.ask(account, pb.SeatMessage(report_query=query))).report_signature
            if reply.agrees:
                report = report_of(accuse, case_id, account)
                self.context.check_seat(account, report, reply.signature, self.context.court_domain)
                return account, reply.signature
            log.warning("seat %s does not sign: %s", account, reply.reason[:300])
        except ProtocolError as error:
            log.warning("seat %s does not sign: %s", account, error)
        except PeerGone as error:
            log.warning("seat %s is not there to sign: %s", account, error)
            return account, None
        return account, b""

    async def _tell(self, account: str, message: pb.SeatMessage) -> None:
        try:
            await self._peers.ask(account, message)
        except (PeerGone, ProtocolError) as error:
            log.info("seat %s was not told: %s", account, error)

    def _note(self, kind: str, accuse: pb.Accuse, **more: object) -> None:
        self._events.verdict(
            {
                "kind": kind,
                "slot": accuse.slot,
                "nonce": accuse.nonce,
                "step": accuse.step,
                "accuser": self.context.account,
                "evidence": accuse.evidence_hash.hex(),
                **more,
            }
        )

    def _write(self, directory: Path, shared: Path, offence: AnyOffence, flat: torch.Tensor) -> tuple[bytes, bytes]:
        with self._meter.section("evidence"):
            if isinstance(offence, GradientOffence):
                whole = self._gradient_bundle(offence, flat)
                hashed = write_gradient_bundle(directory, whole, weights_directory=shared)
            else:
                frame = offence.bundle if isinstance(offence, AuditOffence) else self._bundle(offence, flat)
                hashed = write_bundle(directory, frame, weights_directory=shared)
            return hashed, pack(directory, weights_directory=shared)

    def _remember(self, evidence_hash: bytes, step: int) -> None:
        self._accused[evidence_hash] = step
        if len(self._accused) > REMEMBERED:
            self._accused.popitem(last=False)

    def _gradient_bundle(self, offence: GradientOffence, flat: torch.Tensor) -> GradientBundle:
        c, signed = self.context, offence.signed
        return GradientBundle(
            domain=c.domain,
            model=c.config,
            num_stages=c.num_stages,
            num_replicas=c.num_replicas,
            commitment=SignedGradient(
                message=signed.message, signature=signed.signature, signer=c.slots[signed.message.slot].hot_key
            ),
            backwards=offence.backwards,
            submitted=offence.submitted,
            policy=c.policy,
            tolerance=c.tolerance,
            screening=offence.screening,
            verdict=offence.verdict,
            weights=flat,
        )

    def _bundle(self, offence: Offence, flat: torch.Tensor) -> Bundle:
        c, answer, held = self.context, offence.answer, offence.held
        last = c.num_stages - 1
        backward = offence.signed.message.direction == BACKWARD
        upstream = []
        sketch_hash = None
        if answer.stage > 0:
            upstream.append(self._signed(held.upstream[answer.stage]))
        if backward and answer.stage < last:
            below = held.downstream[answer.stage]
            upstream.append(self._signed(below.signed))
            sketch_hash = below.sketch_hash
        incoming: torch.Tensor | None = None
        if answer.stage == last:
            incoming = held.targets
        elif backward:
            incoming = decode(held.incoming[answer.stage], shape=c.shapes.activation)
        found, baseline = offence.screening, None
        if offence.screened is not None:
            found, baseline = offence.screened.verdict, offence.screened.baseline
        screening = found or Verdict(VerdictKind.ACCEPT, "no screen looked at this frame")
        replays = []
        for answer_again in offence.replays:
            signed = answer_again.backward if backward else answer_again.forward
            if signed is not None:
                output = answer_again.gradient if backward else answer_again.output
                sketch = answer_again.sketch if backward else None
                replays.append(SignedReplay(commitment=self._signed(signed), output=output, sketch=sketch))
        recomputed = offence.recomputed
        return Bundle(
            domain=c.domain,
            model=c.config,
            num_stages=c.num_stages,
            num_replicas=c.num_replicas,
            commitment=self._signed(offence.signed),
            upstream=tuple(upstream),
            incoming_sketch_hash=sketch_hash,
            replays=tuple(replays),
            policy=c.policy,
            tolerance=c.tolerance,
            screening=screening,
            baseline=baseline,
            history=offence.history,
            verdict=Verdict(VerdictKind.VIOLATION, _reason(offence), screening.scores),
            input=held.tokens if answer.stage == 0 else decode(held.inputs[answer.stage], shape=c.shapes.activation),
            incoming=incoming,
            output=answer.gradient if backward else answer.output,
            sketch=answer.sketch if backward else None,
            recompute=recomputed.gradient if backward else recomputed.output,
            recompute_sketch=recomputed.sketch if backward else None,
            weights=flat,
        )

    def _signed(self, signed: Signed) -> SignedCommitment:
        return SignedCommitment(
            message=signed.message, signature=signed.signature, signer=self.context.slots[signed.message.slot].hot_key
        )

    # ---- certificates

    def check_certificate(self, quarantine: pb.Quarantine) -> None:
        """Raises ProtocolError unless q distinct seats signed the report behind it."""
        c = self.context
        known = self._accused.get(quarantine.evidence_hash, self._step_of(quarantine.evidence_hash))
        if known is not None and known != quarantine.offence_step:
            # No signature covers it, and pay is void from there on.
            raise ProtocolError("quarantine", f"the offence was in step {known}, not {quarantine.offence_step}")
        case_id = self._court.case_id(
            c.job_id, quarantine.slot, quarantine.nonce, BAD_COMPUTE, quarantine.commitment_hash
        )
        good = set()
        for entry in quarantine.signatures:
            report = ViolationReport(
                case_id,
                entry.verifier,
                BAD_COMPUTE,
                quarantine.commitment_hash,
                quarantine.evidence_hash,
                quarantine.deadline,
            )
            c.check_seat(entry.verifier, report, entry.signature, c.court_domain)
            good.add(entry.verifier)
        if len(good) < c.quorum:
            raise ProtocolError("quorum", f"a quarantine of slot {quarantine.slot} with {len(good)} signatures")

    # ---- the court

    async def prosecute(self, quarantine: pb.Quarantine, told: Callable[[str, str], Awaitable[None]]) -> CaseInfo:
        """Report with all signatures, wait the windows out, execute, take the bond back. ``told(event, transaction)``
        hears of each transaction. Raises SentinelError when the court refuses for good."""
        c, court = self.context, self._court
        indexes = {seat.account: seat.index for seat in c.seats}
        reports = [
            SignedReport(
                seat=indexes[s.verifier],
                evidence_hash=quarantine.evidence_hash,
                deadline=quarantine.deadline,
                signature=s.signature,
            )
            for s in sorted(quarantine.signatures, key=lambda s: indexes[s.verifier])
        ]
        case_id = await asyncio.to_thread(
            court.case_id, c.job_id, quarantine.slot, quarantine.nonce, BAD_COMPUTE, quarantine.commitment_hash
        )
        transaction = await asyncio.to_thread(
            court.report, c.job_id, quarantine.slot, quarantine.nonce, BAD_COMPUTE, quarantine.commitment_hash, reports
        )
        await told("reported", transaction)
        case = await asyncio.to_thread(court.case, case_id)
        began = time.monotonic()
        while case.state not in {"executed", "expired", "overturned", "inconclusive"}:
            if await asyncio.to_thread(court.now) >= case.deadline:
                try:
                    await told("executed", await asyncio.to_thread(court.execute, case_id))
                except Rejected as error:
                    log.info("execute of slot %d: %s", quarantine.slot, error)
            if time.monotonic() - began > 24 * 3600:
                raise PeerGone(f"case {case_id.hex()} did not end within a day")
            await asyncio.sleep(0.5)
            case = await asyncio.to_thread(court.case, case_id)
        for report in reports:
            try:
                await told("bond settled", await asyncio.to_thread(court.settle_bond, case_id, report.seat))
            except Rejected as error:
                log.info("bond of seat %d: %s", report.seat, error)
        return case


def _reason(offence: AnyOffence) -> str:
    if not isinstance(offence, Offence):
        return offence.reason
    way = "backward" if offence.signed.message.direction == BACKWARD else "forward"
    found = offence.screening
    crossed = [] if found is None else [score.text() for score in found.scores if score.crossed]
    screen = "; ".join(crossed) or ("audit" if found is None else found.reason)
    return f"{way} of step {offence.step}: {screen}; recompute: {offence.comparison.text()}"[:500]
