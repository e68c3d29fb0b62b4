"""Units, receipts and settlement roots: what a seat owes the workers, and what all seats put before the escrow."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sentinel_market.chain.eip712 import keccak256
from sentinel_market.domain.messages import JobFinish, Settlement, WorkReceipt
from sentinel_market.domain.quote import QuoteParams
from sentinel_market.domain.settlement import Amounts, Receipt, SeatWork, settle
from sentinel_market.errors import PeerGone, ProtocolError
from sentinel_market.ports import Escrow, SlotInfo
from sentinel_market.wire import relay_pb2 as pb
from verifier.context import SeatContext
from verifier.peers import Peers

log = logging.getLogger("verifier")


@dataclass
class Payroll:
    """Cumulative, like the receipts: own units here, and the newest receipts of every other seat."""

    context: SeatContext
    params: QuoteParams
    escrow: Escrow
    units: dict[tuple[int, int], int] = field(default_factory=dict)
    """(slot, nonce) -> passes that this seat accepted"""
    receipts: dict[tuple[str, int, int], Receipt] = field(default_factory=dict)
    """(verifier, slot, nonce) -> newest receipt"""
    works: dict[str, SeatWork] = field(default_factory=dict)
    offences: dict[tuple[int, int], int] = field(default_factory=dict)
    driven: int = 0
    recomputes: int = 0
    reports: int = 0
    executions: int = 0
    settlements: int = 0
    promised: Amounts | None = None
    """The last root that this seat signed and the escrow took."""
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

    def signed_work(self, message: pb.RecordSignature) -> None:
        """Fill in what this seat did so far."""
        message.driven, message.recomputes = self.driven, self.recomputes
        message.reports, message.executions, message.settlements = self.reports, self.executions, self.settlements

    def hear(self, account: str, message: pb.RecordSignature) -> None:
        """Another seat's (or my own) receipts and counts of a step. Raises ProtocolError for a wrong signature."""
        for entry in message.units:
            holder = self.holders.get((entry.slot, entry.nonce))
            if holder is None:
                raise ProtocolError("receipt", f"a receipt for slot {entry.slot} nonce {entry.nonce}")
            receipt = WorkReceipt(self.context.job_id, entry.slot, entry.nonce, account, message.step, entry.units)
            if account != self.context.account:
                self.context.check_seat(account, receipt, entry.signature)
            self.receipts[account, entry.slot, entry.nonce] = Receipt(
                account=holder,
                slot=entry.slot,
                nonce=entry.nonce,
                verifier=account,
                step=message.step,
                units=entry.units,
            )
        self.works[account] = self._capped(
            SeatWork(
                account=account,
                driven=message.driven,
                recomputes=message.recomputes,
                settlements=message.settlements,
                reports=message.reports,
                executions=message.executions,
                bonds_settled=message.executions * self.context.quorum,
            ),
            message.step,
        )

    def _capped(self, work: SeatWork, step: int) -> SeatWork:
        """Nobody checks another's count of recomputes, so it is bounded by what could be due: every frame once."""
        training = self.context.spec.training
        frames = 2 * self.context.num_stages * training.microbatches * (step + 1)
        driven = len(self.context.my_microbatches()) if work.account == self.context.account else training.microbatches
        return SeatWork(
            account=work.account,
            driven=min(work.driven, driven * (step + 1)),
            recomputes=min(work.recomputes, frames),
            settlements=min(work.settlements, step + 1),
            reports=min(work.reports, len(self.offences)),
            executions=min(work.executions, len(self.offences)),
            bonds_settled=min(work.bonds_settled, len(self.offences) * self.context.quorum),
        )

    # ---- roots

    def amounts(self, allowance: int | None, claimed: Mapping[str, int]) -> Amounts:
        previous = self.promised
        return settle(
            self.context.spec,
            self.params,
            list(self.receipts.values()),
            [self.works[account] for account in sorted(self.works)],
            offences=self.offences,
            previous=previous.amounts if previous else None,
            previous_total=previous.total if previous else 0,
            claimed=claimed,
            allowance=allowance,
        )

    async def propose(
        self, peers: Peers, epoch: int, step: int, record_hash: bytes, *, finish: bool
    ) -> tuple[Amounts, str, str]:
        """Lead: read the cap, compute, collect q signatures, send. Returns (amounts, transaction, finish transaction).

        Raises PeerGone when fewer than q seats sign; the epoch's pay then comes with the next root.
        """
        c, escrow = self.context, self.escrow
        money = await asyncio.to_thread(escrow.money, c.job_id)
        convicts = sorted({self.holders[key] for key in self.offences})
        claimed = {a: await asyncio.to_thread(escrow.claimed, c.job_id, a) for a in convicts}
        amounts = self.amounts(money.allowance, claimed)
        root = amounts.tree(c.job_id, keccak256).root
        proposal = pb.SettlementProposal(
            epoch=epoch,
            step=step,
            root=root,
            total=str(amounts.total),
            step_record_hash=record_hash,
            allowance=str(money.allowance),
            claimed=[pb.Claimed(account=a, amount=str(v)) for a, v in claimed.items()],
            finish=finish,
        )
        mine = self._sign(proposal)
        signatures = {c.me: mine}
        answers = await asyncio.gather(
            *(self._ask(peers, seat.account, pb.SeatMessage(settlement=proposal)) for seat in c.others)
        )
        for seat, answer in zip(c.others, answers, strict=True):
            if answer is not None and self._check(seat.account, proposal, answer):
                signatures[seat.index] = answer
        if len(signatures) < c.quorum:
            raise PeerGone(f"{len(signatures)} of {c.quorum} seats signed the root of epoch {epoch}")
        chosen = sorted(signatures.items())
        transaction = await asyncio.to_thread(
            escrow.submit_root,
            c.job_id,
            epoch,
            root,
            amounts.total,
            record_hash,
            [(index, answer.signature) for index, answer in chosen],
        )
        self.settlements += 1
        closing = ""
        if finish:
            closing = await asyncio.to_thread(
                escrow.finish, c.job_id, epoch, record_hash, [(index, a.finish_signature) for index, a in chosen]
            )
        return amounts, transaction, closing

    async def _ask(self, peers: Peers, account: str, ask: pb.SeatMessage) -> pb.SettlementSignature | None:
        try:
            return (await peers.ask(account, ask, time_limit=30.0)).settlement_signature
        except (PeerGone, ProtocolError) as error:
            log.warning("seat %s did not sign the root: %s", account, error)
            return None

    def _message(self, proposal: pb.SettlementProposal) -> Settlement:
        return Settlement(
            self.context.job_id, proposal.epoch, proposal.root, int(proposal.total), proposal.step_record_hash
        )

    def _sign(self, proposal: pb.SettlementProposal) -> pb.SettlementSignature:
        c = self.context
        finish = b""
        if proposal.finish:
            finish = c.sign(JobFinish(c.job_id, proposal.epoch, proposal.step_record_hash))
        return pb.SettlementSignature(
            signature=c.sign(self._message(proposal), c.escrow_domain), finish_signature=finish
        )

    def _check(self, account: str, proposal: pb.SettlementProposal, answer: pb.SettlementSignature) -> bool:
        c = self.context
        try:
            c.check_seat(account, self._message(proposal), answer.signature, c.escrow_domain)
            if proposal.finish:
                message = JobFinish(c.job_id, proposal.epoch, proposal.step_record_hash)
                c.check_seat(account, message, answer.finish_signature)
        except ProtocolError as error:
            log.warning("seat %s signed another root: %s", account, error)
            return False
        return True

    async def cosign(self, proposal: pb.SettlementProposal) -> pb.SettlementSignature:
        """Compute the same root from my own receipts and sign it. Raises ProtocolError("root") when it differs."""
        c = self.context
        try:
            allowance = int(proposal.allowance) if proposal.allowance else None
            claimed = {entry.account: int(entry.amount) for entry in proposal.claimed}
            total = int(proposal.total)
        except ValueError as error:
            raise ProtocolError("root", "amounts are decimal strings") from error
        for account, amount in claimed.items():
            drawn = await asyncio.to_thread(self.escrow.claimed, c.job_id, account)
            if amount > drawn:
                raise ProtocolError("root", f"{account} has drawn {drawn}, not {amount}")
        amounts = self.amounts(allowance, claimed)
        root = amounts.tree(c.job_id, keccak256).root
        if root != proposal.root or amounts.total != total:
            raise ProtocolError(
                "root", f"epoch {proposal.epoch}: this seat counts {amounts.total}, the proposal says {total}"
            )
        self.promised = amounts
        return self._sign(proposal)
