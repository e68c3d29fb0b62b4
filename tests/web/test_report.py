"""The report: complete, self-contained, escaped, well-formed, for small and odd inputs."""

from __future__ import annotations

import copy
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from sentinel_market.web.report import Curve, DistanceSeries, ReportExtras, write_report
from sentinel_market.web.svg import MAX_POINTS, Series, line_chart, thin, ticks
from tests.domain.test_summary import address, summary

EVIL = "<script>alert(1)</script>\"'&"


class Balanced(HTMLParser):
    """Checks that tags nest, and gathers what a browser would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.seen: list[str] = []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.loads += [value or "" for key, value in attrs if key in ("src", "href", "data", "action", "srcset")]
        assert not any(key.startswith("on") for key, _ in attrs)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, (tag, self.open[-3:])
        self.open.pop()


def parsed(text: str) -> Balanced:
    parser = Balanced()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    return parser


def write(tmp_path: Path, made: dict[str, Any], **options: Any) -> str:
    path = tmp_path / "report.html"
    write_report(path, made, **{"curves": [], **options})
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]
    return path.read_text(encoding="utf-8")


def curve(name: str = "verified", steps: int = 100) -> Curve:
    return Curve(name=name, points=[(step, 5 - step / steps * 3) for step in range(steps)])


def distance(**changes: Any) -> DistanceSeries:
    base: dict[str, Any] = {
        "worker": address(2),
        "stage": 2,
        "replica": 0,
        "metric": "l2",
        "direction": "forward",
        "points": [(step, 1.0 if step < 12 else 900.0) for step in range(14)],
        "fence": [(step, 3.0) for step in range(14)],
        "quarantined_at_step": 12,
    }
    return DistanceSeries(**{**base, **changes})


LEDGER = [
    {
        "account": address(1),
        "role": "worker",
        "earned": str(30 * 10**18),
        "pending": "0",
        "claimable": "1",
        "claimed": "30",
        "slashed": "0",
        "bonded": str(100 * 10**18),
        "unbonding": "0",
    }
]


def test_a_full_report(tmp_path: Path) -> None:
    text = write(
        tmp_path,
        summary(),
        curves=[curve(), curve("clean"), curve("unverified")],
        distances=[distance()],
        ledger_rows=LEDGER,
        extras=ReportExtras(title="Demo", sample="def main():\n", links={"model": "model/"}, notes=["Seed 0."]),
    )
    parser = parsed(text)
    assert parser.loads == ["model/"]
    assert parser.seen.count("svg") == 2 and "script" not in parser.seen
    for part in (
        "Who did what",
        "Ledger",
        "fence",
        "sign-flip",
        "recompute differs",
        "31337",
        "unverified",
        "def main()",
    ):
        assert part in text
    assert "budget = paid + refunded + fee, to the base unit." in text
    assert f'title="{30 * 10**18} base units">30<' in text and "&lt;0.0001" in text


def test_nothing_comes_from_outside(tmp_path: Path) -> None:
    text = write(
        tmp_path, summary(), curves=[curve()], extras=ReportExtras(links={"x": "https://evil/", "y": "javascript:1"})
    )
    assert "default-src 'none'" in text
    assert parsed(text).loads == []
    assert not re.search(r"url\(|@import|https://", text)


def test_what_others_wrote_is_escaped(tmp_path: Path) -> None:
    made = copy.deepcopy(summary())
    made["workers"][1].update(attack=EVIL, reason=EVIL, address=EVIL)
    made["chain"].update(rpc=EVIL, contracts={EVIL: EVIL})
    text = write(
        tmp_path,
        made,
        curves=[Curve(name=EVIL, points=[(0, 1.0), (1, 2.0)])],
        distances=[distance(metric=EVIL, direction=EVIL, worker=EVIL)],
        ledger_rows=[{**LEDGER[0], "account": EVIL, "role": EVIL}],
        extras=ReportExtras(title=EVIL, sample=EVIL, links={EVIL: EVIL}, notes=[EVIL]),
    )
    assert "script" not in parsed(text).seen


def test_money_that_does_not_add_up_is_shouted(tmp_path: Path) -> None:
    made = copy.deepcopy(summary())
    made["job"]["fee"] = "3"
    assert "do NOT add up" in write(tmp_path, made)


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(0, 1.0)],
        [(0, 1.0), (1, 1.0)],
        [(0, float("nan")), (1, 2.0)],
        [(0, float("inf"))],
        [(5, 0.0), (5, 1e9)],
        [(0, -3.0)],
    ],
)
def test_odd_curves(points: list[tuple[float, float]]) -> None:
    text = line_chart([Series(name="x", style="a", points=points)], title="t")
    assert "nan" not in text and "inf" not in text
    parsed(text)


def test_long_curves_are_thinned() -> None:
    points = [(float(step), 1.0) for step in range(100_000)]
    assert len(thin(points)) <= MAX_POINTS and thin(points)[-1] == (99_999.0, 1.0)
    assert len(line_chart([Series(name="x", style="a", points=points)], title="t")) < 20_000


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0, 100, 5) == [0, 20, 40, 60, 80, 100]
    assert ticks(1.52, 5.6, 5) == [2, 3, 4, 5]
    assert ticks(0.0, 0.0, 5) == [0]
    assert all(-0.3 <= one <= 7.1 for one in ticks(-0.3, 7.1, 7))
