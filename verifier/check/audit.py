"""Who is looked at twice: a draw that neither the worker nor, later, the driver can steer (``protocol.md``).

The driver commits to a secret before the step; a frame is drawn when H(secret, commitment hash) falls below the
share. After the reveal anybody repeats the draw. Integers only.
"""

from __future__ import annotations

from collections.abc import Sequence

import blake3

from verifier.check.frame import BACKWARD, FORWARD
from verifier.check.policy import PPM, Policy

_AUDIT = b"sentinel-market audit 1"
_GRADIENT = b"sentinel-market gradient audit 1"
GRADIENT_DIVISOR = 4
"""Whole gradients are audited at this fraction of the share of frames: p_g = p / 4."""
_STRAIGHT = b"sentinel-market straight to recompute 1"


def _below(purpose: bytes, secret: bytes, commitment_hash: bytes, share_ppm: int) -> bool:
    if len(secret) != 32 or len(commitment_hash) != 32:
        raise ValueError(f"secret and commitment hash have {len(secret)} and {len(commitment_hash)} bytes, not 32")
    digest = blake3.blake3(purpose + secret + commitment_hash).digest()
    return int.from_bytes(digest[:8], "big") * PPM < share_ppm << 64


def is_audited(secret: bytes, commitment_hash: bytes, share_ppm: int) -> bool:
    """Whether the frame under this commitment owes an audit. ``share_ppm`` from ``audit_share_ppm``."""
    return _below(_AUDIT, secret, commitment_hash, share_ppm)


def goes_straight_to_recompute(secret: bytes, commitment_hash: bytes, share_ppm: int = 250_000) -> bool:
    """Whether a confirmation or audit skips the replay: a random quarter, so that colluding replicas cannot clear
    each other for long. Independent of ``is_audited``."""
    return _below(_STRAIGHT, secret, commitment_hash, share_ppm)


def audit_share_ppm(policy: Policy, *, stage: int, num_stages: int, direction: int, in_warmup: bool) -> int:
    """The share of frames to audit: p, in warm-up the warm-up share; of either three times as much of the activations
    that the first stage sends and six times of the gradients that the last one sends. All others build on these, and
    for the latter the screen has the least to hold against."""
    if not policy.audits:
        return 0
    share = policy.warmup_audit_share_ppm if in_warmup else policy.audit_share_ppm
    sources = {
        (0, FORWARD): policy.activation_source_factor,
        (num_stages - 1, BACKWARD): policy.gradient_source_factor,
    }
    factor = sources.get((stage, direction), 1)
    return min(PPM, share * factor)


def owes_audit(
    policy: Policy, secret: bytes, names: Sequence[tuple[int, bytes]], *, stage: int, num_stages: int, in_warmup: bool
) -> bool:
    """Whether an answer is drawn for an audit. ``names``: (direction, 32-byte digest) of its commitments."""
    return policy.audits and any(
        is_audited(
            secret,
            name,
            audit_share_ppm(policy, stage=stage, num_stages=num_stages, direction=direction, in_warmup=in_warmup),
        )
        for direction, name in names
    )


def gradient_share_ppm(policy: Policy, *, in_warmup: bool) -> int:
    """p_g, the share of (replica, step) gradients that the primary recomputes whole."""
    if not policy.audits:
        return 0
    return (policy.warmup_audit_share_ppm if in_warmup else policy.audit_share_ppm) // GRADIENT_DIVISOR


def is_gradient_audited(secret: bytes, commitment_hash: bytes, share_ppm: int) -> bool:
    """Whether the stage gradient under this commitment (digest of a ``StageGradient``) owes a whole recompute within
    its step. ``secret``: the primary's. Independent of the draws of frames."""
    return _below(_GRADIENT, secret, commitment_hash, share_ppm)
