"""What a bundle holds, and what it says to people."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from sentinel_market import __version__
from sentinel_market.chain.eip712 import Domain
from sentinel_market.domain.messages import FrameCommitment
from sentinel_market.models.config import ModelConfig
from verifier.check.baseline import Baseline
from verifier.check.frame import BACKWARD
from verifier.check.policy import Policy
from verifier.check.tolerance import Tolerance, compare, compare_sketch
from verifier.check.verdict import Verdict
from verifier.evidence.history import Happened, history_lines

BAD_COMPUTE = "BAD_COMPUTE"
"""The kind of these bundles in their manifest: one frame whose content is wrong."""


def printable(text: str, limit: int = 1000) -> str:
    """One line of a stranger's text for a terminal: no control characters, no line breaks, not without end."""
    return "".join(c if c.isprintable() else "?" for c in text[:limit])


def software_versions() -> dict[str, str]:
    """What computed this, as far as it can matter to the last digit."""
    return {
        "sentinel_market": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
    }


@dataclass(frozen=True, kw_only=True)
class SignedCommitment:
    """A commitment, its 65-byte signature, and the hot key that was snapshotted with the slot."""

    message: FrameCommitment
    signature: bytes
    signer: str


@dataclass(frozen=True, kw_only=True)
class SignedReplay:
    """What another replica returned for the same input, under its own signature."""

    commitment: SignedCommitment
    output: torch.Tensor | None = None
    sketch: torch.Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """One accusation. ``upstream``: accepted commitments whose outputs are this frame's input (forward commitment of
    the stage before) and incoming gradient (backward commitment of the stage after, with ``incoming_sketch_hash``,
    since that signature covers H(gradient, sketch)). ``screening`` is what the screen said of this frame, and
    ``baseline`` what it was held against, as it stood before (None where no screen looked at it). ``history``: what
    happened between suspicion and verdict. ``dtype``: in which the job computes (a name of ``recompute.DTYPES``)."""

    domain: Domain
    model: ModelConfig
    num_stages: int
    num_replicas: int
    commitment: SignedCommitment
    upstream: tuple[SignedCommitment, ...] = ()
    incoming_sketch_hash: bytes | None = None
    replays: tuple[SignedReplay, ...] = ()
    policy: Policy
    tolerance: Tolerance
    screening: Verdict
    baseline: Baseline | None = None
    history: tuple[Happened, ...] = ()
    dtype: str = "float32"
    verdict: Verdict
    input: torch.Tensor
    incoming: torch.Tensor | None = None
    output: torch.Tensor | None = None
    sketch: torch.Tensor | None = None
    recompute: torch.Tensor | None = None
    recompute_sketch: torch.Tensor | None = None
    weights: torch.Tensor | None = None
    versions: Mapping[str, str] = field(default_factory=software_versions)

    @property
    def stage(self) -> int:
        """Stage of the accused slot: slots are numbered stage by stage."""
        return self.commitment.message.slot // self.num_replicas

    @property
    def microbatches(self) -> tuple[int, ...]:
        """The one that the frame belongs to."""
        return (self.commitment.message.microbatch,)


def describe(bundle: Bundle) -> list[str]:
    """What happened, for people: who, where, which number crossed which fence, what the recompute said."""
    message = bundle.commitment.message
    way = "backward" if message.direction == BACKWARD else "forward"
    lines = [
        f"job {message.job_id}, slot {message.slot} (stage {bundle.stage} of {bundle.num_stages}), nonce "
        f"{message.nonce}, signed by {bundle.commitment.signer}",
        f"{way} of microbatch {message.microbatch} in step {message.step}, driven by {message.verifier}, "
        f"session {message.session:#x}, sequence {message.sequence}",
    ]
    crossed = [score for score in bundle.screening.scores if score.crossed]
    if crossed:
        lines.append("raised suspicion: " + "; ".join(score.text() for score in crossed))
        inside = [score for score in bundle.screening.scores if not score.crossed and score.high_e6 is not None]
        if inside:
            lines.append("inside its fences: " + ", ".join(score.metric for score in inside))
    else:
        lines.append(f"the screen said: {bundle.screening.reason}")
    if bundle.baseline is not None:
        lines.append(f"held against a baseline of {bundle.baseline.frames} accepted frames")
    lines += [f"then: {text}" for text in history_lines(bundle.history)]
    if bundle.replays:
        slots = ", ".join(str(one.commitment.message.slot) for one in bundle.replays)
        lines.append(f"holds the signed replay of slot {slots} (supporting evidence)")
    for claimed, reference, name in (
        (bundle.output, bundle.recompute, "output"),
        (bundle.sketch, bundle.recompute_sketch, "sketch"),
    ):
        if claimed is not None and reference is not None:
            test = compare_sketch if name == "sketch" else compare
            lines.append(f"{name} against the recompute: {test(claimed, reference, bundle.tolerance).text()}")
    lines.append(f"{bundle.verdict.kind.value}: {bundle.verdict.reason}")
    return [printable(line) for line in lines]
