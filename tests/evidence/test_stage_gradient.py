"""Evidence of a whole stage gradient: replayed offline to the same verdict, inadmissible once anything is altered."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import blake3
import pytest
import torch

from sentinel_market.chain.eip712 import digest
from sentinel_market.domain.messages import FrameCommitment
from sentinel_market.domain.step_record import accepted_set_digest
from sentinel_market.errors import ProtocolError
from sentinel_market.models.config import ALIGNMENT
from sentinel_market.wire.tensors import encode, encoded_hash, tensor_hash
from tests.evidence.sums import SUMMED, Lie, flipped, make_worlds, sign_sum, summed
from tests.evidence.world import CONFIG, DOMAIN, JOB, KEYS, NUM_REPLICAS, NUM_STAGES, STEP, World, sign
from verifier.check import FORWARD, Policy, Tolerance, VerdictKind
from verifier.check.tolerance import compare_sum
from verifier.evidence import (
    GradientBundle,
    describe_any,
    pack,
    read_any,
    read_bundle,
    read_gradient_bundle,
    replay_any,
    replay_bundle,
    unpack,
    write_gradient_bundle,
)
from verifier.evidence.files import MAX_TENSORS
from verifier.evidence.gradient import RunningSum, judge_sum
from verifier.evidence.replay import Known

Change = Callable[[GradientBundle], GradientBundle]


@pytest.fixture(scope="module")
def worlds() -> list[World]:
    return make_worlds()


LIES: dict[str, tuple[Lie, VerdictKind]] = {
    "flip": (flipped, VerdictKind.VIOLATION),
    "one per cent more": (lambda parts: torch.stack(parts).sum(0) * 1.01, VerdictKind.VIOLATION),
    "one is missing": (lambda parts: parts[0] + parts[1], VerdictKind.VIOLATION),
    "one twice": (lambda parts: parts[0] + parts[1] + 2 * parts[2], VerdictKind.VIOLATION),
    "zeros": (lambda parts: torch.zeros_like(parts[0]), VerdictKind.VIOLATION),
    "NaN": (lambda parts: torch.full_like(parts[0], torch.nan), VerdictKind.VIOLATION),
    "another length": (lambda parts: parts[0][:ALIGNMENT].clone(), VerdictKind.VIOLATION),
    "honest": (lambda parts: torch.stack(parts).sum(0), VerdictKind.ACCEPT),
    "in another order": (lambda parts: parts[2] + parts[0] + parts[1], VerdictKind.ACCEPT),
    "last digits": (lambda parts: torch.stack(parts).sum(0) * (1 + 1e-6), VerdictKind.ACCEPT),
}


@pytest.mark.parametrize("stage", range(NUM_STAGES))
@pytest.mark.parametrize("name", LIES)
def test_replay_convicts_a_false_sum_and_clears_an_honest_one(
    name: str, stage: int, worlds: list[World], tmp_path: Path
) -> None:
    lie, kind = LIES[name]
    hashed = write_gradient_bundle(tmp_path, summed(worlds, stage, lie))
    result = replay_bundle(tmp_path)
    assert result.verdict.kind is kind, result.lines()
    assert result.admissible and result.bundle_digest == hashed
    assert all(check.ok for check in result.checks), result.lines()


def test_a_sum_that_lies_in_the_null_space_of_the_sketch_is_convicted(worlds: list[World], tmp_path: Path) -> None:
    """What no sketch can see: something moved from one row to another, where the signs make it even."""
    from sentinel_market.models.sketch import Sketch

    sketch = Sketch(JOB, STEP)

    def lie(parts: list[torch.Tensor]) -> torch.Tensor:
        total = torch.stack(parts).sum(0)
        signs, rows = sketch.signs(len(total) // ALIGNMENT), total.clone().view(-1, ALIGNMENT)
        rows[0] += signs[0] * 0.01
        rows[1] -= signs[1] * 0.01
        assert torch.allclose(sketch.sketch(rows.flatten()), sketch.sketch(total), rtol=1e-4, atol=1e-6)
        return rows.flatten()

    write_gradient_bundle(tmp_path, summed(worlds, 1, lie))
    assert replay_bundle(tmp_path).verdict.kind is VerdictKind.VIOLATION


def test_a_bundle_comes_back_through_a_tar(worlds: list[World], tmp_path: Path) -> None:
    bundle = summed(worlds, 1, flipped)
    hashed = write_gradient_bundle(tmp_path / "a", bundle)
    data = pack(tmp_path / "a")
    unpack(data, tmp_path / "b")
    back = read_any(tmp_path / "b")
    assert isinstance(back, GradientBundle)
    assert write_gradient_bundle(tmp_path / "c", back) == hashed
    assert pack(tmp_path / "c") == data
    assert back.commitment == bundle.commitment and back.microbatches == (0, 1, 2)
    text = "\n".join(describe_any(back))
    for words in ("slot 2 (stage 1 of 3)", "sum of 3 gradients of step 11, microbatches 0, 1, 2", "the screen said: a"):
        assert words in text
    with pytest.raises(ProtocolError, match="BAD_COMPUTE"):
        read_bundle(tmp_path / "b")


def test_the_same_tensor_is_stored_once(worlds: list[World], tmp_path: Path) -> None:
    """At the last stage of two microbatches with the same rows, say."""
    write_gradient_bundle(tmp_path, summed([worlds[0], worlds[0]], 1, flipped))
    assert len(list((tmp_path / "tensors").iterdir())) == 3  # one input, one incoming gradient, the sum
    assert replay_bundle(tmp_path).verdict.kind is VerdictKind.VIOLATION


# ---- framing


def part(bundle: GradientBundle, **changes: object) -> GradientBundle:
    """The first backward with something else in it."""
    first = replace(bundle.backwards[0], **changes)  # type: ignore[arg-type]
    return replace(bundle, backwards=(first, *bundle.backwards[1:]))


def link(name: str, **changes: object) -> Change:
    """A validly signed upstream or downstream commitment, but another one."""

    def change(bundle: GradientBundle) -> GradientBundle:
        message = replace(getattr(bundle.backwards[0], name).message, **changes)
        return part(bundle, **{name: sign(KEYS[message.slot], message)})

    return change


def own(**changes: object) -> Change:
    """The accused's first commitment, validly signed by it, but another one; the sum is signed for it."""

    def change(bundle: GradientBundle) -> GradientBundle:
        message: FrameCommitment = replace(bundle.backwards[0].commitment.message, **changes)  # type: ignore[arg-type]
        return resigned(part(bundle, commitment=sign(KEYS[2], message)))

    return change


