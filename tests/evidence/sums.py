"""Stage gradients of a tiny job, honest and false, and bundles made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from sentinel_market.chain.eip712 import digest
from sentinel_market.chain.signing import HotKey
from sentinel_market.domain.messages import StageGradient
from sentinel_market.domain.step_record import accepted_set_digest
from sentinel_market.models.init import init_flat
from sentinel_market.models.stage import Stage
from sentinel_market.wire.tensors import tensor_hash
from tests.evidence.world import CONFIG, DOMAIN, JOB, KEYS, NUM_REPLICAS, NUM_STAGES, SEAT, STEP, World, _pass, sign
from verifier.check import BACKWARD, FORWARD, Policy, Tolerance, Verdict, VerdictKind
from verifier.evidence import GradientBundle, SignedCommitment, SignedGradient, SummedBackward
from verifier.evidence.recompute import parameter_gradient

SUMMED = 3
"""Microbatches in the sum."""
Lie = Callable[[list[torch.Tensor]], torch.Tensor]


def make_worlds() -> list[World]:
    """One a microbatch, all with the same weights."""
    modules = [Stage(CONFIG, s, NUM_STAGES) for s in range(NUM_STAGES)]
    for module in modules:
        module.load_flat(init_flat(CONFIG, module.stage, NUM_STAGES, 1))
    return [_pass(modules, {}, seed) for seed in range(SUMMED)]


def signed(world: World, stage: int, direction: int, microbatch: int, replica: int) -> SignedCommitment:
    found = world.commitment(stage, direction, world.honest(stage, direction), replica)
    message = replace(found.message, microbatch=microbatch, sequence=10 + microbatch)
    return sign(KEYS[message.slot], message)


def sign_sum(message: StageGradient, key: HotKey | None = None) -> SignedGradient:
    key = key or KEYS[message.slot]
    return SignedGradient(message=message, signature=key.sign(digest(DOMAIN, message)), signer=key.address)


def summed(worlds: list[World], stage: int, lie: Lie = lambda parts: torch.stack(parts).sum(0)) -> GradientBundle:
    backwards, parts = [], []
    for microbatch, world in enumerate(worlds):
        down = world.backward[stage + 1].sketch if stage < NUM_STAGES - 1 else None
        backwards.append(
            SummedBackward(
                commitment=signed(world, stage, BACKWARD, microbatch, 0),
                input=world.inputs[stage],
                incoming=world.incoming[stage],
                upstream=signed(world, stage - 1, FORWARD, microbatch, 1) if stage else None,
                downstream=signed(world, stage + 1, BACKWARD, microbatch, 1) if down is not None else None,
                sketch_hash=None if down is None else tensor_hash(down),
            )
        )
        module = world.modules[stage]
        parts.append(parameter_gradient(module, input=world.inputs[stage], incoming=world.incoming[stage]).clone())
    submitted = lie(parts)
    message = StageGradient(
        JOB,
        stage * NUM_REPLICAS,
        1,
        SEAT,
        99,
        40,
        STEP,
        accepted_set_digest(digest(DOMAIN, one.commitment.message) for one in backwards),
        len(backwards),
        tensor_hash(submitted),
        tensor_hash(worlds[0].modules[stage].flat),
    )
    return GradientBundle(
        domain=DOMAIN,
        model=CONFIG,
        num_stages=NUM_STAGES,
        num_replicas=NUM_REPLICAS,
        commitment=sign_sum(message),
        backwards=tuple(backwards),
        submitted=submitted,
        policy=Policy(),
        tolerance=Tolerance(),
        screening=Verdict(VerdictKind.SUSPECT, "a test"),
        verdict=Verdict(VerdictKind.VIOLATION, "the recompute disagrees"),
        weights=worlds[0].modules[stage].flat,
    )


def flipped(parts: list[torch.Tensor]) -> torch.Tensor:
    return -torch.stack(parts).sum(0)
