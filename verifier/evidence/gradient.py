"""Evidence that a whole stage gradient is wrong: the sum that a replica signed, and all that it was to be made from.

::

    DIR/manifest.json            as for a frame; ``kind`` is BAD_GRADIENT
    DIR/tensors/<digest>.snt     each tensor once, under its hash: the submitted gradient [N], and of each backward in
                                 the sum its forward input (tokens [B, T] at stage 0, else [B, T, D]) and its incoming
                                 gradient [B, T, D] (last stage: targets [B, T])
    DIR/weights/<digest>.snt     as for a frame

A replay recomputes every backward of the accepted set from its inputs, adds them up, and holds the sum against the
submitted one. It is admissible only if the set that was signed is exactly the listed commitments, each signed by the
accused, each made from those tensors, and each tensor chained to an accepted commitment or to the job's data.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import blake3
import torch

from sentinel_market.chain.eip712 import Domain, digest
from sentinel_market.chain.signing import recover
from sentinel_market.domain.messages import FrameCommitment, StageGradient
from sentinel_market.domain.step_record import accepted_set_digest
from sentinel_market.errors import ProtocolError
from sentinel_market.models.config import ModelConfig
from sentinel_market.models.layout import flat_size
from sentinel_market.models.stage import Stage
from sentinel_market.wire.commit import backward_input_hash, backward_output_hash
from sentinel_market.wire.tensors import encode, encoded_hash, tensor_hash
from verifier.check.frame import BACKWARD, FORWARD
from verifier.check.policy import Policy
from verifier.check.tolerance import Comparison, Tolerance, compare_sum
from verifier.check.verdict import E6, Verdict, VerdictKind
from verifier.evidence import files
from verifier.evidence.bundle import SignedCommitment, printable, software_versions
from verifier.evidence.recompute import DTYPES, edge_inputs, parameter_gradient
from verifier.evidence.replay import Check, Known, ReplayResult, check_known

KIND = "BAD_GRADIENT"
"""The kind of these bundles in their manifest; to the court they are BAD_COMPUTE like any other."""
MAX_BACKWARDS = 256
"""In one bundle: their commitments must fit into a manifest."""
MAX_BUNDLE_BYTES = 480 << 20
"""Of all tensors: a bundle travels between seats in one message of at most 512 MiB."""
SMALLEST, LARGEST = 1e-25, 1e37
"""Norms of the parts, added up, outside which fp32 itself may lose or overflow a sum: nobody is convicted there."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class SignedGradient:
    """A ``StageGradient``, its 65-byte signature, and the hot key that was snapshotted with the slot."""

    message: StageGradient
    signature: bytes
    signer: str


@dataclass(frozen=True, kw_only=True)
class SummedBackward:
    """One backward of the sum. ``upstream``: the accepted forward of the stage before whose output is the input (None
    at stage 0); ``downstream``: the accepted backward of the stage after whose gradient is the incoming one, with
    ``sketch_hash``, since its signature covers H(gradient, sketch) (None at the last stage)."""

    commitment: SignedCommitment
    input: torch.Tensor
    incoming: torch.Tensor
    upstream: SignedCommitment | None = None
    downstream: SignedCommitment | None = None
    sketch_hash: bytes | None = None

    @property
    def nbytes(self) -> int:
        """Of both tensors."""
        return self.input.nbytes + self.incoming.nbytes


@dataclass(frozen=True, kw_only=True)
class GradientBundle:
    """One accusation of a stage gradient. ``submitted`` [N] is the accused sum; ``backwards`` in the order of the
    accepted set; ``screening`` what the primary's screen said of the mean gradient."""

    domain: Domain
    model: ModelConfig
    num_stages: int
    num_replicas: int
    commitment: SignedGradient
    backwards: tuple[SummedBackward, ...]
    submitted: torch.Tensor
    policy: Policy
    tolerance: Tolerance
    screening: Verdict
    verdict: Verdict
    dtype: str = "float32"
    weights: torch.Tensor | None = None
    versions: Mapping[str, str] = field(default_factory=software_versions)

    @property
    def stage(self) -> int:
        """Stage of the accused slot."""
        return self.commitment.message.slot // self.num_replicas

    @property
    def microbatches(self) -> tuple[int, ...]:
        """In the sum, in order, with multiplicity."""
        return tuple(one.commitment.message.microbatch for one in self.backwards)


