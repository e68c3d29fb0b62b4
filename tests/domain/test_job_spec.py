"""The job file: round trip, all problems at once, hostile canonical forms."""

from __future__ import annotations

import dataclasses
import json
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel_market.domain.ids import BACKWARD, FORWARD
from sentinel_market.domain.job_spec import (
    AGGREGATIONS,
    MAX_SPEC_BYTES,
    POLICIES,
    SECTIONS,
    JobSpec,
    canonical_real,
    fields_of,
    format_amount,
    parse_amount,
    parse_job,
    template,
)
from sentinel_market.errors import JobSpecError
from verifier.check.audit import audit_share_ppm
from verifier.check.policy import POLICIES as ENGINE_POLICIES
from verifier.check.policy import Policy
from verifier.check.robust import RULES


def problems(text: str) -> list[str]:
    with pytest.raises(JobSpecError) as caught:
        parse_job(text)
    return caught.value.problems


def test_template_parses_and_round_trips() -> None:
    spec = parse_job(template(name="mine", training__steps=50, market__budget="80"))
    assert (spec.name, spec.training.steps, spec.market.budget) == ("mine", 50, 80 * 10**18)
    assert spec.training.learning_rate == "0.003"
    again = JobSpec.from_canonical(spec.canonical_json())
    assert again == spec
    assert again.digest() == spec.digest() and len(spec.digest()) == 32


def test_template_refuses_unknown_overrides() -> None:
    with pytest.raises(KeyError, match="training__step"):
        template(training__step=3)


def test_every_setting_changes_the_digest() -> None:
    base = parse_job(template())
    seen = {base.digest()}
    for key, cls in SECTIONS.items():
        for item in dataclasses.fields(cls):
            value = getattr(getattr(base, key), item.name)
            changed = not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else value + "1"
            section = dataclasses.replace(getattr(base, key), **{item.name: changed})
            seen.add(dataclasses.replace(base, **{key: section}).digest())
    assert len(seen) == 1 + sum(len(dataclasses.fields(cls)) for cls in SECTIONS.values())


def test_all_problems_are_reported_at_once() -> None:
    text = (
        template(model__num_heads=3, model__tie_embeddings=True, parallelism__stages=9, parallelism__replicas=0)
        .replace('policy = "screen+confirm+audit"', 'policy = "papr"\nauditppm = 3')
        .replace('aggregation = "mean"', 'aggregation = "median"')
        .replace('budget = "500"', "budget = 5")
        .replace("quorum = 2", "quorum = 4")
        .replace("num_kv_heads = 2", 'dtype = "bf16"\nnum_kv_heads = 2')
    )
    found = "\n".join(problems(text))
    for part in (
        "model.num_heads = 3 does not divide model.dim = 64",
        "tie_embeddings = true is not built yet",
        "parallelism.stages = 9 is more than model.num_layers = 4",
        "parallelism.replicas: 0 must be from 1",
        "verification.auditppm is not a setting; did you mean audit_ppm?",
        "policy = 'papr' is not known; available: none, paper, screen, screen+confirm, screen+confirm+audit",
        "aggregation = 'median' is not known; available: mean, trimmed-mean, centred-clipping, multi-krum",
        "market.budget: 5 must be an amount of tokens in quotes",
        "seats.quorum = 4 is more than seats.num = 3",
        "model.dtype = 'bf16': tensors are float32 in this version",
    ):
        assert part in found


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("seed = 0", "seed = -1", "seed: -1 must be from 0"),
        ("seed = 0", "seed = true", "seed: True must be a whole number"),
        ("seed = 0", 'device = "cuda"\nseed = 0', "CUDA is not built yet"),
        ("learning_rate = 0.003", "learning_rate = nan", "not a finite number"),
        ("learning_rate = 0.003", "learning_rate = 1e-400", "too many digits"),
        ("learning_rate = 0.003", "learning_rate = [1]", "must be a number"),
        ("min_learning_rate = 0", "min_learning_rate = 1", "is above training.learning_rate"),
        ("dim = 64", "dim = 12", "must be even"),
        ("num_kv_heads = 2", "num_kv_heads = 3", "does not divide model.num_heads"),
        ("vocab_size = 256", "vocab_size = 255", "below the 256"),
        ("epoch_steps = 50", "epoch_steps = 601", "more than training.steps"),
        ("quorum = 2", "quorum = 1", "must be more than half"),
        ('kind = "stdlib"', 'kind = "jsnl"', "did you mean jsonl?"),
        ('kind = "stdlib"', 'kind = "text"', "data.path is missing"),
        ('path = ""', 'path = "/x"', "has no meaning"),
        ('tokenizer = "bytes"', 'tokenizer = "bpe"', "available for kind stdlib: bytes"),
        ('budget = "500"', 'budget = "1e3"', "is not an amount"),
        ('budget = "500"', 'budget = "0"', "market.budget must be above 0"),
        ('budget = "500"', 'budget = "0.0000000000000000001"', "finer than one base unit"),
        ("audit_ppm = 10000", "audit_ppm = 0", "needs audit_ppm and warmup_audit_ppm above 0"),
        ('policy = "screen+confirm+audit"', 'policy = "none"', "draws no audits"),
        ("[model]", "[modell]", "modell is not a setting; did you mean model?"),
        ("[model]", "[[model]]", "model must be a table"),
        ("[model]", "[model", "not TOML"),
        ('name = "standard-library"', 'name = "a/b"', "name: 'a/b' must be"),
    ],
)
def test_bad_settings_are_named(old: str, new: str, expected: str) -> None:
    text = template()
    assert old in text
    assert expected in "\n".join(problems(text.replace(old, new, 1)))


