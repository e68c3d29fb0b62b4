"""Bundles of either kind, by what their manifest says: one frame, or one replica's whole stage gradient."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sentinel_market.chain.eip712 import Domain
from verifier.check.tolerance import Tolerance
from verifier.evidence.bundle import Bundle, describe
from verifier.evidence.files import bundle_digest, read_bundle, read_manifest
from verifier.evidence.gradient import (
    KIND,
    GradientBundle,
    describe_gradient,
    read_gradient_bundle,
    replay_gradient,
)
from verifier.evidence.replay import Known, ReplayResult, replay

AnyBundle = Bundle | GradientBundle


def read_any(source: Path, *, weights_directory: Path | None = None, weights_path: Path | None = None) -> AnyBundle:
    """A bundle's directory; arguments and errors as of ``read_bundle``."""
    read = read_gradient_bundle if read_manifest(source).get("kind") == KIND else read_bundle
    return read(source, weights_directory=weights_directory, weights_path=weights_path)


def replay_any(bundle: AnyBundle, hashed: bytes, known: Known) -> ReplayResult:
    """Re-derive the verdict of a bundle that is read already; ``hashed``: its digest."""
    if isinstance(bundle, GradientBundle):
        return replay_gradient(bundle, hashed, known)
    return replay(bundle, hashed, known)


def describe_any(bundle: AnyBundle) -> list[str]:
    """What happened, for people."""
    return describe_gradient(bundle) if isinstance(bundle, GradientBundle) else describe(bundle)


def replay_bundle(
    directory: Path,
    *,
    weights_directory: Path | None = None,
    weights_path: Path | None = None,
    data_hashes: frozenset[bytes] | None = None,
    expected_domain: Domain | None = None,
    expected_signer: str | None = None,
    expected_signers: Mapping[int, str] | None = None,
    expected_layout: tuple[int, int] | None = None,
    expected_tolerance: Tolerance | None = None,
) -> ReplayResult:
    """Re-derive the verdict from the files alone: digests, signatures, chaining, recompute, comparison; then what is
    supporting evidence. The keywords are those of ``Known``; ``expected_signer`` is the hot key of the accused slot.
    ProtocolError for files that are no bundle."""
    bundle = read_any(directory, weights_directory=weights_directory, weights_path=weights_path)
    signers = dict(expected_signers or {})
    if expected_signer is not None:
        signers[bundle.commitment.message.slot] = expected_signer
    known = Known(
        domain=expected_domain,
        signers=signers,
        layout=expected_layout,
        tolerance=expected_tolerance,
        data_hashes=data_hashes,
    )
    return replay_any(bundle, bundle_digest(directory), known)
