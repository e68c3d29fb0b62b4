"""``sentinel evidence``: look at a bundle, re-derive its verdict on a CPU without network, hand it on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from sentinel_market.cli.common import App, address, table, verb
from sentinel_market.errors import ConfigError, JobSpecError, ProtocolError, UserError

if TYPE_CHECKING:  # torch is slow to import
    from sentinel_market.domain.job_spec import JobSpec
    from verifier.evidence import AnyBundle, Known, ReplayResult

MAX_TAR_BYTES = 4 << 30
DIFFERS = 5
PROVES_NOTHING = 6


class Unreadable(UserError):  # noqa: N818
    """Files that are no bundle, or not the ones that their manifest names."""

    exit_code = PROVES_NOTHING


@click.group()
def evidence() -> None:
    """Evidence bundles: what a verdict rests on, for anybody to check."""


@contextmanager
def opened(source: Path) -> Iterator[tuple[Path, Path | None]]:
    """A bundle's directory, and where shared weights may lie: of a directory as it is, of a tar while in use. A
    stranger's files raise Unreadable, which names ``source`` and the way out."""
    from verifier.evidence import unpack

    if source.is_dir():
        with _named(source):
            yield source, None
        return
    try:
        size = source.stat().st_size
        if size > MAX_TAR_BYTES:
            raise Unreadable(f"{source} has {size} bytes; a bundle's tar has at most {MAX_TAR_BYTES}")
        data = source.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {source}: {error.strerror}; give a bundle's directory or its tar") from None
    with TemporaryDirectory() as name, _named(source):
        directory = Path(name) / "bundle"
        unpack(data, directory, max_bytes=MAX_TAR_BYTES)
        yield directory, source.absolute().parent / "weights"


@contextmanager
def _named(source: Path) -> Iterator[None]:
    try:
        yield
    except ProtocolError as error:
        raise Unreadable(
            f"{source}: {str(error)[:500]}; ask whoever sent it for the whole bundle (`sentinel evidence pack` makes a "
            "tar of it)"
        ) from None


@verb(
    evidence,
    "replay",
    example="""
sentinel evidence replay runs/*/evidence/step12-slot3-0011aabbccdd
sentinel evidence replay bundle.tar --job job.toml --signer 0x... --chain-id 31337 --json
""",
)
@click.argument("source", metavar="DIR|TAR", type=click.Path(path_type=Path))
@click.option(
    "--signer", help="Hot key that the chain snapshotted with the accused slot; else the bundle's is believed."
)
@click.option("--chain-id", type=int, help="Chain that the signatures must be for.")
@click.option("--contract", help="Address of the JobMarket that the signatures must be for.")
@click.option(
    "--job",
    "job_file",
    type=click.Path(path_type=Path),
    help="The job's file, or its spec: pins model, layout, policy and tolerance, and checks data rows where the data "
    "is at hand.",
)
@click.option(
    "--weights",
    type=click.Path(path_type=Path),
    help="The stage's weights where the bundle lacks them: file or folder.",
)
def replay_(
    app: App,
    source: Path,
    signer: str | None,
    chain_id: int | None,
    contract: str | None,
    job_file: Path | None,
    weights: Path | None,
) -> int:
    """Re-derive a verdict from its files alone, on this CPU, with no network.

    Exit code 0: the files give the verdict that they state. 5: they give another one. 6: they prove nothing, because
    a digest, a signature, the chain of inputs or something that was pinned does not hold.
    """
    from verifier.evidence import bundle_digest, read_any, replay_any

    if weights is not None and not weights.exists():
        raise ConfigError(f"--weights {weights} does not exist; give the file of the stage's weights or their folder")
    with opened(source) as (directory, beside):
        is_file = weights is not None and weights.is_file()
        bundle = read_any(
            directory,
            weights_directory=beside if weights is None or is_file else weights,
            weights_path=weights if is_file else None,
        )
        known, notes = _known(app, bundle, signer, chain_id, contract, job_file)
        result = replay_any(bundle, bundle_digest(directory), known)
    code = PROVES_NOTHING if not result.admissible else 0 if result.as_stated else DIFFERS
    app.emit(_replay_json(bundle, result, notes, code), "\n".join(_replay_lines(result, notes, code)))
    return code


