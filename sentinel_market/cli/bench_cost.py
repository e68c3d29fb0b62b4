"""``sentinel bench cost`` and ``sentinel bench check``: what verification costs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from sentinel_market.cli.common import App, verb


def add_to(bench: click.Group) -> None:
    """Register both verbs."""

    @verb(
        bench,
        "cost",
        json_flag=False,
        example="sentinel bench cost --json runs/cost.json\nsentinel bench cost --quick",
    )
    @click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="Model and data.")
    @click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True, help="Runs of each mode.")
    @click.option("--dim", type=click.IntRange(64, 8192), default=512, show_default=True, help="Hidden width.")
    @click.option("--seq-len", type=click.IntRange(8, 8192), default=128, show_default=True, help="Tokens a sequence.")
    @click.option("--microbatch-size", type=click.IntRange(1, 1024), default=8, show_default=True, help="Sequences.")
    @click.option("--stages", type=click.IntRange(2, 64), default=4, show_default=True, help="One layer each.")
    @click.option("--replicas", type=click.IntRange(3, 64), default=3, show_default=True, help="Workers a stage.")
    @click.option("--seats", type=click.IntRange(1, 16), default=3, show_default=True, help="Verifiers.")
    @click.option("--microbatches", type=click.IntRange(1, 4096), default=24, show_default=True, help="A step.")
    @click.option("--warmup", type=click.IntRange(1, 1000), default=5, show_default=True, help="Steps not counted.")
    @click.option("--steps", type=click.IntRange(1, 1000), default=2, show_default=True, help="Steps counted.")
    @click.option("--audit-ppm", type=click.IntRange(1, 10**6), default=10_000, show_default=True, help="Audit share.")
    @click.option("--timeout", type=float, default=900.0, show_default=True, help="Seconds that one run may take.")
    @click.option("--quick", is_flag=True, help="Small sizes and one round: whether it works, no figures.")
    @click.option("--json", "file", type=click.Path(path_type=Path), help="Write FILE; FILE.jsonl grows by the run.")
    def cost(app: App, rounds: int, quick: bool, file: Path | None, **sizes: Any) -> None:
        """CPU seconds of verification on the live path, against the same processes without it.

        Four modes take turns: unverified, screen only, the default policy, and every unit done twice. The same command
        goes on where FILE.jsonl stops. Exit code 0 whatever the figures say; they are printed with their limits.
        """
        from sentinel_market.cost.live import CostSettings, figures, measure, quick_sizes, report
        from sentinel_market.sim.resume import lines_path

        settings = CostSettings(**sizes)
        if quick:
            settings, rounds = quick_sizes(settings), 1
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
        runs = measure(settings, rounds, None if file is None else lines_path(file), app.say)
        found = figures(runs)
        if file is not None:
            shown = [{**asdict(one), "value": one.value, "holds": one.holds} for one in found]
            data = {"settings": asdict(settings), "runs": [asdict(run) for run in runs], "figures": shown}
            file.write_text(json.dumps(data, indent=1) + "\n")
        click.echo(report(runs, found))

    @verb(bench, "check", json_flag=False, example="sentinel bench check\nsentinel bench check --dim 512 --tokens 2048")
    @click.option("--dim", "dims", type=click.IntRange(16, 16384), multiple=True, help="Hidden widths.  [256 .. 4096]")
    @click.option("--tokens", type=click.IntRange(4, 65536), multiple=True, help="Tokens a frame.  [512 .. 8192]")
    @click.option("--json", "file", type=click.Path(path_type=Path), help="Write the numbers to FILE.")
    def check(app: App, dims: tuple[int, ...], tokens: tuple[int, ...], file: Path | None) -> None:
        """The check of one frame beside the least loop over the same arrays, and what a worker needs of verifiers."""
        from sentinel_market.cost.check import DIMS, TOKENS, measure_all, needs, speeds

        found = measure_all(dims or DIMS, tokens or TOKENS, app.say)
        hash_gbs, recover_seconds = speeds()
        lines = ["| dim | tokens | least, us | pass, us | check, us | pass / least | check / least | GB/s |"]
        lines.append("|---|---|---|---|---|---|---|---|")
        for one in found:
            lines.append(
                f"| {one.dim} | {one.tokens} | {one.least:.0f} | {one.one_pass:.0f} | {one.check:.0f} "
                f"| {one.one_pass / one.least:.2f} | {one.check / one.least:.2f} | {one.gigabytes:.1f} |"
            )
        lines += ["", f"BLAKE3 {hash_gbs:.1f} GB/s, {1 / recover_seconds:.0f} signers/s, on one core", ""]
        lines += ["| worker, TFLOP/s | dim | verifier cores | Mbit/s each way |", "|---|---|---|---|"]
        largest = {one.dim: one for one in found}
        required = []
        for dim, one in largest.items():
            required += needs(
                dim=dim,
                tokens=one.tokens,
                check_gbs=one.gigabytes,
                hash_gbs=hash_gbs,
                recover_seconds=recover_seconds,
            )
        lines += [f"| {n.tflops:g} | {n.dim} | {n.cores:.2f} | {n.mbits / 2:.0f} |" for n in required]
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            data = {
                "check": [asdict(one) for one in found],
                "hash_gbs": hash_gbs,
                "recover_seconds": recover_seconds,
                "needs": [asdict(one) for one in required],
            }
            file.write_text(json.dumps(data, indent=1) + "\n")
        click.echo("\n".join(lines))
