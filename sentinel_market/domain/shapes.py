"""What every frame of a job must look like: known from the job alone, so a stranger's bytes can be refused early."""

from __future__ import annotations

from dataclasses import dataclass

HEADER_BYTES = 64
SLACK_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class FrameShapes:
    """Sizes of one job: B sequences of T tokens, D channels; ``largest_stage`` is N of the largest stage."""

    batch: int
    length: int
    dim: int
    largest_stage: int

    @property
    def tokens(self) -> tuple[int, int]:
        return (self.batch, self.length)

    @property
    def activation(self) -> tuple[int, int, int]:
        return (self.batch, self.length, self.dim)

    @property
    def max_message_bytes(self) -> int:
        """No honest message between a worker and a seat is larger."""
        activation = 4 * self.batch * self.length * self.dim
        tokens = 8 * self.batch * self.length
        return 2 * activation + 2 * tokens + 4 * self.largest_stage + 8 * HEADER_BYTES + SLACK_BYTES
