"""How far honest computations of one frame lie apart, and the tolerance that follows: ``python -m bench.tolerance``.

The same stage, input and weights, computed on the ways that an honest machine of a device class may take (threads,
attention kernel, a sequence at a time, double precision, the sketch as a difference of an accumulator), in the job's
dtype, against the fp32 recompute that convicts. Beside it, cheats that must not pass. Exit code 1 when the tolerance
that ``verifier.check.calibrate`` states for this dtype and device class is not above the noise or lets a cheat pass.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from sentinel_market.data.corpus import load_corpus
from sentinel_market.errors import ConfigError
from sentinel_market.models.config import ModelConfig
from sentinel_market.models.init import init_flat
from sentinel_market.models.sketch import Sketch
from sentinel_market.models.stage import Stage
from verifier.check.calibrate import CRITERIA, MARGIN, TOLERANCES, Calibration, Sample, calibrate, passes
from verifier.check.frame import BACKWARD, FORWARD
from verifier.evidence.recompute import DTYPES, Claim, recompute_frame

NUM_STAGES = 4
ROUNDS = 4
Way = Callable[[Stage, int, torch.Tensor, torch.Tensor], Claim]


def compute(stage: Stage, direction: int, x: torch.Tensor, incoming: torch.Tensor) -> Claim:
    """The recompute itself."""
    return recompute_frame(stage, job_id=1, step=1, direction=direction, input=x, incoming=incoming)


def two_threads(stage: Stage, direction: int, x: torch.Tensor, incoming: torch.Tensor) -> Claim:
    """Another order of sums inside matrix products."""
    torch.set_num_threads(2)
    try:
        return compute(stage, direction, x, incoming)
    finally:
        torch.set_num_threads(1)


def plain_attention(stage: Stage, direction: int, x: torch.Tensor, incoming: torch.Tensor) -> Claim:
    """Attention in steps in place of the fused kernel."""
    with sdpa_kernel(SDPBackend.MATH):
        return compute(stage, direction, x, incoming)


def sequence_at_a_time(stage: Stage, direction: int, x: torch.Tensor, incoming: torch.Tensor) -> Claim:
    """B computations of one sequence each."""
    outs, total = [], torch.zeros(64)
    for b in range(x.shape[0]):
        found = compute(stage, direction, x[b : b + 1], incoming[b : b + 1])
        share = x.shape[0] if stage.is_last and direction == BACKWARD else 1  # the mean over B
        if found.output is not None:
            outs.append(found.output / share)
        if found.sketch is not None:
            total += found.sketch / share
    return Claim(torch.cat(outs) if outs else None, total if direction == BACKWARD else None)


def in_double(stage: Stage, direction: int, x: torch.Tensor, incoming: torch.Tensor) -> Claim:
    """What fp32 is an approximation of."""
    precise = Stage(stage.config, stage.stage, NUM_STAGES)
    flat = stage.flat.double().requires_grad_()
    precise.rope_cos, precise.rope_sin = stage.rope_cos.double(), stage.rope_sin.double()
    given = x if x.dtype == torch.int64 else x.double().requires_grad_()
    target = incoming if incoming.dtype == torch.int64 else incoming.double()
    with precise.using(flat):
        out = precise.token_loss(given, target) if precise.is_last else precise(given)
        if direction == FORWARD:
            return Claim(out.detach(), None)
        if precise.is_last:
            torch.autograd.backward(out.mean())
        else:
            torch.autograd.backward(out, target)
    assert flat.grad is not None
    return Claim(None if stage.is_first else given.grad, Sketch(1, 1).sketch(flat.grad.float()))


def accumulated(stage: Stage, direction: int, x: torch.Tensor, incoming: torch.Tensor) -> Claim:
    """The worker's way: sketch after minus sketch before, with seven other microbatches in the accumulator."""
    found = compute(stage, direction, x, incoming)
    if found.sketch is None:
        return found
    forms = Sketch(1, 1)
    stage.zero_grad_flat()
    for _ in range(7):
        _backward(stage, x.roll(1, 1), incoming)
    before = forms.sketch(stage.flat_grad)
    _backward(stage, x, incoming)
    return Claim(found.output, forms.sketch(stage.flat_grad) - before)