# ---- the recompute


class RunningSum:
    """Parameter gradients recomputed one microbatch at a time. ``total`` float64 [N]; ``lengths``: norms, added."""

    def __init__(self, size: int) -> None:
        self.total = torch.zeros(size, dtype=torch.float64)
        self.lengths = 0.0

    def add(self, module: Stage, input: torch.Tensor, incoming: torch.Tensor) -> None:
        """One backward, from the weights that ``module`` holds."""
        found = parameter_gradient(module, input=input, incoming=incoming).double()
        self.total += found
        self.lengths += float(found.square().sum().sqrt())


def judge_sum(
    submitted: torch.Tensor, reference: RunningSum, tolerance: Tolerance, low: RunningSum | None = None
) -> tuple[Verdict, tuple[Comparison, ...]]:
    """Hold a submitted sum [N] against a recomputed one: ACCEPT, VIOLATION, or INCONCLUSIVE at a numeric edge. ``low``:
    the recompute from inputs rounded to the job's dtype; None where rounding changes nothing (fp32 jobs)."""
    if not bool(torch.isfinite(reference.total).all()) or not SMALLEST <= reference.lengths <= LARGEST:
        text = f"numeric edge: the recomputed parts have norms of {reference.lengths:.3g} together"
        return Verdict(VerdictKind.INCONCLUSIVE, text), ()
    if low is not None:
        moved = compare_sum(low.total, reference.total, reference.lengths, tolerance)
        if moved.error_e6 * 10 > moved.limit_e6:
            text = f"numeric edge: from inputs rounded to the job's dtype the sum moves by {moved.error_e6 / E6:.3g}"
            return Verdict(VerdictKind.INCONCLUSIVE, text), ()
    found = compare_sum(submitted, reference.total, reference.lengths, tolerance)
    kind, word = (VerdictKind.ACCEPT, "agrees") if found.agrees else (VerdictKind.VIOLATION, "disagrees")
    return Verdict(kind, f"the recompute of the whole sum {word}: {found.text()}"), (found,)


# ---- what each backward must prove


@dataclass(frozen=True)
class Facts:
    """What a backward is held against. ``signers``: slot -> hot key, as far as known; else the files are believed.
    ``data_hashes``: None where the job's data is not at hand."""

    domain: Domain
    num_stages: int
    num_replicas: int
    signers: Mapping[int, str]
    data_hashes: frozenset[bytes] | None = None


def problem_of(one: SummedBackward, gradient: StageGradient, facts: Facts) -> str:
    """Why this backward is no admissible part of the sum; "" if it is."""
    m, stage = one.commitment.message, gradient.slot // facts.num_replicas
    for name in ("job_id", "slot", "nonce", "session", "step", "weights_hash"):
        if getattr(m, name) != getattr(gradient, name):
            return f"its {name} is not that of the sum"
    if m.direction != BACKWARD:
        return "it is no backward"
    try:
        return (
            _unsigned(one.commitment, facts)
            or _unchained_input(one, m, stage, facts)
            or _unchained_incoming(one, m, stage, facts)
        )
    except (ProtocolError, ValueError) as error:
        return str(error)[:200]


def _unsigned(signed: SignedCommitment, facts: Facts) -> str:
    by = recover(digest(facts.domain, signed.message), signed.signature)
    slot = signed.message.slot
    return "" if by == facts.signers.get(slot, signed.signer) else f"signed by {by}, not by slot {slot}"


