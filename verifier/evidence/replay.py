"""Re-derive a verdict from the files alone, on a CPU, with no network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from sentinel_market.chain.eip712 import Domain, digest
from sentinel_market.chain.signing import recover
from sentinel_market.errors import ProtocolError
from sentinel_market.models.config import ModelConfig
from sentinel_market.models.layout import flat_size
from sentinel_market.models.stage import Stage
from sentinel_market.wire.commit import backward_input_hash, backward_output_hash
from sentinel_market.wire.tensors import encode, encoded_hash
from verifier.check.frame import BACKWARD, FORWARD
from verifier.check.policy import Policy
from verifier.check.tolerance import Comparison, Tolerance, compare, compare_sketch
from verifier.check.verdict import Verdict, VerdictKind
from verifier.evidence.bundle import Bundle, SignedReplay, printable
from verifier.evidence.recompute import DTYPES, Claim, edge_inputs, judge, recompute_frame
from verifier.evidence.screening import differences, rescreen

if TYPE_CHECKING:
    from verifier.evidence.gradient import GradientBundle


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a replay looked at. ``decides``: whether the bundle is inadmissible without it; what does not
    decide is supporting evidence."""

    name: str
    ok: bool
    text: str
    decides: bool = True


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The re-derived verdict: VIOLATION, ACCEPT (the accused was right) or INCONCLUSIVE (inadmissible, or a numeric
    edge), the checks that led there and the numbers. ``stated``: what the bundle says."""

    verdict: Verdict
    checks: tuple[Check, ...]
    comparisons: tuple[Comparison, ...]
    bundle_digest: bytes
    stated: Verdict
    admissible: bool

    @property
    def as_stated(self) -> bool:
        """Whether the files give the verdict that the bundle states."""
        return self.verdict.kind is self.stated.kind

    def lines(self) -> list[str]:
        """For people, one line a check."""
        marks = []
        for c in self.checks:
            mark = "ok  " if c.ok else "FAIL" if c.decides else "no  "
            marks.append(f"{mark} {c.name}: {c.text}")
        return [printable(line) for line in (*marks, f"{self.verdict.kind.value}: {self.verdict.reason}")]


@dataclass(frozen=True, kw_only=True)
class Known:
    """What whoever replays knows better than the files; None: believed.

    ``domain``: the chain and contract it trusts. ``signers``: slot -> the hot key that the chain snapshotted with it.
    ``layout``: stages, replicas. ``model``, ``tolerance``, ``policy``, ``dtype``: the job's (a bundle could bring a
    tighter tolerance to convict an honest worker). ``data_hashes``: of the token rows and targets that the job's data
    gives for this microbatch; without them the rows of stage 0 and the targets of the last stage are believed, and
    the check says so.
    """

    domain: Domain | None = None
    signers: Mapping[int, str] = field(default_factory=dict)
    layout: tuple[int, int] | None = None
    model: ModelConfig | None = None
    tolerance: Tolerance | None = None
    policy: Policy | None = None
    dtype: str | None = None
    data_hashes: frozenset[bytes] | None = None


def replay(bundle: Bundle, hashed: bytes, known: Known) -> ReplayResult:
    """Re-derive the verdict on a frame: signatures, chaining, recompute, comparison; then, as supporting evidence, the
    screening, the reporting seat's own recompute and the replays. ``hashed``: the bundle's digest."""
    checks = [Check("digests", True, "every file is what the manifest names"), *admissibility(bundle, known)]

    def inadmissible(why: str) -> ReplayResult:
        verdict = Verdict(VerdictKind.INCONCLUSIVE, f"inadmissible: {why}")
        return ReplayResult(verdict, tuple(checks), (), hashed, bundle.verdict, admissible=False)

    failed = [c for c in checks if not c.ok]
    if failed:
        return inadmissible("; ".join(f"{c.name}: {c.text}" for c in failed))
    try:
        reference, low = _recompute(bundle)
    except (ValueError, RuntimeError, IndexError) as error:
        return inadmissible(f"these inputs can not be recomputed: {error}"[:300])
    verdict, comparisons = judge(Claim(bundle.output, bundle.sketch), reference, bundle.tolerance, low)
    checks += _check_screening(bundle)
    for name, theirs, mine, test in (
        ("recompute", bundle.recompute, reference.output, compare),
        ("recompute_sketch", bundle.recompute_sketch, reference.sketch, compare_sketch),
    ):
        if theirs is not None and mine is not None:
            compared = test(theirs, mine, bundle.tolerance)
            checks.append(Check(name, compared.agrees, f"the reporting seat's own: {compared.text()}", decides=False))
    checks += _check_replays(bundle, reference, known.signers)
    return ReplayResult(verdict, tuple(checks), comparisons, hashed, bundle.verdict, admissible=True)


def admissibility(bundle: Bundle, known: Known) -> list[Check]:
    """What must hold before a recompute says anything about the accused: its signatures, the signed hashes, the
    weights, and where the inputs came from."""
    checks = check_known(bundle, known)
    checks += _check_signatures(bundle, known.domain, known.signers)
    checks += _check_content(bundle)
    checks += _check_chain(bundle, known.data_hashes)
    return checks


def _recompute(bundle: Bundle) -> tuple[Claim, Claim | None]:
    """What should have been returned; and the same from inputs rounded to the job's dtype, None if that is the same."""
    weights, message = bundle.weights, bundle.commitment.message
    assert weights is not None, "_check_content refuses a bundle without weights"
    module = Stage(bundle.model, bundle.stage, bundle.num_stages)
    module.load_flat(weights)

    def run(given: torch.Tensor, incoming: torch.Tensor | None) -> Claim:
        return recompute_frame(
            module,
            job_id=message.job_id,
            step=message.step,
            direction=message.direction,
            input=given,
            incoming=incoming,
        )

    low = edge_inputs(bundle.input, bundle.incoming, DTYPES[bundle.dtype])
    return run(bundle.input, bundle.incoming), None if low is None else run(*low)


