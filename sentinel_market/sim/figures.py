"""The figures that the detection has to reach, from the cells, with bounds; each says whether it holds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sentinel_market.sim.bounds import said
from sentinel_market.sim.cell import CLEAN, Cell
from sentinel_market.sim.conditions import CONDITIONS, FRAMES
from sentinel_market.sim.group import Group, Hurt, excess, groups, usual
from sentinel_market.sim.plan import DEFAULT, PAPER_STRONG
from sentinel_market.sim.settings import UNVERIFIED

PAPER_MISSED = ("sign_flip", "random_sign")
LISTED = 12
"""Failures named of a figure; the table has them all."""


@dataclass(kw_only=True)
class Figure:
    """``holds`` is None where there is nothing to judge."""

    number: int
    title: str
    lines: list[str] = field(default_factory=list)
    holds: bool | None = None

    def must(self, holds: bool, text: str) -> None:
        """A line that the figure stands or falls with."""
        self.holds = holds if self.holds is None else self.holds and holds
        self.lines.append(f"{'holds' if holds else 'FAILS'}: {text}")

    @property
    def verdict(self) -> str:
        """In one word."""
        return "not measured" if self.holds is None else "pass" if self.holds else "FAIL"


def figures(cells: Sequence[Cell]) -> list[Figure]:
    """Figures 1 to 6, in order."""
    hurt = Hurt(cells)
    return [_paper(cells), _screen(cells, hurt), _confirm(cells), _default(cells, hurt), _loss(cells), _honest(cells)]


def percent(value: float | None, digits: int = 1) -> str:
    """A share as a percentage."""
    return "-" if value is None else f"{100 * value:.{digits}f} %"


def label(cell: Cell) -> str:
    """A cell in few words."""
    strength = "" if cell.strength is None else f" {cell.strength:g}"
    return f"{cell.attack}{strength} {cell.direction} seed {cell.seed}"


def listed(texts: Iterable[str]) -> str:
    """The first few."""
    found = list(texts)
    more = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
    return "; ".join(found[:LISTED]) + more


def of(cells: Iterable[Cell], policy: str, *, attacked: bool = True) -> list[Cell]:
    """The attacked (or clean) cells of a policy, those under a condition aside."""
    alike = [cell for cell in cells if cell.policy == policy and not cell.settings.condition]
    return [cell for cell in alike if (cell.attack != CLEAN) is attacked]


def bans(cells: Sequence[Cell]) -> tuple[int, int]:
    """Honest workers banned, and honest workers."""
    return sum(cell.honest_bans for cell in cells), sum(cell.honest_workers for cell in cells)


def mean_f1(cells: Sequence[Cell]) -> float:
    """Mean over cells."""
    return statistics.fmean(cell.f1 or 0.0 for cell in cells)


def clean_sigma(cells: Sequence[Cell]) -> tuple[float, int]:
    """Standard deviation of the clean loss over seeds, as a share of its mean, and of how many seeds.

    From the unverified clean runs, or the clean runs under the default policy where those are more.
    """
    alike: dict[tuple[int, int], list[float]] = {}
    for policy in (UNVERIFIED, DEFAULT):
        by_mesh: dict[tuple[int, int], list[float]] = {}
        for cell in of(cells, policy, attacked=False):
            by_mesh.setdefault(cell.mesh, []).append(cell.own_loss)
        for mesh, losses in by_mesh.items():
            alike[mesh] = max(losses, alike.get(mesh, []), key=len)
    losses = max(alike.values(), key=len, default=[])
    return (statistics.stdev(losses) / statistics.fmean(losses), len(losses)) if len(losses) > 1 else (0.0, len(losses))


def _paper(cells: Sequence[Cell]) -> Figure:
    figure = Figure(number=1, title="`paper`: the published method, no minimum; its shape must be the paper's")
    found = [cell for cell in of(cells, "paper") if usual(cell)]
    if not found:
        return figure
    forward = [cell for cell in found if cell.attack in PAPER_STRONG and cell.direction == "forward"]
    strong = [cell for cell in forward if cell.strength == 1.0]
    weak = [cell for cell in forward if cell.strength != 1.0]
    if strong:
        text = f"strong forward attacks, whole as published, are caught: mean F1 {percent(mean_f1(strong))}"
        figure.must(mean_f1(strong) >= 0.9, text)
    if weak:
        figure.lines.append(f"the same, as weak as still hurts: mean F1 {percent(mean_f1(weak))}")
    missed = [cell for cell in found if cell.attack in PAPER_MISSED and cell.direction == "backward"]
    if missed:
        recall = statistics.fmean(cell.recall or 0.0 for cell in missed)
        figure.must(recall <= 0.5, f"signs of the gradient are missed: mean recall {percent(recall)}")
    ablated = sorted({cell.policy for cell in cells if cell.policy.startswith("paper:")})
    for policy in ablated:
        runs = of(cells, policy)
        twins = [c for c in found if any((c.spec, c.seed, c.mesh) == (r.spec, r.seed, r.mesh) for r in runs)]
        if twins:
            ours, whole = mean_f1(runs), mean_f1(twins)
            text = f"`{policy}`: mean F1 {percent(ours)} against {percent(whole)} on the same attacks"
            figure.must(ours <= whole - 0.05, text)
    waits = [cell.steps_to_quarantine for cell in strong or found if cell.steps_to_quarantine is not None]
    if waits:
        wait = statistics.median(waits)
        figure.must(6 <= wait <= 10, f"bans come 6-10 steps after the first false frame: median {wait:g}")
    worse = [group for group in groups(found) if (group.recall or 0.0) < 1.0]
    if worse:
        figure.lines.append(
            "misses: " + listed(f"{g.name} {g.direction} (recall {percent(g.recall, 0)})" for g in worse)
        )
    figure.lines.append(f"honest workers banned: {said(*bans(found))}")
    return figure


def _screen(cells: Sequence[Cell], hurt: Hurt) -> Figure:
    figure = Figure(number=2, title="`screen`: honest bans <= 1 % of honest workers, F1 >= 0.95 on strong attacks")
    found = of(cells, "screen")
    if not found:
        return figure
    banned, honest = bans(found)
    figure.must(banned <= 0.01 * honest, f"honest workers banned: {said(banned, honest)}")
    strong = groups(cell for cell in found if hurt.strong(cell))
    if strong:
        weak = [group for group in strong if (group.f1 or 0.0) < 0.95]
        least = min(group.f1 or 0.0 for group in strong)
        text = f"least F1 of {len(strong)} strong attacks over their seeds: {percent(least)}"
        figure.must(
            not weak, text + (f" ({listed(f'{g.name} {g.direction} {percent(g.f1)}' for g in weak)})" if weak else "")
        )
    return figure


def _confirm(cells: Sequence[Cell]) -> Figure:
    figure = Figure(number=3, title="`screen+confirm`: no honest worker banned, colluding confirmers included")
    alone = of(cells, "screen+confirm")
    for name, found in (
        ("attacked", [cell for cell in alone if not cell.settings.collude]),
        ("attacked, colluding confirmers", [cell for cell in alone if cell.settings.collude]),
        ("clean", of(cells, "screen+confirm", attacked=False)),
    ):
        if found:
            banned, honest = bans(found)
            figure.must(banned == 0, f"{name}, {len(found)} runs: honest workers banned: {said(banned, honest)}")
    return figure


def _default(cells: Sequence[Cell], hurt: Hurt) -> Figure:
    figure = Figure(
        number=4, title="default: what makes the unverified loss >= 5 % worse, and the next strength, is banned"
    )
    found = [cell for cell in of(cells, DEFAULT) if cell.settings.recompute]
    if not found:
        return figure
    harmful = [cell for cell in found if hurt.ever(cell)]
    escaped = [cell for cell in harmful if (cell.recall or 0.0) < 1.0]
    if harmful:
        text = f"{len(harmful) - len(escaped)} of {len(harmful)} runs with a harmful attack banned every hostile worker"
        names = listed(f"{label(c)}: {c.caught} of {c.hostile_workers}, loss {percent(excess(c), 2)}" for c in escaped)
        figure.must(not escaped, text + (f"; not {names}" if escaped else ""))
    sigma, seeds = clean_sigma(cells)
    unbanned = [cell for cell in found if (cell.recall or 0.0) < 1.0 and excess(cell) is not None]
    limit = min(0.01, 2 * sigma) if seeds > 1 else 0.01
    costly = [cell for cell in unbanned if (excess(cell) or 0.0) >= limit]
    spread = f"2 sigma of the clean loss: {percent(2 * sigma, 2)}, {seeds} seeds"
    names = listed(f"{label(c)}: {percent(excess(c), 2)}" for c in costly)
    figure.must(
        not costly,
        f"{len(unbanned)} runs left somebody unbanned; {len(costly)} of them cost {percent(limit, 2)} of loss or more "
        f"({spread})" + (f": {names}" if costly else ""),
    )
    harmless = {(cell.attack, cell.direction) for cell in found if not hurt.ever(cell)}
    if harmless:
        names = listed(f"{attack} {direction}" for attack, direction in sorted(harmless))
        figure.lines.append(f"never 5 % worse at any strength of the ladder: {names}")
    figure.lines.append(f"honest workers banned: {said(*bans(found))}")
    return figure


def _loss(cells: Sequence[Cell]) -> Figure:
    figure = Figure(number=5, title="verified loss within 1 % of clean at 25 % hostile, 2 % at 37.5 %")
    found = [cell for cell in of(cells, DEFAULT) if usual(cell) and excess(cell) is not None]
    for share in sorted({cell.settings.malicious for cell in found}):
        limit = 0.01 if share <= 0.25 else 0.02
        alike = [cell for cell in found if cell.settings.malicious == share]
        above = sorted((cell for cell in alike if (excess(cell) or 0.0) > limit), key=lambda c: -(excess(c) or 0.0))
        most = max(excess(cell) or 0.0 for cell in alike)
        mean = statistics.fmean(excess(cell) or 0.0 for cell in alike)
        names = listed(f"{label(c)} {percent(excess(c), 2)}" for c in above)
        text = f"{percent(share)} hostile, {len(alike)} runs: mean {percent(mean, 2)}, worst {percent(most, 2)}"
        figure.must(not above, text + (f"; above {percent(limit)}: {names}" if above else ""))
    return figure


def _honest(cells: Sequence[Cell]) -> Figure:
    figure = Figure(number=6, title=f"honest workers, alike and different: flags <= 1 % of {FRAMES:,} frames, no bans")
    for policy in sorted({cell.policy for cell in cells} - {UNVERIFIED}):
        _unharmed(figure, f"`{policy}`, machines alike", of(cells, policy, attacked=False))
    short = []
    for name in CONDITIONS:
        found = [cell for cell in cells if (cell.settings.condition, cell.policy) == (name, DEFAULT)]
        _unharmed(figure, f"`{name}`", found)
        frames = sum(cell.honest_frames for cell in found)
        short += [f"`{name}` {frames:,} frames"] * (frames < FRAMES)
    if short and figure.holds is not None:
        figure.lines.append(f"too few to judge: {', '.join(short)}")
        # What fails on a part has failed; what holds on a part is open.
        figure.holds = None if figure.holds else False
    return figure


def _unharmed(figure: Figure, name: str, found: Sequence[Cell]) -> None:
    if not found:
        return
    group = Group(tuple(found))
    flags, frames = group.honest_flags, group.honest_frames
    name = f"{name}, {len(found)} run{'s' * (len(found) != 1)}"
    figure.must(
        flags <= 0.01 * frames, f"{name}: frames flagged {percent(flags / max(frames, 1), 2)}, {said(flags, frames)}"
    )
    figure.must(group.honest_bans == 0, f"{name}: workers banned {said(group.honest_bans, group.honest)}")
