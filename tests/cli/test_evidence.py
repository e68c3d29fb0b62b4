"""`sentinel evidence` and `sentinel explain`: from files alone, with documented exit codes and no tracebacks."""

from __future__ import annotations

import io
import json
import os
import socket
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sentinel_market.domain.job_spec import template
from tests.cli.test_cli import Cli
from tests.evidence.sums import flipped, make_worlds, summed
from tests.evidence.world import (
    CONFIG,
    DOMAIN,
    JOB,
    KEYS,
    MICROBATCH,
    NUM_REPLICAS,
    NUM_STAGES,
    SEAT,
    STEP,
    World,
    make_world,
)
from verifier.check import BACKWARD, FORWARD, Verdict, VerdictKind
from verifier.evidence import Happened, pack, write_bundle, write_gradient_bundle
from verifier.evidence.history import Event

CONTRACT = DOMAIN.verifying_contract


@pytest.fixture(scope="module")
def world() -> World:
    return make_world()


@pytest.fixture
def sentinel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command, in a process that can reach no network."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    return Cli(tmp_path / "home")


@pytest.fixture
def bundle(world: World, tmp_path: Path) -> Path:
    """A sign flip of stage 1, in the layout of a run: weights beside the bundle."""
    directory = tmp_path / "evidence" / "step11-slot2-x"
    write_bundle(directory, world.bundle(1, FORWARD, lambda t: -t), weights_directory=tmp_path / "evidence" / "weights")
    return directory


# --- replay


def test_replay_of_a_directory_and_of_its_tar(sentinel: Cli, bundle: Path, tmp_path: Path) -> None:
    text = sentinel("evidence", "replay", bundle).output
    assert "VIOLATION: the recompute disagrees: relative error 2 beyond the limit 0.0001" in text
    assert "screening: the same 12 scores" in text
    assert "re-derived: the files give the verdict that they state, VIOLATION" in text
    assert "pin it with --signer" in text
    tar = tmp_path / "elsewhere" / "b.tar"
    tar.parent.mkdir()
    assert sentinel.json("evidence", "pack", bundle, tar)["weights"] is True
    one, two = sentinel.json("evidence", "replay", bundle), sentinel.json("evidence", "replay", tar)
    assert one == two
    assert (one["verdict"], one["as_stated"], one["exit_code"], one["slot"]) == ("VIOLATION", True, 0, 2)
    assert all(check["ok"] for check in one["checks"])
    assert one["comparisons"] == [{"criterion": "relative", "agrees": False, "error_e6": 2_000_000, "limit_e6": 100}]


def test_a_bundle_of_a_whole_gradient_is_taken_like_any_other(sentinel: Cli, tmp_path: Path) -> None:
    source, tar = tmp_path / "sum", tmp_path / "sum.tar"
    write_gradient_bundle(source, summed(make_worlds(), 1, flipped))
    assert sentinel.json("evidence", "pack", source, tar)["weights"] is True
    for place in (source, tar):
        found = sentinel.json("evidence", "replay", place, "--signer", KEYS[2].address)
        assert (found["verdict"], found["as_stated"], found["slot"], found["step"]) == ("VIOLATION", True, 2, STEP)
        assert "chain of backwards" in {check["name"] for check in found["checks"]}
        sentinel("evidence", "replay", place, "--signer", KEYS[3].address, code=6)
        for verb in (("evidence", "show"), ("explain",)):
            assert "sum of 3 gradients of step 11" in sentinel(*verb, place).output
    damaged = next((source / "tensors").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-4])
    assert "digest differs" in sentinel("evidence", "replay", source, code=6).output


def test_a_bundle_that_says_otherwise_is_code_5(sentinel: Cli, world: World, tmp_path: Path) -> None:
    write_bundle(tmp_path / "framed", world.bundle(1, FORWARD))
    found = sentinel.json("evidence", "replay", tmp_path / "framed", code=5)
    assert (found["verdict"], found["stated"], found["as_stated"]) == ("ACCEPT", "VIOLATION", False)
    assert "NOT as stated" in sentinel("evidence", "replay", tmp_path / "framed", code=5).output
    cleared = replace(world.bundle(1, FORWARD), verdict=Verdict(VerdictKind.ACCEPT, "cleared by recompute"))
    write_bundle(tmp_path / "cleared", cleared)
    assert sentinel.json("evidence", "replay", tmp_path / "cleared")["verdict"] == "ACCEPT"


