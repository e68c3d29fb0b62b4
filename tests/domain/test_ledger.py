"""The ledger replays events to exact balances, and says when money is not accounted for."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel_market.domain.ledger import Ledger


def event(name: str, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args}


def address(number: int) -> str:
    return f"0x{number:040x}"


MARKET, COURT, TREASURY = address(1000), address(1001), address(1002)


def slash(account: str, controller: str, parts: list[tuple[str, int]]) -> list[dict[str, Any]]:
    credits_ = [event("CreditAdded", account=to, source=controller, amount=part) for to, part in parts]
    total = sum(part for _, part in parts)
    return [*credits_, event("Slashed", lockId=1, account=account, controller=controller, amount=total)]


def test_slash_credits_and_handed_over_credits_are_told_apart() -> None:
    a, b = address(1), address(2)
    ledger = Ledger().replay(
        [
            event("Deposited", account=a, amount=100),
            event("LockCreated", lockId=1, account=a, controller=MARKET, amount=80),
            *slash(a, MARKET, [(COURT, 12), (TREASURY, 28)]),
            event("CreditAdded", account=b, source=COURT, amount=12),  # the court hands the reward on
            *slash(a, COURT, [(b, 4)]),  # a slash by the court itself
            event("AccountBanned", account=a, controller=MARKET),
            event("LockReleased", lockId=1, account=a, amount=36),
            event("CreditWithdrawn", account=b, amount=10),
        ]
    )
    assert ledger.problems() == []
    assert (ledger.account(a).bonded, ledger.account(a).locked, ledger.account(a).slashed) == (56, 0, 44)
    assert ledger.account(COURT).credits == 0
    assert (ledger.account(b).credits, ledger.account(b).credited) == (6, 16)
    assert ledger.account(TREASURY).credits == 28
    assert ledger.account(a).banned


def test_a_slash_that_credits_nobody_is_reported() -> None:
    ledger = Ledger().replay(
        [
            event("Deposited", account=address(1), amount=10),
            event("LockCreated", lockId=1, account=address(1), controller=MARKET, amount=10),
            event("Slashed", lockId=1, account=address(1), controller=MARKET, amount=5),
        ]
    )
    assert any("credited to nobody" in problem for problem in ledger.problems())


def test_the_money_of_a_job() -> None:
    a = "0x" + "Ab" * 20
    ledger = Ledger().replay(
        [
            event("JobFunded", jobId=1, submitter=address(9), budget=1000),
            event(
                "SettlementSubmitted", jobId=1, epoch=1, root=b"", totalCumulative=300, stepRecordHash=b"", activeAt=50
            ),
            event(
                "SettlementSubmitted", jobId=1, epoch=2, root=b"", totalCumulative=500, stepRecordHash=b"", activeAt=60
            ),
            event("PayClaimed", jobId=1, account=a, amount=120, cumulative=120),
            event("PayClaimed", jobId=1, account=a.lower(), amount=30, cumulative=150),
        ]
    )
    job = ledger.job(1)
    assert (job.active_epoch(49), job.active_epoch(50), job.active_epoch(99)) == (0, 1, 2)
    row = ledger.row(1, a, earned=400, active=200, promised=300)
    assert (row.earned, row.claimed, row.claimable, row.pending) == (400, 150, 50, 200)
    assert ledger.problems() == []
    ledger.replay(
        [
            event("JobMoneySettled", jobId=1, paid=500, fee=10, refund=490),
            event("Refunded", jobId=1, submitter=address(9), amount=490),
        ]
    )
    assert ledger.problems() == []


def test_money_that_does_not_add_up_is_named() -> None:
    funded = event("JobFunded", jobId=1, submitter=address(9), budget=1000)
    bad = [
        [funded, event("JobMoneySettled", jobId=1, paid=0, fee=10, refund=989)],
        [funded, event("PayClaimed", jobId=1, account=address(1), amount=1, cumulative=1)],
        [event("Withdrawn", account=address(1), id=0, amount=4)],
        [event("LockCreated", lockId=1, account=address(1), controller=MARKET, amount=1)],
        [funded, event("Refunded", jobId=1, submitter=address(9), amount=1001)],
    ]
    for events in bad:
        assert Ledger().replay(events).problems()


amounts = st.integers(0, 10**24)
people = st.integers(1, 4).map(address)
deeds = st.tuples(
    st.sampled_from(["deposit", "unbond", "cancel", "withdraw", "lock", "release", "slash", "handover", "draw"]),
    people,
    people,
    amounts,
)


@given(st.lists(deeds, max_size=60))
@settings(max_examples=80, deadline=None)
def test_any_legal_history_conserves_every_base_unit(history: list[tuple[str, str, str, int]]) -> None:
    """A model vault decides what is legal; the ledger sees only the events."""
    bonded, locked, unbonding, credits_ = ({address(n): 0 for n in range(1, 5)} for _ in range(4))
    credits_ |= {COURT: 0, TREASURY: 0}
    events: list[dict[str, Any]] = []
    deposited = withdrawn = 0
    for deed, who, other, asked in history:
        free = bonded[who] - locked[who]
        if deed == "deposit":
            bonded[who] += asked
            deposited += asked
            events.append(event("Deposited", account=who, amount=asked))
        elif deed == "unbond":
            amount = min(asked, free)
            bonded[who] -= amount
            unbonding[who] += amount
            events.append(event("UnbondRequested", account=who, id=0, amount=amount, maturesAt=0))
        elif deed == "cancel":
            amount = min(asked, unbonding[who])
            unbonding[who] -= amount
            bonded[who] += amount
            events.append(event("UnbondCancelled", account=who, id=0, amount=amount))
        elif deed == "withdraw":
            amount = min(asked, unbonding[who])
            unbonding[who] -= amount
            withdrawn += amount
            events.append(event("Withdrawn", account=who, id=0, amount=amount))
        elif deed == "lock":
            amount = min(asked, free)
            locked[who] += amount
            events.append(event("LockCreated", lockId=0, account=who, controller=MARKET, amount=amount))
        elif deed == "release":
            amount = min(asked, locked[who])
            locked[who] -= amount
            events.append(event("LockReleased", lockId=0, account=who, amount=amount))
        elif deed == "slash":
            amount = min(asked, locked[who])
            parts = [(COURT, amount // 3), (other, amount // 4), (TREASURY, amount - amount // 3 - amount // 4)]
            parts = [(to, part) for to, part in parts if part]
            locked[who] -= amount
            bonded[who] -= amount
            for to, part in parts:
                credits_[to] += part
            events += slash(who, MARKET, parts)
        elif deed == "handover":
            amount = min(asked, credits_[COURT])
            credits_[COURT] -= amount
            credits_[other] += amount
            events.append(event("CreditAdded", account=other, source=COURT, amount=amount))
        else:
            amount = min(asked, credits_[who])
            credits_[who] -= amount
            withdrawn += amount
            events.append(event("CreditWithdrawn", account=who, amount=amount))
    ledger = Ledger().replay(events)
    assert ledger.problems() == []
    for who in bonded:
        one = ledger.account(who)
        assert (one.bonded, one.locked, one.unbonding, one.credits) == (
            bonded[who],
            locked[who],
            unbonding[who],
            credits_[who],
        )
    held = sum(one.stake + one.credits for one in ledger.accounts.values())
    assert deposited == held + withdrawn
