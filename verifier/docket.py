"""Who is under accusation, in quarantine, before the court: from an offence of one driver to a ban on chain."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from sentinel_market.errors import ProtocolError, Recoverable, SentinelError
from sentinel_market.ports import Events
from sentinel_market.wire import relay_pb2 as pb
from verifier.accuse import Accuser, AnyOffence
from verifier.context import SeatContext
from verifier.payroll import Payroll
from verifier.peers import Peers
from verifier.step import StepState
from verifier.whole import GradientOffence

log = logging.getLogger("verifier")

RETRY_SECONDS = 600.0
"""How long a case is pushed on while the chain does not answer."""


class Docket:
    """Quarantines bind every seat; distrust binds this driver only. Both are by (slot, nonce): by holder."""

    def __init__(
        self,
        context: SeatContext,
        peers: Peers,
        accuser: Accuser,
        payroll: Payroll,
        events: Events,
        expel: Callable[[pb.Quarantine], None],
        series_of: Callable[[int], list[dict[str, object]]],
    ) -> None:
        """``expel(quarantine)`` ends the worker's session. ``series_of(slot)``: its last screenings, for the record."""
        self.context = context
        self._peers = peers
        self._accuser = accuser
        self._payroll = payroll
        self._events = events
        self._expel = expel
        self._series_of = series_of
        self.quarantined: dict[tuple[int, int], pb.Quarantine] = {}
        self._recorded: dict[tuple[int, int], int] = {}
        self.distrusted: dict[tuple[int, int], str] = {}
        self.accusations: set[asyncio.Task[None]] = set()
        self._cases: set[asyncio.Task[None]] = set()
        self._state = StepState(-1)

    def begin(self, state: StepState) -> None:
        """The step that quarantines are reached in from now on; those that came too late for the last one first."""
        self._state = state
        for key, quarantine in self.quarantined.items():
            if key not in self._recorded:
                self._enter(state, quarantine)

    # ---- asking

    def barred(self, slot: int) -> bool:
        """Whether this driver gives the present holder no work."""
        key = (slot, self.context.slots[slot].nonce)
        return key in self.distrusted or key in self.quarantined

    def turned_away(self, slot: int, nonce: int) -> str | None:
        """Why this holder gets no session, or None."""
        quarantine = self.quarantined.get((slot, nonce))
        return quarantine.reason if quarantine is not None else None

    # ---- accusing

    async def charge(self, offence: GradientOffence) -> bool:
        """Accuse, and wait: whether a quorum agreed, so that the worker is in quarantine."""
        message = offence.signed.message
        self.on_offence(offence)
        await self.settled()
        return (message.slot, message.nonce) in self.quarantined

    def on_offence(self, offence: AnyOffence) -> None:
        """No more work for that worker from here; ask the others for their own recompute."""
        message = offence.signed.message
        key = (message.slot, message.nonce)
        if key in self.distrusted or key in self.quarantined:
            return
        self.distrusted[key] = offence.reason
        self.hold(self._accuse(offence))

    def hold(self, accusation: Coroutine[Any, Any, None]) -> None:
        """Open until it ends: this driver is not done before. A canary, too, or it would be known by that."""
        task = asyncio.ensure_future(accusation)
        self.accusations.add(task)
        task.add_done_callback(self.accusations.discard)

    def on_ban(self, slot: int, reason: str) -> None:
        """Statistics alone condemn a worker (policies ``paper``, ``screen``). Nothing that a court could repeat stands
        behind it, so it gets no more work from this driver and keeps its stake."""
        nonce = self.context.slots[slot].nonce
        if (slot, nonce) in self.distrusted:
            return
        self.distrusted[slot, nonce] = reason
        self._events.verdict(
            {
                "kind": "distrusted",
                "slot": slot,
                "nonce": nonce,
                "step": self._state.step,
                "reason": reason,
                "accuser": self.context.account,
            }
        )

    async def settled(self) -> None:
        """Wait until no accusation of this driver is open."""
        while self.accusations:
            await asyncio.wait(self.accusations)

    async def _accuse(self, offence: AnyOffence) -> None:
        message = offence.signed.message
        try:
            quarantine = await self._accuser.accuse(offence)
        except SentinelError as error:
            log.warning("the accusation of slot %d failed: %s", message.slot, error)
            return
        if quarantine is None:
            # It binds this driver only, and the claim is on record.
            self._events.verdict(
                {
                    "kind": "false alarm",
                    "slot": message.slot,
                    "nonce": message.nonce,
                    "step": message.step,
                    "accuser": self.context.account,
                }
            )
            return
        quarantine.step = self._state.step
        self.take(self._state, quarantine)
        await self._peers.broadcast(pb.SeatMessage(quarantine=quarantine))

    def take(self, state: StepState, quarantine: pb.Quarantine) -> None:
        """A certificate of q seats, already checked: it binds this seat in this step and from now on."""
        key = (quarantine.slot, quarantine.nonce)
        recorded = self._recorded.get(key)
        if recorded is not None and recorded != quarantine.step:
            # Its step is under no signature: repeated later, it would bar whoever holds the slot by then.
            raise ProtocolError("quarantine", f"slot {quarantine.slot} is quarantined since step {recorded}")
        if key not in self.quarantined:
            self.quarantined[key] = quarantine
            log.warning("slot %d is quarantined in step %d: %s", quarantine.slot, quarantine.step, quarantine.reason)
            self._expel(quarantine)
        self._enter(state, quarantine)

    def _enter(self, state: StepState, quarantine: pb.Quarantine) -> None:
        """Into this step's record, unless another one says it."""
        if quarantine.slot not in state.quarantines and (quarantine.slot, quarantine.nonce) not in self._recorded:
            entry = pb.Quarantine()
            entry.CopyFrom(quarantine)
            entry.step = state.step
            state.quarantines[quarantine.slot] = entry
            state.changed()

    # ---- the court

    def prosecute(self, state: StepState) -> None:
        """The step's record is final: whoever accused first brings the case."""
        for slot, quarantine in state.quarantines.items():
            self._recorded.setdefault((slot, quarantine.nonce), state.step)
            if quarantine.accuser != self.context.account:
                continue
            account = self.context.slots[slot].account
            self._events.verdict(
                {
                    "kind": "quarantined",
                    "slot": slot,
                    "nonce": quarantine.nonce,
                    "account": account,
                    "step": quarantine.step,
                    "reason": quarantine.reason,
                    "accuser": quarantine.accuser,
                    "signers": [one.verifier for one in quarantine.signatures],
                    "evidence": quarantine.evidence_hash.hex(),
                    "commitment": quarantine.commitment_hash.hex(),
                    "at": time.time(),
                    "series": self._series_of(slot),
                }
            )
            task = asyncio.ensure_future(self._prosecute(quarantine, account))
            self._cases.add(task)
            task.add_done_callback(self._cases.discard)

    async def _prosecute(self, quarantine: pb.Quarantine, account: str) -> None:
        async def told(event: str, transaction: str) -> None:
            self._payroll.reports += event == "reported"
            self._payroll.executions += event == "executed"
            self._events.verdict(
                {
                    "kind": event,
                    "slot": quarantine.slot,
                    "nonce": quarantine.nonce,
                    "account": account,
                    "step": quarantine.step,
                    "at_step": self._state.step,
                    "transaction": transaction,
                    "at": time.time(),
                }
            )

        until = time.monotonic() + RETRY_SECONDS
        while True:
            try:
                case = await self._accuser.prosecute(quarantine, told)
            except Recoverable as error:
                log.warning("the case against slot %d waits: %s", quarantine.slot, error)
                if time.monotonic() > until:
                    log.error("the case against slot %d is given up: the chain stays away", quarantine.slot)
                    return
                await asyncio.sleep(2.0)
            except SentinelError as error:
                log.error("the case against slot %d failed: %s", quarantine.slot, error)
                return
            else:
                log.info("the case against slot %d ended: %s", quarantine.slot, case.state)
                return

    async def cases_ended(self) -> None:
        """Wait for every case that this seat brought."""
        while self._cases:
            await asyncio.wait(self._cases)

    def cancel(self) -> None:
        for task in (*self.accusations, *self._cases):
            task.cancel()
