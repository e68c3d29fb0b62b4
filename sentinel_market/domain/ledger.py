"""One ledger, replayed from chain events: the same numbers for CLI, API and chain.

An event is a mapping ``{"name": "Deposited", "args": {"account": "0x...", "amount": 5}}`` with the argument names
of the contracts; anything else in it is ignored, as are events that move no money. ``Ledger.problems()`` lists
every identity that does not hold: an empty list means that each base unit is accounted for.

Per job and account: ``earned = claimed + claimable + pending``; what is claimable stands in an active root,
what is pending is earned from receipts, or stands in a root whose window is not over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sentinel_market.domain.merkle import address_bytes

Event = Mapping[str, Any]


@dataclass(slots=True)
class StakeAccount:
    """An account in the vault; amounts in base units."""

    account: str
    deposited: int = 0
    bonded: int = 0
    locked: int = 0
    """Part of ``bonded`` that answers for a duty."""
    unbonding: int = 0
    withdrawn: int = 0
    slashed: int = 0
    credits: int = 0
    credited: int = 0
    """All credits ever received, from slashes and from other accounts."""
    credits_sent: int = 0
    credits_withdrawn: int = 0
    banned: bool = False

    @property
    def stake(self) -> int:
        """bonded + unbonding."""
        return self.bonded + self.unbonding


@dataclass(slots=True)
class JobMoney:
    """The money of one job; amounts in base units."""

    job_id: int
    budget: int = 0
    promised: int = 0
    """Total of the newest root."""
    claimed: dict[str, int] = field(default_factory=dict)
    settled: bool = False
    paid: int = 0
    fee: int = 0
    refund: int = 0
    refunded: int = 0
    epoch: int = 0
    roots: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Epoch -> (total, second from which it is active)."""

    @property
    def claimed_total(self) -> int:
        """What all accounts have drawn."""
        return sum(self.claimed.values())

    def active_epoch(self, now: int) -> int:
        """Newest epoch whose root is active at second ``now``; 0 when there is none."""
        return max((epoch for epoch, (_, active_at) in self.roots.items() if active_at <= now), default=0)


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One account in one job; amounts in base units."""

    account: str
    earned: int
    pending: int
    claimable: int
    claimed: int
    slashed: int
    bonded: int
    unbonding: int
    credits: int
    banned: bool


class Ledger:
    """Applies events in chain order; never fails on one, but remembers what cannot be."""

    def __init__(self) -> None:
        self.accounts: dict[bytes, StakeAccount] = {}
        self.jobs: dict[int, JobMoney] = {}
        self.fees_withdrawn = 0
        self._broken: list[str] = []
        self._credits: list[tuple[str, str, int]] = []

    def replay(self, events: Iterable[Event]) -> Ledger:
        """Apply many events, then see to it that none is half done."""
        for event in events:
            self.apply(event)
        self._flush()
        return self

    def apply(self, event: Event) -> None:
        """Apply one event."""
        name, args = event["name"], event["args"]
        # ``StakeVault.slash`` credits right before ``Slashed``; other credits are handed over by their source.
        if name == "CreditAdded":
            self._credits.append((args["account"], args["source"], int(args["amount"])))
            return
        if name == "Slashed":
            self._slashed(args)
        self._flush()
        handler = _HANDLERS.get(name)
        if handler is not None:
            handler(self, args)

    def account(self, address: str) -> StakeAccount:
        """The account, new when it was not seen before."""
        key = address_bytes(address)
        if key not in self.accounts:
            self.accounts[key] = StakeAccount(address)
        return self.accounts[key]

    def job(self, job_id: int) -> JobMoney:
        """The job's money, new when it was not seen before."""
        return self.jobs.setdefault(job_id, JobMoney(job_id))

    def claimed(self, job_id: int, address: str) -> int:
        """What an account has drawn from a job, in base units."""
        return self.job(job_id).claimed.get(address.lower(), 0)

    def row(
        self,
        job_id: int,
        address: str,
        *,
        earned: int = 0,
        active: int = 0,
        promised: int = 0,
    ) -> LedgerRow:
        """One account in one job.

        ``earned`` comes from receipts, ``active`` is the account's leaf in the newest active root, ``promised``
        that in the newest root; all cumulative base units.
        """
        key = address_bytes(address)
        stake = self.accounts.get(key, StakeAccount(address))
        job = self.jobs.get(job_id, JobMoney(job_id))
        claimed = job.claimed.get(address.lower(), 0)
        claimable = max(0, active - claimed)
        total = max(earned, promised, claimed + claimable)
        return LedgerRow(
            account=stake.account,
            earned=total,
            pending=total - claimable - claimed,
            claimable=claimable,
            claimed=claimed,
            slashed=stake.slashed,
            bonded=stake.bonded,
            unbonding=stake.unbonding,
            credits=stake.credits,
            banned=stake.banned,
        )

    def problems(self) -> list[str]:
        """Every identity that does not hold; empty when all money is accounted for."""
        found = list(self._broken)
        for one in self.accounts.values():
            name = one.account
            if one.deposited != one.bonded + one.unbonding + one.withdrawn + one.slashed:
                found.append(f"{name}: deposited {one.deposited} is not bonded + unbonding + withdrawn + slashed")
            if one.credited != one.credits + one.credits_sent + one.credits_withdrawn:
                found.append(f"{name}: credited {one.credited} is not credits + sent + withdrawn")
            if not 0 <= one.locked <= one.bonded:
                found.append(f"{name}: locked {one.locked} of {one.bonded} bonded")
            if min(one.bonded, one.unbonding, one.credits) < 0:
                found.append(f"{name}: a balance below zero")
        slashed = sum(one.slashed for one in self.accounts.values())
        credits_ = sum(one.credits + one.credits_withdrawn for one in self.accounts.values())
        if slashed != credits_:
            found.append(f"slashed {slashed} in all, but {credits_} credited and not passed on")
        for job in self.jobs.values():
            found += _job_problems(job)
        return found

    def _slashed(self, args: Mapping[str, Any]) -> None:
        amount, controller = int(args["amount"]), str(args["controller"]).lower()
        left = amount
        while left > 0 and self._credits and self._credits[-1][1].lower() == controller:
            to, _, part = self._credits.pop()
            recipient = self.account(to)
            recipient.credits += part
            recipient.credited += part
            left -= part
        if left:
            self._broken.append(f"slash of {amount} at {args['account']}: {left} of it was credited to nobody")
        one = self.account(args["account"])
        one.bonded -= amount
        one.locked -= amount
        one.slashed += amount

    def _flush(self) -> None:
        """Credits that no slash explains were handed over by their source."""
        waiting, self._credits = self._credits, []
        for to, source, amount in waiting:
            giver, taker = self.account(source), self.account(to)
            giver.credits -= amount
            giver.credits_sent += amount
            taker.credits += amount
            taker.credited += amount


