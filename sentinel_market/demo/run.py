"""One job of a demo: post, claim, train, settle; and everything that can be known of it afterwards."""

from __future__ import annotations

import json
import platform
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sentinel_market.data.corpus import load_corpus
from sentinel_market.demo.display import Display
from sentinel_market.demo.market import LocalMarket, Participant
from sentinel_market.demo.plan import Hostile, draw_hostiles
from sentinel_market.demo.processes import Child
from sentinel_market.demo.settings import DemoSettings, demo_spec
from sentinel_market.domain.job_spec import JobSpec
from sentinel_market.errors import Fatal

POLL_SECONDS = 0.25
SETTLE_SECONDS = 180.0
SEAT_SECONDS = 20.0
"""Seats name a dead one within ten seconds; the rest is margin for a busy machine."""


@dataclass(frozen=True)
class Cast:
    """Who takes part. Worker i claims slot i; the hostile ones are told by their own command line only."""

    submitter: str
    workers: tuple[str, ...]
    verifiers: tuple[str, ...]
    hostiles: tuple[Hostile, ...]

    def attack_of(self, slot: int) -> Hostile | None:
        return next((h for h in self.hostiles if h.slot == slot), None)


@dataclass
class JobRun:
    """What happened, as the seats' own logs and the chain say."""

    cast: Cast
    settings: DemoSettings
    spec: JobSpec
    job_id: int
    steps: list[dict[str, Any]] = field(default_factory=list)
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    settlements: list[dict[str, Any]] = field(default_factory=list)
    stake_before: dict[str, int] = field(default_factory=dict)
    stake_after: dict[str, int] = field(default_factory=dict)
    banned: dict[str, bool] = field(default_factory=dict)
    exit_codes: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    costs: list[dict[str, Any]] = field(default_factory=list)
    first_bad_step: dict[int, int] = field(default_factory=dict)

    @property
    def losses(self) -> list[tuple[int, float]]:
        return [(int(s["step"]), float(s["loss"])) for s in self.steps if s.get("loss") is not None]

    @property
    def validation(self) -> list[tuple[int, float]]:
        return [
            (int(s["step"]), float(s["validation_loss"])) for s in self.steps if s.get("validation_loss") is not None
        ]

    @property
    def tokens_per_second(self) -> float:
        found = [float(s["tokens_per_second"]) for s in self.steps if s.get("tokens_per_second")]
        return found[-1] if found else 0.0

    @property
    def checkpoint(self) -> str:
        return [str(s["checkpoint"]) for s in self.steps if s.get("checkpoint")][-1]

    def verdict(self, slot: int, kind: str) -> dict[str, Any] | None:
        return next((v for v in self.verdicts if v["kind"] == kind and v["slot"] == slot), None)


def make_cast(settings: DemoSettings, prefix: str = "") -> Cast:
    slots = settings.stages * settings.replicas
    return Cast(
        f"{prefix}submitter",
        tuple(f"{prefix}worker-{i}" for i in range(slots)),
        tuple(f"{prefix}verifier-{i}" for i in range(3)),
        draw_hostiles(settings.seed, settings.steps, settings.replicas) if settings.hostile else (),
    )


def prepare(market: LocalMarket, settings: DemoSettings, cast: Cast) -> JobRun:
    """Keys, money, stakes, and the job on chain."""
    market.enroll([cast.submitter, *cast.workers, *cast.verifiers])
    spec = with_data(demo_spec(settings, market.quote_params()))
    market.fund(
        {
            cast.submitter: spec.market.budget,
            **dict.fromkeys(cast.workers, settings.deposit_worker),
            **dict.fromkeys(cast.verifiers, settings.deposit_verifier),
        }
    )
    market.stake(
        {
            **dict.fromkeys(cast.workers, settings.deposit_worker),
            **dict.fromkeys(cast.verifiers, settings.deposit_verifier),
        }
    )
    job_id = market.post(cast.submitter, spec)
    run = JobRun(cast, settings, spec, job_id)
    for name in (*cast.workers, *cast.verifiers):
        run.stake_before[name] = market.reader.vault.stake_of(market.people[name].account).total
    return run


def with_data(spec: JobSpec) -> JobSpec:
    """The spec with the digests of this machine's data, as `sentinel job post` fills them in."""
    data = spec.data
    corpus = load_corpus(
        data.kind,
        data.path or None,
        tokenizer=data.tokenizer,
        validation_fraction_ppm=data.validation_ppm,
        vocab_size=spec.model.vocab_size,
        seq_len=spec.model.seq_len,
    )
    return replace(
        spec,
        data=replace(
            data,
            train_digest=corpus.train_digest,
            validation_digest=corpus.validation_digest,
            python=platform.python_version(),
        ),
    )


