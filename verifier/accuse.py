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

from sentinel_market.chain.eip712 import digest
from sentinel_market.domain.ids import BACKWARD
from sentinel_market.domain.messages import ViolationReport
from sentinel_market.errors import PeerGone, ProtocolError, Rejected, SentinelError
from sentinel_market.ports import CaseInfo, Court, SignedReport
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.tensors import decode
from verifier.answers import Offence, Signed
from verifier.audits.auditor import AuditOffence
from verifier.check.verdict import Verdict, VerdictKind
from verifier.context import SeatContext
from verifier.evidence import (
    Bundle,
    GradientBundle,
    SignedCommitment,
    SignedGradient,
    SignedReplay,
    pack,
    read_any,
    replay_bundle,
    share_weights,
    unpack,
    write_bundle,
    write_gradient_bundle,
)
from verifier.meter import Meter
from verifier.peers import Peers
from verifier.weights import WeightsStore
from verifier.whole import GradientOffence

log = logging.getLogger("verifier")

BAD_COMPUTE = 2
"""``ViolationKind.BadCompute`` of the court."""
REPORT_SECONDS = 3600
"""Chain seconds that a signed report stays valid."""
MAX_BUNDLE_BYTES = 1 << 30
REMEMBERED = 256
"""Cases whose step this seat knows."""
JUDGE_SECONDS = 30.0
"""How long another seat may take over its own recompute of one frame."""


AnyOffence = Offence | GradientOffence | AuditOffence
"""A violation that this seat's own recompute confirmed: of a frame that it drives, of a sum that it reduces, of a frame
that another seat accepted."""


