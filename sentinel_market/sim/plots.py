"""Pictures of a measurement as SVG files that need nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Final

from sentinel_market.sim.cell import CLEAN, Cell
from sentinel_market.sim.group import Group, groups, usual
from sentinel_market.sim.plan import DEFAULT
from sentinel_market.sim.settings import UNVERIFIED
from sentinel_market.web.svg import Series, line_chart, ticks

POLICIES: Final = ("paper", "screen", "screen+confirm", DEFAULT)
_COLOURS: Final = ("#c2553f", "#c9962b", "#4d8fbf", "#2f7d5b", "#7a7f87")
_STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#333}.head{font-weight:600;font-size:14px}.grid{stroke:#ddd}"
    ".line{fill:none;stroke-width:1.5}"
    f".line.a{{stroke:{_COLOURS[3]}}}.line.b{{stroke:{_COLOURS[0]}}}.line.c{{stroke:{_COLOURS[4]}}}"
    f".dot.a{{fill:{_COLOURS[3]}}}.dot.b{{fill:{_COLOURS[0]}}}.dot.c{{fill:{_COLOURS[4]}}}"
)
_LEFT, _RIGHT, _TOP, _ROW = 210.0, 24.0, 64.0, 22.0
_WIDTH: Final = 860.0
DIVERGED: Final = 3.0
"""Losses beyond this many times the clean one are drawn there."""


def _page(title: str, height: float, body: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {height:g}" role="img">'
        f'<title>{escape(title)}</title><style>{_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>'
        f'<text class="head" x="12" y="22">{escape(title)}</text>{"".join(body)}</svg>\n'
    )


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _key(names: Sequence[tuple[str, str]]) -> str:
    parts, x = [], _LEFT
    for name, colour in names:
        parts.append(f'<rect x="{x:.1f}" y="34" width="10" height="10" fill="{colour}"/>' + _text(x + 14, 43, name))
        x += 30 + 7.0 * len(name)
    return "".join(parts)


def _rows(cells: Sequence[Cell]) -> dict[str, list[Group]]:
    """Groups of ordinary attacks on the mesh that has most cells, the strength that all policies ran, by name."""
    attacked = [cell for cell in cells if cell.attack != CLEAN and usual(cell)]
    if not attacked:
        return {}
    meshes = [cell.mesh for cell in attacked]
    mesh = max(sorted(set(meshes)), key=meshes.count)
    rows: dict[str, list[Group]] = {}
    checked: dict[str, set[str]] = {}
    for group in groups(cell for cell in attacked if cell.mesh == mesh):
        rows.setdefault(f"{group.name} {group.direction}", []).append(group)
        if group.settings.policy != UNVERIFIED:
            checked.setdefault(f"{group.name} {group.direction}", set()).add(group.settings.attack)
    kept = {}
    for name, found in rows.items():
        specs = [one for one in checked.get(name, ()) if any(g.settings.attack == one for g in found)]
        # The chosen strength is the one that both the unverified run and a policy have.
        both = [s for s in specs if any(g.settings.attack == s and g.settings.policy == UNVERIFIED for g in found)]
        if specs:
            spec = (both or sorted(specs))[0]
            kept[name] = [group for group in found if group.settings.attack == spec]
    return dict(sorted(kept.items()))


def _by_policy(found: Sequence[Group], policy: str) -> Group | None:
    return next((group for group in found if group.settings.policy == policy), None)


def _shade(share: float) -> str:
    """From red over yellow to green."""
    low, middle, high = (194, 85, 63), (240, 214, 140), (94, 163, 122)
    start, end, at = (low, middle, 2 * share) if share < 0.5 else (middle, high, 2 * share - 1)
    return "#" + "".join(f"{round(a + (b - a) * at):02x}" for a, b in zip(start, end, strict=True))


def f1_chart(cells: Sequence[Cell]) -> str:
    """F1 of every attack under every policy, as a field of numbers."""
    rows = _rows(cells)
    columns = [policy for policy in POLICIES if any(_by_policy(found, policy) for found in rows.values())]
    body = []
    width = (_WIDTH - _LEFT - _RIGHT) / max(len(columns), 1)
    for at, policy in enumerate(columns):
        body.append(_text(_LEFT + (at + 0.5) * width, _TOP - 12, policy, "middle"))
    for number, (name, found) in enumerate(rows.items()):
        y = _TOP + number * _ROW
        body.append(_text(_LEFT - 8, y + 15, name, "end"))
        for at, policy in enumerate(columns):
            group = _by_policy(found, policy)
            if group is None or group.f1 is None:
                continue
            x, bans = _LEFT + at * width, group.honest_bans
            note = f"  ({bans} honest)" if bans else ""
            body.append(
                f'<rect x="{x + 1:.1f}" y="{y + 1:.1f}" width="{width - 2:.1f}" height="{_ROW - 2}" '
                f'fill="{_shade(group.f1)}"/>' + _text(x + width / 2, y + 15, f"{100 * group.f1:.0f}{note}", "middle")
            )
    return _page("F1 of bans, % (honest workers banned)", _TOP + len(rows) * _ROW + 12, body)


def _bars(
    title: str,
    rows: Sequence[tuple[str, Sequence[tuple[str, float]]]],
    unit: Callable[[float], str],
    key: Sequence[tuple[str, str]],
) -> str:
    """Horizontal bars: (name, bars of it as (colour, value)) a row."""
    most = max((value for _, bars in rows for _, value in bars), default=1.0) or 1.0
    scale = (_WIDTH - _LEFT - _RIGHT - 50) / most
    body, y = [], _TOP
    bottom = _TOP + sum(6 + 9 * max(len(bars), 1) for _, bars in rows)
    for value in ticks(0.0, most, 6):
        x = _LEFT + value * scale
        body.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 4}" y2="{bottom:.1f}"/>')
        body.append(_text(x, bottom + 14, unit(value), "middle"))
    for name, bars in rows:
        body.append(_text(_LEFT - 8, y + 4.5 * max(len(bars), 1) + 4, name, "end"))
        for colour, value in bars:
            width = max(value * scale, 0.5)
            body.append(
                f'<rect x="{_LEFT}" y="{y:.1f}" width="{width:.1f}" height="8" fill="{colour}">'
                f"<title>{escape(name)}: {unit(value)}</title></rect>"
            )
            y += 9
        y += 6 + (0 if bars else 9)
    return _page(title, bottom + 28, [_key(key), *body])


def loss_chart(cells: Sequence[Cell]) -> str:
    """How much worse than the clean run the held-out loss is, unverified and under the default policy."""
    rows = []
    for name, found in _rows(cells).items():
        bars = []
        for policy, colour in ((UNVERIFIED, _COLOURS[0]), ("paper", _COLOURS[1]), (DEFAULT, _COLOURS[3])):
            group = _by_policy(found, policy)
            if group is not None and group.excess is not None:
                bars.append((colour, 100 * min(max(group.excess, 0.0), DIVERGED - 1)))
        if bars:
            rows.append((name, bars))
    key = [("unverified", _COLOURS[0]), ("paper", _COLOURS[1]), ("default policy", _COLOURS[3])]
    return _bars("Held-out loss above clean", rows, lambda value: f"{value:g} %", key)


def wait_chart(cells: Sequence[Cell]) -> str:
    """Median steps from the first false frame to the ban, by policy."""
    colours = dict(zip(POLICIES, _COLOURS, strict=False))
    rows = []
    for name, found in _rows(cells).items():
        waits = ((policy, _by_policy(found, policy)) for policy in POLICIES)
        bars = [(colours[policy], group.wait) for policy, group in waits if group and group.wait is not None]
        if bars:
            rows.append((name, bars))
    title = "Steps from the first false frame to the ban"
    return _bars(title, rows, lambda value: f"{value:g}", list(colours.items()))


def curve_chart(cells: Sequence[Cell], *, skip: int = 5) -> str:
    """Training loss of the attack that hurts most: clean, unverified, under the default policy."""
    best: tuple[float, str, list[Group]] | None = None
    for name, found in _rows(cells).items():
        alone, checked = _by_policy(found, UNVERIFIED), _by_policy(found, DEFAULT)
        if alone and checked and alone.excess is not None and (best is None or alone.excess > best[0]):
            best = (alone.excess, name, [checked, alone])
    if best is None:
        return _page("Training loss", 80, [_text(12, 50, "Nothing to draw yet.")])
    _, name, (checked, alone) = best
    same = alone.cells[0].mesh, alone.cells[0].seed
    clean = [c for c in cells if c.attack == CLEAN and usual(c) and c.policy == UNVERIFIED and (c.mesh, c.seed) == same]
    shown = [("unverified", "b", alone.cells[0]), *(("clean", "c", cell) for cell in clean[:1])]
    shown.append(("default policy", "a", checked.cells[0]))
    series = [
        Series(name=title, style=style, points=list(enumerate(cell.losses))[skip:]) for title, style, cell in shown
    ]
    inner = line_chart(series, title=name, width=_WIDTH, height=300).replace(
        "<svg ", f'<svg width="{_WIDTH:g}" height="300" ', 1
    )
    key = _key([("unverified", _COLOURS[0]), ("clean", _COLOURS[4]), ("default policy", _COLOURS[3])])
    return _page(f"Training loss under {name}", 360, [key, f'<g transform="translate(0 50)">{inner}</g>'])


CHARTS: Final[dict[str, tuple[str, Callable[[Sequence[Cell]], str]]]] = {
    "f1": ("F1 by attack and policy", f1_chart),
    "loss": ("Held-out loss above clean", loss_chart),
    "wait": ("Steps to the ban", wait_chart),
    "curve": ("Training loss", curve_chart),
}
"""Part of the file name -> title and drawing."""
