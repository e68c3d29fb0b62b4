"""Demos over several seeds, one line of JSON each, resumable.

    python bench/seeds.py --seeds 0-9 --file runs/seeds.jsonl

With --honest no worker cheats: the spread of the held-out loss over seeds. Seeds that the file holds already are not
run again. Prints a table and the figures of issue "The main job": how many hostile workers were banned, how many
honest ones were touched, steps from the first bad frame to the quarantine, seconds from there to the ban.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

SENTINEL = Path(sys.executable).with_name("sentinel")


def parse_seeds(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def run(seed: int, steps: int, honest: bool, out: Path, rpc_port: int, port: int) -> dict[str, Any]:
    """One demo; its summary, or why there is none."""
    command = [str(SENTINEL), "demo", "--json", "--seed", str(seed), "--steps", str(steps), "--out", str(out)]
    command += ["--rpc-port", str(rpc_port), "--port", str(port), *(["--honest"] if honest else [])]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    line: dict[str, Any] = {"seed": seed, "steps": steps, "honest": honest, "exit_code": done.returncode}
    line["seconds"] = round(time.monotonic() - began, 1)
    for text in done.stdout.splitlines():
        if text.startswith("{"):
            line |= json.loads(text)
            break
    else:
        line["error"] = done.stderr[-2000:]
    return line


def row(line: dict[str, Any]) -> str:
    if "summary" not in line:
        return f"{line['seed']:>4}  exit code {line['exit_code']}: {line.get('error', '')[-200:]!r}"
    s = line["summary"]
    hostile = [w for w in s["workers"] if w["attack"]]
    banned = sum(w["banned"] for w in hostile)
    touched = sum(w["banned"] or w["stake_before"] != w["stake_after"] for w in s["workers"] if not w["attack"])
    d = s["detection"]
    return (
        f"{line['seed']:>4}  banned {banned}/{len(hostile)}  honest touched {touched}  "
        f"median steps {d['median_steps_to_quarantine']}  seconds to ban <= {d['max_seconds_to_ban'] or 0:.1f}  "
        f"held-out {s['val_loss']['verified']:.4f}  {s['tokens_per_second']:,.0f} tokens/s  "
        f"verification {s['verification_share']:.1%}  {line['seconds']:.0f} s  exit {line['exit_code']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0-2")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--honest", action="store_true")
    parser.add_argument("--file", type=Path, default=Path("runs/seeds.jsonl"))
    parser.add_argument("--rpc-port", type=int, default=18545)
    parser.add_argument("--port", type=int, default=18700)
    options = parser.parse_args()
    options.file.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(t) for t in options.file.read_text().splitlines()] if options.file.exists() else []
    wanted = parse_seeds(options.seeds)
    for seed in wanted:
        done = [x for x in lines if (x["seed"], x["steps"], x["honest"]) == (seed, options.steps, options.honest)]
        if not any(x["exit_code"] == 0 for x in done):
            line = run(seed, options.steps, options.honest, options.file.parent, options.rpc_port, options.port)
            lines.append(line)
            with options.file.open("a", encoding="utf-8") as out:
                print(json.dumps(line), file=out)
            print(row(line), flush=True)
    found = {
        x["seed"]: x
        for x in lines
        if x["seed"] in wanted and x["steps"] == options.steps and x["honest"] == options.honest and "summary" in x
    }
    print(f"\n{len(found)} of {len(wanted)} seeds, {options.steps} steps{', honest' if options.honest else ''}")
    for seed in sorted(found):
        print(row(found[seed]))
    summaries = [x["summary"] for x in found.values()]
    hostile = [w for s in summaries for w in s["workers"] if w["attack"]]
    honest = [w for s in summaries for w in s["workers"] if not w["attack"]]
    steps = [s["detection"]["median_steps_to_quarantine"] for s in summaries if hostile]
    losses = [s["val_loss"]["verified"] for s in summaries]
    if hostile:
        print(f"hostile banned: {sum(w['banned'] for w in hostile)} of {len(hostile)}")
        print(f"median of the seeds' median steps to quarantine: {median(steps)}")
        print(
            f"longest time from quarantine to ban: {max(s['detection']['max_seconds_to_ban'] for s in summaries):.1f} s"
        )
    touched = sum(w["banned"] or w["stake_before"] != w["stake_after"] for w in honest)
    print(f"honest touched: {touched} of {len(honest)}")
    if losses:
        print(f"held-out loss {min(losses):.4f} .. {max(losses):.4f}, spread {(max(losses) / min(losses) - 1):.2%}")
    print(f"exit codes: {sorted(x['exit_code'] for x in found.values())}")


if __name__ == "__main__":
    main()