def _unchained_input(one: SummedBackward, m: FrameCommitment, stage: int, facts: Facts) -> str:
    given = tensor_hash(one.input)
    if backward_input_hash(given, tensor_hash(one.incoming)) != m.input_hash:
        return "the signed input is not the one in the bundle"
    if stage == 0:
        return _no_data(given, "tokens", facts)
    return _unlinked(one.upstream, m, stage - 1, FORWARD, given, facts)


def _unchained_incoming(one: SummedBackward, m: FrameCommitment, stage: int, facts: Facts) -> str:
    incoming = tensor_hash(one.incoming)
    if stage == facts.num_stages - 1:
        return _no_data(incoming, "targets", facts)
    if one.sketch_hash is None or len(one.sketch_hash) != 32:
        return "the hash of the sketch beside its incoming gradient is missing"
    return _unlinked(one.downstream, m, stage + 1, BACKWARD, backward_output_hash(incoming, one.sketch_hash), facts)


def _no_data(hashed: bytes, name: str, facts: Facts) -> str:
    known = facts.data_hashes is None or hashed in facts.data_hashes
    return "" if known else f"its {name} are not rows that the job's data gives"


def _unlinked(
    link: SignedCommitment | None, m: FrameCommitment, stage: int, direction: int, wanted: bytes, facts: Facts
) -> str:
    what = f"{'backward' if direction == BACKWARD else 'forward'} of stage {stage}"
    if link is None:
        return f"the {what} that it was made from is missing"
    found = link.message
    same = all(getattr(found, name) == getattr(m, name) for name in ("job_id", "step", "microbatch"))
    if not same or found.direction != direction or found.slot // facts.num_replicas != stage:
        return f"what it was made from is no {what} of this microbatch"
    if found.output_hash != wanted:
        return f"it was made from another tensor than the {what} returned"
    return _unsigned(link, facts)


# ---- files


def write_gradient_bundle(directory: Path, bundle: GradientBundle, *, weights_directory: Path | None = None) -> bytes:
    """Write ``bundle`` and return its digest (32 bytes); weights as in ``write_bundle``. ProtocolError("evidence") for
    one that is too large to travel."""
    size = sum(one.nbytes for one in bundle.backwards) + bundle.submitted.nbytes
    size += 0 if bundle.weights is None else bundle.weights.nbytes
    if size > MAX_BUNDLE_BYTES or len(bundle.backwards) > MAX_BACKWARDS:
        raise ProtocolError(
            "evidence",
            f"{size} bytes and {len(bundle.backwards)} backwards; a bundle holds at most {MAX_BUNDLE_BYTES} and "
            f"{MAX_BACKWARDS}",
        )
    listed: dict[str, str] = {}

    def put(tensor: torch.Tensor) -> str:
        data = encode(tensor)
        hashed = encoded_hash(data).hex()
        name = f"tensors/{hashed}.snt"
        if name not in listed:
            listed[name] = hashed
            (directory / name).write_bytes(data)
        return hashed

    (directory / "tensors").mkdir(parents=True, exist_ok=True)
    put(bundle.submitted)
    backwards = [_backward_to_json(one, put) for one in bundle.backwards]
    if bundle.weights is not None:
        data = encode(bundle.weights)
        files.put_weights((weights_directory or directory / "weights") / f"{encoded_hash(data).hex()}.snt", data)
    message = bundle.commitment.message
    manifest = {
        "version": files.VERSION,
        "kind": KIND,
        "job_id": message.job_id,
        "slot": message.slot,
        "nonce": message.nonce,
        "stage": bundle.stage,
        "step": message.step,
        "num_stages": bundle.num_stages,
        "num_replicas": bundle.num_replicas,
        "domain": asdict(bundle.domain),
        "model": {k: repr(v) if isinstance(v, float) else v for k, v in asdict(bundle.model).items()},
        "commitment": _signed_to_json(bundle.commitment),
        "backwards": backwards,
        "policy": bundle.policy.to_json(),
        "tolerance": bundle.tolerance.to_json(),
        "screening": bundle.screening.to_json(),
        "dtype": bundle.dtype,
        "weights": message.weights_hash.hex(),
        "verdict": bundle.verdict.to_json(),
        "versions": dict(bundle.versions),
        "files": listed,
    }
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
    (directory / files.MANIFEST).write_bytes(text)
    return blake3.blake3(text).digest()


