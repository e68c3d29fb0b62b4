"""The data-parallel axis, live: a replica that lies about the sum of its gradients is convicted by a recompute of the
whole; honest ones are convicted by nobody, whatever a driver, a primary or an accuser makes up."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blake3
import pytest
import torch

from sentinel_market.chain.eip712 import digest
from sentinel_market.models.config import ALIGNMENT
from sentinel_market.models.sketch import Sketch
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.tensors import decode, encode, encoded_hash, tensor_hash
from tests.pipeline.test_catch import quarantined
from tests.pipeline.test_faults import equals_plain, hostile, multisets, nobody_is_accused, small
from tests.support.mesh import JOB_ID, Mesh, job_toml, key
from tests.verifier.rig import DOMAIN, Tamper, small_mesh
from tests.verifier.test_accuse import Bench, put
from tests.verifier.test_seats import Council, council
from verifier.answers import Held
from verifier.check import audit, gradient, robust
from verifier.check.check import Screening
from verifier.check.policy import Policy
from verifier.check.verdict import Verdict, VerdictKind
from verifier.cosign import BAD_COMPUTE
from verifier.evidence import GradientBundle, pack, read_any, replay_bundle, unpack
from verifier.payroll import payable
from verifier.step import StepState
from worker.session import SeatLink, Worker

CONFIRM = "screen+confirm"
"""No audits: what is convicted under it was found by the gradient's own screen or sketch."""


def resign(worker: Worker, link: SeatLink, given: pb.GradientSum, tensor: torch.Tensor | None = None) -> None:
    """Sign a stage gradient as it now is; ``tensor``: with another content."""
    if tensor is not None:
        given.gradient = encode(tensor)
        given.gradient_hash = encoded_hash(given.gradient)
    message = link.session_key.gradient(
        sequence=given.sequence,
        step=given.step,
        accepted_set=given.accepted_set,
        count=given.count,
        gradient_hash=given.gradient_hash,
        weights_hash=given.weights_hash,
    )
    given.signature = worker.context.key.sign(digest(DOMAIN, message))


def in_sum(step: int, change: Callable[[Worker, SeatLink, pb.GradientSum], object], told: list[int]) -> Tamper:
    """The first stage gradient of ``step`` or later goes through ``change``; False swallows it."""

    def tamper(worker: Worker, link: SeatLink, message: pb.ToSeat) -> list[pb.ToSeat | bytes]:
        if message.WhichOneof("kind") == "gradient" and message.gradient.step >= step and not told:
            told.append(message.gradient.step)
            if change(worker, link, message.gradient) is False:
                return []
        return [message]

    return tamper


def wholes(mesh: Mesh) -> list[dict[str, object]]:
    return [v for events in mesh.events for v in events.verdicts if v["kind"] == "whole gradient"]


class _Kept(dict[int, StepState]):
    def __delitem__(self, step: int) -> None:
        """A seat forgets old steps; here they are asked about at the end."""


def lies(mesh: Mesh) -> Callable[[], dict[int, list[set[int]]]]:
    """Call the result after the run: step -> each seat's slots whose sums were dropped for a lie, if any."""
    start = mesh.start_seats

    async def starting() -> None:
        await start()
        for seat in mesh.seats:
            seat.book = _Kept()

    mesh.start_seats = starting  # type: ignore[method-assign]

    def told() -> dict[int, list[set[int]]]:
        found = {step: [{s for s, _ in seat.book[step].lies} for seat in mesh.seats] for step in mesh.seats[0].book}
        return {step: slots for step, slots in found.items() if any(slots)}

    return told


def paid_passes(mesh: Mesh) -> list[dict[int, list[tuple[int, int]]]]:
    """Seat -> step -> (slot, passes) as they go into the receipts."""
    found: list[dict[int, list[tuple[int, int]]]] = [{} for _ in range(mesh.spec.seats.num)]
    start = mesh.start_seats

    async def starting() -> None:
        await start()
        for index, seat in enumerate(mesh.seats):
            close = seat.payroll.close_step

            def closing(step: int, units: dict[int, int], barred: set[int], index: int = index, close=close) -> object:
                found[index][step] = sorted(units.items())
                return close(step, units, barred)

            seat.payroll.close_step = closing  # type: ignore[method-assign,assignment]

    mesh.start_seats = starting  # type: ignore[method-assign]
    return found