def _backward(stage: Stage, x: torch.Tensor, incoming: torch.Tensor) -> None:
    given = x if stage.is_first else x.detach().clone().requires_grad_()
    if stage.is_last:
        torch.autograd.backward(stage.token_loss(given, incoming).mean())
    else:
        torch.autograd.backward(stage(given), incoming)


def lower(dtype: torch.dtype) -> Way:
    """Matrix products in a narrower dtype."""

    def way(stage: Stage, direction: int, x: torch.Tensor, incoming: torch.Tensor) -> Claim:
        with torch.autocast("cpu", dtype=dtype):
            return compute(stage, direction, x, incoming)

    return way


def rounded_once(dtype: torch.dtype) -> Way:
    """Computed right, and sent with fewer digits."""

    def way(stage: Stage, direction: int, x: torch.Tensor, incoming: torch.Tensor) -> Claim:
        found = compute(stage, direction, x, incoming)
        # a stage-0 backward has a sketch only: there it is the sketch that loses digits
        if found.output is None:
            return Claim(None, None if found.sketch is None else found.sketch.to(dtype).float())
        return Claim(found.output.to(dtype).float(), found.sketch)

    return way


def nudged_weights(size: float) -> Way:
    """Weights that are a little off, as after a step that was left out."""

    def way(stage: Stage, direction: int, x: torch.Tensor, incoming: torch.Tensor) -> Claim:
        other = Stage(stage.config, stage.stage, NUM_STAGES)
        noise = torch.randn(stage.flat.shape, generator=torch.Generator().manual_seed(5))
        other.load_flat(stage.flat + size * noise)
        return compute(other, direction, x, incoming)

    return way


def in_dtype(way: Way, dtype: torch.dtype) -> Way:
    """An honest way, by a worker that computes in the job's dtype."""

    def run(stage: Stage, direction: int, x: torch.Tensor, incoming: torch.Tensor) -> Claim:
        with torch.autocast("cpu", dtype=dtype):
            return way(stage, direction, x, incoming)

    return way if dtype is torch.float32 else run


def ways(dtype: torch.dtype) -> tuple[dict[str, Way], dict[str, Way]]:
    """Honest ways and cheats for a job of this dtype."""
    honest: dict[str, Way] = {
        "two threads": two_threads,
        "plain attention": plain_attention,
        "a sequence at a time": sequence_at_a_time,
        "sketch of an accumulator": accumulated,
    }
    if dtype is torch.float32:
        honest["double precision"] = in_double
        return honest, {
            "bf16 matrix products": lower(torch.bfloat16),
            "output rounded to bf16": rounded_once(torch.bfloat16),
            "weights off by 1e-4": nudged_weights(1e-4),
        }
    return {name: in_dtype(way, dtype) for name, way in honest.items()}, {
        "output rounded to fp8 (e4m3)": rounded_once(torch.float8_e4m3fn),
        "weights off by 1e-2": nudged_weights(1e-2),
    }


def measure(claimed: Claim, reference: Claim) -> Sample:
    """The three errors, as ``verifier.check.tolerance`` compares them."""
    relative = element = sketch = None
    if claimed.output is not None and reference.output is not None:
        apart, ref = claimed.output.double() - reference.output.double(), reference.output.double()
        relative = float(apart.norm() / ref.norm())
        element = float(apart.abs().max() / ref.square().mean().sqrt())
    if claimed.sketch is not None and reference.sketch is not None:
        sketch = float((claimed.sketch.double() - reference.sketch.double()).norm() / reference.sketch.double().norm())
    return Sample(relative, element, sketch)


