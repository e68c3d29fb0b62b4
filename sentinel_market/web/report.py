"""``report.html``: a finished run on one page that needs nothing else, not even a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Final

from sentinel_market.domain.job_spec import TOKEN_DECIMALS, format_amount
from sentinel_market.web.svg import Mark, Point, Series, legend, line_chart

_STYLES: Final = ("a", "c", "b")
_LEDGER: Final = ("earned", "pending", "claimable", "claimed", "slashed", "bonded", "unbonding")


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """A loss curve: (step, loss in nats a token)."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True, kw_only=True, slots=True)
class DistanceSeries:
    """One metric of a banned worker's frames against the fence of its boundary."""

    worker: str
    stage: int
    replica: int
    metric: str
    points: Sequence[Point]
    """(step, distance)"""
    fence: Sequence[Point]
    """(step, fence)"""
    direction: str = ""
    """forward or backward."""
    quarantined_at_step: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportExtras:
    """What stands in the report beside the summary; all optional."""

    title: str = "Training run"
    sample: str = ""
    """Text that the trained model wrote."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Files beside the report: name -> relative path."""
    notes: Sequence[str] = ()
    decimals: int = TOKEN_DECIMALS
    """Decimals of the token."""


def write_report(
    path: Path,
    summary: Mapping[str, Any],
    *,
    curves: Sequence[Curve],
    distances: Sequence[DistanceSeries] = (),
    ledger_rows: Sequence[Mapping[str, Any]] = (),
    extras: ReportExtras | None = None,
) -> None:
    """Write the report of a run. ``summary`` is the content of ``summary.json`` (``domain.summary``).

    ``ledger_rows`` are rows of ``GET /jobs/{id}/ledger``, amounts as decimal strings of base units.
    """
    text = render_report(
        summary, curves=curves, distances=distances, ledger_rows=ledger_rows, extras=extras or ReportExtras()
    )
    partial = path.with_name(f".{path.name}.part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def render_report(
    summary: Mapping[str, Any],
    *,
    curves: Sequence[Curve],
    distances: Sequence[DistanceSeries],
    ledger_rows: Sequence[Mapping[str, Any]],
    extras: ReportExtras,
) -> str:
    """The whole page as text. Everything that is not ours is escaped."""
    sections = [
        _figures(summary),
        _curves(summary, curves),
        _people(summary, extras.decimals),
        _distances(distances),
        _money(summary, ledger_rows, extras.decimals),
        _sample(extras),
        _chain(summary),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(extras.title)}</title><style>{_CSS}</style></head><body>"
        f'<header><p class="brand">Sentinel Market</p><h1>{escape(extras.title)}</h1>'
        f'<p class="muted">Job {escape(str(summary["job"]["id"]))}, seed {escape(str(summary["seed"]))}, '
        f"{escape(str(summary['steps']))} steps</p></header><main>{''.join(sections)}</main></body></html>\n"
    )


# --- sections


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def _figures(summary: Mapping[str, Any]) -> str:
    losses = summary["val_loss"]
    banned = sum(bool(worker["banned"]) for worker in summary["workers"])
    hostile = sum(worker["attack"] is not None for worker in summary["workers"])
    touched = sum(worker["attack"] is None and bool(worker["banned"]) for worker in summary["workers"])
    tiles = [
        ("Validation loss", _decimal(losses["verified"], 3)),
        ("Tokens a second", _decimal(summary["tokens_per_second"], 0)),
        ("CPU spent on verification", f"{summary['verification_share'] * 100:.1f} %"),
        ("Hostile workers banned", f"{banned - touched} of {hostile}"),
        ("Honest workers banned", str(touched)),
    ]
    detection = summary.get("detection", {})
    if detection.get("median_steps_to_quarantine") is not None:
        tiles.append(("Steps to quarantine, median", _decimal(detection["median_steps_to_quarantine"], 1)))
    if detection.get("max_seconds_to_ban") is not None:
        tiles.append(("Seconds from there to the ban, at most", _decimal(detection["max_seconds_to_ban"], 1)))
    cells = "".join(
        f'<div><span class="muted">{escape(name)}</span><b>{escape(value)}</b></div>' for name, value in tiles
    )
    return f'<section class="tiles" aria-label="Figures">{cells}</section>'


