"""``sentinel job``."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sentinel_market.cli.common import App, job_or_fail, table, tokens, verb
from sentinel_market.errors import ChainMismatch, ConfigError, JobSpecError, PeerGone, SentinelError

if TYPE_CHECKING:
    from sentinel_market.data.corpus import Corpus
    from sentinel_market.domain.job_spec import JobSpec
    from sentinel_market.domain.quote import Quote
    from sentinel_market.sim.calibrate import WorkerNeeds
    from sentinel_market.wire.http_client import CoordinatorClient

OVER = ("settled", "cancelled")


@click.group()
def job() -> None:
    """Training jobs: a commented TOML file, a price, an escrow, a model."""


def load_job_file(path: Path) -> JobSpec:
    """Read and check a job file. JobSpecError lists everything that is wrong with it."""
    from sentinel_market.domain.job_spec import MAX_SPEC_BYTES, parse_job

    try:
        with path.open("rb") as file:
            raw = file.read(MAX_SPEC_BYTES + 1)
        text = raw.decode("utf-8")
    except OSError as exc:
        raise ConfigError(
            f"cannot read the job file {path}: {exc.strerror}; `sentinel job init {path}` writes one"
        ) from None
    except UnicodeDecodeError as exc:
        raise JobSpecError([f"{path} is not UTF-8 text: {exc.reason} at byte {exc.start}"]) from None
    return parse_job(text)


def checked_corpus(spec: JobSpec) -> Corpus:
    """The job's data, read here and now. JobSpecError when the spec names other data, ConfigError without any."""
    from sentinel_market.data.corpus import load_corpus

    corpus = load_corpus(
        spec.data.kind,
        spec.data.path or None,
        spec.data.tokenizer,
        validation_fraction_ppm=spec.data.validation_ppm,
        vocab_size=spec.model.vocab_size,
        seq_len=spec.model.seq_len,
    )
    for name, found, wanted in (
        ("train_digest", corpus.train_digest, spec.data.train_digest),
        ("validation_digest", corpus.validation_digest, spec.data.validation_digest),
    ):
        if wanted and wanted != found:
            raise JobSpecError(
                [
                    f"data.{name} = {wanted[:16]}... in the file, but the data here has {found[:16]}... (Python "
                    f"{platform.python_version()}); remove the line, or use the data that it was made with"
                ]
            )
    return corpus


def with_data(spec: JobSpec) -> JobSpec:
    """The spec with the digests of its data, which is read here and now."""
    corpus = checked_corpus(spec)
    return spec.with_data(
        train_digest=corpus.train_digest,
        validation_digest=corpus.validation_digest,
        python=platform.python_version(),
    )


@verb(job, "init", example="sentinel job init job.toml")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite the file.")
def init(app: App, path: Path, force: bool) -> None:
    """Write a commented job file that runs as it is."""
    from sentinel_market.domain.job_spec import template

    if path.exists() and not force:
        raise ConfigError(f"{path} exists already; choose another name, or --force to overwrite it")
    try:
        path.write_text(template(), encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"cannot write {path}: {exc.strerror}") from None
    app.emit({"file": str(path)}, f"wrote {path}; `sentinel job quote {path}` prices it")


@verb(job, "quote", example="sentinel job quote job.toml")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
def quote_(app: App, path: Path) -> int:
    """Price a job file under the market's parameters: each term, each stake, what a seat must be able to do."""
    from sentinel_market.domain.quote import quote
    from sentinel_market.sim.calibrate import calibrate

    spec = load_job_file(path)
    found = quote(spec, app.reader.params.get().quote_params())
    needs = calibrate(spec).needs
    app.emit(_quote_json(found, needs), _quote_text(found, needs))
    return 0 if found.surplus >= 0 and all(check.holds for check in found.checks) else 2