def collect(dtype: torch.dtype, dim: int, layers: int) -> tuple[dict[str, list[Sample]], dict[str, list[Sample]]]:
    """Samples of every way over all stages and directions, on the standard library's text."""
    config = ModelConfig(dim=dim, num_layers=layers, num_heads=4, num_kv_heads=4, ffn_dim=3 * dim, seq_len=128)
    stages = [Stage(config, s, NUM_STAGES) for s in range(NUM_STAGES)]
    for stage in stages:
        stage.load_flat(init_flat(config, stage.stage, NUM_STAGES, 0))
    data = torch.from_numpy(load_corpus("stdlib", max_bytes=400_000).train.copy())
    honest, cheats = ways(dtype)
    found: tuple[dict[str, list[Sample]], dict[str, list[Sample]]] = (
        {name: [] for name in honest},
        {name: [] for name in cheats},
    )
    for round_ in range(ROUNDS):
        starts = [i * 1_000 + round_ * 50_000 for i in range(4)]
        rows = torch.stack([data[s : s + 129].long() for s in starts])
        inputs = [rows[:, :-1]]
        for stage in stages[:-1]:
            inputs.append(stage(inputs[-1]).detach())
        incoming = rows[:, 1:]
        for s in range(NUM_STAGES - 1, -1, -1):
            for direction in (FORWARD, BACKWARD):
                reference = compute(stages[s], direction, inputs[s], incoming)
                for names, samples in zip((honest, cheats), found, strict=True):
                    for name, way in names.items():
                        samples[name].append(measure(way(stages[s], direction, inputs[s], incoming), reference))
            gradient = compute(stages[s], BACKWARD, inputs[s], incoming).output
            if gradient is not None:
                incoming = gradient
    return found


def _cell(samples: list[Sample], name: str, pick: Callable[[list[float]], float]) -> str:
    values = [value for one in samples if (value := getattr(one, name)) is not None]
    return f"{pick(values):.1e}" if values else "-"


def report(
    honest: dict[str, list[Sample]], cheats: dict[str, list[Sample]], found: Calibration, dtype: str
) -> tuple[str, bool]:
    """A Markdown table, and whether the stated tolerance holds."""
    lines = ["| way | relative | largest element / rms | sketch |", "|---|---|---|---|"]
    lines += [f"| {n} | " + " | ".join(_cell(s, c, max) for c in CRITERIA) + " |" for n, s in honest.items()]
    lines += [f"| cheat: {n} | " + " | ".join(_cell(s, c, min) for c in CRITERIA) + " |" for n, s in cheats.items()]
    t = found.tolerance
    lines.append(f"| **calibrated** | {t.relative_e6 / 1e6:.0e} | {t.element_e6 / 1e6:.0e} | {t.sketch_e6 / 1e6:.0e} |")
    if found.missed:
        lines.append(f"{len(found.missed)} of the cheats' frames would pass the calibrated tolerance")
    stated = TOLERANCES.get((dtype, "cpu"))
    if stated is None:
        lines.append(f"no tolerance is stated for {dtype} on cpu")
        return "\n".join(lines), not found.missed
    margins = found.margins(stated)
    passed = sum(passes(one, stated) for samples in cheats.values() for one in samples)
    limits = ", ".join(f"{name} {getattr(stated, f'{name}_e6') / 1e6:g}" for name in CRITERIA)
    lines.append(
        f"stated for {dtype} on cpu: {limits}; "
        + ", ".join(f"{name} {value:.0f} x" for name, value in margins.items())
        + f" above honest noise; {passed} cheated frames would pass"
    )
    return "\n".join(lines), min(margins.values()) > 1 and passed == 0


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and with --json write the samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32")
    parser.add_argument("--margin", type=int, default=MARGIN, help="how far above honest noise the tolerance must lie")
    parser.add_argument("--json", type=Path, help="write the largest honest errors and the tolerance here")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    honest, cheats = collect(DTYPES[args.dtype], args.dim, args.layers)
    every = [one for samples in honest.values() for one in samples]
    try:
        found = calibrate(every, [one for samples in cheats.values() for one in samples], margin=args.margin)
    except ConfigError as error:
        parser.error(f"{error}; or take a smaller --margin")
    text, holds = report(honest, cheats, found, args.dtype)
    sys.stdout.write(text + "\n")
    if args.json is not None:
        noise = {name: getattr(found.noise, name) for name in CRITERIA}
        data = {"dtype": args.dtype, "device_class": "cpu", "dim": args.dim, "layers": args.layers, "noise": noise}
        args.json.write_text(json.dumps({**data, "tolerance": found.tolerance.to_json(), "holds": holds}) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
