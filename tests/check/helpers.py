"""Frames of a make-believe stage: a fixed linear residual map with per-token content, so that honest frames vary."""

from __future__ import annotations

import torch

from verifier.check import BACKWARD, FORWARD, Baseline, Frame, Policy, accept, screen

B, T, D = 4, 16, 32


class Stage:
    """out = in + 0.5 * in @ W, in = common part + noise. Deterministic from its seed."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.weight = torch.randn(D, D, generator=self.generator) / D**0.5
        self.common = torch.randn(T, D, generator=self.generator)

    def frame(self, *, stage: int = 1, direction: int = FORWARD, worker: int = 3, step: int = 0) -> Frame:
        given = self.common + torch.randn(B, T, D, generator=self.generator)
        return Frame(
            output=given + 0.5 * given @ self.weight,
            input=given,
            direction=direction,
            stage=stage,
            num_stages=4,
            step=step,
            worker=worker,
        )

    def loss_frame(self, worker: int = 9) -> Frame:
        loss = torch.rand(B, T, generator=self.generator) * 2 + 0.1
        return Frame(output=loss, input=None, direction=FORWARD, stage=3, num_stages=4, step=0, worker=worker)


POLICY = Policy(warmup_frames=24, window=32)


def trained(stage: Stage, *, frames: int = 60, boundary: int = 1, direction: int = FORWARD) -> Baseline:
    """A baseline after so many honest frames of three workers."""
    baseline = Baseline.new(boundary, 4, direction, 5)
    for index in range(frames):
        frame = stage.frame(stage=boundary, direction=direction, worker=boundary * 3 + index % 3)
        accept(baseline, screen(frame, baseline, POLICY))
    return baseline


def trained_loss(stage: Stage, frames: int = 60) -> Baseline:
    """The same for the last stage's losses."""
    baseline = Baseline.new(3, 4, FORWARD, 5)
    for index in range(frames):
        accept(baseline, screen(stage.loss_frame(9 + index % 3), baseline, POLICY))
    return baseline


__all__ = ["BACKWARD", "FORWARD", "POLICY", "B", "D", "Stage", "T", "trained", "trained_loss"]
