"""Draws, the ledger of seats, and what it takes from their pay."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel_market.domain.cross_audit import (
    CHARGED_AUDITS,
    LAG,
    MISS_WINDOW,
    Draw,
    Effect,
    Fault,
    FaultKind,
    Ledger,
    Outcome,
    Said,
    Standing,
    auditor_of,
    effect_of,
    is_drawn,
    secret_hash,
    seed_of,
    update_subject,
)
from sentinel_market.domain.step_record import NONE

SEATS = ("0x" + "aa" * 20, "0x" + "bb" * 20, "0x" + "cc" * 20)
ALL = (1_000_000, 1_000_000)
SUBJECT = b"s" * 32


def secret(account: str, step: int) -> bytes:
    return (account + str(step)).encode()[-32:].rjust(32, b"0")


def leaf(account: str, step: int, number: int) -> bytes:
    return f"{account[-2:]}-{step}-{number}".encode().rjust(32, b".")


def said(account: str, step: int, **changes: object) -> Said:
    """What an honest seat says of a step with four frames."""
    one = Said(
        root=leaf(account, step, 99),
        leaves=tuple(leaf(account, step, number) for number in range(4)),
        secret_hash=secret_hash(secret(account, step)),
        next_secret_hash=secret_hash(secret(account, step + 1)),
        secrets=tuple(secret(seat, step - 1) for seat in SEATS) if step else (),
    )
    return replace(one, **changes)  # type: ignore[arg-type]


def ledger() -> Ledger:
    return Ledger(1, SEATS, (SEATS[0], SEATS[1]))


def run(book: Ledger, steps: range, **changes: dict[str, object]) -> None:
    """``changes``: seat letter -> what it says instead, in every one of these steps."""
    for step in steps:
        book.take(step, {seat: said(seat, step, **changes.get(seat[-1], {})) for seat in SEATS}, ALL)


def test_the_draws_of_a_step_are_known_when_the_next_record_is() -> None:
    book = ledger()
    run(book, range(1))
    assert book.draws == {}
    run(book, range(1, 2))
    draws = book.draws[0]
    assert {draw.subject for draw in draws if draw.stage is None} == {leaf(s, 0, n) for s in SEATS for n in range(4)}
    assert [draw.stage for draw in draws if draw.stage is not None] == [0, 1]
    assert all(draw.auditor != draw.accused and draw.auditor in SEATS for draw in draws)
    assert not book.faults


def test_nobody_can_know_the_draws_before_the_secrets_are_out() -> None:
    rows = [(seat, SUBJECT, secret(seat, 0)) for seat in SEATS]
    seeds = {seed_of(1, 0, rows), seed_of(2, 0, rows), seed_of(1, 1, rows)}
    for index in range(3):
        other = list(rows)
        other[index] = (rows[index][0], rows[index][1], b"x" * 32)
        seeds.add(seed_of(1, 0, other))
    assert len(seeds) == 6


@settings(deadline=None)
@given(st.integers(0, 1_000_000))
def test_the_share_of_draws(share: int) -> None:
    drawn = sum(is_drawn(SUBJECT, number.to_bytes(32, "big"), share) for number in range(500))
    assert abs(drawn - share / 2000) <= 5 * (500 * 0.25) ** 0.5
    assert is_drawn(SUBJECT, SUBJECT, 1_000_000) and not is_drawn(SUBJECT, SUBJECT, 0)


def test_each_other_seat_audits_its_part() -> None:
    found = [auditor_of(SUBJECT, number.to_bytes(32, "big"), SEATS[1:]) for number in range(200)]
    assert 60 < found.count(SEATS[1]) < 140


def test_a_secret_that_somebody_heard_is_revealed() -> None:
    """A seat cannot tell it to one peer only: what any honest seat heard is in the record."""
    book = ledger()
    run(book, range(1))
    only_a = {"secrets": (secret(SEATS[0], 0), secret(SEATS[1], 0), b"")}
    book.take(1, {s: said(s, 1, **(only_a if s != SEATS[1] else {})) for s in SEATS}, ALL)
    other = ledger()
    run(other, range(2))
    assert book.draws == other.draws and not book.faults


@pytest.mark.parametrize("told", [b"", b"y" * 32])
def test_a_secret_that_was_not_told_or_is_another_is_a_fault(told: bytes) -> None:
    book = ledger()
    run(book, range(1))
    secrets = (secret(SEATS[0], 0), secret(SEATS[1], 0), told)
    book.take(1, {s: said(s, 1, secrets=secrets) for s in SEATS}, ALL)
    assert list(book.faults) == [Fault(FaultKind.UNREVEALED, SEATS[2], 0, NONE)]
    assert book.draws[0], "the seed is made of the rest"


def test_a_broken_promise_is_a_fault() -> None:
    book = ledger()
    run(book, range(1))
    run(book, range(1, 2), c={"secret_hash": secret_hash(b"z" * 32)})
    assert list(book.faults) == [Fault(FaultKind.UNREVEALED, SEATS[2], 0, NONE)]


def test_only_the_drawn_auditor_is_paid_and_only_once() -> None:
    book = ledger()
    run(book, range(2))
    draw = next(d for d in book.draws[0] if d.auditor == SEATS[0])
    row = (0, draw.subject, int(Outcome.AGREES))
    run(book, range(2, 3), a={"audited": (row, row)}, b={"audited": (row, (0, SUBJECT, 0))})
    run(book, range(3, 4), a={"audited": (row,)})
    assert book.audited == {SEATS[0]: 1}


def test_an_audit_that_was_not_served_is_not_paid() -> None:
    book = ledger()
    run(book, range(2))
    draw = next(d for d in book.draws[0] if d.auditor == SEATS[0])
    run(book, range(2, 3), a={"audited": ((0, draw.subject, int(Outcome.UNSERVED)),)})
    assert book.audited == {}


def test_after_the_last_step_no_secret_is_due() -> None:
    book = ledger()
    run(book, range(3))
    end = Said(root=NONE, leaves=(), secret_hash=b"", next_secret_hash=b"", secrets=())
    for step in range(3, 3 + LAG):
        secrets = tuple(secret(seat, 2) for seat in SEATS) if step == 3 else ()
        book.take(step, {seat: replace(end, secrets=secrets) for seat in SEATS}, ALL)
    assert not book.faults
    assert any(draw.subject == leaf(SEATS[0], 2, 0) for draw in book.draws[2])


def test_steps_are_taken_in_order() -> None:
    with pytest.raises(ValueError, match="after that of step -1"):
        run(ledger(), range(1, 2))


def test_misses_lose_the_seat_within_the_window_only() -> None:
    def after(*faults: Fault, steps: int) -> str | None:
        book = ledger()
        run(book, range(1), a={"faults": faults})
        run(book, range(1, steps))
        return book.lost()

    misses = [Fault(FaultKind.UNSERVED_FRAME, SEATS[2], 0, bytes([n]) * 32) for n in range(3)]
    assert after(*misses, steps=2) == SEATS[2]
    assert after(*misses[:2], steps=2) is None
    assert after(*misses, steps=MISS_WINDOW + 2) is None
    assert after(Fault(FaultKind.WRONG_UPDATE, SEATS[1], 0, SUBJECT), steps=2) == SEATS[1]
    alarms = [Fault(FaultKind.FALSE_ALARM, SEATS[2], 0, bytes([n]) * 32) for n in range(9)]
    assert after(*alarms, steps=2) is None


def test_what_faults_take_from_the_pay() -> None:
    def of(*kinds: tuple[FaultKind, int, bytes]) -> Effect:
        return effect_of([Fault(kind, SEATS[0], step, subject) for kind, step, subject in kinds], 4)

    frame = FaultKind.UNSERVED_FRAME
    assert of() == Effect(0, 0)
    assert of((frame, 3, b"a"), (frame, 3, b"b")) == Effect(2, 0)
    assert of(*((frame, 3, bytes([n])) for n in range(9))) == Effect(4, 0), "no more than it drove"
    assert of((FaultKind.UNREVEALED, 3, NONE), (frame, 3, b"a"), (frame, 4, b"a")) == Effect(5, 0)
    assert of((FaultKind.FALSE_ALARM, 3, b"a"), (FaultKind.FALSE_ALARM, 3, b"b")) == Effect(4, 0)
    assert of((FaultKind.LAZY_AUDIT, 3, b"a"), (FaultKind.RUBBER_STAMP, 9, b"a")) == Effect(0, 2 * CHARGED_AUDITS)


def test_the_standing_of_a_seat_counts_draws_audits_and_faults() -> None:
    book = ledger()
    run(book, range(2))
    mine = [draw for draw in book.draws[0] if draw.auditor == SEATS[0]]
    told = tuple((0, draw.subject, int(Outcome.AGREES)) for draw in mine[:1])
    late, early = (Fault(FaultKind.FALSE_ALARM, SEATS[0], step, SUBJECT) for step in (1, 0))
    run(book, range(2, 3), a={"audited": told}, b={"faults": (late, early)})
    again = Fault(FaultKind.LAZY_AUDIT, SEATS[0], 0, SUBJECT)
    run(book, range(3, 4), b={"faults": (again, early)})
    one = book.standing(SEATS[0], 2)
    draws = [draw for drawn in book.draws.values() for draw in drawn]
    assert one == Standing(
        SEATS[0],
        drawn=sum(draw.accused == SEATS[0] for draw in draws),
        audits_due=sum(draw.auditor == SEATS[0] for draw in draws),
        audits_done=1,
        faults=((early, 2), (late, 2), (again, 3)),
        effect=Effect(4, CHARGED_AUDITS),
    )
    assert one.drawn == 3 * 5, "three steps: four frames and an update in each"
    assert book.due == Counter(draw.auditor for draw in draws) != book.drawn
    for _ in range(LAG + 2):
        run(book, range(book.step + 1, book.step + 2))
    later = book.standing(SEATS[0], 2)
    assert later.drawn == book.step * 5, "what is forgotten of old draws stays counted"
    assert book.standing(SEATS[1], 2).faults == ()
    assert sum(book.drawn.values()) == sum(book.due.values())


def test_the_record_binds_all_that_is_said() -> None:
    base = said(SEATS[0], 1)
    fault = Fault(FaultKind.LAZY_AUDIT, SEATS[1], 0, SUBJECT)
    others = [
        replace(base, secret_hash=SUBJECT),
        replace(base, secrets=base.secrets[:2]),
        replace(base, audited=((0, SUBJECT, 0),)),
        replace(base, audited=((0, SUBJECT, 3),)),
        replace(base, faults=(fault,)),
        replace(base, faults=(replace(fault, step=1),)),
    ]
    assert len({one.digest() for one in [base, *others]}) == len(others) + 1
    assert update_subject(1, 2) != update_subject(2, 1)
    assert Draw(1, SUBJECT, SEATS[0], SEATS[1]).stage is None
