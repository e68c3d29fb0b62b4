"""Evidence bundles: written, packed, read back by a stranger, and replayed to the same verdict."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel_market.errors import ProtocolError
from sentinel_market.models.stage import Stage
from sentinel_market.wire.tensors import encode, encoded_hash, tensor_hash
from tests.evidence.world import (
    CONFIG,
    DOMAIN,
    JOB,
    KEYS,
    NUM_REPLICAS,
    NUM_STAGES,
    SEEN,
    STEP,
    World,
    make_world,
    sign,
)
from verifier import evidence
from verifier.check import BACKWARD, FORWARD, Policy, Tolerance, Verdict, VerdictKind
from verifier.check.confirm import Event
from verifier.check.tolerance import Comparison
from verifier.evidence import (
    Bundle,
    Claim,
    Happened,
    SignedReplay,
    describe,
    load_weights,
    pack,
    read_bundle,
    recompute_frame,
    replay_bundle,
    share_weights,
    unpack,
    write_bundle,
)
from verifier.evidence.history import MAX_EVENTS, history_from_json
from verifier.evidence.recompute import edge_inputs, judge
from verifier.evidence.replay import Known, replay


@pytest.fixture(scope="module")
def world() -> World:
    return make_world()


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
        "history",
        "dtype",
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
    for words in (
        "slot 2",
        "stage 1 of 3",
        "raised suspicion: ",
        "below its fence",
        "inside its fences: ",
        f"a baseline of {SEEN} accepted frames",
        "then: the replay of slot 3 disagrees: relative error 2 beyond the limit 0.0001",
        "then: the driver's own recompute disagrees",
        "VIOLATION",
    ):
        assert words in text
    assert "output against the recompute: relative error 2 beyond the limit 0.0001" in text


def test_a_bundle_of_another_job_pins_nothing_of_this_one(world: World, tmp_path: Path) -> None:
    write_bundle(tmp_path, world.bundle(1, FORWARD, lambda t: -t))
    bundle = read_bundle(tmp_path)
    known = Known(model=CONFIG, policy=Policy(), dtype="float32", layout=(NUM_STAGES, NUM_REPLICAS))
    assert replay(bundle, bytes(32), known).admissible
    for wrong in (
        replace(known, model=replace(CONFIG, norm_eps=1e-6)),
        replace(known, policy=Policy(k_init=4.0)),
        replace(known, dtype="bfloat16"),
    ):
        assert not replay(bundle, bytes(32), wrong).admissible


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
    assert replay_bundle(tmp_path / "one", weights_path=next(shared.iterdir())).verdict.kind is VerdictKind.VIOLATION
    # beside the bundle, in a folder `weights`, they are found by themselves
    shared.rename(tmp_path / "weights")
    assert replay_bundle(tmp_path / "one").verdict.kind is VerdictKind.VIOLATION
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
    lie = SignedReplay(commitment=world.commitment(1, FORWARD, Claim(-honest, None), replica=1), output=-honest)
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


FILES = [
    "input.snt",
    "incoming.snt",
    "output.snt",
    "sketch.snt",
    "recompute.snt",
    "recompute_sketch.snt",
    "replays/0.output.snt",
    "replays/0.sketch.snt",
    "baseline.safetensors",
]


def test_the_list_of_files_is_complete(world: World, tmp_path: Path) -> None:
    write_bundle(tmp_path, world.bundle(1, BACKWARD, lambda t: -t))
    found = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert found == {*FILES, "manifest.json", f"weights/{tensor_hash(world.modules[1].flat).hex()}.snt"}


@pytest.mark.parametrize("name", FILES)
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


def test_changed_weights_are_refused(world: World, tmp_path: Path) -> None:
    write_bundle(tmp_path, world.bundle(1, BACKWARD, lambda t: -t))
    (path,) = (tmp_path / "weights").iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ProtocolError, match="digest differs"):
        replay_bundle(tmp_path)


@pytest.mark.parametrize(("stage", "direction"), FRAMES)
def test_the_screening_is_rederived_from_the_baseline_before(
    stage: int, direction: int, world: World, tmp_path: Path
) -> None:
    """Every kind of frame: the same integers from the files as the driver had. The world builds its frames itself."""
    for name, cheat in (("flip", lambda t: -t), ("honest", None)):
        bundle = world.bundle(stage, direction, cheat)
        write_bundle(tmp_path / name, bundle)
        checks = {c.name: c for c in replay_bundle(tmp_path / name).checks}
        if (stage, direction) == (0, BACKWARD):
            assert "screening" not in checks, "nothing is returned there that could be screened"
            continue
        assert checks["screening"].ok, checks["screening"].text
        assert len(bundle.screening.scores) in (3, 12)
        assert (name == "flip") == (bundle.screening.kind is VerdictKind.SUSPECT)


def test_a_screening_that_is_made_up_is_named_and_decides_nothing(world: World, tmp_path: Path) -> None:
    bundle = world.bundle(1, FORWARD, lambda t: -t)
    scores = bundle.screening.scores
    moved = scores[7]._replace(value_e6=scores[7].value_e6 + 10)
    other = replace(bundle.screening, scores=(*scores[:7], moved, *scores[8:]))
    young = replace(world.baselines[1, FORWARD], frames=3)
    for name, changed in (
        ("a score", replace(bundle, screening=other)),
        ("the kind", replace(bundle, screening=Verdict(VerdictKind.ACCEPT, "fine", scores))),
        ("no scores", replace(bundle, screening=Verdict(VerdictKind.SUSPECT, "trust me"))),
        ("another boundary", replace(bundle, baseline=world.baselines[1, BACKWARD])),
        ("an older baseline", replace(bundle, baseline=young)),
    ):
        write_bundle(tmp_path / name, changed)
        result = replay_bundle(tmp_path / name)
        assert [c.ok for c in result.checks if c.name == "screening"] == [False], name
        assert result.verdict.kind is VerdictKind.VIOLATION and result.admissible
        assert any(line.startswith("no   screening: ") for line in result.lines())
        if name == "another boundary":
            assert any("the baseline is that of stage 1, direction 1" in line for line in result.lines())


def test_a_strangers_baseline_is_refused(world: World, tmp_path: Path) -> None:
    import safetensors.torch

    good = world.baselines[1, FORWARD].state_dict()
    for name, state in (
        ("no tensors", {}),
        ("no window", {k: v for k, v in good.items() if k != "window"}),
        ("a narrow window", good | {"window": good["window"][:, :3].contiguous()}),
        ("a scalar", good | {"meta": torch.tensor(1)}),
        ("text", b"not a safetensors file"),
        ("a huge header", b"\xff" * 8),
    ):
        directory = tmp_path / name
        write_bundle(directory, world.bundle(1, FORWARD, lambda t: -t))
        data = state if isinstance(state, bytes) else safetensors.torch.save(state)
        (directory / "baseline.safetensors").write_bytes(data)
        rewrite(directory, lambda m, data=data: m["files"].update({"baseline.safetensors": encoded_hash(data).hex()}))
        with pytest.raises(ProtocolError):
            replay_bundle(directory)


def rewrite(directory: Path, change: Callable[[dict[str, object]], object]) -> None:
    path = directory / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_a_huge_model_is_refused_before_it_is_built(world: World, tmp_path: Path) -> None:
    """Sizes that would fill the memory: the weights are held against them first."""
    for name, value in (("seq_len", 1 << 40), ("vocab_size", 1 << 40), ("num_layers", 1 << 40), ("ffn_dim", 1 << 50)):
        directory = tmp_path / name
        write_bundle(directory, world.bundle(0, FORWARD, lambda t: -t))
        rewrite(directory, lambda m, name=name, value=value: m["model"].update({name: value}))  # type: ignore[attr-defined]
        try:
            result = replay_bundle(directory)
        except ProtocolError as error:
            assert name in str(error)
        else:
            assert not result.admissible and "weights" in result.verdict.reason


REPLAYS: dict[str, tuple[str, Callable[[World, SignedReplay], SignedReplay]]] = {
    "of itself": ("no other replica", lambda w, r: replace(r, commitment=w.commitment(1, FORWARD, w.forward[1]))),
    "of another stage": (
        "no other replica",
        lambda w, r: replace(r, commitment=w.commitment(0, FORWARD, w.forward[0], replica=1)),
    ),
    "of another step": ("step is not", lambda w, r: moved(r, step=STEP + 1)),
    "of another input": ("input_hash is not", lambda w, r: moved(r, input_hash=bytes(32))),
    "of other weights": ("weights_hash is not", lambda w, r: moved(r, weights_hash=bytes(32))),
    "another tensor": ("the signed output", lambda w, r: replace(r, output=-r.output)),  # type: ignore[operator]
    "signed by another": (
        "other key",
        lambda w, r: replace(r, commitment=replace(sign(KEYS[0], r.commitment.message), signer=KEYS[3].address)),
    ),
    "unsigned": ("", lambda w, r: replace(r, commitment=replace(r.commitment, signature=b"1"))),
}


def moved(replay_: SignedReplay, **changes: object) -> SignedReplay:
    message = replace(replay_.commitment.message, **changes)  # type: ignore[arg-type]
    return replace(replay_, commitment=sign(KEYS[3], message))


@pytest.mark.parametrize("name", REPLAYS)
def test_a_replay_that_is_none_supports_nothing(name: str, world: World, tmp_path: Path) -> None:
    words, change = REPLAYS[name]
    bundle = world.bundle(1, FORWARD, lambda t: -t)
    write_bundle(tmp_path, replace(bundle, replays=(change(world, bundle.replays[0]),)))
    result = replay_bundle(tmp_path)
    (check,) = [c for c in result.checks if c.name == "replay 0"]
    assert not check.ok and words in check.text
    assert result.verdict.kind is VerdictKind.VIOLATION, "replays are not what convicts"


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


def test_large_weights_stay_out_and_come_by_path(world: World, tmp_path: Path) -> None:
    bundle = world.bundle(1, FORWARD, lambda t: -t)
    assert bundle.weights is not None
    hashed = write_bundle(tmp_path / "b", bundle, max_weights_bytes=bundle.weights.nbytes - 1)
    assert not (tmp_path / "b" / "weights").exists()
    unpack(pack(tmp_path / "b"), tmp_path / "c")
    wanted = bundle.commitment.message.weights_hash.hex()
    missing = replay_bundle(tmp_path / "c")
    assert not missing.admissible and wanted in missing.verdict.reason
    mine = tmp_path / "any name at all"
    mine.write_bytes(encode(bundle.weights))
    result = replay_bundle(tmp_path / "c", weights_path=mine)
    assert result.verdict.kind is VerdictKind.VIOLATION and result.bundle_digest == hashed
    assert torch.equal(load_weights(mine, wanted), bundle.weights)
    for name, data in (
        ("others", encode(bundle.weights + 1)),
        ("short", encode(bundle.weights)[:-4]),
        ("empty", b""),
        ("a header", encode(bundle.weights)[:64]),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(ProtocolError, match=wanted):
            replay_bundle(tmp_path / "c", weights_path=path)
    matrix = encode(bundle.weights.view(-1, 64))
    mine.write_bytes(matrix)
    with pytest.raises(ProtocolError, match="flat float32"):
        load_weights(mine, encoded_hash(matrix).hex())
    with pytest.raises(ProtocolError, match="nowhere"):
        load_weights(tmp_path / "nowhere", wanted)


def test_weights_under_a_wrong_name_are_neither_shared_nor_kept(world: World, tmp_path: Path) -> None:
    """A stranger's tar may bring a file under the digest of others: it must not become what our own bundles rest on."""
    bundle = world.bundle(1, FORWARD, lambda t: -t)
    shared, wanted = tmp_path / "weights", f"{tensor_hash(world.modules[1].flat).hex()}.snt"
    write_bundle(tmp_path / "theirs", bundle)
    fake = tmp_path / "theirs" / "weights" / f"{'0' * 64}.snt"
    fake.write_bytes(b"poison")
    share_weights(tmp_path / "theirs", shared)
    assert [p.name for p in shared.iterdir()] == [wanted]
    assert fake.exists()
    (shared / wanted).write_bytes(b"poison")
    write_bundle(tmp_path / "ours", bundle, weights_directory=shared)
    assert replay_bundle(tmp_path / "ours").verdict.kind is VerdictKind.VIOLATION
    assert pack(tmp_path / "ours", weights_directory=shared) != pack(tmp_path / "ours")
    unpack(pack(tmp_path / "ours", weights_directory=shared), tmp_path / "far" / "away")
    assert replay_bundle(tmp_path / "far" / "away").verdict.kind is VerdictKind.VIOLATION