def check_known(bundle: Bundle | GradientBundle, known: Known) -> list[Check]:
    """What a bundle states of the job against what the caller knows of it."""
    checks = []
    if known.layout is not None:
        found = (bundle.num_stages, bundle.num_replicas)
        checks.append(Check("layout", found == known.layout, f"{found[0]} stages of {found[1]} replicas"))
    if known.model is not None:
        checks.append(Check("model", bundle.model == known.model, "the job's"))
    if known.tolerance is not None:
        t = bundle.tolerance
        text = f"relative {t.relative_e6}, element {t.element_e6}, sketch {t.sketch_e6} parts per million"
        checks.append(Check("tolerance", t == known.tolerance, text))
    if known.policy is not None:
        checks.append(Check("policy", bundle.policy == known.policy, bundle.policy.name))
    if known.dtype is not None:
        checks.append(Check("dtype", bundle.dtype == known.dtype, bundle.dtype))
    return checks


def _check_screening(bundle: Bundle) -> list[Check]:
    """What raised suspicion, from the baseline before the frame: reported, never decisive."""
    try:
        found = rescreen(bundle)
    except (ProtocolError, ValueError, RuntimeError, IndexError, StopIteration) as error:
        return [Check("screening", False, f"cannot be done again: {error}"[:300], decides=False)]
    if found is None:
        return []
    wrong = differences(bundle.screening, found)
    assert bundle.baseline is not None
    text = f"the same {len(found.scores)} scores from the baseline of {bundle.baseline.frames} frames: {found.reason}"
    return [Check("screening", not wrong, "; ".join(wrong)[:500] or text, decides=False)]


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
    got = _output_hash(message.direction, bundle.output, bundle.sketch)
    checks.append(Check("output hash", got == message.output_hash, "the signed output is the one in the bundle"))
    checks.append(_check_weights(bundle))
    return checks


def _output_hash(direction: int, output: torch.Tensor | None, sketch: torch.Tensor | None) -> bytes | None:
    outgoing = None if output is None else _hash(output)
    if direction == FORWARD:
        return outgoing
    return None if sketch is None else backward_output_hash(outgoing, _hash(sketch))


def _check_weights(bundle: Bundle) -> Check:
    """``read_bundle`` has held the weights against the signed digest; here: are they there, and do they fit?"""
    weights, wanted = bundle.weights, bundle.commitment.message.weights_hash.hex()
    if weights is None:
        text = f"not here: they are needed to recompute; give the weights of digest {wanted}"
        return Check("weights", False, text)
    if weights.dtype != torch.float32:
        return Check("weights", False, f"are {weights.dtype}; flat float32 weights are due")
    try:
        size = flat_size(bundle.model, bundle.stage, bundle.num_stages)
    except ValueError as error:
        return Check("weights", False, str(error)[:200])
    if weights.shape != (size,) or bundle.input.dim() < 2 or bundle.input.shape[1] != bundle.model.seq_len:
        text = f"{list(weights.shape)} and input {list(bundle.input.shape)} do not fit the model: [{size}] and "
        return Check("weights", False, text + f"sequences of {bundle.model.seq_len} are due")
    return Check("weights", True, f"the weights {wanted[:16]} that were signed")


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


def _check_replays(bundle: Bundle, reference: Claim, signers: Mapping[int, str]) -> list[Check]:
    """Supporting evidence: reported, never decisive."""
    checks = []
    for index, one in enumerate(bundle.replays):
        name, signed = f"replay {index}", one.commitment
        try:
            by = recover(digest(bundle.domain, signed.message), signed.signature)
        except (ProtocolError, ValueError) as error:
            checks.append(Check(name, False, str(error)[:200], decides=False))
            continue
        problem = _replay_problem(bundle, one, by, signers)
        if problem:
            checks.append(Check(name, False, f"by {by}: {problem}", decides=False))
            continue
        verdict, _ = judge(Claim(one.output, one.sketch), reference, bundle.tolerance)
        text = f"by {by}, slot {signed.message.slot}: {verdict.reason}"
        checks.append(Check(name, verdict.kind is VerdictKind.ACCEPT, text, decides=False))
    return checks


def _replay_problem(bundle: Bundle, one: SignedReplay, by: str, signers: Mapping[int, str]) -> str:
    """Why this is no replay of the accused frame by another replica; "" if it is."""
    theirs, ours = one.commitment.message, bundle.commitment.message
    if by != signers.get(theirs.slot, one.commitment.signer):
        return f"slot {theirs.slot} belongs to another key"
    if theirs.slot == ours.slot or theirs.slot // bundle.num_replicas != bundle.stage:
        return f"slot {theirs.slot} is no other replica of stage {bundle.stage}"
    for name in ("job_id", "step", "microbatch", "direction", "input_hash", "weights_hash"):
        if getattr(theirs, name) != getattr(ours, name):
            return f"{name} is not that of the accused frame"
    if _output_hash(theirs.direction, one.output, one.sketch) != theirs.output_hash:
        return "the signed output is not the one in the bundle"
    return ""
