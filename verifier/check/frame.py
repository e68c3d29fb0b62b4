"""What a check looks at: one tensor that a stage returned, and the tensor it was made from."""

from __future__ import annotations

from dataclasses import dataclass

import torch

FORWARD = 0
BACKWARD = 1


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One returned tensor and its counterpart, both on the CPU.

    ====================  ==============================  =====================================================
    frame                 ``output``                      ``input``
    ====================  ==============================  =====================================================
    forward, stage 0      activation [B, T, D]            embedding rows of the tokens [B, T, D]
    forward, inner        activation [B, T, D]            the stage's forward input [B, T, D]
    forward, last         per-token loss [B, T], nats     None
    backward, last        outgoing gradient [B, T, D]     None, or minus the head's rows of the target tokens
                                                          [B, T, D] (the direction a gradient must lean to)
    backward, inner       outgoing gradient [B, T, D]     incoming gradient [B, T, D]
    backward, stage 0     None or empty                   incoming gradient, or None; not screened
    ====================  ==============================  =====================================================

    ``worker`` is the slot that signed the frame; it decides nothing, and lets ``forget`` take a convict's frames
    out of the windows. B may change from frame to frame, T and D may not.
    """

    output: torch.Tensor | None
    input: torch.Tensor | None
    direction: int
    stage: int
    num_stages: int
    step: int
    worker: int = -1

    @property
    def is_loss(self) -> bool:
        """Whether ``output`` is a per-token loss: forward at the last stage."""
        return self.direction == FORWARD and self.stage == self.num_stages - 1

    @property
    def is_silent(self) -> bool:
        """Whether the stage returns no tensor here: backward at stage 0, where only the sketch is judged."""
        return self.direction == BACKWARD and self.stage == 0