def _signed_to_json(signed: SignedGradient) -> dict[str, object]:
    message = {k: v.hex() if isinstance(v, bytes) else v for k, v in asdict(signed.message).items()}
    return {"message": message, "signature": signed.signature.hex(), "signer": signed.signer}


def _backward_to_json(one: SummedBackward, put: Callable[[torch.Tensor], str]) -> dict[str, object]:
    return {
        "commitment": files.signed_to_json(one.commitment),
        "upstream": None if one.upstream is None else files.signed_to_json(one.upstream),
        "downstream": None if one.downstream is None else files.signed_to_json(one.downstream),
        "sketch_hash": None if one.sketch_hash is None else one.sketch_hash.hex(),
        "input": put(one.input),
        "incoming": put(one.incoming),
    }


def read_gradient_bundle(
    source: Path,
    *,
    weights_directory: Path | None = None,
    weights_path: Path | None = None,
    max_bytes: int = MAX_BUNDLE_BYTES,
) -> GradientBundle:
    """``read_bundle`` for this kind: every tensor is held against its name, anything odd is ProtocolError("evidence").
    ``max_bytes``: of all its tensors together."""
    with files.as_evidence():
        return _read(source, files.read_manifest(source), weights_directory, weights_path, max_bytes)


def _read(
    source: Path, data: dict[str, Any], weights_directory: Path | None, weights_path: Path | None, max_bytes: int
) -> GradientBundle:
    if data["kind"] != KIND:
        raise ProtocolError("evidence", f"kind {data['kind']!r:.40} is not {KIND}, a sum of gradients that is wrong")
    listed, backwards = data["files"], data["backwards"]
    if not isinstance(listed, dict) or len(listed) > files.MAX_TENSORS:
        raise ProtocolError("evidence", f"a bundle of a gradient lists at most {files.MAX_TENSORS} files")
    if not isinstance(backwards, list) or not 1 <= len(backwards) <= MAX_BACKWARDS:
        raise ProtocolError("evidence", f"a bundle of a gradient lists 1 .. {MAX_BACKWARDS} backwards")
    loaded: dict[str, torch.Tensor] = {}

    def load(hashed: object) -> torch.Tensor:
        if not isinstance(hashed, str) or not _DIGEST.fullmatch(hashed):
            raise ProtocolError("evidence", f"{hashed!r:.80} is no digest of a tensor")
        name = f"tensors/{hashed}.snt"
        if listed.get(name) != hashed:
            raise ProtocolError("evidence", f"{name} is not among the files that the manifest lists")
        if hashed not in loaded:
            left = max_bytes - sum(tensor.nbytes for tensor in loaded.values())
            loaded[hashed] = files.load_tensor(source / name, hashed, left)
        return loaded[hashed]

    commitment = _signed_from_json(data["commitment"])
    message = commitment.message
    if data["weights"] != message.weights_hash.hex():
        raise ProtocolError("evidence", f"weights {data['weights']!r:.80} are not those that were signed")
    dtype = data["dtype"]
    if dtype not in DTYPES:
        raise ProtocolError("evidence", f"dtype {dtype!r:.40} is none of {', '.join(DTYPES)}")
    bundle = GradientBundle(
        domain=files.typed_from_json(Domain, data["domain"]),
        model=files.model_from_json(data["model"]),
        num_stages=files.checked_count(data["num_stages"]),
        num_replicas=files.checked_count(data["num_replicas"]),
        commitment=commitment,
        backwards=tuple(_backward_from_json(one, load) for one in backwards),
        submitted=load(message.gradient_hash.hex()),
        policy=Policy.from_json(data["policy"]),
        tolerance=files.typed_from_json(Tolerance, data["tolerance"]),
        screening=Verdict.from_json(data["screening"]),
        verdict=Verdict.from_json(data["verdict"]),
        dtype=dtype,
        weights=files.find_weights(source, data["weights"], weights_directory, weights_path, files.MAX_WEIGHTS_BYTES),
        versions={str(k): str(v) for k, v in data["versions"].items()},
    )
    for key in ("job_id", "slot", "nonce", "step"):
        if data[key] != getattr(message, key):
            raise ProtocolError("evidence", f"{key} {data[key]!r:.40} is not the commitment's {getattr(message, key)}")
    if data["stage"] != bundle.stage or bundle.stage >= bundle.num_stages:
        raise ProtocolError("evidence", f"slot {message.slot} is no slot of stage {data['stage']!r:.40}")
    return bundle