def needs_table(needs: Sequence[WorkerNeeds]) -> str:
    """What a worker asks of all verifiers together, and of its link."""
    rows = [
        (
            f"{one.tflops} TFLOP/s",
            f"{one.tokens_per_second:,.0f}",
            f"{one.audit_cores:,.2f}",
            f"{one.screen_cores:,.2f}",
            f"{one.mbits:,.0f}",
        )
        for one in needs
    ]
    return table(("A WORKER OF", "TOKENS/S", "CORES FOR AUDITS", "CORES FOR SCREENS", "MBIT/S"), rows)


def _quote_json(found: Quote, needs: Sequence[WorkerNeeds]) -> dict[str, Any]:
    return {
        "lines": [{"name": term.name, "amount": str(term.amount), "formula": term.formula} for term in found.terms()],
        "minimum": str(found.minimum),
        "budget": str(found.budget),
        "enough": found.surplus >= 0,
        "checks": [
            {
                "name": check.name,
                "needed": str(check.needed),
                "had": str(check.had),
                "holds": check.holds,
                "formula": check.formula,
            }
            for check in found.checks
        ],
        "expected_recomputes": found.expected_recomputes,
        "train_flops": str(found.train_flops),
        "seat_flops": str(found.seat_flops),
        "relay_bytes": str(found.relay_bytes),
        "roots_needed": found.roots_needed,
        "a_worker_needs": [
            {"tflops": one.tflops, "verifier_cores": round(one.cores, 3), "mbit_per_second": round(one.mbits, 1)}
            for one in needs
        ],
    }


def _quote_text(found: Quote, needs: Sequence[WorkerNeeds]) -> str:
    lines = [(term.name, tokens(term.amount), term.formula) for term in found.terms()]
    checks = [
        (check.name, tokens(check.had), f"needs {tokens(check.needed)}", "ok" if check.holds else "TOO LOW")
        for check in found.checks
    ]
    return "\n".join(
        [
            table(("TERM", "TOKENS", "FROM"), lines),
            "",
            table(("STAKE", "TOKENS", "", ""), checks),
            "",
            f"workers compute {found.train_flops:.3g} FLOPs in all; a seat adds {found.seat_flops:.3g} for "
            f"{found.expected_recomputes} expected recomputes and relays {found.relay_bytes / 1e6:.1f} MB",
            "",
            needs_table(needs),
            "at full speed, of all verifiers together; `sentinel sim calibrate` says how and for other cores",
        ]
    )


@verb(job, "post", example="sentinel job post sam job.toml")
@click.argument("name")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--deadline", "deadline_seconds", type=int, help="Seconds until anyone may close the job.")
def post(app: App, name: str, path: Path, deadline_seconds: int | None) -> None:
    """Check a job file, price it, pay its budget into the escrow and post it."""
    from sentinel_market.chain.job_market import JobTerms
    from sentinel_market.domain.quote import check_budget

    app.identity(name)
    spec = load_job_file(path)
    params = app.reader.params.get()
    found = check_budget(spec, params.quote_params())
    app.note("reading the data ...")
    spec = with_data(spec)
    client = app.cold(name)
    terms = JobTerms.of(spec, now=client.now(), params_version=params.version, deadline_seconds=deadline_seconds)
    uri = f"{app.network.coordinator}/specs/{app.coordinator.put_spec(spec)}"
    receipt, job_id = client.market.post_job(terms, uri)
    app.emit(
        {
            "job_id": job_id,
            "tx": receipt.hash,
            "spec_digest": spec.digest().hex(),
            "budget": str(terms.budget),
            "minimum": str(found.minimum),
            "claim_deadline": terms.claim_deadline,
            "deadline": terms.deadline,
            "uri": uri,
        },
        f"job {job_id}: {tokens(terms.budget)} tokens in the escrow; {terms.stages} x {terms.replicas} slots and "
        f"{terms.num_seats} seats can be taken. Follow it with `sentinel job watch {job_id}`",
    )


