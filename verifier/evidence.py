"""Evidence: one directory (or tar) from which anybody re-derives a verdict on a CPU, with no network.

::

    DIR/manifest.json            canonical JSON, strings and integers; its BLAKE3 is the bundle's digest
    DIR/input.snt                the stage's forward input: tokens [B, T] at stage 0, else [B, T, D]
    DIR/incoming.snt             backward: incoming gradient [B, T, D]; last stage: targets [B, T]
    DIR/output.snt, sketch.snt   what the accused signed; a stage-0 backward has a sketch only
    DIR/recompute.snt, recompute_sketch.snt    what the reporting seat computed
    DIR/replays/<i>.output.snt, <i>.sketch.snt signed replays of other replicas: supporting evidence, never the proof
    DIR/weights/<digest>.snt     the stage's flat weights [N], content-addressed, so that bundles can share them

The manifest names the digest of every file, and no file outside that list is read. Everything in a bundle comes from a
stranger: sizes, names and JSON are checked before use.
"""

from __future__ import annotations

import io
import json
import platform
import re
import tarfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import blake3
import torch

from sentinel_market import __version__
from sentinel_market.chain.eip712 import Domain, digest
from sentinel_market.chain.signing import recover
from sentinel_market.domain.messages import FrameCommitment
from sentinel_market.errors import ConfigError, ProtocolError
from sentinel_market.models.config import ModelConfig
from sentinel_market.models.sketch import Sketch
from sentinel_market.models.stage import Stage
from sentinel_market.wire.commit import backward_input_hash, backward_output_hash
from sentinel_market.wire.tensors import decode, encode, encoded_hash
from verifier.check.frame import BACKWARD, FORWARD
from verifier.check.policy import Policy
from verifier.check.tolerance import Comparison, Tolerance, compare, compare_sketch, numeric_edge
from verifier.check.verdict import Verdict, VerdictKind

VERSION = 1
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 1 << 20
MAX_FILES = 64
MAX_STAGES = 4096
_TENSOR_FILES = ("input", "incoming", "output", "sketch", "recompute", "recompute_sketch")
_NAME = re.compile(
    r"manifest\.json|(?:input|incoming|output|sketch|recompute|recompute_sketch)\.snt"
    r"|replays/[0-9]{1,2}\.(?:output|sketch)\.snt|weights/[0-9a-f]{64}\.snt"
)


def software_versions() -> dict[str, str]:
    """What computed this, as far as it can matter to the last digit."""
    return {
        "sentinel_market": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
    }


@dataclass(frozen=True, kw_only=True)
class SignedCommitment:
    """A commitment, its 65-byte signature, and the hot key that was snapshotted with the slot."""

    message: FrameCommitment
    signature: bytes
    signer: str


@dataclass(frozen=True, kw_only=True)
class SignedReplay:
    """What another replica returned for the same input, under its own signature."""

    commitment: SignedCommitment
    output: torch.Tensor | None = None
    sketch: torch.Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """One accusation. ``upstream``: accepted commitments whose outputs are this frame's input (forward commitment of
    the stage before) and incoming gradient (backward commitment of the stage after, with ``incoming_sketch_hash``,
    since that signature covers H(gradient, sketch)). ``screening`` is what raised suspicion (or "audit")."""

    domain: Domain
    model: ModelConfig
    num_stages: int
    num_replicas: int
    commitment: SignedCommitment
    upstream: tuple[SignedCommitment, ...] = ()
    incoming_sketch_hash: bytes | None = None
    replays: tuple[SignedReplay, ...] = ()
    kind: str = "BAD_COMPUTE"
    policy: Policy
    tolerance: Tolerance
    screening: Verdict
    verdict: Verdict
    input: torch.Tensor
    incoming: torch.Tensor | None = None
    output: torch.Tensor | None = None
    sketch: torch.Tensor | None = None
    recompute: torch.Tensor | None = None
    recompute_sketch: torch.Tensor | None = None
    weights: torch.Tensor | None = None
    versions: Mapping[str, str] = field(default_factory=software_versions)

    @property
    def stage(self) -> int:
        """Stage of the accused slot: slots are numbered stage by stage."""
        return self.commitment.message.slot // self.num_replicas


