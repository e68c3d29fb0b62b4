"""How far honest computations of one frame lie apart: ``python -m tests.check.noise`` (table in docs/verification.md).

The same stage, input and weights, computed on other ways that an honest machine may take: two threads, plain attention
instead of the fused one, a sequence at a time, in double precision; and the sketch as the difference of two sketches
of an accumulator, as a worker makes it. Beside it, cheats that must not pass.
"""

from __future__ import annotations

import argparse
import contextlib
from collections import defaultdict
from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from sentinel_market.models.config import ModelConfig
from sentinel_market.models.init import init_flat
from sentinel_market.models.sketch import Sketch
from sentinel_market.models.stage import Stage
from tests.check.trial import corpus, say
from verifier.check import BACKWARD, FORWARD

NUM_STAGES = 4
Result = tuple[torch.Tensor | None, torch.Tensor | None]


def compute(stage: Stage, direction: int, x: torch.Tensor, incoming: torch.Tensor) -> Result:
    """Output (or outgoing gradient) and sketch."""
    stage.zero_grad_flat()
    given = x if stage.is_first else x.detach().clone().requires_grad_()
    out = stage.token_loss(given, incoming) if stage.is_last else stage(given)
    if direction == FORWARD:
        return out.detach(), None
    if stage.is_last:
        out.mean().backward()
    else:
        out.backward(incoming)
    return (None if stage.is_first else given.grad), Sketch(1, 1).sketch(stage.flat_grad)


def two_threads(stage: Stage, direction: int, x: torch.Tensor, incoming: torch.Tensor) -> Result:
    torch.set_num_threads(2)
    try:
        return compute(stage, direction, x, incoming)
    finally:
        torch.set_num_threads(1)


def plain_attention(stage: Stage, direction: int, x: torch.Tensor, incoming: torch.Tensor) -> Result:
    with sdpa_kernel(SDPBackend.MATH):
        return compute(stage, direction, x, incoming)


def sequence_at_a_time(stage: Stage, direction: int, x: torch.Tensor, incoming: torch.Tensor) -> Result:
    outs, total = [], torch.zeros(64)
    for b in range(x.shape[0]):
        out, sketch = compute(stage, direction, x[b : b + 1], incoming[b : b + 1])
        share = x.shape[0] if stage.is_last and direction == BACKWARD else 1  # the mean over B
        if out is not None:
            outs.append(out / share)
        if sketch is not None:
            total += sketch / share
    return (torch.cat(outs) if outs else None), (total if direction == BACKWARD else None)


def in_double(stage: Stage, direction: int, x: torch.Tensor, incoming: torch.Tensor) -> Result:
    precise = Stage(stage.config, stage.stage, NUM_STAGES)
    precise.load_flat(stage.flat)
    for parameter in precise._weights.values():
        parameter.data = parameter.data.double()
        parameter.grad = torch.zeros_like(parameter)
    precise.rope_cos, precise.rope_sin = stage.rope_cos.double(), stage.rope_sin.double()
    given = x if x.dtype == torch.int64 else x.double().requires_grad_()
    target = incoming if incoming.dtype == torch.int64 else incoming.double()
    out = precise.token_loss(given, target) if precise.is_last else precise(given)
    if direction == FORWARD:
        return out.detach(), None
    if precise.is_last:
        out.mean().backward()
    else:
        out.backward(target)
    flat = torch.zeros_like(stage.flat)
    for spec in precise.specs:
        gradient = precise._weights[spec.name].grad
        assert gradient is not None
        flat[spec.offset : spec.offset + spec.size] = gradient.reshape(-1)
    return (None if precise.is_first else given.grad), Sketch(1, 1).sketch(flat)


def accumulated(stage: Stage, direction: int, x: torch.Tensor, incoming: torch.Tensor) -> Result:
    """The worker's way: sketch after minus sketch before, with seven other microbatches in the accumulator."""
    out, sketch = compute(stage, direction, x, incoming)
    if sketch is None:
        return out, None
    forms = Sketch(1, 1)
    stage.zero_grad_flat()
    given = x.roll(1, 1) if stage.is_first else x.roll(1, 1).requires_grad_()
    for _ in range(7):
        loss = stage.token_loss(given, incoming).mean() if stage.is_last else (stage(given) * incoming).sum()
        loss.backward()
    before = forms.sketch(stage.flat_grad)
    again = x if stage.is_first else x.detach().clone().requires_grad_()
    loss = stage.token_loss(again, incoming).mean() if stage.is_last else (stage(again) * incoming).sum()
    loss.backward()
    return out, forms.sketch(stage.flat_grad) - before


