"""Line charts as SVG text: a few series over steps, linear or logarithmic. Colours are CSS classes of the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

Point = tuple[float, float]
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 14.0, 12.0, 34.0
MAX_POINTS: Final = 600
"""Points drawn of one series; longer ones are thinned by the mean of equal parts."""
LOG_RATIO: Final = 60.0
"""Values that span more than this factor are drawn on a logarithmic axis."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One line. ``style`` is a CSS class: a, b, c, fence."""

    name: str
    style: str
    points: Sequence[Point]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A vertical line at a step."""

    step: float
    name: str


def thin(points: Sequence[Point], most: int = MAX_POINTS) -> list[Point]:
    """At most ``most`` points: the last step and the mean value of each part."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(len(points) / most)
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    return [(part[-1][0], sum(value for _, value in part) / len(part)) for part in parts]


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers from ``low`` to ``high``, about ``count`` of them."""
    raw = (high - low) / count or 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(one * power for one in (1, 2, 5, 10) if one * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _number(value: float) -> str:
    return f"{value:.6g}"


class _Axes:
    """From steps and values to pixels."""

    def __init__(self, steps: Sequence[float], values: Sequence[float], width: float, height: float) -> None:
        self.width, self.height = width, height
        self.first, self.last = min(steps), max(*steps, min(steps) + 1)
        low, high = min(values), max(values)
        self.log = low > 0 and high / low > LOG_RATIO
        if self.log:
            low, high = math.log10(low), math.log10(high)
        pad = (high - low) * 0.06 or 0.1
        self.low, self.high = low - pad, high + pad

    def x(self, step: float) -> float:
        return _LEFT + (step - self.first) / (self.last - self.first) * (self.width - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        at = math.log10(value) if self.log else value
        return self.height - _BOTTOM - (at - self.low) / (self.high - self.low) * (self.height - _TOP - _BOTTOM)

    def values(self) -> list[float]:
        if not self.log:
            return ticks(self.low, self.high, 5)
        return [10.0**power for power in range(math.ceil(self.low), math.floor(self.high) + 1)]


def line_chart(
    series: Sequence[Series], *, title: str, marks: Sequence[Mark] = (), width: float = 860, height: float = 280
) -> str:
    """An ``<svg>`` element; values that are not finite are left out. A sentence when there is nothing to draw."""
    drawn = [(one, thin([point for point in one.points if all(map(math.isfinite, point))])) for one in series]
    drawn = [(one, points) for one, points in drawn if points]
    if not drawn:
        return '<p class="muted">Nothing to draw.</p>'
    everything = [point for _, points in drawn for point in points]
    axes = _Axes([step for step, _ in everything], [value for _, value in everything], width, height)
    parts = [
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
    ]
    for value in axes.values():
        at = axes.y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{_number(value)}</text>')
    for step in ticks(axes.first, axes.last, 8):
        parts.append(f'<text x="{axes.x(step):.1f}" y="{height - 16}" text-anchor="middle">{_number(step)}</text>')
    parts.append(f'<text x="{width - _RIGHT}" y="{height - 2}" text-anchor="end">step</text>')
    for mark in marks:
        if axes.first <= mark.step <= axes.last:
            at = axes.x(mark.step)
            parts.append(
                f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{height - _BOTTOM}">'
                f"<title>{escape(mark.name)}</title></line>"
            )
    for one, points in drawn:
        parts.append(_line(one, points, axes))
    return "".join(parts) + "</svg>"


def _line(series: Series, points: Sequence[Point], axes: _Axes) -> str:
    name = escape(series.name)
    if len(points) <= 60:
        dots = "".join(
            f'<circle class="dot {series.style}" cx="{axes.x(step):.1f}" cy="{axes.y(value):.1f}" r="2.5">'
            f"<title>{name}: step {_number(step)}, {_number(value)}</title></circle>"
            for step, value in points
        )
    else:
        dots = ""
    path = "".join(
        f"{'L' if index else 'M'}{axes.x(step):.1f} {axes.y(value):.1f}" for index, (step, value) in enumerate(points)
    )
    return f'<path class="line {series.style}" d="{path}"><title>{name}</title></path>{dots}'


def legend(series: Sequence[Series], marks: Sequence[Mark] = ()) -> str:
    """A list of names with samples of their lines."""
    items = [f'<li class="{one.style}"><i></i>{escape(one.name)}</li>' for one in series]
    if marks:
        items.append(f'<li class="marks"><i></i>{escape(marks[0].name.split(":")[0])}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'
