"""Seats against a hostile seat: what it cannot sign for, replays or makes up is refused by name and changes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path

import blake3
import grpc.aio
import pytest

from sentinel_market.chain.eip712 import digest, keccak256
from sentinel_market.domain import merkle, step_record
from sentinel_market.domain.messages import DriverDone, DriverRoot, SeatEnvelope, ViolationReport, WorkReceipt
from sentinel_market.errors import PeerGone, ProtocolError
from sentinel_market.ports import SlotInfo
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.parts import CHANNEL_OPTIONS, TELL, Assembler, split
from tests.support.mesh import JOB_ID, key
from tests.verifier.rig import DOMAIN, small_mesh
from verifier.accuse import BAD_COMPUTE
from verifier.seat import Seat
from verifier.sizes import number_of
from verifier.step import sets_of

WORD = bytes(range(32))


async def stream(parts: Iterable[pb.Part]) -> AsyncIterator[pb.Part]:
    for part in parts:
        yield part


class Council:
    """Three seats at step 0; seat 1 is the hostile one, seat 0 hears it."""

    def __init__(self, home: Path) -> None:
        self.mesh = small_mesh(home)
        self.seats = [self.mesh.seat(index) for index in range(3)]
        self.hearer, self.hostile, self.third = self.seats
        for seat in self.seats:
            seat.weights.genesis()
        self._sequence = time.time_ns()

    def envelope(self, message: pb.SeatMessage | bytes, by: Seat | None = None, **changes: object) -> pb.Envelope:
        """What announces ``message``, signed; ``key`` signs instead of the seat's own."""
        seat = by or self.hostile
        self._sequence += 1
        body = message if isinstance(message, bytes) else message.SerializeToString()
        values = {
            "job_id": JOB_ID,
            "sender": seat.context.account,
            "recipient": self.hearer.context.account,
            "boot": self.hearer.door.boot,
            "sequence": self._sequence,
            "kind": number_of(message) if isinstance(message, pb.SeatMessage) else 1,
            "size": len(body),
            "body_hash": blake3.blake3(body).digest(),
            **{k: v for k, v in changes.items() if k != "key"},
        }
        signed = SeatEnvelope(**values)  # type: ignore[arg-type]
        signer = changes.get("key", seat.context.key)
        return pb.Envelope(**values, signature=signer.sign(digest(DOMAIN, signed)))  # type: ignore[union-attr,arg-type]

    async def give(self, *messages: pb.Envelope | pb.SeatMessage | bytes) -> pb.SeatMessage:
        """A stream of these at the hearer's door. Raises ProtocolError with the code of an Error answer."""
        data = [m if isinstance(m, bytes) else m.SerializeToString() for m in messages]
        answer = await self.hearer.door.hear(stream(part for one in data for part in split(one)))
        if answer.WhichOneof("kind") == "error":
            raise ProtocolError(answer.error.code, answer.error.message)
        return answer

    async def tell(self, message: pb.SeatMessage, sender: Seat | None = None) -> pb.SeatMessage:
        return await self.give(self.envelope(message, sender), message)

    async def refused(self, message: pb.SeatMessage, sender: Seat | None = None) -> str:
        with pytest.raises(ProtocolError) as caught:
            await self.tell(message, sender)
        return caught.value.code

    def done(self, seat: Seat | None = None, **changes: object) -> pb.Done:
        """A Done that ``seat`` (the hostile one) could have meant."""
        context = (seat or self.hostile).context
        leaves = [WORD]
        done = pb.Done(step=0, root=merkle.root(leaves, keccak256), leaves=1, leaf_digests=leaves)
        done.secret_hash = done.next_secret_hash = WORD
        done.sets.add(slot=0, session=9, commitments=[WORD], microbatches=[context.my_microbatches()[0]])
        for name, value in changes.items():
            setattr(done, name, value)
        done.findings.step = done.step
        return self.sign_done(done, context.account, context.key)

    def sign_done(self, done: pb.Done, account: str, signer: object) -> pb.Done:
        sets = step_record.sets_digest(sets_of(done))
        done.signature = signer.sign(digest(DOMAIN, DriverDone(JOB_ID, done.step, done.round, account, sets)))  # type: ignore[attr-defined]
        root = DriverRoot(JOB_ID, done.step, account, done.root, done.leaves, done.next_secret_hash)
        done.root_signature = signer.sign(digest(DOMAIN, root))  # type: ignore[attr-defined]
        return done

    def certificate(self, signers: list[Seat], slot: int = 4, **changes: object) -> pb.Quarantine:
        found = pb.Quarantine(
            step=0, slot=slot, nonce=1, session=9, commitment_hash=WORD, evidence_hash=WORD, deadline=2**40
        )
        found.accuser = self.hostile.context.account
        case = self.mesh.court.case_id(JOB_ID, slot, 1, BAD_COMPUTE, WORD)
        for seat in signers:
            report = ViolationReport(case, seat.context.account, BAD_COMPUTE, WORD, WORD, 2**40)
            signature = seat.context.sign(report, seat.context.court_domain)
            found.signatures.add(verifier=seat.context.account, signature=signature)
        for name, value in changes.items():
            setattr(found, name, value)
        return found


