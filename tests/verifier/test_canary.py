"""Canaries: honest seats see through them by computing, seats that sign unread do not, and nothing else tells them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sentinel_market.domain.cross_audit import FaultKind
from sentinel_market.errors import ProtocolError
from sentinel_market.wire import relay_pb2 as pb
from tests.pipeline.test_faults import each_step, equals_plain, nobody_is_accused, small
from tests.verifier.table import LAST, Material, Table, material
from verifier import canary as canaries
from verifier.check.confirm import Event
from verifier.check.tolerance import Comparison
from verifier.evidence import pack, read_bundle, replay_bundle, unpack
from verifier.evidence.history import Happened
from verifier.judgement import seal


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return material(tmp_path_factory.mktemp("frames"))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


FRAMES = ["loss", "forward", "backward"]


# ---- what becomes of one


@pytest.mark.parametrize("frame", FRAMES)
def test_honest_seats_say_no_to_a_canary_and_nothing_follows(table: Table, frames: Material, frame: str) -> None:
    asyncio.run(table.seats[0].accuser.probe(table.canary(frames.upheld[FRAMES.index(frame)])))
    assert [kind for _, _, kind in table.said] == ["accuse"] * 2 + ["reveal_query"] * 2 + ["canary_reveal"] * 2
    assert table.faults == [[], [], []]
    (note,) = table.notes("canary")
    assert note["answers"] == dict.fromkeys(table.accounts[1:], "does not")
    for seat in table.seats[1:]:
        (judged,) = seat.cosigner._judged[table.accounts[0]].values()
        assert judged.canary and judged.cleared
    assert not [p for p in table.home.glob("seat-*/evidence/*") if p.name != "weights"], "nobody keeps anything of it"


@pytest.mark.parametrize("frame", FRAMES)
def test_a_seat_that_signs_unread_is_found_and_a_third_can_tell(table: Table, frames: Material, frame: str) -> None:
    table.stamps(1)
    asyncio.run(table.seats[0].accuser.probe(table.canary(frames.upheld[FRAMES.index(frame)])))
    ((kind, account, step, subject, evidence),) = table.faults[0]
    assert (kind, account, step) == (FaultKind.RUBBER_STAMP, table.accounts[1], 0)
    (note,) = table.notes("canary")
    assert subject.hex() == note["evidence"]
    table.seats[2].cosigner.proves_rubber_stamp(evidence, account)


def changed(change: Callable[[pb.RubberStamp], object]) -> Callable[[Table, bytes], bytes]:
    def make(_: Table, evidence: bytes) -> bytes:
        stamp = pb.RubberStamp.FromString(evidence)
        change(stamp)
        return stamp.SerializeToString()

    return make


def said_no(table: Table, evidence: bytes) -> bytes:
    """What an honest seat 1 signs of the same bundle."""
    stamp = pb.RubberStamp.FromString(evidence)
    (judged,) = table.seats[2].cosigner._judged[table.accounts[0]].values()
    committed = seal(table.seats[1].context, judged.accuse.evidence_hash, False, judged.salt)
    return pb.RubberStamp(bundle=stamp.bundle, committed=committed, salt=judged.salt).SerializeToString()


def sealed_by_the_asker(table: Table, evidence: bytes) -> bytes:
    stamp = pb.RubberStamp.FromString(evidence)
    (judged,) = table.seats[2].cosigner._judged[table.accounts[0]].values()
    stamp.committed.CopyFrom(seal(table.seats[0].context, judged.accuse.evidence_hash, True, stamp.salt))
    return stamp.SerializeToString()


def another_bundle(table: Table, evidence: bytes) -> bytes:
    stamp = pb.RubberStamp.FromString(evidence)
    directory = table.home / "another"
    unpack(stamp.bundle, directory)
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["verdict"]["reason"] = "another"
    (directory / "manifest.json").write_text(json.dumps(manifest))
    stamp.bundle = pack(directory)
    return stamp.SerializeToString()


TAMPERED: dict[str, Callable[[Table, bytes], bytes]] = {
    "nothing": lambda *_: b"",
    "noise": lambda *_: b"\xff" * 100,
    "no bundle": changed(lambda s: s.ClearField("bundle")),
    "another bundle": another_bundle,
    "another salt": changed(lambda s: setattr(s, "salt", bytes(32))),
    "a short salt": changed(lambda s: setattr(s, "salt", s.salt[1:])),
    "another commitment": changed(lambda s: setattr(s.committed, "commitment", bytes(32))),
    "no signature": changed(lambda s: s.committed.ClearField("signature")),
    "it said no": said_no,
    "the asker's own seal": sealed_by_the_asker,
}


@pytest.mark.parametrize("name", TAMPERED)
def test_tampered_evidence_proves_nothing(table: Table, frames: Material, name: str) -> None:
    table.stamps(1)
    asyncio.run(table.seats[0].accuser.probe(table.canary(frames.upheld[0])))
    ((_, account, _, _, evidence),) = table.faults[0]
    judge = table.seats[2].cosigner
    with pytest.raises(ProtocolError):
        judge.proves_rubber_stamp(TAMPERED[name](table, evidence), account)
    with pytest.raises(ProtocolError):
        judge.proves_rubber_stamp(evidence, table.accounts[2])


def test_who_convicts_a_frame_that_is_wrong_is_no_rubber_stamp(table: Table, frames: Material) -> None:
    """A hostile driver calls a real violation a canary."""
    asyncio.run(table.seats[0].accuser.probe(frames.offence))
    assert [fault[0] for fault in table.faults[0]] == [FaultKind.RUBBER_STAMP] * 2
    for _, account, _, _, evidence in table.faults[0]:
        with pytest.raises(ProtocolError, match="not clearly right"):
            table.seats[2].cosigner.proves_rubber_stamp(evidence, account)


def test_a_frame_near_the_tolerance_is_no_evidence_against_who_convicts_it(table: Table, frames: Material) -> None:
    """Worker and driver agree on a frame so near the limit that another machine's rounding convicts it."""
    table.stamps(1)
    asyncio.run(table.seats[0].accuser.probe(table.canary(frames.upheld[0])))
    ((_, account, _, _, evidence),) = table.faults[0]
    third = table.seats[2].cosigner
    seen = third._replayed

    def near(*arguments: Any) -> Any:
        bundle, replayed = seen(*arguments)
        return bundle, replace(replayed, comparisons=(Comparison(True, 50, 100), *replayed.comparisons[1:]))

    third._replayed = near  # type: ignore[method-assign]
    with pytest.raises(ProtocolError, match="not clearly right"):
        third.proves_rubber_stamp(evidence, account)