def _replay_lines(result: ReplayResult, notes: list[str], code: int) -> list[str]:
    end = {
        0: f"re-derived: the files give the verdict that they state, {result.stated.kind.value}",
        DIFFERS: f"NOT as stated: it says {result.stated.kind.value}, its files say {result.verdict.kind.value}",
        PROVES_NOTHING: "this bundle proves nothing",
    }
    return [*result.lines(), *(f"note: {note}" for note in notes), end[code]]


def _replay_json(bundle: AnyBundle, result: ReplayResult, notes: list[str], code: int) -> dict[str, Any]:
    message = bundle.commitment.message
    return {
        "verdict": result.verdict.kind.value,
        "reason": result.verdict.reason,
        "stated": result.stated.kind.value,
        "as_stated": result.as_stated,
        "admissible": result.admissible,
        "exit_code": code,
        "evidence_hash": result.bundle_digest.hex(),
        "job_id": message.job_id,
        "slot": message.slot,
        "nonce": message.nonce,
        "step": message.step,
        "signer": bundle.commitment.signer,
        "checks": [{"name": c.name, "ok": c.ok, "decides": c.decides, "text": c.text} for c in result.checks],
        "comparisons": [
            {"criterion": c.criterion, "agrees": c.agrees, "error_e6": c.error_e6, "limit_e6": c.limit_e6}
            for c in result.comparisons
        ],
        "notes": notes,
    }


def _known(
    app: App, bundle: AnyBundle, signer: str | None, chain_id: int | None, contract: str | None, job_file: Path | None
) -> tuple[Known, list[str]]:
    """What the command line pins, and what it leaves to be believed."""
    import dataclasses

    from sentinel_market.models.jobs import model_config
    from verifier.check.calibrate import tolerance_for
    from verifier.context import check_policy
    from verifier.evidence import Known

    notes: list[str] = []
    message, domain = bundle.commitment.message, None
    if chain_id is not None or contract is not None:
        domain = bundle.domain
        if chain_id is not None:
            domain = dataclasses.replace(domain, chain_id=chain_id)
        if contract is not None:
            domain = dataclasses.replace(domain, verifying_contract=address(contract))
    if domain is None or chain_id is None or contract is None:
        notes.append("chain and contract are the bundle's own; pin them with --chain-id and --contract")
    signers = {} if signer is None else {message.slot: address(signer)}
    if signer is None:
        notes.append(
            f"that slot {message.slot} belongs to {bundle.commitment.signer} is believed; pin it with --signer"
        )
    if job_file is None:
        notes.append("model, layout, policy and tolerance are the bundle's own; pin them with --job")
        return Known(domain=domain, signers=signers), notes
    spec = load_spec(job_file)
    return Known(
        domain=domain,
        signers=signers,
        layout=(spec.parallelism.stages, spec.parallelism.replicas),
        model=model_config(spec),
        tolerance=tolerance_for("float32", "cpu"),
        policy=check_policy(spec),
        dtype="float32",
        data_hashes=_data_hashes(app, bundle, spec, notes),
    ), notes