def _curves(summary: Mapping[str, Any], curves: Sequence[Curve]) -> str:
    series = [
        Series(name=curve.name, style=style, points=curve.points) for curve, style in zip(curves, _STYLES, strict=False)
    ]
    marks = [
        Mark(
            step=worker["quarantined_at_step"], name=f"quarantine: stage {worker['stage']}, replica {worker['replica']}"
        )
        for worker in summary["workers"]
        if worker["quarantined_at_step"] is not None
    ]
    rows = [[name, _decimal(value, 4)] for name, value in summary["val_loss"].items() if value is not None]
    return _section(
        "Loss",
        '<p class="muted">Nats a token over optimizer steps.</p>',
        legend(series, marks),
        line_chart(series, title="Loss over steps", marks=marks),
        _table(["Run", "Validation loss"], rows, numeric={1}, small=True),
    )


def _people(summary: Mapping[str, Any], decimals: int) -> str:
    rows = []
    for worker in sorted(summary["workers"], key=lambda one: (one["stage"], one["replica"])):
        fate = (
            "banned"
            if worker["banned"]
            else "quarantined"
            if worker["quarantined_at_step"] is not None
            else "honest work"
        )
        when = [
            f"{word} at step {worker[key]}"
            for word, key in (("quarantined", "quarantined_at_step"), ("banned", "banned_at_step"))
            if worker[key] is not None
        ]
        rows.append(
            [
                worker["stage"],
                worker["replica"],
                _Address(worker["address"]),
                worker["attack"] or "none",
                _Badge(fate, "bad" if worker["banned"] else "warn" if fate == "quarantined" else "good"),
                f"{', '.join(when)}: {worker['reason']}" if worker["reason"] else ", ".join(when),
                _Amount(worker["stake_before"], decimals),
                _Amount(worker["stake_after"], decimals),
                _Amount(worker["paid"], decimals),
            ]
        )
    heads = ["Stage", "Replica", "Account", "Attack", "Fate", "When and why", "Stake before", "after", "Paid"]
    seats = [[_Address(one["address"]), _Amount(one["paid"], decimals)] for one in summary["verifiers"]]
    return _section(
        "Who did what",
        '<p class="muted">Stakes and pay in tokens. The verifiers did not know who was hostile.</p>',
        _table(heads, rows, numeric={6, 7, 8}),
        "<h3>Verifiers</h3>",
        _table(["Account", "Paid"], seats, numeric={1}, small=True),
    )


def _distances(distances: Sequence[DistanceSeries]) -> str:
    if not distances:
        return ""
    parts = [
        '<p class="muted">What the screen measured of the banned workers\' frames, and the fence it was held against. '
        "A worker is not banned for crossing a fence, but for a recompute that disagrees with what it signed.</p>"
    ]
    for one in distances:
        series = [
            Series(name=one.metric, style="b", points=one.points),
            Series(name="fence", style="fence", points=one.fence),
        ]
        marks = []
        if one.quarantined_at_step is not None:
            marks.append(Mark(step=one.quarantined_at_step, name=f"quarantine: step {one.quarantined_at_step}"))
        name = f"Stage {one.stage}, replica {one.replica}: {one.metric} {one.direction}".strip()
        parts += [
            f"<h3>{escape(name)}</h3><p>{_cell(_Address(one.worker))}</p>",
            legend(series, marks),
            line_chart(series, title=name, marks=marks, height=220),
        ]
    return _section("Distances against fences", *parts)


