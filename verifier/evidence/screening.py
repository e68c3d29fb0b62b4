"""The screen of a bundle's frame, done again: the same baseline, the same tensors, so the same scores and fences."""

from __future__ import annotations

import torch

from sentinel_market.models.layout import EMBEDDING, LM_HEAD, parameter
from verifier.check.baseline import Baseline
from verifier.check.check import screen
from verifier.check.frame import FORWARD, Frame
from verifier.check.verdict import Verdict
from verifier.evidence.bundle import Bundle

ROUNDING_E6 = 2
"""Scores are logarithms of float64 sums, rounded to 1e-6: another processor may round one the other way."""


def frame_of(bundle: Bundle) -> Frame:
    """The frame as the driver's screen saw it, with the counterpart of its kind (see ``Frame``). ValueError or
    RuntimeError when tensors and weights do not fit together."""
    message, stage, last = bundle.commitment.message, bundle.stage, bundle.num_stages - 1
    counterpart: torch.Tensor | None = None
    if message.direction == FORWARD:
        if stage == 0 and stage != last:
            counterpart = torch.nn.functional.embedding(bundle.input, _matrix(bundle, EMBEDDING))
        elif stage != last:
            counterpart = bundle.input
    elif stage == last:
        if bundle.incoming is not None:
            counterpart = -torch.nn.functional.embedding(bundle.incoming, _matrix(bundle, LM_HEAD))
    else:
        counterpart = bundle.incoming
    return Frame(
        output=bundle.output,
        input=counterpart,
        direction=message.direction,
        stage=stage,
        num_stages=bundle.num_stages,
        step=message.step,
        worker=message.slot,
    )


def _matrix(bundle: Bundle, name: str) -> torch.Tensor:
    if bundle.weights is None:
        raise ValueError(f"the weights are needed for {name}")
    return parameter(bundle.weights, bundle.model, bundle.stage, bundle.num_stages, name)


def rescreen(bundle: Bundle) -> Verdict | None:
    """What the screen says of the frame, held against the baseline before it; None where there is nothing to screen
    (a stage-0 backward, a frame that no screen looked at). Raises ValueError when the bundle's baseline is another
    boundary's."""
    baseline = bundle.baseline
    if baseline is None:
        return None
    wanted = (bundle.stage, bundle.num_stages, bundle.commitment.message.direction)
    if (baseline.stage, baseline.num_stages, baseline.direction) != wanted:
        raise ValueError(f"the baseline is that of stage {baseline.stage}, direction {baseline.direction}")
    frame = frame_of(bundle)
    if frame.is_silent:
        return None
    return screen(frame, baseline, bundle.policy).verdict


def differences(stated: Verdict, found: Verdict) -> list[str]:
    """Where two screenings of one frame say different things; empty when they agree."""
    if stated.kind is not found.kind:
        return [f"{found.kind.value} ({found.reason}), the bundle says {stated.kind.value} ({stated.reason})"]
    if [s.metric for s in stated.scores] != [s.metric for s in found.scores]:
        return [f"{len(found.scores)} scores, the bundle has {len(stated.scores)}"]
    wrong = []
    for mine, theirs in zip(found.scores, stated.scores, strict=True):
        pairs = ((mine.value_e6, theirs.value_e6), (mine.low_e6, theirs.low_e6), (mine.high_e6, theirs.high_e6))
        for a, b in pairs:
            if (a is None) != (b is None) or (a is not None and b is not None and abs(a - b) > ROUNDING_E6):
                wrong.append(f"{mine.text()}, the bundle says {theirs.text()}")
                break
    return wrong


def snapshot(baseline: Baseline) -> Baseline:
    """A copy that later accepts do not touch."""
    return Baseline.from_state_dict(baseline.state_dict())