def bf16(stage: Stage, direction: int, x: torch.Tensor, incoming: torch.Tensor) -> Result:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return compute(stage, direction, x, incoming)


def rounded_once(stage: Stage, direction: int, x: torch.Tensor, incoming: torch.Tensor) -> Result:
    out, sketch = compute(stage, direction, x, incoming)
    return (None if out is None else out.bfloat16().float()), sketch


def nudged_weights(stage: Stage, direction: int, x: torch.Tensor, incoming: torch.Tensor) -> Result:
    other = Stage(stage.config, stage.stage, NUM_STAGES)
    g = torch.Generator().manual_seed(5)
    other.load_flat(stage.flat + 1e-4 * torch.randn(stage.flat.shape, generator=g))
    return compute(other, direction, x, incoming)


WAYS: dict[str, Callable[[Stage, int, torch.Tensor, torch.Tensor], Result]] = {
    "two threads": two_threads,
    "plain attention": plain_attention,
    "a sequence at a time": sequence_at_a_time,
    "double precision": in_double,
    "sketch of an accumulator": accumulated,
    "cheat: bf16 matmuls": bf16,
    "cheat: output rounded to bf16": rounded_once,
    "cheat: weights off by 1e-4": nudged_weights,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = ModelConfig(
        dim=args.dim, num_layers=args.layers, num_heads=4, num_kv_heads=4, ffn_dim=3 * args.dim, seq_len=128
    )
    stages = [Stage(config, s, NUM_STAGES) for s in range(NUM_STAGES)]
    for stage in stages:
        stage.load_flat(init_flat(config, stage.stage, NUM_STAGES, 0))
    data = corpus(400_000)
    worst: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    least: dict[str, list[float]] = defaultdict(lambda: [9e9, 9e9, 9e9])
    for round_ in range(4):
        starts = torch.arange(4) * 1_000 + round_ * 50_000
        rows = torch.stack([data[s : s + 129].long() for s in starts.tolist()])
        x, targets = rows[:, :-1], rows[:, 1:]
        inputs = [x]
        for stage in stages[:-1]:
            inputs.append(stage(inputs[-1]).detach())
        incoming = targets
        for s in range(NUM_STAGES - 1, -1, -1):
            for direction in (FORWARD, BACKWARD):
                true_out, true_sketch = compute(stages[s], direction, inputs[s], incoming)
                for name, way in WAYS.items():
                    out, sketch = (
                        way(stages[s], direction, inputs[s], incoming)
                        if name != "sketch of an accumulator" or direction == BACKWARD
                        else (true_out, true_sketch)
                    )
                    found = []
                    if out is not None and true_out is not None:
                        apart, ref = out.double() - true_out.double(), true_out.double()
                        found = [
                            float(apart.norm() / ref.norm()),
                            float(apart.abs().max() / ref.square().mean().sqrt()),
                        ]
                    tail = (
                        []
                        if sketch is None or true_sketch is None
                        else [float((sketch - true_sketch).norm() / true_sketch.norm())]
                    )
                    for i, value in [*enumerate(found), *((2, v) for v in tail)]:
                        worst[name][i] = max(worst[name][i], value)
                        if not (name.startswith("cheat: output") and i == 2):
                            least[name][i] = min(least[name][i], value)
            gradient, _ = compute(stages[s], BACKWARD, inputs[s], incoming)
            if gradient is not None:
                incoming = gradient
    say("| way | relative | largest element / rms | sketch |\n|---|---|---|---|")
    for name in WAYS:
        table = least if name.startswith("cheat") else worst
        say(f"| {name} | " + " | ".join("-" if v > 8e9 else f"{v:.1e}" for v in table[name]) + " |")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