def _money(summary: Mapping[str, Any], ledger_rows: Iterable[Mapping[str, Any]], decimals: int) -> str:
    job = summary["job"]
    terms = [[key, _Amount(job[key], decimals), job[key]] for key in ("budget", "paid", "refunded", "fee")]
    adds_up = int(job["budget"]) == int(job["paid"]) + int(job["refunded"]) + int(job["fee"])
    verdict = "budget = paid + refunded + fee, to the base unit." if adds_up else "These do NOT add up to the budget."
    rows: list[list[object]] = [
        [_Address(str(row["account"])), row.get("role", ""), *(_Amount(str(row[key]), decimals) for key in _LEDGER)]
        for row in ledger_rows
    ]
    heads = ["Account", "Role", *(key.capitalize() for key in _LEDGER)]
    ledger = _table(heads, rows, numeric=set(range(2, 9))) if rows else ""
    return _section(
        "Ledger",
        _table(["Job", "Tokens", "Base units"], terms, numeric={1, 2}, small=True),
        f'<p class="{"muted" if adds_up else "alarm"}">{verdict}</p>',
        ledger,
    )


def _sample(extras: ReportExtras) -> str:
    parts = []
    if extras.sample:
        parts.append(f"<h3>What the model writes</h3><pre>{escape(extras.sample)}</pre>")
    if extras.links:
        items = "".join(
            f'<li><a href="{escape(target, quote=True)}">{escape(name)}</a></li>'
            for name, target in extras.links.items()
            if "://" not in target and not target.lower().startswith(("javascript:", "data:"))
        )
        parts.append(f"<h3>Files</h3><ul>{items}</ul>")
    parts += [f"<p>{escape(note)}</p>" for note in extras.notes]
    return _section("Result", *parts) if parts else ""


def _chain(summary: Mapping[str, Any]) -> str:
    chain = summary["chain"]
    rows: list[list[object]] = [["chain id", str(chain["chain_id"])], ["RPC", _Code(chain["rpc"])]]
    rows += [[name, _Code(address)] for name, address in chain["contracts"].items()]
    return _section("Chain", _table(["What", "Where"], rows))


# --- cells


@dataclass(frozen=True, slots=True)
class _Code:
    text: str


@dataclass(frozen=True, slots=True)
class _Address:
    text: str


@dataclass(frozen=True, slots=True)
class _Badge:
    text: str
    kind: str


@dataclass(frozen=True, slots=True)
class _Amount:
    base_units: str
    decimals: int


def _decimal(value: float | None, places: int) -> str:
    return "–" if value is None else f"{value:,.{places}f}"


def _amount(amount: _Amount) -> str:
    exact = format_amount(int(amount.base_units), amount.decimals)
    whole, _, fraction = exact.partition(".")
    shown = f"{whole}.{fraction[:4]}".rstrip("0").rstrip(".") if fraction else whole
    if shown == "0" and int(amount.base_units):
        shown = "<0.0001"
    return f'<span title="{escape(amount.base_units)} base units">{escape(shown)}</span>'


def _cell(value: object) -> str:
    if isinstance(value, _Address):
        text = value.text
        return f'<code title="{escape(text)}">{escape(text[:8])}…{escape(text[-4:])}</code>'
    if isinstance(value, _Code):
        return f"<code>{escape(value.text)}</code>"
    if isinstance(value, _Badge):
        return f'<span class="badge {value.kind}">{escape(value.text)}</span>'
    if isinstance(value, _Amount):
        return _amount(value)
    return escape(str(value))


def _table(
    heads: Sequence[str], rows: Sequence[Sequence[object]], numeric: set[int] | None = None, *, small: bool = False
) -> str:
    columns = numeric or set()

    def kind(index: int) -> str:
        return ' class="num"' if index in columns else ""

    head = "".join(f'<th scope="col"{kind(index)}>{escape(one)}</th>' for index, one in enumerate(heads))
    body = "".join(
        f"<tr>{''.join(f'<td{kind(index)}>{_cell(one)}</td>' for index, one in enumerate(row))}</tr>" for row in rows
    )
    size = ' class="small"' if small else ""
    return f'<div class="scroll"><table{size}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


