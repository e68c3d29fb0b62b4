"""Who audits whom after a step, and what seats are found to have done: pure functions of what all seats said.

The seats' roots of step t and the secrets that they committed to with them give a seed that nobody could know while
the step ran; it draws frames and updates, and for each a seat to look at it (``protocol.md``, "Who checks an ACCEPT").
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from sentinel_market.domain.step_record import NONE, digest_rows

PPM: Final = 1_000_000
CHARGED_AUDITS: Final = 10
"""What a rubber stamp or a lazy audit costs, in prices of a recompute: both were done to save a few of them."""
LAG: Final = 3
"""Steps after which nothing more is found out about a step: the record of t + 1 holds the secrets of t, that of t + 2
what was found, that of t + 3 what took longer."""
MOST_MISSES: Final = 3
"""So many misses within ``MISS_WINDOW`` steps lose the seat."""
MISS_WINDOW: Final = 100


class FaultKind(IntEnum):
    """What a seat can be found to have done. The number is part of what is signed."""

    UNSERVED_FRAME = 1
    """A drawn frame was not served in time, or what was served does not hold together."""
    UNSERVED_UPDATE = 2
    """The same of a stage's sums and optimizer state."""
    UNREVEALED = 3
    """The secret was not revealed with the record, or is not the one that was promised."""
    WRONG_UPDATE = 4
    """The new weights are not those that the sums, the rule and the optimizer give."""
    RUBBER_STAMP = 5
    """It agreed to an accusation that its own recompute refutes."""
    FALSE_ALARM = 6
    """It asked for signatures under an accusation that a quorum's recompute refutes."""
    LAZY_AUDIT = 7
    """Its proof of a cross-audit is not what the recompute gives."""


MISSES: Final = frozenset(FaultKind) - {FaultKind.FALSE_ALARM}
"""Kinds that count towards the loss of the seat: a false alarm can be an honest mistake at a numeric edge."""


class Outcome(IntEnum):
    """What an auditor says of a draw."""

    AGREES = 0
    UNCLEAR = 1
    """At a numeric edge, or the slot has changed hands."""
    UNSERVED = 2
    WRONG = 3


@dataclass(frozen=True, slots=True)
class Draw:
    """Something to be looked at again. ``subject``: 32 bytes that name it; ``accused``: the account of the seat that
    answers for it; ``stage``: of an update, None for a frame (whose stage is known when it is served)."""

    step: int
    subject: bytes
    accused: str
    auditor: str
    stage: int | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of a seat's public record. ``step``: in which it was done."""

    kind: FaultKind
    seat: str
    step: int
    subject: bytes


@dataclass(frozen=True, slots=True)
class Said:
    """What one seat said with its last ``Done`` of a step. ``secrets``: those of the step before as it heard them, in
    seat order, b"" where none. ``audited``: (step, subject, outcome). ``faults``: certified by q seats."""

    root: bytes
    leaves: tuple[bytes, ...]
    secret_hash: bytes
    next_secret_hash: bytes
    secrets: tuple[bytes, ...]
    audited: tuple[tuple[int, bytes, int], ...] = ()
    faults: tuple[Fault, ...] = ()

    def digest(self) -> bytes:
        """What the step record binds of it beside the root."""
        rows: list[tuple[int | bytes | str, ...]] = [("secret", self.secret_hash)]
        rows += [("revealed", secret) for secret in self.secrets]
        rows += [("audited", *one) for one in sorted(self.audited)]
        rows += [("fault", int(f.kind), f.seat, f.step, f.subject) for f in sorted(self.faults, key=_order)]
        return digest_rows("findings", rows)


def _order(fault: Fault) -> tuple[int, str, int, bytes]:
    return int(fault.kind), fault.seat, fault.step, fault.subject


def update_subject(step: int, stage: int) -> bytes:
    """Names the update of a stage in a step."""
    return digest_rows("update", [(step, stage)])


def seed_of(job_id: int, step: int, rows: Iterable[tuple[str, bytes, bytes]]) -> bytes:
    """From (account, root, revealed secret or b"") in seat order: known to nobody before all roots are in."""
    return digest_rows("cross-audit", [(job_id, step), *rows])


def secret_hash(secret: bytes) -> bytes:
    """What a seat promises of a secret, a step ahead."""
    return hashlib.sha256(b"cross-audit secret" + secret).digest()


def _number(purpose: bytes, seed: bytes, subject: bytes) -> int:
    return int.from_bytes(hashlib.sha256(purpose + seed + subject).digest()[:8], "big")


def is_drawn(seed: bytes, subject: bytes, share_ppm: int) -> bool:
    """Whether the seed draws this subject, at a share in parts per million."""
    return _number(b"cross-audit draw", seed, subject) * PPM < share_ppm << 64


def auditor_of(seed: bytes, subject: bytes, others: Sequence[str]) -> str:
    """Which of the other seats looks at it."""
    return others[_number(b"cross-audit seat", seed, subject) % len(others)]


@dataclass(frozen=True, slots=True)
class Effect:
    """What the record of a seat takes from its pay: microbatches whose relaying is not paid, recomputes charged."""

    voided: int = 0
    charged: int = 0


def effect_of(faults: Iterable[Fault], microbatches: int) -> Effect:
    """``faults`` of one seat, which drives ``microbatches`` a step. An unserved frame is its own microbatch; whoever
    does not reveal, hides an update, or accuses falsely (others had to repeat the work) is not paid for that step."""
    steps, frames, charged = set(), set(), 0
    for fault in faults:
        if fault.kind in (FaultKind.RUBBER_STAMP, FaultKind.LAZY_AUDIT):
            charged += CHARGED_AUDITS
        elif fault.kind is FaultKind.UNSERVED_FRAME:
            frames.add((fault.step, fault.subject))
        else:
            steps.add(fault.step)
    single: dict[int, int] = {}
    for step, _ in frames:
        single[step] = min(single.get(step, 0) + 1, microbatches)
    return Effect(sum(n for step, n in single.items() if step not in steps) + microbatches * len(steps), charged)


