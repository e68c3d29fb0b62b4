"""``sentinel bench``: the whole detection table, its figures and plots."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from sentinel_market.cli import bench_cost
from sentinel_market.cli.common import App, verb
from sentinel_market.cli.sim import (
    JOBS,
    JSON_FILE,
    base_settings,
    carry_out,
    honest_mesh_options,
    mesh_options,
    write_pages,
)

QUICK_ATTACKS: Final = ("zeros", "sign_flip", "identity", "noise")


@click.group()
def bench() -> None:
    """Measurements that the documentation quotes."""


@verb(
    bench,
    "detect",
    json_flag=False,
    example="""
    sentinel bench detect --json runs/detect.json --big
    sentinel bench detect --quick --json runs/quick.json
    """,
)
@click.option(
    "--attack", "names", metavar="NAME,...", multiple=True, help="Only these attacks; may be repeated.  [default: all]"
)
@click.option("--seeds", type=click.IntRange(1, 100), help="Seeds of the table.  [default: 3]")
@click.option("--clean-runs", type=click.IntRange(0, 1000), help="Clean runs for the false-ban bound.  [default: 20]")
@click.option("--big", is_flag=True, help="Also 8 x 16 = 128 workers at 25 % and 11 x 16 = 176 at 37.5 %.")
@click.option("--next-everywhere", is_flag=True, help="The next strength on every seed, not on the first alone.")
@click.option(
    "--conditions/--no-conditions", default=True, show_default=True, help="Also what `sentinel bench honest` measures."
)
@mesh_options
@JOBS
@JSON_FILE
def detect(
    _app: App,
    names: tuple[str, ...],
    seeds: int | None,
    clean_runs: int | None,
    big: bool,
    next_everywhere: bool,
    conditions: bool,
    quick: bool,
    jobs: int,
    file: Path | None,
    **given: Any,
) -> int:
    """Every attack, in each direction: climb its strengths until they hurt, then try each policy against it.

    Takes hours; with --quick few attacks, one seed, a small mesh: whether it works, no figures. FILE.jsonl grows by a
    line a finished run, and the same command goes on where it stopped.
    """
    from sentinel_market.sim.conditions import CONDITIONS
    from sentinel_market.sim.plan import ABLATIONS, bench_plan
    from sentinel_market.sim.specs import all_rows, rows_of, split_names

    wanted = split_names(names) or list(QUICK_ATTACKS if quick else ())
    # Each name is looked at, so that an unknown one is told from one that is left out.
    rows = rows_of(wanted, strength="ladder") if wanted else all_rows()
    plan = bench_plan(
        base_settings(quick, given),
        rows,
        seeds=seeds or (1 if quick else 3),
        big=big,
        next_everywhere=next_everywhere,
        clean_runs=(2 if quick else 20) if clean_runs is None else clean_runs,
        ablations=ABLATIONS[:2] if quick else ABLATIONS,
        conditions=CONDITIONS if conditions else (),
        condition_seeds=int(quick),
    )
    return carry_out(plan, file, jobs)


@verb(
    bench,
    "honest",
    json_flag=False,
    example="""
    sentinel bench honest --json runs/detect.json
    sentinel bench honest --condition bf16,joiner --seeds 1
    """,
)
@click.option(
    "--condition",
    "names",
    metavar="NAME,...",
    multiple=True,
    help="Only these of bf16, threads, lr-jump, domain, joiner, batch-one; may be repeated.  [default: all]",
)
@click.option(
    "--seeds", type=click.IntRange(1, 1000), help="Seeds of each.  [default: as many as 20,000 honest frames need]"
)
@honest_mesh_options
@JOBS
@JSON_FILE
def honest(
    _app: App, names: tuple[str, ...], seeds: int | None, quick: bool, jobs: int, file: Path | None, **given: Any
) -> int:
    """Honest workers that differ, or whose work changes, under the default policy: how many are flagged or banned.

    bf16: every second replica computes in bfloat16, in a job of that dtype. threads: three of four replicas sum in
    another order. lr-jump: ten times the learning rate from step --onset on. domain: prose after code. joiner: in every
    stage one replica joins, and one leaves and comes back. batch-one: one sequence a microbatch.
    """
    from sentinel_market.sim.conditions import CONDITIONS
    from sentinel_market.sim.plan import honest_plan

    wanted = [part.strip() for name in names for part in name.split(",")] or list(CONDITIONS)
    base = base_settings(quick, given, attacked=False)
    return carry_out(honest_plan(base, wanted, seeds=seeds or int(quick)), file, jobs, figure=6)


@verb(bench, "report", example="sentinel bench report runs/detect.json")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
def report(app: App, path: Path) -> None:
    """Write the page and the plots of a FILE.json or FILE.jsonl again, and say which figures hold."""
    from sentinel_market.sim.figures import figures
    from sentinel_market.sim.resume import Record, array_path, read_cells
    from sentinel_market.sim.table import summary

    record = Record(None)
    record.cells = {cell.settings: cell for cell in read_cells(path)}
    written = write_pages(array_path(path), record)
    found = figures(record.all())
    app.emit(
        {
            "cells": len(record.cells),
            "files": [str(one) for one in written],
            "figures": [
                {"number": one.number, "title": one.title, "holds": one.holds, "lines": one.lines} for one in found
            ],
        },
        summary(found) + f"\n\nwrote {', '.join(str(one) for one in written)}",
    )


bench_cost.add_to(bench)