@verb(job, "show", example="sentinel job show 1")
@click.argument("job_id", metavar="JOB", type=int)
def show(app: App, job_id: int) -> None:
    """Show a job: state, seats, slots, money."""
    found = job_or_fail(app, job_id)
    client = app.reader
    money = client.escrow.money(job_id)
    held = sum(one.state in ("claimed", "exiting") for one in client.market.slots(job_id))
    now = client.now()
    left = f"{max(0, found.deadline - now)} s left" if found.state not in OVER else "over"
    lines = [
        f"job        {job_id}  {found.state.upper()}",
        f"submitter  {found.submitter}",
        f"spec       {found.spec_digest.hex()}",
        f"slots      {held} of {found.num_slots} held ({found.stages} stages x {found.replicas} replicas), "
        f"stake {tokens(found.slot_stake)} each",
        f"seats      {found.seats_taken} of {found.num_seats} taken, quorum {found.quorum}, stake "
        f"{tokens(found.seat_stake)} each",
        f"deadline   {left}",
        f"money      budget {tokens(money.budget)}, promised {tokens(money.paid)}, claimed {tokens(money.claimed)}, "
        f"fee {tokens(money.fee)}, refunded {tokens(money.refunded)}",
        f"cases      {found.open_cases} open",
    ]
    data = {**_fields(found), "slots_held": held, "money": {**_fields(money)}}
    for key in ("budget", "slot_stake", "seat_stake"):
        data[key] = str(data[key])
    data["money"] = {k: v if isinstance(v, bool) else str(v) for k, v in data["money"].items()}
    data["spec_digest"] = found.spec_digest.hex()
    app.emit(data, "\n".join(lines))


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


@verb(job, "list", example="sentinel job list --json")
@click.option("--limit", default=20, show_default=True, help="How many, newest first.")
def list_jobs(app: App, limit: int) -> None:
    """List jobs, newest first."""
    client = app.reader
    count = client.market.job_count()
    rows, data = [], []
    for job_id in range(count, max(0, count - limit), -1):
        found = client.market.job(job_id)
        rows.append(
            (
                job_id,
                found.state,
                f"{found.slots_claimed}/{found.num_slots}",
                f"{found.seats_taken}/{found.num_seats}",
                tokens(found.budget),
                found.submitter,
            )
        )
        data.append(
            {
                "job_id": job_id,
                "state": found.state,
                "slots_claimed": found.slots_claimed,
                "slots": found.num_slots,
                "seats_taken": found.seats_taken,
                "seats": found.num_seats,
                "budget": str(found.budget),
                "submitter": found.submitter,
            }
        )
    app.emit(data, table(("JOB", "STATE", "SLOTS", "SEATS", "BUDGET", "SUBMITTER"), rows) if rows else "no jobs yet")


@verb(job, "cancel", example="sentinel job cancel sam 1")
@click.argument("name")
@click.argument("job_id", metavar="JOB", type=int)
def cancel(app: App, name: str, job_id: int) -> None:
    """Take a job back: at once with a full refund while nothing is claimed; later it closes, earned pay stays paid."""
    found = job_or_fail(app, job_id)
    client = app.cold(name)
    if found.state == "open":
        client.market.cancel_job(job_id)
        receipt = client.escrow.withdraw_refund(job_id)
        amount = receipt.event("Refunded").args["amount"]
        text = f"job {job_id} is cancelled, {tokens(amount)} tokens are refunded"
        data = {"job_id": job_id, "state": "cancelled", "refunded": str(amount), "tx": receipt.hash}
    else:
        receipt = client.market.close_job(job_id)
        text = f"job {job_id} is closing: last pay within the evidence tail; then `sentinel pay claim {name}` refunds"
        data = {"job_id": job_id, "state": "closing", "refunded": "0", "tx": receipt.hash}
    app.emit(data, text)