def council(tmp_path: Path, story: Callable[[Council], Awaitable[None]]) -> None:
    asyncio.run(story(Council(tmp_path)))


PING = pb.SeatMessage(ping=pb.Ping(step=0))


# ---- envelopes


def test_an_honest_envelope_is_answered(tmp_path: Path) -> None:
    async def story(c: Council) -> None:
        assert (await c.tell(PING)).WhichOneof("kind") == "ping"
        assert (await c.tell(PING, c.third)).WhichOneof("kind") == "ping"

    council(tmp_path, story)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"job_id": 2}, "job"),
        ({"recipient": "seat 2"}, "recipient"),
        ({"recipient": ""}, "recipient"),
        ({"sender": "me"}, "seat"),
        ({"sender": "0x" + "44" * 20}, "seat"),
        ({"sender": "no address"}, "seat"),
        ({"sender": "seat 2"}, "signature"),
        ({"key": key("a stranger")}, "signature"),
        ({"boot": bytes(32)}, "boot"),
        ({"boot": bytes(range(32))}, "boot"),
        ({"boot": b"short"}, "message"),
        ({"kind": 0}, "message"),
        ({"kind": 999}, "message"),
        ({"kind": 2}, "message"),
        ({"size": 1}, "size"),
        ({"size": 4}, "size"),
        ({"size": 2**64 - 1}, "size"),
        ({"body_hash": bytes(32)}, "message"),
    ],
    ids=[
        "job",
        "recipient",
        "nobody",
        "own name",
        "stranger",
        "no address",
        "other seat",
        "key",
        "unmet",
        "other boot",
        "no boot",
        "no kind",
        "unknown kind",
        "other kind",
        "less",
        "more",
        "endless",
        "other message",
    ],
)
def test_a_false_envelope_is_refused_by_name(tmp_path: Path, changes: dict[str, object], code: str) -> None:
    async def story(c: Council) -> None:
        names = {"seat 2": c.third.context.account, "me": c.hearer.context.account}
        found = {k: names.get(v, v) if isinstance(v, str) else v for k, v in changes.items()}
        try:
            envelope = c.envelope(PING, **found)
        except ValueError:  # what cannot be signed is sent with another signature
            envelope = c.envelope(PING)
            for name, value in found.items():
                setattr(envelope, name, value)
        with pytest.raises(ProtocolError) as caught:
            await c.give(envelope, PING)
        assert caught.value.code == code

    council(tmp_path, story)


def test_an_envelope_that_was_changed_on_its_way_is_refused(tmp_path: Path) -> None:
    async def story(c: Council) -> None:
        for field, value in (
            ("boot", bytes(32)),
            ("sequence", 2**63),
            ("kind", 2),
            ("size", 1),
            ("body_hash", bytes(32)),
            ("signature", b"short"),
            ("signature", bytes(65)),
        ):
            envelope = c.envelope(PING)
            setattr(envelope, field, value)
            with pytest.raises(ProtocolError, match="signature"):
                await c.give(envelope, PING)
        with pytest.raises(ProtocolError, match="another message"):
            await c.give(c.envelope(pb.SeatMessage(ping=pb.Ping(step=6))), pb.SeatMessage(ping=pb.Ping(step=7)))

    council(tmp_path, story)


