"""What a driver says when its microbatches are through: everything that it accepted, signed."""

from __future__ import annotations

import torch

from sentinel_market.chain.eip712 import keccak256
from sentinel_market.domain import merkle, step_record
from sentinel_market.domain.cross_audit import secret_hash
from sentinel_market.domain.messages import DriverDone, DriverRoot
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.tensors import encode
from verifier.context import SeatContext
from verifier.driver import Driver
from verifier.step import StepState, sets_of


def accepted_done(
    context: SeatContext, driver: Driver, state: StepState, round_: int, secrets: tuple[bytes, bytes]
) -> pb.Done:
    """A Done of round ``round_``, without findings and checkpoint. ``secrets``: of this step and of the next."""
    sets: dict[tuple[int, int], pb.AcceptedSet] = {}
    sketches: dict[tuple[int, int], torch.Tensor] = {}
    for entry in driver.valid():
        key = (entry.slot, entry.session)
        if key not in sets:
            sets[key] = pb.AcceptedSet(slot=entry.slot, session=entry.session)
            sketches[key] = torch.zeros(64)
        sets[key].commitments.append(entry.digest)
        sets[key].microbatches.append(entry.microbatch)
        sketches[key] = sketches[key] + entry.sketch
    for key, accepted in sets.items():
        accepted.sketch = encode(sketches[key])
    done = pb.Done(
        step=state.step,
        round=round_,
        sets=[sets[key] for key in sorted(sets)],
        excluded=[pb.SlotSession(slot=s, session=n, reason=why) for (s, n), why in sorted(state.excluded.items())],
        quarantines=[state.quarantines[slot] for slot in sorted(state.quarantines)],
        leaves=len(driver.leaves),
        leaf_digests=list(driver.leaves),
        root=merkle.root(list(driver.leaves), keccak256),
        secret_hash=secret_hash(secrets[0]),
        next_secret_hash=secret_hash(secrets[1]),
        loss_sum_e6=round(sum(held.loss for held in driver.held) * 1e6),
        suspects=driver.counters.suspects,
        confirmations=driver.counters.confirmations,
        audits=driver.counters.audits,
    )
    account, hashed = context.account, step_record.sets_digest(sets_of(done))
    done.signature = context.sign(DriverDone(context.job_id, done.step, done.round, account, hashed))
    done.root_signature = context.sign(
        DriverRoot(context.job_id, done.step, account, done.root, done.leaves, done.next_secret_hash)
    )
    return done