def test_pins(sentinel: Cli, bundle: Path) -> None:
    good = ["--signer", KEYS[2].address, "--chain-id", "31337", "--contract", CONTRACT]
    text = sentinel("evidence", "replay", bundle, *good).output
    assert "pin it with --signer" not in text and "--chain-id and --contract" not in text
    for wrong in (
        ["--signer", KEYS[3].address],
        ["--chain-id", "1"],
        ["--contract", "0x" + "44" * 20],
    ):
        found = sentinel.json("evidence", "replay", bundle, *wrong, code=6)
        assert found["verdict"] == "INCONCLUSIVE" and "inadmissible" in found["reason"]
    assert "is not an address" in sentinel("evidence", "replay", bundle, "--signer", "bob", code=2).output


def job_toml(**changes: object) -> str:
    values: dict[str, object] = {
        "model__dim": CONFIG.dim,
        "model__num_layers": CONFIG.num_layers,
        "model__num_heads": CONFIG.num_heads,
        "model__num_kv_heads": CONFIG.num_kv_heads,
        "model__ffn_dim": CONFIG.ffn_dim,
        "model__vocab_size": CONFIG.vocab_size,
        "model__seq_len": CONFIG.seq_len,
        "parallelism__stages": NUM_STAGES,
        "parallelism__replicas": NUM_REPLICAS,
        **changes,
    }
    return template(**values)


def test_a_job_file_pins_the_job_and_the_data_its_rows(
    sentinel: Cli, world: World, bundle: Path, tmp_path: Path
) -> None:
    import numpy as np

    from sentinel_market.data.corpus import batch, load_corpus

    np.save(tmp_path / "ids.npy", np.random.default_rng(0).integers(0, 32, 4_000).astype(np.uint8))
    data = {
        "data__kind": "tokens",
        "data__tokenizer": "none",
        "data__path": str(tmp_path / "ids.npy"),
        "training__microbatch_size": 2,
    }
    job = tmp_path / "job.toml"
    job.write_text(job_toml(**data))
    found = sentinel.json("evidence", "replay", bundle, "--job", job)
    assert {"layout", "model", "tolerance", "policy", "dtype"} <= {c["name"] for c in found["checks"]}
    for key, value in (("model__ffn_dim", 32), ("parallelism__replicas", 3), ("verification__audit_ppm", 20_000)):
        job.write_text(job_toml(**data, **{key: value}))
        assert "inadmissible" in sentinel.json("evidence", "replay", bundle, "--job", job, code=6)["reason"]
    job.write_text(job_toml(**data))
    first = tmp_path / "first stage"
    write_bundle(first, world.bundle(0, FORWARD, lambda t: -t))
    found = sentinel.json("evidence", "replay", first, "--job", job, code=6)
    assert "chain of input" in found["reason"], "these rows are not the data's"
    corpus = load_corpus("tokens", tmp_path / "ids.npy", vocab_size=32, seq_len=8)
    rows = batch(corpus.train, seed=0, step=STEP, microbatch=MICROBATCH, batch_size=2, seq_len=8)
    for stage in (0, NUM_STAGES - 1):
        directory = tmp_path / f"from the data {stage}"
        write_bundle(directory, make_world(rows).bundle(stage, BACKWARD, lambda t: -t))
        found = sentinel.json("evidence", "replay", directory, "--job", job)
        assert "rows that the job's data gives" in str(found["checks"]), "now they are"
        assert "believed" not in str(found["checks"])
    job.write_text(job_toml(**{**data, "data__path": str(tmp_path / "gone.npy")}))
    found = sentinel.json("evidence", "replay", first, "--job", job)
    assert any("rows are believed" in note and "gone.npy" in note for note in found["notes"])
    assert "cannot read the job file" in sentinel("evidence", "replay", bundle, "--job", tmp_path / "no", code=2).output


