"""After a run: is everything that it claims true on the chain? Then summary, report, model, and money back."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from sentinel_market.demo.market import LocalMarket
from sentinel_market.demo.run import JobRun, evidence_dirs, verification_share
from sentinel_market.demo.settings import TOKEN
from sentinel_market.domain.job_spec import format_amount
from sentinel_market.domain.summary import (
    Detection,
    JobResult,
    VerifierResult,
    WorkerResult,
    build_summary,
    check_summary,
)
from sentinel_market.web.report import Curve, DistanceSeries, ReportExtras, write_report

PROMPT = "def "
SAMPLE_TOKENS = 200
UNBOND_PATIENCE_SECONDS = 90.0


@dataclass(frozen=True)
class Claim:
    """One thing that the demo says, and whether the chain agrees."""

    text: str
    holds: bool


def detections(run: JobRun) -> list[Detection]:
    """First bad frame to quarantine (steps), quarantine to ban on chain (seconds), of each hostile worker caught."""
    found = []
    for hostile in run.cast.hostiles:
        quarantined, executed = run.verdict(hostile.slot, "quarantined"), run.verdict(hostile.slot, "executed")
        if quarantined is None or executed is None:
            continue
        first = run.first_bad_step.get(hostile.slot, hostile.onset)
        found.append(
            Detection(
                steps_to_quarantine=int(quarantined["step"]) - first,
                seconds_to_ban=float(executed["at"]) - float(quarantined["at"]),
            )
        )
    return found


def summarize(
    market: LocalMarket, run: JobRun, clean: float | None = None, unverified: float | None = None
) -> dict[str, Any]:
    """The content of summary.json. Stakes are those read at Settled; pay is what the chain has paid out."""
    cast, reader = run.cast, market.reader
    money = reader.escrow.money(run.job_id)
    workers = []
    for slot, name in enumerate(cast.workers):
        hostile = cast.attack_of(slot)
        quarantined, executed = run.verdict(slot, "quarantined"), run.verdict(slot, "executed")
        account = market.people[name].account
        workers.append(
            WorkerResult(
                address=account,
                stage=slot // run.settings.replicas,
                replica=slot % run.settings.replicas,
                attack=hostile.attack if hostile else None,
                quarantined_at_step=int(quarantined["step"]) if quarantined else None,
                banned=run.banned[name],
                banned_at_step=int(executed["at_step"]) if executed else None,
                reason=str(quarantined["reason"]) if quarantined else None,
                stake_before=run.stake_before[name],
                stake_after=run.stake_after[name],
                paid=reader.escrow.claimed(run.job_id, account),
            )
        )
    return build_summary(
        seed=run.settings.seed,
        steps=len(run.losses),
        tokens_per_second=run.tokens_per_second,
        verification_share=verification_share(run),
        verified_loss=run.validation[-1][1] if run.validation else None,
        clean_loss=clean,
        unverified_loss=unverified,
        workers=workers,
        verifiers=[
            VerifierResult(
                address=market.people[name].account,
                paid=reader.escrow.claimed(run.job_id, market.people[name].account),
            )
            for name in cast.verifiers
        ],
        job=JobResult(id=run.job_id, budget=money.budget, paid=money.paid, refunded=money.refunded, fee=money.fee),
        rpc=market.network.rpc[0],
        chain_id=market.network.chain_id,
        contracts=market.network.contracts,
        detections=detections(run),
    )


def check(market: LocalMarket, run: JobRun, summary: dict[str, Any]) -> list[Claim]:
    """Every claim of the demo against the chain."""
    reader, cast = market.reader, run.cast
    money = reader.escrow.money(run.job_id)
    claims = [
        Claim(f"all {run.settings.steps} steps were trained", len(run.losses) == run.settings.steps),
        Claim("the job is settled", reader.market.job(run.job_id).state == "settled"),
        Claim("budget = paid + refunded + fee", money.budget == money.paid + money.refunded + money.fee),
        Claim("everything promised is claimed", money.claimed == money.paid),
        Claim("summary.json is well formed", not check_summary(summary)),
    ]
    for slot, name in enumerate(cast.workers):
        hostile, row = cast.attack_of(slot), summary["workers"][slot]
        slashed = int(row["stake_before"]) - int(row["stake_after"])
        if hostile is None:
            claims.append(Claim(f"{name} (honest) keeps its stake", not row["banned"] and slashed == 0))
        else:
            banned = reader.vault.is_banned(market.people[name].account)
            claims.append(Claim(f"{name} ({hostile.attack}) is banned and slashed on chain", banned and slashed > 0))
    for name in cast.verifiers:
        claims.append(Claim(f"{name} keeps its stake", run.stake_before[name] == run.stake_after[name]))
        claims.append(Claim(f"{name} is paid", reader.escrow.claimed(run.job_id, market.people[name].account) > 0))
    return claims


# ---- money back


def claim_and_unbond(market: LocalMarket, run: JobRun) -> list[str]:
    """`pay claim` for everybody, then `stake unbond --all`; returns complaints."""
    people = [run.cast.submitter, *run.cast.workers, *run.cast.verifiers]
    verbs: list[tuple[str, tuple[str, ...]]] = [(name, ("pay", "claim", name)) for name in people]
    verbs += [(name, ("stake", "unbond", name, "--all")) for name in people[1:]]
    return _run_verbs(market, verbs)


def withdraw(market: LocalMarket, run: JobRun) -> list[str]:
    """`stake withdraw` once the unbonding time is over; then nothing of anybody may be left in the vault."""
    people = [*run.cast.workers, *run.cast.verifiers]
    matures = [one.matures_at for name in people for one in market.reader.vault.unbonds(market.people[name].account)]
    until = time.monotonic() + UNBOND_PATIENCE_SECONDS
    while matures and market.reader.now() < max(matures) and time.monotonic() < until:
        time.sleep(0.5)
    complaints = _run_verbs(market, [(name, ("stake", "withdraw", name)) for name in people])
    complaints += _run_verbs(market, [(name, ("pay", "claim", name)) for name in (run.cast.submitter, *people)])
    for name in people:
        stake = market.reader.vault.stake_of(market.people[name].account)
        if stake.bonded or stake.unbonding or stake.credits:
            complaints.append(
                f"{name} still has {format_amount(stake.bonded)} bonded, {format_amount(stake.unbonding)} unbonding, "
                f"{format_amount(stake.credits)} credits"
            )
    return complaints


def _run_verbs(market: LocalMarket, verbs: list[tuple[str, tuple[str, ...]]]) -> list[str]:
    complaints = []
    for name, arguments in verbs:
        code, output = market.verb(name, *arguments)
        if code != 0:
            complaints.append(f"sentinel {' '.join(arguments)}: exit code {code}: {output.strip()[-300:]}")
    return complaints


# ---- files


def write_files(market: LocalMarket, runs: dict[str, JobRun], summary: dict[str, Any], directory: Path) -> str:
    """summary.json, model/, evidence/, report.html; returns the text sample. ``runs``: verified, clean, unverified."""
    run = runs["verified"]
    (directory / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    sample = _export(market, run, directory / "model")
    for source in evidence_dirs(market, run):
        shutil.copytree(source, directory / "evidence" / source.name, dirs_exist_ok=True)
        if (source.parent / "weights").is_dir():  # over 2 GB they stay with the seat
            shutil.copytree(source.parent / "weights", directory / "evidence" / "weights", dirs_exist_ok=True)
    ledger = [row.model_dump() for row in market.coordinator.ledger(run.job_id).rows]
    write_report(
        directory / "report.html",
        summary,
        curves=[Curve(name=name, points=one.losses) for name, one in runs.items()],
        distances=_distances(market, run),
        ledger_rows=ledger,
        extras=ReportExtras(
            title="Sentinel Market: the main job",
            sample=PROMPT + sample,
            links={"summary.json": "summary.json", "model": "model/config.json"},
        ),
    )
    return sample


def _export(market: LocalMarket, run: JobRun, directory: Path) -> str:
    """`job pull`, then a sample of the pulled model."""
    from sentinel_market.data.export import read_export
    from sentinel_market.models.generate import sample
    from sentinel_market.models.jobs import model_config

    code, output = market.verb(run.cast.submitter, "job", "pull", str(run.job_id), str(directory))
    if code != 0:
        raise RuntimeError(f"job pull failed: {output}")
    config = model_config(run.spec)
    flats = read_export(directory, config, run.settings.stages)
    tokens = sample(config, flats, list(PROMPT.encode()), SAMPLE_TOKENS, 0.8, run.settings.seed)
    return bytes(tokens).decode("utf-8", errors="replace")


def _distances(market: LocalMarket, run: JobRun) -> list[DistanceSeries]:
    """For each convict the metric that crossed its fence farthest, over its last frames."""
    found = []
    for hostile in run.cast.hostiles:
        verdict = run.verdict(hostile.slot, "quarantined")
        if verdict is None:
            continue
        rows: dict[tuple[str, int], list[tuple[int, int, int | None, int | None]]] = {}
        for frame in verdict.get("series", []):
            for metric, value, low, high in frame["scores"]:
                rows.setdefault((metric, int(frame["direction"])), []).append((int(frame["step"]), value, low, high))
        ranked = sorted(rows.items(), key=lambda item: _excess(item[1]), reverse=True)
        if not ranked:
            continue
        (metric, direction), points = ranked[0]
        upper = sum(p[3] is not None and p[1] > p[3] for p in points) >= sum(
            p[2] is not None and p[1] < p[2] for p in points
        )
        fences = [(p[0], (p[3] if upper else p[2])) for p in points]
        found.append(
            DistanceSeries(
                worker=market.people[run.cast.workers[hostile.slot]].account,
                stage=hostile.slot // run.settings.replicas,
                replica=hostile.slot % run.settings.replicas,
                metric=metric,
                points=[(step, value / 1e6) for step, value, _, _ in points],
                fence=[(step, fence / 1e6) for step, fence in fences if fence is not None],
                direction="backward" if direction else "forward",
                quarantined_at_step=int(verdict["step"]),
            )
        )
    return found


def _excess(points: list[tuple[int, int, int | None, int | None]]) -> float:
    """How far beyond its fence, relative to the fence, the last frame lies."""
    _, value, low, high = points[-1]
    over = (value - high) / (abs(high) + 1e3) if high is not None else 0.0
    under = (low - value) / (abs(low) + 1e3) if low is not None else 0.0
    return max(over, under)


# ---- the table


def print_table(console: Console, run: JobRun, summary: dict[str, Any]) -> None:
    """Who did what: one narrow row each, then the reasons of the bans in full lines."""
    title = f"Job {run.job_id}: who did what (stakes and pay in tokens)"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    for name in ("who", "stage", "attack", "quarantined", "banned"):
        table.add_column(name, no_wrap=True)
    for name in ("stake", "after", "pay"):
        table.add_column(name, justify="right", no_wrap=True)
    for slot, row in enumerate(summary["workers"]):
        table.add_row(
            f"worker {slot}",
            str(row["stage"]),
            row["attack"] or "",
            _step(row["quarantined_at_step"]),
            _step(row["banned_at_step"]) if row["banned"] else "",
            _tokens(row["stake_before"], 0),
            _tokens(row["stake_after"], 0),
            _tokens(row["paid"]),
        )
    for index, row in enumerate(summary["verifiers"]):
        name = run.cast.verifiers[index]
        before, after = (_tokens(stakes[name], 0) for stakes in (run.stake_before, run.stake_after))
        table.add_row(f"verifier {index}", "", "", "", "", before, after, _tokens(row["paid"]))
    console.print(table)
    for slot, row in enumerate(summary["workers"]):
        if row["reason"]:
            console.print(f"worker {slot}: {row['reason']}", highlight=False, markup=False, soft_wrap=True)
    job = summary["job"]
    console.print(
        f"budget {_tokens(job['budget'])} = paid {_tokens(job['paid'])} + refunded {_tokens(job['refunded'])} + "
        f"fee {_tokens(job['fee'])} tokens",
        highlight=False,
        soft_wrap=True,
    )
    found = detections(run)
    if found:
        console.print(
            f"median {median(d.steps_to_quarantine for d in found):g} steps from first bad frame to quarantine, "
            f"at most {max(d.seconds_to_ban for d in found):.1f} s from there to the ban",
            highlight=False,
            soft_wrap=True,
        )


def _step(value: int | None) -> str:
    return "" if value is None else f"step {value}"


def _tokens(value: object, decimals: int = 3) -> str:
    return f"{int(str(value)) / TOKEN:,.{decimals}f}"