@dataclass(frozen=True, slots=True)
class Recomputed:
    """``output``: activation, per-token loss or outgoing gradient (None for a stage-0 backward); ``sketch`` [64] of a
    backward frame."""

    output: torch.Tensor | None
    sketch: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a replay looked at."""

    name: str
    ok: bool
    text: str


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The re-derived verdict: VIOLATION, ACCEPT (the accused was right) or INCONCLUSIVE (inadmissible, or a numeric
    edge), the checks that led there and the numbers."""

    verdict: Verdict
    checks: tuple[Check, ...]
    comparisons: tuple[Comparison, ...]
    bundle_digest: bytes

    def lines(self) -> list[str]:
        """For people, one line a check."""
        marks = [f"{'ok  ' if c.ok else 'FAIL'} {c.name}: {c.text}" for c in self.checks]
        return [*marks, f"{self.verdict.kind.value}: {self.verdict.reason}"]


# --- recompute ---------------------------------------------------------------------------------------------------


def recompute_frame(
    module: Stage,
    *,
    job_id: int,
    step: int,
    direction: int,
    input: torch.Tensor,
    incoming: torch.Tensor | None = None,
) -> Recomputed:
    """What an honest replica returns, in fp32 on this CPU, from the weights that ``module`` holds.

    ``input`` [B, T] tokens at stage 0, else [B, T, D]; ``incoming``: gradient [B, T, D], at the last stage the targets
    [B, T] (needed for its forward frame too). Leaves the module's gradient zero.
    """
    if module.is_last and incoming is None:
        raise ValueError("the last stage needs the targets")
    x = input if module.is_first else input.detach().clone().requires_grad_(direction == BACKWARD)
    if direction == FORWARD:
        with torch.no_grad():
            return Recomputed(module.token_loss(x, _given(incoming)) if module.is_last else module(x), None)
    given = _given(incoming)
    module.zero_grad_flat()
    if module.is_last:
        module.token_loss(x, given).mean().backward()  # type: ignore[no-untyped-call]
    else:
        module(x).backward(given)
    sketch = Sketch(job_id, step).sketch(module.flat_grad)
    module.zero_grad_flat()
    return Recomputed(None if module.is_first else x.grad, sketch)


def _given(incoming: torch.Tensor | None) -> torch.Tensor:
    if incoming is None:
        raise ValueError("a backward frame needs its incoming gradient (last stage: the targets)")
    return incoming


def judge(claimed: Recomputed, reference: Recomputed, tolerance: Tolerance) -> tuple[Verdict, tuple[Comparison, ...]]:
    """Hold what was signed against a recompute: ACCEPT, VIOLATION, or INCONCLUSIVE at a numeric edge.

    Jobs are fp32 today, so the recompute from the input rounded to the job's dtype is the recompute itself, and the
    edge is reached only where the recompute is not finite.
    """
    comparisons: list[Comparison] = []
    for mine in (reference.output, reference.sketch):
        if mine is not None and numeric_edge(mine, mine, tolerance):
            return Verdict(VerdictKind.INCONCLUSIVE, "the recompute itself holds NaN or Inf"), ()
    if reference.output is not None:
        theirs = torch.empty(0) if claimed.output is None else claimed.output
        comparisons.append(compare(theirs, reference.output, tolerance))
    if reference.sketch is not None:
        theirs = torch.empty(0) if claimed.sketch is None else claimed.sketch
        comparisons.append(compare_sketch(theirs, reference.sketch, tolerance))
    bad = [c for c in comparisons if not c.agrees]
    if bad:
        reason = "the recompute disagrees: " + "; ".join(c.text() for c in bad)
        return Verdict(VerdictKind.VIOLATION, reason), tuple(comparisons)
    reason = "the recompute agrees: " + "; ".join(c.text() for c in comparisons)
    return Verdict(VerdictKind.ACCEPT, reason), tuple(comparisons)