def test_a_dead_seat_and_a_lost_reveal_do_not_stop_a_canary(table: Table, frames: Material) -> None:
    table.away.add(2)
    table.stamps(1)
    asyncio.run(table.seats[0].accuser.probe(table.canary(frames.upheld[0])))
    assert [fault[1] for fault in table.faults[0]] == [table.accounts[1]]


# ---- what it looks like


def shape(data: object) -> object:
    """Keys and types of JSON data, numbers and texts left out."""
    if isinstance(data, dict):
        return {key: shape(value) for key, value in data.items()}
    return [shape(item) for item in data] if isinstance(data, list) else type(data).__name__


def test_a_canary_looks_like_an_accusation_in_earnest(table: Table, frames: Material) -> None:
    real, canary = table.accusation(frames.offence), table.accusation(table.canary(frames.upheld[0]))
    assert [f.name for f, _ in real.ListFields()] == [f.name for f, _ in canary.ListFields()]
    assert (real.slot, real.nonce, real.session) == (canary.slot, canary.nonce, canary.session)
    assert abs(real.deadline - canary.deadline) <= 60
    found = []
    for name, accuse in (("real", real), ("canary", canary)):
        directory = table.home / name
        unpack(accuse.bundle, directory)
        sizes = {
            p.relative_to(directory).as_posix(): p.stat().st_size
            for p in directory.rglob("*")
            if p.is_file() and p.suffix == ".snt"
        }
        manifest = json.loads((directory / "manifest.json").read_text())
        manifest["files"] = dict.fromkeys(manifest["files"], "")
        bundle = read_bundle(directory)
        kinds = (bundle.verdict.kind, bundle.screening.kind)
        found.append((sizes, shape(manifest), [one.event for one in bundle.history], kinds))
        assert bundle.verdict.reason.startswith("forward of step 0: audit; recompute: ")
    assert found[0] == found[1]
    assert Event.RECOMPUTE_DISAGREES in found[0][2]


@pytest.mark.parametrize("frame", FRAMES)
def test_only_a_recompute_contradicts_a_canary(table: Table, frames: Material, frame: str) -> None:
    accuse = table.accusation(table.canary(frames.upheld[FRAMES.index(frame)]))
    unpack(accuse.bundle, table.home / "bundle-read")
    result = replay_bundle(table.home / "bundle-read")
    assert result.verdict.kind.value == "ACCEPT"
    wrong = {check.name for check in result.checks if not check.ok}
    assert wrong and wrong <= {"recompute", "recompute_sketch"}, "what it claims to have recomputed, and nothing else"
    bundle = read_bundle(table.home / "bundle-read")
    stated = bundle.history[-1].comparison
    assert stated is not None and not stated.agrees
    assert stated.error_e6 < 1_000_000, "a plausible cheat"


def test_equal_rows_stay_equal_in_what_a_canary_claims(table: Table, frames: Material) -> None:
    """A recompute of stage 0 gives the same first row for the same first token: noise on top would show."""
    upheld = frames.upheld[1]
    tokens = upheld.held.tokens.clone()
    tokens[1, 0], tokens[1, 1] = tokens[0, 0], tokens[0, 1] ^ 1
    upheld = replace(upheld, held=replace(upheld.held, tokens=tokens))
    forged = asyncio.run(table.seats[0].canaries._forge(upheld))
    assert torch.allclose(forged.output[0, 0], forged.output[1, 0], atol=1e-6)
    assert not torch.allclose(forged.output[0, 1], forged.output[1, 1], atol=1e-3)


