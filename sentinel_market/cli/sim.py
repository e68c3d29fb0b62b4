"""``sentinel sim``: attack a mesh of workers in one process, and what a job's verification is expected to cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from sentinel_market.cli.common import App, epilog, plain, table, tokens, verb
from sentinel_market.cli.job import load_job_file, needs_table
from sentinel_market.errors import ConfigError, SentinelError

if TYPE_CHECKING:
    from sentinel_market.sim.calibrate import Calibration
    from sentinel_market.sim.difference import Report
    from sentinel_market.sim.plan import Plan
    from sentinel_market.sim.resume import Record
    from sentinel_market.sim.settings import RunSettings

POLICIES: Final = ("paper", "screen", "screen+confirm", "screen+confirm+audit")
QUICK: Final[dict[str, int]] = {"replicas": 4, "stages": 4, "steps": 60, "onset": 20, "model_dim": 16}
"""Settings of --quick where the command line gives no other: minutes become seconds, and figures mean little."""
EXAMPLE = """
sentinel sim --attack sign_flip,zeros --direction both
sentinel sim --attack noise:strength=2 --policy paper --policy screen+confirm --seeds 3 --json runs/noise.json
sentinel sim --attack mymodule:cheat --strength ladder --quick
"""
_F = TypeVar("_F", bound=Callable[..., Any])
JSON_FILE = click.option(
    "--json",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path, allow_dash=True),
    help="Write a JSON array of cells to FILE (.json), lines to FILE.jsonl on the way, a page and plots beside it; "
    "`-` prints the array.",
)
JOBS = click.option(
    "--jobs", type=click.IntRange(1, 64), default=2, show_default=True, help="Runs at a time, one thread each."
)


def mesh_options(function: _F) -> _F:
    """What every measurement of attacks takes: the mesh, its length, what is hostile."""
    return honest_mesh_options(
        click.option("--malicious", type=float, help="Hostile share of each stage.  [default: 0.25]")(function)
    )


def honest_mesh_options(function: _F) -> _F:
    """The same without hostile workers."""
    for option in reversed(
        (
            click.option("--replicas", type=click.IntRange(1, 256), help="Workers a stage.  [default: 8]"),
            click.option("--stages", type=click.IntRange(2, 256), help="Pipeline stages.  [default: 8]"),
            click.option("--steps", type=click.IntRange(1, 1_000_000), help="Optimizer steps of a run."),
            click.option("--onset", type=click.IntRange(0, 1_000_000), help="First step of what happens in mid-run."),
            click.option("--model-dim", type=click.IntRange(8, 65_536), help="Width of the model, a multiple of 8."),
            click.option("--quick", is_flag=True, help="A small mesh and few steps, where no other are given."),
        )
    ):
        function = option(function)
    return function


def base_settings(quick: bool, given: dict[str, Any], *, attacked: bool = True) -> RunSettings:
    """The settings of a mesh; ConfigError for what cannot be."""
    from sentinel_market.sim.settings import RunSettings

    chosen = {name: value for name, value in given.items() if value is not None}
    values = {**(QUICK if quick else {}), **chosen}
    if "steps" in chosen and "onset" not in chosen:
        values["onset"] = min(values.get("onset", RunSettings.onset), max(chosen["steps"] // 3, 1))
    settings = RunSettings(**values)
    if not attacked:
        return settings
    if settings.onset >= settings.steps:
        raise ConfigError(f"--onset {settings.onset} lies beyond --steps {settings.steps}; nothing would be attacked")
    if 0 < round(settings.malicious * settings.replicas) < settings.replicas / 2:
        return settings
    raise ConfigError(
        f"--malicious {settings.malicious:g} makes {round(settings.malicious * settings.replicas)} of "
        f"{settings.replicas} replicas hostile; give a share for at least one and fewer than half of a stage"
    )


def result_file(file: Path | None) -> Path | None:
    """FILE; None where nothing is kept on disk."""
    if file is None or str(file) == "-":
        return None
    if file.suffix == ".jsonl":
        raise ConfigError(f"--json {file} names the file of lines; give --json {file.with_suffix('.json')}")
    if file.is_dir():
        raise ConfigError(f"--json {file} is a folder; name a file in it, such as {file / 'detect.json'}")
    return file


def write_pages(path: Path, record: Record) -> list[Path]:
    """FILE.md and FILE.*.svg; returns what was written."""
    from sentinel_market.sim.plots import CHARTS
    from sentinel_market.sim.resume import write_text
    from sentinel_market.sim.table import report

    cells, written, plots = record.all(), [], []
    for name, (title, draw) in CHARTS.items():
        chart = path.with_suffix(f".{name}.svg")
        write_text(chart, draw(cells))
        written.append(chart)
        plots.append((title, chart.name))
    page = path.with_suffix(".md")
    write_text(page, report(cells, plots))
    return [page, *written]


def carry_out(plan: Plan, file: Path | None, jobs: int, *, figure: int = 0) -> int:
    """Do a plan with progress, keep and show what it found, and how it stands with a figure; the exit code."""
    from rich.console import Console

    from sentinel_market.sim import run
    from sentinel_market.sim.measure import Display, describe, measure
    from sentinel_market.sim.plan import wanted
    from sentinel_market.sim.pool import Inline, Pool, Runner
    from sentinel_market.sim.resume import Record, lines_path

    path = result_file(file)
    console = Console(stderr=True)
    with ExitStack() as stack:
        record = stack.enter_context(Record(path))
        ahead = [want.settings for want in wanted(plan, record.cells, outlook=True)]
        done = sum(settings in record.cells for settings in ahead)
        display = stack.enter_context(Display(console, jobs))
        display.say(f"about {len(ahead)} runs, {done} of them done already")
        # One job needs no second process. More are never needed than there are runs.
        alone = min(jobs, len(ahead) - done) <= 1
        runner: Runner = Inline(run.run_cell, display.stepped) if alone else Pool(run.run_cell, jobs)
        stack.callback(runner.close)
        try:
            failed = measure(plan, record, runner, display)
        except KeyboardInterrupt:
            if path is not None:
                display.say(
                    f"interrupted: {lines_path(path)} holds {len(record.cells)} finished runs; give the same command "
                    "again to go on"
                )
            raise
        record.write_array()
    if path is not None:
        written = write_pages(path, record)
        click.echo(f"wrote {path}, {', '.join(one.name for one in written)}", err=True)
    _show(record, str(file) == "-", figure)
    if failed:
        lines = [f"{describe(settings)}: {reason}" for settings, reason in failed.items()]
        again = "; give the same command to try them again" if path is not None else ""
        raise SentinelError(f"{len(failed)} runs failed{again}:\n" + "\n".join(f"  - {line}" for line in lines))
    return 0


def _show(record: Record, as_json: bool, figure: int) -> None:
    from sentinel_market.sim.figures import figures
    from sentinel_market.sim.group import groups
    from sentinel_market.sim.table import HEADER, row, summary

    cells = record.all()
    if as_json:
        click.echo(json.dumps([cell.to_json() for cell in cells]))
    else:
        click.echo(table([name.upper() for name in HEADER], [[c.strip("`") for c in row(g)] for g in groups(cells)]))
        if figure:
            click.echo("\n" + summary([one for one in figures(cells) if one.number == figure]))


@click.group("sim", invoke_without_command=True, epilog=epilog(EXAMPLE))
@click.option(
    "--attack",
    "attacks",
    multiple=True,
    metavar="NAME|module:object,...",
    help="Attacks, with parameters as NAME:key=value,...; may be repeated. None: clean runs.",
)
@click.option("--strength", metavar="X|ladder", default="", help="Strength of the attacks, or climb until they hurt.")
@click.option("--direction", type=click.Choice(["forward", "backward", "both"]), default="forward", show_default=True)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    default=["screen+confirm+audit"],
    show_default=True,
    metavar="|".join(POLICIES),
    help="May be repeated. Also paper:no-ema, paper:l1, paper:l2, paper:sfr, paper:sw.",
)
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="The first seed.")
@click.option("--seeds", type=click.IntRange(1, 1000), default=1, show_default=True, help="How many.")
@click.option("--duty", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Attack one step in N.")
@click.option("--collude", is_flag=True, help="Accomplices share a noise seed and confirm each other's frames.")
@click.option(
    "--condition",
    metavar="NAME",
    help="Something honest that differs, without attacks: bf16, threads, lr-jump, domain, joiner or batch-one.",
)
@click.option("--drivers", type=click.IntRange(1, 64), help="Verifiers that drive.  [default: half the replicas]")
@click.option("--corrupt-drivers", type=click.IntRange(0, 63), default=0, show_default=True, help="Those in the plot.")
@mesh_options
@JOBS
@JSON_FILE
@click.pass_context
def sim(
    ctx: click.Context,
    /,
    attacks: Sequence[str],
    strength: str,
    direction: str,
    policies: Sequence[str],
    seed: int,
    seeds: int,
    jobs: int,
    file: Path | None,
    quick: bool,
    **given: Any,
) -> int:
    """Train a small model on a mesh of workers in this process while some of them cheat, and see who is caught.

    Each attack is run without checks and under each policy, and compared with the clean run of its seed. The same
    engine, policies and attacks as on the live network; no chain, no sockets.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    from sentinel_market.sim.plan import one_plan
    from sentinel_market.sim.run import policy_of
    from sentinel_market.sim.specs import LADDER, rows_of, split_names

    if strength and strength != LADDER:
        try:
            float(strength)
        except ValueError:
            raise ConfigError(f"--strength {strength!r} is neither a number nor {LADDER!r}") from None
    base = base_settings(quick, {"seed": seed, **given}, attacked=bool(attacks))
    for policy in policies:
        policy_of(_with_policy(base, policy))
    rows = rows_of(split_names(attacks), strength=strength, direction=direction) if attacks else []
    return carry_out(one_plan(base, rows, list(policies), seeds, ladder=strength == LADDER), file, jobs)