def _job_problems(job: JobMoney) -> list[str]:
    found = []
    name = f"job {job.job_id}"
    if job.claimed_total > job.promised:
        found.append(f"{name}: claimed {job.claimed_total} of {job.promised} promised")
    if job.promised > job.budget:
        found.append(f"{name}: promised {job.promised} of a budget of {job.budget}")
    if job.settled:
        if job.paid + job.fee + job.refund != job.budget:
            found.append(f"{name}: paid {job.paid} + fee {job.fee} + refund {job.refund} is not {job.budget}")
        if job.paid != job.promised:
            found.append(f"{name}: paid {job.paid}, but the last root promised {job.promised}")
    if job.refunded > (job.refund if job.settled else job.budget):
        found.append(f"{name}: refunded {job.refunded}, due {job.refund}")
    return found


# ----------------------------------------------------------------------------------------------------------
# Events


def _deposited(ledger: Ledger, args: Mapping[str, Any]) -> None:
    one = ledger.account(args["account"])
    one.deposited += int(args["amount"])
    one.bonded += int(args["amount"])


def _unbond_requested(ledger: Ledger, args: Mapping[str, Any]) -> None:
    one = ledger.account(args["account"])
    one.bonded -= int(args["amount"])
    one.unbonding += int(args["amount"])