def resigned(bundle: GradientBundle) -> GradientBundle:
    listed = [digest(DOMAIN, one.commitment.message) for one in bundle.backwards]
    message = replace(bundle.commitment.message, accepted_set=accepted_set_digest(listed), count=len(listed))
    return replace(bundle, commitment=sign_sum(message))


def claim(**changes: object) -> Change:
    return lambda b: replace(b, commitment=sign_sum(replace(b.commitment.message, **changes)))  # type: ignore[arg-type]


FRAMING: dict[str, tuple[str, Change]] = {
    "signed by another": (
        "signature of stage gradient",
        lambda b: replace(b, commitment=replace(sign_sum(b.commitment.message, KEYS[5]), signer=KEYS[2].address)),
    ),
    "unsigned": ("signature of", lambda b: replace(b, commitment=replace(b.commitment, signature=bytes(65)))),
    "a backward less": ("accepted set", lambda b: replace(b, backwards=b.backwards[1:])),
    "a backward twice": ("accepted set", lambda b: resigned(replace(b, backwards=(*b.backwards, b.backwards[0])))),
    "another order": ("accepted set", lambda b: replace(b, backwards=b.backwards[::-1])),
    "another count": ("accepted set", claim(count=4)),
    "another set": ("accepted set", claim(accepted_set=bytes(32))),
    "another session": ("its session", claim(session=98)),
    "another nonce": ("its nonce", claim(nonce=2)),
    "another step of a backward": ("its step", own(step=STEP - 1)),
    "other weights of a backward": ("its weights_hash", own(weights_hash=bytes(32))),
    "a forward for a backward": ("no backward", own(direction=FORWARD)),
    "a backward signed by another": (
        "not by slot 2",
        lambda b: part(b, commitment=sign(KEYS[5], b.backwards[0].commitment.message, KEYS[2].address)),
    ),
    "another input": ("signed input", lambda b: part(b, input=b.backwards[0].input + 1)),
    "another incoming gradient": ("signed input", lambda b: part(b, incoming=b.backwards[0].incoming * 2)),
    "an input of its own making": ("than the forward of stage 0", lambda b: own_tensor(b, "input")),
    "a gradient of its own making": ("than the backward of stage 2", lambda b: own_tensor(b, "incoming")),
    "no upstream": ("forward of stage 0", lambda b: part(b, upstream=None)),
    "no downstream": ("backward of stage 2", lambda b: part(b, downstream=None)),
    "no sketch hash": ("sketch beside", lambda b: part(b, sketch_hash=None)),
    "upstream of another microbatch": ("no forward of stage 0", link("upstream", microbatch=2)),
    "upstream of another step": ("no forward of stage 0", link("upstream", step=3)),
    "upstream of another stage": ("no forward of stage 0", link("upstream", slot=3)),
    "upstream of another tensor": ("another tensor", link("upstream", output_hash=bytes(32))),
    "downstream of another tensor": ("another tensor", link("downstream", output_hash=bytes(32))),
    "upstream signed by another": (
        "not by slot 1",
        lambda b: part(b, upstream=sign(KEYS[5], b.backwards[0].upstream.message, KEYS[1].address)),  # type: ignore[union-attr]
    ),
    "no weights": ("weights", lambda b: replace(b, weights=None)),
    "weights of another stage": ("weights", lambda b: other_weights(b)),
    "another contract": ("signature", lambda b: replace(b, domain=replace(DOMAIN, chain_id=1))),
    "a model of other width": ("weights", lambda b: replace(b, model=replace(CONFIG, ffn_dim=32))),
}