def test_an_envelope_counts_once_and_late_ones_of_others_still_arrive(tmp_path: Path) -> None:
    async def story(c: Council) -> None:
        first, second = c.envelope(PING), c.envelope(PING)
        await c.give(second, PING)
        await c.give(first, PING)
        for envelope in (first, second):
            with pytest.raises(ProtocolError, match="replay"):
                await c.give(envelope, PING)

    council(tmp_path, story)


def test_flooding_does_not_make_a_seat_forget_what_it_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verifier.door.REMEMBERED", 4)

    async def story(c: Council) -> None:
        heard = [c.envelope(PING, c.third) for _ in range(3)]
        late = c.envelope(PING, c.third)
        for envelope in heard:
            await c.give(envelope, PING)
        flood = [c.envelope(PING) for _ in range(20)]
        for envelope in flood:
            await c.give(envelope, PING)
        await c.give(late, PING)
        for envelope in (*heard, *flood):
            with pytest.raises(ProtocolError, match="replay"):
                await c.give(envelope, PING)
        await c.tell(PING, c.third)

    council(tmp_path, story)


def test_whatever_comes_to_the_door_is_answered_by_an_error_and_the_seat_lives(tmp_path: Path) -> None:
    async def story(c: Council) -> None:
        port = await c.hearer.start("127.0.0.1", 0)
        broken_root = c.done()
        broken_root.root = b"short"
        nobody = c.certificate([c.hostile, c.third])
        nobody.signatures[0].verifier = "nobody"
        said: list[pb.SeatMessage | bytes] = [
            b"\xff\xff\xff",
            b"",
            pb.SeatMessage(done=broken_root),
            pb.SeatMessage(quarantine=nobody),
            pb.SeatMessage(accuse=pb.Accuse(slot=2**32 - 1)),
            pb.SeatMessage(settlement=pb.SettlementProposal()),
            pb.SeatMessage(weights_query=pb.WeightsQuery(stage=77, step=0)),
            pb.SeatMessage(report_signature=pb.ReportSignature()),
            pb.SeatMessage(error=pb.Error(code="x")),
        ]
        streams: list[list[pb.Part]] = [[], [pb.Part(data=b"\xff\xff\xff")], [pb.Part()], [pb.Part(more=True)]]
        for one in said:
            body = one if isinstance(one, bytes) else one.SerializeToString()
            streams.append([pb.Part(data=c.envelope(one).SerializeToString()), pb.Part(data=body)])
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel:
            for parts in streams:
                call = channel.stream_stream(
                    TELL, request_serializer=pb.Part.SerializeToString, response_deserializer=pb.Part.FromString
                )(iter(parts), timeout=30)
                answers = [Assembler(1 << 20).feed(part) async for part in call]
                assert len(answers) == 1
                assert answers[0] is not None
                answer = pb.SeatMessage.FromString(answers[0])
                assert answer.WhichOneof("kind") in {"error", "report_signature"}
                assert not answer.report_signature.agrees
                assert not answer.report_signature.signature
            assert (await c.tell(PING)).WhichOneof("kind") == "ping"
        await c.hearer.relay.stop()

    council(tmp_path, story)


# ---- the step


def test_an_honest_done_is_taken(tmp_path: Path) -> None:
    async def story(c: Council) -> None:
        await c.tell(pb.SeatMessage(done=c.done()))
        assert c.hearer.book[0].latest(c.hostile.context.account) is not None

    council(tmp_path, story)


def unsigned(field: str, value: object) -> Callable[[Council], pb.Done]:
    def make(c: Council) -> pb.Done:
        done = c.done()
        setattr(done, field, value)
        return done

    return make


def with_set(**changes: object) -> Callable[[Council], pb.Done]:
    """Signed, but the sets cannot be."""

    def make(c: Council) -> pb.Done:
        done = c.done()
        values = {"slot": 0, "session": 9, "commitments": [WORD], "microbatches": [1]}
        del done.sets[:]
        done.sets.add(**{**values, **changes})  # type: ignore[arg-type]
        return c.sign_done(done, c.hostile.context.account, c.hostile.context.key)

    return make


