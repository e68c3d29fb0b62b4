"""What verification costs on the live path, in CPU seconds over all processes (``sentinel bench cost``).

Four modes of the same processes, routes and seed, taken in turn: *unverified* (policy none, nothing hashed or signed),
*screen* (every frame screened, hashed and signed; no confirmation, no audits), *default*, and *duplicated* (every unit
of work done again by another replica). A run counts the steps after its warm-up.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from statistics import median
from typing import Any

from sentinel_market.cost.node import Plan, run_node
from sentinel_market.errors import ConfigError, Fatal
from verifier.check.policy import PPM, Policy

MODES = ("unverified", "screen", "default", "duplicated")
GRACE_SECONDS = 5.0
_FAR = 1000.0
_NOT_LOOKS = {"check", "crypto", "reduce", "validation", "evidence"}
"""Sections of a seat's meter that are no second look at work: those all cost what the work itself costs."""


@dataclass(frozen=True, kw_only=True)
class CostSettings:
    """Sizes of the runs. ``warmup`` steps are not counted; each driver needs 40 frames a boundary before its fences
    are those of a long run."""

    seed: int = 0
    dim: int = 512
    seq_len: int = 128
    microbatch_size: int = 8
    stages: int = 4
    replicas: int = 3
    seats: int = 3
    microbatches: int = 24
    warmup: int = 5
    steps: int = 2
    audit_ppm: int = 10_000
    timeout: float = 900.0

    def __post_init__(self) -> None:
        if self.replicas < 3:
            raise ConfigError(f"--replicas {self.replicas}: a replay needs two other replicas; use at least 3")
        if self.dim % 64:
            raise ConfigError(f"--dim {self.dim} must be a multiple of 64")
        if self.microbatches < self.seats:
            raise ConfigError(f"--microbatches {self.microbatches}: each of {self.seats} seats drives at least one")

    def policy(self, mode: str) -> Policy:
        """The policy of a mode; no audits while warming up, so that every mode trains alike until then."""
        share = PPM if mode == "duplicated" else self.audit_ppm
        default = Policy(audit_share_ppm=share, warmup_audit_share_ppm=0)
        if mode == "unverified":
            return replace(default, name="none")
        if mode == "screen":
            # Fences out of reach: every frame is judged, and no chance flag stops a run that nobody could clear.
            return replace(default, name="screen", k_early=_FAR, k_init=_FAR, k_max=_FAR)
        return default

    def toml(self) -> str:
        """The job: one layer a stage."""
        return f"""
name = "cost"
seed = {self.seed}
[model]
dim = {self.dim}
num_layers = {self.stages}
num_heads = {self.dim // 64}
num_kv_heads = {self.dim // 64}
ffn_dim = {self.dim * 8 // 3 // 64 * 64}
seq_len = {self.seq_len}
[data]
kind = "stdlib"
[training]
steps = {self.warmup + self.steps + 1}
microbatches = {self.microbatches}
microbatch_size = {self.microbatch_size}
learning_rate = 0.0003
epoch_steps = {self.warmup + self.steps + 1}
validation_sequences = 8
[parallelism]
stages = {self.stages}
replicas = {self.replicas}
[seats]
num = {self.seats}
quorum = {self.seats // 2 + 1}
[verification]
policy = "screen+confirm+audit"
audit_ppm = {max(self.audit_ppm, 1)}
warmup_audit_ppm = 1
warmup_steps = {self.warmup}
[market]
budget = "1000000"
price_per_microbatch = "0.1"
relay_price = "0.01"
audit_price = "0.01"
slot_stake = "100"
seat_stake = "500"
"""


