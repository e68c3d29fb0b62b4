"""The whole way of the money on a real chain, through the Python classes."""

from __future__ import annotations

import pytest

from sentinel_market.chain.eip712 import digest, keccak256
from sentinel_market.chain.job_market import JobTerms
from sentinel_market.chain.logs import EventCursor
from sentinel_market.chain.roster import ChainRoster
from sentinel_market.domain.merkle import pay_tree
from sentinel_market.domain.messages import Settlement, ViolationReport
from sentinel_market.errors import Rejected
from sentinel_market.ports import Court, Escrow, Roster, SignedReport, SlotState
from tests.support.localnet import TOKEN, Actor, LocalNet

pytestmark = pytest.mark.chain
BAD_COMPUTE = 2
RECORD = b"\x07" * 32


def terms(net: LocalNet, now: int, **changes: int) -> JobTerms:
    values = {
        "stages": 2,
        "replicas": 2,
        "num_seats": 3,
        "quorum": 2,
        "slot_stake": 40 * TOKEN,
        "seat_stake": 50 * TOKEN,
        "budget": 100 * TOKEN + 7,
        "planned_seconds": 100,
        "epochs": 2,
        "claim_deadline": now + 600,
        "deadline": now + 3600,
        "params_version": 1,
    }
    return JobTerms(spec_digest=b"\x05" * 32, **{**values, **changes})


def balances(actors: list[Actor]) -> list[int]:
    return [actor.cold.token.balance_of(actor.account) for actor in actors]


