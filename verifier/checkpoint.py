"""Checkpoints: primaries write their stages, every driver its baselines; the manifest's digest goes into the record."""

from __future__ import annotations

import json
from collections.abc import Mapping

import blake3
import safetensors.torch

from sentinel_market.errors import ProtocolError
from sentinel_market.ports import BlobStore
from sentinel_market.wire.tensors import encode, encoded_hash
from verifier.check.engine import Engine
from verifier.reduce import StageState

VERSION = 1


def stage_blob(state: StageState) -> tuple[bytes, bytes]:
    """(weights, optimizer state): the weights as they travel, so their digest is the record's; m and v beside them."""
    moments = safetensors.torch.save({"m": state.m.contiguous(), "v": state.v.contiguous()})
    return encode(state.weights), moments


def baselines_blob(engine: Engine) -> bytes:
    """All that a driver's engine knows: baselines, gradient baselines, counters (safetensors)."""
    return safetensors.torch.save({name: tensor.contiguous() for name, tensor in engine.state_dict().items()})


def manifest(
    job_id: int,
    step: int,
    epoch: int,
    stages: list[tuple[str, str]],
    baselines: Mapping[str, str],
) -> bytes:
    """Canonical JSON. ``stages``: blob digests (weights, optimizer state) a stage; ``baselines``: account -> digest."""
    return json.dumps(
        {
            "version": VERSION,
            "job": job_id,
            "step": step,
            "epoch": epoch,
            "stages": [{"weights": w, "state": s} for w, s in stages],
            "baselines": dict(sorted(baselines.items())),
        },
        sort_keys=True,
        separators=(",", ":"),
    ).encode()


def manifest_hash(data: bytes) -> bytes:
    """32 bytes: ``StepRecord.checkpoint`` and the blob's digest."""
    return blake3.blake3(data).digest()


def read_back(store: BlobStore, digest: bytes, new_weights: list[bytes]) -> dict[str, object]:
    """Fetch the manifest and every stage and check them against the record. Raises PeerGone or ProtocolError."""
    found = json.loads(store.get(digest.hex()))
    stages = found["stages"]
    if len(stages) != len(new_weights):
        raise ProtocolError("checkpoint", f"the manifest lists {len(stages)} stages, the record {len(new_weights)}")
    for index, (entry, expected) in enumerate(zip(stages, new_weights, strict=True)):
        weights = store.get(entry["weights"])
        store.get(entry["state"])
        if encoded_hash(weights) != expected:
            raise ProtocolError("checkpoint", f"stage {index} of the checkpoint is not what the record names")
    return dict(found)
