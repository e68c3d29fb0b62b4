"""Which runs a measurement needs: a pure function of what is known so far, since the ladder decides what comes later.

A *row* is an attack in a direction with its ladder of strengths. Its ladder is climbed without checks until the
held-out loss is 5 % worse than the clean run's; *demands* then name the policies, seeds and meshes that this strength,
or the next one, is run with.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sentinel_market.sim.cell import CLEAN, Cell, clean_of, unverified_of
from sentinel_market.sim.conditions import FRAMES
from sentinel_market.sim.settings import UNVERIFIED, RunSettings

HURTS: Final = 1.05
"""A strength counts from where the unverified loss is this many times the clean one."""
DEFAULT: Final = "screen+confirm+audit"
CHOSEN: Final = ("zeros", "sign_flip", "identity", "delay")
"""Attacks that all policies, colluding confirmers and the big meshes are measured with."""
ABLATIONS: Final = ("paper:no-ema", "paper:l1", "paper:l2", "paper:sfr", "paper:sw")
PAPER_STRONG: Final = ("zeros", "ones", "random_value", "sign_flip")
"""Forward attacks that the paper's detector is published to catch, whole: at strength 1."""
CLEAN_RUNS: Final = 20
BIG: Final[tuple[Mapping[str, Any], ...]] = (
    {"replicas": 8, "stages": 16, "malicious": 0.25},
    {"replicas": 11, "stages": 16, "malicious": 0.375},
)


@dataclass(frozen=True, kw_only=True)
class Level:
    """One strength of an attack: its specification and the number that the ladder moves."""

    spec: str
    strength: float | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """An attack in a direction, its strengths from the weakest on."""

    attack: str
    direction: str
    levels: tuple[Level, ...]

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.attack} {self.direction}"


@dataclass(frozen=True, kw_only=True)
class Demand:
    """Run the rows' chosen strength, or the one ``above`` by so many levels, or whatever is chosen the one ``at`` a
    strength, under a policy, on seeds."""

    rows: tuple[Row, ...]
    policy: str
    seeds: tuple[int, ...]
    above: int = 0
    at: float | None = None
    changes: tuple[tuple[str, Any], ...] = ()
    """Settings that differ from the plan's."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Runs without an attack: a policy on seeds, under a condition of ``sentinel_market.sim.conditions`` or none."""

    policy: str
    seeds: tuple[int, ...]
    condition: str = ""


@dataclass(frozen=True, kw_only=True)
class Want:
    """A run, and how its cell names the attack."""

    settings: RunSettings
    attack: str = CLEAN
    strength: float | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything to be measured. ``climb``: choose each row's strength by its ladder, else take its first level.

    ``unverified``: run also what the demands ask for with nobody looking, on the same seeds. ``clean``: runs without
    an attack.
    """

    base: RunSettings
    rows: tuple[Row, ...]
    demands: tuple[Demand, ...]
    climb: bool = True
    unverified: bool = False
    clean: tuple[Spread, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Where a row's ladder stands. ``level``: chosen, or the next to be run when not ``decided``.

    ``hurts``: whether the unverified loss at that level is 5 % worse; False at the top of a ladder that never does.
    """

    level: int
    decided: bool
    hurts: bool = False


Known = Mapping[RunSettings, Cell]


def at(plan: Plan, row: Row, level: int, policy: str, seed: int, **changes: Any) -> Want:
    """The run of a row at a level."""
    one = row.levels[level]
    given: dict[str, Any] = {"attack": one.spec, "direction": row.direction, "policy": policy, "seed": seed} | changes
    settings = dataclasses.replace(plan.base, **given)
    if policy == UNVERIFIED:
        settings = unverified_of(settings)
    return Want(settings=settings, attack=row.attack, strength=one.strength)


def choose(plan: Plan, row: Row, known: Known) -> Choice:
    """The first level whose unverified loss on the first seed is 5 % worse than the clean one; the last if none is."""
    if not plan.climb:
        return Choice(level=0, decided=True, hurts=True)
    seed = plan.base.seed
    clean = known.get(clean_of(at(plan, row, 0, UNVERIFIED, seed).settings))
    for level in range(len(row.levels)):
        found = known.get(at(plan, row, level, UNVERIFIED, seed).settings)
        if found is None or clean is None:
            return Choice(level=level, decided=False)
        if found.own_loss >= HURTS * clean.own_loss:
            return Choice(level=level, decided=True, hurts=True)
    return Choice(level=len(row.levels) - 1, decided=True)