def load_spec(path: Path) -> JobSpec:
    """A job file (TOML) or a spec as the coordinator keeps it (canonical JSON)."""
    from sentinel_market.cli.job import load_job_file
    from sentinel_market.domain.job_spec import MAX_SPEC_BYTES, JobSpec

    try:
        with path.open("rb") as file:
            head = file.read(MAX_SPEC_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the job file {path}: {error.strerror}; give the file that was posted") from None
    return JobSpec.from_canonical(head) if head.startswith(b"{") else load_job_file(path)


def _data_hashes(app: App, bundle: AnyBundle, spec: JobSpec, notes: list[str]) -> frozenset[bytes] | None:
    """Hashes of the rows that the job's data gives for these microbatches; None where the data is not at hand."""
    from sentinel_market.cli.job import checked_corpus
    from sentinel_market.data.corpus import batch
    from sentinel_market.wire.tensors import tensor_hash

    if 0 < bundle.stage < bundle.num_stages - 1:
        return None
    if not spec.data.train_digest:
        notes.append("the job file names no digest of its data: the rows are held against the data that is here")
    app.note("reading the data ...")
    try:
        corpus = checked_corpus(spec)
    except (ConfigError, JobSpecError) as error:
        notes.append(f"the token rows are believed, since the job's data is not here: {error}")
        return None
    message = bundle.commitment.message
    found: set[bytes] = set()
    for microbatch in set(bundle.microbatches):
        rows = batch(
            corpus.train,
            seed=spec.seed,
            step=message.step,
            microbatch=microbatch,
            batch_size=spec.training.microbatch_size,
            seq_len=spec.model.seq_len,
        )
        found |= {tensor_hash(tensor) for tensor in rows}
    return frozenset(found)


@verb(evidence, "show", example="sentinel evidence show runs/*/evidence/step12-slot3-0011aabbccdd")
@click.argument("source", metavar="DIR|TAR", type=click.Path(path_type=Path))
def show(app: App, source: Path) -> None:
    """What is in a bundle: who is accused, of what, by which numbers, and every file. Nothing is recomputed."""
    from verifier.evidence import bundle_digest, describe_any, read_any, read_manifest
    from verifier.evidence.bundle import printable

    with opened(source) as (directory, beside):
        bundle = read_any(directory, weights_directory=beside)
        manifest = read_manifest(directory)
        digest = bundle_digest(directory).hex()
        sizes = {name: (directory / name).stat().st_size for name in manifest["files"] if (directory / name).is_file()}
    files: list[dict[str, Any]] = [
        {"file": name, "bytes": sizes[name], "digest": manifest["files"][name]}
        for name in sorted(manifest["files"])
        if name in sizes
    ]
    weights = "not here" if bundle.weights is None else f"{bundle.weights.numel():,} numbers"
    lines = [
        f"evidence {digest}",
        *describe_any(bundle),
        "",
        table(("FILE", "BYTES", "DIGEST"), [(f["file"], f["bytes"], str(f["digest"])[:16]) for f in files]),
        f"weights {manifest['weights'][:16]}: {weights}",
        f"made by {printable(', '.join(f'{k} {v}' for k, v in sorted(bundle.versions.items())))}",
        f"`sentinel evidence replay {source}` re-derives the verdict",
    ]
    app.emit(
        {
            "evidence_hash": digest,
            "lines": describe_any(bundle),
            "files": files,
            "weights_here": bundle.weights is not None,
            "manifest": manifest,
        },
        "\n".join(lines),
    )


@verb(evidence, "pack", example="sentinel evidence pack runs/*/evidence/step12-slot3-0011aabbccdd bundle.tar")
@click.argument("source", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.argument("target", metavar="TAR", type=click.Path(path_type=Path, dir_okay=False))
def pack_(app: App, source: Path, target: Path) -> None:
    """Make one tar of a bundle, with the weights that it shares with others, to hand to somebody else."""
    from verifier.evidence import bundle_digest, pack, read_any

    with opened(source) as (directory, _):
        bundle = read_any(directory)
        data = pack(directory, weights_directory=directory.absolute().parent / "weights")
        digest = bundle_digest(directory).hex()
    try:
        target.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror}") from None
    weights = "" if bundle.weights is not None else "; WITHOUT the weights, which are not here"
    app.emit(
        {"file": str(target), "bytes": len(data), "evidence_hash": digest, "weights": bundle.weights is not None},
        f"{target}: {len(data):,} bytes, evidence {digest}{weights}",
    )