# --- writing -----------------------------------------------------------------------------------------------------


def write_bundle(directory: Path, bundle: Bundle, *, weights_directory: Path | None = None) -> bytes:
    """Write ``bundle`` and return its digest (32 bytes). The weights go to ``weights_directory`` if one is given
    (shared by the bundles of a step), else under ``directory``; their digest is in the manifest either way."""
    directory.mkdir(parents=True, exist_ok=True)
    files: dict[str, bytes] = {}
    for name in _TENSOR_FILES:
        tensor = getattr(bundle, name)
        if tensor is not None:
            files[f"{name}.snt"] = encode(tensor)
    for index, replay in enumerate(bundle.replays):
        if replay.output is not None:
            files[f"replays/{index}.output.snt"] = encode(replay.output)
        if replay.sketch is not None:
            files[f"replays/{index}.sketch.snt"] = encode(replay.sketch)
    for name, data in files.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    if bundle.weights is not None:
        data = encode(bundle.weights)
        path = (weights_directory or directory / "weights") / f"{encoded_hash(data).hex()}.snt"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(data)
    manifest = _manifest(bundle, {name: encoded_hash(data).hex() for name, data in files.items()})
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
    (directory / MANIFEST).write_bytes(text)
    return blake3.blake3(text).digest()


def _manifest(bundle: Bundle, files: dict[str, str]) -> dict[str, object]:
    message = bundle.commitment.message
    return {
        "version": VERSION,
        "job_id": message.job_id,
        "slot": message.slot,
        "nonce": message.nonce,
        "stage": bundle.stage,
        "step": message.step,
        "microbatch": message.microbatch,
        "direction": message.direction,
        "kind": bundle.kind,
        "num_stages": bundle.num_stages,
        "num_replicas": bundle.num_replicas,
        "domain": asdict(bundle.domain),
        "model": {k: repr(v) if isinstance(v, float) else v for k, v in asdict(bundle.model).items()},
        "commitment": _signed_to_json(bundle.commitment),
        "upstream": [_signed_to_json(one) for one in bundle.upstream],
        "incoming_sketch_hash": None if bundle.incoming_sketch_hash is None else bundle.incoming_sketch_hash.hex(),
        "replays": [_signed_to_json(one.commitment) for one in bundle.replays],
        "policy": bundle.policy.to_json(),
        "tolerance": bundle.tolerance.to_json(),
        "screening": bundle.screening.to_json(),
        "verdict": bundle.verdict.to_json(),
        "versions": dict(bundle.versions),
        "files": files,
    }


def _signed_to_json(signed: SignedCommitment) -> dict[str, object]:
    message = {k: v.hex() if isinstance(v, bytes) else v for k, v in asdict(signed.message).items()}
    return {"message": message, "signature": signed.signature.hex(), "signer": signed.signer}


# --- reading a stranger's bundle ---------------------------------------------------------------------------------


def bundle_digest(directory: Path) -> bytes:
    """BLAKE3 of the manifest, which names the digest of every file."""
    return blake3.blake3(_manifest_bytes(directory)).digest()


def _manifest_bytes(directory: Path) -> bytes:
    path = directory / MANIFEST
    if not path.is_file() or path.stat().st_size > MAX_MANIFEST_BYTES:
        raise ProtocolError("evidence", f"no {MANIFEST} of at most {MAX_MANIFEST_BYTES} bytes in the bundle")
    return path.read_bytes()


def read_bundle(source: Path, *, weights_directory: Path | None = None, max_bytes: int = 2 << 30) -> Bundle:
    """Read a bundle's directory. Every file is held against its digest; anything odd is ProtocolError("evidence").

    Weights that are not there (neither in the bundle nor in ``weights_directory``) leave ``weights`` None.
    """
    try:
        data = json.loads(_manifest_bytes(source))
        if not isinstance(data, dict) or data.get("version") != VERSION:
            raise ProtocolError("evidence", f"not a version {VERSION} manifest")
        return _read(source, data, weights_directory, max_bytes)
    except ProtocolError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, ConfigError, OSError, RecursionError) as error:
        raise ProtocolError("evidence", f"the manifest does not hold together: {error!r}"[:300]) from error


