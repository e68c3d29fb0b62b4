"""Bundles to directories and tars, and back from a stranger's."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import blake3
import numpy as np
import safetensors
import safetensors.torch
import torch

from sentinel_market.chain.eip712 import Domain
from sentinel_market.domain.messages import FrameCommitment
from sentinel_market.errors import ConfigError, ProtocolError
from sentinel_market.models.config import ModelConfig
from sentinel_market.wire.tensors import HEADER_BYTES, decode, encode, encoded_hash, header
from verifier.check.baseline import Baseline
from verifier.check.policy import Policy
from verifier.check.tolerance import Tolerance
from verifier.check.verdict import Verdict
from verifier.evidence.bundle import BAD_COMPUTE, Bundle, SignedCommitment, SignedReplay
from verifier.evidence.history import history_from_json
from verifier.evidence.recompute import DTYPES

VERSION = 2
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 1 << 20
MAX_FILES = 64
MAX_TENSORS = 1024
"""Files under ``tensors/``, which a bundle of a whole gradient has; they come on top of the others."""
MAX_STAGES = 4096
MAX_LAYERS = 4096
MAX_DEPTH = 32
BASELINE = "baseline.safetensors"
MAX_WEIGHTS_BYTES = 2 << 30
"""Larger weights stay out of bundle and tar: whoever replays gives the path to its own, checked by its digest."""
_TENSOR_FILES = ("input", "incoming", "output", "sketch", "recompute", "recompute_sketch")
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_BRACKETS = re.compile(rb"[\[\]{}]")
_NAME = re.compile(
    r"manifest\.json|baseline\.safetensors|(?:input|incoming|output|sketch|recompute|recompute_sketch)\.snt"
    r"|replays/[0-9]{1,2}\.(?:output|sketch)\.snt|(?:weights|tensors)/[0-9a-f]{64}\.snt"
)


def write_bundle(
    directory: Path,
    bundle: Bundle,
    *,
    weights_directory: Path | None = None,
    max_weights_bytes: int = MAX_WEIGHTS_BYTES,
) -> bytes:
    """Write ``bundle`` and return its digest (32 bytes). The weights go to ``weights_directory`` if one is given
    (shared by the bundles of a step), else under ``directory``; over ``max_weights_bytes`` nowhere. Their digest is in
    the manifest either way."""
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
    if bundle.baseline is not None:
        data = safetensors.torch.save(dict(sorted(bundle.baseline.state_dict().items())))
        (directory / BASELINE).write_bytes(data)
        files[BASELINE] = data
    if bundle.weights is not None and bundle.weights.nbytes <= max_weights_bytes:
        data = encode(bundle.weights)
        path = (weights_directory or directory / "weights") / f"{encoded_hash(data).hex()}.snt"
        put_weights(path, data)
    manifest = _manifest(bundle, {name: encoded_hash(data).hex() for name, data in files.items()})
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
    (directory / MANIFEST).write_bytes(text)
    return blake3.blake3(text).digest()


def put_weights(path: Path, data: bytes) -> None:
    """Write weights under their digest, unless they are there already; what is there under a wrong name is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not (path.is_file() and path.stat().st_size == len(data) and _file_digest(path) == path.stem):
        # by renaming: another bundle of this step may be reading it
        part = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.part")
        part.write_bytes(data)
        part.replace(path)


def _file_digest(path: Path) -> str:
    hasher = blake3.blake3()
    hasher.update_mmap(path)
    return str(hasher.hexdigest())


