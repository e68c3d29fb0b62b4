"""Settlement against a hostile seat: roots that promise more, too early or for too much work are never co-signed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from sentinel_market.chain.eip712 import keccak256
from sentinel_market.domain.cross_audit import Ledger
from sentinel_market.domain.messages import JobFinish, Settlement
from sentinel_market.errors import PeerGone, ProtocolError
from sentinel_market.wire import relay_pb2 as pb
from tests.support.mesh import JOB_ID
from tests.verifier.rig import small_mesh
from verifier.payroll import Payroll, Refused

STEPS = 3
RECORD = bytes(range(32))


class Books:
    """The payrolls of three seats after ``STEPS`` steps of honest work; seat 0 leads. Answers as their network too."""

    def __init__(self, home: Path) -> None:
        self.mesh = small_mesh(home, steps=STEPS)
        self.seats = [self.mesh.seat(i) for i in range(3)]
        self.payrolls: list[Payroll] = [seat.payroll for seat in self.seats]
        self.lead, self.cosigner = self.payrolls[:2]
        self.proposals: list[pb.SettlementProposal] = []
        self.answers = True
        for step in range(STEPS):
            self.step(step)
        for payroll in self.payrolls:
            payroll.freeze(STEPS - 1)
            payroll.audited(STEPS - 1, Ledger(JOB_ID, (), ()))

    def step(self, step: int, inflate: Callable[[Payroll, dict[int, int]], dict[int, int]] | None = None) -> None:
        for payroll in self.payrolls:
            mine = payroll.context.my_microbatches()
            units = {slot: 2 * len(mine) // 2 for slot in (0, 1, 3, 4)}
            if inflate is not None:
                units = inflate(payroll, units)
            payroll.driven += len(mine)
            payroll.recomputes += 1
            said = pb.RecordSignature(step=step, units=payroll.close_step(step, units, set()), counts=payroll.counts())
            # what it signs that it accepted: as much as it acknowledges, or as much as a step can hold
            accepted = min(sum(units.values()), 10**4)
            for other in self.payrolls:
                other.hear(payroll.context.account, said, accepted=accepted, dropped=0)

    async def ask(self, account: str, message: pb.SeatMessage, time_limit: float = 0.0) -> pb.SeatMessage:
        self.proposals.append(message.settlement)
        if not self.answers:
            raise PeerGone("nobody")
        payroll = next(p for p in self.payrolls if p.context.account == account)
        return pb.SeatMessage(settlement_signature=await payroll.cosign(message.settlement))

    def propose(self) -> object:
        return asyncio.run(self.lead.propose(self, STEPS - 1, RECORD))  # type: ignore[arg-type]

    def honest(self) -> pb.SettlementProposal:
        """What an honest lead would propose; nobody has signed it."""
        self.answers = False
        with pytest.raises(PeerGone):
            self.propose()
        self.answers = True
        return self.proposals[0]

    def cosign(self, proposal: pb.SettlementProposal) -> bytes:
        return asyncio.run(self.cosigner.cosign(proposal)).signature

    def refused(self, proposal: pb.SettlementProposal) -> str:
        with pytest.raises(ProtocolError) as caught:
            self.cosign(proposal)
        return caught.value.code


@pytest.fixture
def books(tmp_path: Path) -> Books:
    return Books(tmp_path)


def test_all_seats_compute_the_same_root_and_sign_it(books: Books) -> None:
    proposal = books.honest()
    signature = books.cosign(proposal)
    context = books.cosigner.context
    message = Settlement(JOB_ID, proposal.epoch, proposal.root, int(proposal.total), RECORD)
    context.check_seat(context.account, message, signature, context.escrow_domain)
    settled = books.propose()
    assert settled is not None
    assert books.mesh.escrow.roots == [(1, proposal.root, int(proposal.total))]
    assert books.propose() is None, "nothing new is owed"


def richer(books: Books, proposal: pb.SettlementProposal) -> None:
    """A consistent tree over amounts of which one is a base unit more."""
    amounts = books.lead._amounts(STEPS - 1, books.lead._works(proposal.counts), 0, int(proposal.allowance), {})
    account = next(iter(amounts.amounts))
    amounts.amounts[account] += 1
    proposal.root = amounts.tree(JOB_ID, keccak256).root
    proposal.total = str(sum(amounts.amounts.values()))


def count(name: str, value: int, seat: int = 0) -> Callable[[Books, pb.SettlementProposal], None]:
    """One count beyond what could be due, in a proposal that is otherwise consistent."""

    def change(books: Books, proposal: pb.SettlementProposal) -> None:
        account = books.payrolls[seat].context.account
        for entry in proposal.counts:
            if entry.account == account:
                setattr(entry, name, value)
        works = books.lead._works(proposal.counts)
        amounts = books.lead._amounts(STEPS - 1, works, 0, int(proposal.allowance), {})
        proposal.root, proposal.total = amounts.tree(JOB_ID, keccak256).root, str(amounts.total)

    return change


def put(name: str, value: object) -> Callable[[Books, pb.SettlementProposal], None]:
    return lambda books, proposal: setattr(proposal, name, value)


def claim(books: Books, proposal: pb.SettlementProposal) -> None:
    proposal.claimed.add(account=books.seats[0].context.account, amount="1000")


def no_number(books: Books, proposal: pb.SettlementProposal) -> None:
    proposal.claimed.add(account=books.seats[0].context.account, amount="all")


def one_seat_twice(books: Books, proposal: pb.SettlementProposal) -> None:
    proposal.counts.append(proposal.counts[0])


def one_seat_less(books: Books, proposal: pb.SettlementProposal) -> None:
    del proposal.counts[0]


def a_stranger(books: Books, proposal: pb.SettlementProposal) -> None:
    proposal.counts[0].account = "0x" + "66" * 20


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(richer, id="one base unit more"),
        pytest.param(put("total", "1"), id="less than the tree"),
        pytest.param(put("total", str(10**30)), id="more than the tree"),
        pytest.param(put("total", "-1"), id="negative"),
        pytest.param(put("total", "9" * 5000), id="5000 digits"),
        pytest.param(put("total", ""), id="no total"),
        pytest.param(put("root", bytes(32)), id="other root"),
        pytest.param(put("root", b""), id="no root"),
        pytest.param(put("epoch", 0), id="epoch 0"),
        pytest.param(put("epoch", 2), id="next epoch"),
        pytest.param(put("epoch", 2**64 - 1), id="last epoch"),
        pytest.param(put("step", 1), id="within an epoch"),
        pytest.param(put("step", 900), id="to come"),
        pytest.param(put("allowance", str(2**127 + 1)), id="more allowance than the escrow's"),
        pytest.param(put("allowance", "much"), id="no allowance"),
        pytest.param(count("driven", 10**6), id="driven"),
        pytest.param(count("driven", 7, seat=1), id="one more driven than the co-signer drove"),
        pytest.param(count("recomputes", 10**6), id="recomputes"),
        pytest.param(count("settlements", 10**6), id="settlements"),
        pytest.param(count("reports", 1), id="reports"),
        pytest.param(count("executions", 1), id="executions"),
        pytest.param(claim, id="claimed"),
        pytest.param(no_number, id="claimed words"),
        pytest.param(one_seat_twice, id="a seat twice"),
        pytest.param(one_seat_less, id="a seat less"),
        pytest.param(a_stranger, id="a stranger"),
    ],
)
def test_a_root_that_is_not_what_is_owed_is_never_cosigned(
    books: Books, change: Callable[[Books, pb.SettlementProposal], None]
) -> None:
    proposal = books.honest()
    change(books, proposal)
    assert books.refused(proposal) == "root"
    assert books.mesh.escrow.roots == []


def test_a_root_is_not_cosigned_twice_after_the_escrow_took_it(books: Books) -> None:
    proposal = books.honest()
    books.propose()
    assert books.refused(proposal) == "root"


@pytest.mark.parametrize(
    "change",
    [put("epoch", 0), put("epoch", 2), put("step", 1), put("step", 900)],
    ids=["epoch before", "epoch after", "step before", "step after"],
)
def test_the_end_of_a_job_is_not_cosigned_before_all_is_promised(
    books: Books, change: Callable[[Books, pb.SettlementProposal], None]
) -> None:
    finish = pb.SettlementProposal(
        epoch=0, step=STEPS - 1, step_record_hash=RECORD, total="0", finish=True, counts=books.lead._counts_of_all()
    )
    assert books.refused(finish) == "finish", "everything is owed still"
    books.propose()
    finish.epoch = 1
    change(books, finish)
    assert books.refused(finish) in {"finish", "root"}
    finish.epoch, finish.step = 1, STEPS - 1
    context = books.cosigner.context
    context.check_seat(context.account, JobFinish(JOB_ID, 1, RECORD), books.cosign(finish))


@pytest.mark.parametrize("units", [10**4, 2**63])
def test_receipts_beyond_what_a_seat_could_have_driven_buy_nothing(tmp_path: Path, units: int) -> None:
    """One hostile seat signs its accomplice a fortune: no honest seat counts it."""
    honest, books = Books(tmp_path / "a"), Books(tmp_path / "b")
    for seat, inflate in ((honest, None), (books, units)):
        hostile = seat.payrolls[2]

        def more(payroll: Payroll, found: dict[int, int], hostile=hostile, inflate=inflate) -> dict[int, int]:
            return {**found, 3: inflate} if payroll is hostile and inflate is not None else found

        seat.step(STEPS, more)
        for payroll in seat.payrolls:
            payroll.freeze(STEPS)
            payroll.audited(STEPS, Ledger(JOB_ID, (), ()))
    accomplice = books.mesh.roster.slots(JOB_ID)[3].account

    def pay(b: Books) -> int:
        works = b.cosigner._works(b.cosigner._counts_of_all())
        return b.cosigner._amounts(STEPS, works, 0, 2**127, {}).amounts[accomplice]

    assert pay(books) <= pay(honest), "the false receipt is not counted"


class Hostile:
    """Seat 2 signs a step after those of ``Books``; seat 1 hears it."""

    def __init__(self, books: Books) -> None:
        self.books, self.payroll = books, books.payrolls[2]
        self.account = self.payroll.context.account

    def says(self, units: dict[int, int], step: int = STEPS) -> pb.RecordSignature:
        signed = self.payroll.close_step(step, units, set())
        return pb.RecordSignature(step=step, units=signed, counts=self.payroll.counts())

    def heard(self, said: pb.RecordSignature, accepted: int = 100, dropped: int = 0) -> list[Refused]:
        return self.books.cosigner.hear(self.account, said, accepted=accepted, dropped=dropped)

    def counted(self, slot: int) -> int:
        kept = self.books.cosigner.receipts.get((self.account, slot, 1))
        return kept[-1].units if kept else 0


def test_a_false_receipt_is_refused_with_its_values_and_those_beside_it_count(books: Books) -> None:
    hostile = Hostile(books)
    before = hostile.counted(3)
    for change in (
        lambda m: setattr(m.units[0], "units", 999),
        lambda m: setattr(m.units[0], "nonce", 7),
        lambda m: setattr(m.units[0], "slot", 77),
        lambda m: setattr(m.units[0], "signature", b""),
    ):
        good = hostile.says({3: 1, 4: 1})
        said = pb.RecordSignature()
        said.CopyFrom(good)
        change(said)
        (refused,) = hostile.heard(said)
        entry = said.units[0]
        assert (refused.slot, refused.nonce, refused.units) == (entry.slot, entry.nonce, entry.units)
        assert refused.false
        assert hostile.counted(3) == before
        assert hostile.counted(4) == good.units[1].units, "it is the pay of a worker that did nothing wrong"
    assert hostile.heard(good) == []
    assert hostile.counted(3) == good.units[0].units


def test_receipts_of_another_step_or_seat_are_false(books: Books) -> None:
    hostile = Hostile(books)
    said = hostile.says({3: 1, 4: 1})
    said.step += 1
    assert [one.false for one in hostile.heard(said)] == [True, True]
    said.step -= 1
    refused = books.cosigner.hear(books.lead.context.account, said, accepted=100, dropped=0)
    assert [one.false for one in refused] == [True, True]


def test_a_signed_receipt_for_a_holder_that_the_chain_does_not_name_yet_is_no_lie(books: Books) -> None:
    """The chain may be slow here: the next receipt is cumulative and makes up for it."""
    hostile = Hostile(books)
    del books.cosigner.holders[3, 1]
    (refused,) = hostile.heard(hostile.says({3: 1, 4: 1}))
    assert (refused.slot, refused.false) == (3, False)


def test_more_receipts_than_there_are_slots_are_not_even_looked_at(books: Books) -> None:
    hostile = Hostile(books)
    said = hostile.says({3: 1})
    said.units.extend([said.units[0]] * 1000)
    (refused,) = hostile.heard(said)
    assert "1001 receipts" in refused.reason


def test_a_seat_acknowledges_no_pass_that_it_did_not_accept(books: Books) -> None:
    """Every pass is a commitment under its driver root: what is paid for is what a cross-audit can ask for."""
    hostile = Hostile(books)
    before = hostile.counted(3)
    (refused,) = hostile.heard(hostile.says({3: 5}), accepted=4)
    assert not refused.false
    assert "accepted" in refused.reason
    assert hostile.counted(3) == before
    # Cumulative: a step in which it accepted one more than it acknowledges makes up for it.
    assert hostile.heard(hostile.says({3: 1}, STEPS + 1), accepted=2) == []
    assert hostile.counted(3) == before + 6


def test_what_a_seat_says_that_it_accepted_is_bounded_by_what_a_step_can_hold(books: Books) -> None:
    hostile = Hostile(books)
    c = hostile.payroll.context
    done = sum(kept[-1].units for (who, *_), kept in books.cosigner.receipts.items() if who == hostile.account)
    a_step = (5 + c.num_replicas - 1) * c.num_stages * len(c.my_microbatches())
    room = a_step * (STEPS + 1) - done
    assert hostile.heard(hostile.says({3: room}), accepted=2**32 - 1) == []
    (refused,) = hostile.heard(hostile.says({3: 3 * a_step}, STEPS + 1), accepted=2**32 - 1)
    assert not refused.false
    # A sum that was dropped whole is made again elsewhere: that costs as much as another step.
    assert hostile.heard(hostile.says({3: 0}, STEPS + 2), dropped=1) == []


def test_the_counts_of_a_seat_only_grow(books: Books) -> None:
    account = books.lead.context.account
    before = books.cosigner.works[account]
    books.cosigner.hear_counts(account, pb.SeatCounts(account=account, driven=1))
    assert books.cosigner.works[account] == before


def test_only_the_lead_may_ask_for_a_settlement_signature(books: Books) -> None:
    proposal = books.honest()
    seat = books.seats[1]
    with pytest.raises(ProtocolError, match="lead"):
        asyncio.run(seat.closing.cosign(books.seats[2].context.account, proposal))