def _with_policy(base: RunSettings, policy: str) -> RunSettings:
    from dataclasses import replace

    return replace(base, policy=policy)


@verb(sim, "calibrate", example="sentinel sim calibrate job.toml")
@click.argument("path", metavar="JOB", type=click.Path(path_type=Path))
@click.option(
    "--core-gflops",
    type=click.FloatRange(min=0, min_open=True),
    default=50.0,
    show_default=True,
    help="fp32 GFLOP/s of a verifier's core.",
)
@click.option(
    "--core-gbytes",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="GB/s of frames that such a core screens and hashes.",
)
@click.option(
    "--slash-bps",
    type=click.IntRange(0, 10_000),
    default=10_000,
    show_default=True,
    help="Part of the slot stake lost for a wrong frame, in basis points.",
)
def calibrate_(app: App, path: Path, core_gflops: float, core_gbytes: float, slash_bps: int) -> None:
    """What verification of a job file is expected to cost and to deter: flags, confirmations, cores, a cheat's odds."""
    from sentinel_market.sim.calibrate import calibrate

    spec = load_job_file(path)
    found = calibrate(spec, core_gflops=core_gflops, core_gbytes=core_gbytes, slash_bps=slash_bps)
    data = plain(found)
    data |= {name: str(getattr(found, name)) for name in ("slash", "unit_price", "break_even", "break_even_shielded")}
    data["seat_share_each"] = found.seat_share_each
    for one, needs in zip(data["needs"], found.needs, strict=True):
        one["cores"] = needs.cores
    app.emit(data, _calibration(found))


