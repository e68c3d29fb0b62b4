"""Commit, reveal, sign: nobody copies an answer, and no signature is given before its time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sentinel_market.domain.cross_audit import FaultKind
from sentinel_market.errors import ProtocolError
from sentinel_market.wire import relay_pb2 as pb
from tests.verifier.table import Material, Table, material
from tests.verifier.test_accuse import reported
from verifier import accuse as accusing
from verifier.cosign import REMEMBERED
from verifier.judgement import commitment_of, seal


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return material(tmp_path_factory.mktemp("frames"))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def refused(table: Table, accuser: int, accuse: pb.Accuse) -> str:
    """Why seat 1 gives no signature."""
    query = reported(table.seats[accuser], table.mesh, accuse)
    with pytest.raises(ProtocolError) as found:
        asyncio.run(table.seats[1].cosigner.sign(table.accounts[accuser], query))
    return str(found.value)


def test_an_accusation_in_earnest_convicts_with_the_signatures_of_all_who_agree(table: Table, frames: Material) -> None:
    quarantine = asyncio.run(table.seats[0].accuser.accuse(frames.offence))
    assert quarantine is not None
    assert sorted(one.verifier for one in quarantine.signatures) == sorted(table.accounts)
    for seat in table.seats:
        seat.accuser.check_certificate(quarantine)
    assert table.faults == [[], [], []]
    assert not table.notes("report refused")


def test_nobody_is_asked_to_reveal_before_all_have_committed(table: Table, frames: Material) -> None:
    async def slowly(sender: str, message: pb.SeatMessage) -> pb.SeatMessage:
        if message.WhichOneof("kind") == "accuse":
            await asyncio.sleep(0.5)
        answered.append(str(message.WhichOneof("kind")))
        return await table.seats[2]._hear(sender, message)

    answered: list[str] = []
    table.hears[2] = slowly
    asyncio.run(table.seats[0].accuser.accuse(frames.offence))
    kinds = [kind for _, _, kind in table.said]
    assert kinds == ["accuse"] * 2 + ["reveal_query"] * 2 + ["report_query"] * 2
    assert answered == ["accuse", "reveal_query", "report_query"]


def test_a_question_says_nothing_of_the_asker_s_own_signature(table: Table, frames: Material) -> None:
    named = {field.name for field, _ in table.accusation(frames.offence).ListFields()}
    assert named == {"step", "nonce", "slot", "session", "bundle", "commitment_hash", "evidence_hash", "deadline"} - {
        "step"  # 0 here
    }


@pytest.mark.parametrize("way", ["flips", "copies", "other salt"])
def test_a_seat_that_reveals_another_answer_than_it_committed_to_does_not_count(
    table: Table, frames: Material, way: str
) -> None:
    """Seat 1 commits to no, or to what seat 2 committed, and then says yes."""
    cheat, honest = table.seats[1], table.seats[2]

    async def hears(sender: str, message: pb.SeatMessage) -> pb.SeatMessage:
        kind = message.WhichOneof("kind")
        if way == "copies" and kind == "accuse":
            copied = await honest.cosigner.judge(sender, message.accuse)
            return pb.SeatMessage(committed=sealed_by_seat_1(copied.commitment, message.accuse.evidence_hash))
        if way == "copies" and kind == "reveal_query":
            return pb.SeatMessage(reveal=honest.cosigner.reveal(sender, message.reveal_query))
        reply = await cheat._hear(sender, message)
        if kind == "reveal_query" and way == "flips":
            reply.reveal.agrees = not reply.reveal.agrees
        elif kind == "reveal_query":
            reply.reveal.salt = bytes(32)
        return reply

    def sealed_by_seat_1(commitment: bytes, evidence_hash: bytes) -> pb.Committed:
        from sentinel_market.domain.messages import Judgement

        c = cheat.context
        signed = Judgement(c.job_id, c.account, evidence_hash, commitment)
        return pb.Committed(commitment=commitment, signature=c.sign(signed))

    table.hears[1] = hears
    opened = asyncio.run(table.seats[0].accuser._poll(table.accusation(frames.offence), 10.0))
    assert set(opened) == {honest.context.account}


def test_a_commitment_under_another_seat_s_signature_does_not_count(table: Table, frames: Material) -> None:
    async def hears(sender: str, message: pb.SeatMessage) -> pb.SeatMessage:
        return await table.seats[2]._hear(sender, message)

    table.hears[1] = hears
    opened = asyncio.run(table.seats[0].accuser._poll(table.accusation(frames.offence), 10.0))
    assert set(opened) == {table.accounts[2]}


def test_a_commitment_that_is_not_signed_does_not_count(table: Table, frames: Material) -> None:
    """Opened, it would prove nothing to a third."""

    async def hears(sender: str, message: pb.SeatMessage) -> pb.SeatMessage:
        reply = await table.seats[1]._hear(sender, message)
        if message.WhichOneof("kind") == "accuse":
            reply.committed.signature = table.seats[2].cosigner.context.key.sign(bytes(32))
        return reply

    table.hears[1] = hears
    opened = asyncio.run(table.seats[0].accuser._poll(table.accusation(frames.offence), 10.0))
    assert set(opened) == {table.accounts[2]}


def test_a_commitment_hides_and_binds() -> None:
    salt, evidence, seats = bytes(31) + b"\1", bytes(32), ["0x" + "11" * 20, "0x" + "22" * 20]
    found = {
        commitment_of(job, seat, evidence, agrees, one)
        for job in (1, 2)
        for seat in seats
        for agrees in (True, False)
        for one in (salt, bytes(32))
    }
    assert len(found) == 16
    for bad in ((b"", salt), (evidence, b""), (evidence + b"\0", salt[1:])):
        with pytest.raises(ProtocolError):
            commitment_of(1, seats[0], bad[0], True, bad[1])


def test_no_signature_before_the_reveal(table: Table, frames: Material) -> None:
    accuse, account, cosigner = table.accusation(frames.offence), table.accounts[0], table.seats[1].cosigner
    assert "no accusation" in refused(table, 0, accuse)
    asyncio.run(cosigner.judge(account, accuse))
    assert "not revealed" in refused(table, 0, accuse)
    cosigner.reveal(account, pb.RevealQuery(evidence_hash=accuse.evidence_hash))
    assert "no accusation" in refused(table, 2, accuse), "nor to anybody else"
    with pytest.raises(ProtocolError):
        cosigner.reveal(table.accounts[2], pb.RevealQuery(evidence_hash=accuse.evidence_hash))
    found = asyncio.run(cosigner.sign(account, reported(table.seats[0], table.mesh, accuse)))
    assert found.agrees and found.signature


def test_no_signature_to_a_canary(table: Table, frames: Material) -> None:
    """Even where this seat was convinced."""
    accuse, account, cosigner = table.accusation(frames.offence), table.accounts[0], table.seats[1].cosigner
    asyncio.run(cosigner.judge(account, accuse))
    assert cosigner.reveal(account, pb.RevealQuery(evidence_hash=accuse.evidence_hash)).agrees
    cosigner.canary(account, pb.CanaryReveal(evidence_hash=accuse.evidence_hash))
    assert "canary" in refused(table, 0, accuse)


def test_what_was_meant_in_earnest_is_no_canary_afterwards(table: Table, frames: Material) -> None:
    accuse, account, cosigner = table.accusation(frames.offence), table.accounts[0], table.seats[1].cosigner
    asyncio.run(cosigner.judge(account, accuse))
    cosigner.reveal(account, pb.RevealQuery(evidence_hash=accuse.evidence_hash))
    asyncio.run(cosigner.sign(account, reported(table.seats[0], table.mesh, accuse)))
    with pytest.raises(ProtocolError, match="earnest"):
        cosigner.canary(account, pb.CanaryReveal(evidence_hash=accuse.evidence_hash))


def test_no_signature_for_a_judgement_that_was_no_and_the_accuser_is_charged(tmp_path: Path, frames: Material) -> None:
    """Seat 0 accuses a right frame in earnest, seats 1 and 2 are its friends; seats 3 and 4 look."""
    table = Table(tmp_path, {"seats": 5, "quorum": 3})
    table.stamps(1)
    table.stamps(2)
    quarantine = asyncio.run(table.seats[0].accuser.accuse(table.canary(frames.upheld[0])))
    assert quarantine is not None, "q colluding seats can do that"
    assert {one.verifier for one in quarantine.signatures} == set(table.accounts[:3])
    (kind, account, step, subject, evidence) = table.faults[3][0]
    assert (kind, account, step) == (FaultKind.FALSE_ALARM, table.accounts[0], 0)
    assert subject == quarantine.evidence_hash
    assert len(table.faults[3]) == 1
    for judge in (3, 4):
        table.seats[judge].cosigner.proves_false_alarm(evidence, account)
    (note,) = table.notes("report refused")
    assert note["seats"] == sorted(table.accounts[3:])

    forged = pb.FalseAlarm.FromString(evidence)
    forged.signature = bytes(65)
    later = pb.FalseAlarm.FromString(evidence)
    later.accuse.deadline += 1
    for wrong, accused in [
        (evidence, table.accounts[1]),
        (forged.SerializeToString(), account),
        (later.SerializeToString(), account),
        (b"", account),
        (b"\xff" * 9, account),
    ]:
        with pytest.raises((ProtocolError, ValueError)):
            table.seats[4].cosigner.proves_false_alarm(wrong, accused)


def test_a_seat_that_refuses_to_sign_what_others_sign_is_noted_and_cannot_charge_the_accuser(
    table: Table, frames: Material
) -> None:
    async def judgement(_: pb.Accuse) -> tuple[bool, str, bool]:
        return False, "it is my friend", True

    table.seats[2].cosigner._judgement = judgement  # type: ignore[method-assign]
    quarantine = asyncio.run(table.seats[0].accuser.accuse(frames.offence))
    assert quarantine is not None
    (note,) = table.notes("report refused")
    assert note["seats"] == [table.accounts[2]]
    (fault,) = table.faults[2]
    assert fault[0] is FaultKind.FALSE_ALARM
    with pytest.raises(ProtocolError, match="did not clear"):
        table.seats[1].cosigner.proves_false_alarm(fault[4], fault[1])


def test_without_a_quorum_nobody_is_asked_to_sign(table: Table, frames: Material) -> None:
    assert asyncio.run(table.seats[0].accuser.accuse(table.canary(frames.upheld[0]))) is None
    assert {kind for _, _, kind in table.said} == {"accuse", "reveal_query"}
    assert table.faults == [[], [], []], "an accusation that was never resolved counts as nothing"


@pytest.mark.parametrize("fate", ["away", "late", "late to reveal"])
def test_a_seat_that_is_not_there_does_not_hold_up_the_others(
    table: Table, frames: Material, fate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accusing, "JUDGE_SECONDS", 3.0)

    async def late(sender: str, message: pb.SeatMessage) -> pb.SeatMessage:
        if fate == "late" or message.WhichOneof("kind") == "reveal_query":
            await asyncio.sleep(60)
        return await table.seats[1]._hear(sender, message)

    if fate == "away":
        table.away.add(1)
    else:
        table.hears[1] = late

    async def accused() -> pb.Quarantine | None:
        async with asyncio.timeout(30):
            return await table.seats[0].accuser.accuse(frames.offence)

    quarantine = asyncio.run(accused())
    assert quarantine is not None
    assert {one.verifier for one in quarantine.signatures} == {table.accounts[0], table.accounts[2]}
    assert not table.notes("report refused"), "who is away refuses nothing"


def test_the_same_question_gets_the_same_answer_and_another_one_about_it_none(table: Table, frames: Material) -> None:
    accuse, cosigner = table.accusation(frames.offence), table.seats[1].cosigner
    first = asyncio.run(cosigner.judge(table.accounts[0], accuse))
    recomputed = cosigner.recomputes
    assert asyncio.run(cosigner.judge(table.accounts[0], accuse)) == first
    assert cosigner.recomputes == recomputed == 1
    accuse.deadline += 1
    with pytest.raises(ProtocolError, match="came before"):
        asyncio.run(cosigner.judge(table.accounts[0], accuse))
    accuse.evidence_hash = b"short"
    with pytest.raises(ProtocolError, match="evidence hash"):
        asyncio.run(cosigner.judge(table.accounts[0], accuse))


def test_judgements_are_forgotten_one_accuser_at_a_time(table: Table) -> None:
    cosigner, (other, _, flooding) = table.seats[1].cosigner, table.accounts
    asyncio.run(cosigner.judge(other, pb.Accuse(evidence_hash=bytes(32))))
    for number in range(REMEMBERED + 1):
        asyncio.run(cosigner.judge(flooding, pb.Accuse(evidence_hash=number.to_bytes(32, "big"))))
    with pytest.raises(ProtocolError):
        cosigner.reveal(flooding, pb.RevealQuery(evidence_hash=bytes(32)))
    assert not cosigner.reveal(other, pb.RevealQuery(evidence_hash=bytes(32))).agrees


def test_own_seal_opens(table: Table) -> None:
    context = table.seats[0].context
    sealed = seal(context, bytes(32), True, bytes(32))
    assert sealed.commitment == commitment_of(context.job_id, context.account, bytes(32), True, bytes(32))