@dataclass(frozen=True)
class Run:
    """CPU seconds of one run's counted steps, over all processes. ``parts``: compute, check, hash, sign, sketch (the
    gradient sketches), replay, recompute and whatever else the seats' meters name. ``looks``: how often."""

    mode: str
    round: int
    cpu: float
    wall: float
    parts: dict[str, float]
    looks: dict[str, int]

    @property
    def compute(self) -> float:
        """Of the stages' own work: without what was done a second time."""
        return self.parts.get("compute", 0.0) - self.parts.get("replay", 0.0)

    @property
    def watching(self) -> float:
        """Statistics, hashing and signing, as a share of compute."""
        return sum(self.parts.get(name, 0.0) for name in ("check", "hash", "sign", "sketch")) / self.compute

    @property
    def second_looks(self) -> float:
        """Replays, recomputes, cross-audits and whole-gradient audits, as a share of compute."""
        named = {"compute", "hash", "sign", "sketch", *_NOT_LOOKS}
        return sum(seconds for name, seconds in self.parts.items() if name not in named) / self.compute

    @property
    def other(self) -> float:
        """CPU seconds under none of the shares' names: optimizer, gRPC, copies, the interpreter, waiting loops."""
        overlapping = {"replay", "crypto", "reduce", "evidence"}  # made of compute, hashing and signing, and more
        return self.cpu - sum(seconds for name, seconds in self.parts.items() if name not in overlapping)


def parts_of(marks: list[tuple[dict[str, Any], dict[str, Any]]]) -> tuple[float, float, dict[str, float]]:
    """(CPU seconds, wall seconds, parts) between the marks of all processes: (first, last) a process."""
    cpu = sum(last["process"] - first["process"] for first, last in marks)
    wall = max(last["wall"] for _, last in marks) - max(first["wall"] for first, _ in marks)
    parts: dict[str, float] = {}
    for first, last in marks:
        before = {**first["clock"], **first.get("sections", {}), "replay": first.get("replay", 0.0)}
        after = {**last["clock"], **last.get("sections", {}), "replay": last.get("replay", 0.0)}
        if "sections" in last:
            # A seat's own recomputes go through no StageRunner; its meter knows them, with their sketches.
            after["sketch"] = before["sketch"] = 0.0
        for name, seconds in after.items():
            parts[name] = parts.get(name, 0.0) + seconds - before.get(name, 0.0)
    return cpu, wall, parts


def run_mode(settings: CostSettings, mode: str, number: int) -> Run:
    """One run in processes of its own. Fatal with the last words of a process that ends early, or on a time-out."""
    spec_seats = settings.seats
    with tempfile.TemporaryDirectory(prefix="sentinel-cost-") as name:
        plan = Plan(
            toml=settings.toml(),
            policy=settings.policy(mode),
            hashing=mode != "unverified",
            ports=_free_ports(spec_seats),
            marks=(settings.warmup, settings.warmup + settings.steps),
            home=Path(name),
        )
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["sentinel_market.cost.node"])
        processes: dict[str, ForkServerProcess] = {}
        try:
            for node in plan.names():
                process = context.Process(target=run_node, args=(plan, node, plan.home / f"{node}.log"), name=node)
                process.start()
                processes[node] = process
            _wait(plan, processes, settings.timeout)
            marks = []
            for node in plan.names():
                first, last = (json.loads(plan.file(node, step).read_text()) for step in plan.marks)
                marks.append((first, last))
        finally:
            _stop(list(processes.values()))
        cpu, wall, parts = parts_of(marks)
        looks: dict[str, int] = {}
        for first, last in marks:
            for what, count in last.get("looks", {}).items():
                looks[what] = looks.get(what, 0) + count - first["looks"].get(what, 0)
        return Run(mode, number, cpu, wall, parts, looks)


def _free_ports(count: int) -> tuple[int, ...]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return tuple(int(one.getsockname()[1]) for one in sockets)


def _wait(plan: Plan, processes: dict[str, ForkServerProcess], timeout: float) -> None:
    until = time.monotonic() + timeout
    while not all(plan.file(node, plan.marks[-1]).exists() for node in processes):
        for node, process in processes.items():
            if process.exitcode is not None:
                log = plan.home / f"{node}.log"
                words = log.read_text(errors="replace").splitlines()[-5:] if log.exists() else []
                raise Fatal("\n".join([f"{node} of the benchmark ended with exit code {process.exitcode}", *words]))
        if time.monotonic() > until:
            raise Fatal(f"a run took longer than {timeout:g} s; give --timeout, or smaller sizes")
        time.sleep(0.1)


def _stop(processes: list[ForkServerProcess]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            if process.is_alive() and process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)
        until = time.monotonic() + GRACE_SECONDS
        for process in processes:
            process.join(max(0.0, until - time.monotonic()))