def test_two_canaries_of_one_frame_differ(table: Table, frames: Material) -> None:
    one, two = (table.canary(frames.upheld[0]).comparison for _ in range(2))
    assert one.error_e6 != two.error_e6


# ---- what it is made of


def test_a_frame_that_a_replay_vouched_for_or_that_is_not_clearly_right_does_not_serve(
    table: Table, frames: Material
) -> None:
    upheld = frames.upheld[0]
    last = upheld.history[-1]
    replayed = (Happened(Event.AUDIT), Happened(Event.REPLAY_DISAGREES, 4), last, Happened(Event.REPLAY_REFUTED, 4))
    disagreeing = (Happened(Event.AUDIT), Happened(Event.REPLAY_DISAGREES, 4), last)
    near = (*upheld.history[:-1], replace(last, comparison=Comparison(True, 50, 100)))
    silent = (*upheld.history[:-1], replace(last, comparison=None))
    make = table.seats[0].canaries.make
    for history in (replayed, disagreeing, near, silent):
        assert asyncio.run(make(replace(upheld, history=history))) is None
    assert asyncio.run(make(upheld)) is not None


def considered(table: Table, frames: Material, times: int = 1) -> int:
    """How many canaries are begun."""
    seat, probed = table.seats[0], list[object]()

    async def probe(canary: object) -> None:
        probed.append(canary)

    seat.canaries._probe = probe

    async def all_at_once() -> None:
        for _ in range(times):
            seat.canaries.consider(frames.upheld[0])
        await seat.docket.settled()

    asyncio.run(all_at_once())
    return len(probed)


def test_one_at_a_time_and_the_driver_is_not_done_before(
    table: Table, frames: Material, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canaries, "CANARY_SHARE_PPM", 1_000_000)
    assert considered(table, frames, 5) == 1
    assert considered(table, frames) == 1, "and then another"


def test_no_canary_of_a_worker_that_is_accused_already(
    table: Table, frames: Material, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canaries, "CANARY_SHARE_PPM", 1_000_000)
    table.seats[0].docket.distrusted[LAST, 1] = "accused"
    assert considered(table, frames) == 0
    table.seats[0].docket.distrusted.clear()
    table.seats[0].docket.quarantined[LAST, 1] = pb.Quarantine()
    assert considered(table, frames) == 0


def test_no_canary_where_nobody_confirms(tmp_path: Path, frames: Material, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canaries, "CANARY_SHARE_PPM", 1_000_000)
    assert considered(Table(tmp_path, {"policy": "screen"}), frames) == 0


def test_about_one_upheld_frame_in_fifty(table: Table, frames: Material) -> None:
    made = table.seats[0].canaries
    held = list[object]()

    def hold(canary: Any) -> None:
        held.append(canary)
        canary.close()
        made._open = False

    made._docket.hold = hold  # type: ignore[method-assign]
    for _ in range(10_000):
        made.consider(frames.upheld[0])
    assert 120 < len(held) < 290


# ---- in a run


def everything_audited(tmp_path: Path) -> Any:
    return small(tmp_path, steps=3, replicas=2, audit_ppm=1_000_000, warmup_audit_ppm=1_000_000)


def test_canaries_in_a_run_change_nothing_and_charge_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canaries, "CANARY_SHARE_PPM", 1_000_000)
    mesh, faults = everything_audited(tmp_path), list[object]()

    def listen(seat: int, _: int) -> None:
        mesh.seats[seat].accuser._on_fault = mesh.seats[seat].cosigner._on_fault = lambda *fault: faults.append(fault)

    each_step(mesh, listen)
    asyncio.run(mesh.train())
    asked = [v for events in mesh.events for v in events.verdicts if v["kind"] == "canary"]
    assert len(asked) > 3
    assert {answer for v in asked for answer in v["answers"].values()} == {"does not"}
    assert {len(v["answers"]) for v in asked} == {2}
    assert faults == []
    nobody_is_accused(mesh)
    equals_plain(mesh)


def test_a_seat_that_signs_unread_is_found_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canaries, "CANARY_SHARE_PPM", 1_000_000)
    mesh, faults = everything_audited(tmp_path), list[Any]()

    async def judgement(_: pb.Accuse) -> tuple[bool, str, bool]:
        return True, "", False

    def listen(seat: int, _: int) -> None:
        mesh.seats[seat].accuser._on_fault = lambda *fault: faults.append(fault)
        mesh.seats[1].cosigner._judgement = judgement

    each_step(mesh, listen)
    asyncio.run(mesh.train())
    stamper = mesh.seats[1].context.account
    assert faults and {(fault[0], fault[1]) for fault in faults} == {(FaultKind.RUBBER_STAMP, stamper)}
    mesh.seats[2].cosigner.proves_rubber_stamp(faults[0][4], stamper)
    nobody_is_accused(mesh)
    equals_plain(mesh)