def test_weights_by_path(sentinel: Cli, bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "evidence" / "weights"
    folder.rename(tmp_path / "moved")
    found = sentinel.json("evidence", "replay", bundle, code=6)
    assert "not here" in found["reason"]
    (weights,) = (tmp_path / "moved").iterdir()
    for path in (tmp_path / "moved", weights):
        assert sentinel.json("evidence", "replay", bundle, "--weights", path)["verdict"] == "VIOLATION"
    assert "digest" in sentinel("evidence", "replay", bundle, "--weights", bundle / "input.snt", code=6).output
    assert "does not exist" in sentinel("evidence", "replay", bundle, "--weights", tmp_path / "no", code=2).output


# --- strangers' files


def _tar(path: Path, *members: tuple[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


HOSTILE: dict[str, Callable[[Path, Path], Path]] = {
    "an empty directory": lambda b, t: t / "home-less",
    "a directory of something else": lambda b, t: b.parent / "weights",
    "a changed tensor": lambda b, t: _append(b, "input.snt", b"x"),
    "a changed output": lambda b, t: _append(b, "output.snt", b"x"),
    "a changed baseline": lambda b, t: _append(b, "baseline.safetensors", b"x"),
    "a changed replay": lambda b, t: _append(b, "replays/0.output.snt", b"x"),
    "a missing tensor": lambda b, t: _without(b, "output.snt"),
    "no manifest": lambda b, t: _without(b, "manifest.json"),
    "no JSON": lambda b, t: _append(b, "manifest.json", b"}"),
    "another version": lambda b, t: _change(b, version=1),
    "another kind": lambda b, t: _change(b, kind="LATE"),
    "no files": lambda b, t: _change(b, files={}),
    "a deep manifest": lambda b, t: _written(b, b"[" * 100_000),
    "no tar": lambda b, t: _bytes(t / "x.tar", b"x" * 10_000),
    "an empty file": lambda b, t: _bytes(t / "x.tar", b""),
    "a tar with a path out": lambda b, t: _tar(t / "x.tar", ("../../evil", b"x")),
    "a cut tar": lambda b, t: _bytes(t / "x.tar", pack(b)[:2000]),
    "a tar without a manifest": lambda b, t: _tar(t / "x.tar", ("input.snt", b"x")),
}


def _append(directory: Path, name: str, data: bytes) -> Path:
    path = directory / name
    path.write_bytes(path.read_bytes() + data)
    return directory


def _without(directory: Path, name: str) -> Path:
    (directory / name).unlink()
    return directory


def _change(directory: Path, **values: Any) -> Path:
    path = directory / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return directory


def _written(directory: Path, data: bytes) -> Path:
    (directory / "manifest.json").write_bytes(data)
    return directory


def _bytes(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("command", [("evidence", "replay"), ("evidence", "show"), ("explain",)])
def test_hostile_files_are_code_6_and_name_the_way_out(
    sentinel: Cli, bundle: Path, tmp_path: Path, name: str, command: tuple[str, ...]
) -> None:
    (tmp_path / "home-less").mkdir()
    source = HOSTILE[name](bundle, tmp_path)
    is_bundle = source.is_file() or (source / "manifest.json").exists()
    code = 6 if command[0] == "evidence" or is_bundle else 2  # explain: a directory without a manifest is a run
    text = sentinel(*command, source, code=code).output
    assert str(source) in text and "Traceback" not in text and "SENTINEL_DEBUG" not in text
    assert len(text) < 1500
    error = sentinel.json(*command, source, code=code)["error"]
    assert error["exit_code"] == code
    assert not (tmp_path.parent / "evil").exists() and not (tmp_path / "evil").exists()


def test_a_strangers_words_are_shown_as_one_plain_line(sentinel: Cli, world: World, tmp_path: Path) -> None:
    evil = "\x1b[2J\nok   signature of commitment: forged"
    bundle = replace(world.bundle(1, FORWARD, lambda t: -t), verdict=Verdict(VerdictKind.VIOLATION, evil + "x" * 9_000))
    bundle = replace(bundle, versions={evil: evil}, screening=replace(bundle.screening, reason=evil))
    write_bundle(tmp_path / "b", replace(bundle, history=(Happened(Event.SUSPECT, note=evil),)))
    for command in (("evidence", "replay"), ("evidence", "show"), ("explain",)):
        text = sentinel(*command, tmp_path / "b").output
        assert "\x1b" not in text and not any(
            line.startswith("ok   signature of commitment: f") for line in text.splitlines()
        )
        assert len(text) < 8_000


def test_a_path_that_is_nothing(sentinel: Cli, tmp_path: Path) -> None:
    for command in (("evidence", "replay"), ("evidence", "show"), ("explain",)):
        assert str(tmp_path / "no") in sentinel(*command, tmp_path / "no", code=2).output


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_fuzzed_manifests_end_with_a_documented_code(data: st.DataObject, world: World, fuzzed: Path) -> None:
    """Any value anywhere in the manifest: 0, 5 or 6 and never another end."""
    manifest = json.loads((fuzzed / "good.json").read_text())
    target: Any = manifest
    while True:
        keys = list(target) if isinstance(target, dict) else list(range(len(target)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(target[key], dict | list) and target[key] and data.draw(st.integers(0, 4)):
            target = target[key]
            continue
        target[key] = data.draw(
            st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=70) | st.just([]) | st.just({})
        )
        break
    (fuzzed / "manifest.json").write_text(json.dumps(manifest))
    for command in (("evidence", "replay"), ("evidence", "show"), ("explain",)):
        code, text = run(fuzzed.parent, *command, str(fuzzed))
        assert code in (0, 5, 6), (command, code, text)
        assert "Traceback" not in text and "SENTINEL_DEBUG" not in text, text


@pytest.fixture(scope="module")
def fuzzed(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fuzzed") / "bundle"
    write_bundle(path, world.bundle(1, BACKWARD, lambda t: -t))
    (path / "good.json").write_bytes((path / "manifest.json").read_bytes())
    return path


def run(home: Path, *args: str) -> tuple[int, str]:
    from click.testing import CliRunner

    from sentinel_market.cli.main import cli

    result = CliRunner().invoke(cli, list(args), env={"SENTINEL_HOME": str(home)})
    return result.exit_code, result.output


# --- show


def test_show_names_everything(sentinel: Cli, bundle: Path) -> None:
    text = sentinel("evidence", "show", bundle).output
    for words in (
        "slot 2 (stage 1 of 3)",
        f"driven by {SEAT}",
        "raised suspicion",
        "the replay of slot 3 disagrees",
        "input.snt",
        "baseline.safetensors",
        "torch",
        f"sentinel evidence replay {bundle}",
    ):
        assert words in text, words
    found = sentinel.json("evidence", "show", bundle)
    assert found["weights_here"] is True and found["manifest"]["job_id"] == JOB
    assert found["evidence_hash"] == sentinel.json("evidence", "replay", bundle)["evidence_hash"]


# --- explain


def event(**values: Any) -> str:
    return json.dumps({"topic": "verdict", "at": values.pop("at", 1.0), "nonce": 1, **values}) + "\n"


ACCUSER, SECOND = "0x" + "aa" * 20, "0x" + "bb" * 20


@pytest.fixture
def run_directory(world: World, tmp_path: Path) -> Path:
    """A run as `sentinel demo` leaves it: slot 2 convicted by its bundle, slot 4 cleared, slot 0 a false alarm."""
    root = tmp_path / "run"
    seat = root / "homes" / "verifier-0" / "verifier" / "job-7-seat-0"
    name = "step11-slot2-00"
    digest = write_bundle(seat / "evidence" / name, world.bundle(1, FORWARD, lambda t: -t)).hex()
    other = root / "homes" / "verifier-1" / "verifier" / "job-7-seat-1"
    write_bundle(other / "evidence" / f"cosigned-{name}", world.bundle(1, FORWARD, lambda t: -t))
    cleared = [
        Happened(Event.SUSPECT, note="backward: gain 2 above its fence 1").to_json(),
        Happened(Event.REPLAY_AGREES, 5).to_json(),
    ]
    common = {"slot": 2, "step": STEP, "account": "0x" + "cc" * 20}
    (seat / "events.jsonl").write_text(
        '{"topic": "step", "step": 10}\n'
        + event(
            kind="confirmed",
            slot=4,
            step=9,
            stage=2,
            direction=1,
            microbatch=3,
            driver=ACCUSER,
            verdict="ACCEPT",
            reason="another replica computed the same within the tolerance",
            history=cleared,
        )
        + event(kind="quarantined", **common, reason="r", accuser=ACCUSER, evidence=digest, signers=[ACCUSER, SECOND])
        + event(kind="reported", **common, transaction="0x" + "01" * 32, at=2.0)
        + event(kind="executed", **common, transaction="0x" + "02" * 32, at=3.0)
        + '{"topic": "verdict", "slot'
    )
    (other / "events.jsonl").write_text(event(kind="false alarm", slot=0, step=4, accuser=SECOND))
    return root


def test_explain_a_run(sentinel: Cli, run_directory: Path) -> None:
    text = sentinel("explain", run_directory).output
    for words in (
        "slot 2, step 11: VIOLATION: quarantined, slashed and banned on chain",
        "raised suspicion: ",
        "BELOW",
        "then: the replay of slot 3 disagrees: relative error 2 beyond the limit 0.0001",
        "then: the driver's own recompute disagrees",
        f"accused by seat {ACCUSER}",
        f"signed by {ACCUSER}, {SECOND}",
        "executed: 0x" + "02" * 32,
        "slot 0, step 4: accused by one seat; no quorum agreed",
        "is not JSON",
    ):
        assert words in text, words
    assert text.count("slot 2, step 11") == 1, "the co-signed copy is the same verdict"
    assert "slot 4" not in text, "what was cleared is told only of a slot that is asked for"
    found = sentinel.json("explain", run_directory)
    story = found["stories"][1]
    assert [c["event"] for c in story["chain"]] == ["reported", "executed"]
    assert any(score["crossed"] for score in story["scores"])
    assert len(found["problems"]) == 1
    assert len(story["evidence"]) == 1, "the co-signer's copy is the same bundle"


def test_explain_a_slot_that_was_cleared(sentinel: Cli, run_directory: Path) -> None:
    text = sentinel("explain", run_directory, "--slot", "4").output
    assert "slot 4, step 9: ACCEPT: another replica computed the same" in text
    assert "backward of microbatch 3 in step 9, stage 2, driven by " + ACCUSER in text
    assert "gain 2 above its fence 1" in text and "the replay of slot 5 agrees" in text
    assert (
        "no verdict of slot 4 in step 8" in sentinel("explain", run_directory, "--slot", 4, "--step", 8, code=1).output
    )
    assert sentinel.json("explain", run_directory, "--slot", 99, code=1)["stories"] == []


def test_explain_a_bundle_by_itself_and_with_its_log(sentinel: Cli, bundle: Path, run_directory: Path) -> None:
    alone = sentinel("explain", bundle).output
    assert "slot 2, step 11: VIOLATION" in alone and "on chain" not in alone
    known = next(run_directory.glob("homes/*/verifier/*/evidence/step*"))
    assert "banned on chain" in sentinel("explain", known).output


def test_explain_without_a_bundle_uses_the_log(sentinel: Cli, tmp_path: Path) -> None:
    history = [Happened(Event.AUDIT).to_json(), Happened(Event.REPLAY_LOST).to_json()]
    series = [
        {
            "step": 3,
            "direction": 0,
            "kind": "SUSPECT",
            "scores": [["cosine", -900_000, 800_000, None], ["l1", 1, 0, 2]],
        },
        {"step": 3, "direction": 0, "kind": "SUSPECT", "scores": [["cosine", "x", 0, 0], "nonsense"]},
    ]
    (tmp_path / "events.jsonl").write_text(
        event(kind="confirmed", slot=1, step=3, verdict="VIOLATION", direction=0, stage=0, history=history)
        + event(kind="quarantined", slot=1, step=3, reason="why", accuser=ACCUSER, series=series[:1])
        + event(kind="confirmed", slot=6, step=3, verdict="ACCEPT", history="nonsense")
        + event(kind="quarantined", slot="x", step=3)
    )
    text = sentinel("explain", tmp_path).output
    assert "the random draw picked the frame" in text and "the replay was lost" in text
    assert "cosine" in text and "-0.9" in text and "BELOW" in text
    assert "no verdict: slot, step or kind is missing" in text
    assert "its history cannot be read" in sentinel("explain", tmp_path, "--slot", 6).output


def test_explain_wants_one_source(sentinel: Cli, tmp_path: Path) -> None:
    assert "either" in sentinel("explain", code=2).output
    assert "either" in sentinel("explain", tmp_path, "--job", 1, code=2).output
    assert "--slot" in sentinel("explain", "--job", 1, code=2).output
    assert "neither events.jsonl" in sentinel("explain", tmp_path, code=2).output


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_log_that_may_not_be_read_is_named(sentinel: Cli, run_directory: Path) -> None:
    path = next(run_directory.glob("homes/verifier-1/verifier/*/events.jsonl"))
    path.chmod(0)
    assert "cannot be read" in sentinel("explain", run_directory).output


def test_explain_a_job_asks_coordinator_and_chain(sentinel: Cli, world: World) -> None:
    """With the clients' places taken: what all seats published, this machine's seat, and the cases of that slot."""
    from sentinel_market.chain.logs import ChainEvent
    from sentinel_market.cli.common import App
    from sentinel_market.cli.explain import _from_job, _text
    from sentinel_market.config import load_settings
    from sentinel_market.errors import PeerGone
    from sentinel_market.wire import dto

    def report(slot: int, case: bytes) -> dict[str, Any]:
        return {"jobId": 1, "slot": slot, "caseId": case, "verifier": ACCUSER, "evidenceHash": bytes(32)}

    chain = [
        ChainEvent("ReportFiled", "ViolationCourt", 5, 0, "0x01", report(2, b"a")),
        ChainEvent("ReportFiled", "ViolationCourt", 5, 1, "0x02", report(3, b"b")),
        ChainEvent("CaseExecuted", "ViolationCourt", 9, 0, "0x03", {"caseId": b"a", "accused": SECOND}),
        ChainEvent("CaseExecuted", "ViolationCourt", 9, 1, "0x04", {"caseId": b"b", "accused": ACCUSER}),
        ChainEvent("Deposited", "StakeVault", 9, 2, "0x05", {"account": SECOND}),
    ]
    common: dict[str, Any] = {"nonce": 1, "issued": 1}
    page = [
        dto.VerdictEvent(
            step=11, slot=2, kind="suspect", reason="low", direction=0, microbatch=4, metric="cosine",
            value_e6=-900_000, fence_e6=800_000, **common,
        ),
        dto.VerdictEvent(step=12, slot=2, kind="quarantine", reason="wrong", **common),
        dto.VerdictEvent(step=11, slot=3, kind="suspect", reason="other", **common),
    ]  # fmt: skip
    views = [dto.VerdictView(id=i + 1, verifier=ACCUSER, stage=1, replica=0, event=one) for i, one in enumerate(page)]

    class Everything:
        """Chain reader and coordinator in one."""

        market = network = None
        deployed_block, silent = 0, False

        def __init__(self) -> None:
            self.market = self.network = self

        def job(self, job_id: int) -> Any:
            return type("Job", (), {"state": "active"})

        def block_number(self) -> int:
            return 9

        def fetch_events(self, first: int, last: int) -> list[ChainEvent]:
            return chain

        def verdicts(self, job_id: int, after: int) -> list[dto.VerdictView]:
            if self.silent:
                raise PeerGone("nobody answers")
            return [view for view in views if view.id > after]

    app = App()
    app.__dict__["reader"] = app.__dict__["coordinator"] = both = Everything()
    app.__dict__["settings"] = load_settings({"SENTINEL_HOME": str(sentinel.home)})
    seat = sentinel.home / "verifier" / "job-1-seat-0"
    write_bundle(seat / "evidence" / "step11-slot2-x", world.bundle(1, FORWARD, lambda t: -t))
    found, told, cases = _from_job(app, 1, 2, None)
    text = "\n".join(map(_text, told))
    assert "slot 2, step 11: VIOLATION" in text, "from this machine's seat"
    assert f"suspect, says seat {ACCUSER}" in text and "forward of microbatch 4: low" in text
    assert "-0.9" in text and "BELOW" in text and "quarantine, says seat" in text and "other" not in text
    assert [(c["event"], c["transaction"]) for c in cases] == [("ReportFiled", "0x01"), ("CaseExecuted", "0x03")]
    assert len(_from_job(app, 1, 2, 12)[1]) == 1
    both.silent = True
    found, told, _ = _from_job(app, 1, 2, None)
    assert any("nobody answers" in problem for problem in found.problems) and told