@verb(job, "settle", example="sentinel job settle alice 1")
@click.argument("name")
@click.argument("job_id", metavar="JOB", type=int)
def settle(app: App, name: str, job_id: int) -> None:
    """Push what time has decided on a job: close it past its deadline, divide its money after the evidence tail."""
    found = job_or_fail(app, job_id)
    client = app.hot(name)
    if found.state == "closing":
        receipt = client.market.settle_job(job_id)
    else:
        receipt = client.market.push_timeout(job_id)
    state = client.market.job(job_id).state
    app.emit({"job_id": job_id, "state": state, "tx": receipt.hash}, f"job {job_id} is {state}")


@verb(job, "watch", example="sentinel job watch 1")
@click.argument("job_id", metavar="JOB", type=int)
@click.option("--interval", default=1.0, show_default=True, help="Seconds between two looks.")
@click.option("--once", is_flag=True, help="Look once and return.")
def watch(app: App, job_id: int, interval: float, once: bool) -> None:
    """Follow a job until its money is divided: steps, losses, verdicts. With --json one object a line."""
    import json

    from sentinel_market.wire.http_client import Refused

    job_or_fail(app, job_id)
    since, after, state, told = 0, 0, "", ""

    def line(kind: str, data: dict[str, Any], text: str) -> None:
        click.echo(json.dumps({"kind": kind, **data}) if app.as_json else text)

    while True:
        found = app.reader.market.job(job_id)
        if found.state != state:
            state = found.state
            slots = f"{found.slots_claimed}/{found.num_slots} slots, {found.seats_taken}/{found.num_seats} seats"
            line("state", {"state": state}, f"job {job_id} is {state} ({slots})")
        try:
            metrics = app.coordinator.metrics(job_id, since)
            verdicts = app.coordinator.verdicts(job_id, after)
            told = ""
        except (PeerGone, Refused) as exc:  # Refused: the coordinator has not indexed the job yet
            metrics, verdicts = None, []
            if str(exc) != told:
                told = str(exc)
                line("problem", {"problem": told}, told)
        if metrics is not None:
            since = metrics.next_since
            for step in metrics.steps:
                line("step", step.model_dump(), _step_text(step))
        for one in verdicts:
            after = max(after, one.id)
            event = one.event
            text = f"  step {event.step}: {event.kind} of slot {event.slot} by {one.verifier}: {event.reason}"
            line("verdict", {"verifier": one.verifier, **event.model_dump()}, text)
        if once or state in OVER:
            return
        time.sleep(interval)


def _step_text(step: Any) -> str:
    parts = [f"step {step.step}"]
    if step.loss is not None:
        parts.append(f"loss {step.loss:.4f}")
    if step.validation_loss is not None:
        parts.append(f"validation loss {step.validation_loss:.4f}")
    if step.tokens_per_second:
        parts.append(f"{step.tokens_per_second:,.0f} tokens/s")
    parts += [f"{getattr(step, name)} {name}" for name in ("suspects", "quarantines", "bans") if getattr(step, name)]
    return "  ".join(parts)


@verb(job, "pull", example="sentinel job pull 1 model/")
@click.argument("job_id", metavar="JOB", type=int)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--manifest", help="Digest of the checkpoint's manifest (64 hex digits); by default the newest one's.")
def pull(app: App, job_id: int, directory: Path, manifest: str | None) -> None:
    """Collect the model of a job: safetensors and a Hugging Face config. Every part is checked against its digest, and
    the checkpoint against a step record that a quorum of the job's seats (as the chain names them) signed."""
    found = job_or_fail(app, job_id)
    client = app.coordinator
    spec = client.spec(found.spec_digest)
    if manifest is not None and (len(manifest) != 64 or set(manifest) - set("0123456789abcdef")):
        raise ConfigError(f"--manifest {manifest!r} is not 64 lower-case hex digits")
    digest, record = newest_checkpoint(client, job_id) if manifest is None else (manifest, None)
    proof = "believed: --manifest names it and no record was asked for"
    if record is not None:
        proof = check_record(app, job_id, found.quorum, digest, client.get(record))
    step, files = export_checkpoint(client, spec, job_id, digest, directory)
    app.emit(
        {"job_id": job_id, "step": step, "manifest": digest, "proof": proof, "files": [str(path) for path in files]},
        f"the model after step {step} is in {directory} ({proof}):\n" + "\n".join(f"  {path}" for path in files),
    )


