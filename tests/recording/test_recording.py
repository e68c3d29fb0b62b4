"""A live mesh is recorded and judged again: the same verdicts. Whatever a stranger makes of the files is an error."""

from __future__ import annotations

import asyncio
import errno
import json
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from click.testing import CliRunner

from sentinel_market.chain.eip712 import digest
from sentinel_market.cli.main import cli
from sentinel_market.errors import ConfigError, PeerGone
from sentinel_market.sim.recording import Rehearsal, rehearse
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.tensors import HEADER_BYTES, decode, encode, encoded_hash
from tests.pipeline.test_faults import hostile
from tests.support.mesh import Mesh, job_toml
from tests.verifier.rig import DOMAIN
from verifier.check import BACKWARD, Frame
from verifier.check.check import warm
from verifier.check.engine import Engine
from verifier.recompute import Recomputer
from verifier.recording.pack import END_BYTES, INDEX, PACK, PackFull, PackReader, PackWriter
from verifier.recording.recorder import DirectoryRecorder, Recorder
from verifier.reduce import claimed
from worker.session import SeatLink, Worker

Line = dict[str, Any]
ATTACKS = {4: ("sign_flip", 2), 8: ("noise:direction=backward", 3), 0: ("grad_sign_flip", 4)}


def train(home: Path, recorders: Mapping[int, Recorder], attacks: Mapping[int, tuple[str, int]], **job: Any) -> Mesh:
    """A run of 3 stages x 3 replicas under three seats."""
    warm()
    values: dict[str, Any] = {"stages": 3, "layers": 3, "dim": 32, "seq_len": 16, "steps": 7, "warmup_steps": 4}
    mesh = Mesh(job_toml(**{**values, **job}), home / "mesh", attacks, recorders)
    asyncio.run(mesh.train())
    return mesh


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Mesh, list[Path]]:
    """A run with three cheats, and each seat's recording."""
    home = tmp_path_factory.mktemp("recorded")
    folders = [home / f"recording-{seat}" for seat in range(3)]
    recorders = {seat: DirectoryRecorder(folder) for seat, folder in enumerate(folders)}
    return train(home, recorders, ATTACKS), folders


@pytest.fixture
def copy(recorded: tuple[Mesh, list[Path]], tmp_path: Path) -> Path:
    """Of the first seat's recording, to spoil."""
    return Path(shutil.copytree(recorded[1][0], tmp_path / "copy"))


def lines_of(folder: Path) -> list[Line]:
    return [json.loads(line) for line in (folder / INDEX).read_text().splitlines()]


def write(folder: Path, lines: list[Line]) -> None:
    (folder / INDEX).write_text("".join(json.dumps(line) + "\n" for line in lines))


def edit(folder: Path, change: Callable[[list[Line]], object]) -> None:
    lines = lines_of(folder)
    change(lines)
    write(folder, lines)


def find(lines: list[Line], **wanted: object) -> int:
    return next(i for i, line in enumerate(lines) if all(line.get(k) == v for k, v in wanted.items()))


# --- the same verdicts


@pytest.mark.parametrize("seat", [0, 1, 2])
def test_every_verdict_of_a_live_run_comes_out_again(recorded: tuple[Mesh, list[Path]], seat: int) -> None:
    mesh, folders = recorded
    report = rehearse(folders[seat])
    assert report.same, report.first and report.first.text()
    assert report.steps == 7 and report.ended == "closed"
    # two microbatches a seat: a forward at each of 3 stages, gradients out of 2, a silent backward of the first
    assert report.frames.recorded >= 7 * 2 * 6 and report.frames.equal == report.frames.recorded
    assert report.tallies["final"].recorded > 0, "nothing was confirmed"
    assert report.tallies["gradient"].recorded >= 7, "the primary screens every sum"
    told = [line["slot"] for folder in folders for line in lines_of(folder) if line.get("out") == "convict"]
    assert {slot for slot, _ in mesh.seats[0].docket.quarantined} == set(told) == set(ATTACKS)


@pytest.mark.parametrize(("policy", "spoken"), [("screen", "screened"), ("paper", "screened"), ("none", "screened")])
def test_policies_that_ask_nobody(tmp_path: Path, policy: str, spoken: str) -> None:
    folder = tmp_path / "recording"
    attacks = {4: ("sign_flip", 1), 8: ("sign_flip:direction=backward", 2)}
    train(tmp_path, {0: DirectoryRecorder(folder)}, attacks, policy=policy, steps=5)
    report = rehearse(folder)
    assert report.same, report.first and report.first.text()
    assert report.tallies[spoken].recorded >= 5 * 2 * 6