def train(market: LocalMarket, run: JobRun, display: Display) -> None:
    """Start everybody, show what happens, wait until the job is settled. Raises Fatal when the run stops."""
    began = time.monotonic()
    children = [_start(market, run, name, slot) for slot, name in enumerate(run.cast.workers)]
    seats = [_start(market, run, name, None) for name in run.cast.verifiers]
    followers = [_Follower(market.people[name], run) for name in run.cast.verifiers]
    first_step = 0.0
    trained = 0.0
    while True:
        for follower in followers:
            follower.follow(display)
        if run.losses and not first_step:
            first_step = time.monotonic()
            run.seconds["until the first step"] = first_step - began
        if first_step and not trained and len(run.losses) >= run.settings.steps:
            trained = time.monotonic()
            run.seconds["training"] = trained - first_step
        if any(child.exit_code not in (None, 0) for child in seats):
            raise _stopped(seats)
        if not first_step and all(child.exit_code is not None for child in children):
            raise Fatal(f"no worker is left before the first step; {children[0].name}:\n{children[0].tail()}")
        if all(child.exit_code == 0 for child in seats):
            break
        time.sleep(POLL_SECONDS)
    until = time.monotonic() + SETTLE_SECONDS
    while any(child.exit_code is None for child in children) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    for follower in followers:
        follower.follow(display)
    run.seconds["settling"] = time.monotonic() - trained
    run.exit_codes = {
        child.name: child.exit_code if child.exit_code is not None else -1 for child in (*children, *seats)
    }
    _collect(market, run)


def _stopped(seats: list[Child]) -> Fatal:
    """Why the run stopped: what went first, and what the other seats say, who notice within ten seconds."""
    first = next(child for child in seats if child.exit_code not in (None, 0))
    until = time.monotonic() + SEAT_SECONDS
    while any(child.exit_code is None for child in seats) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    words = [f"{first.name} stopped with exit code {first.exit_code}"]
    for child in seats:
        words += [f"{child.name}: {line}" for line in child.tail(40).splitlines() if line.startswith("Error: ")]
    return Fatal("\n".join(words))


def _start(market: LocalMarket, run: JobRun, name: str, slot: int | None) -> Child:
    person = market.people[name]
    if slot is None:
        arguments = ["verifier", "start", name, "--job", str(run.job_id)]
    else:
        arguments = ["worker", "start", name, "--job", str(run.job_id), "--slot", str(slot)]
        hostile = run.cast.attack_of(slot)
        if hostile is not None:
            arguments += ["--attack", hostile.attack, "--attack-seed", str(hostile.seed)]
            arguments += ["--attack-onset", str(hostile.onset)]
    return market.nursery.start(
        name, arguments, market.environment(person.home), market.directory / "logs" / f"{name}.log"
    )


class _Follower:
    """Reads the lines that a seat has added to its log of events."""

    def __init__(self, person: Participant, run: JobRun) -> None:
        self.person, self.run = person, run
        self._offset = 0

    def follow(self, display: Display) -> None:
        for path in (self.person.home / "verifier").glob(f"job-{self.run.job_id}-seat-*/events.jsonl"):
            with path.open("r", encoding="utf-8") as file:
                file.seek(self._offset)
                while (line := file.readline()).endswith("\n"):
                    self._offset = file.tell()
                    self._take(json.loads(line), display)

    def _take(self, data: dict[str, Any], display: Display) -> None:
        topic = data.pop("topic")
        if topic == "step":
            self.run.steps.append(data)
            display.step(data)
        elif topic == "settlement":
            self.run.settlements.append(data)
        elif topic == "seat":
            if data["kind"] == "fault":
                display.event(f"step {data['step']}: seat {data['seat']}: {data['fault']} goes on its public record")
        else:
            self.run.verdicts.append(data)
            display.progress.bans += data["kind"] == "executed"
            text = _tell(self.run, data)
            if text:
                display.event(text)


def _tell(run: JobRun, data: dict[str, Any]) -> str:
    slot = int(data["slot"])
    who = f"worker {slot} (stage {slot // run.settings.replicas}, replica {slot % run.settings.replicas})"
    if data["kind"] == "quarantined":
        return f"step {data['step']}: {who} quarantined: {data['reason'][:160]}"
    if data["kind"] == "executed":
        return f"step {data['at_step']}: {who} slashed and banned on chain, {data['transaction'][:18]}..."
    if data["kind"] == "false alarm":
        return f"step {data['step']}: {who} was accused by one seat alone; nobody else agreed"
    return ""


def _collect(market: LocalMarket, run: JobRun) -> None:
    cast = run.cast
    for name in (*cast.workers, *cast.verifiers):
        account = market.people[name].account
        run.stake_after[name] = market.reader.vault.stake_of(account).total
        run.banned[name] = market.reader.vault.is_banned(account)
    for name in cast.verifiers:
        for path in (market.people[name].home / "verifier").glob(f"job-{run.job_id}-seat-*/costs.json"):
            run.costs.append(json.loads(path.read_text()))
    for hostile in cast.hostiles:
        path = market.people[cast.workers[hostile.slot]].home / "attack.json"
        if path.exists():
            first = json.loads(path.read_text()).get("first_bad_step")
            if first is not None:
                run.first_bad_step[hostile.slot] = int(first)


def verification_share(run: JobRun) -> float:
    """CPU seconds of checks, hashing, signing, replays and recomputes over all CPU seconds of workers and seats."""
    checks = total = 0.0
    workers: dict[str, float] = {}
    for seat in run.costs:
        sections = seat["sections"]
        checks += sum(sections.get(name, 0.0) for name in ("check", "crypto", "recompute", "evidence"))
        checks += seat["replays"] + sum(w["overhead"] for w in seat["workers"])
        total += seat["process"]
        for worker in seat["workers"]:
            workers[worker["id"]] = max(workers.get(worker["id"], 0.0), worker["process"])
    total += sum(workers.values())
    return checks / total if total else 0.0


def evidence_dirs(market: LocalMarket, run: JobRun) -> list[Path]:
    return sorted(
        path
        for name in run.cast.verifiers
        for path in (market.people[name].home / "verifier").glob(f"job-{run.job_id}-seat-*/evidence/step*")
    )
