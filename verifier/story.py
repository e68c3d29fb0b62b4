"""What seats wrote down about a slot, put in order: suspicion, replays, recompute, co-signatures, chain. For people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentinel_market.errors import ConfigError, ProtocolError
from verifier.check.verdict import E6, Score
from verifier.evidence.bundle import printable
from verifier.evidence.dispatch import AnyBundle, describe_any, read_any
from verifier.evidence.files import MANIFEST, bundle_digest, parse_json
from verifier.evidence.history import history_from_json, history_lines

LOGS = ("events.jsonl", "verifier/*/events.jsonl", "homes/*/verifier/*/events.jsonl")
BUNDLES = ("evidence/*/" + MANIFEST, "verifier/*/evidence/*/" + MANIFEST, "homes/*/verifier/*/evidence/*/" + MANIFEST)
ENDS = {
    "quarantined": "quarantined: a quorum of seats came to the same verdict",
    "false alarm": "accused by one seat; no quorum agreed, so nothing followed but that seat's distrust",
    "distrusted": "gets no more work from one driver, by statistics alone; its stake is untouched",
}
ON_CHAIN = ("reported", "executed", "bond settled")


@dataclass
class Story:
    """One verdict on one slot. ``happened``: lines in order; ``scores``: the screening behind it, if there was one;
    ``chain``: (what, transaction)."""

    slot: int
    step: int
    outcome: str
    happened: list[str] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    chain: list[tuple[str, str]] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """Plain JSON data."""
        scores = [{**score.to_json(), "crossed": score.crossed} for score in self.scores]
        chain = [{"event": event, "transaction": transaction} for event, transaction in self.chain]
        return {
            "slot": self.slot,
            "step": self.step,
            "outcome": self.outcome,
            "happened": self.happened,
            "scores": scores,
            "chain": chain,
            "evidence": self.evidence,
        }


def score_rows(scores: Iterable[Score]) -> list[tuple[str, str, str, str, str]]:
    """Metric, value, fences, and where it lies; the crossed ones first."""

    def shown(value: int | None) -> str:
        return "-" if value is None else f"{value / E6:.6g}"

    rows = []
    for s in sorted(scores, key=lambda one: not one.crossed):
        where = "inside" if s.low_e6 is not None or s.high_e6 is not None else "no fence yet"
        if s.crossed:
            where = "BELOW" if s.below else "ABOVE"
        rows.append((s.metric, shown(s.value_e6), shown(s.low_e6), shown(s.high_e6), where))
    return rows


@dataclass
class Records:
    """All that was found: verdict events in the order of time, and bundles. ``problems``: what could not be read."""

    verdicts: list[dict[str, Any]] = field(default_factory=list)
    bundles: list[tuple[Path, AnyBundle, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add_log(self, path: Path) -> None:
        """A seat's events; a line that is not one (a log may end in the middle) is named and passed over."""
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            self.problems.append(f"{path} cannot be read: {error.strerror}")
            return
        for number, line in enumerate(lines, 1):
            try:
                data = parse_json(line)
            except (ValueError, RecursionError):
                self.problems.append(f"{path} line {number} is not JSON")
                continue
            if not isinstance(data, dict) or data.get("topic") != "verdict":
                continue
            if type(data.get("slot")) is int and type(data.get("step")) is int and isinstance(data.get("kind"), str):
                self.verdicts.append(data)
            else:
                self.problems.append(f"{path} line {number} is no verdict: slot, step or kind is missing")

    def add_bundle(self, directory: Path) -> None:
        """A bundle; the weights need not be there, since nothing is recomputed here."""
        try:
            digest = bundle_digest(directory).hex()
            if all(known != digest for _, _, known in self.bundles):
                self.bundles.append((directory, read_any(directory), digest))
        except ProtocolError as error:
            self.problems.append(f"{directory}: {error}")


def records_of(root: Path) -> Records:
    """What lies under a run's directory, a seat's home or a home of `sentinel`. ConfigError when there is nothing."""
    found = Records()
    for pattern in LOGS:
        for path in sorted(root.glob(pattern)):
            found.add_log(path)
    # a seat's own accusations first: co-signed copies of the same bundle are not told twice
    manifests = [path for pattern in BUNDLES for path in sorted(root.glob(pattern))]
    for path in sorted(manifests, key=lambda p: p.parent.name.startswith("cosigned")):
        found.add_bundle(path.parent)
    if not found.verdicts and not found.bundles and not found.problems:
        raise ConfigError(
            f"{root} holds neither events.jsonl of a seat nor evidence; give the directory of a run (runs/...), a "
            "seat's home (verifier/job-N-seat-I) or a bundle"
        )
    found.verdicts.sort(key=lambda v: v["at"] if isinstance(v.get("at"), int | float) else 0.0)
    return found