def _calibration(found: Calibration) -> str:
    lines = [
        ("frames a step", f"{found.frames_a_step:,}"),
        ("false flags a step", f"{found.flags_a_step:.2f}"),
        ("audits a step", f"{found.audits_a_step:.2f} ({found.warmup_audits_a_step:.2f} during warm-up)"),
        ("confirmations a step", f"{found.confirmations_a_step:.2f}"),
        ("replays", f"{100 * found.replay_share:.2f} % more work for the workers"),
        (
            "recomputes and audits",
            f"{100 * found.seat_share:.2f} % of the workers' FLOP/s, {100 * found.seat_share_each:.2f} % a seat",
        ),
    ]
    if found.audit_ppm:
        times = found.times_price(found.break_even)
        lines += [
            (
                "a free rider breaks even at",
                f"{tokens(found.break_even)} tokens gained a frame, {times:,.1f} x its price (audit share "
                f"{found.audit_ppm / 1e4:g} %, slash {tokens(found.slash)})",
            ),
            (
                "shielded by accomplices at",
                f"{tokens(found.break_even_shielded)} tokens, {found.times_price(found.break_even_shielded):,.1f} x",
            ),
            (
                "so cheating",
                "never pays: a frame's price is all it can save" if times > 4 else "may pay: raise slot_stake",
            ),
        ]
    else:
        lines.append(("a free rider", "is not audited under this policy; only the screen can find it"))
    return table(("EXPECTED", ""), lines) + "\n\n" + needs_table(found.needs)


@verb(sim, "replay", example="sentinel sim replay runs/recording --json runs/replay.json", json_flag=False)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--json",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path, allow_dash=True),
    help="Write the result to FILE; `-` prints it.",
)
def replay_(app: App, directory: Path, file: Path | None) -> int:
    """Judge a recording of a live seat again, by the simulation's judge, and compare every verdict.

    A recording comes from `sentinel verifier start --record DIR`. Screens, draws and decisions are made again from the
    recorded tensors, recomputes from the recorded weights. Exit code 0: the same verdicts in the same order. 1: not.
    """
    from sentinel_market.sim.recording import rehearse
    from sentinel_market.sim.resume import write_text

    app.note(f"judging {directory} again ...")
    report = rehearse(directory)
    data = report.to_json() | {"recording": str(directory)}
    if str(file) == "-":
        click.echo(json.dumps(data))
    else:
        if file is not None:
            write_text(file, json.dumps(data, indent=2) + "\n")
        click.echo(_replayed(report))
    return 0 if report.same else 1


def _replayed(report: Report) -> str:
    from sentinel_market.sim.difference import KINDS

    tallies = [(KINDS.get(name, name), tally) for name, tally in report.tallies.items()]
    rows = [(name, f"{tally.recorded:,}", f"{tally.equal:,}") for name, tally in tallies]
    lines = [
        table(("VERDICTS", "RECORDED", "EQUAL"), rows),
        "",
        f"{report.steps} steps, {report.nbytes / 1e6:.1f} MB, judged again in {report.seconds:.1f} s",
    ]
    if report.ended != "closed":
        lines.append(f"note: the recording ended early ({report.ended}): its limit, or the disk was full")
    if report.first is None:
        lines.append(f"same: all {report.frames.recorded:,} frames got the verdicts that the live seat gave")
    else:
        lines += [f"NOT the same: {report.differences:,} differences, the first:", report.first.text()]
    return "\n".join(lines)
