"""Proof that an auditor recomputed a frame: forms of its own output, shown before it sees what the worker returned.

The key names auditor and frame, so no proof serves another seat or another frame; and whoever holds the frame's true
output knows what the proof must be.
"""

from __future__ import annotations

import blake3
import numpy as np
import torch

from sentinel_market.wire.tensors import tensor_hash
from verifier.evidence.recompute import Claim

WIDTH = 64


def proof_of(claim: Claim, auditor: str, subject: bytes) -> torch.Tensor:
    """fp32 [64]: of an activation, a loss or an outgoing gradient of any shape; of the sketch where a backward has no
    other output (stage 0). Seen as G [ceil(n/64), 64], padded with zeros, it is r G with r = +-1 a row."""
    tensor = claim.output if claim.output is not None else claim.sketch
    assert tensor is not None
    flat = tensor.detach().to(torch.float32).reshape(-1)
    rows = -(-flat.numel() // WIDTH)
    padded = torch.nn.functional.pad(flat, (0, rows * WIDTH - flat.numel())).view(rows, WIDTH)
    key = blake3.blake3(b"sentinel-market audit work 1" + bytes.fromhex(auditor[2:]) + subject)
    bits = np.unpackbits(np.frombuffer(key.digest(length=-(-rows // 8)), dtype=np.uint8), bitorder="little")[:rows]
    return torch.mv(padded.t(), torch.from_numpy(bits.astype(np.float32) * 2 - 1))


def work_hash(proof: torch.Tensor) -> bytes:
    """What the auditor signs of it."""
    return tensor_hash(proof)