def _unbond_cancelled(ledger: Ledger, args: Mapping[str, Any]) -> None:
    one = ledger.account(args["account"])
    one.unbonding -= int(args["amount"])
    one.bonded += int(args["amount"])


def _withdrawn(ledger: Ledger, args: Mapping[str, Any]) -> None:
    one = ledger.account(args["account"])
    one.unbonding -= int(args["amount"])
    one.withdrawn += int(args["amount"])


def _credit_withdrawn(ledger: Ledger, args: Mapping[str, Any]) -> None:
    one = ledger.account(args["account"])
    one.credits -= int(args["amount"])
    one.credits_withdrawn += int(args["amount"])


def _lock_created(ledger: Ledger, args: Mapping[str, Any]) -> None:
    ledger.account(args["account"]).locked += int(args["amount"])


def _lock_released(ledger: Ledger, args: Mapping[str, Any]) -> None:
    ledger.account(args["account"]).locked -= int(args["amount"])


def _banned(ledger: Ledger, args: Mapping[str, Any]) -> None:
    ledger.account(args["account"]).banned = True


def _job_funded(ledger: Ledger, args: Mapping[str, Any]) -> None:
    ledger.job(int(args["jobId"])).budget += int(args["budget"])


def _settlement(ledger: Ledger, args: Mapping[str, Any]) -> None:
    job = ledger.job(int(args["jobId"]))
    epoch, total = int(args["epoch"]), int(args["totalCumulative"])
    if epoch <= job.epoch or total < job.promised:
        ledger._broken.append(f"job {job.job_id}: root of epoch {epoch} over {total} after {job.epoch}, {job.promised}")
    job.epoch, job.promised = epoch, total
    job.roots[epoch] = (total, int(args["activeAt"]))


def _pay_claimed(ledger: Ledger, args: Mapping[str, Any]) -> None:
    job, account = ledger.job(int(args["jobId"])), str(args["account"]).lower()
    total = job.claimed.get(account, 0) + int(args["amount"])
    job.claimed[account] = total
    if total != int(args["cumulative"]):
        ledger._broken.append(f"job {job.job_id}: {account} drew {total}, the chain says {args['cumulative']}")


def _money_settled(ledger: Ledger, args: Mapping[str, Any]) -> None:
    job = ledger.job(int(args["jobId"]))
    job.settled = True
    job.paid, job.fee, job.refund = int(args["paid"]), int(args["fee"]), int(args["refund"])


def _refunded(ledger: Ledger, args: Mapping[str, Any]) -> None:
    ledger.job(int(args["jobId"])).refunded += int(args["amount"])


def _fees_withdrawn(ledger: Ledger, args: Mapping[str, Any]) -> None:
    ledger.fees_withdrawn += int(args["amount"])


_HANDLERS = {
    "Deposited": _deposited,
    "UnbondRequested": _unbond_requested,
    "UnbondCancelled": _unbond_cancelled,
    "Withdrawn": _withdrawn,
    "CreditWithdrawn": _credit_withdrawn,
    "LockCreated": _lock_created,
    "LockReleased": _lock_released,
    "AccountBanned": _banned,
    "JobFunded": _job_funded,
    "SettlementSubmitted": _settlement,
    "PayClaimed": _pay_claimed,
    "JobMoneySettled": _money_settled,
    "Refunded": _refunded,
    "FeesWithdrawn": _fees_withdrawn,
}
