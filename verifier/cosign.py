"""Answering accusations: judge by an own recompute, commit, reveal, and sign only what was judged to convict."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from google.protobuf.message import DecodeError

from sentinel_market.chain.eip712 import digest
from sentinel_market.domain.cross_audit import FaultKind
from sentinel_market.domain.messages import ViolationReport
from sentinel_market.errors import ProtocolError, SentinelError
from sentinel_market.ports import Court
from sentinel_market.wire import relay_pb2 as pb
from verifier.check.tolerance import Comparison
from verifier.check.verdict import VerdictKind
from verifier.context import SeatContext
from verifier.evidence import AnyBundle, ReplayResult, read_any, replay_bundle, share_weights, unpack
from verifier.judgement import SALT_BYTES, check_committed, open_seal, seal
from verifier.meter import Meter
from verifier.weights import WeightsStore

BAD_COMPUTE = 2
"""``ViolationKind.BadCompute`` of the court."""
MAX_BUNDLE_BYTES = 1 << 30
REMEMBERED = 64
"""Judgements kept for each accuser: it asks for the rest within the step."""
CLEARLY = 10
"""A frame is clearly right at a tenth of the tolerance (honest ones lie twenty times below that): then rounding on no
other machine can have convicted it, and whoever says so did not look."""

Proof = TypeVar("Proof", pb.RubberStamp, pb.FalseAlarm)
OnFault = Callable[[FaultKind, str, int, bytes, bytes], None]
"""(kind, accused seat's account, step, evidence hash, evidence); called in the event loop."""


def is_clear(comparisons: Iterable[Comparison]) -> bool:
    """Whether everything that was compared is right beyond dispute."""
    found = list(comparisons)
    return bool(found) and all(one.error_e6 * CLEARLY <= one.limit_e6 for one in found)


@dataclass
class Judged:
    """What this seat thinks of one accusation, and how far its accuser has come. ``accuse`` without the bundle.
    ``cleared``: the own recompute says that the accused was right, clearly."""

    accuse: pb.Accuse
    agrees: bool
    reason: str
    cleared: bool
    salt: bytes
    committed: pb.Committed
    revealed: bool = False
    asked: bool = False
    canary: bool = False


class Cosigner:
    """One a seat. Only an accuser that asked can go on with its question."""

    def __init__(
        self,
        context: SeatContext,
        weights: WeightsStore,
        court: Court,
        meter: Meter,
        evidence_dir: Path,
        data_hashes: Callable[[int, int], frozenset[bytes]],
        on_fault: OnFault,
    ) -> None:
        """``data_hashes(step, microbatch)``: hashes of the tokens and targets that the job's data gives."""
        self.context = context
        self._weights = weights
        self._court = court
        self._meter = meter
        self._dir = evidence_dir
        self._data_hashes = data_hashes
        self._on_fault = on_fault
        self._judged: dict[str, OrderedDict[bytes, Judged]] = {}
        self.recomputes = 0

    # ---- answering

    async def judge(self, accuser: str, accuse: pb.Accuse) -> pb.Committed:
        """Recompute the bundle and commit to the result. The same question again gets the same answer, and costs
        nothing; with other words around the same evidence it is ProtocolError("accuse")."""
        evidence = accuse.evidence_hash
        if len(evidence) != 32:
            raise ProtocolError("accuse", f"an evidence hash of {len(evidence)} bytes")
        bare = pb.Accuse()
        bare.CopyFrom(accuse)
        bare.ClearField("bundle")
        known = self._of_accuser(accuser).get(evidence)
        if known is None:
            agrees, reason, cleared = await self._judgement(accuse)
            salt = secrets.token_bytes(SALT_BYTES)
            judged = Judged(bare, agrees, reason, cleared, salt, seal(self.context, evidence, agrees, salt))
            mine = self._of_accuser(accuser)
            known = mine.setdefault(evidence, judged)
            if len(mine) > REMEMBERED:
                mine.popitem(last=False)
        if known.accuse != bare:
            raise ProtocolError("accuse", "this evidence came before, in another accusation")
        return known.committed

    def reveal(self, accuser: str, query: pb.RevealQuery) -> pb.Reveal:
        """What was committed to."""
        judged = self._of(accuser, query.evidence_hash)
        judged.revealed = True
        return pb.Reveal(agrees=judged.agrees, reason=judged.reason, salt=judged.salt)

    async def sign(self, accuser: str, query: pb.ReportQuery) -> pb.ReportSignature:
        """Sign the report if the judgement was that it convicts, and the accuser signed its own. An accusation that was
        cleared and is meant in earnest is a fault of its accuser. ProtocolError before the reveal, and for canaries."""
        c, judged = self.context, self._of(accuser, query.evidence_hash)
        case_id = await asyncio.to_thread(self._case_id, judged.accuse)
        if not judged.revealed or judged.canary:
            why = "was a canary" if judged.canary else "is not revealed yet"
            raise ProtocolError("judgement", f"no signature: this accusation {why}")
        c.check_seat(accuser, report_of(judged.accuse, case_id, accuser), query.signature, c.court_domain)
        first, judged.asked = not judged.asked, True
        if judged.agrees:
            signature = c.sign(report_of(judged.accuse, case_id, c.account), c.court_domain)
            return pb.ReportSignature(agrees=True, signature=signature)
        if judged.cleared and first:
            evidence = pb.FalseAlarm(accuse=judged.accuse, signature=query.signature).SerializeToString()
            self._on_fault(FaultKind.FALSE_ALARM, accuser, judged.accuse.step, query.evidence_hash, evidence)
        return pb.ReportSignature(agrees=False, reason=judged.reason)

    def canary(self, accuser: str, reveal: pb.CanaryReveal) -> None:
        """Nothing follows from it. ProtocolError where the accuser asked for a signature already: it was in earnest."""
        judged = self._of(accuser, reveal.evidence_hash)
        if judged.asked:
            raise ProtocolError("judgement", "an accusation in earnest is no canary")
        judged.canary = True

    def step_of(self, evidence_hash: bytes) -> int | None:
        """The step of an offence that this seat judged to convict."""
        found = (known[evidence_hash] for known in self._judged.values() if evidence_hash in known)
        return next((one.accuse.step for one in found if one.agrees), None)

    def _of(self, accuser: str, evidence_hash: bytes) -> Judged:
        judged = self._of_accuser(accuser).get(evidence_hash)
        if judged is None:
            raise ProtocolError("judgement", f"no accusation by {accuser} with evidence {evidence_hash.hex()[:16]}")
        return judged

    def _of_accuser(self, accuser: str) -> OrderedDict[bytes, Judged]:
        return self._judged.setdefault(accuser, OrderedDict())

    def _case_id(self, accuse: pb.Accuse) -> bytes:
        return self._court.case_id(self.context.job_id, accuse.slot, accuse.nonce, BAD_COMPUTE, accuse.commitment_hash)

    # ---- judging

    async def _judgement(self, accuse: pb.Accuse) -> tuple[bool, str, bool]:
        """Whether the own recompute convicts, why not, and whether it clears the accused beyond dispute."""
        c = self.context
        slot = c.slots.get(accuse.slot)
        if slot is None or slot.nonce != accuse.nonce:
            return False, f"slot {accuse.slot} nonce {accuse.nonce} is not in this job", False
        hashes = self._weights.hashes.get(accuse.step)
        if hashes is None:
            return False, f"step {accuse.step} is not open here", False
        return await asyncio.to_thread(self._examine, accuse, slot.hot_key, hashes[c.stage_of(accuse.slot)])

    def _examine(self, accuse: pb.Accuse, signer: str, weights_hash: bytes) -> tuple[bool, str, bool]:
        def check(bundle: AnyBundle) -> None:
            problem = self._mismatch(accuse, bundle, signer, weights_hash)
            if problem:
                raise ProtocolError("evidence", problem)

        try:
            bundle, replayed = self._replayed(accuse.bundle, check)
        except (SentinelError, ValueError, OSError) as error:
            return False, str(error)[:300], False
        self.recomputes += len(bundle.microbatches) if replayed.admissible else 0
        if replayed.bundle_digest != accuse.evidence_hash:
            return False, "the evidence hash is not that of the bundle", False
        if replayed.verdict.kind is not VerdictKind.VIOLATION:
            return False, replayed.verdict.reason[:300], _clears(replayed)
        self._keep(accuse)
        return True, "", False

    def _mismatch(self, accuse: pb.Accuse, bundle: AnyBundle, signer: str, weights_hash: bytes) -> str:
        """What the accusation says otherwise than its bundle, or the bundle otherwise than the job."""
        message = bundle.commitment.message
        if digest(self.context.domain, message) != accuse.commitment_hash:
            return "the bundle holds another commitment"
        if (message.slot, message.nonce, message.step) != (accuse.slot, accuse.nonce, accuse.step):
            return "the bundle is about another slot or step"
        if message.weights_hash != weights_hash:
            return "the bundle's weights are not those of the final record"
        if bundle.commitment.signer != signer:
            return f"the bundle names {bundle.commitment.signer} as signer, the slot is {signer}"
        return ""

    def _replayed(self, packed: bytes, check: Callable[[AnyBundle], None]) -> tuple[AnyBundle, ReplayResult]:
        """A stranger's bundle, recomputed here (blocking). SentinelError, ValueError, OSError: it is none, or
        ``check(bundle)``, which comes before the recompute, raised it."""
        c = self.context
        with self._meter.section("recompute"), TemporaryDirectory() as name:
            directory = Path(name) / "bundle"
            unpack(packed, directory, max_bytes=MAX_BUNDLE_BYTES)
            bundle = read_any(directory)
            if bundle.tolerance != c.tolerance or bundle.model != c.config:
                raise ProtocolError("evidence", "the bundle states another model or tolerance than the job")
            check(bundle)
            replayed = replay_bundle(
                directory,
                data_hashes=self._rows_of(bundle.commitment.message.step, bundle.microbatches),
                expected_domain=c.domain,
                expected_signers={slot.slot: slot.hot_key for slot in c.slots.values()},
                expected_layout=(c.num_stages, c.num_replicas),
                expected_tolerance=c.tolerance,
            )
            return bundle, replayed

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

    # ---- what others prove with

    def proves_rubber_stamp(self, evidence: bytes, accused: str) -> tuple[int, bytes]:
        """ProtocolError unless seat ``accused`` signed that a bundle convicts whose frame is clearly right. Recomputes
        (blocking); needs no record of the step, since no weights but the bundle's can make an honest seat say so.
        Returns the frame's step and the evidence hash: what the fault is about."""
        stamp = _parsed(pb.RubberStamp, evidence)
        try:
            bundle, replayed = self._replayed(stamp.bundle, lambda _: None)
        except (ValueError, OSError) as error:
            raise ProtocolError("fault", f"no bundle: {error}"[:300]) from error
        hashed = replayed.bundle_digest
        check_committed(self.context, accused, hashed, stamp.committed)
        open_seal(self.context, accused, hashed, stamp.committed, pb.Reveal(agrees=True, salt=stamp.salt))
        if not _clears(replayed):
            reason = f"{replayed.verdict.kind.value}: {replayed.verdict.reason}"
            raise ProtocolError("fault", f"the frame is not clearly right: {reason}"[:300])
        return bundle.commitment.message.step, hashed

    def proves_false_alarm(self, evidence: bytes, accused: str) -> tuple[int, bytes]:
        """ProtocolError unless seat ``accused`` signed an accusation that this seat judged, too, and cleared. Returns
        its step and evidence hash."""
        alarm = _parsed(pb.FalseAlarm, evidence)
        judged = self._of(accused, alarm.accuse.evidence_hash)
        if judged.accuse != alarm.accuse or not judged.cleared:
            raise ProtocolError("fault", "this seat did not clear what was accused there")
        report = report_of(alarm.accuse, self._case_id(alarm.accuse), accused)
        self.context.check_seat(accused, report, alarm.signature, self.context.court_domain)
        return alarm.accuse.step, alarm.accuse.evidence_hash


def _clears(replayed: ReplayResult) -> bool:
    return replayed.admissible and replayed.verdict.kind is VerdictKind.ACCEPT and is_clear(replayed.comparisons)


def report_of(accuse: pb.Accuse, case_id: bytes, verifier: str) -> ViolationReport:
    """The report on ``accuse`` that ``verifier`` signs."""
    return ViolationReport(
        case_id, verifier, BAD_COMPUTE, accuse.commitment_hash, accuse.evidence_hash, accuse.deadline
    )


def _parsed(kind: type[Proof], data: bytes) -> Proof:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise ProtocolError("fault", f"the evidence is no {kind.__name__}") from error