class Accuser:
    """Builds bundles, collects co-signatures, answers the accusations of others."""

    def __init__(
        self,
        context: SeatContext,
        peers: Peers,
        weights: WeightsStore,
        court: Court,
        meter: Meter,
        evidence_dir: Path,
        data_hashes: Callable[[int, int], frozenset[bytes]],
    ) -> None:
        """``data_hashes(step, microbatch)``: hashes of the tokens and targets that the job's data gives."""
        self.context = context
        self._peers = peers
        self._weights = weights
        self._court = court
        self._meter = meter
        self._dir = evidence_dir
        self._data_hashes = data_hashes
        self.recomputes = 0
        self._upheld: OrderedDict[bytes, int] = OrderedDict()

    # ---- accusing

    async def accuse(self, offence: AnyOffence) -> pb.Quarantine | None:
        """Ask the others. Returns a certificate of q signatures, in no step yet, or None: then nobody else saw it."""
        context, message = self.context, offence.signed.message
        flat = await self._weights.flat(offence.step, context.stage_of(message.slot))
        patience = JUDGE_SECONDS * (len(offence.backwards) if isinstance(offence, GradientOffence) else 1)
        directory = self._dir / f"step{message.step}-slot{message.slot}-{offence.signed.digest.hex()[:12]}"
        evidence_hash, packed = await asyncio.to_thread(self._write, directory, offence, flat)
        case_id = await asyncio.to_thread(
            self._court.case_id, context.job_id, message.slot, message.nonce, BAD_COMPUTE, offence.signed.digest
        )
        deadline = await asyncio.to_thread(self._court.now) + REPORT_SECONDS
        mine = ViolationReport(case_id, context.account, BAD_COMPUTE, offence.signed.digest, evidence_hash, deadline)
        signatures = {context.account: context.sign(mine, context.court_domain)}
        ask = pb.SeatMessage(
            accuse=pb.Accuse(
                step=message.step,
                slot=message.slot,
                nonce=message.nonce,
                session=message.session,
                bundle=packed,
                commitment_hash=offence.signed.digest,
                evidence_hash=evidence_hash,
                deadline=deadline,
                signature=signatures[context.account],
            )
        )
        answers = [asyncio.create_task(self._ask(seat.account, ask, patience)) for seat in context.others]
        for answer in asyncio.as_completed(answers):
            account, reply = await answer
            if reply is None:
                continue
            theirs = ViolationReport(case_id, account, BAD_COMPUTE, offence.signed.digest, evidence_hash, deadline)
            try:
                context.check_seat(account, theirs, reply.signature, context.court_domain)
            except ProtocolError as error:
                log.warning("seat %s agreed with a wrong signature: %s", account, error)
                continue
            signatures[account] = reply.signature
            if len(signatures) >= context.quorum:
                break
        self._remember(evidence_hash, message.step)
        if len(signatures) < context.quorum:
            log.warning("no quorum against slot %d in step %d", message.slot, message.step)
            return None
        return pb.Quarantine(
            offence_step=message.step,
            slot=message.slot,
            nonce=message.nonce,
            session=message.session,
            commitment_hash=offence.signed.digest,
            evidence_hash=evidence_hash,
            deadline=deadline,
            signatures=[pb.SeatSignature(verifier=a, signature=s) for a, s in sorted(signatures.items())],
            reason=_reason(offence),
            accuser=context.account,
        )

    async def _ask(self, account: str, ask: pb.SeatMessage, patience: float) -> tuple[str, pb.ReportSignature | None]:
        try:
            reply = (await self._peers.ask(account, ask, time_limit=patience)).report_signature
        except (PeerGone, ProtocolError) as error:
            log.warning("seat %s did not judge: %s", account, error)
            return account, None
        if not reply.agrees:
            log.warning("seat %s disagrees: %s", account, reply.reason[:300])
            return account, None
        return account, reply

    def _write(self, directory: Path, offence: AnyOffence, flat: torch.Tensor) -> tuple[bytes, bytes]:
        with self._meter.section("evidence"):
            shared = self._dir / "weights"
            if isinstance(offence, GradientOffence):
                whole = self._gradient_bundle(offence, flat)
                hashed = write_gradient_bundle(directory, whole, weights_directory=shared)
            else:
                frame = offence.bundle if isinstance(offence, AuditOffence) else self._bundle(offence, flat)
                hashed = write_bundle(directory, frame, weights_directory=shared)
            return hashed, pack(directory, weights_directory=shared)

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

    # ---- co-signing

    async def answer(self, accuser: str, accuse: pb.Accuse) -> pb.ReportSignature:
        """Judge somebody's accusation by an own recompute of the bundle; sign only if it convicts."""
        c = self.context
        slot = c.slots.get(accuse.slot)
        if slot is None or slot.nonce != accuse.nonce:
            return pb.ReportSignature(
                agrees=False, reason=f"slot {accuse.slot} nonce {accuse.nonce} is not in this job"
            )
        hashes = self._weights.hashes.get(accuse.step)
        if hashes is None:
            return pb.ReportSignature(agrees=False, reason=f"step {accuse.step} is not open here")
        expected = hashes[c.stage_of(accuse.slot)]
        reason = await asyncio.to_thread(self._examine, accuse, slot.hot_key, expected)
        if reason:
            return pb.ReportSignature(agrees=False, reason=reason)
        case_id = await asyncio.to_thread(
            self._court.case_id, c.job_id, accuse.slot, accuse.nonce, BAD_COMPUTE, accuse.commitment_hash
        )
        theirs = ViolationReport(
            case_id, accuser, BAD_COMPUTE, accuse.commitment_hash, accuse.evidence_hash, accuse.deadline
        )
        c.check_seat(accuser, theirs, accuse.signature, c.court_domain)
        mine = ViolationReport(
            case_id, c.account, BAD_COMPUTE, accuse.commitment_hash, accuse.evidence_hash, accuse.deadline
        )
        return pb.ReportSignature(agrees=True, signature=c.sign(mine, c.court_domain))

    def _examine(self, accuse: pb.Accuse, signer: str, weights_hash: bytes) -> str:
        """Why not to sign; empty when this seat's own recompute convicts."""
        with self._meter.section("recompute"), TemporaryDirectory() as name:
            directory = Path(name) / "bundle"
            try:
                unpack(accuse.bundle, directory, max_bytes=MAX_BUNDLE_BYTES)
                bundle = read_any(directory)
                message = bundle.commitment.message
                if digest(self.context.domain, message) != accuse.commitment_hash:
                    return "the bundle holds another commitment"
                if (message.slot, message.nonce, message.step) != (accuse.slot, accuse.nonce, accuse.step):
                    return "the bundle is about another slot or step"
                if message.weights_hash != weights_hash:
                    return "the bundle's weights are not those of the final record"
                if bundle.tolerance != self.context.tolerance or bundle.model != self.context.config:
                    return "the bundle states another model or tolerance than the job"
                if bundle.commitment.signer != signer:
                    return f"the bundle names {bundle.commitment.signer} as signer, the slot is {signer}"
                replayed = replay_bundle(
                    directory,
                    data_hashes=self._rows_of(message.step, bundle.microbatches),
                    expected_domain=self.context.domain,
                    expected_signer=signer,
                    expected_signers={slot.slot: slot.hot_key for slot in self.context.slots.values()},
                    expected_layout=(self.context.num_stages, self.context.num_replicas),
                    expected_tolerance=self.context.tolerance,
                )
            except (SentinelError, ValueError, OSError) as error:
                return str(error)[:300]
            self.recomputes += len(bundle.microbatches) if replayed.admissible else 0
            if replayed.bundle_digest != accuse.evidence_hash:
                return "the evidence hash is not that of the bundle"
            if replayed.verdict.kind is not VerdictKind.VIOLATION:
                return replayed.verdict.reason[:300]
            self._keep(accuse)
            self._remember(accuse.evidence_hash, accuse.step)
            return ""

    def _remember(self, evidence_hash: bytes, step: int) -> None:
        """The step of an offence that this seat's own recompute confirmed."""
        self._upheld[evidence_hash] = step
        if len(self._upheld) > REMEMBERED:
            self._upheld.popitem(last=False)

    def _rows_of(self, step: int, microbatches: tuple[int, ...]) -> frozenset[bytes]:
        known = set(range(self.context.spec.training.microbatches))
        if not known.issuperset(microbatches):
            raise ProtocolError("evidence", f"microbatches {sorted(set(microbatches) - known)[:8]} are not in this job")
        return frozenset().union(*(self._data_hashes(step, microbatch) for microbatch in set(microbatches)))

    def _keep(self, accuse: pb.Accuse) -> None:
        """A co-signer keeps the bundle until the case is final (protocol.md)."""
        name = f"cosigned-step{accuse.step}-slot{accuse.slot}-{accuse.commitment_hash.hex()[:12]}"
        unpack(accuse.bundle, self._dir / name, max_bytes=MAX_BUNDLE_BYTES)
        share_weights(self._dir / name, self._dir / "weights")

    def check_certificate(self, quarantine: pb.Quarantine) -> None:
        """Raises ProtocolError unless q distinct seats signed the report behind it."""
        c = self.context
        known = self._upheld.get(quarantine.evidence_hash, quarantine.offence_step)
        if known != quarantine.offence_step:
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
