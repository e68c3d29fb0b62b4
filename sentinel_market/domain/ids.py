"""Identifiers and units. NewTypes, so that a step is never passed where a stage is meant."""

from __future__ import annotations

from typing import NewType

JobId = NewType("JobId", int)
Step = NewType("Step", int)
StageIndex = NewType("StageIndex", int)
ReplicaIndex = NewType("ReplicaIndex", int)
SlotIndex = NewType("SlotIndex", int)
"""A slot is (stage, replica) flattened: ``slot = stage * num_replicas + replica``."""
SeatIndex = NewType("SeatIndex", int)
MicrobatchIndex = NewType("MicrobatchIndex", int)
Address = NewType("Address", str)
"""Checksummed 0x address (EIP-55)."""
Wei = NewType("Wei", int)
"""An amount in the token's base units."""
Digest = NewType("Digest", bytes)
"""32 bytes."""

FORWARD = 0
BACKWARD = 1