def test_a_huge_file_is_refused() -> None:
    assert "larger than" in problems("#" * (MAX_SPEC_BYTES + 1))[0]


def test_policy_without_audits_needs_no_shares() -> None:
    lines = [line for line in template().splitlines() if "audit_ppm" not in line]
    spec = parse_job("\n".join(lines).replace("screen+confirm+audit", "none", 1))
    assert (spec.verification.audit_ppm, spec.audit_ppm(0, 0, FORWARD)) == (0, 0)
    assert parse_job(template()).with_policy("none").verification == spec.verification
    for policy in ("paper", "screen", "screen+confirm"):
        assert spec.with_policy(policy).verification.policy == policy
    with pytest.raises(JobSpecError, match="papr"):
        spec.with_policy("papr")


@pytest.mark.parametrize("rule", ["mean", "trimmed-mean", "centred-clipping", "multi-krum"])
def test_every_aggregation_rule_is_known_to_the_engine(rule: str) -> None:
    text = template().replace('aggregation = "mean"', f'aggregation = "{rule}"')
    assert parse_job(text).verification.aggregation == rule
    assert rule in RULES and len(RULES) == len(AGGREGATIONS)
    assert POLICIES == ENGINE_POLICIES


def test_audit_share_is_higher_where_all_others_build_on_a_frame() -> None:
    spec = parse_job(template())
    assert [spec.audit_ppm(stage, 100, FORWARD) for stage in range(4)] == [30_000, 10_000, 10_000, 10_000]
    assert [spec.audit_ppm(stage, 100, BACKWARD) for stage in range(4)] == [10_000, 10_000, 10_000, 60_000]
    assert [spec.least_audit_ppm(stage, 100) for stage in range(4)] == [10_000, 10_000, 10_000, 60_000]
    assert spec.audit_ppm(1, 0, BACKWARD) == 100_000


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("warm", [False, True])
def test_the_quote_and_the_engine_draw_the_same_shares(stages: int, warm: bool) -> None:
    spec = parse_job(template(parallelism__stages=stages))
    for stage in range(stages):
        for direction in (FORWARD, BACKWARD):
            drawn = audit_share_ppm(Policy(), stage=stage, num_stages=stages, direction=direction, in_warmup=warm)
            assert drawn == spec.audit_ppm(stage, 0 if warm else spec.training.steps - 1, direction)


def test_digests_are_filled_at_post() -> None:
    spec = parse_job(template())
    assert len(spec.post_problems()) == 2
    posted = spec.with_data(train_digest="ab" * 32, validation_digest="cd" * 32, python="3.11.2")
    assert not posted.post_problems()
    assert JobSpec.from_canonical(posted.canonical_json()) == posted
    with pytest.raises(JobSpecError, match="64 lower-case hex"):
        spec.with_data(train_digest="AB" * 32, validation_digest="cd" * 32, python="")


def test_only_the_canonical_bytes_are_accepted() -> None:
    data = parse_job(template()).canonical_json()
    tree = json.loads(data)
    hostile = [
        b"",
        b"null",
        b"[" * 10_000,
        data + b" ",
        json.dumps(tree).encode(),
        data.replace(b'"seed":0', b'"seed":0,"seed":0'),
        data.replace(b'"seed":0', b'"seed":0.0'),
        data.replace(b'"seed":0', b'"seed":false'),
        data.replace(b'"seed":0', b'"seed":' + b"9" * 5000),
        data.replace(b'"version":1', b'"version":2'),
        data.replace(b'"0.003"', b'"0.0030"'),
        data.replace(b'"0.003"', b"0.003"),
        data.replace(b'"0.003"', b'"3E-3"'),
        data.replace(b'"500000000000000000000"', b'"0500000000000000000000"'),
        data.replace(b'"policy":"screen+confirm+audit"', b'"policy":"papr"'),
        data.replace(b'"kind":"stdlib",', b""),
        b"\xff" + data,
        b" " * (MAX_SPEC_BYTES + 1),
    ]
    for bad in hostile:
        with pytest.raises(JobSpecError):
            JobSpec.from_canonical(bad)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=8, min_value=-(10**9), max_value=10**9))
@settings(max_examples=100, deadline=None)
def test_canonical_reals_keep_the_value_and_are_fixed_points(value: Decimal) -> None:
    text = canonical_real(value)
    assert Decimal(text) == value and canonical_real(text) == text
    assert "E" not in text and not (text.endswith("0") and "." in text) and text != "-0"


@given(st.integers(0, 2**128), st.integers(0, 18))
@settings(max_examples=100, deadline=None)
def test_amounts_round_trip(amount: int, decimals: int) -> None:
    assert parse_amount(format_amount(amount, decimals), decimals) == amount


def test_every_setting_is_in_the_document() -> None:
    text = Path("docs/job-file.md").read_text(encoding="utf-8")
    for key, cls in [("", JobSpec), *SECTIONS.items()]:
        assert not key or f"## [{key}]" in text
        for row in fields_of(cls):
            assert f"`{row['name']}`" in text, row["name"]
            assert row["doc"] in text, row["name"]