def stories(found: Records, slot: int | None = None, step: int | None = None) -> list[Story]:
    """One story a verdict, in the order of steps. Without ``slot`` only accusations and what statistics alone decided;
    with it also what was suspected or audited and cleared."""
    told: dict[tuple[int, int, str], Story] = {}

    def wanted(data_slot: int, data_step: int) -> bool:
        return (slot is None or data_slot == slot) and (step is None or data_step == step)

    for v in found.verdicts:
        if v["kind"] in ENDS and wanted(v["slot"], v["step"]):
            key = (v["slot"], v["step"], v["kind"])
            if key not in told:
                told[key] = _accusation(found, v)
    for directory, bundle, digest in found.bundles:
        m = bundle.commitment.message
        if wanted(m.slot, m.step) and not any(k[:2] == (m.slot, m.step) for k in told):
            told[m.slot, m.step, digest] = story_of_bundle(directory, bundle, digest)
    result = list(told.values())
    if slot is not None:
        result += [
            _cleared(v)
            for v in found.verdicts
            if v["kind"] == "confirmed" and wanted(v["slot"], v["step"]) and v.get("verdict") != "VIOLATION"
        ]
    return sorted(result, key=lambda one: (one.step, one.slot))


def story_of_bundle(directory: Path, bundle: AnyBundle, digest: str) -> Story:
    """A bundle alone: what it says of itself."""
    m = bundle.commitment.message
    return Story(
        m.slot,
        m.step,
        printable(f"{bundle.verdict.kind.value}: {bundle.verdict.reason}"),
        describe_any(bundle)[:-1],
        list(bundle.screening.scores),
        evidence=[f"{directory} ({digest})"],
    )


def _accusation(found: Records, v: dict[str, Any]) -> Story:
    slot, step = v["slot"], v["step"]
    story = Story(slot, step, ENDS[v["kind"]])
    accuser = v.get("accuser")
    mine = [(d, b, h) for d, b, h in found.bundles if _concerns(b, slot, step)]
    mine.sort(key=lambda one: one[2] != v.get("evidence"))
    if mine:
        story.happened += describe_any(mine[0][1])[:-1]
        story.scores = list(mine[0][1].screening.scores)
        story.evidence = [f"{d} ({h})" for d, _, h in mine]
    else:
        story.happened += _from_log(found, v)
        story.scores = _last_scores(v)
    if v.get("reason"):
        story.happened.append(printable(f"reason: {v['reason']}"))
    if accuser:
        story.happened.append(f"accused by seat {accuser}")
    signers = v.get("signers")
    if isinstance(signers, list) and signers:
        story.happened.append(f"signed by {', '.join(map(str, signers))}, each after its own recompute")
    for other in found.verdicts:
        same = other["slot"] == slot and other["step"] == step and other.get("nonce") == v.get("nonce")
        if same and other["kind"] in ON_CHAIN and v["kind"] == "quarantined":
            story.chain.append((str(other["kind"]), str(other.get("transaction", "?"))))
    if any(event == "executed" for event, _ in story.chain):
        story.outcome = "VIOLATION: quarantined, slashed and banned on chain"
    return story


def _concerns(bundle: AnyBundle, slot: int, step: int) -> bool:
    message = bundle.commitment.message
    return (message.slot, message.step) == (slot, step)


def _from_log(found: Records, v: dict[str, Any]) -> list[str]:
    """The confirmation as the accuser's log has it, for an accusation whose bundle is not here."""
    for other in found.verdicts:
        same = other["slot"] == v["slot"] and other["step"] == v["step"]
        if same and other["kind"] == "confirmed" and other.get("verdict") == "VIOLATION":
            return [_where(other), *_history(other)]
    return []


def _cleared(v: dict[str, Any]) -> Story:
    return Story(v["slot"], v["step"], f"{v.get('verdict', '?')}: {v.get('reason', '')}", [_where(v), *_history(v)])


def _where(v: dict[str, Any]) -> str:
    way = "backward" if v.get("direction") == 1 else "forward"
    by = f", driven by {v['driver']}" if v.get("driver") else ""
    return f"{way} of microbatch {v.get('microbatch', '?')} in step {v['step']}, stage {v.get('stage', '?')}{by}"


def _history(v: dict[str, Any]) -> list[str]:
    try:
        return [f"then: {line}" for line in history_lines(history_from_json(v.get("history")))]
    except ProtocolError as error:
        return [f"its history cannot be read: {error}"]


def _last_scores(v: dict[str, Any]) -> list[Score]:
    """The scores of the last suspect frame in a quarantine's series."""
    series: Sequence[Any] = v["series"] if isinstance(v.get("series"), list) else ()
    for entry in reversed(series):
        if isinstance(entry, dict) and entry.get("kind") == "SUSPECT" and isinstance(entry.get("scores"), list):
            rows = [row for row in entry["scores"] if isinstance(row, list) and len(row) == 4]
            return [Score(str(m), value, low, high) for m, value, low, high in rows if _is_score(value, low, high)]
    return []


def _is_score(value: object, *fences: object) -> bool:
    return type(value) is int and all(fence is None or type(fence) is int for fence in fences)
