"""The step record as a pure function of what all seats said: every seat builds the same one, or they disagree."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel_market.domain import step_record
from sentinel_market.domain.messages import StepRecord
from sentinel_market.errors import ProtocolError
from sentinel_market.wire import relay_pb2 as pb
from verifier import checkpoint
from verifier.audits.findings import said_of
from verifier.context import SeatContext
from verifier.reduce import to_stage_sum
from verifier.step import StepState


@dataclass(frozen=True)
class BuiltRecord:
    """A record before it is signed. ``manifest``: the checkpoint's, at the end of an epoch."""

    record: StepRecord
    new_weights: list[bytes]
    new_states: list[bytes]
    manifest: bytes | None
    quarantines: dict[int, pb.Quarantine]


def rounds_known(context: SeatContext, state: StepState) -> bool:
    """Whether this seat holds every aggregate, and every Done that some aggregate was made from."""
    return (
        all(r.round in state.dones.get(r.verifier, {}) for a in state.aggregates.values() for r in a.rounds)
        and len(state.aggregates) == context.num_stages
    )


def final_dones(context: SeatContext, state: StepState) -> dict[str, pb.Done]:
    """For each seat the newest Done that any aggregate used: the same for everybody."""
    newest: dict[str, int] = {}
    for aggregate in state.aggregates.values():
        for used in aggregate.rounds:
            newest[used.verifier] = max(newest.get(used.verifier, 0), used.round)
    return {seat.account: state.dones[seat.account][newest[seat.account]] for seat in context.seats}


def build(
    context: SeatContext,
    state: StepState,
    dones: dict[str, pb.Done],
    previous: bytes,
    old_weights: list[bytes],
    epoch: int | None,
) -> BuiltRecord:
    """``previous``: hash of the record before. ``epoch``: its number where the step ends one. Raises ProtocolError."""
    # Several drivers may have convicted one worker at once: all seats must name the same case.
    chosen: dict[int, pb.Quarantine] = {}
    for done in dones.values():
        for quarantine in done.quarantines:
            held = chosen.get(quarantine.slot)
            if held is None or quarantine.commitment_hash < held.commitment_hash:
                chosen[quarantine.slot] = quarantine
    aggregates = [state.aggregates[stage] for stage in range(context.num_stages)]
    new_weights = [a.new_weights for a in aggregates]
    new_states = [a.new_state for a in aggregates]
    if [a.old_weights for a in aggregates] != old_weights:
        raise ProtocolError("aggregate", f"step {state.step} was reduced from other weights than the last record's")
    manifest = None
    if epoch is not None:
        manifest = checkpoint.manifest(
            context.job_id,
            state.step,
            epoch,
            [(a.checkpoint_weights, a.checkpoint_state) for a in aggregates],
            {account: done.checkpoint_baselines for account, done in dones.items()},
        )
    record = StepRecord(
        context.job_id,
        state.step,
        0,
        previous,
        step_record.live_seats_digest(seat.account for seat in context.seats),
        step_record.driver_roots_digest(
            (account, done.root, done.leaves, done.next_secret_hash, said_of(done).digest())
            for account, done in dones.items()
        ),
        step_record.multisets_digest([to_stage_sum(s) for s in a.sums] for a in aggregates),
        step_record.aggregates_digest(new_weights, new_states),
        step_record.quarantines_digest(
            (q.slot, q.nonce, q.offence_step, q.commitment_hash, q.evidence_hash) for q in chosen.values()
        ),
        checkpoint.manifest_hash(manifest) if manifest is not None else step_record.NONE,
    )
    return BuiltRecord(record, new_weights, new_states, manifest, chosen)
