"""Cross-audits in a whole mesh: honest seats, and seats that hide, wave through, shirk, lie about others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sentinel_market.domain.cross_audit import LAG, Fault, FaultKind, Outcome
from sentinel_market.domain.messages import SeatFault
from sentinel_market.errors import Fatal, ProtocolError
from sentinel_market.wire import relay_pb2 as pb
from tests.support.mesh import JOB_ID, Mesh, job_toml
from verifier.answers import Answer, Held
from verifier.audits import work
from verifier.evidence.recompute import Claim
from verifier.seat import Seat

HOSTILE = 2
WORD = b"w" * 32


def mesh(home: Path, *, attacks: dict[int, tuple[str, int]] | None = None, **options: object) -> Mesh:
    """2 stages x 3 replicas, 3 seats; 4 in 10 frames and updates audited, a tenth of all frames cross-audited."""
    values: dict[str, object] = {"stages": 2, "layers": 2, "replicas": 3, "dim": 16, "seq_len": 8, "steps": 6}
    values |= {"audit_ppm": 400_000, "warmup_audit_ppm": 400_000, "warmup_steps": 2, "epoch_steps": 3}
    return Mesh(job_toml(**{**values, **options}), home, attacks)  # type: ignore[arg-type]


def train(m: Mesh, change: Callable[[Seat], None] | None = None) -> list[BaseException | None]:
    """Run to the end; ``change`` is done to the hostile seat once it stands. What each seat ended with."""
    ends: list[BaseException | None] = []

    async def story() -> None:
        await m.start_seats()
        if change is not None:
            change(m.seats[HOSTILE])
        for slot in range(m.spec.parallelism.num_slots):
            m.start_worker(slot)
        try:
            found = await asyncio.gather(*(seat.run() for seat in m.seats), return_exceptions=True)
            ends.extend(found)
        finally:
            await m.close()

    asyncio.run(story())
    return ends


def faults(m: Mesh, seat: int = 0) -> set[FaultKind]:
    ledger = m.seats[seat].audits.ledger
    accused = m.seats[HOSTILE].context.account
    assert all(fault.seat == accused for fault in ledger.faults), "nobody else is at fault"
    return {fault.kind for fault in ledger.faults}


def records(m: Mesh, seat: int) -> list[Any]:
    """What a seat published of all seats."""
    return [one for one in m.events[seat].seats if one["kind"] == "record"]


def outcomes(m: Mesh) -> set[object]:
    return {one["outcome"] for events in m.events for one in events.seats if one["kind"] == "cross-audit"}


def test_honest_seats_agree_on_all_that_was_drawn_and_are_paid_for_it(tmp_path: Path) -> None:
    m = mesh(tmp_path)
    assert train(m) == [None, None, None]
    ledgers = [seat.audits.ledger for seat in m.seats]
    assert all(book.faults == {} and book.audited == ledgers[0].audited for book in ledgers)
    told = [one for events in m.events for one in events.seats if one["kind"] == "cross-audit"]
    # A seat that is two steps behind with its audits finds the weights gone, and says so.
    assert outcomes(m) - {"UNCLEAR"} == {"AGREES"}
    assert sum(ledgers[0].audited.values()) == len(told) > 20
    assert {one["stage"] for one in told} == {None, 0, 1}, "updates as well"
    assert {one["step"] for one in told} == set(range(6)), "the last steps too"
    assert len(m.escrow.roots) == 2 and m.escrow.finished == 2
    published = records(m, 0)
    assert published == records(m, 1) == records(m, 2), "everybody publishes the same"
    first, last = published
    assert (first["step"], last["step"]) == (0, 6 + LAG - 1), "once at the start, once at the end"
    assert [seat["audits_done"] for seat in last["seats"]] == [
        ledgers[0].audited[seat.context.account] for seat in m.seats
    ]
    assert (
        sum(seat["audits_due"] for seat in last["seats"]) == sum(seat["drawn"] for seat in last["seats"]) == len(told)
    )
    assert all((seat["faults"], seat["voided"], seat["charged"]) == ([], 0, 0) for seat in last["seats"])


def hides(seat: Seat) -> None:
    def frame(query: pb.AuditQuery) -> pb.AuditAnswer:
        raise ProtocolError("held", "gone")

    seat.audits.shelf.frame = frame  # type: ignore[method-assign]


def shows_another(seat: Seat) -> None:
    """Signed and chained, but not what was drawn."""
    shelf, honest = seat.audits.shelf, seat.audits.shelf.frame

    def frame(query: pb.AuditQuery) -> pb.AuditAnswer:
        others = [digest for digest in shelf._frames[query.step] if digest != query.commitment]
        return honest(pb.AuditQuery(step=query.step, commitment=others[0], work=query.work))

    shelf.frame = frame  # type: ignore[method-assign]


def shows_what_would_be_right(seat: Seat) -> None:
    """Not what the worker signed."""
    shelf, honest = seat.audits.shelf, seat.audits.shelf.frame

    def frame(query: pb.AuditQuery) -> pb.AuditAnswer:
        shown = honest(query)
        if query.work:
            shown.output = shown.output[:-1] + bytes([shown.output[-1] ^ 1])
        return shown

    shelf.frame = frame  # type: ignore[method-assign]


@pytest.mark.parametrize("change", [hides, shows_another, shows_what_would_be_right])
def test_a_driver_that_does_not_show_what_it_accepted_loses_its_seat(
    tmp_path: Path, change: Callable[[Seat], None]
) -> None:
    m = mesh(tmp_path, steps=12, epoch_steps=12)
    ends = train(m, change)
    assert faults(m) == faults(m, 1) == {FaultKind.UNSERVED_FRAME}
    accused = m.seats[HOSTILE].context.account
    assert all(isinstance(end, Fatal) for end in ends)
    assert f"seat {accused} has lost its place in job {JOB_ID}: UNSERVED_FRAME in step" in str(ends[0])
    recorded = [one for one in m.events[0].seats if one["kind"] == "fault"]
    assert len(recorded) >= 3 and {one["seat"] for one in recorded} == {accused}
    last = records(m, 0)[-1]
    assert last == records(m, 1)[-1], "published before the run stops"
    lines = {line["account"]: line for line in last["seats"]}
    # A record that names two says them in any order; the published one has an order of its own.
    published = sorted((f["recorded"], f["step"], f["subject"]) for f in lines[accused]["faults"])
    assert published == sorted((one["recorded"], one["step"], one["subject"]) for one in recorded)
    assert 0 < lines[accused]["voided"] <= len(recorded)
    assert all(not line["faults"] for account, line in lines.items() if account != accused)


def waves_through(seat: Seat) -> None:
    """Accepts whatever its workers return."""
    driver = seat.driver

    async def judge(stage: int, held: Held, answer: Answer, *, seconded: bool = False) -> Answer:
        driver._accept(answer, held, [])
        return answer

    driver._judge = judge  # type: ignore[method-assign,assignment]


def test_a_wrong_frame_that_its_driver_waved_through_becomes_a_case(tmp_path: Path) -> None:
    """Worker 1 cheats, and only the hostile driver gives it work: nobody honest sees it before the audit."""
    m = mesh(tmp_path, attacks={1: ("sign_flip", 3)}, steps=14, epoch_steps=14, audit_ppm=1_000_000)

    def change(seat: Seat) -> None:
        waves_through(seat)
        honest_draw = seat.driver.choice.draw
        seat.driver.choice.draw = lambda some: next(  # type: ignore[method-assign]
            (one for one in some if one.slot.slot == 1), honest_draw(some)
        )
        for other in m.seats[:HOSTILE]:
            usable = other.driver.choice.usable
            other.driver.choice.usable = lambda one, usable=usable: one.slot.slot != 1 and usable(one)  # type: ignore[method-assign,misc]

    assert train(m, change) == [None, None, None]
    assert "WRONG" in outcomes(m)
    assert m.court.reports == [(1, 3)]
    offences = [seat.payroll.offences for seat in m.seats]
    assert offences[0].keys() == {(1, 1)} and offences[0] == offences[1] == offences[2]
    recorded = m.seats[0].docket.quarantined[1, 1].step
    assert 3 <= offences[0][1, 1] < recorded, "pay is void from the offence on, steps before the record that names it"
    assert not m.seats[0].audits.ledger.faults, "a driver may be fooled: a wrong frame alone is no fault of it"


class Nobody(dict[Any, Any]):
    """Whom a seat distrusts that does not believe its own accusations."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


