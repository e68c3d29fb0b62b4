"""A small trial of the screen: ``python -m tests.check.trial --steps 400`` prints the tables of docs/verification.md.

A 4-stage Llama-family byte model is trained honestly on the standard library's sources; three drivers share the
microbatches, each with its own baselines; a frame comes from one of three replicas that share the weights. Beside
the run, replica 0 of every boundary is asked "what if it had sent this instead" for each attack. With confirmation a
bad frame never travels on, so the honest run is what the others see. Two questions:

- *late*: the baselines saw honest frames only (before the onset, and after it, as flagged frames are replaced).
- *first frame*: a baseline of its own for every attack; hostile frames that are not flagged are accepted into it,
  until replica 0 is convicted: by its first flagged frame or by an audit.
"""

from __future__ import annotations

import argparse
import json
import sys
import sysconfig
import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from sentinel_market.models.config import ModelConfig
from sentinel_market.models.init import init_flat
from sentinel_market.models.layout import FINAL_NORM, LM_HEAD
from sentinel_market.models.optimizer import AdamWConfig, decay_mask, step_
from sentinel_market.models.stage import Stage
from verifier.check import (
    BACKWARD,
    FORWARD,
    Baseline,
    Frame,
    Policy,
    VerdictKind,
    accept,
    audit_share_ppm,
    cleared_by_recompute,
    forget,
    screen,
    warm,
)

NUM_STAGES = 4
NUM_DRIVERS = 3
NUM_REPLICAS = 3


def say(*parts: object) -> None:
    """A line on standard output."""
    sys.stdout.write(" ".join(str(part) for part in parts) + "\n")


def corpus(limit: int = 4_000_000) -> torch.Tensor:
    """Bytes of the standard library's own sources, uint8 [N]."""
    root = Path(sysconfig.get_paths()["stdlib"])
    data = bytearray()
    for path in sorted(root.glob("*.py")):
        data += path.read_bytes()
        if len(data) > limit:
            break
    return torch.frombuffer(data, dtype=torch.uint8).clone()


AGE = 50
OLD_WEIGHTS = f"weights {AGE} steps old"
ATTACKS = {
    "sign flip": ("both", lambda out, given, old, g: -out),
    "identity": ("both", lambda out, given, old, g: given),
    "noise 1.0 std": ("both", lambda out, given, old, g: out + out.std() * torch.randn(out.shape, generator=g)),
    "noise 0.3 std": ("both", lambda out, given, old, g: out + 0.3 * out.std() * torch.randn(out.shape, generator=g)),
    "zeros": ("both", lambda out, given, old, g: torch.zeros_like(out)),
    "random": ("both", lambda out, given, old, g: out.std() * torch.randn(out.shape, generator=g)),
    "scale 2": ("both", lambda out, given, old, g: 2 * out),
    "random sign 10 %": (
        "both",
        lambda out, given, old, g: torch.where(torch.rand(out.shape, generator=g) < 0.1, -out, out),
    ),
    "stale frame": ("both", lambda out, given, old, g: old),
    OLD_WEIGHTS: ("forward", None),  # needs the model: see Trial.with_old_weights
}


@dataclass
class Poisoned:
    """A what-if run of its own from the first frame, for one attack at one boundary."""

    baselines: list[Baseline]
    flagged: int = 0
    sent: int = 0
    caught_at: int | None = None
    by: str = ""
    honest_after: int = 0
    flagged_after: int = 0
    windows_after: list[str] = field(default_factory=list)


