"""What this seat must be able to show after a step: its accepted frames, and what it made its updates from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from sentinel_market.domain.cross_audit import LAG
from sentinel_market.domain.ids import BACKWARD
from sentinel_market.errors import ProtocolError
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.tensors import encode
from verifier.answers import Leaf
from verifier.context import SeatContext
from verifier.evidence.recompute import Claim
from verifier.whole import to_frame


@dataclass(frozen=True)
class KeptUpdate:
    """Sums [N] of a stage in the order of its aggregate, and the optimizer's moments [N] before the step."""

    sums: tuple[torch.Tensor, ...]
    m: torch.Tensor
    v: torch.Tensor


class Shelf:
    """Frames and updates of the last steps, until nobody may ask for them any more."""

    def __init__(self, context: SeatContext) -> None:
        self.context = context
        self._frames: dict[int, dict[bytes, Leaf]] = {}
        self._updates: dict[tuple[int, int], KeptUpdate] = {}

    def keep(self, step: int, leaves: Mapping[bytes, Leaf], updates: Mapping[int, KeptUpdate]) -> None:
        """Of a step whose record is final. What is older than any question is dropped."""
        self._frames[step] = dict(leaves)
        self._updates.update({(step, stage): update for stage, update in updates.items()})
        for old in [old for old in self._frames if old < step - LAG]:
            del self._frames[old]
        for key in [key for key in self._updates if key[0] < step - LAG]:
            del self._updates[key]

    def leaf(self, step: int, commitment: bytes) -> Leaf:
        """Raises ProtocolError("held")."""
        leaf = self._frames.get(step, {}).get(commitment)
        if leaf is None:
            raise ProtocolError("held", f"commitment {commitment.hex()[:16]} of step {step} is not held here")
        return leaf

    def frame(self, query: pb.AuditQuery) -> pb.AuditAnswer:
        """What a frame was made from; with the auditor's proof of work, what the worker returned instead."""
        leaf = self.leaf(query.step, query.commitment)
        held, stage = leaf.held, leaf.answer.stage
        backward = leaf.signed.message.direction == BACKWARD
        if query.work:
            claim = claim_of(leaf)
            return pb.AuditAnswer(
                output=encode(claim.output) if claim.output is not None else b"",
                sketch=encode(claim.sketch) if claim.sketch is not None else b"",
            )
        last = stage == self.context.num_stages - 1
        served = pb.AuditAnswer(frame=to_frame(leaf.signed), input=held.inputs[stage])
        if backward or last:
            served.incoming = held.incoming[stage]
        if stage > 0:
            served.upstream.CopyFrom(to_frame(held.upstream[stage]))
        if backward and not last:
            below = held.downstream[stage]
            served.downstream.CopyFrom(to_frame(below.signed))
            served.sketch_hash = below.sketch_hash
        return served

    def update(self, query: pb.UpdateQuery) -> pb.UpdateAnswer:
        """Raises ProtocolError("held")."""
        kept = self._updates.get((query.step, query.stage))
        if kept is None:
            raise ProtocolError("held", f"the update of stage {query.stage} in step {query.step} is not held here")
        return pb.UpdateAnswer(sums=[encode(one) for one in kept.sums], m=encode(kept.m), v=encode(kept.v))


def claim_of(leaf: Leaf) -> Claim:
    """What the worker returned under this commitment."""
    if leaf.signed.message.direction == BACKWARD:
        return Claim(leaf.answer.gradient, leaf.answer.sketch)
    return Claim(leaf.answer.output, None)