def more_sets(c: Council) -> pb.Done:
    done = c.done()
    done.sets.add(slot=1, session=9, commitments=[WORD], microbatches=[1])
    return done


def leaf_twice(c: Council) -> pb.Done:
    done = c.done(leaves=2, root=merkle.root([WORD, WORD], keccak256))
    done.leaf_digests.append(WORD)
    return done


def findings(**values: object) -> Callable[[Council], pb.Done]:
    def make(c: Council) -> pb.Done:
        done = c.done()
        done.findings.CopyFrom(pb.Findings(**values))  # type: ignore[arg-type]
        return done

    return make


def by_third(c: Council) -> pb.Done:
    return c.sign_done(c.done(), c.hostile.context.account, c.third.context.key)


def of_third(c: Council) -> pb.Done:
    return c.done(c.third)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        pytest.param(more_sets, "signature", id="sets"),
        pytest.param(unsigned("round", 3), "signature", id="round"),
        pytest.param(unsigned("root", bytes(32)), "signature", id="root"),
        pytest.param(unsigned("leaves", 99), "signature", id="leaves"),
        pytest.param(unsigned("next_secret_hash", bytes(32)), "signature", id="secret"),
        pytest.param(unsigned("signature", b""), "signature", id="no signature"),
        pytest.param(unsigned("root_signature", bytes(65)), "signature", id="root signature"),
        pytest.param(by_third, "signature", id="key"),
        pytest.param(of_third, "done", id="seat"),
        pytest.param(with_set(slot=6), "done", id="slot"),
        pytest.param(with_set(slot=2**32 - 1), "done", id="no slot"),
        pytest.param(with_set(commitments=[WORD, WORD]), "done", id="count"),
        pytest.param(with_set(commitments=[b"short"]), "done", id="digest"),
        pytest.param(with_set(microbatches=[0]), "done", id="other's microbatch"),
        pytest.param(with_set(microbatches=[600]), "done", id="no microbatch"),
        pytest.param(lambda c: c.done(step=50), "step", id="step"),
        pytest.param(unsigned("secret_hash", b"short"), "done", id="secret hash"),
        pytest.param(lambda c: c.done(leaves=2), "done", id="more leaves than listed"),
        pytest.param(lambda c: c.done(root=WORD), "done", id="root of other leaves"),
        pytest.param(with_set(commitments=[b"x" * 32]), "done", id="not under the root"),
        pytest.param(leaf_twice, "done", id="leaf twice"),
        pytest.param(findings(step=1), "findings", id="findings of another step"),
        pytest.param(findings(secrets=[b"s" * 31]), "findings", id="short secret"),
        pytest.param(findings(secrets=[WORD] * 4), "findings", id="more secrets than seats"),
        pytest.param(findings(audited=[pb.Audited(subject=WORD, outcome=9)]), "findings", id="no outcome"),
        pytest.param(findings(audited=[pb.Audited(subject=b"short")]), "findings", id="short subject"),
        pytest.param(findings(audited=[pb.Audited(subject=WORD)] * 4097), "findings", id="too many audits"),
        pytest.param(findings(faults=[pb.Fault(kind=99, subject=WORD)]), "findings", id="no kind of fault"),
        pytest.param(findings(faults=[pb.Fault(kind=1, subject=WORD)]), "fault", id="fault of nobody"),
    ],
)
def test_a_done_that_its_seat_did_not_sign_or_could_not_mean_is_refused(
    tmp_path: Path, make: Callable[[Council], pb.Done], code: str
) -> None:
    async def story(c: Council) -> None:
        assert await c.refused(pb.SeatMessage(done=make(c))) == code
        assert not any(state.dones for state in c.hearer.book.values())

    council(tmp_path, story)


def test_a_done_is_not_replaced_by_another_of_the_same_round(tmp_path: Path) -> None:
    async def story(c: Council) -> None:
        await c.tell(pb.SeatMessage(done=c.done()))
        await c.tell(pb.SeatMessage(done=c.done(loss_sum_e6=7)))
        assert c.hearer.book[0].latest(c.hostile.context.account).loss_sum_e6 == 0  # type: ignore[union-attr]

    council(tmp_path, story)


