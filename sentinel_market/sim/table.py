"""The measurement as Markdown: figures first, then every cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sentinel_market.sim.cell import CLEAN, Cell
from sentinel_market.sim.figures import Figure, figures, percent
from sentinel_market.sim.group import Group, groups

HEADER = (
    "attack",
    "direction",
    "strength",
    "policy",
    "seeds",
    "precision",
    "recall",
    "F1",
    "false bans",
    "honest flags",
    "steps to ban",
    "loss clean",
    "unverified",
    "verified",
    "tokens/s",
    "verification",
)


def row(group: Group) -> list[str]:
    """A line of the table."""
    checked = group.cells[0].val_loss.verified is not None
    attacked = group.cells[0].attack != CLEAN
    count = len(group.cells)
    return [
        group.name,
        group.direction,
        group.strength,
        f"`{group.settings.policy}`",
        str(count),
        percent(group.precision) if checked else "-",
        percent(group.recall) if checked and attacked else "-",
        percent(group.f1) if checked and attacked else "-",
        f"{group.honest_bans} of {group.honest}" if checked else "-",
        percent(group.honest_flags / group.honest_frames, 2) if checked and group.honest_frames else "-",
        "-" if group.wait is None else f"{group.wait:g}",
        *(_loss(group.loss(kind)) for kind in ("clean", "unverified", "verified")),
        f"{group.total(lambda cell: cell.tokens_per_second) / count:,.0f}",
        percent(group.total(lambda cell: cell.verification_share) / count) if checked else "-",
    ]


def _loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if value < 1e3 else "diverged"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def summary(found: Sequence[Figure]) -> str:
    """The figures as Markdown."""
    parts = []
    for figure in found:
        parts.append(f"{figure.number}. **{figure.verdict}** {figure.title}")
        parts += [f"   - {line}" for line in figure.lines]
    return "\n".join(parts)


def mesh_name(group: Group) -> str:
    """A mesh for a heading."""
    s = group.settings
    return (
        f"{s.replicas} x {s.stages} = {s.replicas * s.stages} workers, {s.steps} steps, width {s.model_dim}, "
        f"attacks from step {s.onset}"
    )


def report(cells: Sequence[Cell], plots: Sequence[tuple[str, str]] = ()) -> str:
    """The whole page. ``plots``: (title, file name beside the page)."""
    parts = ["# Detection", ""]
    if not cells:
        return "\n".join([*parts, "No run is finished yet.", ""])
    seconds = sum(cell.seconds for cell in cells)
    parts += [
        f"{len(cells)} runs, {seconds / 3600:.1f} hours of computing.",
        "",
        "## Figures",
        "",
        summary(figures(cells)),
        "",
    ]
    parts += [f"![{title}]({name})\n" for title, name in plots]
    sections: dict[str, list[Group]] = {}
    for group in groups(cells):
        share = f", {percent(group.settings.malicious)} hostile" if group.settings.malicious else ""
        sections.setdefault(mesh_name(group) + share, []).append(group)
    parts += [
        "Counts are added over seeds, losses (nats a token) averaged over those seeds that were run; precision, recall "
        "and F1 count workers, a positive is a ban; steps from a worker's first false frame to its ban.",
        "",
    ]
    for name, found in sections.items():
        parts += [f"## {name}", "", markdown(HEADER, [row(group) for group in found]), ""]
    return "\n".join(parts)
