"""Cells that differ only in their seed, taken together: counts are added, losses averaged."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sentinel_market.sim.cell import CLEAN, Cell
from sentinel_market.sim.plan import HURTS
from sentinel_market.sim.settings import UNVERIFIED, RunSettings


@dataclass(frozen=True)
class Group:
    """At least one cell; all agree in everything but the seed."""

    cells: tuple[Cell, ...]

    @property
    def settings(self) -> RunSettings:
        """Of its first cell."""
        return self.cells[0].settings

    @property
    def name(self) -> str:
        """The attack, with what is special about the run."""
        cell, s = self.cells[0], self.settings
        extra = ["colluding"] * s.collude + [f"1 step in {s.duty}"] * (s.duty != 1)
        extra += [f"{s.corrupt_drivers} of {s.num_drivers} verifiers in the plot"] * (s.corrupt_drivers > 0)
        extra += ["no recompute"] * (not s.recompute) + [s.condition] * bool(s.condition)
        return cell.attack + (f" ({', '.join(extra)})" if extra else "")

    @property
    def direction(self) -> str:
        """Where the attack acts; ``-`` for none."""
        return self.cells[0].direction if self.cells[0].attack != CLEAN else "-"

    @property
    def strength(self) -> str:
        """For a table."""
        value = self.cells[0].strength
        return "-" if value is None or self.cells[0].attack == CLEAN else f"{value:g}"

    def total(self, value: Callable[[Cell], float]) -> float:
        """A sum over the cells."""
        return sum(value(cell) for cell in self.cells)

    @property
    def caught(self) -> int:
        """Banned hostile workers."""
        return sum(cell.caught for cell in self.cells)

    @property
    def hostile(self) -> int:
        """Hostile workers."""
        return sum(cell.hostile_workers for cell in self.cells)

    @property
    def honest(self) -> int:
        """Honest workers."""
        return sum(cell.honest_workers for cell in self.cells)

    @property
    def honest_bans(self) -> int:
        """Honest workers that were banned."""
        return sum(cell.honest_bans for cell in self.cells)

    @property
    def honest_frames(self) -> int:
        """Counted frames of honest workers."""
        return sum(cell.honest_frames for cell in self.cells)

    @property
    def honest_flags(self) -> int:
        """Of those, the flagged ones."""
        return sum(round(cell.flag_rate_honest * cell.honest_frames) for cell in self.cells)

    @property
    def precision(self) -> float | None:
        """Of the banned, the share that was hostile; None when nobody was banned."""
        banned = self.caught + self.honest_bans
        return self.caught / banned if banned else None

    @property
    def recall(self) -> float | None:
        """Of the hostile, the share that was banned; None without any."""
        return self.caught / self.hostile if self.hostile else None

    @property
    def f1(self) -> float | None:
        """Harmonic mean of both; 0 when there were hostile workers and none was banned."""
        banned = self.caught + self.honest_bans
        return 2 * self.caught / (banned + self.hostile) if self.hostile else None

    @property
    def wait(self) -> float | None:
        """Median of the cells' median steps from the first false frame to the ban."""
        found = [cell.steps_to_quarantine for cell in self.cells if cell.steps_to_quarantine is not None]
        return statistics.median(found) if found else None

    def loss(self, kind: str) -> float | None:
        """Mean held-out loss ``clean``, ``unverified`` or ``verified`` over the cells where it is known."""
        found = [value for cell in self.cells if (value := getattr(cell.val_loss, kind)) is not None]
        return statistics.fmean(found) if found else None

    @property
    def excess(self) -> float | None:
        """How much worse than the clean run of its seed the worst cell is, as a share."""
        found = [e for cell in self.cells if (e := excess(cell)) is not None]
        return max(found) if found else None


def excess(cell: Cell) -> float | None:
    """The run's loss over the clean one's, less 1; None when the clean run of its mesh and seed is missing."""
    return None if cell.val_loss.clean is None else cell.own_loss / cell.val_loss.clean - 1


def usual(cell: Cell) -> bool:
    """Whether nothing about the run is special: no collusion, no duty cycle, no verifier in the plot, no
    condition."""
    s = cell.settings
    return not s.collude and s.duty == 1 and s.corrupt_drivers == 0 and s.recompute and not s.condition


def groups(cells: Iterable[Cell]) -> list[Group]:
    """Cells that agree in everything but the seed, by mesh, attack, direction, strength and policy."""
    found: dict[RunSettings, list[Cell]] = {}
    for cell in cells:
        found.setdefault(dataclasses.replace(cell.settings, seed=0), []).append(cell)
    made = [Group(tuple(sorted(one, key=lambda cell: cell.seed))) for one in found.values()]
    return sorted(made, key=_order)


def _order(group: Group) -> tuple[object, ...]:
    cell, s = group.cells[0], group.settings
    return (s.stages * s.replicas, s.malicious, group.name, cell.direction, cell.strength or 0.0, cell.spec, s.policy)


class Hurt:
    """What each attack does when nobody looks."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._worse: dict[tuple[str, str], float] = {}
        for cell in cells:
            worse = excess(cell)
            if cell.policy == UNVERIFIED and cell.attack != CLEAN and usual(cell) and worse is not None:
                key = (cell.spec, cell.direction)
                self._worse[key] = max(worse, self._worse.get(key, worse))
        self._rows: dict[tuple[str, str], float] = {}
        for cell in cells:
            if (cell.spec, cell.direction) in self._worse:
                row = (cell.attack, cell.direction)
                self._rows[row] = max(self._rows.get(row, -1.0), self._worse[cell.spec, cell.direction])

    def strong(self, cell: Cell) -> bool:
        """Whether this strength makes the unverified loss 5 % worse."""
        return self._worse.get((cell.spec, cell.direction), 0.0) >= HURTS - 1

    def ever(self, cell: Cell) -> bool:
        """Whether any strength of this attack that was run does."""
        return self._rows.get((cell.attack, cell.direction), 0.0) >= HURTS - 1