def share_weights(directory: Path, weights_directory: Path) -> None:
    """Move a bundle's weights to where other bundles find them too. Weights that are not what their name says stay."""
    for path in sorted((directory / "weights").glob("*.snt")):
        if path.is_symlink() or _file_digest(path) != path.stem:
            continue
        target = weights_directory / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)


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
        "kind": BAD_COMPUTE,
        "num_stages": bundle.num_stages,
        "num_replicas": bundle.num_replicas,
        "domain": asdict(bundle.domain),
        "model": {k: repr(v) if isinstance(v, float) else v for k, v in asdict(bundle.model).items()},
        "commitment": signed_to_json(bundle.commitment),
        "upstream": [signed_to_json(one) for one in bundle.upstream],
        "incoming_sketch_hash": None if bundle.incoming_sketch_hash is None else bundle.incoming_sketch_hash.hex(),
        "replays": [signed_to_json(one.commitment) for one in bundle.replays],
        "policy": bundle.policy.to_json(),
        "tolerance": bundle.tolerance.to_json(),
        "screening": bundle.screening.to_json(),
        "history": [one.to_json() for one in bundle.history],
        "dtype": bundle.dtype,
        "weights": message.weights_hash.hex(),
        "verdict": bundle.verdict.to_json(),
        "versions": dict(bundle.versions),
        "files": files,
    }


def signed_to_json(signed: SignedCommitment) -> dict[str, object]:
    message = {k: v.hex() if isinstance(v, bytes) else v for k, v in asdict(signed.message).items()}
    return {"message": message, "signature": signed.signature.hex(), "signer": signed.signer}


def bundle_digest(directory: Path) -> bytes:
    """BLAKE3 of the manifest, which names the digest of every file."""
    return blake3.blake3(_manifest_bytes(directory)).digest()


def _manifest_bytes(directory: Path) -> bytes:
    path = directory / MANIFEST
    if not path.is_file() or path.stat().st_size > MAX_MANIFEST_BYTES:
        raise ProtocolError("evidence", f"no {MANIFEST} of at most {MAX_MANIFEST_BYTES} bytes in the bundle")
    return path.read_bytes()


def parse_json(data: bytes) -> Any:
    """A stranger's JSON; ValueError for anything else, and for deep nesting, which would overrun the C stack in
    processes where a library has raised the recursion limit."""
    depth = 0
    for bracket in _BRACKETS.findall(_STRINGS.sub(b"", data)):
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
    return json.loads(data)


def read_manifest(directory: Path) -> dict[str, Any]:
    """A stranger's manifest as plain data, of this version; nothing else about it is checked. ProtocolError."""
    try:
        data = parse_json(_manifest_bytes(directory))
    except (ValueError, RecursionError, OSError) as error:
        raise ProtocolError("evidence", f"{MANIFEST} is not JSON: {error}"[:300]) from error
    if not isinstance(data, dict) or data.get("version") != VERSION:
        found = data.get("version") if isinstance(data, dict) else None
        raise ProtocolError(
            "evidence",
            f"{MANIFEST} has version {found!r:.40}, this program reads version {VERSION}; replay it with the release "
            "that wrote it",
        )
    return data


def read_bundle(
    source: Path, *, weights_directory: Path | None = None, weights_path: Path | None = None, max_bytes: int = 2 << 30
) -> Bundle:
    """Read a bundle's directory. Every file is held against its digest; anything odd is ProtocolError("evidence").

    The weights are looked for in the bundle, in ``weights_directory``, and in the folder ``weights`` beside the bundle,
    by their digest; ``weights_path`` is one file of any name and size that is the reader's own. Weights that are
    nowhere leave ``weights`` None.
    """
    with as_evidence():
        return _read(source, read_manifest(source), weights_directory, weights_path, max_bytes)


@contextmanager
def as_evidence() -> Iterator[None]:
    """Whatever goes wrong with a stranger's manifest inside is ProtocolError("evidence")."""
    try:
        yield
    except ProtocolError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, ConfigError, OSError, RecursionError) as error:
        raise ProtocolError("evidence", f"the manifest does not hold together: {error!r}"[:300]) from error


