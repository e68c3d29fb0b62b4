"""The message classes of a frame, built the same way by the worker that signs and the seat that checks."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel_market.domain.messages import FrameCommitment, StageGradient
from sentinel_market.wire.tensors import pair_hash

EMPTY_HASH = bytes(32)
"""Stands for an absent tensor: the outgoing gradient of stage 0."""


@dataclass(frozen=True, slots=True)
class SessionKey:
    """What every commitment of one worker to one seat shares."""

    job_id: int
    slot: int
    nonce: int
    verifier: str
    session: int

    def frame(
        self,
        *,
        sequence: int,
        step: int,
        microbatch: int,
        direction: int,
        input_hash: bytes,
        output_hash: bytes,
        weights_hash: bytes,
    ) -> FrameCommitment:
        return FrameCommitment(
            self.job_id,
            self.slot,
            self.nonce,
            self.verifier,
            self.session,
            sequence,
            step,
            microbatch,
            direction,
            input_hash,
            output_hash,
            weights_hash,
        )

    def gradient(
        self,
        *,
        sequence: int,
        step: int,
        accepted_set: bytes,
        count: int,
        gradient_hash: bytes,
        weights_hash: bytes,
    ) -> StageGradient:
        return StageGradient(
            self.job_id,
            self.slot,
            self.nonce,
            self.verifier,
            self.session,
            sequence,
            step,
            accepted_set,
            count,
            gradient_hash,
            weights_hash,
        )


def backward_input_hash(forward_input: bytes, incoming: bytes) -> bytes:
    """H(forward input, incoming gradient); at the last stage the targets stand for the incoming gradient."""
    return pair_hash(forward_input, incoming)


def backward_output_hash(outgoing: bytes | None, sketch: bytes) -> bytes:
    """H(outgoing gradient, sketch); stage 0 has no outgoing gradient."""
    return pair_hash(outgoing if outgoing is not None else EMPTY_HASH, sketch)