@dataclass(frozen=True, slots=True)
class Standing:
    """One seat's public record: ``drawn`` of its frames and updates were drawn, it was auditor of ``audits_due`` draws
    and told of ``audits_done``. ``faults``: each with the step whose record says so, in that order."""

    account: str
    drawn: int
    audits_due: int
    audits_done: int
    faults: tuple[tuple[Fault, int], ...]
    effect: Effect


@dataclass
class Ledger:
    """Everything that records have said of the seats, fed a step at a time and in order. The same for every seat.

    ``accounts`` in seat order; ``primaries``: stage -> account.
    """

    job_id: int
    accounts: tuple[str, ...]
    primaries: tuple[str, ...]
    draws: dict[int, tuple[Draw, ...]] = field(default_factory=dict)
    faults: dict[Fault, int] = field(default_factory=dict)
    """Fault -> the step whose record says so."""
    audited: dict[str, int] = field(default_factory=dict)
    """Account -> cross-audits that it was drawn for, did and told."""
    drawn: dict[str, int] = field(default_factory=dict)
    """Account -> its frames and updates that were drawn."""
    due: dict[str, int] = field(default_factory=dict)
    """Account -> draws that it was to audit."""
    step: int = -1
    _before: dict[str, Said] = field(default_factory=dict)
    _answered: set[tuple[str, bytes]] = field(default_factory=set)

    def take(self, step: int, said: Mapping[str, Said], shares: tuple[int, int]) -> tuple[Draw, ...]:
        """The record of ``step`` is final. ``shares``: of frames and updates that are drawn of the step before. Returns
        the draws of the step before, which are now known to all."""
        if step != self.step + 1:
            raise ValueError(f"the record of step {step} comes after that of step {self.step}")
        if any(before.secret_hash for before in self._before.values()):
            self._reveal(step, said, shares)
        known = {draw.subject: draw for draws in self.draws.values() for draw in draws}
        for account, one in said.items():
            for at, subject, outcome in one.audited:
                draw = known.get(subject)
                if draw is None or draw.auditor != account or draw.step != at or (account, subject) in self._answered:
                    continue
                self._answered.add((account, subject))
                if outcome != Outcome.UNSERVED:
                    self.audited[account] = self.audited.get(account, 0) + 1
            for fault in one.faults:
                self.faults.setdefault(fault, step)
        self._before, self.step = dict(said), step
        for old in [old for old in self.draws if old < step - LAG]:
            self._answered -= {(draw.auditor, draw.subject) for draw in self.draws.pop(old)}
        return self.draws.get(step - 1, ())

    def _reveal(self, step: int, said: Mapping[str, Said], shares: tuple[int, int]) -> None:
        rows = []
        for index, account in enumerate(self.accounts):
            before, now = self._before[account], said[account]
            told = {one.secrets[index] for one in said.values() if index < len(one.secrets)}
            right = sorted(s for s in told if s and secret_hash(s) == before.secret_hash)
            secret = right[0] if right else b""
            # After the last step there are findings and no more secrets.
            broken = now.secret_hash not in (b"", before.next_secret_hash)
            if not secret or broken:
                self.faults.setdefault(Fault(FaultKind.UNREVEALED, account, step - 1, NONE), step)
            rows.append((account, before.root, secret))
        seed = seed_of(self.job_id, step - 1, rows)
        self.draws[step - 1] = tuple(self._drawn(step - 1, seed, shares))
        for draw in self.draws[step - 1]:
            self.drawn[draw.accused] = self.drawn.get(draw.accused, 0) + 1
            self.due[draw.auditor] = self.due.get(draw.auditor, 0) + 1

    def _drawn(self, step: int, seed: bytes, shares: tuple[int, int]) -> Iterable[Draw]:
        frames, updates = shares
        if len(self.accounts) < 2:
            return
        for account in self.accounts:
            others = [other for other in self.accounts if other != account]
            for leaf in self._before[account].leaves:
                if is_drawn(seed, leaf, frames):
                    yield Draw(step, leaf, account, auditor_of(seed, leaf, others))
        for stage, account in enumerate(self.primaries):
            subject = update_subject(step, stage)
            if is_drawn(seed, subject, updates):
                others = [other for other in self.accounts if other != account]
                yield Draw(step, subject, account, auditor_of(seed, subject, others), stage)

    def misses(self, account: str) -> list[Fault]:
        """What counts towards the loss of its seat, by step: in the window that ends now."""
        found = [f for f, at in self.faults.items() if f.seat == account and f.kind in MISSES]
        return sorted((f for f in found if f.step > self.step - MISS_WINDOW), key=lambda f: (f.step, f.kind))

    def standing(self, account: str, microbatches: int) -> Standing:
        """The public record of a seat that drives ``microbatches`` a step. Equal ledgers give equal standings."""
        found = [(fault, at) for fault, at in self.faults.items() if fault.seat == account]
        return Standing(
            account,
            self.drawn.get(account, 0),
            self.due.get(account, 0),
            self.audited.get(account, 0),
            tuple(sorted(found, key=lambda one: (one[1], one[0].step, one[0].kind, one[0].subject))),
            effect_of((fault for fault, _ in found), microbatches),
        )

    def lost(self) -> str | None:
        """The first account in seat order that has lost its seat: by misses, or by one wrong update."""
        for account in self.accounts:
            misses = self.misses(account)
            if len(misses) >= MOST_MISSES or any(f.kind is FaultKind.WRONG_UPDATE for f in misses):
                return account
        return None
