"""Co-signing: a seat signs what its own recompute convicts, and nothing that was altered, framed or made up."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import blake3
import pytest
import torch

from sentinel_market.chain.eip712 import digest
from sentinel_market.domain.messages import ViolationReport
from sentinel_market.errors import ProtocolError
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.tensors import decode, encode, encoded_hash
from tests.support.mesh import JOB_ID, Mesh, key
from tests.verifier.rig import DOMAIN, OneSeat, small_mesh, tamper
from verifier.answers import Offence
from verifier.cosign import BAD_COMPUTE, report_of
from verifier.evidence import pack, unpack, write_bundle
from verifier.recompute import Recomputed
from verifier.seat import Seat

ACCUSED = 3  # stage 1, the last


@dataclass(frozen=True)
class Case:
    """Two accusations by seat 0: of a frame that is wrong, and of one that is right."""

    guilty: pb.Accuse
    innocent: pb.Accuse


def _accuse(one: OneSeat, offence: Offence, directory: Path) -> pb.Accuse:
    flat = decode(one.seat.weights.payload(0, 1) or b"")
    evidence, packed = one.seat.accuser._write(directory, directory.parent / "weights", offence, flat)
    m = offence.signed.message
    return pb.Accuse(
        step=m.step,
        slot=m.slot,
        nonce=m.nonce,
        session=m.session,
        bundle=packed,
        commitment_hash=offence.signed.digest,
        evidence_hash=evidence,
        deadline=2**40,
    )


def reported(seat: Seat, mesh: Mesh, accuse: pb.Accuse) -> pb.ReportQuery:
    """The accusation in earnest: under the signature of ``seat``."""
    case = mesh.court.case_id(JOB_ID, accuse.slot, accuse.nonce, BAD_COMPUTE, accuse.commitment_hash)
    signature = seat.context.sign(report_of(accuse, case, seat.context.account), seat.context.court_domain)
    return pb.ReportQuery(evidence_hash=accuse.evidence_hash, signature=signature)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    home = tmp_path_factory.mktemp("case")

    async def make() -> Case:
        async with OneSeat(home) as one:
            await one.with_workers(0, ACCUSED)
            driver, sessions = one.seat.driver, one.seat.relay.sessions
            held = one.held()
            below = await driver._work(sessions[0], 0, held, pb.FORWARD, None)
            assert below.forward is not None
            held.inputs[1], held.upstream[1] = below.output_bytes, below.forward
            found = []
            for wrong in (True, False):

                def change(worker: Any, link: Any, message: pb.ToSeat, wrong: bool = wrong) -> list[Any]:
                    if wrong and message.WhichOneof("kind") == "result":
                        result = message.result
                        result.output = encode(decode(result.output) + 0.5)
                        given = result.commitments[0]
                        given.output_hash = encoded_hash(result.output)
                        frame = link.session_key.frame(
                            sequence=given.sequence,
                            step=0,
                            microbatch=0,
                            direction=0,
                            input_hash=given.input_hash,
                            output_hash=given.output_hash,
                            weights_hash=result.weights_hash,
                        )
                        given.signature = worker.context.key.sign(digest(DOMAIN, frame))
                    return [message]

                tamper(one.mesh.workers[ACCUSED], change)
                answer = await driver._work(sessions[ACCUSED], 1, held, pb.LOSS, None)
                reference = await driver._recompute(1, held, answer)
                assert isinstance(reference, Recomputed)
                assert answer.forward is not None
                comparison = answer.against(reference, one.seat.context.tolerance)[0][1]
                assert comparison.agrees != wrong
                offence = Offence(answer, answer.forward, held, reference, comparison, None, "test", 0)
                found.append(_accuse(one, offence, home / f"bundle-{wrong}"))
            return Case(*found)

    return asyncio.run(make())


class Bench:
    """Seat 0 accuses; seat 1 judges. Neither listens."""

    def __init__(self, home: Path) -> None:
        self.mesh = small_mesh(home)
        self.home = home
        self.accuser, self.judge = self.mesh.seat(0), self.mesh.seat(1)
        self.judge.weights.genesis()

    def judged(self, accuse: pb.Accuse, query: pb.ReportQuery | None = None) -> pb.ReportSignature:
        """Question, reveal, and the request for the signature, in earnest (or ``query``)."""
        account, cosigner = self.accuser.context.account, self.judge.cosigner
        try:
            asyncio.run(cosigner.judge(account, accuse))
            revealed = cosigner.reveal(account, pb.RevealQuery(evidence_hash=accuse.evidence_hash))
            found = asyncio.run(cosigner.sign(account, query or reported(self.accuser, self.mesh, accuse)))
            assert found.agrees == revealed.agrees
        except (ProtocolError, ValueError) as error:
            found = pb.ReportSignature(agrees=False, reason=str(error))
        return found

    def refused(self, accuse: pb.Accuse) -> str:
        found = self.judged(accuse)
        assert not found.agrees
        assert not found.signature
        assert not list(self.home.glob("seat-1/evidence/cosigned*")), "and keeps nothing of it"
        return found.reason

    def repacked(self, accuse: pb.Accuse, change: Callable[[Path, dict[str, Any]], None]) -> pb.Accuse:
        """The bundle after ``change(directory, manifest)``, hashed anew."""
        directory = self.home / "altered"
        unpack(accuse.bundle, directory)
        manifest = json.loads((directory / "manifest.json").read_text())
        change(directory, manifest)
        text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
        (directory / "manifest.json").write_bytes(text)
        copy = pb.Accuse()
        copy.CopyFrom(accuse)
        copy.bundle, copy.evidence_hash = pack(directory), blake3.blake3(text).digest()
        return copy


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_wrong_frame_is_cosigned_and_the_bundle_is_kept(bench: Bench, case: Case) -> None:
    found = bench.judged(case.guilty)
    assert found.agrees, found.reason
    context, a = bench.judge.context, case.guilty
    name = bench.mesh.court.case_id(JOB_ID, a.slot, a.nonce, BAD_COMPUTE, a.commitment_hash)
    report = ViolationReport(name, context.account, BAD_COMPUTE, a.commitment_hash, a.evidence_hash, a.deadline)
    context.check_seat(context.account, report, found.signature, context.court_domain)
    assert list(bench.home.glob("seat-1/evidence/cosigned*"))


def test_a_right_frame_is_not_cosigned(bench: Bench, case: Case) -> None:
    assert "agrees" in bench.refused(case.innocent)


def set_file(name: str, tensor: torch.Tensor) -> Callable[[Path, dict[str, Any]], None]:
    def change(directory: Path, manifest: dict[str, Any]) -> None:
        data = encode(tensor)
        (directory / name).write_bytes(data)
        manifest["files"][name] = encoded_hash(data).hex()

    return change


def put(*path: Any) -> Callable[[Path, dict[str, Any]], None]:
    *keys, last, value = path

    def change(directory: Path, manifest: dict[str, Any]) -> None:
        at: Any = manifest
        for step in keys:
            at = at[step]
        at[last] = value

    return change


def other_weights(directory: Path, manifest: dict[str, Any]) -> None:
    """Signed weights are named by hash: put others under that name."""
    (path,) = (directory / "weights").iterdir()
    path.write_bytes(encode(decode(path.read_bytes()) * 1.01))


def own_weights(directory: Path, manifest: dict[str, Any]) -> None:
    """Others under their own name, and the commitment changed to it."""
    (path,) = (directory / "weights").iterdir()
    data = encode(decode(path.read_bytes()) * 1.01)
    path.unlink()
    (directory / "weights" / f"{encoded_hash(data).hex()}.snt").write_bytes(data)
    manifest["commitment"]["message"]["weights_hash"] = encoded_hash(data).hex()


def no_weights(directory: Path, manifest: dict[str, Any]) -> None:
    for path in (directory / "weights").iterdir():
        path.unlink()


def no_upstream(directory: Path, manifest: dict[str, Any]) -> None:
    manifest["upstream"] = []


def made_up_upstream(directory: Path, manifest: dict[str, Any]) -> None:
    """An upstream commitment by a key of the accuser's own making."""
    forger = key("a forger")
    entry = manifest["upstream"][0]
    message = {k: bytes.fromhex(v) if k.endswith("hash") else v for k, v in entry["message"].items()}
    from sentinel_market.domain.messages import FrameCommitment

    entry["signer"] = forger.address
    entry["signature"] = forger.sign(digest(DOMAIN, FrameCommitment(**message))).hex()