def _signed_from_json(data: Any) -> SignedGradient:
    signer = data["signer"]
    if not isinstance(signer, str):
        raise ProtocolError("evidence", "signer must be an address")
    message: StageGradient = files.typed_from_json(StageGradient, data["message"])
    return SignedGradient(message=message, signature=bytes.fromhex(data["signature"]), signer=signer)


def _backward_from_json(data: Any, load: Callable[[object], torch.Tensor]) -> SummedBackward:
    up, down, sketch = data["upstream"], data["downstream"], data["sketch_hash"]
    return SummedBackward(
        commitment=files.signed_from_json(data["commitment"]),
        input=load(data["input"]),
        incoming=load(data["incoming"]),
        upstream=None if up is None else files.signed_from_json(up),
        downstream=None if down is None else files.signed_from_json(down),
        sketch_hash=None if sketch is None else bytes.fromhex(sketch),
    )


# ---- the replay


def replay_gradient(bundle: GradientBundle, hashed: bytes, known: Known) -> ReplayResult:
    """Re-derive the verdict on a whole sum; ``hashed``: the bundle's digest."""
    checks = [Check("digests", True, "every file is what the manifest names"), *check_known(bundle, known)]
    checks += _check_signature(bundle, known)
    checks += [_check_set(bundle), _check_submitted(bundle), _check_backwards(bundle, known), _check_weights(bundle)]

    def inadmissible(why: str) -> ReplayResult:
        verdict = Verdict(VerdictKind.INCONCLUSIVE, f"inadmissible: {why}")
        return ReplayResult(verdict, tuple(checks), (), hashed, bundle.verdict, admissible=False)

    failed = [c for c in checks if not c.ok]
    if failed:
        return inadmissible("; ".join(f"{c.name}: {c.text}" for c in failed)[:600])
    try:
        reference, low = _recompute(bundle)
    except (ValueError, RuntimeError, IndexError) as error:
        return inadmissible(f"these inputs can not be recomputed: {error}"[:300])
    verdict, comparisons = judge_sum(bundle.submitted, reference, bundle.tolerance, low)
    return ReplayResult(verdict, tuple(checks), comparisons, hashed, bundle.verdict, admissible=True)


def _recompute(bundle: GradientBundle) -> tuple[RunningSum, RunningSum | None]:
    assert bundle.weights is not None, "_check_weights refuses a bundle without weights"
    module = Stage(bundle.model, bundle.stage, bundle.num_stages)
    module.load_flat(bundle.weights)
    exact, low = RunningSum(len(bundle.weights)), RunningSum(len(bundle.weights))
    pairs = [(one, edge_inputs(one.input, one.incoming, DTYPES[bundle.dtype])) for one in bundle.backwards]
    rounded = any(edge is not None for _, edge in pairs)
    for one, edge in pairs:
        exact.add(module, one.input, one.incoming)
        if rounded:
            given, incoming = (one.input, one.incoming) if edge is None else edge
            assert incoming is not None
            low.add(module, given, incoming)
    return exact, low if rounded else None


