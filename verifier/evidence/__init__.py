"""Evidence: one directory (or tar) from which anybody re-derives a verdict on a CPU, with no network.

::

    DIR/manifest.json            canonical JSON, strings and integers; its BLAKE3 is the bundle's digest
    DIR/input.snt                the stage's forward input: tokens [B, T] at stage 0, else [B, T, D]
    DIR/incoming.snt             backward: incoming gradient [B, T, D]; last stage: targets [B, T]
    DIR/output.snt, sketch.snt   what the accused signed; a stage-0 backward has a sketch only
    DIR/recompute.snt, recompute_sketch.snt    what the reporting seat computed
    DIR/replays/<i>.output.snt, <i>.sketch.snt signed replays of other replicas: supporting evidence, never the proof
    DIR/weights/<digest>.snt     the stage's flat weights [N], content-addressed, so that bundles can share them

The manifest names the digest of every file, and no file outside that list is read. Everything in a bundle comes from a
stranger: sizes, names and JSON are checked before use.
"""

from verifier.evidence.bundle import Bundle, SignedCommitment, SignedReplay, describe, software_versions
from verifier.evidence.files import bundle_digest, pack, read_bundle, unpack, write_bundle
from verifier.evidence.recompute import Recomputed, judge, recompute_frame
from verifier.evidence.replay import Check, ReplayResult, replay_bundle

__all__ = [
    "Bundle",
    "Check",
    "Recomputed",
    "ReplayResult",
    "SignedCommitment",
    "SignedReplay",
    "bundle_digest",
    "describe",
    "judge",
    "pack",
    "read_bundle",
    "recompute_frame",
    "replay_bundle",
    "software_versions",
    "unpack",
    "write_bundle",
]