def test_the_golden_bundle_still_convicts() -> None:
    """Written once: what is read here is what older releases wrote. See ``tests.evidence.world``."""
    data = (Path(__file__).parents[1] / "vectors" / "evidence.tar").read_bytes()
    with TemporaryDirectory() as name:
        unpack(data, Path(name))
        result = replay_bundle(
            Path(name), expected_domain=DOMAIN, expected_signer=KEYS[2].address, expected_tolerance=Tolerance()
        )
    assert result.verdict.kind is VerdictKind.VIOLATION and result.as_stated
    assert all(check.ok for check in result.checks), result.lines()
    assert "relative error 2 beyond the limit 0.0001" in result.verdict.reason


def test_history_is_told_and_read_back() -> None:
    found = Comparison(False, 2_000_000, 100, "relative")
    whole = [Happened(event, 5, found, "note") for event in Event] + [Happened(event) for event in Event]
    for one in whole:
        assert Happened.from_json(json.loads(json.dumps(one.to_json()))) == one
        assert one.text() and "{" not in one.text()
    assert Happened(Event.REPLAY_DISAGREES, 5, found).text() == (
        "the replay of slot 5 disagrees: relative error 2 beyond the limit 0.0001"
    )
    with pytest.raises(ProtocolError, match="at most"):
        history_from_json([Happened(Event.AUDIT).to_json()] * (MAX_EVENTS + 1))
    for bad in ("x", None, {}, [1], [{"event": "AUDIT"}], [Happened(Event.AUDIT).to_json() | {"limit_e6": 3}]):
        with pytest.raises(ProtocolError):
            history_from_json(bad)