_CSS: Final = """
:root{color-scheme:light dark;--page:#f6f7f8;--card:#fff;--ink:#1c2329;--muted:#5a6670;--line:#d9dee2;--accent:#1f66b0;
--a:#1f66b0;--b:#b4540a;--c:#5b6b1f;--bad:#b3261e;--good:#1b6e3c;--warn:#8a5a00;--good-soft:#e3f2e8;--warn-soft:#fbefd2;
--bad-soft:#fbe4e2}
@media (prefers-color-scheme:dark){:root{--page:#14181c;--card:#1c2227;--ink:#e6eaed;--muted:#9eabb5;--line:#343d45;
--accent:#7db4ee;--a:#6aa9ea;--b:#e8974d;--c:#b5c76a;--bad:#f28b82;--good:#7fd09b;--warn:#e5b85c;--good-soft:#17301f;
--warn-soft:#362a10;--bad-soft:#3b1c1a}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:70rem;padding:1.5rem 1.25rem 2rem;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif}
h1{font-size:1.6rem;margin:0;line-height:1.25}h2{font-size:1.1rem;margin:0 0 .4rem}
h3{font-size:.98rem;margin:1rem 0 .2rem}
p{margin:0 0 .3rem}.brand{font-weight:600;color:var(--accent)}.muted{color:var(--muted);font-size:.9rem}
.alarm{color:var(--bad);font-weight:600}a{color:var(--accent)}header{margin-bottom:1rem}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:1rem 1.1rem;margin-bottom:1rem}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(10rem,1fr));gap:.6rem 1.5rem}
.tiles b{display:block;font-size:1.45rem;font-weight:600;font-variant-numeric:tabular-nums}
svg{display:block;width:100%;height:auto}svg text{fill:var(--muted);font-size:12px;font-variant-numeric:tabular-nums}
.grid{stroke:var(--line)}.line{fill:none;stroke-width:2;stroke-linejoin:round}
.line.a{stroke:var(--a)}.line.b{stroke:var(--b)}.line.c{stroke:var(--c)}
.line.fence{stroke:var(--muted);stroke-dasharray:6 4}
.dot.a{fill:var(--a)}.dot.b{fill:var(--b)}.dot.c{fill:var(--c)}.dot.fence{fill:none}
.mark{stroke:var(--bad);stroke-dasharray:3 3}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;list-style:none;margin:.3rem 0;padding:0;font-size:.9rem}
.legend i{display:inline-block;width:1.3rem;height:0;border-top:3px solid;vertical-align:middle;margin-right:.4rem}
.legend .a i{border-color:var(--a)}.legend .b i{border-color:var(--b)}.legend .c i{border-color:var(--c)}
.legend .fence i{border-color:var(--muted);border-top-style:dashed;border-top-width:2px}
.legend .marks i{border-color:var(--bad);border-top-style:dashed;border-top-width:2px}
.scroll{overflow-x:auto;margin-top:.4rem}table{border-collapse:collapse;width:100%;font-size:.9rem}
.small{width:auto;min-width:20rem}
th,td{text-align:left;padding:.3rem .7rem .3rem 0;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--muted);font-weight:500;white-space:nowrap}
.num{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
code{white-space:nowrap;font:.86em ui-monospace,"DejaVu Sans Mono",monospace}
pre{white-space:pre-wrap;overflow-wrap:anywhere;
font:.86em/1.5 ui-monospace,"DejaVu Sans Mono",monospace;background:var(--page);padding:.8rem;
border-radius:8px;margin:.2rem 0}
.badge{display:inline-block;padding:.05rem .55rem;border-radius:99px;font-size:.84rem;white-space:nowrap}
.good{background:var(--good-soft);color:var(--good)}.warn{background:var(--warn-soft);color:var(--warn)}
.bad{background:var(--bad-soft);color:var(--bad)}
@media print{body{max-width:none;background:#fff}section{break-inside:avoid}}
"""