def _read(source: Path, data: dict[str, Any], weights_directory: Path | None, max_bytes: int) -> Bundle:
    files = data["files"]
    if not isinstance(files, dict) or len(files) > MAX_FILES:
        raise ProtocolError("evidence", f"a bundle lists at most {MAX_FILES} files")

    def load(name: str) -> torch.Tensor | None:
        return _load(source / name, files[name], max_bytes) if name in files else None

    replays = tuple(
        SignedReplay(
            commitment=_signed_from_json(one),
            output=load(f"replays/{index}.output.snt"),
            sketch=load(f"replays/{index}.sketch.snt"),
        )
        for index, one in enumerate(data["replays"][:MAX_FILES])
    )
    commitment = _signed_from_json(data["commitment"])
    given = load("input.snt")
    if given is None:
        raise ProtocolError("evidence", "the bundle has no input.snt")
    weights: torch.Tensor | None = None
    name = f"{commitment.message.weights_hash.hex()}.snt"
    for path in (source / "weights" / name, *([weights_directory / name] if weights_directory else [])):
        if weights is None and path.is_file():
            weights = _load(path, commitment.message.weights_hash.hex(), max_bytes)
    sketch_hash = data["incoming_sketch_hash"]
    bundle = Bundle(
        domain=_typed(Domain, data["domain"]),
        model=_model(data["model"]),
        num_stages=_count(data["num_stages"]),
        num_replicas=_count(data["num_replicas"]),
        commitment=commitment,
        upstream=tuple(_signed_from_json(one) for one in data["upstream"][:MAX_FILES]),
        incoming_sketch_hash=None if sketch_hash is None else bytes.fromhex(sketch_hash),
        replays=replays,
        kind=str(data["kind"]),
        policy=Policy.from_json(data["policy"]),
        tolerance=_typed(Tolerance, data["tolerance"]),
        screening=Verdict.from_json(data["screening"]),
        verdict=Verdict.from_json(data["verdict"]),
        input=given,
        incoming=load("incoming.snt"),
        output=load("output.snt"),
        sketch=load("sketch.snt"),
        recompute=load("recompute.snt"),
        recompute_sketch=load("recompute_sketch.snt"),
        weights=weights,
        versions={str(k): str(v) for k, v in data["versions"].items()},
    )
    message = commitment.message
    for key in ("job_id", "slot", "nonce", "step", "microbatch", "direction"):
        if data[key] != getattr(message, key):
            raise ProtocolError("evidence", f"{key} {data[key]!r} is not the commitment's {getattr(message, key)}")
    if data["stage"] != bundle.stage or bundle.stage >= bundle.num_stages or message.direction not in (0, 1):
        raise ProtocolError("evidence", f"slot {message.slot} is no slot of stage {data['stage']!r}")
    return bundle


def _count(value: object) -> int:
    if type(value) is not int or not 1 <= value <= MAX_STAGES:
        raise ProtocolError("evidence", f"{value!r} is no number of stages or replicas")
    return value


def _load(path: Path, expected: str, max_bytes: int) -> torch.Tensor:
    if path.is_symlink() or not path.is_file() or path.stat().st_size > max_bytes:
        raise ProtocolError("evidence", f"{path.name} is missing, a link, or larger than {max_bytes} bytes")
    data = path.read_bytes()
    if encoded_hash(data).hex() != expected:
        raise ProtocolError("evidence", f"{path.name} is not what the manifest names: its digest differs")
    return decode(data, max_bytes=max_bytes)


def _typed(cls: type[Any], data: object) -> Any:
    """A flat dataclass of strings and integers from JSON, every field present and of its type, nothing else."""
    if not isinstance(data, dict) or set(data) != {f.name for f in fields(cls)}:
        raise ProtocolError("evidence", f"{cls.__name__} has exactly the fields {[f.name for f in fields(cls)]}")
    values: dict[str, object] = {}
    for item in fields(cls):
        value = data[item.name]
        if item.type == "bytes":
            value = bytes.fromhex(value)
        elif (item.type == "int") != (type(value) is int) or (item.type == "str") != isinstance(value, str):
            raise ProtocolError("evidence", f"{cls.__name__}.{item.name} = {value!r} is no {item.type}")
        values[item.name] = value
    return cls(**values)


