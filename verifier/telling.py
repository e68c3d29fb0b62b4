"""What a seat tells those who watch: steps, suspects, each worker's last screenings, the record of
seats. Display, never consensus."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict

from sentinel_market.domain import assignment
from sentinel_market.domain.cross_audit import Draw, Fault, Ledger, Outcome, Standing
from sentinel_market.ports import Events
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.dto import MAX_FAULTS
from verifier.audits.auditor import Found
from verifier.check.verdict import Verdict, VerdictKind
from verifier.context import SeatContext
from verifier.payroll import Refused
from verifier.relay import WorkerSession
from verifier.step import StepState

log = logging.getLogger("verifier")

SERIES_LENGTH = 120
RECORD_STEPS = 10
"""A seat's record of all seats is told at least that often."""


class Teller:
    """Feeds the Events port."""

    def __init__(self, context: SeatContext, events: Events) -> None:
        self.context = context
        self._events = events
        self._series: dict[int, list[dict[str, object]]] = {}
        self._began = time.monotonic()
        self._tokens = 0
        self._recorded_step = -RECORD_STEPS
        self._num_faults = 0
        self.worker_costs: dict[tuple[int, int], tuple[int, int]] = {}
        """(slot, session) -> CPU microseconds of the worker's process, and of its hashing and signing for this seat"""

    def begin(self) -> None:
        """The first step starts now: what tokens a second are counted from."""
        self._began = time.monotonic()

    def series_of(self, slot: int) -> list[dict[str, object]]:
        """The last screenings of a worker's frames."""
        return self._series.get(slot, [])

    def verdict(self, slot: int, verdict: Verdict, where: dict[str, object]) -> None:
        """A screening, or with ``history`` in ``where`` the end of a confirmation. ``where``: step, stage, direction,
        microbatch; ``history``: what happened, as ``Happened.to_json`` gives it."""
        where = {**where, "driver": self.context.account}
        told = {"slot": slot, "nonce": self.context.slots[slot].nonce, "reason": verdict.reason, **where}
        if "history" in where:
            self._events.verdict({"kind": "confirmed", "verdict": verdict.kind.value, **told})
            return
        series = self._series.setdefault(slot, [])
        series.append(
            {
                **{key: where[key] for key in ("step", "stage", "direction", "microbatch") if key in where},
                "kind": verdict.kind.value,
                "scores": [[s.metric, s.value_e6, s.low_e6, s.high_e6] for s in verdict.scores],
            }
        )
        del series[:-SERIES_LENGTH]
        if verdict.kind is VerdictKind.SUSPECT:
            log.info("step %s slot %d SUSPECT: %s", where.get("step"), slot, verdict.reason)
            self._events.verdict({"kind": "suspect", **told, **_crossing(verdict)})

    def gradient(self, slot: int, stage: int, step: int, screened: Verdict, whole: Verdict) -> None:
        """A whole stage gradient was recomputed: what raised suspicion (an ACCEPT: a draw), and what came out."""
        told: dict[str, object] = {"slot": slot, "nonce": self.context.slots[slot].nonce, "step": step, "stage": stage}
        told["driver"] = self.context.account
        if screened.kind is VerdictKind.SUSPECT:
            log.info("step %d slot %d, stage gradient SUSPECT: %s", step, slot, screened.reason)
            reason = f"stage gradient: {screened.reason}"
            self._events.verdict({"kind": "suspect", "reason": reason, **told, **_crossing(screened)})
        self._events.verdict({"kind": "whole gradient", "verdict": whole.kind.value, "reason": whole.reason, **told})

    def receipts(self, step: int, verifier: str, refused: Iterable[Refused]) -> None:
        """Receipts of another seat that are not counted here."""
        for one in refused:
            log.warning(
                "step %d: seat %s, slot %d nonce %d: a receipt for %d passes is refused: %s",
                step, verifier, one.slot, one.nonce, one.units, one.reason,
            )  # fmt: skip
            self._events.verdict({"kind": "receipt refused", "step": step, "verifier": verifier, **asdict(one)})

    def cross_audit(self, draw: Draw, found: Found) -> None:
        """This seat looked at what the seed drew."""
        log.log(
            logging.DEBUG if found.outcome is Outcome.AGREES else logging.WARNING,
            "cross-audit of step %d, seat %s: %s: %s",
            draw.step,
            draw.accused,
            found.outcome.name,
            found.reason,
        )
        self._events.seat(
            {
                "kind": "cross-audit",
                "step": draw.step,
                "seat": draw.accused,
                "auditor": draw.auditor,
                "subject": draw.subject.hex(),
                "stage": draw.stage,
                "outcome": found.outcome.name,
                "reason": found.reason,
            }
        )

    def fault(self, fault: Fault, claimant: str) -> None:
        """Somebody says that it found a seat at fault; no record yet."""
        self._events.seat({"kind": "claim", **_fault(fault), "claimant": claimant})

    def recorded(self, fault: Fault, step: int) -> None:
        """A record says so now: q seats found it out, or everybody saw it."""
        log.warning("the record of step %d: seat %s: %s", step, fault.seat, fault.kind.name)
        self._events.seat({"kind": "fault", **_fault(fault), "recorded": step})

    def record(self, ledger: Ledger, *, last: bool = False) -> None:
        """The public record of all seats, after the record of a step: when there is a new fault, else every
        ``RECORD_STEPS`` steps, and at the end (``last``). Not twice for one step."""
        new = len(ledger.faults) > self._num_faults
        due = new or last or ledger.step >= self._recorded_step + RECORD_STEPS
        if not due or ledger.step < 0 or ledger.step == self._recorded_step:
            return
        self._recorded_step, self._num_faults = ledger.step, len(ledger.faults)
        c = self.context
        seats = [_standing(ledger.standing(seat.account, c.share_of(seat.index))) for seat in c.seats]
        self._events.seat({"kind": "record", "step": ledger.step, "seats": seats})

    def costs(self, sessions: Iterable[WorkerSession]) -> None:
        """What the workers say of their CPU time."""
        for session in sessions:
            self.worker_costs[session.id] = (session.process_micros, session.overhead_micros)

    def step(self, state: StepState, dones: dict[str, pb.Done], quarantines: int) -> None:
        """A finished step; the lead tells it for all."""
        if self.context.me != assignment.lead_of(self.context.live):
            return
        training = self.context.spec.training
        self._tokens += training.microbatches * training.microbatch_size * self.context.spec.model.seq_len
        seconds = time.monotonic() - self._began
        self._events.step(
            {
                "step": state.step,
                "loss": sum(done.loss_sum_e6 for done in dones.values()) / 1e6 / training.microbatches,
                "tokens": self._tokens,
                "tokens_per_second": self._tokens / seconds if seconds > 0 else 0.0,
                "suspects": sum(done.suspects for done in dones.values()),
                "confirmations": sum(done.confirmations for done in dones.values()),
                "audits": sum(done.audits for done in dones.values()),
                "quarantines": quarantines,
                "excluded": len(state.excluded),
                "multisets": [
                    [[s.slot, list(s.microbatches)] for s in state.aggregates[stage].sums]
                    for stage in range(self.context.num_stages)
                ],
            }
        )


def _fault(fault: Fault) -> dict[str, object]:
    return {"fault": fault.kind.name, "seat": fault.seat, "step": fault.step, "subject": fault.subject.hex()}


def _standing(one: Standing) -> dict[str, object]:
    """As the coordinator takes it: the newest faults one by one, older ones counted."""
    cut = max(0, len(one.faults) - MAX_FAULTS)
    return {
        "account": one.account,
        "drawn": one.drawn,
        "audits_due": one.audits_due,
        "audits_done": one.audits_done,
        "faults": [
            {"kind": fault.kind.name, "step": fault.step, "recorded": at, "subject": fault.subject.hex()}
            for fault, at in one.faults[cut:]
        ],
        "earlier": dict(Counter(fault.kind.name for fault, _ in one.faults[:cut])),
        "voided": one.effect.voided,
        "charged": one.effect.charged,
    }


def _crossing(verdict: Verdict) -> dict[str, object]:
    """The first score outside its fences, as the coordinator shows it."""
    for score in verdict.scores:
        if score.crossed:
            return {
                "metric": score.metric,
                "value_e6": score.value_e6,
                "fence_e6": score.low_e6 if score.below else score.high_e6,
            }
    return {}