ALTERED: dict[str, Callable[[Path, dict[str, Any]], None]] = {
    "other weights": other_weights,
    "own weights": own_weights,
    "no weights": no_weights,
    "tighter tolerance": put("tolerance", "relative_e6", 1),
    "wider tolerance": put("tolerance", "sketch_e6", 500_000),
    "other model": put("model", "norm_eps", "0.1"),
    "other width": put("model", "dim", 32),
    "other stages": put("num_stages", 3),
    "other replicas": put("num_replicas", 2),
    "other chain": put("domain", "chain_id", 1),
    "other contract": put("domain", "verifying_contract", "0x" + "55" * 20),
    "other input": set_file("input.snt", torch.zeros(4, 8, 16)),
    "other output": set_file("output.snt", torch.zeros(4, 8)),
    "other targets": set_file("incoming.snt", torch.zeros(4, 8, dtype=torch.int64)),
    "other slot in the message": put("commitment", "message", "slot", 4),
    "other signer": put("commitment", "signer", key("a forger").address),
    "no upstream": no_upstream,
    "made up upstream": made_up_upstream,
    "other job": put("job_id", 2),
    "other step": put("step", 1),
    "no version": put("version", 1),
    "no list": put("files", None),
    "a path out": put("files", "../../etc/passwd", "00" * 32),
}