def _signed_from_json(data: Any) -> SignedCommitment:
    signer = data["signer"]
    if not isinstance(signer, str):
        raise ProtocolError("evidence", "signer must be an address")
    message: FrameCommitment = _typed(FrameCommitment, data["message"])
    return SignedCommitment(message=message, signature=bytes.fromhex(data["signature"]), signer=signer)


def _model(data: Any) -> ModelConfig:
    values: dict[str, Any] = {}
    for item in fields(ModelConfig):
        value = data[item.name]
        values[item.name] = float(value) if item.type == "float" else value
        if item.type == "int" and type(value) is not int:
            raise ProtocolError("evidence", f"model.{item.name} = {value!r} is no integer")
    config = ModelConfig(**values)
    problems = config.validate()
    if problems:
        raise ProtocolError("evidence", f"model: {'; '.join(problems)}")
    return config


# --- tar ---------------------------------------------------------------------------------------------------------


def pack(directory: Path) -> bytes:
    """The bundle as an uncompressed tar, the same bytes for the same files: sorted, no times, no owners."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(directory.rglob("*")):
            name = path.relative_to(directory).as_posix()
            if path.is_symlink() or not path.is_file() or not _NAME.fullmatch(name):
                continue
            data = path.read_bytes()
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def unpack(data: bytes, directory: Path, *, max_bytes: int = 2 << 30) -> None:
    """Write a stranger's tar into ``directory``: only names that a bundle has, only plain files, no duplicates, at most
    64 files and ``max_bytes`` together. ProtocolError("evidence") otherwise, before anything is written."""
    if len(data) > max_bytes + (MAX_FILES + 20) * 1024:
        raise ProtocolError("evidence", f"a tar of {len(data)} bytes, at most {max_bytes} are taken")
    found: dict[str, bytes] = {}
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for member in tar:
                plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and member.sparse is None
                total += member.size
                if not plain or not _NAME.fullmatch(member.name) or member.name in found:
                    raise ProtocolError("evidence", f"a bundle holds no {member.name!r:.80}")
                if total > max_bytes or len(found) >= MAX_FILES:
                    raise ProtocolError("evidence", f"more than {max_bytes} bytes or {MAX_FILES} files")
                stream = tar.extractfile(member)
                found[member.name] = b"" if stream is None else stream.read()
                if len(found[member.name]) != member.size:
                    raise ProtocolError("evidence", f"{member.name} is cut short")
    except (tarfile.TarError, ValueError, OSError, EOFError) as error:
        raise ProtocolError("evidence", f"not a tar: {error}"[:200]) from error
    if MANIFEST not in found:
        raise ProtocolError("evidence", f"the tar holds no {MANIFEST}")
    for name, content in found.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() or path.parent.is_symlink():
            raise ProtocolError("evidence", f"{name} would be written through a link")
        path.write_bytes(content)


# --- replay ------------------------------------------------------------------------------------------------------


def replay_bundle(
    directory: Path,
    *,
    weights_directory: Path | None = None,
    data_hashes: frozenset[bytes] | None = None,
    expected_domain: Domain | None = None,
    expected_signer: str | None = None,
) -> ReplayResult:
    """Re-derive the verdict from the files alone: digests, signatures, chaining, recompute, comparison.

    What the files can not prove is taken from the caller where it knows better: ``expected_domain`` (the chain and
    contract it trusts), ``expected_signer`` (the hot key that the chain snapshotted with the slot), ``data_hashes``
    (hashes of the token rows and targets that the job's data gives for this microbatch: without them the rows of
    stage 0 and the targets of the last stage are believed, and the check says so).
    """
    hashed = bundle_digest(directory)
    bundle = read_bundle(directory, weights_directory=weights_directory)
    checks = [Check("digests", True, "every file is what the manifest names")]
    checks += _check_signatures(bundle, expected_domain, expected_signer)
    checks += _check_content(bundle)
    checks += _check_chain(bundle, data_hashes)
    failed = [c for c in checks if not c.ok]
    if failed:
        reason = "inadmissible: " + "; ".join(f"{c.name}: {c.text}" for c in failed)
        return ReplayResult(Verdict(VerdictKind.INCONCLUSIVE, reason), tuple(checks), (), hashed)
    weights = bundle.weights
    assert weights is not None, "_check_content refuses a bundle without weights"
    message = bundle.commitment.message
    try:
        module = Stage(bundle.model, bundle.stage, bundle.num_stages)
        module.load_flat(weights)
        reference = recompute_frame(
            module,
            job_id=message.job_id,
            step=message.step,
            direction=message.direction,
            input=bundle.input,
            incoming=bundle.incoming,
        )
    except (ValueError, RuntimeError, IndexError) as error:
        reason = f"inadmissible: these inputs can not be recomputed: {error}"[:300]
        return ReplayResult(Verdict(VerdictKind.INCONCLUSIVE, reason), tuple(checks), (), hashed)
    claimed = Recomputed(bundle.output, bundle.sketch)
    verdict, comparisons = judge(claimed, reference, bundle.tolerance)
    for name, theirs, mine in (
        ("recompute", bundle.recompute, reference.output),
        ("recompute_sketch", bundle.recompute_sketch, reference.sketch),
    ):
        if theirs is not None and mine is not None:
            compared = compare(theirs, mine, bundle.tolerance)
            checks.append(Check(name, compared.agrees, f"the reporting seat's own: {compared.text()}"))
    checks += _check_replays(bundle, reference)
    return ReplayResult(verdict, tuple(checks), comparisons, hashed)


def _check_signatures(bundle: Bundle, domain: Domain | None, signer: str | None) -> list[Check]:
    checks = []
    if domain is not None:
        text = "the contract and chain that were expected" if bundle.domain == domain else f"is {bundle.domain}"
        checks.append(Check("domain", bundle.domain == domain, text))
    named = [("commitment", bundle.commitment)]
    named += [(f"upstream {i}", one) for i, one in enumerate(bundle.upstream)]
    for name, signed in named:
        try:
            found = recover(digest(bundle.domain, signed.message), signed.signature)
            expected = signer if signer is not None and signed is bundle.commitment else signed.signer
            checks.append(Check(f"signature of {name}", found == expected, f"by {found}"))
        except (ProtocolError, ValueError) as error:
            checks.append(Check(f"signature of {name}", False, str(error)[:200]))
    return checks


def _hash(tensor: torch.Tensor) -> bytes:
    return encoded_hash(encode(tensor))


def _check_content(bundle: Bundle) -> list[Check]:
    """The signed hashes are those of the files."""
    message = bundle.commitment.message
    is_last = bundle.stage == bundle.num_stages - 1
    checks = []
    if message.direction == BACKWARD or is_last:
        got = None if bundle.incoming is None else backward_input_hash(_hash(bundle.input), _hash(bundle.incoming))
    else:
        got = _hash(bundle.input)
    checks.append(Check("input hash", got == message.input_hash, "the signed input is the one in the bundle"))
    if message.direction == BACKWARD:
        outgoing = None if bundle.output is None else _hash(bundle.output)
        got = None if bundle.sketch is None else backward_output_hash(outgoing, _hash(bundle.sketch))
    else:
        got = None if bundle.output is None else _hash(bundle.output)
    checks.append(Check("output hash", got == message.output_hash, "the signed output is the one in the bundle"))
    there = bundle.weights is not None and _hash(bundle.weights) == message.weights_hash
    checks.append(Check("weights", there, f"the weights {message.weights_hash.hex()[:16]} that were signed"))
    return checks


def _check_chain(bundle: Bundle, data_hashes: frozenset[bytes] | None) -> list[Check]:
    """Input and incoming gradient are outputs of accepted commitments of this microbatch, or rows of the data."""
    message = bundle.commitment.message
    last = bundle.num_stages - 1

    def link(stage: int, direction: int, wanted: bytes) -> bool:
        return any(
            (one.message.job_id, one.message.step, one.message.microbatch, one.message.direction)
            == (message.job_id, message.step, message.microbatch, direction)
            and one.message.slot // bundle.num_replicas == stage
            and one.message.output_hash == wanted
            for one in bundle.upstream
        )

    def data(name: str, tensor: torch.Tensor) -> Check:
        if data_hashes is None:
            return Check(f"chain of {name}", True, "believed: no data at hand to hold the rows against")
        return Check(f"chain of {name}", _hash(tensor) in data_hashes, "rows that the job's data gives")

    checks = []
    if bundle.stage == 0:
        checks.append(data("input", bundle.input))
    else:
        ok = link(bundle.stage - 1, FORWARD, _hash(bundle.input))
        checks.append(Check("chain of input", ok, f"the output of an accepted forward of stage {bundle.stage - 1}"))
    if bundle.incoming is not None and bundle.stage == last:
        checks.append(data("targets", bundle.incoming))
    elif message.direction == BACKWARD and bundle.incoming is not None:
        sketch = bundle.incoming_sketch_hash
        ok = sketch is not None and link(
            bundle.stage + 1, BACKWARD, backward_output_hash(_hash(bundle.incoming), sketch)
        )
        text = f"the gradient of an accepted backward of stage {bundle.stage + 1}"
        checks.append(Check("chain of incoming gradient", ok, text))
    return checks


def _check_replays(bundle: Bundle, reference: Recomputed) -> list[Check]:
    """Supporting evidence: reported, never decisive."""
    checks = []
    for index, replay in enumerate(bundle.replays):
        signed = replay.commitment
        try:
            by = recover(digest(bundle.domain, signed.message), signed.signature)
        except (ProtocolError, ValueError) as error:
            checks.append(Check(f"replay {index}", False, str(error)[:200]))
            continue
        verdict, _ = judge(Recomputed(replay.output, replay.sketch), reference, bundle.tolerance)
        ok = by == signed.signer and verdict.kind is VerdictKind.ACCEPT
        checks.append(Check(f"replay {index}", ok, f"by {by}: {verdict.reason}"))
    return checks


def describe(bundle: Bundle) -> list[str]:
    """What happened, for people: who, where, which number crossed which fence, what the recompute said."""
    message = bundle.commitment.message
    way = "backward" if message.direction == BACKWARD else "forward"
    lines = [
        f"job {message.job_id}, slot {message.slot} (stage {bundle.stage} of {bundle.num_stages}), nonce "
        f"{message.nonce}, signed by {bundle.commitment.signer}",
        f"{way} of microbatch {message.microbatch} in step {message.step}, driven by {message.verifier}, "
        f"session {message.session:#x}, sequence {message.sequence}",
    ]
    crossed = [score for score in bundle.screening.scores if score.crossed]
    if crossed:
        lines.append("raised suspicion: " + "; ".join(score.text() for score in crossed))
        inside = [score for score in bundle.screening.scores if not score.crossed and score.high_e6 is not None]
        if inside:
            lines.append("inside its fences: " + ", ".join(score.metric for score in inside))
    else:
        lines.append(f"looked at because: {bundle.screening.reason}")
    if bundle.replays:
        slots = ", ".join(str(one.commitment.message.slot) for one in bundle.replays)
        lines.append(f"replayed by slot {slots} (signed; supporting evidence)")
    for claimed, reference, name in (
        (bundle.output, bundle.recompute, "output"),
        (bundle.sketch, bundle.recompute_sketch, "sketch"),
    ):
        if claimed is not None and reference is not None:
            test = compare_sketch if name == "sketch" else compare
            lines.append(f"{name} against the recompute: {test(claimed, reference, bundle.tolerance).text()}")
    lines.append(f"{bundle.verdict.kind.value}: {bundle.verdict.reason}")
    return lines
