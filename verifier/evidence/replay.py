"""Re-derive a verdict from the files alone, on a CPU, with no network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from sentinel_market.chain.eip712 import Domain, digest
from sentinel_market.chain.signing import recover
from sentinel_market.errors import ProtocolError
from sentinel_market.models.stage import Stage
from sentinel_market.wire.commit import backward_input_hash, backward_output_hash
from sentinel_market.wire.tensors import encode, encoded_hash
from verifier.check.frame import BACKWARD, FORWARD
from verifier.check.tolerance import Comparison, Tolerance, compare
from verifier.check.verdict import Verdict, VerdictKind
from verifier.evidence.bundle import Bundle
from verifier.evidence.files import bundle_digest, read_bundle
from verifier.evidence.recompute import Recomputed, judge, recompute_frame


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a replay looked at."""

    name: str
    ok: bool
    text: str


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The re-derived verdict: VIOLATION, ACCEPT (the accused was right) or INCONCLUSIVE (inadmissible, or a numeric
    edge), the checks that led there and the numbers."""

    verdict: Verdict
    checks: tuple[Check, ...]
    comparisons: tuple[Comparison, ...]
    bundle_digest: bytes

    def lines(self) -> list[str]:
        """For people, one line a check."""
        marks = [f"{'ok  ' if c.ok else 'FAIL'} {c.name}: {c.text}" for c in self.checks]
        return [*marks, f"{self.verdict.kind.value}: {self.verdict.reason}"]


def replay_bundle(
    directory: Path,
    *,
    weights_directory: Path | None = None,
    data_hashes: frozenset[bytes] | None = None,
    expected_domain: Domain | None = None,
    expected_signer: str | None = None,
    expected_signers: Mapping[int, str] | None = None,
    expected_layout: tuple[int, int] | None = None,
    expected_tolerance: Tolerance | None = None,
) -> ReplayResult:
    """Re-derive the verdict from the files alone: digests, signatures, chaining, recompute, comparison.

    What the files can not prove is taken from the caller where it knows better: ``expected_domain`` (the chain and
    contract it trusts), ``expected_signer`` (the hot key that the chain snapshotted with the accused slot) and
    ``expected_signers`` (the same for every slot that signed something here), ``expected_layout`` (stages, replicas)
    and ``expected_tolerance`` (the job's: a bundle could bring a tighter one to convict an honest worker),
    ``data_hashes`` (hashes of the token rows and targets that the job's data gives for this microbatch: without them
    the rows of stage 0 and the targets of the last stage are believed, and the check says so).
    """
    hashed = bundle_digest(directory)
    bundle = read_bundle(directory, weights_directory=weights_directory)
    checks = [Check("digests", True, "every file is what the manifest names")]
    if expected_layout is not None:
        found = (bundle.num_stages, bundle.num_replicas)
        checks.append(Check("layout", found == expected_layout, f"{found[0]} stages of {found[1]} replicas"))
    if expected_tolerance is not None:
        text = f"relative {bundle.tolerance.relative_e6}, element {bundle.tolerance.element_e6} parts per million"
        checks.append(Check("tolerance", bundle.tolerance == expected_tolerance, text))
    signers = dict(expected_signers or {})
    if expected_signer is not None:
        signers[bundle.commitment.message.slot] = expected_signer
    checks += _check_signatures(bundle, expected_domain, signers)
    checks += _check_content(bundle)
    checks += _check_chain(bundle, data_hashes)
    failed = [c for c in checks if not c.ok]
    if failed:
        reason = "inadmissible: " + "; ".join(f"{c.name}: {c.text}" for c in failed)
        return ReplayResult(Verdict(VerdictKind.INCONCLUSIVE, reason), tuple(checks), (), hashed)
    weights = bundle.weights
    assert weights is not None, "_check_content refuses a bundle without weights"
    message = bundle.commitment.message
    try:
        module = Stage(bundle.model, bundle.stage, bundle.num_stages)
        module.load_flat(weights)
        reference = recompute_frame(
            module,
            job_id=message.job_id,
            step=message.step,
            direction=message.direction,
            input=bundle.input,
            incoming=bundle.incoming,
        )
    except (ValueError, RuntimeError, IndexError) as error:
        reason = f"inadmissible: these inputs can not be recomputed: {error}"[:300]
        return ReplayResult(Verdict(VerdictKind.INCONCLUSIVE, reason), tuple(checks), (), hashed)
    claimed = Recomputed(bundle.output, bundle.sketch)
    verdict, comparisons = judge(claimed, reference, bundle.tolerance)
    for name, theirs, mine in (
        ("recompute", bundle.recompute, reference.output),
        ("recompute_sketch", bundle.recompute_sketch, reference.sketch),
    ):
        if theirs is not None and mine is not None:
            compared = compare(theirs, mine, bundle.tolerance)
            checks.append(Check(name, compared.agrees, f"the reporting seat's own: {compared.text()}"))
    checks += _check_replays(bundle, reference)
    return ReplayResult(verdict, tuple(checks), comparisons, hashed)


def _check_signatures(bundle: Bundle, domain: Domain | None, signers: Mapping[int, str]) -> list[Check]:
    checks = []
    if domain is not None:
        text = "the contract and chain that were expected" if bundle.domain == domain else f"is {bundle.domain}"
        checks.append(Check("domain", bundle.domain == domain, text))
    named = [("commitment", bundle.commitment)]
    named += [(f"upstream {i}", one) for i, one in enumerate(bundle.upstream)]
    for name, signed in named:
        try:
            found = recover(digest(bundle.domain, signed.message), signed.signature)
            expected = signers.get(signed.message.slot, signed.signer)
            checks.append(Check(f"signature of {name}", found == expected, f"by {found}"))
        except (ProtocolError, ValueError) as error:
            checks.append(Check(f"signature of {name}", False, str(error)[:200]))
    return checks


def _hash(tensor: torch.Tensor) -> bytes:
    return encoded_hash(encode(tensor))


def _check_content(bundle: Bundle) -> list[Check]:
    """The signed hashes are those of the files."""
    message = bundle.commitment.message
    is_last = bundle.stage == bundle.num_stages - 1
    checks = []
    if message.direction == BACKWARD or is_last:
        got = None if bundle.incoming is None else backward_input_hash(_hash(bundle.input), _hash(bundle.incoming))
    else:
        got = _hash(bundle.input)
    checks.append(Check("input hash", got == message.input_hash, "the signed input is the one in the bundle"))
    if message.direction == BACKWARD:
        outgoing = None if bundle.output is None else _hash(bundle.output)
        got = None if bundle.sketch is None else backward_output_hash(outgoing, _hash(bundle.sketch))
    else:
        got = None if bundle.output is None else _hash(bundle.output)
    checks.append(Check("output hash", got == message.output_hash, "the signed output is the one in the bundle"))
    there = bundle.weights is not None and _hash(bundle.weights) == message.weights_hash
    checks.append(Check("weights", there, f"the weights {message.weights_hash.hex()[:16]} that were signed"))
    return checks


def _check_chain(bundle: Bundle, data_hashes: frozenset[bytes] | None) -> list[Check]:
    """Input and incoming gradient are outputs of accepted commitments of this microbatch, or rows of the data."""
    message = bundle.commitment.message
    last = bundle.num_stages - 1

    def link(stage: int, direction: int, wanted: bytes) -> bool:
        return any(
            (one.message.job_id, one.message.step, one.message.microbatch, one.message.direction)
            == (message.job_id, message.step, message.microbatch, direction)
            and one.message.slot // bundle.num_replicas == stage
            and one.message.output_hash == wanted
            for one in bundle.upstream
        )

    def data(name: str, tensor: torch.Tensor) -> Check:
        if data_hashes is None:
            return Check(f"chain of {name}", True, "believed: no data at hand to hold the rows against")
        return Check(f"chain of {name}", _hash(tensor) in data_hashes, "rows that the job's data gives")

    checks = []
    if bundle.stage == 0:
        checks.append(data("input", bundle.input))
    else:
        ok = link(bundle.stage - 1, FORWARD, _hash(bundle.input))
        checks.append(Check("chain of input", ok, f"the output of an accepted forward of stage {bundle.stage - 1}"))
    if bundle.incoming is not None and bundle.stage == last:
        checks.append(data("targets", bundle.incoming))
    elif message.direction == BACKWARD and bundle.incoming is not None:
        sketch = bundle.incoming_sketch_hash
        ok = sketch is not None and link(
            bundle.stage + 1, BACKWARD, backward_output_hash(_hash(bundle.incoming), sketch)
        )
        text = f"the gradient of an accepted backward of stage {bundle.stage + 1}"
        checks.append(Check("chain of incoming gradient", ok, text))
    return checks


def _check_replays(bundle: Bundle, reference: Recomputed) -> list[Check]:
    """Supporting evidence: reported, never decisive."""
    checks = []
    for index, replay in enumerate(bundle.replays):
        signed = replay.commitment
        try:
            by = recover(digest(bundle.domain, signed.message), signed.signature)
        except (ProtocolError, ValueError) as error:
            checks.append(Check(f"replay {index}", False, str(error)[:200]))
            continue
        verdict, _ = judge(Recomputed(replay.output, replay.sketch), reference, bundle.tolerance)
        ok = by == signed.signer and verdict.kind is VerdictKind.ACCEPT
        checks.append(Check(f"replay {index}", ok, f"by {by}: {verdict.reason}"))
    return checks