def test_only_the_primary_of_a_stage_reduces_it(tmp_path: Path) -> None:
    """Stage 0 belongs to seat 0, stage 1 to seat 1."""

    async def story(c: Council) -> None:
        for stage in (0, 2, 2**32 - 1):
            assert await c.refused(pb.SeatMessage(aggregate=pb.Aggregate(step=0, stage=stage))) == "aggregate"
        assert await c.refused(pb.SeatMessage(aggregate=pb.Aggregate(step=0, stage=1)), c.third) == "aggregate"
        for slot in (0, 1, 2):
            exclude = pb.Exclude(step=0, slot=pb.SlotSession(slot=slot, session=9, reason="?"))
            assert await c.refused(pb.SeatMessage(exclude=exclude)) == "exclude"
        exclude = pb.Exclude(step=0, slot=pb.SlotSession(slot=4, session=9, reason="?"))
        assert await c.refused(pb.SeatMessage(exclude=exclude), c.third) == "exclude"
        assert not any(state.excluded or state.aggregates for state in c.hearer.book.values())
        await c.tell(pb.SeatMessage(exclude=exclude))
        assert (4, 9) in c.hearer.book[0].excluded

    council(tmp_path, story)


def test_a_message_for_a_step_far_away_is_refused(tmp_path: Path) -> None:
    async def story(c: Council) -> None:
        for step in (3, 2**64 - 1):
            assert await c.refused(pb.SeatMessage(record_signature=pb.RecordSignature(step=step))) == "step"
            assert await c.refused(pb.SeatMessage(aggregate=pb.Aggregate(step=step, stage=1))) == "step"
            slot = pb.SlotSession(slot=4, session=9)
            assert await c.refused(pb.SeatMessage(exclude=pb.Exclude(step=step, slot=slot))) == "step"
        assert set(c.hearer.book) <= {0, 1, 2}

    council(tmp_path, story)


def test_only_the_lead_says_that_the_job_is_closed(tmp_path: Path) -> None:
    async def story(c: Council) -> None:
        c.hearer, lead = c.third, c.hearer
        assert await c.refused(pb.SeatMessage(closed=pb.Closed(transaction="0x"))) == "closed"
        assert not c.hearer.closing._job_closed.is_set()
        await c.tell(pb.SeatMessage(closed=pb.Closed(transaction="0x")), lead)
        assert c.hearer.closing._job_closed.is_set()

    council(tmp_path, story)


# ---- quarantines


def test_a_certificate_of_a_quorum_quarantines(tmp_path: Path) -> None:
    async def story(c: Council) -> None:
        await c.tell(pb.SeatMessage(quarantine=c.certificate([c.hostile, c.third])))
        assert set(c.hearer.docket.quarantined) == {(4, 1)}
        assert c.hearer.docket.barred(4)
        assert not c.hearer.docket.barred(5)

    council(tmp_path, story)


def doubled(c: Council) -> pb.Quarantine:
    found = c.certificate([c.hostile])
    found.signatures.append(found.signatures[0])
    return found


def foreign(c: Council) -> pb.Quarantine:
    found = c.certificate([c.hostile])
    stranger = key("a stranger")
    case = c.mesh.court.case_id(JOB_ID, 4, 1, BAD_COMPUTE, WORD)
    report = ViolationReport(case, stranger.address, BAD_COMPUTE, WORD, WORD, 2**40)
    found.signatures.add(
        verifier=stranger.address, signature=stranger.sign(digest(c.hostile.context.court_domain, report))
    )
    return found


def borrowed(c: Council) -> pb.Quarantine:
    found = c.certificate([c.hostile])
    found.signatures.add(verifier=c.third.context.account, signature=found.signatures[0].signature)
    return found