def _check_signature(bundle: GradientBundle, known: Known) -> Iterator[Check]:
    if known.domain is not None:
        text = "the contract and chain that were expected" if bundle.domain == known.domain else f"is {bundle.domain}"
        yield Check("domain", bundle.domain == known.domain, text)
    signed = bundle.commitment
    try:
        by = recover(digest(bundle.domain, signed.message), signed.signature)
        expected = known.signers.get(signed.message.slot, signed.signer)
        yield Check("signature of stage gradient", by == expected, f"by {by}")
    except (ProtocolError, ValueError) as error:
        yield Check("signature of stage gradient", False, str(error)[:200])


def _check_set(bundle: GradientBundle) -> Check:
    message = bundle.commitment.message
    try:
        listed = [digest(bundle.domain, one.commitment.message) for one in bundle.backwards]
    except (ProtocolError, ValueError) as error:
        return Check("accepted set", False, str(error)[:200])
    same = accepted_set_digest(listed) == message.accepted_set and len(listed) == message.count
    ok = same and len(set(listed)) == len(listed)
    return Check("accepted set", ok, f"the {len(listed)} backwards are exactly those that were signed for, each once")


def _check_submitted(bundle: GradientBundle) -> Check:
    ok = tensor_hash(bundle.submitted) == bundle.commitment.message.gradient_hash
    return Check("submitted gradient", ok, "the sum that was signed")


def _check_backwards(bundle: GradientBundle, known: Known) -> Check:
    signers = {bundle.commitment.message.slot: bundle.commitment.signer, **known.signers}
    facts = Facts(bundle.domain, bundle.num_stages, bundle.num_replicas, signers, known.data_hashes)
    found = [problem_of(one, bundle.commitment.message, facts) for one in bundle.backwards]
    wrong = [f"backward {index}: {problem}" for index, problem in enumerate(found) if problem]
    at_end = bundle.stage in (0, bundle.num_stages - 1)
    believed = "; rows of the data are believed" if known.data_hashes is None and at_end else ""
    return Check("chain of backwards", not wrong, "; ".join(wrong[:3]) or f"each signed and chained{believed}")


def _check_weights(bundle: GradientBundle) -> Check:
    weights, wanted = bundle.weights, bundle.commitment.message.weights_hash.hex()
    if weights is None:
        return Check("weights", False, f"not here: they are needed to recompute; give the weights of digest {wanted}")
    try:
        size = flat_size(bundle.model, bundle.stage, bundle.num_stages)
    except ValueError as error:
        return Check("weights", False, str(error)[:200])
    lengths = {one.input.shape[1] if one.input.dim() > 1 else 0 for one in bundle.backwards}
    fits = weights.dtype == torch.float32 and weights.shape == (size,) and lengths == {bundle.model.seq_len}
    if not fits:
        text = f"{weights.dtype} {list(weights.shape)} and sequences of {sorted(lengths)} do not fit the model: "
        return Check("weights", False, f"{text}float32 [{size}] and {bundle.model.seq_len} are due")
    return Check("weights", True, f"the weights {wanted[:16]} that were signed")


def describe_gradient(bundle: GradientBundle) -> list[str]:
    """What happened, for people."""
    m = bundle.commitment.message
    spent = sorted(set(bundle.microbatches))
    lines = [
        f"job {m.job_id}, slot {m.slot} (stage {bundle.stage} of {bundle.num_stages}), nonce {m.nonce}, signed by "
        f"{bundle.commitment.signer}",
        f"sum of {m.count} gradients of step {m.step}, microbatches {', '.join(map(str, spent))}, asked for by "
        f"{m.verifier}, session {m.session:#x}, sequence {m.sequence}",
    ]
    crossed = [score for score in bundle.screening.scores if score.crossed]
    if crossed:
        lines.append("raised suspicion: " + "; ".join(score.text() for score in crossed))
    else:
        lines.append(f"the screen said: {bundle.screening.reason}")
    norm = float(bundle.submitted.double().square().sum().sqrt()) if bundle.submitted.is_floating_point() else math.nan
    lines.append(f"the submitted sum has {bundle.submitted.numel():,} numbers and norm {norm:.6g}")
    lines.append(f"{bundle.verdict.kind.value}: {bundle.verdict.reason}")
    return [printable(line) for line in lines]