def shirks(seat: Seat) -> None:
    """Signs a proof of nothing and agrees to everything. It goes on with the workers that it accuses: it would have
    none left, and stop, before anybody else stops it."""
    auditor, seat.docket.distrusted = seat.audits.auditor, Nobody()

    async def recompute(bundle: Any) -> Claim:
        shape = seat.context.shapes.activation
        return Claim(torch.zeros(shape), torch.zeros(64))

    auditor._recompute = recompute  # type: ignore[method-assign]


def test_an_auditor_that_does_not_recompute_is_found_by_the_driver(tmp_path: Path) -> None:
    m = mesh(tmp_path, steps=12, epoch_steps=12)
    ends = train(m, shirks)
    assert faults(m) == faults(m, 1) == {FaultKind.LAZY_AUDIT}
    assert "LAZY_AUDIT" in str(ends[0])
    assert not m.court.reports, "what it calls wrong convicts nobody"


def lies_about_the_update(seat: Seat) -> None:
    for reducer in seat.reducers.values():
        honest = reducer._step

        def step(state: Any, dones: Any, sums: Any, honest: Any = honest) -> Any:
            update, aggregate = honest(state, dones, [(entry, 3 * flat) for entry, flat in sums])
            kept = type(update.kept)(tuple(flat for _, flat in sums), update.kept.m, update.kept.v)
            return type(update)(update.aggregate, update.payload, kept), aggregate

        reducer._step = step  # type: ignore[method-assign]