def own_tensor(bundle: GradientBundle, name: str) -> GradientBundle:
    """Sent by a hostile driver, which the accused signed in good faith: rounding decides what comes of such numbers."""
    from sentinel_market.wire.commit import backward_input_hash

    first = bundle.backwards[0]
    made = replace(first, **{name: getattr(first, name) * 1e6})
    hashed = backward_input_hash(tensor_hash(made.input), tensor_hash(made.incoming))
    message = replace(first.commitment.message, input_hash=hashed)
    return resigned(part(bundle, **{name: getattr(made, name), "commitment": sign(KEYS[2], message)}))


def other_weights(bundle: GradientBundle) -> GradientBundle:
    flat = torch.zeros(ALIGNMENT)
    hashed = tensor_hash(flat)
    backwards = []
    for one in bundle.backwards:
        backwards.append(replace(one, commitment=sign(KEYS[2], replace(one.commitment.message, weights_hash=hashed))))
    found = replace(bundle, backwards=tuple(backwards), weights=flat)
    return resigned(replace(found, commitment=sign_sum(replace(found.commitment.message, weights_hash=hashed))))


@pytest.mark.parametrize("name", FRAMING)
def test_framing_is_inadmissible(name: str, worlds: list[World], tmp_path: Path) -> None:
    check, change = FRAMING[name]
    write_gradient_bundle(tmp_path, change(summed(worlds, 1, flipped)))
    result = replay_bundle(tmp_path)
    assert result.verdict.kind is VerdictKind.INCONCLUSIVE and not result.admissible
    assert result.verdict.reason.startswith("inadmissible: ")
    assert check in result.verdict.reason, result.verdict.reason


def test_what_the_caller_knows_better_wins(worlds: list[World], tmp_path: Path) -> None:
    write_gradient_bundle(tmp_path, summed(worlds, 0, flipped))
    signers = {slot: KEYS[slot].address for slot in range(len(KEYS))}
    good: dict[str, Any] = {
        "expected_domain": DOMAIN,
        "expected_signer": KEYS[0].address,
        "expected_signers": signers,
        "expected_layout": (NUM_STAGES, NUM_REPLICAS),
        "expected_tolerance": Tolerance(),
        "data_hashes": frozenset(tensor_hash(world.inputs[0]) for world in worlds),
    }
    assert replay_bundle(tmp_path, **good).verdict.kind is VerdictKind.VIOLATION
    for wrong in (
        {"expected_domain": replace(DOMAIN, chain_id=1)},
        {"expected_signer": KEYS[1].address},
        {"expected_signers": {**signers, 3: KEYS[1].address}},  # slot 3 signed a downstream gradient
        {"expected_layout": (NUM_STAGES, NUM_REPLICAS + 1)},
        {"expected_tolerance": Tolerance(sketch_e6=999)},
        {"data_hashes": frozenset(tensor_hash(world.inputs[0]) for world in worlds[1:])},
    ):
        assert not replay_bundle(tmp_path, **{**good, **wrong}).admissible, wrong
    assert any("believed" in line for line in replay_bundle(tmp_path).lines())


# ---- files


def names(directory: Path) -> list[str]:
    return sorted(p.relative_to(directory).as_posix() for p in directory.rglob("*.snt"))


