"""What one seat can be charged with by the others."""

from __future__ import annotations

from enum import IntEnum


class FaultKind(IntEnum):
    """Faults of seats. Numbers are on the wire and under signatures: never reused."""

    UNSERVED_FRAME = 1
    UNSERVED_UPDATE = 2
    UNREVEALED = 3
    WRONG_UPDATE = 4
    RUBBER_STAMP = 5
    FALSE_ALARM = 6
    LAZY_AUDIT = 7
