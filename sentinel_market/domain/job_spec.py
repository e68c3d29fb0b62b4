"""The job file: what all parties of a job agree on, parsed from TOML, checked as a whole, and digested.

A ``JobSpec`` holds no floats: real-valued settings are decimal strings in one canonical form, amounts are
integers of the token's base units. ``digest()``, SHA-256 of the canonical JSON, is the ``specDigest`` on
chain.

Every field carries its documentation, unit and bounds as metadata; the template of ``sentinel job init``, the
checks and ``docs/job-file.md`` are all read from there, so that they cannot drift apart.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from decimal import Decimal
from typing import Any, Final, cast

from sentinel_market.domain.amounts import TOKEN_DECIMALS, canonical_real, format_amount, parse_amount
from sentinel_market.domain.ids import BACKWARD, FORWARD
from sentinel_market.errors import JobSpecError

__all__ = [
    "BPS",
    "MAX_SPEC_BYTES",
    "PPM",
    "SECTIONS",
    "TOKEN_DECIMALS",
    "JobSpec",
    "canonical_real",
    "fields_of",
    "format_amount",
    "parse_amount",
    "parse_job",
    "template",
]

SPEC_VERSION: Final = 1
MAX_SPEC_BYTES: Final = 64 * 1024
"""Size limit of a job file and of its canonical form, in bytes."""
MAX_UINT128: Final = 2**128 - 1
PPM: Final = 1_000_000
"""Parts per million: shares of frames and of data are integers of this."""
BPS: Final = 10_000
"""Basis points: shares of money are integers of this."""

POLICIES: Final = ("none", "paper", "screen", "screen+confirm", "screen+confirm+audit")
AGGREGATIONS: Final = ("mean", "trimmed-mean", "centred-clipping", "multi-krum")
DATA_KINDS: Final = ("stdlib", "text", "jsonl", "parquet", "tokens")
_HEX_32: Final = re.compile(r"[0-9a-f]{64}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,63}")


# ----------------------------------------------------------------------------------------------------------
# Field descriptions


def _integer(doc: str, low: int, high: int, default: Any = MISSING, example: int | None = None) -> Any:
    return field(default=default, metadata={"kind": "int", "doc": doc, "low": low, "high": high, "example": example})


def _real(doc: str, low: str, high: str, default: Any = MISSING, example: str | None = None) -> Any:
    return field(default=default, metadata={"kind": "real", "doc": doc, "low": low, "high": high, "example": example})


def _amount(doc: str, example: str) -> Any:
    return field(metadata={"kind": "amount", "doc": doc, "low": 0, "high": MAX_UINT128, "example": example})


def _text(doc: str, default: Any = MISSING, example: str | None = None, generated: bool = False) -> Any:
    metadata = {"kind": "text", "doc": doc, "example": example, "generated": generated}
    return field(default=default, metadata=metadata)


def _flag(doc: str, default: bool) -> Any:
    return field(default=default, metadata={"kind": "flag", "doc": doc})


# ----------------------------------------------------------------------------------------------------------
# Sections


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSection:
    """The shape of the Llama-family model."""

    dim: int = _integer("width of the residual stream; a multiple of num_heads", 8, 65_536, example=64)
    num_layers: int = _integer("transformer blocks, at least one a stage", 1, 1024, example=4)
    num_heads: int = _integer("query heads", 1, 1024, example=4)
    num_kv_heads: int = _integer("key and value heads; divides num_heads", 1, 1024, example=2)
    ffn_dim: int = _integer("width of the SwiGLU feed-forward", 8, 262_144, example=192)
    vocab_size: int = _integer("tokens in the vocabulary; 256 for bytes", 2, 1_000_000, 256)
    seq_len: int = _integer("tokens a sequence", 2, 131_072, example=128)
    rope_theta: str = _real("base of the rotary position embedding", "1", "1e9", "10000")
    norm_eps: str = _real("epsilon of RMSNorm", "1e-12", "0.1", "0.00001")
    tie_embeddings: bool = _flag("share the embedding with the output head (not built yet: false)", False)

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.dim // self.num_heads


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSection:
    """What the model is trained on. The three last fields are filled in by ``sentinel job post``."""

    kind: str = _text("stdlib, text, jsonl, parquet or tokens", "stdlib")
    path: str = _text("file or folder of the data; empty for stdlib", "")
    tokenizer: str = _text("bytes; none for data of kind tokens", "bytes")
    validation_ppm: int = _integer("share held out for validation, in parts per million", 1, 500_000, 50_000)
    train_digest: str = _text("BLAKE3 of the training tokens, 64 hex digits", "", generated=True)
    validation_digest: str = _text("BLAKE3 of the held-out tokens, 64 hex digits", "", generated=True)
    python: str = _text("Python version whose standard library was digested", "", generated=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSection:
    """How long and how the model is trained."""

    steps: int = _integer("optimizer steps", 1, 10_000_000, example=600)
    microbatches: int = _integer("microbatches a step, shared by the seats", 1, 65_536, example=6)
    microbatch_size: int = _integer("sequences a microbatch", 1, 65_536, example=4)
    learning_rate: str = _real("peak learning rate", "1e-9", "10", example="0.003")
    min_learning_rate: str = _real("learning rate that the cosine ends at", "0", "10", "0")
    warmup_steps: int = _integer("steps of linear warm-up", 0, 10_000_000, 0)
    beta1: str = _real("AdamW: decay of the first moment, below 1", "0", "0.999999", "0.9")
    beta2: str = _real("AdamW: decay of the second moment, below 1", "0", "0.9999999", "0.95")
    eps: str = _real("AdamW: epsilon", "1e-16", "0.1", "0.00000001")
    weight_decay: str = _real("AdamW: decoupled weight decay", "0", "10", "0.1")
    epoch_steps: int = _integer("steps from one checkpoint and settlement root to the next", 1, 10_000_000, example=50)
    validation_sequences: int = _integer("held-out sequences the seats measure the loss on", 1, 1_000_000, 64)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelismSection:
    """How the model is cut and how often each part is held."""

    stages: int = _integer("pipeline stages; at most num_layers", 1, 256, example=4)
    replicas: int = _integer("workers that hold the same stage", 1, 4096, example=3)

    @property
    def num_slots(self) -> int:
        """Slots of the job: stages x replicas."""
        return self.stages * self.replicas


@dataclass(frozen=True, kw_only=True, slots=True)
class SeatsSection:
    """The verifiers of the job."""

    num: int = _integer("verifier seats", 1, 64, 3)
    quorum: int = _integer("seats that must sign a record, a report or a root; more than half", 1, 64, 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class VerificationSection:
    """How frames are checked. Audit shares are 3 x at the first and the last stage (``protocol.md``)."""

    policy: str = _text("none, paper, screen, screen+confirm or screen+confirm+audit", "screen+confirm+audit")
    audit_ppm: int = _integer("share of frames audited, in parts per million", 0, PPM, 10_000)
    warmup_audit_ppm: int = _integer("the same during warm-up, in parts per million", 0, PPM, 100_000)
    warmup_steps: int = _integer("steps in which baselines are built", 0, 10_000_000, 10)
    aggregation: str = _text("over replicas: mean, trimmed-mean, centred-clipping or multi-krum", "mean")

    @property
    def audits(self) -> bool:
        """Whether the policy draws audits at all."""
        return self.policy.endswith("+audit")


@dataclass(frozen=True, kw_only=True, slots=True)
class MarketSection:
    """Money. All amounts are integers of base units here, decimal strings of whole tokens in the TOML."""

    budget: int = _amount("escrow of the job; `sentinel job quote` says what is needed", "500")
    price_per_microbatch: int = _amount("pay of all stages for one microbatch, forward and backward", "0.1")
    relay_price: int = _amount("pay of a seat for one driven microbatch", "0.01")
    audit_price: int = _amount("pay of a seat for one recompute or cross-audit", "0.01")
    slot_stake: int = _amount("stake a worker locks for one slot", "100")
    seat_stake: int = _amount("stake a verifier locks for its seat", "500")
    reserve_bps: int = _integer("reserve for repeats, in basis points of the plan", 0, BPS, 1000)
    claim_deadline_seconds: int = _integer("seconds to fill the seats before the job is cancelled", 1, 31_536_000, 600)
    planned_seconds: int = _integer("seconds the run is meant to take; caps the pay rate", 1, 315_360_000, 3600)


SECTIONS: Final[Mapping[str, type[Any]]] = {
    "model": ModelSection,
    "data": DataSection,
    "training": TrainingSection,
    "parallelism": ParallelismSection,
    "seats": SeatsSection,
    "verification": VerificationSection,
    "market": MarketSection,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSpec:
    """One training job as all parties see it. Build with ``parse_job`` or ``JobSpec.from_canonical``."""

    name: str = _text("name of the job: letters, digits, space, dot, dash", example="standard-library")
    seed: int = _integer("seed of weights, data order, draws", 0, 2**63 - 1, example=0)
    model: ModelSection
    data: DataSection
    training: TrainingSection
    parallelism: ParallelismSection
    seats: SeatsSection
    verification: VerificationSection
    market: MarketSection

    def canonical_json(self) -> bytes:
        """UTF-8 JSON: sorted keys, no spaces, amounts as decimal strings of base units."""
        tree: dict[str, Any] = {"version": SPEC_VERSION, "name": self.name, "seed": self.seed}
        for key, cls in SECTIONS.items():
            section = getattr(self, key)
            tree[key] = {
                item.name: str(getattr(section, item.name))
                if item.metadata["kind"] == "amount"
                else getattr(section, item.name)
                for item in dataclasses.fields(cls)
            }
        return json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")

    def digest(self) -> bytes:
        """32 bytes: SHA-256 of ``canonical_json()``; the ``specDigest`` on chain."""
        return hashlib.sha256(self.canonical_json()).digest()

    @classmethod
    def from_canonical(cls, data: bytes) -> JobSpec:
        """Read ``canonical_json()`` back. Refuses anything that is not byte for byte the canonical form."""
        if len(data) > MAX_SPEC_BYTES:
            raise JobSpecError([f"the job spec has {len(data)} bytes, the limit is {MAX_SPEC_BYTES}"])
        try:
            tree = json.loads(data.decode("ascii"), parse_float=Decimal, parse_constant=Decimal)
        except (ValueError, ArithmeticError, RecursionError) as error:
            raise JobSpecError([f"the job spec is not canonical JSON: {error}"]) from None
        if not isinstance(tree, dict) or tree.pop("version", None) != SPEC_VERSION:
            raise JobSpecError([f"the job spec is not of version {SPEC_VERSION}"])
        spec = _build(tree, _Reader(canonical=True))
        if spec.canonical_json() != data:
            raise JobSpecError(["the job spec is not in canonical form: same content, other bytes"])
        return spec

    def with_data(self, *, train_digest: str, validation_digest: str, python: str) -> JobSpec:
        """The spec with the digests that ``job post`` computed."""
        data = dataclasses.replace(
            self.data, train_digest=train_digest, validation_digest=validation_digest, python=python
        )
        return _checked(dataclasses.replace(self, data=data))

    def with_policy(self, policy: str) -> JobSpec:
        """The same job under another policy; audit shares become 0 where the policy draws none."""
        section = dataclasses.replace(self.verification, policy=policy)
        if not section.audits:
            section = dataclasses.replace(section, audit_ppm=0, warmup_audit_ppm=0)
        return _checked(dataclasses.replace(self, verification=section))

    def audit_ppm(self, stage: int, step: int, direction: int) -> int:
        """Share of frames of ``stage`` audited in ``step``, in parts per million: more of those that all others build
        on, three times as much of activations and six times of gradients."""
        section = self.verification
        base = section.warmup_audit_ppm if step < section.warmup_steps else section.audit_ppm
        sources = {(0, FORWARD): 3, (self.parallelism.stages - 1, BACKWARD): 6}
        return min(PPM, sources.get((stage, direction), 1) * base)

    def least_audit_ppm(self, stage: int, step: int) -> int:
        """Of a pass that a worker of ``stage`` can skip alone: the last stage answers for both passes at once, and is
        audited where the gradient is drawn."""
        directions = (BACKWARD,) if stage == self.parallelism.stages - 1 else (FORWARD, BACKWARD)
        return min(self.audit_ppm(stage, step, direction) for direction in directions)

    def post_problems(self) -> list[str]:
        """What is still missing before the spec can be posted; empty when nothing is."""
        return [
            f"data.{key} is not filled in; `sentinel job post` computes it"
            for key in ("train_digest", "validation_digest")
            if not getattr(self.data, key)
        ]


# ----------------------------------------------------------------------------------------------------------
# Reading


class _Reader:
    """Turns raw values into fields and collects every problem found."""

    def __init__(self, *, canonical: bool, decimals: int = TOKEN_DECIMALS) -> None:
        self.problems: list[str] = []
        self.canonical = canonical
        self.decimals = decimals

    def table(self, raw: Mapping[str, Any], fields: tuple[dataclasses.Field[Any], ...], prefix: str) -> dict[str, Any]:
        known = [item.name for item in fields]
        self.unknown(raw, known, prefix)
        values: dict[str, Any] = {}
        for item in fields:
            name = f"{prefix}{item.name}"
            if item.name in raw:
                try:
                    values[item.name] = self.value(raw[item.name], item.metadata)
                except ValueError as error:
                    self.problems.append(f"{name}: {error}")
            elif item.default is MISSING or self.canonical:
                self.problems.append(f"{name} is missing: {item.metadata['doc']}")
            else:
                values[item.name] = item.default
        return values

    def unknown(self, raw: Mapping[str, Any], known: list[str], prefix: str) -> None:
        for key in raw:
            if key not in known:
                shown = key if len(key) <= 40 else key[:40] + "..."
                near = difflib.get_close_matches(key[:64], known, 1, 0.5)
                hint = f"; did you mean {near[0]}?" if near else f"; known here: {', '.join(known)}"
                self.problems.append(f"{prefix}{shown} is not a setting{hint}")

    def value(self, raw: Any, meta: Mapping[str, Any]) -> Any:
        kind = meta["kind"]
        if kind == "int":
            if not isinstance(raw, int) or isinstance(raw, bool):
                raise ValueError(f"{_shown(raw)} must be a whole number")
            return _within(raw, meta)
        if kind == "flag":
            if not isinstance(raw, bool):
                raise ValueError(f"{_shown(raw)} must be true or false")
            return raw
        if kind == "text":
            if not isinstance(raw, str):
                raise ValueError(f"{_shown(raw)} must be a text in quotes")
            if len(raw) > 1024 or not raw.isprintable():
                raise ValueError("must be at most 1024 printable characters")
            return raw
        if kind == "real":
            return self.real(raw, meta)
        return self.amount(raw, meta)

    def real(self, raw: Any, meta: Mapping[str, Any]) -> str:
        accepted = (str,) if self.canonical else (str, int, Decimal)
        if not isinstance(raw, accepted) or isinstance(raw, bool):
            raise ValueError(f"{_shown(raw)} must be a number")
        text = canonical_real(raw)
        if not Decimal(meta["low"]) <= Decimal(text) <= Decimal(meta["high"]):
            raise ValueError(f"{text} must be from {meta['low']} to {meta['high']}")
        return text

    def amount(self, raw: Any, meta: Mapping[str, Any]) -> int:
        if not isinstance(raw, str):
            raise ValueError(f'{_shown(raw)} must be an amount of tokens in quotes, such as "12.5"')
        if self.canonical:
            if not re.fullmatch(r"0|[1-9]\d{0,38}", raw, re.ASCII):
                raise ValueError(f"{_shown(raw)} must be a whole number of base units")
            return _within(int(raw), meta)
        return _within(parse_amount(raw, self.decimals), meta)


def _shown(raw: Any) -> str:
    text = str(raw) if isinstance(raw, Decimal) else repr(raw)
    return text if len(text) <= 60 else text[:60] + "..."


def _within(value: int, meta: Mapping[str, Any]) -> int:
    if not meta["low"] <= value <= meta["high"]:
        shown = str(value) if abs(value) <= MAX_UINT128 else "this number"
        raise ValueError(f"{shown} must be from {meta['low']} to {meta['high']}")
    return value


def _build(tree: Mapping[str, Any], reader: _Reader) -> JobSpec:
    own = tuple(item for item in dataclasses.fields(JobSpec) if item.metadata)
    top = {key: value for key, value in tree.items() if key not in SECTIONS}
    names = [item.name for item in own]
    reader.unknown(top, [*names, *SECTIONS], "")
    values = reader.table({key: value for key, value in top.items() if key in names}, own, "")
    sections: dict[str, dict[str, Any]] = {}
    for key, cls in SECTIONS.items():
        raw = tree.get(key, {})
        if isinstance(raw, dict):
            sections[key] = reader.table(raw, dataclasses.fields(cls), f"{key}.")
            _defaults_that_depend(key, raw, sections[key])
        else:
            reader.problems.append(f"{key} must be a table: [{key}]")
            sections[key] = {}
    reader.problems += _problems({"": values, **sections})
    if reader.problems:
        raise JobSpecError(reader.problems)
    built = {key: SECTIONS[key](**value) for key, value in sections.items()}
    return JobSpec(**values, **built)


def _defaults_that_depend(key: str, raw: Mapping[str, Any], values: dict[str, Any]) -> None:
    """Defaults that follow from another setting, applied only where the file is silent."""
    if key == "data" and values.get("kind") == "tokens" and "tokenizer" not in raw:
        values["tokenizer"] = "none"
    if key == "verification" and not str(values.get("policy", "+audit")).endswith("+audit"):
        for share in ("audit_ppm", "warmup_audit_ppm"):
            if share not in raw:
                values[share] = 0


def _checked(spec: JobSpec) -> JobSpec:
    values: dict[str, dict[str, Any]] = {"": {"name": spec.name, "seed": spec.seed}}
    for key, cls in SECTIONS.items():
        section = getattr(spec, key)
        values[key] = {item.name: getattr(section, item.name) for item in dataclasses.fields(cls)}
    problems = _problems(values)
    if problems:
        raise JobSpecError(problems)
    return spec


# ----------------------------------------------------------------------------------------------------------
# Checks over several settings. Each looks only at settings that were read without a problem.


def _problems(values: Mapping[str, Mapping[str, Any]]) -> list[str]:
    flat = {f"{key}.{name}" if key else name: value for key, part in values.items() for name, value in part.items()}
    return [*_model_problems(flat), *_data_problems(flat), *_run_problems(flat), *_verification_problems(flat)]


def _ints(flat: Mapping[str, Any], *names: str) -> tuple[int, ...] | None:
    found = tuple(flat.get(name) for name in names)
    return None if None in found else cast(tuple[int, ...], found)


def _model_problems(flat: Mapping[str, Any]) -> Iterator[str]:
    name = flat.get("name")
    if name is not None and not _NAME.fullmatch(name):
        yield f"name: {_shown(name)} must be 1 to 64 letters, digits, spaces, dots or dashes"
    if pair := _ints(flat, "model.dim", "model.num_heads"):
        dim, heads = pair
        if dim % heads:
            yield f"model.num_heads = {heads} does not divide model.dim = {dim}"
        elif (dim // heads) % 2:
            yield f"model.dim / model.num_heads = {dim // heads} must be even (rotary position embedding)"
    if pair := _ints(flat, "model.num_heads", "model.num_kv_heads"):
        heads, kv_heads = pair
        if heads % kv_heads:
            yield f"model.num_kv_heads = {kv_heads} does not divide model.num_heads = {heads}"
    if pair := _ints(flat, "parallelism.stages", "model.num_layers"):
        stages, layers = pair
        if stages > layers:
            yield f"parallelism.stages = {stages} is more than model.num_layers = {layers}"
    if flat.get("model.tie_embeddings"):
        yield "model.tie_embeddings = true is not built yet; set it to false"


def _data_problems(flat: Mapping[str, Any]) -> Iterator[str]:
    kind, path, tokenizer = flat.get("data.kind"), flat.get("data.path"), flat.get("data.tokenizer")
    if kind is not None and kind not in DATA_KINDS:
        near = difflib.get_close_matches(kind, DATA_KINDS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        yield f"data.kind = {_shown(kind)} is not known; available: {', '.join(DATA_KINDS)}{hint}"
        return
    if kind == "stdlib" and path:
        yield f"data.path = {_shown(path)} has no meaning with data.kind = 'stdlib'; remove it"
    if kind not in (None, "stdlib") and path == "":
        yield f"data.path is missing: data.kind = '{kind}' needs a file or folder"
    wanted = "none" if kind == "tokens" else "bytes"
    if kind is not None and tokenizer is not None and tokenizer != wanted:
        yield f"data.tokenizer = {_shown(tokenizer)} is not built yet; available for kind {kind}: {wanted}"
    vocabulary = flat.get("model.vocab_size")
    if tokenizer == "bytes" and vocabulary is not None and vocabulary < 256:
        yield f"model.vocab_size = {vocabulary} is below the 256 that data.tokenizer = 'bytes' needs"
    for key in ("data.train_digest", "data.validation_digest"):
        digest = flat.get(key)
        if digest and not _HEX_32.fullmatch(digest):
            yield f"{key} = {_shown(digest)} must be 64 lower-case hex digits"


def _run_problems(flat: Mapping[str, Any]) -> Iterator[str]:
    steps = flat.get("training.steps")
    if steps is not None:
        for key in ("training.warmup_steps", "training.epoch_steps"):
            if flat.get(key, 0) > steps:
                yield f"{key} = {flat[key]} is more than training.steps = {steps}"
    peak, least = flat.get("training.learning_rate"), flat.get("training.min_learning_rate")
    if peak and least and Decimal(least) > Decimal(peak):
        yield f"training.min_learning_rate = {least} is above training.learning_rate = {peak}"
    if pair := _ints(flat, "seats.num", "seats.quorum"):
        num, quorum = pair
        if quorum > num:
            yield f"seats.quorum = {quorum} is more than seats.num = {num}"
        elif 2 * quorum <= num:
            yield f"seats.quorum = {quorum} must be more than half of seats.num = {num}"
    for key in ("price_per_microbatch", "slot_stake", "seat_stake", "budget"):
        if flat.get(f"market.{key}") == 0:
            yield f"market.{key} must be above 0"


def _verification_problems(flat: Mapping[str, Any]) -> Iterator[str]:
    policy, rule = flat.get("verification.policy"), flat.get("verification.aggregation")
    if policy is not None and policy not in POLICIES:
        yield f"verification.policy = {_shown(policy)} is not known; available: {', '.join(POLICIES)}"
    elif policy is not None:
        shares = [flat.get("verification.audit_ppm"), flat.get("verification.warmup_audit_ppm")]
        if policy.endswith("+audit") and 0 in shares:
            yield f"verification.policy = '{policy}' needs audit_ppm and warmup_audit_ppm above 0"
        if not policy.endswith("+audit") and any(shares):
            yield f"verification.policy = '{policy}' draws no audits: set audit_ppm and warmup_audit_ppm to 0"
    if rule is not None and rule not in AGGREGATIONS:
        yield f"verification.aggregation = {_shown(rule)} is not known; available: {', '.join(AGGREGATIONS)}"


_REFUSED_KEYS: Final = {
    "device": "only the CPU is available in this version; CUDA is not built yet",
    "dtype": "tensors are float32 in this version; bfloat16 is not built yet",
    "compression": "compression of activations and gradients is not built yet",
    "local_steps": "local steps with an outer step are not built yet",
}


def _refused(tree: dict[str, Any]) -> list[str]:
    """Keys of planned settings: named and taken out, so that they are not reported as typing errors."""
    problems: list[str] = []
    for prefix, table in [("", tree), *((f"{key}.", tree.get(key)) for key in SECTIONS)]:
        if isinstance(table, dict):
            for key in [key for key in table if key in _REFUSED_KEYS]:
                problems.append(f"{prefix}{key} = {_shown(table.pop(key))}: {_REFUSED_KEYS[key]}; remove it")
    return problems


def parse_job(toml_text: str, *, decimals: int = TOKEN_DECIMALS) -> JobSpec:
    """Read a job file. ``JobSpecError.problems`` lists everything that is wrong, not only the first.

    ``decimals`` is the number of decimals of the token in which the file states amounts.
    """
    if len(toml_text.encode("utf-8", "replace")) > MAX_SPEC_BYTES:
        raise JobSpecError([f"the job file is larger than {MAX_SPEC_BYTES} bytes"])
    try:
        tree = tomllib.loads(toml_text, parse_float=Decimal)
    except (tomllib.TOMLDecodeError, ArithmeticError, RecursionError, ValueError) as error:
        raise JobSpecError([f"the job file is not TOML: {error}"]) from None
    reader = _Reader(canonical=False, decimals=decimals)
    reader.problems += _refused(tree)
    return _build(tree, reader)


# ----------------------------------------------------------------------------------------------------------
# Writing


def fields_of(section: type[Any]) -> list[dict[str, Any]]:
    """Name, kind, doc, default and bounds of each setting of a section, for documents and templates."""
    rows = []
    for item in dataclasses.fields(section):
        if item.metadata:
            default = None if item.default is MISSING else item.default
            rows.append({"name": item.name, "default": default, **item.metadata})
    return rows


def template(**overrides: Any) -> str:
    """The commented TOML of ``sentinel job init``: parses as it is.

    Overrides are named ``name``, ``seed`` or ``<section>__<setting>``, as they stand in the TOML:
    ``template(name="mine", training__steps=50, market__budget="80")``. Unknown names raise ``KeyError``.
    """
    left = dict(overrides)
    lines = [
        "# A training job for Sentinel Market. `sentinel job quote FILE` checks it and prints its price.",
        "",
    ]
    lines += [_template_line(row, left, "") for row in fields_of(JobSpec)]
    for key, cls in SECTIONS.items():
        lines += [
            "",
            f"[{key}]" + ("  # amounts are decimal strings of whole tokens" if key == "market" else ""),
        ]
        lines += [_template_line(row, left, f"{key}__") for row in fields_of(cls) if not row.get("generated")]
    if left:
        raise KeyError(f"no such setting: {', '.join(sorted(left))}")
    return "\n".join(lines) + "\n"


def _template_line(row: Mapping[str, Any], overrides: dict[str, Any], prefix: str) -> str:
    value = overrides.pop(prefix + row["name"], row["default"] if row.get("example") is None else row["example"])
    if row["kind"] == "flag":
        text = "true" if value else "false"
    elif row["kind"] in ("int", "real"):
        text = str(value)
    else:
        text = json.dumps(str(value))
    return f"{row['name']} = {text}".ljust(34) + f"  # {row['doc']}"