def test_every_changed_or_missing_file_is_refused(worlds: list[World], tmp_path: Path) -> None:
    write_gradient_bundle(tmp_path, summed(worlds, 1, flipped))
    found = names(tmp_path)
    assert len(found) == 2 * SUMMED + 2
    for name in found:
        path = tmp_path / name
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(ProtocolError, match="digest differs"):
            replay_bundle(tmp_path)
        path.unlink()
        if name.startswith("weights"):
            assert not replay_bundle(tmp_path).admissible
        else:
            with pytest.raises(ProtocolError, match="missing"):
                replay_bundle(tmp_path)
        path.write_bytes(data)
    assert replay_bundle(tmp_path).verdict.kind is VerdictKind.VIOLATION


MANIFESTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "no kind": lambda m: m.pop("kind"),
    "another kind": lambda m: m.update(kind="BAD_COMPUTE"),
    "no backwards": lambda m: m.update(backwards=[]),
    "many backwards": lambda m: m.update(backwards=m["backwards"] * 100),
    "backwards of text": lambda m: m.update(backwards="all"),
    "a tensor by a path": lambda m: m["backwards"][0].update(input="../../etc/passwd"),
    "a tensor that is not listed": lambda m: m["backwards"][0].update(input="00" * 32),
    "files of text": lambda m: m.update(files="all"),
    "no files": lambda m: m.update(files={}),
    "another stage": lambda m: m.update(stage=2),
    "another slot": lambda m: m.update(slot=3),
    "another step": lambda m: m.update(step=3),
    "no stages": lambda m: m.update(num_stages=0),
    "a dtype that is none": lambda m: m.update(dtype="int8"),
    "other weights": lambda m: m.update(weights="00" * 32),
    "a float": lambda m: m["commitment"]["message"].update(count=3.0),
    "a short hash": lambda m: m["commitment"]["message"].update(gradient_hash="00"),
    "no signature": lambda m: m["commitment"].pop("signature"),
    "a huge model": lambda m: m["model"].update(num_layers=10**9),
    "a version to come": lambda m: m.update(version=99),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_strangers_manifest_is_refused(name: str, worlds: list[World], tmp_path: Path) -> None:
    write_gradient_bundle(tmp_path, summed(worlds, 1, flipped))
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text())
    MANIFESTS[name](manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(ProtocolError):
        replay_bundle(tmp_path)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("accepted_set", "00" * 32),
        ("accepted_set", "00"),
        ("count", 2**80),
        ("count", -1),
        ("session", 2**64),
        ("verifier", "nobody"),
    ],
)
def test_a_message_that_nobody_can_have_signed_is_inadmissible(
    where: str, value: object, worlds: list[World], tmp_path: Path
) -> None:
    write_gradient_bundle(tmp_path, summed(worlds, 1, flipped))
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text())
    for entry in (manifest["commitment"], manifest["backwards"][0]["commitment"]):
        if where in entry["message"]:
            entry["message"][where] = value
    path.write_text(json.dumps(manifest))
    assert not replay_bundle(tmp_path).admissible


def test_tensors_that_cannot_be_computed_with_are_inadmissible(worlds: list[World], tmp_path: Path) -> None:
    """Chained and signed by accomplices, so only the recompute itself can find out."""
    for index, tensor in enumerate((torch.zeros(3), torch.zeros(2, 8), torch.zeros(2, 8, 16, dtype=torch.int64))):
        from sentinel_market.wire.commit import backward_input_hash

        bundle = summed(worlds, 1, flipped)
        first = bundle.backwards[0]
        assert first.upstream is not None
        up = replace(first.upstream.message, output_hash=tensor_hash(tensor))
        hashed = backward_input_hash(tensor_hash(tensor), tensor_hash(first.incoming))
        mine = replace(first.commitment.message, input_hash=hashed)
        made = part(bundle, input=tensor, upstream=sign(KEYS[1], up), commitment=sign(KEYS[2], mine))
        write_gradient_bundle(tmp_path / str(index), resigned(made))
        assert not replay_bundle(tmp_path / str(index)).admissible


