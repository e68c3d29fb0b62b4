"""``sentinel explain``: a verdict in words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sentinel_market.cli.common import App, job_or_fail, table, verb
from sentinel_market.errors import ConfigError, Recoverable

if TYPE_CHECKING:
    from verifier.story import Records, Story

EXAMPLE = """
sentinel explain runs/20260101-120000-abcd
sentinel explain runs/20260101-120000-abcd --slot 3
sentinel explain runs/20260101-120000-abcd/evidence/step12-slot3-0011aabbccdd
sentinel explain --job 1 --slot 3
"""


@verb(click.Group(), "explain", example=EXAMPLE)
@click.argument("source", metavar="[RUN|BUNDLE]", required=False, type=click.Path(path_type=Path))
@click.option("--job", "job_id", type=int, help="Ask the coordinator and the chain about this job instead.")
@click.option("--slot", type=int, help="Only this slot; also what was suspected or audited and cleared.")
@click.option("--step", type=int, help="Only this step.")
def explain(app: App, source: Path | None, job_id: int | None, slot: int | None, step: int | None) -> int:
    """Why a worker was banned, or cleared: which number crossed which fence, when, what replays and recompute said, who
    signed, what the chain did. From a run's directory, a seat's home, a bundle (directory or tar), or --job.

    Exit code 1 when there is no verdict to explain.
    """
    if (source is None) == (job_id is None):
        raise ConfigError("give either a directory (a run, a seat's home, a bundle) or --job N with --slot M")
    found, told, chain = _from_job(app, job_id, slot, step) if job_id is not None else _from_files(source, slot, step)
    for problem in found.problems:
        app.note(f"passed over: {problem}")
    data = {
        "stories": [one.to_json() for one in told],
        "chain": chain,
        "problems": found.problems,
    }
    parts = [_text(one) for one in told]
    if chain:
        rows = [(c["block"], c["event"], c["by"], c["transaction"]) for c in chain]
        parts.append("on chain:\n" + table(("BLOCK", "EVENT", "BY", "TRANSACTION"), rows))
    where = "" if slot is None else f" of slot {slot}"
    where += "" if step is None else f" in step {step}"
    app.emit(data, "\n\n".join(parts) if parts else f"no verdict{where} is on record here")
    return 0 if parts else 1


def _text(story: Story) -> str:
    from verifier.story import score_rows

    lines = [f"slot {story.slot}, step {story.step}: {story.outcome}", *(f"  {line}" for line in story.happened)]
    if story.scores:
        rows = table(("METRIC", "VALUE", "LOW", "HIGH", ""), score_rows(story.scores))
        lines += [f"    {row}" for row in rows.splitlines()]
    lines += [f"  {event}: {transaction}" for event, transaction in story.chain]
    lines += [f"  evidence: {one}" for one in story.evidence]
    return "\n".join(lines)


def _from_files(
    source: Path | None, slot: int | None, step: int | None
) -> tuple[Records, list[Story], list[dict[str, Any]]]:
    from sentinel_market.cli.evidence import opened
    from verifier.evidence import bundle_digest, read_any
    from verifier.story import Records, records_of, stories, story_of_bundle

    assert source is not None
    if not source.exists():
        raise ConfigError(f"{source} does not exist; give the directory of a run, a seat's home, or a bundle")
    if source.is_file() or (source / "manifest.json").is_file():
        with opened(source) as (directory, _):
            bundle = read_any(directory)
            digest = bundle_digest(directory).hex()
        found = Records()
        home = source.absolute().parent.parent
        if (home / "events.jsonl").is_file():  # the seat's own log says how it went on
            found.add_log(home / "events.jsonl")
        found.bundles.append((source, bundle, digest))
        message = bundle.commitment.message
        told = [
            one for one in stories(found, message.slot, message.step) if any(digest in text for text in one.evidence)
        ]
        return found, told or [story_of_bundle(source, bundle, digest)], []
    found = records_of(source)
    return found, stories(found, slot, step), []


def _from_job(
    app: App, job_id: int, slot: int | None, step: int | None
) -> tuple[Records, list[Story], list[dict[str, Any]]]:
    """What the seats have published, what a seat's home on this machine knows, and what the chain did."""
    from verifier.story import Records, records_of, stories

    if slot is None:
        raise ConfigError(f"which slot of job {job_id}? give --slot N; `sentinel job watch {job_id}` shows verdicts")
    job_or_fail(app, job_id)
    found = Records()
    for home in sorted((app.settings.home / "verifier").glob(f"job-{job_id}-seat-*")):
        try:
            here = records_of(home)
        except ConfigError:
            continue  # a seat that has told nothing yet
        found.verdicts += here.verdicts
        found.bundles += here.bundles
        found.problems += here.problems
    told = stories(found, slot, step)
    told += _published(app, job_id, slot, step, found)
    return found, told, _on_chain(app, job_id, slot)


def _published(app: App, job_id: int, slot: int, step: int | None, found: Records) -> list[Story]:
    """Verdict events of all seats, as the coordinator has them: a line each."""
    from sentinel_market.wire.http_client import Refused
    from verifier.check.verdict import Score
    from verifier.story import Story

    result: list[Story] = []
    after = 0
    try:
        while page := app.coordinator.verdicts(job_id, after):
            after = page[-1].id
            for one in page:
                event = one.event
                if event.slot != slot or (step is not None and event.step != step):
                    continue
                way = {0: "forward", 1: "backward", None: "frame"}[event.direction]
                line = (
                    f"{way}{'' if event.microbatch is None else f' of microbatch {event.microbatch}'}: {event.reason}"
                )
                story = Story(slot, event.step, f"{event.kind}, says seat {one.verifier}", [line])
                if event.metric is not None and event.value_e6 is not None and event.fence_e6 is not None:
                    above = event.value_e6 > event.fence_e6
                    low, high = (None, event.fence_e6) if above else (event.fence_e6, None)
                    story.scores = [Score(event.metric, event.value_e6, low, high)]
                result.append(story)
    except (ConfigError, Recoverable, Refused) as error:
        found.problems.append(f"the coordinator says nothing: {error}")
    return result


def _on_chain(app: App, job_id: int, slot: int) -> list[dict[str, Any]]:
    """Reports against a slot, and what became of their cases."""
    client = app.reader
    cases: set[bytes] = set()
    rows: list[dict[str, Any]] = []
    for event in client.fetch_events(client.network.deployed_block, client.block_number()):
        args = event.args
        if event.name == "ReportFiled" and (args["jobId"], args["slot"]) == (job_id, slot):
            cases.add(args["caseId"])
            rows.append(_chain_row(event, f"{args['verifier']}, evidence {args['evidenceHash'].hex()[:16]}"))
        elif args.get("caseId") in cases:
            rows.append(_chain_row(event, str(args.get("verifier") or args.get("accused") or "")))
    return rows


def _chain_row(event: Any, by: str) -> dict[str, Any]:
    return {"block": event.block, "event": event.name, "by": by, "transaction": event.tx_hash}
