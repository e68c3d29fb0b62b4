"""Signing protection: a durable low watermark per (slot, nonce, verifier), reserved in blocks before signing.

Equivocation is two different commitments with the same (slot, nonce, verifier, session, sequence). A process that
crashes and comes back starts above everything that it may have signed, so an honest restart can never equivocate.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from sentinel_market.errors import ProtocolError

BLOCK = 4096
"""Sequences reserved by one write; also the largest jump that a verifier may ask for."""


class Watermark:
    """Admits each sequence once, in rising order. One file a (job, slot, nonce, verifier)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._next = self._read()
        self._reserved = self._next

    def _read(self) -> int:
        try:
            value = json.loads(self.path.read_text())["reserved"]
        except FileNotFoundError:
            return 1
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError(
                "watermark",
                f"{self.path} is damaged ({error}); restore it from a backup or leave the slot: "
                "signing without it could equivocate",
            ) from error
        if type(value) is not int or value < 1:
            raise ProtocolError("watermark", f"{self.path} holds {value!r}, expected a positive integer")
        return value

    @property
    def next_sequence(self) -> int:
        """The smallest sequence that may still be signed."""
        return self._next

    def admit(self, sequence: int, count: int = 1) -> None:
        """Take ``count`` sequences starting at ``sequence``; durable before it returns.

        Raises ProtocolError("sequence") for one that was passed already, and for a jump of more than a block,
        which does not move the watermark.
        """
        if sequence < self._next:
            raise ProtocolError("sequence", f"{sequence} was passed, the next admissible one is {self._next}")
        if sequence - self._next > BLOCK:
            raise ProtocolError("sequence", f"a jump from {self._next} to {sequence}, at most {BLOCK} at once")
        after = sequence + count
        if after > self._reserved:
            self._reserve(after + BLOCK)
        self._next = after

    def _reserve(self, limit: int) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".new")
        with temporary.open("w") as out:
            json.dump({"reserved": limit}, out)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(self.path)
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        self._reserved = limit
