"""A primary's update, computed again from the sums that it was made from."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sentinel_market.chain.eip712 import digest
from sentinel_market.chain.signing import recover
from sentinel_market.errors import ProtocolError
from sentinel_market.models.jobs import optimizer_config
from sentinel_market.models.layout import layout
from sentinel_market.models.optimizer import decay_mask, step_
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.commit import SessionKey
from sentinel_market.wire.tensors import decode, encode, encoded_hash, pair_hash, tensor_hash
from verifier.check import robust
from verifier.context import SeatContext

NEARLY = 1e-6
"""Relative L2 distance of new weights that other hardware may give (``architecture.md``); beyond it they are wrong."""


@dataclass(frozen=True)
class AgreedUpdate:
    """What all seats have of an update: the primary's signed aggregate, and slot -> nonce at the time."""

    aggregate: pb.Aggregate
    nonces: dict[int, int]


def judge_update(
    context: SeatContext, agreed: AgreedUpdate, before: torch.Tensor, after: torch.Tensor, answer: pb.UpdateAnswer
) -> str:
    """Why the update is wrong; "" when it is the one that the signed sums give. ``before``, ``after``: the weights [N]
    that the records name.

    Raises ProtocolError where what was served is not what was signed: that is unserved, not wrong.
    """
    aggregate = agreed.aggregate
    size = before.shape
    if len(answer.sums) != len(aggregate.sums):
        raise ProtocolError("audit", f"{len(answer.sums)} sums were served, {len(aggregate.sums)} were signed")
    sums = [_sum(context, agreed, entry, data, size) for entry, data in zip(aggregate.sums, answer.sums, strict=True)]
    m = decode(answer.m, shape=size, dtype=torch.float32)
    v = decode(answer.v, shape=size, dtype=torch.float32)
    if pair_hash(tensor_hash(m), tensor_hash(v)) != aggregate.old_state:
        raise ProtocolError("audit", "the served optimizer state is not the one that the aggregate names")
    rule = context.spec.verification.aggregation
    gradient = robust.aggregate(rule, sums, [entry.count for entry in aggregate.sums])
    weights, mask = before.clone(), decay_mask(layout(context.config, aggregate.stage, context.num_stages))
    step_(weights, gradient, m, v, aggregate.step, optimizer_config(context.spec), mask)
    if encoded_hash(encode(weights)) == aggregate.new_weights:
        # The moments are not streamed to anybody: equal weights from other moments would be a lie about the next step.
        same = pair_hash(tensor_hash(m), tensor_hash(v)) == aggregate.new_state
        return "" if same else "the optimizer's moments after the step are others"
    apart = float((after.double() - weights.double()).norm() / weights.double().norm().clamp_min(1e-30))
    return "" if apart <= NEARLY else f"the weights after the step are {apart:.3g} (relative) from what the sums give"


def _sum(context: SeatContext, agreed: AgreedUpdate, entry: pb.StageSum, data: bytes, size: torch.Size) -> torch.Tensor:
    if encoded_hash(data) != entry.gradient_hash:
        raise ProtocolError("audit", f"the sum of slot {entry.slot} is not the one that was signed")
    aggregate, slot = agreed.aggregate, context.slots[entry.slot]
    if slot.nonce == agreed.nonces.get(entry.slot):
        primary = context.primary(aggregate.stage).account
        message = SessionKey(context.job_id, entry.slot, slot.nonce, primary, entry.session).gradient(
            sequence=entry.sequence,
            step=aggregate.step,
            accepted_set=entry.accepted_set,
            count=entry.count,
            gradient_hash=entry.gradient_hash,
            weights_hash=aggregate.old_weights,
        )
        if recover(digest(context.domain, message), entry.signature) != slot.hot_key:
            raise ProtocolError("audit", f"the sum of slot {entry.slot} is not signed by its worker")
    return decode(data, shape=size, dtype=torch.float32)
