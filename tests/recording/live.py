"""Figure 8: a live run recorded by every seat, then judged again by the simulation. ``python -m tests.recording.live``.

Real seats and workers over gRPC in one process; three of twelve workers cheat from a third, half and two thirds of the
run on. Exit code 1 if any verdict differs.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

from sentinel_market.sim.recording import rehearse
from tests.support.mesh import Mesh, job_toml
from verifier.check.check import warm
from verifier.recording.recorder import DirectoryRecorder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="a new folder for the recordings")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--dim", type=int, default=64, help="width of the model, and length of its sequences")
    given = parser.parse_args()
    steps, dim = given.steps, given.dim
    folders = [given.directory / f"seat-{seat}" for seat in range(3)]
    recorders = {seat: DirectoryRecorder(folder) for seat, folder in enumerate(folders)}
    attacks = {
        4: ("sign_flip", steps // 3),
        8: ("noise:direction=backward", steps // 2),
        0: ("grad_sign_flip", 2 * steps // 3),
    }
    warm()
    mesh = Mesh(job_toml(steps=steps, dim=dim, seq_len=dim), given.directory / "mesh", attacks, recorders)
    began = time.perf_counter()
    asyncio.run(mesh.train())
    caught = {slot: q.step for (slot, _), q in mesh.seats[0].docket.quarantined.items()}
    lines = [f"{steps} live steps in {time.perf_counter() - began:.1f} s; quarantined (slot: step) {caught}"]
    reports = [rehearse(folder) for folder in folders]
    for seat, report in enumerate(reports):
        lines.append(f"seat {seat}: {report.to_json()}")
        lines += [] if report.first is None else [report.first.text()]
    same = all(report.same for report in reports)
    sys.stdout.write("\n".join([*lines, "the same" if same else "NOT the same", ""]))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