@pytest.mark.parametrize(
    "make",
    [
        lambda c: c.certificate([]),
        lambda c: c.certificate([c.hostile]),
        doubled,
        foreign,
        borrowed,
        lambda c: c.certificate([c.hostile, c.third], slot=4, nonce=2),
        lambda c: (q := c.certificate([c.hostile, c.third]), setattr(q, "slot", 5))[0],
        lambda c: c.certificate([c.hostile, c.third], commitment_hash=bytes(32)),
        lambda c: c.certificate([c.hostile, c.third], evidence_hash=bytes(32)),
        lambda c: c.certificate([c.hostile, c.third], deadline=5),
    ],
    ids=["none", "one", "one twice", "foreign", "borrowed", "nonce", "slot", "commitment", "evidence", "deadline"],
)
def test_what_is_no_certificate_quarantines_nobody(tmp_path: Path, make: Callable[[Council], pb.Quarantine]) -> None:
    async def story(c: Council) -> None:
        await c.refused(pb.SeatMessage(quarantine=make(c)))
        done = c.done()
        done.quarantines.append(make(c))
        await c.refused(pb.SeatMessage(done=done))
        assert not c.hearer.docket.quarantined
        assert not any(state.quarantines for state in c.hearer.book.values())

    council(tmp_path, story)


def test_an_old_certificate_cannot_be_used_again_in_a_later_step(tmp_path: Path) -> None:
    """The step of a certificate is under no signature: replayed, it would bar whoever holds the slot by then."""

    async def story(c: Council) -> None:
        certificate = c.certificate([c.hostile, c.third])
        await c.tell(pb.SeatMessage(quarantine=certificate))
        c.hearer.docket.prosecute(c.hearer.book[0])
        c.hearer.step = 2
        certificate.step = 2
        assert await c.refused(pb.SeatMessage(quarantine=certificate)) == "quarantine"
        done = c.done(step=2)
        done.quarantines.append(certificate)
        assert await c.refused(pb.SeatMessage(done=done)) == "quarantine"
        assert not c.hearer.book.get(2) or not c.hearer.book[2].quarantines

    council(tmp_path, story)


# ---- receipts


def receipts(c: Council, **changes: object) -> pb.RecordSignature:
    """The hostile seat's for one worker, signed as it stands, then changed where ``changes`` name ``units``."""
    values = {"slot": 4, "nonce": 1, "units": 2, **changes}
    context = c.hostile.context
    message = WorkReceipt(JOB_ID, values["slot"], values["nonce"], context.account, 0, 2)  # type: ignore[arg-type]
    units = [pb.SlotUnits(**values, signature=context.sign(message))]  # type: ignore[arg-type]
    return pb.RecordSignature(step=0, units=units)


async def taken(c: Council, said: pb.RecordSignature) -> list[dict[str, object]]:
    done = c.done(leaves=2, root=merkle.root([WORD, bytes(32)], keccak256))
    done.leaf_digests.append(bytes(32))
    await c.tell(pb.SeatMessage(done=c.sign_done(done, c.hostile.context.account, c.hostile.context.key)))
    await c.hearer._take_receipts(c.hearer.book[0], c.hostile.context.account, said)
    return c.mesh.events[0].verdicts


def test_a_receipt_that_is_right_is_taken(tmp_path: Path) -> None:
    async def story(c: Council) -> None:
        assert await taken(c, receipts(c)) == []
        assert c.hearer.payroll.receipts[c.hostile.context.account, 4, 1][-1].units == 2

    council(tmp_path, story)


def test_a_false_receipt_is_told_with_its_values(tmp_path: Path) -> None:
    async def story(c: Council) -> None:
        (told,) = await taken(c, receipts(c, units=3))
        with pytest.raises(ProtocolError, match="signature"):
            c.hearer.payroll.check(c.hostile.context.account, receipts(c, units=3))
        assert (told["kind"], told["slot"], told["nonce"], told["units"]) == ("receipt refused", 4, 1, 3)
        assert (told["step"], told["verifier"], told["false"]) == (0, c.hostile.context.account, True)
        assert not c.hearer.payroll.receipts

    council(tmp_path, story)


def test_a_receipt_for_an_unknown_holder_stops_nothing_while_the_chain_is_away(tmp_path: Path) -> None:
    async def story(c: Council) -> None:
        def away() -> dict[int, SlotInfo]:
            raise PeerGone("the RPC is down")

        c.hearer._refresh_slots = away
        (told,) = await taken(c, receipts(c, nonce=9))
        assert (told["nonce"], told["false"]) == (9, False)

    council(tmp_path, story)