def test_deposit_post_claim_settle_pay_report_slash_refund_withdraw(net: LocalNet) -> None:
    submitter = net.actor(100, tokens=200 * TOKEN)
    workers = [net.actor(101 + index, stake=60 * TOKEN) for index in range(4)]
    verifiers = [net.actor(111 + index, stake=100 * TOKEN) for index in range(3)]
    everyone = [submitter, *workers, *verifiers]
    minted = 200 * TOKEN + 4 * 60 * TOKEN + 3 * 100 * TOKEN
    cursor = EventCursor(net.client(), net.client().block_number() + 1)
    client = submitter.cold

    # post
    receipt, job_id = client.market.post_job(terms(net, client.now()), "http://specs.test/1")
    assert job_id is not None
    assert receipt.event("JobPosted").args["uri"] == "http://specs.test/1"
    assert client.escrow.money(job_id).budget == 100 * TOKEN + 7

    # seats and slots, through the port
    rosters = [ChainRoster(verifier.hot) for verifier in verifiers]
    roster: Roster = rosters[0]
    court: Court = rosters[0]
    escrow: Escrow = rosters[0]
    for index, own in enumerate(rosters):
        assert own.take_seat(job_id).index == index
        assert own.account() == verifiers[index].account
    held = [ChainRoster(worker.hot).claim_slot(job_id) for worker in workers]
    assert sorted(slot.slot for slot in held) == [0, 1, 2, 3]
    assert [slot.slot // 2 for slot in held] == [0, 1, 0, 1]  # emptiest stage first
    assert roster.job(job_id).state == "active"
    assert [seat.hot_key for seat in roster.seats(job_id)] == [v.hot_key.address for v in verifiers]
    assert {slot.state for slot in roster.slots(job_id)} == {SlotState.CLAIMED}
    assert ChainRoster(workers[2].hot).held_slots(job_id) == (held[2],)
    with pytest.raises(Rejected, match="is held by") as caught:
        workers[0].hot.market.claim_slot(job_id, held[1].slot)
    assert caught.value.name == "SlotTaken"

    # a settlement root, signed by two seats, pays after its window
    def settle(epoch: int, amounts: dict[str, int]) -> None:
        tree = pay_tree(job_id, amounts, keccak256)
        message = Settlement(job_id, epoch, tree.root, sum(amounts.values()), RECORD)
        value = digest(net.network.domain("JobEscrow"), message)
        signed = [(seat, verifiers[seat].hot_key.sign(value)) for seat in (0, 2)]
        escrow.submit_root(job_id, epoch, tree.root, sum(amounts.values()), RECORD, signed)

    def claim(actor: Actor, epoch: int, amounts: dict[str, int]) -> int:
        tree = pay_tree(job_id, amounts, keccak256)
        leaf = tree.leaf(actor.account)
        assert leaf is not None
        receipt = submitter.hot.escrow.claim(job_id, epoch, actor.account, leaf.cumulative, leaf.proof)
        return sum(event.args["amount"] for event in receipt.events if event.name == "PayClaimed")

    net.chain.warp(60)
    first = {actor.account: 5 * TOKEN for actor in workers} | {actor.account: TOKEN for actor in verifiers}
    assert escrow.money(job_id).allowance >= sum(first.values())
    settle(1, first)
    with pytest.raises(Rejected, match="pays from") as caught:
        claim(workers[0], 1, first)
    assert caught.value.name == "RootNotActive"
    net.chain.warp(3)
    assert [claim(worker, 1, first) for worker in workers] == [5 * TOKEN] * 4
    assert claim(workers[0], 1, first) == 0  # a repeated claim pays nothing and does no harm
    assert escrow.claimed(job_id, workers[3].account) == 5 * TOKEN

    # two seats report worker 3; freeze, window, slash, ban
    offender = held[3]
    commitment, evidence = b"\x31" * 32, b"\x32" * 32
    case_id = court.case_id(job_id, offender.slot, offender.nonce, BAD_COMPUTE, commitment)
    reports = []
    for seat in (0, 1):
        deadline = court.now() + 60
        message = ViolationReport(case_id, verifiers[seat].account, BAD_COMPUTE, commitment, evidence, deadline)
        signature = verifiers[seat].hot_key.sign(digest(net.network.domain("ViolationCourt"), message))
        reports.append(SignedReport(seat=seat, evidence_hash=evidence, deadline=deadline, signature=signature))
    court.report(job_id, offender.slot, offender.nonce, BAD_COMPUTE, commitment, reports)
    case = court.case(case_id)
    assert (case.state, case.accused, case.slot) == ("appealable", workers[3].account, offender.slot)
    assert case.deadline > court.now()
    with pytest.raises(Rejected):
        court.execute(case_id)
    net.chain.warp(5)
    court.execute(case_id)
    assert court.case(case_id).state == "executed"
    for seat in (0, 1):
        court.settle_bond(case_id, seat)
    stake = client.vault.stake_of(workers[3].account)
    assert stake.banned
    assert stake.total == 40 * TOKEN  # half of a lock of 40 out of 60
    after = roster.slots(job_id)[offender.slot]
    assert (after.nonce, after.state) == (offender.nonce + 1, SlotState.VACANT)
    with pytest.raises(Rejected, match="banned"):
        workers[3].hot.market.claim_slot(job_id, offender.slot)
    with pytest.raises(Rejected) as caught:
        claim(workers[3], 1, first)
    assert caught.value.name == "RootTainted"

    # the last root, the end of the job, the division of the money
    net.chain.warp(20)
    last = {**first, workers[0].account: 9 * TOKEN + 1, verifiers[1].account: 2 * TOKEN}
    settle(2, last)
    net.chain.warp(3)
    value = rosters[0].finish_digest(job_id, 2, RECORD)
    assert value == bytes(client.call("JobMarket", "finishDigest", job_id, 2, RECORD))
    escrow.finish(job_id, 2, RECORD, [(seat, verifiers[seat].hot_key.sign(value)) for seat in (0, 1)])
    assert roster.job(job_id).state == "closing"
    net.chain.warp(10)
    escrow.settle_job(job_id)
    for actor in [*workers, *verifiers]:
        claim(actor, 2, last)
    submitter.hot.escrow.withdraw_refund(job_id)
    money = client.escrow.money(job_id)
    assert money.settled
    assert money.paid == sum(last.values()) == money.claimed
    assert money.budget == money.paid + money.fee + money.refunded
    assert money.fee == -(-money.paid * 200 // 10_000)
    treasury = client.params.get().treasury
    before = client.token.balance_of(treasury)
    submitter.hot.escrow.withdraw_fees(treasury)
    assert client.token.balance_of(treasury) - before >= money.fee

    # everybody takes everything out again
    for slot in held[:3]:
        submitter.hot.market.release_slot(job_id, slot.slot)
    for seat in range(3):
        submitter.hot.market.release_seat(job_id, seat)
    opened = []
    for actor in [*workers, *verifiers]:
        free = actor.cold.vault.stake_of(actor.account).free
        opened.append(actor.cold.vault.request_unbond(free)[1])
    with pytest.raises(Rejected, match="is unbonding until"):
        workers[0].cold.vault.withdraw(opened[0] or 0)
    net.chain.warp(18)
    for actor, unbond in zip([*workers, *verifiers], opened, strict=True):
        actor.cold.vault.withdraw(unbond or 0)
    for actor in everyone:
        if actor.cold.vault.stake_of(actor.account).credits:
            actor.cold.vault.withdraw_credits()
        stake = actor.cold.vault.stake_of(actor.account)
        assert (stake.total, stake.credits) == (0, 0)
    held_now = dict(zip([actor.account for actor in everyone], balances(everyone), strict=True))
    assert held_now[workers[1].account] == 65 * TOKEN
    assert held_now[workers[3].account] == 45 * TOKEN
    assert held_now[verifiers[2].account] == 101 * TOKEN
    to_treasury = 20 * TOKEN - _credited(cursor, [a.account for a in everyone])
    assert sum(held_now.values()) == minted - money.fee - to_treasury
    assert to_treasury >= 20 * TOKEN * 3000 // 10_000


def _credited(cursor: EventCursor, accounts: list[str]) -> int:
    """What a slash brought to people, by the events: reporters and submitter."""
    events = []
    while found := cursor.poll():
        events += found
    executed = [event for event in events if event.name == "CaseExecuted"]
    assert len(executed) == 1
    assert executed[0].args["accused"] in accounts
    assert cursor.poll() == []
    return int(executed[0].args["toReporters"] + executed[0].args["toSubmitter"])


def test_cancel_refunds_everything(net: LocalNet) -> None:
    submitter = net.actor(120, tokens=150 * TOKEN)
    client = submitter.cold
    _, job_id = client.market.post_job(terms(net, client.now()))
    assert job_id is not None
    with pytest.raises(Rejected, match="posted by another account"):
        net.actor(121).cold.market.cancel_job(job_id)
    client.market.cancel_job(job_id)
    client.escrow.withdraw_refund(job_id)
    assert client.token.balance_of(submitter.account) == 150 * TOKEN
    assert client.market.job(job_id).state == "cancelled"
    with pytest.raises(Rejected, match="nothing to pay out"):
        client.escrow.withdraw_refund(job_id)


def test_refusals_name_their_numbers(net: LocalNet) -> None:
    submitter = net.actor(130, tokens=90 * TOKEN)
    client = submitter.cold
    with pytest.raises(Rejected, match=r"holds 90 tokens, 100.0+7 tokens are needed"):
        client.market.post_job(terms(net, client.now()))
    with pytest.raises(Rejected, match=r"slotStake = 5 is out of bounds") as caught:
        client.market.post_job(terms(net, client.now(), slot_stake=5, budget=80 * TOKEN))
    assert caught.value.exit_code == 3
    _, job_id = client.market.post_job(terms(net, client.now(), budget=80 * TOKEN))
    assert job_id is not None
    poor = net.actor(131, stake=30 * TOKEN)
    with pytest.raises(Rejected, match=r"30 tokens of free stake and needs 40 tokens: deposit 10 tokens more"):
        poor.hot.market.claim_slot(job_id, 0)
    with pytest.raises(Rejected, match=r"slots 0 to 3, not 4"):
        poor.hot.market.claim_slot(job_id, 4)
    keyless = net.actor(132)
    with pytest.raises(Rejected, match="no hot key on chain"):
        keyless.hot.market.claim_slot(job_id, 0)
    with pytest.raises(Rejected, match="amount of 0"):
        poor.cold.vault.deposit(0)