def test_a_primary_that_steps_from_other_gradients_loses_its_seat_at_once(tmp_path: Path) -> None:
    m = mesh(tmp_path, stages=3, layers=3, steps=12, epoch_steps=12)
    ends = train(m, lies_about_the_update)
    assert faults(m) == {FaultKind.WRONG_UPDATE}
    assert "WRONG_UPDATE in step" in str(ends[0])


def keeps_its_secret(seat: Seat) -> None:
    honest = seat.peers.broadcast

    async def broadcast(message: pb.SeatMessage, patience: float = 6.0) -> None:
        if message.WhichOneof("kind") == "record_signature":
            message.record_signature.secret = b""
        await honest(message, patience)

    seat.peers.broadcast = broadcast  # type: ignore[method-assign]


def test_a_seat_that_keeps_its_secret_is_not_paid_for_the_step(tmp_path: Path) -> None:
    m = mesh(tmp_path, steps=4, epoch_steps=4)

    def change(seat: Seat) -> None:
        keeps_its_secret(seat)
        # Its own ledger would know better than the others': it says what they say.
        seat._revealed = lambda step: [b""] * 3  # type: ignore[method-assign]

    ends = train(m, change)
    assert faults(m) == {FaultKind.UNREVEALED}
    assert isinstance(ends[0], Fatal) and ends[0].args[0].count("UNREVEALED in step") == 3


def test_one_seat_alone_convicts_nobody_of_a_fault(tmp_path: Path) -> None:
    """It claims of everything it audits that it was not served."""
    m = mesh(tmp_path)

    def change(seat: Seat) -> None:
        honest = seat.audits.auditor.look

        async def look(draw: Any) -> Any:
            found = await honest(draw)
            return type(found)(Outcome.UNSERVED, "so it says")

        seat.audits.auditor.look = look  # type: ignore[method-assign]

    assert train(m, change) == [None, None, None]
    assert not m.seats[0].audits.ledger.faults
    claims = [one for one in m.events[0].seats if one["kind"] == "claim"]
    assert claims and {one["claimant"] for one in claims} == {m.seats[HOSTILE].context.account}


# ---- claims and certificates, one seat


def claim(by: Seat, fault: Fault, **changes: object) -> pb.FaultClaim:
    message = pb.Fault(kind=int(fault.kind), seat=fault.seat, step=fault.step, subject=fault.subject)
    signed = SeatFault(JOB_ID, int(fault.kind), fault.seat, fault.step, fault.subject)
    message.signatures.add(verifier=by.context.account, signature=by.context.sign(signed))
    for name, value in changes.items():
        setattr(message, name, value)
    return pb.FaultClaim(fault=message)


def test_claims_that_nobody_could_mean_are_refused(tmp_path: Path) -> None:
    m = mesh(tmp_path)
    hearer, other, third = (m.seat(index) for index in range(3))
    fault = Fault(FaultKind.UNSERVED_FRAME, third.context.account, 0, WORD)

    async def story() -> None:
        hear = hearer.audits.faults.hear
        hear(other.context.account, claim(other, fault), 0)
        for wrong in (
            claim(other, fault, kind=99),
            claim(other, fault, seat="0x" + "00" * 20),
            claim(other, fault, subject=b"short"),
            claim(other, fault, step=50),
            claim(other, fault, step=1),
            claim(third, fault),
        ):
            with pytest.raises(ProtocolError):
                hear(other.context.account, wrong, 0)
        own = Fault(FaultKind.UNSERVED_FRAME, other.context.account, 0, WORD)
        with pytest.raises(ProtocolError, match="its own fault"):
            hear(other.context.account, claim(other, own), 0)
        assert hearer.audits.faults.certified([]) == []
        hearer.audits.cancel()

    asyncio.run(story())


def test_a_certificate_takes_q_seats_and_not_the_accused(tmp_path: Path) -> None:
    m = mesh(tmp_path)
    seats = [m.seat(index) for index in range(3)]
    fault = Fault(FaultKind.UNSERVED_FRAME, seats[2].context.account, 0, WORD)

    def certificate(*signers: int) -> pb.Fault:
        found = claim(seats[signers[0]], fault).fault
        for index in signers[1:]:
            found.signatures.append(claim(seats[index], fault).fault.signatures[0])
        return found

    check = seats[0].audits.faults.check
    assert check(certificate(0, 1)) == fault
    for signers in ((0,), (0, 0), (0, 2), (1, 2)):
        with pytest.raises(ProtocolError):
            check(certificate(*signers))


def test_a_proof_of_work_is_of_one_frame_and_one_auditor() -> None:
    claims = Claim(torch.randn(3, 128, 7), None)
    proofs = [
        work.proof_of(claims, "0x" + "aa" * 20, WORD),
        work.proof_of(claims, "0x" + "bb" * 20, WORD),
        work.proof_of(claims, "0x" + "aa" * 20, b"v" * 32),
        work.proof_of(Claim(claims.output * 1.01, None), "0x" + "aa" * 20, WORD),
    ]
    assert len({work.work_hash(proof) for proof in proofs}) == 4
    assert proofs[0].shape == (64,)
    assert work.proof_of(Claim(None, torch.arange(64.0)), "0x" + "aa" * 20, WORD).abs().equal(torch.arange(64.0))