def _read(
    source: Path, data: dict[str, Any], weights_directory: Path | None, weights_path: Path | None, max_bytes: int
) -> Bundle:
    if data["kind"] != BAD_COMPUTE:
        raise ProtocolError(
            "evidence", f"kind {data['kind']!r:.40} is not {BAD_COMPUTE}, a frame that was computed wrong"
        )
    files = data["files"]
    if not isinstance(files, dict) or len(files) > MAX_FILES:
        raise ProtocolError("evidence", f"a bundle lists at most {MAX_FILES} files")

    def load(name: str) -> torch.Tensor | None:
        return load_tensor(source / name, files[name], max_bytes) if name in files else None

    replays = tuple(
        SignedReplay(
            commitment=signed_from_json(one),
            output=load(f"replays/{index}.output.snt"),
            sketch=load(f"replays/{index}.sketch.snt"),
        )
        for index, one in enumerate(data["replays"][:MAX_FILES])
    )
    commitment = signed_from_json(data["commitment"])
    given = load("input.snt")
    if given is None:
        raise ProtocolError("evidence", "the bundle has no input.snt")
    wanted = commitment.message.weights_hash.hex()
    if data["weights"] != wanted:
        raise ProtocolError("evidence", f"weights {data['weights']!r:.80} are not those that were signed, {wanted}")
    weights = find_weights(source, wanted, weights_directory, weights_path, max_bytes)
    dtype = data["dtype"]
    if dtype not in DTYPES:
        raise ProtocolError("evidence", f"dtype {dtype!r:.40} is none of {', '.join(DTYPES)}")
    sketch_hash = data["incoming_sketch_hash"]
    bundle = Bundle(
        domain=typed_from_json(Domain, data["domain"]),
        model=model_from_json(data["model"]),
        num_stages=checked_count(data["num_stages"]),
        num_replicas=checked_count(data["num_replicas"]),
        commitment=commitment,
        upstream=tuple(signed_from_json(one) for one in data["upstream"][:MAX_FILES]),
        incoming_sketch_hash=None if sketch_hash is None else bytes.fromhex(sketch_hash),
        replays=replays,
        policy=Policy.from_json(data["policy"]),
        tolerance=typed_from_json(Tolerance, data["tolerance"]),
        screening=Verdict.from_json(data["screening"]),
        baseline=_baseline(source / BASELINE, files[BASELINE], max_bytes) if BASELINE in files else None,
        history=history_from_json(data["history"]),
        dtype=dtype,
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


def find_weights(
    source: Path, wanted: str, weights_directory: Path | None, weights_path: Path | None, max_bytes: int
) -> torch.Tensor | None:
    if weights_path is not None:
        return load_weights(weights_path, wanted)
    name = f"{wanted}.snt"
    for folder in (source / "weights", weights_directory, source.absolute().parent / "weights"):
        if folder is not None and (folder / name).is_file():
            return load_tensor(folder / name, wanted, max_bytes)
    return None


def load_weights(path: Path, wanted: str) -> torch.Tensor:
    """Flat fp32 weights [N] of any size from the reader's own file, mapped into memory rather than read. Raises
    ProtocolError("evidence") when they are not the weights of digest ``wanted`` (64 hex digits)."""
    try:
        size = path.stat().st_size - HEADER_BYTES
        found = _file_digest(path)
    except (OSError, ValueError) as error:
        raise ProtocolError("evidence", f"the weights {path} cannot be read: {error}"[:300]) from error
    if found != wanted:
        raise ProtocolError("evidence", f"{path} has digest {found}, the bundle needs weights of digest {wanted}")
    with path.open("rb") as file:
        if size < 4 or size % 4 or file.read(HEADER_BYTES) != header(torch.float32, (size // 4,)):
            raise ProtocolError("evidence", f"{path} holds no flat float32 weights")
    return torch.from_numpy(np.memmap(path, dtype=np.float32, mode="c", offset=HEADER_BYTES))


def _baseline(path: Path, expected: str, max_bytes: int) -> Baseline:
    data = _checked_bytes(path, expected, max_bytes)
    try:
        state = safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ProtocolError("evidence", f"{path.name} cannot be read: {error}"[:300]) from error
    return Baseline.from_state_dict(state)


def checked_count(value: object) -> int:
    if type(value) is not int or not 1 <= value <= MAX_STAGES:
        raise ProtocolError("evidence", f"{value!r} is no number of stages or replicas")
    return value


def load_tensor(path: Path, expected: str, max_bytes: int) -> torch.Tensor:
    return decode(_checked_bytes(path, expected, max_bytes), max_bytes=max_bytes)


def _checked_bytes(path: Path, expected: str, max_bytes: int) -> bytes:
    if path.is_symlink() or not path.is_file() or path.stat().st_size > max_bytes:
        raise ProtocolError("evidence", f"{path.name} is missing, a link, or larger than {max_bytes} bytes")
    data = path.read_bytes()
    if encoded_hash(data).hex() != expected:
        raise ProtocolError("evidence", f"{path.name} is not what the manifest names: its digest differs")
    return data


def typed_from_json(cls: type[Any], data: object) -> Any:
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


def signed_from_json(data: Any) -> SignedCommitment:
    signer = data["signer"]
    if not isinstance(signer, str):
        raise ProtocolError("evidence", "signer must be an address")
    message: FrameCommitment = typed_from_json(FrameCommitment, data["message"])
    return SignedCommitment(message=message, signature=bytes.fromhex(data["signature"]), signer=signer)


def model_from_json(data: Any) -> ModelConfig:
    values: dict[str, Any] = {}
    for item in fields(ModelConfig):
        value = data[item.name]
        values[item.name] = float(value) if item.type == "float" else value
        if item.type == "int" and type(value) is not int:
            raise ProtocolError("evidence", f"model.{item.name} = {value!r} is no integer")
    config = ModelConfig(**values)
    problems = config.validate()
    if config.num_layers > MAX_LAYERS:
        problems.append(f"num_layers is {config.num_layers}, at most {MAX_LAYERS} are taken")
    if problems:
        raise ProtocolError("evidence", f"model: {'; '.join(problems)}"[:300])
    return config


def pack(directory: Path, *, weights_directory: Path | None = None) -> bytes:
    """The bundle as an uncompressed tar, the same bytes for the same files: sorted, no times, no owners. Weights that
    the bundle shares with others are put in from ``weights_directory``."""
    found: dict[str, Path] = {}
    for path in directory.rglob("*"):
        name = path.relative_to(directory).as_posix()
        if not path.is_symlink() and path.is_file() and _NAME.fullmatch(name):
            found[name] = path
    if weights_directory is not None:
        name = f"{read_manifest(directory).get('weights')}.snt"
        if _NAME.fullmatch(f"weights/{name}") and (weights_directory / name).is_file():
            found.setdefault(f"weights/{name}", weights_directory / name)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, path in sorted(found.items()):
            data = path.read_bytes()
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def unpack(data: bytes, directory: Path, *, max_bytes: int = 2 << 30) -> None:
    """Write a stranger's tar into ``directory``: only names that a bundle has, only plain files, no duplicates, at most
    64 files, 1024 more under ``tensors/``, and ``max_bytes`` together. ProtocolError("evidence") otherwise, before
    anything is written."""
    if len(data) > max_bytes + (MAX_FILES + MAX_TENSORS + 20) * 1024:
        raise ProtocolError("evidence", f"a tar of {len(data)} bytes, at most {max_bytes} are taken")
    found: dict[str, bytes] = {}
    total, counts = 0, {False: 0, True: 0}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for member in tar:
                plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and member.sparse is None
                total += member.size
                if not plain or not _NAME.fullmatch(member.name) or member.name in found:
                    raise ProtocolError("evidence", f"a bundle holds no {member.name!r:.80}")
                is_tensor = member.name.startswith("tensors/")
                many = MAX_TENSORS if is_tensor else MAX_FILES
                counts[is_tensor] += 1
                if total > max_bytes or counts[is_tensor] > many:
                    raise ProtocolError("evidence", f"more than {max_bytes} bytes or {many} files")
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