def newest_checkpoint(coordinator: CoordinatorClient, job_id: int) -> tuple[str, str]:
    """Digests of the newest checkpoint's manifest and of its signed step record, as the seats publish them."""
    from sentinel_market.wire.http_client import Refused

    found, since = ("", ""), 0
    while True:
        try:
            page = coordinator.metrics(job_id, since)
        except Refused as exc:
            if exc.code != "unknown-job":  # not indexed yet, so there is no checkpoint either
                raise
            break
        for step in page.steps:
            if step.checkpoint and step.record:
                found = (step.checkpoint, step.record)
        if page.next_since == since:
            break
        since = page.next_since
    if not found[0]:
        raise ConfigError(
            f"no checkpoint of job {job_id} is known at the coordinator (one is made at the end of each epoch); "
            "wait, or name one with --manifest"
        )
    return found


def check_record(app: App, job_id: int, quorum: int, manifest: str, data: bytes) -> str:
    """What ties a manifest to the chain: a step record with its digest, signed by a quorum of the job's seats."""
    from google.protobuf.message import DecodeError

    from sentinel_market.chain.eip712 import digest
    from sentinel_market.chain.signing import recover
    from sentinel_market.domain.messages import StepRecord
    from sentinel_market.wire.records import check_quorum
    from sentinel_market.wire.relay_pb2 import SignedRecord

    domain = app.network.domain("JobMarket")

    def signer(record: StepRecord, signature: bytes) -> str:
        return recover(digest(domain, record), signature)

    hot_keys = {seat.account: seat.hot_key for seat in app.reader.market.seats(job_id)}
    try:
        record = check_quorum(job_id, SignedRecord.FromString(data), signer, hot_keys, quorum)
    except (DecodeError, SentinelError) as exc:
        raise ChainMismatch(f"the coordinator's step record of job {job_id} proves nothing: {exc}") from None
    if record.checkpoint.hex() != manifest:
        raise ChainMismatch(f"the seats signed the checkpoint {record.checkpoint.hex()}, not {manifest}")
    return f"its record of step {record.step} is signed by {quorum} or more of the job's seats"


def export_checkpoint(
    coordinator: CoordinatorClient, spec: JobSpec, job_id: int, digest: str, directory: Path
) -> tuple[int, list[Path]]:
    """Fetch a checkpoint's stages and write them as one model; returns the step and the files."""
    import json

    from sentinel_market.data.export import write_export
    from sentinel_market.models.jobs import model_config
    from sentinel_market.models.layout import flat_size
    from sentinel_market.wire.tensors import decode

    config, stages = model_config(spec), spec.parallelism.stages
    try:
        content = json.loads(coordinator.get(digest))
        if content["job"] != job_id or len(content["stages"]) != stages:
            raise ConfigError(f"the manifest {digest} is not one of job {job_id}")
        step = int(content["step"])
        names = [str(entry["weights"]) for entry in content["stages"]]
    except (ValueError, KeyError, TypeError) as exc:
        raise ConfigError(f"the manifest {digest} cannot be read: {exc!r}") from None
    flats = []
    for stage, name in enumerate(names):
        try:
            flats.append(decode(coordinator.get(name), shape=(flat_size(config, stage, stages),)))
        except SentinelError as exc:
            raise ConfigError(f"stage {stage} of the checkpoint cannot be had: {exc}") from None
    return step, write_export(directory, config, flats, tokenizer=spec.data.tokenizer)