class Trial:
    """The run and its counters."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.policy = Policy(warmup_frames=args.warmup_frames, k_init=args.k, window=args.window)
        self.config = ModelConfig(
            dim=args.dim,
            num_layers=4,
            num_heads=4,
            num_kv_heads=4,
            ffn_dim=args.dim * 8 // 3 // 8 * 8,
            vocab_size=256,
            seq_len=args.tokens,
        )
        self.stages = [Stage(self.config, s, NUM_STAGES) for s in range(NUM_STAGES)]
        for stage in self.stages:
            stage.load_flat(init_flat(self.config, stage.stage, NUM_STAGES, args.seed))
        self.adam = AdamWConfig(
            learning_rate=args.lr, min_learning_rate=args.lr / 10, warmup_steps=20, total_steps=args.steps
        )
        self.moments = [(torch.zeros_like(s.flat), torch.zeros_like(s.flat)) for s in self.stages]
        self.masks = [decay_mask(s.specs) for s in self.stages]
        self.data = corpus()
        self.generator = torch.Generator().manual_seed(args.seed)
        self.noise = torch.Generator().manual_seed(args.seed + 1)
        keys = [(s, d) for s in range(NUM_STAGES) for d in (FORWARD, BACKWARD) if (s, d) != (0, BACKWARD)]
        self.keys = keys
        self.honest = {
            (i, key): Baseline.new(key[0], NUM_STAGES, key[1], args.seed) for i in range(NUM_DRIVERS) for key in keys
        }
        self.honest_frames: Counter[tuple[int, int]] = Counter()
        self.honest_flags: Counter[tuple[int, int]] = Counter()
        self.warmup_frames: Counter[tuple[int, int]] = Counter()
        self.warmup_flags: Counter[tuple[int, int]] = Counter()
        self.crossed: Counter[str] = Counter()
        self.late: dict[tuple[str, tuple[int, int]], list[int]] = defaultdict(lambda: [0, 0])
        self.poisoned: dict[tuple[str, tuple[int, int]], Poisoned] = {}
        self.old: dict[tuple[int, int], list[torch.Tensor]] = defaultdict(list)
        self.by_time: Counter[int] = Counter()
        self.past: deque[list[torch.Tensor]] = deque(maxlen=AGE)
        self.aged = [Stage(self.config, s, NUM_STAGES) for s in range(NUM_STAGES)]
        self.tokens = torch.zeros(0)
        self.screen_seconds = 0.0
        self.screened = 0
        self.examples: list[str] = []

    def replica(self) -> int:
        return int(torch.randint(0, NUM_REPLICAS, (1,), generator=self.generator))

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        size, length = self.args.batch, self.args.tokens
        starts = torch.randint(0, self.data.numel() - length - 1, (size,), generator=self.generator)
        rows = torch.stack([self.data[s : s + length + 1].long() for s in starts.tolist()])
        return rows[:, :-1], rows[:, 1:]

    def one_step(self, step: int) -> float:
        total = 0.0
        if len(self.past) == AGE:
            for aged, flat in zip(self.aged, self.past[0], strict=True):
                aged.load_flat(flat)
        self.past.append([stage.flat.clone() for stage in self.stages])
        for stage in self.stages:
            stage.zero_grad_flat()
        for index in range(self.args.microbatches):
            total += self.microbatch(step, index % NUM_DRIVERS)
        for stage, (m, v), mask in zip(self.stages, self.moments, self.masks, strict=True):
            step_(stage.flat, stage.flat_grad / self.args.microbatches, m, v, step, self.adam, mask)
        return total / self.args.microbatches

    def microbatch(self, step: int, driver: int) -> float:
        tokens, targets = self.batch()
        self.tokens = tokens
        inputs: list[torch.Tensor] = []
        outputs: list[torch.Tensor] = []
        h = tokens
        for stage in self.stages:
            given = stage.embed(tokens).detach() if stage.is_first else h.detach().requires_grad_()
            out = (
                stage(tokens) if stage.is_first else stage.token_loss(given, targets) if stage.is_last else stage(given)
            )
            inputs.append(given)
            outputs.append(out)
            h = out
            self.look(step, driver, (stage.stage, FORWARD), out.detach(), None if stage.is_last else given.detach())
        loss = outputs[-1].mean()
        loss.backward()
        last = self.stages[-1]
        head = last._weights[LM_HEAD].detach()[targets] * last._weights[FINAL_NORM].detach()
        incoming = None
        for s in range(NUM_STAGES - 1, 0, -1):
            if s < NUM_STAGES - 1:
                outputs[s].backward(incoming)
            gradient = inputs[s].grad
            assert gradient is not None
            reference = incoming if s < NUM_STAGES - 1 else (-head if self.args.head_rows else None)
            self.look(step, driver, (s, BACKWARD), gradient, reference)
            incoming = gradient
        outputs[0].backward(incoming)
        return float(loss.detach())

    def look(self, step: int, driver: int, key: tuple[int, int], out: torch.Tensor, given: torch.Tensor | None) -> None:
        replica = self.replica()
        frame = Frame(
            output=out,
            input=given,
            direction=key[1],
            stage=key[0],
            num_stages=NUM_STAGES,
            step=step,
            worker=key[0] * NUM_REPLICAS + replica,
        )
        baseline = self.honest[driver, key]
        began = time.perf_counter()
        screening = screen(frame, baseline, self.policy)
        self.screen_seconds += time.perf_counter() - began
        self.screened += 1
        flagged = screening.verdict.kind is not VerdictKind.ACCEPT
        frames, flags = (
            (self.warmup_frames, self.warmup_flags) if screening.in_warmup else (self.honest_frames, self.honest_flags)
        )
        frames[key] += 1
        flags[key] += flagged
        if flagged:
            for i in screening.crossed:
                self.crossed[f"{key} {baseline.metrics[i]}"] += 1
            self.by_time[step // 20 * 20] += 1
            if len(self.examples) < 300:
                self.examples.append(f"step {step} {key}: {screening.verdict.reason}")
        if replica == 0 or step < self.args.first_frame_steps:
            self.what_if(step, driver, key, frame, replica)
        if flagged:
            cleared_by_recompute(baseline, screening)
        accept(baseline, screening)

    def what_if(self, step: int, driver: int, key: tuple[int, int], frame: Frame, replica: int) -> None:
        assert frame.output is not None
        out = frame.output
        history = self.old[key]
        if replica == 0 and len(history) < 4:
            history.append(out.clone())
        for name, (_, attack) in ATTACKS.items():
            if key == (NUM_STAGES - 1, FORWARD) and name == "identity":
                continue
            if frame.input is None and name == "identity":
                continue
            if name == "identity" and key == (NUM_STAGES - 1, BACKWARD):
                continue
            bad = frame
            if name == OLD_WEIGHTS:
                if key[1] == BACKWARD or frame.is_loss or replica or step < max(AGE, self.args.onset) or step % 2:
                    continue
                screening = screen(
                    replace(frame, output=self.with_old_weights(key[0], frame)), self.honest[driver, key], self.policy
                )
                self.late[name, key][0] += screening.verdict.kind is not VerdictKind.ACCEPT
                self.late[name, key][1] += 1
                continue
            if replica == 0:
                bad = replace(frame, output=attack(out, frame.input, history[0], self.noise))
            case = (name, key)
            if replica == 0 and step >= self.args.onset and step % 2 == 0:
                screening = screen(bad, self.honest[driver, key], self.policy)
                self.late[case][0] += screening.verdict.kind is not VerdictKind.ACCEPT
                self.late[case][1] += 1
            if step < self.args.first_frame_steps:
                self.from_first_frame(step, driver, case, frame, bad, replica)

    @torch.no_grad()
    def with_old_weights(self, stage: int, frame: Frame) -> torch.Tensor:
        """What a replica returns that missed the last 50 updates."""
        out: torch.Tensor = self.aged[stage](self.tokens if stage == 0 else frame.input)
        return out

    def from_first_frame(
        self, step: int, driver: int, case: tuple[str, tuple[int, int]], frame: Frame, bad: Frame, replica: int
    ) -> None:
        key = case[1]
        if case not in self.poisoned:
            fresh = [Baseline.new(key[0], NUM_STAGES, key[1], self.args.seed) for _ in range(NUM_DRIVERS)]
            self.poisoned[case] = Poisoned(fresh)
        run = self.poisoned[case]
        baseline = run.baselines[driver]
        hostile = replica == 0
        if run.caught_at is not None and hostile:
            frame = replace(frame, worker=frame.worker + 1)  # another replica does its work
        sent = bad if hostile and run.caught_at is None else frame
        screening = screen(sent, baseline, self.policy)
        flagged = screening.verdict.kind is not VerdictKind.ACCEPT
        if run.caught_at is not None:
            run.honest_after += 1
            run.flagged_after += flagged
            accept(baseline, screening)
            return
        if not hostile:
            run.honest_after += 1
            run.flagged_after += flagged
            accept(baseline, screening)
            return
        run.sent += 1
        run.flagged += flagged
        share = audit_share_ppm(
            self.policy, stage=key[0], num_stages=NUM_STAGES, direction=key[1], in_warmup=screening.in_warmup
        )
        audited = float(torch.rand(1, generator=self.noise)) * 1e6 < share and self.args.audits
        if flagged or audited:
            run.caught_at, run.by = step, "screen" if flagged else "audit"
            for one in run.baselines:
                forget(one, sent.worker)
            accept(baseline, screen(frame, baseline, self.policy))
        else:
            accept(baseline, screening)

    def report(self) -> dict[str, object]:
        def rate(flags: Counter[tuple[int, int]], frames: Counter[tuple[int, int]], key: tuple[int, int]) -> float:
            return flags[key] / max(frames[key], 1)

        name = {FORWARD: "forward", BACKWARD: "backward"}
        say("\n| boundary | honest frames | flagged | in warm-up | flagged |\n|---|---|---|---|---|")
        for key in self.keys:
            say(
                f"| stage {key[0]} {name[key[1]]} | {self.honest_frames[key]} | "
                f"{rate(self.honest_flags, self.honest_frames, key):.2%} | {self.warmup_frames[key]} | "
                f"{rate(self.warmup_flags, self.warmup_frames, key):.2%} |"
            )
        total = self.honest_flags.total() / max(self.honest_frames.total(), 1)
        early = self.warmup_flags.total() / max(self.warmup_frames.total(), 1)
        say(f"| all | {self.honest_frames.total()} | {total:.2%} | {self.warmup_frames.total()} | {early:.2%} |")
        say(f"\nlate onset (from step {self.args.onset}): share of hostile frames flagged")
        heads = " | ".join(f"{k[0]} {name[k[1]]}" for k in self.keys)
        say(f"\n| attack | {heads} |\n|---{'|---' * len(self.keys)}|")
        for attack in ATTACKS:
            cells = []
            for key in self.keys:
                hit, of = self.late.get((attack, key), (0, 0))
                cells.append(f"{hit / of:.1%}" if of else "-")
            say(f"| {attack} | {' | '.join(cells)} |")
        say("\nonset 0: step of the first catch (s: by the screen, a: by an audit); honest frames flagged meanwhile")
        say(f"\n| attack | {heads} |\n|---{'|---' * len(self.keys)}|")
        for attack in ATTACKS:
            cells = []
            for key in self.keys:
                run = self.poisoned.get((attack, key))
                if run is None:
                    cells.append("-")
                    continue
                when = "never" if run.caught_at is None else f"{run.caught_at}{run.by[0]}"
                cells.append(f"{when}, {run.flagged_after / max(run.honest_after, 1):.1%}")
            say(f"| {attack} | {' | '.join(cells)} |")
        say("\ncrossed:", dict(self.crossed.most_common(30)))
        say("flags by steps of 20:", dict(sorted(self.by_time.items())))
        say(f"screen: {1e3 * self.screen_seconds / self.screened:.3f} ms a frame")
        k = {f"{key}": self.honest[0, key].k_e6.tolist() for key in self.keys}
        return {"flag_rate": total, "k": k}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=6)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--onset", type=int, default=60)
    parser.add_argument("--first-frame-steps", type=int, default=60)
    parser.add_argument("--warmup-frames", type=int, default=Policy().warmup_frames)
    parser.add_argument("--window", type=int, default=Policy().window)
    parser.add_argument("--k", type=float, default=Policy().k_init)
    parser.add_argument("--no-head-rows", dest="head_rows", action="store_false")
    parser.add_argument("--no-audits", dest="audits", action="store_false")
    parser.add_argument("--examples", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warm()
    trial = Trial(args)
    began = time.perf_counter()
    for step in range(args.steps):
        loss = trial.one_step(step)
        if step % 20 == 0:
            sys.stderr.write(f"step {step} loss {loss:.3f} {time.perf_counter() - began:.0f} s\n")
    result = trial.report()
    if args.examples:
        say("\n".join(trial.examples))
    say(json.dumps(result))


if __name__ == "__main__":
    main()