def test_the_command(recorded: tuple[Mesh, list[Path]], copy: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["sim", "replay", str(recorded[1][0]), "--json", str(tmp_path / "out.json")])
    assert result.exit_code == 0, result.output
    assert "same: all" in result.output and "frames screened" in result.output
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["same"] and data["frames"] == data["frames_equal"] > 0 and data["first_difference"] is None
    edit(copy, lambda lines: lines.pop(find(lines, out="convict")))
    result = CliRunner().invoke(cli, ["sim", "replay", str(copy), "--json", "-"])
    assert result.exit_code == 1
    assert '"same": false' in result.output


# --- other verdicts


def rename(folder: Path, old: str, tensor: torch.Tensor) -> None:
    """Put another tensor of the same size in, under its own digest: a consistent lie."""
    lines = lines_of(folder)
    entry = lines[find(lines, tensor=old)]
    data = bytearray((folder / PACK).read_bytes())
    new = encode(tensor)
    assert len(new) == entry["size"]
    data[entry["at"] : entry["at"] + entry["size"]] = new
    (folder / PACK).write_bytes(data)
    text = (folder / INDEX).read_text().replace(old, encoded_hash(new).hex())
    (folder / INDEX).write_text(text)


def test_another_tensor_gives_another_verdict(copy: Path) -> None:
    lines = lines_of(copy)
    at = next(
        i
        for i, line in enumerate(lines)
        if line.get("in") == "answer" and line["stage"] == 1 and line["frames"][0]["output"]
    )
    name = lines[at]["frames"][0]["output"]
    reader = PackReader(copy)
    list(reader.lines())
    tensor = reader.tensor(name, (4, 16, 32))
    reader.close()
    rename(copy, name, 1.01 * tensor)
    report = rehearse(copy)
    assert not report.same and report.first is not None
    assert report.first.recorded is not None and report.first.recorded["out"] == "screened"
    assert report.frames.equal < report.frames.recorded
    assert "recorded" in report.first.text() and "simulated" in report.first.text()


def test_bytes_that_are_not_what_their_digest_says(copy: Path) -> None:
    data = bytearray((copy / PACK).read_bytes())
    data[HEADER_BYTES + 5] ^= 1
    (copy / PACK).write_bytes(data)
    with pytest.raises(ConfigError, match=r"line \d+: tensor .* is not what its digest says"):
        rehearse(copy)


def score_up(lines: list[Line]) -> None:
    line = next(line for line in lines if line.get("out") == "screened" and line["scores"])
    line["scores"][0][1] += 1


def kind(lines: list[Line]) -> None:
    lines[find(lines, out="screened")]["kind"] = "SUSPECT"


def cleared(lines: list[Line]) -> None:
    lines[find(lines, out="final", kind="VIOLATION")]["kind"] = "ACCEPT"


def swapped(lines: list[Line]) -> None:
    first = find(lines, out="accept")
    second = first + 1 + find(lines[first + 1 :], out="accept")
    later = next(i for i in range(second, len(lines)) if lines[i].get("out") == "accept" and lines[i] != lines[first])
    lines[first], lines[later] = lines[later], lines[first]


def unasked(lines: list[Line]) -> None:
    """A frame that is drawn for an audit only under another secret."""
    for line in lines:
        if line.get("in") == "step":
            line["secret"] = "00" * 32


def unexamined(lines: list[Line]) -> None:
    """A sum that contradicts its sketches is added up all the same."""
    accepted = lines[find(lines, **{"in": "gradient accepted"})]
    for line in lines:
        if line.get("in") == "gradients" and line["stage"] == accepted["stage"]:
            for one in line["sums"]:
                one["problem"] = int(one["slot"] == accepted["slot"])


@pytest.mark.parametrize("change", [score_up, kind, cleared, swapped, unasked, unexamined])
def test_another_verdict_is_found(copy: Path, change: Callable[[list[Line]], None]) -> None:
    edit(copy, change)
    report = rehearse(copy)
    assert not report.same and report.first is not None
    assert report.first.text().count("\n") >= 1
    json.dumps(report.to_json())


def test_a_score_shows_both_values(copy: Path) -> None:
    edit(copy, score_up)
    first = rehearse(copy).first
    assert first is not None and first.recorded is not None and first.simulated is not None
    assert first.recorded["scores"][0][1] == first.simulated["scores"][0][1] + 1
    assert str(first.recorded["scores"][0][1]) in first.text() and str(first.simulated["scores"][0][1]) in first.text()


# --- cut short, or made up


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_a_recording_that_is_cut_short(copy: Path, part: float) -> None:
    data = (copy / INDEX).read_bytes()
    (copy / INDEX).write_bytes(data[: int(part * len(data))])
    with pytest.raises(ConfigError, match="cut short"):
        rehearse(copy)


