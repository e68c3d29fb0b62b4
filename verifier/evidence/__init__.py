"""Evidence: one directory (or tar) from which anybody re-derives a verdict on a CPU, with no network.

::

    DIR/manifest.json            canonical JSON, strings and integers; its BLAKE3 is the bundle's digest
    DIR/input.snt                the stage's forward input: tokens [B, T] at stage 0, else [B, T, D]
    DIR/incoming.snt             backward: incoming gradient [B, T, D]; last stage: targets [B, T]
    DIR/output.snt, sketch.snt   what the accused signed; a stage-0 backward has a sketch only
    DIR/recompute.snt, recompute_sketch.snt    what the reporting seat computed
    DIR/replays/<i>.output.snt, <i>.sketch.snt signed replays of other replicas: supporting evidence, never the proof
    DIR/baseline.safetensors     the driver's baseline of this boundary as it stood before the frame
    DIR/weights/<digest>.snt     the stage's flat weights [N], content-addressed; bundles can share them (``weights``
                                 beside DIR), and over 2 GB they are the reader's own file

The manifest names the digest of every file, and no file outside that list is read. Everything in a bundle comes from a
stranger: sizes, names and JSON are checked before use.

That is the bundle of one frame. One replica's whole stage gradient is in ``verifier.evidence.gradient``; ``read_any``,
``replay_any`` and ``replay_bundle`` take both.
"""

from verifier.evidence.bundle import Bundle, SignedCommitment, SignedReplay, describe, software_versions
from verifier.evidence.dispatch import AnyBundle, describe_any, read_any, replay_any, replay_bundle
from verifier.evidence.files import (
    bundle_digest,
    load_weights,
    pack,
    read_bundle,
    read_manifest,
    share_weights,
    unpack,
    write_bundle,
)
from verifier.evidence.gradient import (
    GradientBundle,
    SignedGradient,
    SummedBackward,
    read_gradient_bundle,
    write_gradient_bundle,
)
from verifier.evidence.history import Happened
from verifier.evidence.recompute import Claim, Recomputed, judge, recompute_frame
from verifier.evidence.replay import Check, Known, ReplayResult
from verifier.evidence.screening import rescreen, snapshot

__all__ = [
    "AnyBundle",
    "Bundle",
    "Check",
    "Claim",
    "GradientBundle",
    "Happened",
    "Known",
    "Recomputed",
    "ReplayResult",
    "SignedCommitment",
    "SignedGradient",
    "SignedReplay",
    "SummedBackward",
    "bundle_digest",
    "describe",
    "describe_any",
    "judge",
    "load_weights",
    "pack",
    "read_any",
    "read_bundle",
    "read_gradient_bundle",
    "read_manifest",
    "recompute_frame",
    "replay_any",
    "replay_bundle",
    "rescreen",
    "share_weights",
    "snapshot",
    "software_versions",
    "unpack",
    "write_bundle",
    "write_gradient_bundle",
]
