"""Units, receipts and settlement roots: what a seat owes the workers, and what all seats put before the escrow."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from sentinel_market.chain.eip712 import keccak256
from sentinel_market.domain import assignment
from sentinel_market.domain.cross_audit import LAG, Effect, Ledger
from sentinel_market.domain.messages import JobFinish, Settlement, WorkReceipt
from sentinel_market.domain.quote import QuoteParams
from sentinel_market.domain.settlement import Amounts, Receipt, SeatWork, settle
from sentinel_market.errors import PeerGone, ProtocolError
from sentinel_market.ports import Escrow, Money, SlotInfo
from sentinel_market.wire import relay_pb2 as pb
from verifier.context import SeatContext
from verifier.peers import Peers

log = logging.getLogger("verifier")

MOST_PASSES = 5
"""Passes that a stage can cost a microbatch in a step in which no sum is dropped and no worker fails: its forward and
one replay of it; its backward and one replay of that, which makes its own forward first. (LOSS is 2, its replay 2.)
Each other replica may besides do that forward anew and then fail the backward. What the plan pays is 2."""
KEPT_STEPS = 2 * LAG
"""Receipts of so many steps are kept beside the newest: an offence that is found out later voids what came after it."""
EXTRA_ROOTS = 1000
"""Roots beyond one a step that a seat may ask to be repaid: the last ones wait for the rate cap."""


@dataclass(frozen=True)
class _Record:
    """What the records say of a seat: cross-audits that are paid, microbatches and recomputes that are not."""

    audited: int = 0
    effect: Effect = field(default_factory=Effect)


@dataclass(frozen=True)
class _Owed:
    """Receipts as they stood at the end of an epoch, offences and records as they stood when its audits were done."""

    receipts: list[Receipt]
    offences: dict[tuple[int, int], int]
    records: dict[str, _Record]


@dataclass(frozen=True)
class Refused:
    """A receipt that is not counted. ``false``: its seat did not sign it, so it lies; else it may count later."""

    slot: int
    nonce: int
    units: int
    reason: str
    false: bool = False


@dataclass(frozen=True)
class Settled:
    """A root that the escrow took."""

    epoch: int
    step: int
    root: bytes
    record_hash: bytes
    amounts: Amounts
    transaction: str


@dataclass
class Payroll:
    """Cumulative, like the receipts: own units here, and the newest receipts of every other seat."""

    context: SeatContext
    params: QuoteParams
    escrow: Escrow
    units: dict[tuple[int, int], int] = field(default_factory=dict)
    """(slot, nonce) -> passes that this seat accepted"""
    receipts: dict[tuple[str, int, int], list[Receipt]] = field(default_factory=dict)
    """(verifier, slot, nonce) -> receipts of the last steps, the newest last"""
    accepted: dict[str, int] = field(default_factory=dict)
    """verifier -> passes that it has put under its driver roots so far"""
    dropped: dict[str, int] = field(default_factory=dict)
    """verifier -> sums dropped in the steps that it signed: each is made again elsewhere"""
    works: dict[str, SeatWork] = field(default_factory=dict)
    offences: dict[tuple[int, int], int] = field(default_factory=dict)
    driven: int = 0
    recomputes: int = 0
    reports: int = 0
    executions: int = 0
    settlements: int = 0
    _frozen: dict[int, list[Receipt]] = field(default_factory=dict)
    _owed: dict[int, _Owed] = field(default_factory=dict)
    _latest: int = 0
    _signed: list[Amounts] = field(default_factory=list)
    holders: dict[tuple[int, int], str] = field(default_factory=dict)
    """(slot, nonce) -> account, past holders included"""

    def __post_init__(self) -> None:
        self.meet(self.context.slots.values())

    def meet(self, slots: Iterable[SlotInfo]) -> None:
        """Remember who holds what; a holder that left keeps its pay."""
        for slot in slots:
            if int(slot.hot_key, 16):
                self.holders[slot.slot, slot.nonce] = slot.account

    def knows(self, message: pb.RecordSignature) -> bool:
        return all((entry.slot, entry.nonce) in self.holders for entry in message.units)

    # ---- receipts

    def close_step(self, step: int, units: Mapping[int, int], barred: set[int]) -> list[pb.SlotUnits]:
        """Add the step's units and sign receipts for everybody who got work; a convict's step is not counted."""
        signed = []
        for slot, passes in sorted(units.items()):
            if slot in barred:
                continue
            nonce = self.context.slots[slot].nonce
            key = (slot, nonce)
            self.units[key] = self.units.get(key, 0) + passes
            message = WorkReceipt(self.context.job_id, slot, nonce, self.context.account, step, self.units[key])
            signed.append(
                pb.SlotUnits(slot=slot, nonce=nonce, units=self.units[key], signature=self.context.sign(message))
            )
        return signed

    def counts(self) -> pb.SeatCounts:
        """What this seat did so far."""
        return pb.SeatCounts(
            account=self.context.account,
            driven=self.driven,
            recomputes=self.recomputes,
            reports=self.reports,
            executions=self.executions,
            settlements=self.settlements,
        )

    def check(self, account: str, message: pb.RecordSignature) -> None:
        """Raises ProtocolError("signature") when a receipt of another seat is not signed by it: then it lies."""
        for entry in message.units[: self._slots]:
            self._check(account, message.step, entry)

    def _check(self, account: str, step: int, entry: pb.SlotUnits) -> None:
        if account != self.context.account:
            signed = WorkReceipt(self.context.job_id, entry.slot, entry.nonce, account, step, entry.units)
            self.context.check_seat(account, signed, entry.signature)

    @property
    def _slots(self) -> int:
        return self.context.num_stages * self.context.num_replicas

    def hear(self, account: str, message: pb.RecordSignature, *, accepted: int, dropped: int) -> list[Refused]:
        """Another seat's (or my own) receipts and counts of a step, once a step. ``accepted``: leaves of the seat's
        last driver root of the step; ``dropped``: sums that the step dropped whole.

        Each receipt is a worker's pay, so a wrong one takes no other with it. Returns those that are not counted."""
        self.accepted[account] = self.accepted.get(account, 0) + accepted
        self.dropped[account] = self.dropped.get(account, 0) + dropped
        heard: dict[tuple[str, int, int], Receipt] = {}
        refused: list[Refused] = []
        for entry in message.units[: self._slots]:
            try:
                heard[account, entry.slot, entry.nonce] = self._receipt(account, message.step, entry)
            except ProtocolError as error:
                refused.append(_refused(entry, str(error), false=error.code == "signature"))
        if len(message.units) > self._slots:
            reason = f"{len(message.units)} receipts for {self._slots} slots"
            refused.append(_refused(message.units[self._slots], reason))
        before = {key: kept[-1] for key, kept in self.receipts.items() if key[0] == account}
        units = sum(receipt.units for receipt in {**before, **heard}.values())
        most = min(self.accepted[account], self._most_passes(account, message.step))
        if units <= most:
            for key, newest in heard.items():
                self._keep(key, newest)
        else:
            reason = f"seat {account} acknowledges {units} passes by step {message.step}; it can have accepted {most}"
            refused += [_refused(entry, reason) for entry in message.units[:1]]
        self._latest = max(self._latest, message.step)
        self.hear_counts(account, message.counts)
        return refused

    def _receipt(self, account: str, step: int, entry: pb.SlotUnits) -> Receipt:
        """Raises ProtocolError: signature; receipt, where nobody is known to hold the slot under this nonce."""
        self._check(account, step, entry)
        holder = self.holders.get((entry.slot, entry.nonce))
        if holder is None:
            raise ProtocolError("receipt", f"nobody is known to hold slot {entry.slot} under nonce {entry.nonce}")
        return Receipt(
            account=holder, slot=entry.slot, nonce=entry.nonce, verifier=account, step=step, units=entry.units
        )

    def _most_passes(self, account: str, step: int) -> int:
        """What this seat's microbatches can have cost by the end of ``step``, whatever it put under its roots: only a
        share of those is looked at."""
        c = self.context
        index = next(seat.index for seat in c.seats if seat.account == account)
        mine = len(assignment.microbatches_of(index, c.spec.training.microbatches, c.live))
        rounds = step + 1 + self.dropped[account]
        return (MOST_PASSES + c.num_replicas - 1) * c.num_stages * mine * rounds

    def _keep(self, key: tuple[str, int, int], receipt: Receipt) -> None:
        kept = self.receipts.setdefault(key, [])
        kept.append(receipt)
        # One that is older than every offence that can still be found out is enough.
        while len(kept) > 1 and kept[1].step < receipt.step - KEPT_STEPS:
            del kept[0]

    def hear_counts(self, account: str, counts: pb.SeatCounts) -> None:
        """What a seat says that it did. It only grows."""
        known = self.works.get(account)
        if known is None or counts.driven >= known.driven:
            self.works[account] = _work(account, counts, self.context.quorum)

    def _check_works(self, step: int, works: list[SeatWork]) -> None:
        """Nobody can check another's count of recomputes, so counts are bounded by what could be due. Raises
        ProtocolError("root")."""
        c, training = self.context, self.context.spec.training
        if sorted(work.account for work in works) != sorted(c.hot_keys):
            raise ProtocolError("root", "the proposal must count the work of every seat, once")
        # The lead counts when it proposes, which may be a step ahead of this seat, and steps after the epoch's end.
        steps = min(max(step, self._latest) + 2, training.steps)
        # each frame once, and each backward once more in a whole stage gradient
        recomputes = 3 * c.num_stages * training.microbatches * steps
        cases = len(self.offences)
        for work in works:
            seat = next(seat for seat in c.seats if seat.account == work.account)
            driven = len(assignment.microbatches_of(seat.index, training.microbatches, c.live)) * steps
            limits = (driven, recomputes, steps + EXTRA_ROOTS, cases, cases)
            counted = (work.driven, work.recomputes, work.settlements, work.reports, work.executions)
            if any(had > limit for had, limit in zip(counted, limits, strict=True)):
                raise ProtocolError("root", f"seat {work.account} counts {counted}, at most {limits} could be due")
            if work.account == c.account and work.driven > self.driven:
                raise ProtocolError("root", f"this seat drove {self.driven} microbatches, not {work.driven}")

    # ---- roots

    def freeze(self, step: int) -> None:
        """Keep the receipts at the end of an epoch, so that its root can be signed while training goes on."""
        self._frozen[step] = [receipt for kept in self.receipts.values() for receipt in kept]

    def audited(self, step: int, ledger: Ledger) -> None:
        """The cross-audits of everything up to an epoch's end are done: what is owed for it stands."""
        c = self.context
        records = {}
        for seat in c.seats:
            standing = ledger.standing(seat.account, c.share_of(seat.index))
            records[seat.account] = _Record(standing.audits_done, standing.effect)
        self._owed[step] = _Owed(self._frozen.pop(step), dict(self.offences), records)
        for old in sorted(self._owed)[:-8]:
            del self._owed[old]

    def _amounts(
        self, step: int, works: list[SeatWork], last_total: int, allowance: int, claimed: Mapping[str, int]
    ) -> Amounts:
        owed = self._owed.get(step)
        if owed is None:
            raise ProtocolError("root", f"step {step} ends no epoch whose audits are done here")
        # The escrow's total says which of the roots that were signed here it took: one may never have been sent.
        previous = next((a for a in reversed(self._signed) if a.total == last_total), None)
        if previous is None and last_total:
            raise ProtocolError("root", f"the last root promises {last_total}; this seat signed none with that total")
        return settle(
            self.context.spec,
            self.params,
            owed.receipts,
            [_recorded(work, owed.records) for work in works],
            offences=owed.offences,
            previous=previous.amounts if previous else None,
            previous_total=last_total,
            claimed=claimed,
            allowance=allowance,
        )

    async def propose(self, peers: Peers, step: int, record_hash: bytes) -> Settled | None:
        """Lead: read the cap, compute, collect q signatures, send. None when there is nothing new to promise.

        Raises PeerGone when fewer than q seats sign, Rejected when the escrow refuses: that pay then comes with the
        next root.
        """
        c, escrow = self.context, self.escrow
        money = await asyncio.to_thread(escrow.money, c.job_id)
        convicts = sorted({self.holders[key] for key in self._owed[step].offences})
        claimed = {a: await asyncio.to_thread(escrow.claimed, c.job_id, a) for a in convicts}
        counts = self._counts_of_all()
        amounts = self._amounts(step, self._works(counts), money.total, money.allowance, claimed)
        if amounts.total == money.total:
            return None
        # A root repays its own transaction too: else every last root would owe another one.
        for entry in counts:
            entry.settlements += entry.account == c.account
        amounts = self._amounts(step, self._works(counts), money.total, money.allowance, claimed)
        epoch = money.last_epoch + 1
        root = amounts.tree(c.job_id, keccak256).root
        proposal = pb.SettlementProposal(
            epoch=epoch,
            step=step,
            root=root,
            total=str(amounts.total),
            step_record_hash=record_hash,
            allowance=str(money.allowance),
            claimed=[pb.Claimed(account=a, amount=str(v)) for a, v in claimed.items()],
            counts=counts,
        )
        signatures = await self._collect(peers, proposal, self._message(proposal), finish=False)
        self._signed.append(amounts)
        transaction = await asyncio.to_thread(
            escrow.submit_root, c.job_id, epoch, root, amounts.total, record_hash, signatures
        )
        self.settlements += 1
        return Settled(epoch, step, root, record_hash, amounts, transaction)

    async def finish(self, peers: Peers, step: int, record_hash: bytes) -> str:
        """Lead: close the job with q signatures; the last root of the escrow is its last. Returns the transaction."""
        c = self.context
        money = await asyncio.to_thread(self.escrow.money, c.job_id)
        proposal = pb.SettlementProposal(
            epoch=money.last_epoch,
            step=step,
            step_record_hash=record_hash,
            total="0",
            finish=True,
            counts=self._counts_of_all(),
        )
        message = JobFinish(c.job_id, money.last_epoch, record_hash)
        signatures = await self._collect(peers, proposal, message, finish=True)
        return await asyncio.to_thread(self.escrow.finish, c.job_id, money.last_epoch, record_hash, signatures)

    def _counts_of_all(self) -> list[pb.SeatCounts]:
        found = []
        for account in sorted(self.works):
            work = self.works[account]
            found.append(
                pb.SeatCounts(
                    account=account,
                    driven=work.driven,
                    recomputes=work.recomputes,
                    reports=work.reports,
                    executions=work.executions,
                    settlements=work.settlements,
                )
            )
        return found

    def _works(self, counts: Iterable[pb.SeatCounts]) -> list[SeatWork]:
        return [_work(entry.account, entry, self.context.quorum) for entry in counts]

    async def _collect(
        self, peers: Peers, proposal: pb.SettlementProposal, message: Settlement | JobFinish, *, finish: bool
    ) -> list[tuple[int, bytes]]:
        c = self.context
        domain = c.domain if finish else c.escrow_domain
        signatures = {c.me: c.sign(message, domain)}
        ask = pb.SeatMessage(settlement=proposal)
        answers = await asyncio.gather(*(self._ask(peers, seat.account, ask) for seat in c.others))
        for seat, answer in zip(c.others, answers, strict=True):
            if answer is None:
                continue
            try:
                c.check_seat(seat.account, message, answer.signature, domain)
            except ProtocolError as error:
                log.warning("seat %s signed something else: %s", seat.account, error)
            else:
                signatures[seat.index] = answer.signature
        if len(signatures) < c.quorum:
            raise PeerGone(f"{len(signatures)} of {c.quorum} seats signed the root of epoch {proposal.epoch}")
        return sorted(signatures.items())

    async def _ask(self, peers: Peers, account: str, ask: pb.SeatMessage) -> pb.SettlementSignature | None:
        try:
            return (await peers.ask(account, ask, time_limit=30.0)).settlement_signature
        except (PeerGone, ProtocolError) as error:
            log.warning("seat %s did not sign: %s", account, error)
            return None

    def _message(self, proposal: pb.SettlementProposal) -> Settlement:
        return Settlement(
            self.context.job_id, proposal.epoch, proposal.root, int(proposal.total), proposal.step_record_hash
        )

    async def cosign(self, proposal: pb.SettlementProposal) -> pb.SettlementSignature:
        """Compute the same root from my own receipts and sign it. Raises ProtocolError("root") when it differs."""
        c = self.context
        money = await asyncio.to_thread(self.escrow.money, c.job_id)
        works = self._works(proposal.counts)
        self._check_works(proposal.step, works)
        if proposal.finish:
            return self._cosign_finish(proposal, money, works)
        try:
            allowance, total = int(proposal.allowance), int(proposal.total)
            claimed = {entry.account: int(entry.amount) for entry in proposal.claimed}
        except ValueError as error:
            raise ProtocolError("root", "amounts are decimal strings") from error
        if proposal.epoch != money.last_epoch + 1:
            raise ProtocolError("root", f"the next root is that of epoch {money.last_epoch + 1}, not {proposal.epoch}")
        if allowance > money.allowance:
            raise ProtocolError("root", f"the escrow admits {money.allowance} now, not {allowance}")
        for account, amount in claimed.items():
            drawn = await asyncio.to_thread(self.escrow.claimed, c.job_id, account)
            if amount > drawn:
                raise ProtocolError("root", f"{account} has drawn {drawn}, not {amount}")
        amounts = self._amounts(proposal.step, works, money.total, allowance, claimed)
        root = amounts.tree(c.job_id, keccak256).root
        if root != proposal.root or amounts.total != total:
            raise ProtocolError(
                "root", f"epoch {proposal.epoch}: this seat counts {amounts.total}, the proposal says {total}"
            )
        self._signed.append(amounts)
        return pb.SettlementSignature(signature=c.sign(self._message(proposal), c.escrow_domain))

    def _cosign_finish(
        self, proposal: pb.SettlementProposal, money: Money, works: list[SeatWork]
    ) -> pb.SettlementSignature:
        """Only when everything that is owed is promised: a job that closes early would owe its workers the rest."""
        c = self.context
        if proposal.epoch != money.last_epoch or proposal.step != c.spec.training.steps - 1:
            raise ProtocolError("finish", f"the last root is that of epoch {money.last_epoch}, not {proposal.epoch}")
        amounts = self._amounts(proposal.step, works, money.total, 2**128, {})
        if amounts.total > money.total:
            raise ProtocolError("finish", f"{amounts.total} is owed, {money.total} is promised: a root is missing")
        return pb.SettlementSignature(signature=c.sign(JobFinish(c.job_id, proposal.epoch, proposal.step_record_hash)))


def payable(
    units: Mapping[int, int], accepted: Iterable[tuple[int, int]], lies: Container[tuple[int, int]]
) -> dict[int, int]:
    """Passes a slot that a step pays for: without the backwards of sums that were dropped for a lie; what was lost by
    accident counts. ``accepted``: (slot, session) of each accepted backward."""
    paid = dict(units)
    for slot, session in accepted:
        if (slot, session) in lies:
            paid[slot] -= 1
    return paid


def _refused(entry: pb.SlotUnits, reason: str, *, false: bool = False) -> Refused:
    return Refused(entry.slot, entry.nonce, entry.units, reason, false)


def _recorded(work: SeatWork, records: Mapping[str, _Record]) -> SeatWork:
    record = records.get(work.account, _Record())
    return replace(work, audited=record.audited, voided=record.effect.voided, charged=record.effect.charged)


def _work(account: str, counts: pb.SeatCounts, quorum: int) -> SeatWork:
    return SeatWork(
        account=account,
        driven=counts.driven,
        recomputes=counts.recomputes,
        settlements=counts.settlements,
        reports=counts.reports,
        executions=counts.executions,
        bonds_settled=counts.executions * quorum,
    )