def test_its_last_line_is_missing(copy: Path) -> None:
    edit(copy, lambda lines: lines.pop())
    with pytest.raises(ConfigError, match="without its last line"):
        rehearse(copy)


def test_tensors_are_missing(copy: Path) -> None:
    data = (copy / PACK).read_bytes()
    (copy / PACK).write_bytes(data[: len(data) // 2])
    with pytest.raises(ConfigError, match=r"tensors\.pack has \d+ bytes"):
        rehearse(copy)


def test_no_recording(tmp_path: Path, copy: Path) -> None:
    with pytest.raises(ConfigError, match=r"no file index\.jsonl"):
        rehearse(tmp_path)
    (tmp_path / INDEX).symlink_to(copy / INDEX)
    with pytest.raises(ConfigError, match=r"no file index\.jsonl"):
        rehearse(tmp_path)
    result = CliRunner().invoke(cli, ["sim", "replay", str(tmp_path)])
    assert result.exit_code == 2 and "is no recording" in result.output


@pytest.mark.parametrize(
    "text",
    [
        b"[]\n",
        b"\x80\x04\n",
        b'{"in": "end"}\n',
        b'{"in": "step", "step": 0}\n',
        b"[" * 5000 + b"\n",
        b'{"a": "' + b"x" * (1 << 20) + b'"}\n',
        b'{"tensor": "ab", "at": 0, "size": 1e9}\n',
        b'{"tensor": "ab", "at": -5, "size": 1}\n',
        b'{"tensor": "ab", "at": 0, "size": 99999999999999999999}\n',
    ],
)
def test_lines_that_are_none(copy: Path, text: bytes) -> None:
    (copy / INDEX).write_bytes(text)
    with pytest.raises(ConfigError):
        rehearse(copy)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", 99),
        ("stages", 1 << 40),
        ("stages", "3"),
        ("batch", 1 << 50),
        ("seed", -1),
        ("policy", {"name": "os.system"}),
        ("tolerance", {}),
        ("model", {"dim": 1 << 40}),
        ("engine", "00" * 32),
    ],
)
def test_a_head_that_cannot_be(copy: Path, name: str, value: object) -> None:
    edit(copy, lambda lines: lines[find(lines, **{"in": "head"})].update({name: value}))
    with pytest.raises(ConfigError):
        rehearse(copy)


ODD: list[object] = [None, -1, 1 << 70, "", "zz", [], {}, [[]], "00" * 32, 3.5, True]


def test_no_spoiled_line_gets_further_than_an_error_or_a_difference(copy: Path) -> None:
    whole = lines_of(copy)
    rng = random.Random(5)
    spoilable = [i for i, line in enumerate(whole) if "tensor" not in line]
    # the files stay short: up to the end of the second step
    end = [i for i, line in enumerate(whole) if line.get("in") == "step"][2]
    for _ in range(25):
        lines = [dict(line) for line in whole[:end]]
        at = rng.choice([i for i in spoilable if i < end])
        lines[at][rng.choice(list(lines[at]))] = rng.choice(ODD)
        write(copy, [*lines, whole[-1]])
        try:
            report = rehearse(copy)
        except ConfigError as error:
            assert "line " in str(error)
        else:
            json.dumps(report.to_json())
            assert report.first is None or report.first.text()


# --- writing


def test_a_recording_ends_at_its_limit_and_the_run_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    recorder = DirectoryRecorder(folder, max_bytes=900_000)
    mesh = train(tmp_path, {0: recorder}, {}, steps=5)
    assert len(mesh.events[0].losses) == 5
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 900_000
    report = rehearse(folder)
    assert report.same and report.ended == "limit" and 0 < report.steps < 5
    assert "its limit is reached" in recorder.summary