@pytest.mark.parametrize("name", ALTERED)
def test_an_altered_bundle_is_never_cosigned(bench: Bench, case: Case, name: str) -> None:
    if name == "a path out":
        found = bench.judged(bench.repacked(case.guilty, ALTERED[name]))
        assert not (bench.home / "etc").exists()
        assert found.agrees in (True, False)  # a name that nobody reads changes nothing
        return
    bench.refused(bench.repacked(case.guilty, ALTERED[name]))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("slot", 4),
        ("slot", 0),
        ("slot", 2**32 - 1),
        ("nonce", 2),
        ("step", 1),
        ("step", 2**64 - 1),
        ("commitment_hash", bytes(32)),
        ("evidence_hash", bytes(32)),
        ("bundle", b""),
        ("bundle", b"\xff" * 4096),
        ("bundle", bytes(10240)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_accusation_that_does_not_fit_its_bundle_is_never_cosigned(
    bench: Bench, case: Case, field: str, value: object
) -> None:
    accuse = pb.Accuse()
    accuse.CopyFrom(case.guilty)
    setattr(accuse, field, value)
    bench.refused(accuse)


@pytest.mark.parametrize("cut", [1, 512, 1024, 5000])
def test_a_bundle_that_is_cut_short_is_never_cosigned(bench: Bench, case: Case, cut: int) -> None:
    accuse = pb.Accuse()
    accuse.CopyFrom(case.guilty)
    accuse.bundle = accuse.bundle[: len(accuse.bundle) // 2 - cut]
    bench.refused(accuse)


def test_an_accusation_that_its_accuser_did_not_sign_is_never_cosigned(bench: Bench, case: Case) -> None:
    other = reported(bench.accuser, bench.mesh, case.innocent).signature
    strange = reported(bench.mesh.seat(2), bench.mesh, case.guilty).signature
    for signature in (b"", bytes(65), other, strange):
        query = pb.ReportQuery(evidence_hash=case.guilty.evidence_hash, signature=signature)
        found = bench.judged(case.guilty, query)
        assert not found.agrees
        assert not found.signature


def test_a_frame_that_another_slot_signed_does_not_convict_this_one(bench: Bench, case: Case) -> None:
    """Slot 4 is innocent; the accuser signs a frame in its name with a key of its own."""
    forger = key("a forger")

    def change(directory: Path, manifest: dict[str, Any]) -> None:
        from sentinel_market.domain.messages import FrameCommitment

        entry = manifest["commitment"]
        message = {k: bytes.fromhex(v) if k.endswith("hash") else v for k, v in entry["message"].items()}
        forged = FrameCommitment(**{**message, "slot": 4})
        entry["message"]["slot"] = manifest["slot"] = 4
        entry["signer"], entry["signature"] = forger.address, forger.sign(digest(DOMAIN, forged)).hex()
        self_digest.append(digest(DOMAIN, forged))

    self_digest: list[bytes] = []
    accuse = bench.repacked(case.guilty, change)
    accuse.slot, accuse.commitment_hash = 4, self_digest[0]
    assert "signer" in bench.refused(accuse)


def test_the_same_files_have_the_same_evidence_hash(bench: Bench, case: Case) -> None:
    directory = bench.home / "again"
    unpack(case.guilty.bundle, directory)
    from verifier.evidence import read_bundle

    bundle = read_bundle(directory)
    assert write_bundle(bench.home / "copy", replace(bundle)) == case.guilty.evidence_hash
    assert hashlib.sha256(pack(bench.home / "copy")).digest() == hashlib.sha256(case.guilty.bundle).digest()