def wanted(plan: Plan, known: Known, *, outlook: bool = False) -> list[Want]:
    """Every run that is wanted by now, done or not, each once, in the order to do them.

    ``outlook``: also those that would follow if each undecided ladder ended at its next level; a forecast.
    """
    choices = {row: choose(plan, row, known) for row in plan.rows}
    climbs: list[Want] = []
    if plan.climb:
        for row, choice in choices.items():
            climbs += [at(plan, row, level, UNVERIFIED, plan.base.seed) for level in range(choice.level + 1)]
    asked: list[Want] = []
    for demand in plan.demands:
        for row in demand.rows:
            choice = choices[row]
            levels = [choice.level + demand.above] if choice.decided or outlook else []
            if demand.at is not None:
                levels = [index for index, level in enumerate(row.levels) if level.strength == demand.at]
            for level in levels:
                if level < len(row.levels):
                    changes = dict(demand.changes)
                    asked += [at(plan, row, level, demand.policy, seed, **changes) for seed in demand.seeds]
    if plan.unverified:
        climbs += [dataclasses.replace(want, settings=unverified_of(want.settings)) for want in asked]
    comparisons = [Want(settings=clean_of(want.settings)) for want in (*climbs, *asked)]
    spread = [
        Want(settings=dataclasses.replace(clean_of(plan.base), policy=one.policy, seed=seed, condition=one.condition))
        for one in plan.clean
        for seed in one.seeds
    ]
    unique = {want.settings: want for want in (*comparisons, *climbs, *asked, *spread)}
    return list(unique.values())


def weight(settings: RunSettings) -> int:
    """What a run costs, up to a constant."""
    return settings.stages * settings.replicas * settings.steps


def bench_plan(
    base: RunSettings,
    rows: Sequence[Row],
    *,
    seeds: int = 3,
    big: bool = False,
    next_everywhere: bool = False,
    clean_runs: int = CLEAN_RUNS,
    ablations: Iterable[str] = ABLATIONS,
    conditions: Iterable[str] = (),
    condition_seeds: int = 0,
) -> Plan:
    """The whole table: see docs/verification.md. ``next_everywhere``: the next strength on every seed, not only one.
    ``condition_seeds``: see ``under_conditions``."""
    every = tuple(range(base.seed, base.seed + seeds))
    first = every[:1]
    everything = tuple(rows)

    def named(keep: Callable[[Row], bool]) -> tuple[Row, ...]:
        return tuple(row for row in rows if keep(row))

    chosen = named(lambda row: row.attack in CHOSEN)
    flips = named(lambda row: row.attack == "sign_flip")
    published = named(lambda row: row.attack in PAPER_STRONG and row.direction == "forward")
    demands = [
        Demand(rows=everything, policy=DEFAULT, seeds=every),
        Demand(rows=everything, policy=DEFAULT, seeds=every if next_everywhere else first, above=1),
        Demand(rows=everything, policy="paper", seeds=first),
        Demand(rows=chosen, policy="screen", seeds=every),
        Demand(rows=chosen, policy="screen+confirm", seeds=every),
        Demand(rows=chosen, policy="screen+confirm", seeds=every, changes=(("collude", True),)),
        Demand(rows=flips, policy=DEFAULT, seeds=every, changes=(("duty", 5),)),
        Demand(rows=flips, policy=DEFAULT, seeds=every, changes=(("corrupt_drivers", 1),)),
        *(Demand(rows=published, policy=policy, seeds=first, at=1.0) for policy in ("paper", *ablations)),
    ]
    if big:
        demands += [
            Demand(rows=chosen, policy=policy, seeds=first, changes=tuple(mesh.items()))
            for mesh in BIG
            for policy in ("paper", DEFAULT)
        ]
    spread = tuple(range(base.seed, base.seed + clean_runs))
    return Plan(
        base=base,
        rows=everything,
        demands=tuple(demands),
        clean=(
            *(Spread(policy=policy, seeds=spread) for policy in (DEFAULT, "screen+confirm") if clean_runs),
            *under_conditions(base, conditions, seeds=condition_seeds),
        ),
    )


def under_conditions(base: RunSettings, names: Iterable[str], *, seeds: int = 0) -> tuple[Spread, ...]:
    """The default policy under each condition, on so many seeds; 0: as many as give ``FRAMES`` honest tensors."""
    spreads = []
    for name in names:
        frames = dataclasses.replace(clean_of(base), condition=name).counted_frames
        count = seeds or math.ceil(FRAMES / frames)
        spreads.append(Spread(policy=DEFAULT, seeds=tuple(range(base.seed, base.seed + count)), condition=name))
    return tuple(spreads)


def honest_plan(base: RunSettings, names: Iterable[str], *, seeds: int = 0) -> Plan:
    """The conditions alone."""
    return Plan(base=base, rows=(), demands=(), climb=False, clean=under_conditions(base, names, seeds=seeds))


def one_plan(base: RunSettings, rows: Sequence[Row], policies: Sequence[str], seeds: int, *, ladder: bool) -> Plan:
    """A few cells: each row under each policy, with the clean and the unverified run of every seed."""
    every = tuple(range(base.seed, base.seed + seeds))
    above = (0, 1) if ladder else (0,)
    demands = [
        Demand(rows=tuple(rows), policy=policy, seeds=every, above=level) for policy in policies for level in above
    ]
    alone = () if rows else (UNVERIFIED, *policies)
    clean = tuple(Spread(policy=policy, seeds=every, condition=base.condition) for policy in alone)
    return Plan(base=base, rows=tuple(rows), demands=tuple(demands), climb=ladder, unverified=True, clean=clean)