class Disk:
    """A file on a disk that is full after ``room`` bytes."""

    def __init__(self, file: Any, room: list[int]) -> None:
        self._file, self._room = file, room

    def write(self, data: bytes) -> int:
        if self._room[0] < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        self._room[0] -= len(data)
        return int(self._file.write(data))

    def truncate(self, size: int) -> int:
        self._room[0] += self._file.seek(0, 2) - size
        return int(self._file.truncate(size))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_full_disk_does_not_stop_a_seat(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "recording"
    recorder = DirectoryRecorder(folder)
    assert recorder._pack is not None
    room = [900_000]
    recorder._pack._files = tuple(Disk(file, room) for file in recorder._pack._files)  # type: ignore[assignment]
    mesh = train(tmp_path, {0: recorder}, {}, steps=5)
    assert len(mesh.events[0].losses) == 5
    assert "No space left on device" in caplog.text
    report = rehearse(folder)
    assert report.same and report.ended == "error" and 0 < report.steps < 5


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("keep")
    with pytest.raises(ConfigError, match="not empty"):
        DirectoryRecorder(tmp_path)
    with pytest.raises(ConfigError, match="cannot be written"):
        DirectoryRecorder(tmp_path / "note.txt")


def test_a_seat_that_never_began_leaves_its_folder_free(tmp_path: Path) -> None:
    recorder = DirectoryRecorder(tmp_path / "recording")
    recorder.close()
    recorder.close()
    assert recorder.summary == "" and list((tmp_path / "recording").iterdir()) == []
    DirectoryRecorder(tmp_path / "recording").close()


def test_a_tensor_is_kept_once(tmp_path: Path) -> None:
    writer = PackWriter(tmp_path / "a", 1 << 24)
    one = torch.arange(6.0).reshape(2, 3)
    assert writer.tensor(one) == writer.tensor(one.clone()) == writer.tensor(encode(one))
    with pytest.raises(PackFull):
        writer.line({"in": "x" * (1 << 20)})
    writer.end({"in": "end"})
    writer.close()
    assert (tmp_path / "a" / PACK).stat().st_size == HEADER_BYTES + 24
    assert len(json.dumps({"in": "end", "why": "limit", "steps": 1 << 62})) < END_BYTES
    reader = PackReader(tmp_path / "a")
    assert [line["in"] for line in reader.lines()] == ["end"]
    assert torch.equal(reader.tensor(encoded_hash(encode(one)).hex(), (2, 3)), one)
    reader.close()


def test_an_engine_that_knows_something_is_recorded_with_its_state(tmp_path: Path) -> None:
    mesh = Mesh(job_toml(stages=3, layers=3), tmp_path)
    context = mesh.seat(0).context
    recorder = DirectoryRecorder(tmp_path / "recording")
    engine = recorder.engine(context)
    frame = Frame(
        output=torch.randn(4, 32, 32), input=None, direction=BACKWARD, stage=2, num_stages=3, step=0, worker=7
    )
    engine.accept(2, BACKWARD, Engine(context.policy, 3, 7).screen(frame, 0))
    state = safetensors.torch.save(engine.state_dict())
    recorder.step(5, bytes(32))
    recorder.close()
    reader = PackReader(tmp_path / "recording")
    rehearsal = Rehearsal(reader)
    rehearsal._open(next(reader.lines()))
    reader.close()
    assert safetensors.torch.save(rehearsal._engine.state_dict()) == state


# --- everything that can happen to an answer


def false_sum(worker: Worker, link: SeatLink, message: pb.ToSeat) -> list[pb.ToSeat | bytes]:
    """From step 3 on: its frames are right, what it adds up is not."""
    given = message.gradient
    if message.WhichOneof("kind") == "gradient" and given.step >= 3:
        given.gradient = encode(1.01 * decode(given.gradient))
        given.gradient_hash = encoded_hash(given.gradient)
        signed = claimed(link.session_key, given)
        given.signature = worker.context.key.sign(digest(DOMAIN, signed))
    return [message]


def test_faults_and_lies_of_every_kind_come_out_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cheats, unreadable answers, a false sum, recomputes that are impossible."""
    folders = [tmp_path / f"recording-{seat}" for seat in range(3)]
    recorders = {seat: DirectoryRecorder(folder) for seat, folder in enumerate(folders)}
    attacks = {0: ("sign_flip", 2), 3: ("noise", 3)}
    often = {"audit_ppm": 200_000, "warmup_audit_ppm": 200_000}
    toml = job_toml(stages=3, layers=3, replicas=4, dim=32, seq_len=16, steps=8, **often)
    warm()
    mesh = Mesh(toml, tmp_path / "mesh", attacks, recorders)
    recompute, asked, sent = Recomputer.run, [0], [0]

    async def sometimes(self: Recomputer, *args: Any) -> Any:
        asked[0] += 1
        if asked[0] % 7 == 0:
            raise PeerGone("the weights are gone")
        return await recompute(self, *args)

    def rubbish(_worker: Worker, _link: SeatLink, message: pb.ToSeat) -> list[pb.ToSeat | bytes]:
        if message.WhichOneof("kind") == "result":
            sent[0] += 1
            if sent[0] % 4 == 0:
                del message.result.commitments[:]
        return [message]

    monkeypatch.setattr(Recomputer, "run", sometimes)
    hostile(mesh, {5: rubbish, 9: false_sum})
    asyncio.run(mesh.train())
    seen = set()
    for folder in folders:
        report = rehearse(folder)
        assert report.same, report.first and report.first.text()
        for line in lines_of(folder):
            seen.add(line.get("in"))
            seen.update(event for event, *_ in line.get("history", []))
    wanted = {"lost", "repeat", "replay", "recompute", "recompute lost", "whole", "charged", "REPLAY_DISAGREES"}
    assert wanted <= seen, wanted - seen