def test_what_does_not_fit_is_not_written(worlds: list[World], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = summed(worlds, 1, flipped)
    monkeypatch.setattr("verifier.evidence.gradient.MAX_BACKWARDS", SUMMED - 1)
    with pytest.raises(ProtocolError, match="3 backwards; a bundle holds at most"):
        write_gradient_bundle(tmp_path / "many", bundle)
    monkeypatch.undo()
    monkeypatch.setattr("verifier.evidence.gradient.MAX_BUNDLE_BYTES", 1000)
    with pytest.raises(ProtocolError, match="at most 1000"):
        write_gradient_bundle(tmp_path / "large", bundle)
    assert not (tmp_path / "many").exists() and not (tmp_path / "large").exists()
    monkeypatch.undo()
    write_gradient_bundle(tmp_path / "whole", bundle)
    with pytest.raises(ProtocolError, match="larger than"):
        read_gradient_bundle(tmp_path / "whole", max_bytes=1000)


def test_a_tar_holds_only_so_many_tensors(tmp_path: Path) -> None:
    (tmp_path / "a" / "tensors").mkdir(parents=True)
    (tmp_path / "a" / "manifest.json").write_text("{}")
    for index in range(MAX_TENSORS + 1):
        data = encode(torch.tensor([index]))
        (tmp_path / "a" / "tensors" / f"{encoded_hash(data).hex()}.snt").write_bytes(data)
    with pytest.raises(ProtocolError, match=f"{MAX_TENSORS} files"):
        unpack(pack(tmp_path / "a"), tmp_path / "b")
    next((tmp_path / "a" / "tensors").iterdir()).unlink()
    unpack(pack(tmp_path / "a"), tmp_path / "b")
    assert len(names(tmp_path / "b")) == MAX_TENSORS


def test_a_bundle_that_is_read_already_gives_the_same(worlds: list[World], tmp_path: Path) -> None:
    hashed = write_gradient_bundle(tmp_path, summed(worlds, 2, flipped))
    assert blake3.blake3((tmp_path / "manifest.json").read_bytes()).digest() == hashed
    result = replay_any(read_any(tmp_path), hashed, Known(model=CONFIG, policy=Policy(), dtype="float32"))
    assert result.verdict.kind is VerdictKind.VIOLATION and result.as_stated
    assert not replay_any(read_any(tmp_path), hashed, Known(dtype="bfloat16")).admissible


# ---- numbers


def running(*parts: torch.Tensor) -> RunningSum:
    found = RunningSum(len(parts[0]))
    for one in parts:
        found.total += one.double()
        found.lengths += float(one.double().square().sum().sqrt())
    return found


def test_where_parts_cancel_rounding_convicts_nobody() -> None:
    """A hostile driver could send +1e4 g and -1e4 g: their sum is rounding noise, larger than what the rest adds."""
    g = torch.randn(256, generator=torch.Generator().manual_seed(0))
    honest = (1e4 * g * (1 + 1e-7)) - 1e4 * g + g
    reference = running(1e4 * g, -1e4 * g, g)
    assert judge_sum(honest, reference, Tolerance())[0].kind is VerdictKind.ACCEPT
    naive = running(g)
    assert judge_sum(honest * 1.002, naive, Tolerance())[0].kind is VerdictKind.VIOLATION
    assert judge_sum(-1e4 * g, reference, Tolerance())[0].kind is VerdictKind.VIOLATION


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-44, 1e38, float("inf"), float("nan")])
def test_where_fp32_ends_nobody_is_convicted(scale: float) -> None:
    reference = running(torch.full((64,), 1.0).double() * scale)
    for claimed in (torch.zeros(64), torch.full((64,), torch.inf), torch.full((64,), torch.nan), torch.ones(64)):
        assert judge_sum(claimed, reference, Tolerance())[0].kind is VerdictKind.INCONCLUSIVE


def test_a_job_of_low_precision_convicts_nobody_at_an_edge() -> None:
    g = torch.randn(256, generator=torch.Generator().manual_seed(0))
    moved = running(g * (1 + 5e-4))
    assert judge_sum(-g, running(g), Tolerance(), moved)[0].kind is VerdictKind.INCONCLUSIVE
    assert judge_sum(-g, running(g), Tolerance(), running(g * (1 + 5e-5)))[0].kind is VerdictKind.VIOLATION


def test_the_error_of_a_sum_is_in_integers_and_never_raises() -> None:
    g = torch.ones(64)
    assert compare_sum(g * 1.0005, g.double(), 8.0, Tolerance()).agrees
    far = compare_sum(g * 1.002, g.double(), 8.0, Tolerance())
    assert not far.agrees and far.limit_e6 == 1000 and 1999 <= far.error_e6 <= 2001
    for claimed, lengths in ((torch.ones(3), 8.0), (g * torch.nan, 8.0), (g, float("nan"))):
        assert not compare_sum(claimed, g.double(), lengths, Tolerance()).agrees
    assert compare_sum(g * 0, g.double() * 0, 0.0, Tolerance()).agrees
    assert not compare_sum(g, g.double() * 0, 0.0, Tolerance()).agrees
