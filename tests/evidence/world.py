"""A tiny job whose every frame is known, and bundles made of it. ``python -m tests.evidence.world FILE`` writes the
golden bundle of ``tests/vectors/evidence.tar`` anew, for when the format or the screen has changed on purpose."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from sentinel_market.chain.eip712 import Domain, digest
from sentinel_market.chain.signing import HotKey
from sentinel_market.domain.messages import FrameCommitment
from sentinel_market.models.config import ModelConfig
from sentinel_market.models.init import init_flat
from sentinel_market.models.layout import EMBEDDING, LM_HEAD, layout
from sentinel_market.models.stage import Stage
from sentinel_market.wire.commit import backward_input_hash, backward_output_hash
from sentinel_market.wire.tensors import tensor_hash
from verifier.check import BACKWARD, FORWARD, Baseline, Frame, Policy, Tolerance, Verdict, VerdictKind
from verifier.check.check import accept, screen
from verifier.check.confirm import Event
from verifier.check.tolerance import compare, compare_sketch
from verifier.evidence import (
    Bundle,
    Claim,
    Happened,
    SignedCommitment,
    SignedReplay,
    pack,
    recompute_frame,
    write_bundle,
)

CONFIG = ModelConfig(dim=16, num_layers=3, num_heads=2, num_kv_heads=1, ffn_dim=24, vocab_size=32, seq_len=8)
NUM_STAGES, NUM_REPLICAS, JOB, STEP, MICROBATCH = 3, 2, 7, 11, 5
DOMAIN = Domain("JobMarket", "1", 31337, "0x" + "11" * 20)
SEAT = "0x" + "22" * 20
KEYS = [HotKey(bytes([i + 1]) * 32) for i in range(NUM_STAGES * NUM_REPLICAS)]
SEEN = 48
"""Microbatches that the baselines have accepted before the one that is judged: past warm-up."""


def sign(key: HotKey, message: FrameCommitment, signer: str | None = None) -> SignedCommitment:
    return SignedCommitment(message=message, signature=key.sign(digest(DOMAIN, message)), signer=signer or key.address)


@dataclass
class World:
    """Everything of one microbatch in one step, computed honestly, and the baselines before it."""

    modules: list[Stage]
    inputs: list[torch.Tensor]
    targets: torch.Tensor
    incoming: list[torch.Tensor]
    forward: list[Claim]
    backward: list[Claim]
    baselines: dict[tuple[int, int], Baseline]

    def commitment(self, stage: int, direction: int, claimed: Claim, replica: int = 0) -> SignedCommitment:
        given = tensor_hash(self.inputs[stage])
        if direction == BACKWARD or stage == NUM_STAGES - 1:
            given = backward_input_hash(given, tensor_hash(self.incoming[stage]))
        if direction == FORWARD:
            assert claimed.output is not None
            out = tensor_hash(claimed.output)
        else:
            assert claimed.sketch is not None
            outgoing = None if claimed.output is None else tensor_hash(claimed.output)
            out = backward_output_hash(outgoing, tensor_hash(claimed.sketch))
        slot = stage * NUM_REPLICAS + replica
        weights = tensor_hash(self.modules[stage].flat)
        message = FrameCommitment(JOB, slot, 1, SEAT, 99, 3, STEP, MICROBATCH, direction, given, out, weights)
        return sign(KEYS[slot], message)

    def honest(self, stage: int, direction: int) -> Claim:
        return (self.forward if direction == FORWARD else self.backward)[stage]

    def frame(self, stage: int, direction: int, output: torch.Tensor | None) -> Frame:
        """As a driver shows it to the screen."""
        shown: torch.Tensor | None
        if direction == FORWARD:
            shown = None if stage == NUM_STAGES - 1 else self.inputs[stage]
            if stage == 0:
                shown = self._matrix(0, EMBEDDING)[self.inputs[0]]
        else:
            shown = self.incoming[stage]
            if stage == NUM_STAGES - 1:
                shown = -self._matrix(stage, LM_HEAD)[self.targets]
        return Frame(
            output=output,
            input=shown,
            direction=direction,
            stage=stage,
            num_stages=NUM_STAGES,
            step=STEP,
            worker=stage * NUM_REPLICAS,
        )

    def _matrix(self, stage: int, name: str) -> torch.Tensor:
        spec = next(s for s in layout(CONFIG, stage, NUM_STAGES) if s.name == name)
        return self.modules[stage].flat[spec.offset : spec.offset + spec.size].view(spec.shape)

    def bundle(self, stage: int, direction: int, cheat: Callable[[torch.Tensor], torch.Tensor] | None = None) -> Bundle:
        truth = self.honest(stage, direction)
        claimed = truth
        if cheat is not None and truth.output is not None:
            claimed = replace(truth, output=cheat(truth.output))
        elif cheat is not None and truth.sketch is not None:
            claimed = replace(truth, sketch=cheat(truth.sketch))
        upstream = []
        sketch_hash = None
        if stage > 0:
            upstream.append(self.commitment(stage - 1, FORWARD, self.forward[stage - 1], replica=1))
        if direction == BACKWARD and stage < NUM_STAGES - 1:
            upstream.append(self.commitment(stage + 1, BACKWARD, self.backward[stage + 1], replica=1))
            sketch = self.backward[stage + 1].sketch
            assert sketch is not None
            sketch_hash = tensor_hash(sketch)
        needs = direction == BACKWARD or stage == NUM_STAGES - 1
        baseline = self.baselines[stage, direction]
        screening = screen(self.frame(stage, direction, claimed.output), baseline, Policy()).verdict
        if claimed.output is not None and truth.output is not None:
            found = compare(claimed.output, truth.output, Tolerance())
        else:
            assert claimed.sketch is not None and truth.sketch is not None
            found = compare_sketch(claimed.sketch, truth.sketch, Tolerance())
        return Bundle(
            domain=DOMAIN,
            model=CONFIG,
            num_stages=NUM_STAGES,
            num_replicas=NUM_REPLICAS,
            commitment=self.commitment(stage, direction, claimed),
            upstream=tuple(upstream),
            incoming_sketch_hash=sketch_hash,
            replays=(
                SignedReplay(
                    commitment=self.commitment(stage, direction, truth, replica=1),
                    output=truth.output,
                    sketch=truth.sketch,
                ),
            ),
            policy=Policy(),
            tolerance=Tolerance(),
            screening=screening,
            baseline=baseline,
            history=(
                Happened(Event.SUSPECT, note=screening.reason[:200]),
                Happened(Event.REPLAY_DISAGREES, stage * NUM_REPLICAS + 1, found),
                Happened(Event.RECOMPUTE_DISAGREES, None, found),
            ),
            verdict=Verdict(VerdictKind.VIOLATION, "the recompute disagrees"),
            input=self.inputs[stage],
            incoming=self.incoming[stage] if needs else None,
            output=claimed.output,
            sketch=claimed.sketch,
            recompute=truth.output,
            recompute_sketch=truth.sketch,
            weights=self.modules[stage].flat,
        )


def make_world(rows: tuple[torch.Tensor, torch.Tensor] | None = None) -> World:
    """``rows``: tokens and targets [2, 8] of the microbatch that is judged; drawn if not given."""
    modules = [Stage(CONFIG, s, NUM_STAGES) for s in range(NUM_STAGES)]
    for module in modules:
        module.load_flat(init_flat(CONFIG, module.stage, NUM_STAGES, 1))
    baselines = {
        (stage, direction): Baseline.new(stage, NUM_STAGES, direction, 1)
        for stage in range(NUM_STAGES)
        for direction in (FORWARD, BACKWARD)
    }
    for seed in range(SEEN):
        seen = _pass(modules, baselines, 1000 + seed)
        for (stage, direction), baseline in baselines.items():
            frame = seen.frame(stage, direction, seen.honest(stage, direction).output)
            accept(baseline, screen(frame, baseline, Policy()))
    return _pass(modules, baselines, 0, rows)


def _pass(
    modules: list[Stage],
    baselines: dict[tuple[int, int], Baseline],
    seed: int,
    rows: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> World:
    drawn = torch.randint(0, 32, (2, 9), generator=torch.Generator().manual_seed(seed))
    tokens, targets = rows or (drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous())

    def run(stage: int, direction: int, given: torch.Tensor, incoming: torch.Tensor | None) -> Claim:
        return recompute_frame(
            modules[stage], job_id=JOB, step=STEP, direction=direction, input=given, incoming=incoming
        )

    inputs, forward = [tokens], []
    for s in range(NUM_STAGES):
        forward.append(run(s, FORWARD, inputs[s], targets if s == NUM_STAGES - 1 else None))
        output = forward[s].output
        assert output is not None
        inputs.append(output)
    incoming, backward = [targets], []
    for s in range(NUM_STAGES - 1, -1, -1):
        backward.insert(0, run(s, BACKWARD, inputs[s], incoming[0]))
        gradient = backward[0].output
        if gradient is not None:
            incoming.insert(0, gradient)
    return World(modules, inputs[:NUM_STAGES], targets, incoming, forward, backward, baselines)


def golden_bundle() -> bytes:
    """A sign flip of stage 1's activation, as a tar."""
    with TemporaryDirectory() as name:
        write_bundle(Path(name), make_world().bundle(1, FORWARD, lambda t: -t))
        return pack(Path(name))


if __name__ == "__main__":
    torch.set_num_threads(1)
    Path(sys.argv[1]).write_bytes(golden_bundle())