# ---- lies


@pytest.mark.parametrize("consistent", [0, 1])
@pytest.mark.parametrize("slot", [1, 4])
def test_a_flipped_gradient_is_convicted_by_a_quorum_and_the_run_goes_on(
    tmp_path: Path, slot: int, consistent: int
) -> None:
    """Slot 1 is of stage 0, slot 4 of the last one. Its frames are right: no other check could see it."""
    mesh = Mesh(
        job_toml(stages=2, layers=2, dim=16, seq_len=8, steps=12, warmup_steps=4, policy=CONFIRM),
        tmp_path,
        {slot: (f"grad_sign_flip:consistent={consistent}", 3)},
    )
    asyncio.run(mesh.train())
    found = quarantined(mesh)
    assert set(found) == {slot}
    assert found[slot] >= 3
    assert [(s, n >= mesh.spec.seats.quorum) for s, n in mesh.court.reports] == [(slot, True)]
    assert "stage gradient" in mesh.worker_errors[slot]
    assert len(mesh.events[0].losses) == 12 and all(math.isfinite(loss) for loss in mesh.events[0].losses)
    assert all(slot not in step[slot // 3] for step in multisets(mesh)[found[slot] :])
    assert {v["slot"] for v in wholes(mesh) if v["verdict"] == "VIOLATION"} == {slot}
    if not consistent:  # the sketches show it in the very step; nothing of it was ever added up
        assert found[slot] == 3
        equals_plain(mesh)
    bundles = [p.parent for p in tmp_path.glob("seat-*/evidence/*/manifest.json")]
    assert {p.name.startswith("cosigned") for p in bundles} == {True, False}, "accuser and co-signer keep it"
    for directory in bundles:
        bundle, result = read_any(directory), replay_bundle(directory)
        assert isinstance(bundle, GradientBundle) and bundle.commitment.message.slot == slot
        assert result.verdict.kind is VerdictKind.VIOLATION and result.as_stated, result.lines()


def test_a_lie_that_no_sketch_sees_is_found_by_an_audit_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moved from one row to another so that the signs make it even. Without the draw nothing finds it."""
    monkeypatch.setattr(gradient, "screen_gradients", _sees_nothing)

    def hidden(worker: Worker, link: SeatLink, given: pb.GradientSum) -> None:
        rows = decode(given.gradient).view(-1, ALIGNMENT)
        signs = Sketch(JOB_ID, given.step).signs(len(rows))
        size = 0.05 * float(rows.square().mean().sqrt())
        rows[0] += signs[0] * size
        rows[1] -= signs[1] * size
        resign(worker, link, given, rows.flatten())

    for drawn in (False, True):
        monkeypatch.setattr(audit, "is_gradient_audited", lambda *_, drawn=drawn: drawn)
        told: list[int] = []
        mesh = Mesh(
            job_toml(stages=2, layers=2, dim=16, seq_len=8, steps=7, warmup_steps=4, policy=CONFIRM),
            tmp_path / str(drawn),
        )
        hostile(mesh, {4: in_sum(1, hidden, told)})
        asyncio.run(mesh.train())
        assert len(told) == 1
        assert quarantined(mesh) == ({4: told[0]} if drawn else {})
        if drawn:
            equals_plain(mesh)


def _sees_nothing(baseline: object, sums: dict[int, object], policy: Policy) -> dict[int, Screening]:
    return {worker: Screening(Verdict(VerdictKind.ACCEPT, "not looked at"), policy, worker) for worker in sums}


def test_a_sum_of_nan_is_convicted(tmp_path: Path) -> None:
    mesh, told = small(tmp_path, policy=CONFIRM, steps=7), list[int]()
    hostile(mesh, {3: in_sum(1, lambda w, link, g: resign(w, link, g, decode(g.gradient).fill_(float("nan"))), told)})
    asyncio.run(mesh.train())
    assert quarantined(mesh) == {3: told[0]}
    equals_plain(mesh)


def test_a_lie_too_large_to_show_costs_its_pay_and_no_stake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verifier.whole.MAX_BUNDLE_BYTES", 1000)
    mesh, told = small(tmp_path, policy=CONFIRM, steps=7), list[int]()
    lied = lies(mesh)
    hostile(mesh, {3: in_sum(1, lambda w, link, g: resign(w, link, g, -decode(g.gradient)), told)})
    asyncio.run(mesh.train())
    nobody_is_accused(mesh)
    assert 3 not in multisets(mesh)[told[0]][1]
    assert lied() == {told[0]: [{3}] * 3}
    equals_plain(mesh)


# ---- honest ones


def test_a_driver_that_lies_about_a_sketch_convicts_and_excludes_nobody(tmp_path: Path) -> None:
    """The sum of sketches in a Done is under no worker's signature: the recompute of the whole clears the replica."""
    mesh = small(tmp_path, policy=CONFIRM, steps=7)
    start = mesh.start_seats

    async def starting() -> None:
        await start()
        driver = mesh.seats[2].driver
        honest = driver.valid

        def valid() -> list[Any]:
            found = honest()
            for entry in found:
                entry.sketch.add_(1.0)
            return found

        driver.valid = valid  # type: ignore[method-assign]

    mesh.start_seats = starting  # type: ignore[method-assign]
    asyncio.run(mesh.train())
    nobody_is_accused(mesh)
    assert all(s["excluded"] == 0 for s in mesh.events[0].steps if "excluded" in s)
    told = [v for events in mesh.events for v in events.verdicts if v["kind"] == "suspect" and "sketch" in v["reason"]]
    assert len(told) >= 4
    assert {v["verdict"] for v in wholes(mesh)} == {"ACCEPT"}
    equals_plain(mesh)


def test_where_a_driver_serves_nothing_a_suspect_is_left_out_without_penalty(tmp_path: Path) -> None:
    """Nobody can say whose lie the sketch is: the driver's or the worker's. So it is paid."""
    mesh, told = small(tmp_path, policy=CONFIRM, steps=7), list[int]()
    lied = lies(mesh)
    hostile(mesh, {3: in_sum(1, lambda w, link, g: resign(w, link, g, -decode(g.gradient)), told)})
    start = mesh.start_seats

    async def starting() -> None:
        await start()
        for seat in mesh.seats:
            seat.whole._holding = _holds_nothing

    mesh.start_seats = starting  # type: ignore[method-assign]
    asyncio.run(mesh.train())
    nobody_is_accused(mesh)
    assert 3 not in multisets(mesh)[told[0]][1]
    assert {v["verdict"] for v in wholes(mesh)} == {"INCONCLUSIVE"}
    assert lied() == {}
    equals_plain(mesh)


def _holds_nothing(query: pb.HeldQuery) -> Any:
    from sentinel_market.errors import ProtocolError

    raise ProtocolError("held", f"{query.commitment.hex()[:16]} is not held here")


def test_an_honest_replica_whose_driver_sends_huge_numbers_is_not_convicted(tmp_path: Path) -> None:
    """Seat 2 sends an incoming gradient at the end of fp32's range and vouches for what comes back: the honest sum
    holds Inf or NaN, and no seat can be shown where that gradient came from."""
    mesh, sent = small(tmp_path, policy=CONFIRM, steps=7), list[int]()
    lied = lies(mesh)
    start = mesh.start_seats

    async def starting() -> None:
        await start()
        driver = mesh.seats[2].driver
        honest_call, honest_judge = driver._call, driver._judge

        async def call(session: Any, stage: int, held: Held, operation: int, forward: int) -> Any:
            if operation != pb.BACKWARD or stage != 0 or sent or driver._state.step != 2:
                return await honest_call(session, stage, held, operation, forward)
            true = held.incoming[0]
            sent.append(session.slot.slot)
            held.incoming[0] = encode(torch.full(driver.context.shapes.activation, 3e38))
            try:
                return await honest_call(session, stage, held, operation, forward)
            finally:
                held.incoming[0] = true

        async def judge(stage: int, held: Held, answer: Any, *, seconded: bool = False) -> Any:
            if answer.sketch is not None and not bool(torch.isfinite(answer.sketch).all()):
                driver._accept(answer, held, [])
                return answer
            return await honest_judge(stage, held, answer, seconded=seconded)

        driver._call, driver._judge = call, judge  # type: ignore[method-assign]

    mesh.start_seats = starting  # type: ignore[method-assign]
    asyncio.run(mesh.train())
    nobody_is_accused(mesh)
    assert len(sent) == 1
    assert sent[0] not in multisets(mesh)[2][0], "its sum is of no use"
    assert any(v["slot"] == sent[0] and v["verdict"] == "INCONCLUSIVE" for v in wholes(mesh))
    assert lied() == {}, "and it is paid"
    equals_plain(mesh)


def test_honest_gradients_that_are_all_recomputed_are_all_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "is_gradient_audited", lambda *_: True)
    mesh = small(tmp_path, policy=CONFIRM, steps=6)
    asyncio.run(mesh.train())
    nobody_is_accused(mesh)
    summed = {(step, slot) for step, stages in enumerate(multisets(mesh)) for stage in stages for slot in stage}
    assert {(v["step"], v["slot"]) for v in wholes(mesh)} == summed
    assert {v["verdict"] for v in wholes(mesh)} == {"ACCEPT"}
    assert all(s["excluded"] == 0 for s in mesh.events[0].steps if "excluded" in s)
    equals_plain(mesh)


# ---- pay


def test_only_the_backwards_of_a_dropped_lie_are_unpaid() -> None:
    accepted = [(3, 9), (3, 9), (4, 7), (3, 8)]
    assert payable({3: 9, 4: 2, 5: 0}, accepted, {(3, 9)}) == {3: 7, 4: 2, 5: 0}
    assert payable({3: 9, 4: 2}, accepted, set()) == {3: 9, 4: 2}


def other_set(worker: Worker, link: SeatLink, given: pb.GradientSum) -> None:
    given.accepted_set = bytes(32)
    resign(worker, link, given)


def other_count(worker: Worker, link: SeatLink, given: pb.GradientSum) -> None:
    given.count += 1
    resign(worker, link, given)


def flip(worker: Worker, link: SeatLink, given: pb.GradientSum) -> None:
    resign(worker, link, given, -decode(given.gradient))


def swallow(worker: Worker, link: SeatLink, given: pb.GradientSum) -> bool:
    return False


def unsign(worker: Worker, link: SeatLink, given: pb.GradientSum) -> None:
    given.signature = bytes(65)


def short_set(worker: Worker, link: SeatLink, given: pb.GradientSum) -> None:
    given.accepted_set = b"short"


def other_sequence(worker: Worker, link: SeatLink, given: pb.GradientSum) -> None:
    given.sequence += 1
    resign(worker, link, given)


@pytest.mark.parametrize(
    ("change", "policy", "is_lie"),
    [
        (other_set, CONFIRM, True),
        (other_count, CONFIRM, True),
        (flip, "screen", True),
        (swallow, CONFIRM, False),
        (unsign, CONFIRM, False),
        (short_set, CONFIRM, False),
        (other_sequence, CONFIRM, False),
    ],
)
def test_a_sum_dropped_for_a_lie_is_unpaid_and_one_dropped_by_accident_is_paid(
    tmp_path: Path,
    change: Callable[[Worker, SeatLink, pb.GradientSum], object],
    policy: str,
    is_lie: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("verifier.reduce.SUM_SECONDS", 2.0)
    mesh, told = small(tmp_path, policy=policy, steps=7), list[int]()
    hostile(mesh, {3: in_sum(1, change, told)})
    paid = paid_passes(mesh)
    had: list[dict[int, tuple[int, int]]] = [{} for _ in mesh.events]
    start = mesh.start_seats

    async def starting() -> None:
        await start()
        for index, seat in enumerate(mesh.seats):
            finish = seat._finish

            async def finishing(state: Any, updates: Any, index: int = index, seat: Any = seat, finish=finish) -> None:
                backwards = sum(entry.slot == 3 for entry in seat.driver.accepted)
                had[index][state.step] = (seat.driver.units.get(3, 0), backwards)
                await finish(state, updates)

            seat._finish = finishing  # type: ignore[method-assign]

    mesh.start_seats = starting  # type: ignore[method-assign]
    asyncio.run(mesh.train())
    nobody_is_accused(mesh)
    (step,) = told
    assert 3 not in multisets(mesh)[step][1]
    assert sum(passes for _, passes in (had[i][step] for i in range(3))) > 0
    for seat in range(3):
        for at, (units, backwards) in had[seat].items():
            lost = backwards if is_lie and at == step else 0
            assert dict(paid[seat][at]).get(3, 0) == units - lost
    equals_plain(mesh)


def test_a_primary_that_shows_no_signed_sum_cannot_void_anybodys_pay(tmp_path: Path) -> None:
    """Seat 1 is primary of slot 4 and says that it lied."""

    def exclude(session: int, claim: pb.GradientSum | None) -> pb.SeatMessage:
        slot = pb.SlotSession(slot=4, session=session, reason="it lied")
        return pb.SeatMessage(exclude=pb.Exclude(step=0, slot=slot, claim=claim))

    async def story(c: Council) -> None:
        account = c.hostile.context.account
        from sentinel_market.wire.commit import SessionKey

        def signed_by(signer: Any, verifier: str = account, step: int = 0) -> pb.GradientSum:
            found = pb.GradientSum(
                step=step, sequence=5, count=1, accepted_set=bytes(32), gradient_hash=bytes(32), weights_hash=bytes(32)
            )
            message = SessionKey(JOB_ID, 4, 1, verifier, 9).gradient(
                sequence=5,
                step=step,
                accepted_set=bytes(32),
                count=1,
                gradient_hash=bytes(32),
                weights_hash=bytes(32),
            )
            found.signature = signer.sign(digest(DOMAIN, message))
            return found

        worker = c.mesh.roster.worker_keys[4]
        cases = [
            None,
            pb.GradientSum(),
            signed_by(key("a stranger")),
            signed_by(c.hostile.context.key),
            signed_by(worker, verifier=c.third.context.account),
            signed_by(worker, step=1),
        ]
        for session, claim in enumerate(cases, start=20):
            await c.tell(exclude(session, claim))
            assert (4, session) in c.hearer.book[0].excluded, "it is left out"
        assert not c.hearer.book[0].lies, "and paid"
        await c.tell(exclude(9, signed_by(worker)))
        assert c.hearer.book[0].lies == {(4, 9)}

    council(tmp_path, story)


# ---- co-signing


@pytest.fixture(scope="module")
def guilty(tmp_path_factory: pytest.TempPathFactory) -> tuple[pb.Accuse, Path]:
    """An accusation of slot 3 that a mesh made, and the bundle."""
    home = tmp_path_factory.mktemp("guilty")
    mesh = Mesh(
        job_toml(stages=2, layers=2, replicas=3, dim=16, seq_len=8, steps=3, policy=CONFIRM),
        home,
        {3: ("grad_sign_flip:consistent=0", 0)},
    )
    asyncio.run(mesh.train())
    (directory,) = [p.parent for p in home.glob("seat-*/evidence/step0-slot3-*/manifest.json")]
    bundle = read_any(directory)
    assert isinstance(bundle, GradientBundle)
    message = bundle.commitment.message
    accuse = pb.Accuse(
        step=0,
        slot=3,
        nonce=1,
        session=message.session,
        bundle=pack(directory, weights_directory=directory.parent / "weights"),
        commitment_hash=digest(DOMAIN, message),
        evidence_hash=blake3.blake3((directory / "manifest.json").read_bytes()).digest(),
        deadline=2**40,
    )
    return accuse, directory


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    found = Bench(tmp_path)
    found.mesh = small_mesh(tmp_path, policy=CONFIRM)
    found.accuser, found.judge = found.mesh.seat(0), found.mesh.seat(1)
    found.judge.weights.genesis()
    return found


def test_a_false_sum_is_cosigned_and_kept(bench: Bench, guilty: tuple[pb.Accuse, Path]) -> None:
    accuse = guilty[0]
    before = bench.judge.cosigner.recomputes
    found = bench.judged(accuse)
    assert found.agrees, found.reason
    assert bench.judge.cosigner.recomputes > before
    (kept,) = bench.home.glob("seat-1/evidence/cosigned*")
    assert replay_bundle(kept).verdict.kind is VerdictKind.VIOLATION


def rewritten(
    bench: Bench, accuse: pb.Accuse, change: Callable[[Path, dict[str, Any]], object], signer: Any = None
) -> pb.Accuse:
    """After ``change(directory, manifest)``; the stage gradient signed anew by ``signer`` if one is given."""
    from sentinel_market.domain.messages import StageGradient

    def altered(directory: Path, manifest: dict[str, Any]) -> None:
        change(directory, manifest)
        entry = manifest["commitment"]
        values = {k: bytes.fromhex(v) if k in HASHES else v for k, v in entry["message"].items()}
        if signer is not None:
            hashed.append(digest(DOMAIN, StageGradient(**values)))
            entry["signature"] = signer.sign(hashed[0]).hex()

    hashed: list[bytes] = []
    copy = bench.repacked(accuse, altered)
    if hashed:
        copy.commitment_hash = hashed[0]
    return copy


HASHES = ("accepted_set", "gradient_hash", "weights_hash")


def another_gradient(directory: Path, manifest: dict[str, Any], factor: float = -1.0) -> None:
    """The sum times ``factor``, under its own name."""
    message = manifest["commitment"]["message"]
    flat = decode((directory / "tensors" / f"{message['gradient_hash']}.snt").read_bytes())
    data = encode(flat * factor)
    hashed = encoded_hash(data).hex()
    (directory / "tensors" / f"{hashed}.snt").write_bytes(data)
    message["gradient_hash"] = hashed
    manifest["files"][f"tensors/{hashed}.snt"] = hashed


def test_an_honest_sum_is_not_cosigned(bench: Bench, guilty: tuple[pb.Accuse, Path]) -> None:
    """The flipped sum flipped again is what an honest worker signs."""
    accuse = rewritten(bench, guilty[0], another_gradient, bench.mesh.roster.worker_keys[3])
    assert "agrees" in bench.refused(accuse)


def test_a_gradient_that_the_primary_invents_convicts_nobody(bench: Bench, guilty: tuple[pb.Accuse, Path]) -> None:
    invented = rewritten(bench, guilty[0], lambda d, m: another_gradient(d, m, 3.0), bench.accuser.context.key)
    assert "signature" in bench.refused(invented)

    def named(directory: Path, manifest: dict[str, Any]) -> None:
        another_gradient(directory, manifest, 3.0)
        manifest["commitment"]["signer"] = bench.accuser.context.key.address

    assert "signer" in bench.refused(rewritten(bench, guilty[0], named, bench.accuser.context.key))


def forged(directory: Path, manifest: dict[str, Any]) -> None:
    """A backward more, of a key of the accuser's own making."""
    entry = json.loads(json.dumps(manifest["backwards"][0]))
    entry["commitment"]["message"]["sequence"] += 1000
    manifest["backwards"].append(entry)


ALTERED: dict[str, Callable[[Path, dict[str, Any]], object]] = {
    "tighter tolerance": put("tolerance", "sketch_e6", 1),
    "other model": put("model", "norm_eps", "0.1"),
    "other stages": put("num_stages", 3),
    "other replicas": put("num_replicas", 2),
    "other chain": put("domain", "chain_id", 1),
    "other signer": put("commitment", "signer", key("a forger").address),
    "a backward less": lambda d, m: m["backwards"].pop(),
    "a backward more": forged,
    "no upstream": lambda d, m: m["backwards"][0].update(upstream=None),
    "another microbatch": lambda d, m: m["backwards"][0]["commitment"]["message"].update(microbatch=10**6),
    "inputs changed about": lambda d, m: m["backwards"][0].update(input=m["backwards"][1]["input"]),
    "no weights": lambda d, m: next((d / "weights").iterdir()).unlink(),
    "another kind": put("kind", "BAD_COMPUTE"),
    "no list": put("files", None),
    "other slot": put("slot", 4),
}


@pytest.mark.parametrize("name", ALTERED)
def test_an_altered_bundle_of_a_gradient_is_never_cosigned(
    bench: Bench, guilty: tuple[pb.Accuse, Path], name: str
) -> None:
    bench.refused(rewritten(bench, guilty[0], ALTERED[name]))


@pytest.mark.parametrize(
    ("field", "value"),
    [("slot", 4), ("nonce", 2), ("step", 1), ("commitment_hash", bytes(32)), ("evidence_hash", bytes(32))],
)
def test_an_accusation_that_does_not_fit_its_gradient_is_never_cosigned(
    bench: Bench, guilty: tuple[pb.Accuse, Path], field: str, value: object
) -> None:
    accuse = pb.Accuse()
    accuse.CopyFrom(guilty[0])
    setattr(accuse, field, value)
    bench.refused(accuse)


def test_the_quarantine_of_a_gradient_is_one_of_bad_compute(guilty: tuple[pb.Accuse, Path], tmp_path: Path) -> None:
    unpack(guilty[0].bundle, tmp_path / "bundle")
    assert json.loads((tmp_path / "bundle" / "manifest.json").read_text())["kind"] == "BAD_GRADIENT"
    assert BAD_COMPUTE == 2, "the court has no other kind for it"
    assert replay_bundle(tmp_path / "bundle").verdict.kind is VerdictKind.VIOLATION


# ---- what is asked of a driver


def test_a_driver_serves_only_what_it_accepted_in_this_step(tmp_path: Path) -> None:
    async def story(c: Council) -> None:
        for query in (
            pb.HeldQuery(step=0, commitment=bytes(32)),
            pb.HeldQuery(step=2**64 - 1, commitment=bytes(32)),
            pb.HeldQuery(step=0, commitment=b"short"),
            pb.HeldQuery(),
        ):
            assert await c.refused(pb.SeatMessage(held_query=query)) == "held"

    council(tmp_path, story)


def test_the_draw_follows_its_share_and_is_another_than_that_of_frames() -> None:
    secret, words = bytes(range(32)), [blake3.blake3(bytes([i, j])).digest() for i in range(100) for j in range(100)]
    share = audit.gradient_share_ppm(Policy(audit_share_ppm=400_000, warmup_audit_share_ppm=800_000), in_warmup=False)
    assert share == 100_000
    assert audit.gradient_share_ppm(Policy(warmup_audit_share_ppm=800_000), in_warmup=True) == 200_000
    assert audit.gradient_share_ppm(Policy(name=CONFIRM), in_warmup=False) == 0
    drawn = [audit.is_gradient_audited(secret, word, share) for word in words]
    assert 0.085 < sum(drawn) / len(words) < 0.115
    assert drawn != [audit.is_audited(secret, word, share) for word in words]
    assert drawn != [audit.is_gradient_audited(bytes(32), word, share) for word in words]


# ---- aggregation


@pytest.mark.parametrize("rule", robust.RULES)
def test_every_rule_can_be_done_again_from_what_the_replicas_signed(tmp_path: Path, rule: str) -> None:
    toml = job_toml(stages=2, layers=2, dim=16, seq_len=8, steps=3, policy=CONFIRM)
    mesh = Mesh(toml.replace(f'policy = "{CONFIRM}"', f'policy = "{CONFIRM}"\naggregation = "{rule}"'), tmp_path)
    assert mesh.spec.verification.aggregation == rule
    handed: dict[bytes, torch.Tensor] = {}

    def keep(worker: Worker, link: SeatLink, message: pb.ToSeat) -> list[pb.ToSeat | bytes]:
        if message.WhichOneof("kind") == "gradient":
            handed[message.gradient.gradient_hash] = decode(message.gradient.gradient)
        return [message]

    hostile(mesh, dict.fromkeys(range(6), keep))
    aggregates: dict[tuple[int, int], pb.Aggregate] = {}
    start = mesh.start_seats

    async def starting() -> None:
        await start()
        take = mesh.seats[2]._take_aggregate

        def taking(sender: str, aggregate: pb.Aggregate) -> None:
            aggregates[aggregate.step, aggregate.stage] = aggregate
            take(sender, aggregate)

        mesh.seats[2]._take_aggregate = taking  # type: ignore[method-assign]

    mesh.start_seats = starting  # type: ignore[method-assign]
    asyncio.run(mesh.train())
    nobody_is_accused(mesh)
    assert set(aggregates) == {(step, stage) for step in range(3) for stage in range(2)}
    for aggregate in aggregates.values():
        sums = [handed[one.gradient_hash] for one in aggregate.sums]
        again = robust.aggregate(rule, sums, [one.count for one in aggregate.sums])
        assert tensor_hash(again) == aggregate.aggregate_hash
    assert all(math.isfinite(loss) for loss in mesh.events[0].losses)
