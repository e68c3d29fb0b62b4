"""Evidence bundles: written, packed, read back by a stranger, and replayed to the same verdict."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel_market.chain.eip712 import Domain, digest
from sentinel_market.chain.signing import HotKey
from sentinel_market.domain.messages import FrameCommitment
from sentinel_market.errors import ProtocolError
from sentinel_market.models.config import ModelConfig
from sentinel_market.models.init import init_flat
from sentinel_market.models.stage import Stage
from sentinel_market.wire.commit import backward_input_hash, backward_output_hash
from sentinel_market.wire.tensors import encode, tensor_hash
from verifier import evidence
from verifier.check import BACKWARD, FORWARD, Policy, Score, Tolerance, Verdict, VerdictKind
from verifier.evidence import (
    Bundle,
    Recomputed,
    SignedCommitment,
    SignedReplay,
    describe,
    pack,
    read_bundle,
    recompute_frame,
    replay_bundle,
    unpack,
    write_bundle,
)

CONFIG = ModelConfig(dim=16, num_layers=3, num_heads=2, num_kv_heads=1, ffn_dim=24, vocab_size=32, seq_len=8)
NUM_STAGES, NUM_REPLICAS, JOB, STEP, MICROBATCH = 3, 2, 7, 11, 5
DOMAIN = Domain("JobMarket", "1", 31337, "0x" + "11" * 20)
SEAT = "0x" + "22" * 20
KEYS = [HotKey(bytes([i + 1]) * 32) for i in range(NUM_STAGES * NUM_REPLICAS)]
REFLAG = Verdict(
    VerdictKind.SUSPECT,
    "cosine -0.9 below its fence 0.8",
    (Score("cosine", -900_000, 800_000, 990_000), Score("l1", 1, 0, 2)),
)


def sign(key: HotKey, message: FrameCommitment, signer: str | None = None) -> SignedCommitment:
    return SignedCommitment(message=message, signature=key.sign(digest(DOMAIN, message)), signer=signer or key.address)


@dataclass
class World:
    """Everything of one microbatch in one step, computed honestly."""

    modules: list[Stage]
    inputs: list[torch.Tensor]
    targets: torch.Tensor
    incoming: list[torch.Tensor]
    forward: list[Recomputed]
    backward: list[Recomputed]

    def commitment(self, stage: int, direction: int, claimed: Recomputed, replica: int = 0) -> SignedCommitment:
        given = tensor_hash(self.inputs[stage])
        if direction == BACKWARD or stage == NUM_STAGES - 1:
            given = backward_input_hash(given, tensor_hash(self.incoming[stage]))
        if direction == FORWARD:
            assert claimed.output is not None
            out = tensor_hash(claimed.output)
        else:
            assert claimed.sketch is not None
            outgoing = None if claimed.output is None else tensor_hash(claimed.output)
            out = backward_output_hash(outgoing, tensor_hash(claimed.sketch))
        slot = stage * NUM_REPLICAS + replica
        weights = tensor_hash(self.modules[stage].flat)
        message = FrameCommitment(JOB, slot, 1, SEAT, 99, 3, STEP, MICROBATCH, direction, given, out, weights)
        return sign(KEYS[slot], message)

    def honest(self, stage: int, direction: int) -> Recomputed:
        return (self.forward if direction == FORWARD else self.backward)[stage]

    def bundle(self, stage: int, direction: int, cheat: Callable[[torch.Tensor], torch.Tensor] | None = None) -> Bundle:
        truth = self.honest(stage, direction)
        claimed = truth
        if cheat is not None and truth.output is not None:
            claimed = replace(truth, output=cheat(truth.output))
        elif cheat is not None and truth.sketch is not None:
            claimed = replace(truth, sketch=cheat(truth.sketch))
        upstream = []
        sketch_hash = None
        if stage > 0:
            upstream.append(self.commitment(stage - 1, FORWARD, self.forward[stage - 1], replica=1))
        if direction == BACKWARD and stage < NUM_STAGES - 1:
            upstream.append(self.commitment(stage + 1, BACKWARD, self.backward[stage + 1], replica=1))
            sketch = self.backward[stage + 1].sketch
            assert sketch is not None
            sketch_hash = tensor_hash(sketch)
        needs = direction == BACKWARD or stage == NUM_STAGES - 1
        return Bundle(
            domain=DOMAIN,
            model=CONFIG,
            num_stages=NUM_STAGES,
            num_replicas=NUM_REPLICAS,
            commitment=self.commitment(stage, direction, claimed),
            upstream=tuple(upstream),
            incoming_sketch_hash=sketch_hash,
            replays=(
                SignedReplay(
                    commitment=self.commitment(stage, direction, truth, replica=1),
                    output=truth.output,
                    sketch=truth.sketch,
                ),
            ),
            policy=Policy(),
            tolerance=Tolerance(),
            screening=REFLAG,
            verdict=Verdict(VerdictKind.VIOLATION, "the recompute disagrees"),
            input=self.inputs[stage],
            incoming=self.incoming[stage] if needs else None,
            output=claimed.output,
            sketch=claimed.sketch,
            recompute=truth.output,
            recompute_sketch=truth.sketch,
            weights=self.modules[stage].flat,
        )


@pytest.fixture(scope="module")
def world() -> World:
    modules = [Stage(CONFIG, s, NUM_STAGES) for s in range(NUM_STAGES)]
    for module in modules:
        module.load_flat(init_flat(CONFIG, module.stage, NUM_STAGES, 1))
    rows = torch.randint(0, 32, (2, 9), generator=torch.Generator().manual_seed(0))
    tokens, targets = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def run(stage: int, direction: int, given: torch.Tensor, incoming: torch.Tensor | None) -> Recomputed:
        return recompute_frame(
            modules[stage], job_id=JOB, step=STEP, direction=direction, input=given, incoming=incoming
        )

    inputs, forward = [tokens], []
    for s in range(NUM_STAGES):
        forward.append(run(s, FORWARD, inputs[s], targets if s == NUM_STAGES - 1 else None))
        output = forward[s].output
        assert output is not None
        inputs.append(output)
    incoming, backward = [targets], []
    for s in range(NUM_STAGES - 1, -1, -1):
        backward.insert(0, run(s, BACKWARD, inputs[s], incoming[0]))
        gradient = backward[0].output
        if gradient is not None:
            incoming.insert(0, gradient)
    return World(modules, inputs[:NUM_STAGES], targets, incoming, forward, backward)


FRAMES = [(s, d) for s in range(NUM_STAGES) for d in (FORWARD, BACKWARD)]


@pytest.mark.parametrize(("stage", "direction"), FRAMES)
def test_replay_convicts_a_cheat_and_clears_the_honest(
    stage: int, direction: int, world: World, tmp_path: Path
) -> None:
    for name, cheat, kind in (
        ("flip", lambda t: -t, VerdictKind.VIOLATION),
        ("rounded", lambda t: t.bfloat16().float(), VerdictKind.VIOLATION),
        ("nan", lambda t: torch.full_like(t, torch.nan), VerdictKind.VIOLATION),
        ("zeros", torch.zeros_like, VerdictKind.VIOLATION),
        ("honest", None, VerdictKind.ACCEPT),
        ("last digits", lambda t: t * (1 + 1e-6), VerdictKind.ACCEPT),
    ):
        bundle = world.bundle(stage, direction, cheat)
        hashed = write_bundle(tmp_path / name, bundle)
        result = replay_bundle(tmp_path / name)
        assert result.verdict.kind is kind, (name, result.lines())
        assert result.bundle_digest == hashed
        assert all(check.ok for check in result.checks), result.lines()
        assert result.lines()[-1].startswith(kind.value)


def test_bundle_comes_back_through_a_tar(world: World, tmp_path: Path) -> None:
    bundle = world.bundle(1, BACKWARD, lambda t: -t)
    hashed = write_bundle(tmp_path / "a", bundle)
    data = pack(tmp_path / "a")
    unpack(data, tmp_path / "b")
    assert pack(tmp_path / "b") == data
    back = read_bundle(tmp_path / "b")
    for name in (
        "domain",
        "model",
        "commitment",
        "upstream",
        "policy",
        "tolerance",
        "screening",
        "verdict",
        "versions",
    ):
        assert getattr(back, name) == getattr(bundle, name), name
    for name in ("input", "incoming", "output", "sketch", "recompute", "recompute_sketch", "weights"):
        assert torch.equal(getattr(back, name), getattr(bundle, name)), name
    assert back.stage == 1 and len(back.replays) == 1
    assert write_bundle(tmp_path / "c", back) == hashed
    assert replay_bundle(tmp_path / "b").bundle_digest == hashed
    text = "\n".join(describe(back))
    for words in ("slot 2", "stage 1 of 3", "cosine -0.9 below its fence 0.8", "inside its fences: l1", "VIOLATION"):
        assert words in text
    assert "output against the recompute: relative error 2 beyond the limit 0.0001" in text


def test_manifest_holds_no_floats(world: World, tmp_path: Path) -> None:
    write_bundle(tmp_path, world.bundle(0, FORWARD))

    def walk(value: object) -> None:
        assert not isinstance(value, float)
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            walk(item)

    walk(json.loads((tmp_path / "manifest.json").read_text()))


def test_weights_are_shared_and_may_be_elsewhere(world: World, tmp_path: Path) -> None:
    shared = tmp_path / "weights of the step"
    one = write_bundle(tmp_path / "one", world.bundle(1, FORWARD, lambda t: -t), weights_directory=shared)
    write_bundle(tmp_path / "two", world.bundle(1, BACKWARD, lambda t: -t), weights_directory=shared)
    assert len(list(shared.iterdir())) == 1
    assert not (tmp_path / "one" / "weights").exists()
    missing = replay_bundle(tmp_path / "one")
    assert missing.verdict.kind is VerdictKind.INCONCLUSIVE and "weights" in missing.verdict.reason
    assert replay_bundle(tmp_path / "one", weights_directory=shared).verdict.kind is VerdictKind.VIOLATION
    # the same digest wherever the weights lie
    assert write_bundle(tmp_path / "three", world.bundle(1, FORWARD, lambda t: -t)) == one


def bad_upstream(b: Bundle, **changes: object) -> Bundle:
    first = replace(b.upstream[0], message=replace(b.upstream[0].message, **changes))  # type: ignore[arg-type]
    return replace(b, upstream=(sign(KEYS[1], first.message), *b.upstream[1:]))


FRAMING: dict[str, tuple[str, Callable[[Bundle], Bundle]]] = {
    "no upstream": ("chain of input", lambda b: replace(b, upstream=b.upstream[1:])),
    "upstream of another microbatch": ("chain of input", lambda b: bad_upstream(b, microbatch=6)),
    "upstream of another step": ("chain of input", lambda b: bad_upstream(b, step=12)),
    "upstream of another stage": ("chain of input", lambda b: bad_upstream(b, slot=3)),
    "upstream of another tensor": ("chain of input", lambda b: bad_upstream(b, output_hash=bytes(32))),
    "gradient from nowhere": ("chain of incoming", lambda b: replace(b, upstream=b.upstream[:1])),
    "no sketch hash": ("chain of incoming", lambda b: replace(b, incoming_sketch_hash=None)),
    "another input": ("input hash", lambda b: replace(b, input=b.input + 1)),
    "another output": ("output hash", lambda b: replace(b, output=b.input)),
    "another sketch": ("output hash", lambda b: replace(b, sketch=torch.ones(64))),
    "no output": ("output hash", lambda b: replace(b, output=None)),
    "other weights": ("weights", lambda b: replace(b, weights=torch.ones(64))),
    "no weights": ("weights", lambda b: replace(b, weights=None)),
    "signed by another": (
        "signature of commitment",
        lambda b: replace(b, commitment=replace(sign(KEYS[5], b.commitment.message), signer=KEYS[2].address)),
    ),
    "unsigned": (
        "signature of commitment",
        lambda b: replace(b, commitment=replace(b.commitment, signature=bytes(65))),
    ),
    "upstream unsigned": (
        "signature of upstream 0",
        lambda b: replace(b, upstream=(replace(b.upstream[0], signature=b""), *b.upstream[1:])),
    ),
}


@pytest.mark.parametrize("name", FRAMING)
def test_framing_is_inadmissible(name: str, world: World, tmp_path: Path) -> None:
    check, change = FRAMING[name]
    write_bundle(tmp_path, change(world.bundle(1, BACKWARD, lambda t: -t)))
    result = replay_bundle(tmp_path)
    assert result.verdict.kind is VerdictKind.INCONCLUSIVE
    assert result.verdict.reason.startswith("inadmissible: ")
    assert check in result.verdict.reason


def test_what_the_caller_knows_better_wins(world: World, tmp_path: Path) -> None:
    write_bundle(tmp_path, world.bundle(0, FORWARD, lambda t: -t))
    good = {
        "expected_layout": (NUM_STAGES, NUM_REPLICAS),
        "expected_tolerance": Tolerance(),
        "expected_signers": {0: KEYS[0].address, 1: KEYS[1].address},
        "expected_domain": DOMAIN,
        "expected_signer": KEYS[0].address,
        "data_hashes": frozenset({tensor_hash(world.inputs[0])}),
    }
    assert replay_bundle(tmp_path, **good).verdict.kind is VerdictKind.VIOLATION  # type: ignore[arg-type]
    for wrong in (
        {"expected_domain": replace(DOMAIN, chain_id=1)},
        {"expected_signer": KEYS[1].address},
        {"expected_signers": {0: KEYS[1].address}, "expected_signer": None},
        {"expected_layout": (NUM_STAGES, NUM_REPLICAS + 1)},
        {"expected_tolerance": Tolerance(relative_e6=101)},
        {"data_hashes": frozenset({bytes(32)})},
    ):
        assert replay_bundle(tmp_path, **(good | wrong)).verdict.kind is VerdictKind.INCONCLUSIVE  # type: ignore[arg-type]
    assert any("believed" in line for line in replay_bundle(tmp_path).lines())


def test_a_lying_replayer_is_named_but_decides_nothing(world: World, tmp_path: Path) -> None:
    bundle = world.bundle(1, FORWARD, lambda t: -t)
    honest = world.honest(1, FORWARD).output
    assert honest is not None
    lie = SignedReplay(commitment=world.commitment(1, FORWARD, Recomputed(-honest, None), replica=1), output=-honest)
    write_bundle(tmp_path, replace(bundle, replays=(lie,)))
    result = replay_bundle(tmp_path)
    assert result.verdict.kind is VerdictKind.VIOLATION
    assert [c.ok for c in result.checks if c.name == "replay 0"] == [False]


def test_a_diverged_run_convicts_nobody(world: World, tmp_path: Path) -> None:
    other = Stage(CONFIG, 1, NUM_STAGES)
    other.load_flat(world.modules[1].flat * 1e30)
    w = replace(world, modules=[world.modules[0], other, world.modules[2]])
    bundle = w.bundle(1, FORWARD, lambda t: -t)
    write_bundle(tmp_path, bundle)
    assert replay_bundle(tmp_path).verdict.kind is VerdictKind.INCONCLUSIVE


@pytest.mark.parametrize("name", ["input.snt", "output.snt", "sketch.snt", "replays/0.output.snt"])
def test_a_changed_or_missing_file_is_refused(name: str, world: World, tmp_path: Path) -> None:
    write_bundle(tmp_path, world.bundle(1, BACKWARD, lambda t: -t))
    path = tmp_path / name
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ProtocolError, match="digest differs"):
        replay_bundle(tmp_path)
    path.unlink()
    with pytest.raises(ProtocolError, match="missing"):
        replay_bundle(tmp_path)


def test_a_link_is_not_followed(world: World, tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", world.bundle(0, FORWARD))
    path = tmp_path / "b" / "input.snt"
    path.rename(tmp_path / "elsewhere.snt")
    path.symlink_to(tmp_path / "elsewhere.snt")
    with pytest.raises(ProtocolError, match="link"):
        read_bundle(tmp_path / "b")


@pytest.mark.parametrize(
    ("key", "value"),
    [("step", 12), ("slot", 4), ("nonce", 2), ("microbatch", 6), ("direction", 0), ("job_id", 8), ("stage", 2)],
)
def test_a_manifest_that_contradicts_its_commitment_is_refused(
    key: str, value: int, world: World, tmp_path: Path
) -> None:
    write_bundle(tmp_path, world.bundle(1, BACKWARD, lambda t: -t))
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(ProtocolError, match="evidence"):
        replay_bundle(tmp_path)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_strangers_manifest_is_refused_or_read(
    data: st.DataObject, manifest: dict[str, object], folder: Path
) -> None:
    """Change, drop or add one thing anywhere in the manifest: ProtocolError or a bundle, never another exception."""
    changed = json.loads(json.dumps(manifest))
    target = changed
    while True:
        keys = list(target) if isinstance(target, dict) else list(range(len(target)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        value = target[key]
        if isinstance(value, dict | list) and value and data.draw(st.integers(0, 3)):
            target = value
            continue
        how = data.draw(st.sampled_from(["drop", "change", "add"]))
        if how == "drop":
            del target[key]
        elif how == "change" or isinstance(target, list):
            target[key] = data.draw(
                st.none()
                | st.booleans()
                | st.integers()
                | st.text(max_size=9)
                | st.just([])
                | st.just({})
                | st.just([[]])
            )
        else:
            target["surplus"] = 1
        break
    (folder / "manifest.json").write_text(json.dumps(changed))
    try:
        result = replay_bundle(folder)
    except ProtocolError:
        return
    assert result.verdict.kind in VerdictKind


@pytest.fixture(scope="module")
def folder(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stranger")
    write_bundle(path, world.bundle(1, BACKWARD, lambda t: -t))
    return path


@pytest.fixture(scope="module")
def manifest(folder: Path) -> dict[str, object]:
    value: dict[str, object] = json.loads((folder / "manifest.json").read_text())
    return value


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


BAD_TARS = {
    "absolute": [(entry("/etc/cron.d/x"), b"x")],
    "dots": [(entry("../manifest.json"), b"x")],
    "dots inside": [(entry("weights/../../x.snt"), b"x")],
    "symbolic link": [(entry("input.snt", tarfile.SYMTYPE, "/etc/passwd"), b"")],
    "hard link": [(entry("input.snt", tarfile.LNKTYPE, "manifest.json"), b"")],
    "device": [(entry("input.snt", tarfile.CHRTYPE), b"")],
    "folder": [(entry("weights", tarfile.DIRTYPE), b"")],
    "other name": [(entry("run.sh"), b"x")],
    "newline": [(entry("manifest.json\n"), b"x")],
    "twice": [(entry("manifest.json"), b"x"), (entry("manifest.json"), b"y")],
    "longer name": [(entry("manifest.json"), b"{}"), (entry("input.snt.py"), b"x")],
    "no manifest": [(entry("input.snt"), b"x")],
    "large": [(entry("manifest.json"), bytes(5_000))],
    "many": [(entry(f"weights/{i:064x}.snt"), b"") for i in range(70)],
}


@pytest.mark.parametrize("name", BAD_TARS)
def test_a_strangers_tar_writes_nothing(name: str, tmp_path: Path) -> None:
    target = tmp_path / "in" / "here"
    with pytest.raises(ProtocolError, match="evidence"):
        unpack(tar_of(*BAD_TARS[name]), target, max_bytes=4_000)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_tars_that_are_none(world: World, tmp_path: Path) -> None:
    write_bundle(tmp_path / "a", world.bundle(0, FORWARD))
    good = pack(tmp_path / "a")
    import gzip

    for bad in (b"", b"x" * 2000, gzip.compress(good), good[: len(good) // 3]):
        with pytest.raises(ProtocolError):
            unpack(bad, tmp_path / "b")
            read_bundle(tmp_path / "b")
    with pytest.raises(ProtocolError):
        unpack(good, tmp_path / "c", max_bytes=100)
    with pytest.raises(ProtocolError, match="no manifest"):
        read_bundle(tmp_path / "nowhere")


def test_a_sparse_file_is_no_bomb(tmp_path: Path) -> None:
    """A GNU sparse member of 1 TiB in 2 KiB."""
    header = bytearray(entry("input.snt", tarfile.GNUTYPE_SPARSE).tobuf(tarfile.GNU_FORMAT))
    header[483:495] = b"\x80" + (1 << 40).to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header[:512]):06o}\0 ".encode()
    with pytest.raises(ProtocolError):
        unpack(bytes(header) + bytes(1024), tmp_path)
    pax = io.BytesIO()
    with tarfile.open(fileobj=pax, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = entry("input.snt")
        info.pax_headers = {"GNU.sparse.size": str(1 << 40), "GNU.sparse.map": "0,1"}
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    with pytest.raises(ProtocolError):
        unpack(pax.getvalue(), tmp_path)


def test_recompute_refuses_to_guess(world: World) -> None:
    last, middle = world.modules[2], world.modules[1]
    with pytest.raises(ValueError, match="targets"):
        recompute_frame(last, job_id=1, step=1, direction=FORWARD, input=world.inputs[2])
    with pytest.raises(ValueError, match="incoming"):
        recompute_frame(middle, job_id=1, step=1, direction=BACKWARD, input=world.inputs[1])


def test_recompute_leaves_no_gradient_behind(world: World) -> None:
    module = world.modules[1]
    arguments = {
        "job_id": JOB,
        "step": STEP,
        "direction": BACKWARD,
        "input": world.inputs[1],
        "incoming": world.incoming[1],
    }
    one = recompute_frame(module, **arguments)  # type: ignore[arg-type]
    two = recompute_frame(module, **arguments)  # type: ignore[arg-type]
    assert one.sketch is not None and two.sketch is not None and one.output is not None and two.output is not None
    assert torch.equal(one.sketch, two.sketch) and torch.equal(one.output, two.output)
    assert not module.flat_grad.any()
    assert encode(world.inputs[1]) == encode(world.inputs[1].detach())
    assert not world.inputs[1].requires_grad


def test_versions_name_what_computed() -> None:
    assert {"torch", "python", "sentinel_market", "machine"} <= set(evidence.software_versions())