def read_runs(path: Path, settings: CostSettings) -> list[Run]:
    """The runs of a file of lines. ConfigError where it holds other settings' runs."""
    runs = []
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
        try:
            data = json.loads(line)
            known = {**data.pop("settings"), "timeout": settings.timeout}
            run = Run(**data)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}, line {number} is not a run of `sentinel bench cost`: {error}") from None
        if known != asdict(settings):
            raise ConfigError(f"{path} holds runs of other sizes; name another file, or give the same options")
        runs.append(run)
    return runs


def measure(settings: CostSettings, rounds: int, path: Path | None, say: Callable[[str], None]) -> list[Run]:
    """All modes in turn, ``rounds`` times; runs that the file holds are not done again."""
    runs = [] if path is None else read_runs(path, settings)
    done = {(run.mode, run.round) for run in runs}
    for number in range(rounds):
        for mode in MODES:
            if (mode, number) in done:
                continue
            run = run_mode(settings, mode, number)
            say(f"round {number + 1} of {rounds}, {mode}: {run.cpu:.1f} CPU s, {run.wall:.1f} s")
            runs.append(run)
            if path is not None:
                with path.open("a") as file:
                    file.write(json.dumps({**asdict(run), "settings": asdict(settings)}) + "\n")
    return runs


@dataclass(frozen=True)
class Figure:
    """One line of figure 7: its rounds' median against a limit."""

    text: str
    values: tuple[float, ...]
    limit: float
    at_least: bool

    @property
    def value(self) -> float:
        return median(self.values)

    @property
    def holds(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def figures(runs: list[Run]) -> list[Figure]:
    """What the runs say; ratios are taken round by round, of runs that followed each other."""
    rounds = sorted({run.round for run in runs})
    of = {(run.mode, run.round): run for run in runs}

    def each(value: Callable[[int], float]) -> tuple[float, ...]:
        return tuple(value(number) for number in rounds)

    def cpu(mode: str, number: int) -> float:
        return of[mode, number].cpu

    return [
        Figure("statistics + hash + sign, of compute", each(lambda n: of["default", n].watching), 0.04, False),
        Figure("second looks, of compute", each(lambda n: of["default", n].second_looks), 0.035, False),
        Figure(
            "unverified / verified CPU, no second looks",
            each(lambda n: cpu("unverified", n) / cpu("screen", n)),
            0.95,
            True,
        ),
        Figure(
            "unverified / verified CPU, default", each(lambda n: cpu("unverified", n) / cpu("default", n)), 0.93, True
        ),
        Figure("duplicated / verified CPU", each(lambda n: cpu("duplicated", n) / cpu("default", n)), 1.8, True),
    ]


def quick_sizes(settings: CostSettings) -> CostSettings:
    """One seat, a narrow model, few steps: whether it works."""
    return replace(settings, dim=128, seats=1, microbatches=6, warmup=2, steps=2)


def report(runs: list[Run], found: list[Figure]) -> str:
    """Markdown: a row a run, then the figures with their limits."""
    names = ("compute", "check", "hash", "sign", "sketch", "replay", "recompute")
    lines = [f"| round | mode | CPU s | wall s | {' | '.join(names)} | rest | second looks |"]
    lines.append("|---" * (len(names) + 6) + "|")
    for run in sorted(runs, key=lambda one: (one.round, MODES.index(one.mode))):
        parts = " | ".join(f"{run.parts.get(name, 0.0):.2f}" for name in names)
        looks = f"{run.looks.get('confirmations', 0)}, {run.looks.get('suspects', 0)} of them suspects"
        lines.append(
            f"| {run.round + 1} | {run.mode} | {run.cpu:.1f} | {run.wall:.1f} | {parts} | {run.other:.1f} | {looks} |"
        )
    lines += ["", "| figure | median | each round | limit | holds |", "|---|---|---|---|---|"]
    for one in found:
        each = ", ".join(f"{value:.4f}" for value in one.values)
        sign = ">=" if one.at_least else "<="
        lines.append(
            f"| {one.text} | {one.value:.4f} | {each} | {sign} {one.limit:g} | {'yes' if one.holds else 'no'} |"
        )
    return "\n".join(lines)