def test_numeric_edge_by_the_jobs_dtype() -> None:
    """A frame whose recompute moves by more than a tenth of the tolerance when its input is rounded convicts nobody."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(2, 4, 8, generator=g)
    assert edge_inputs(x, None, torch.float32) is None
    assert edge_inputs(torch.arange(8).view(2, 4), None, torch.bfloat16) is None, "token ids are not rounded"
    assert edge_inputs(x.bfloat16().float(), None, torch.bfloat16) is None, "came rounded"
    low = edge_inputs(x, x, torch.bfloat16)
    assert low is not None and low[1] is not None
    assert torch.equal(low[0], x.bfloat16().float()) and torch.equal(low[1], low[0])
    wide = Tolerance(relative_e6=100_000, element_e6=500_000)
    claimed, reference = Claim(-x, None), Claim(x, None)
    verdict, _ = judge(claimed, reference, wide, Claim(low[0], None))
    assert verdict.kind is VerdictKind.VIOLATION, "rounding moves it by less than a tenth of this tolerance"
    verdict, _ = judge(claimed, reference, Tolerance(), Claim(low[0], None))
    assert verdict.kind is VerdictKind.INCONCLUSIVE and "numeric edge" in verdict.reason
    sketch = torch.randn(64, generator=g)
    off = Claim(None, sketch * 1.00005)
    assert judge(Claim(None, -sketch), Claim(None, sketch), Tolerance(), off)[0].kind is VerdictKind.VIOLATION
    off = Claim(None, sketch * 1.0005)
    assert judge(Claim(None, -sketch), Claim(None, sketch), Tolerance(), off)[0].kind is VerdictKind.INCONCLUSIVE
