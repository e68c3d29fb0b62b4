"""A cell of the table: one run, with the losses of the runs that it is compared with. One JSON object."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sentinel_market.errors import ConfigError
from sentinel_market.sim.settings import NO_LOSS, UNVERIFIED, RunResult, RunSettings

CLEAN: Final = "clean"
"""The attack's name in the cell of a run without one."""
_SHOWN: Final = ("stages", "replicas", "malicious", "steps", "model_dim", "onset", "duty", "collude", "condition")


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Held-out loss in nats a token without attack, attacked and unchecked, attacked and checked; None: not run."""

    clean: float | None = None
    unverified: float | None = None
    verified: float | None = None


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What one run found. Workers are counted by slot; a positive is a banned worker.

    ``attack`` is a name, ``spec`` the attack with its parameters, ``strength`` the parameter that its ladder moves
    (1 where there is none to move). ``direction``: forward, backward, both (attacks on the computation), gradient
    (attacks on the worker's own parameter gradient), or none.
    """

    attack: str
    strength: float | None
    direction: str
    policy: str
    seed: int
    precision: float | None
    recall: float | None
    f1: float | None
    honest_bans: int
    honest_workers: int
    honest_frames: int
    flag_rate_honest: float
    steps_to_quarantine: float | None
    confirmations: int
    recomputes: int
    audits: int
    val_loss: Losses
    tokens_per_second: float
    verification_share: float
    spec: str
    hostile_workers: int
    banned: tuple[int, ...]
    bans_at: Mapping[int, int]
    first_attack_step: int | None
    losses: tuple[float, ...] = field(repr=False)
    seconds: float
    settings: RunSettings

    @property
    def own_loss(self) -> float:
        """The held-out loss of this very run."""
        found = getattr(self.val_loss, kind(self.settings))
        assert isinstance(found, float)
        return found

    @property
    def mesh(self) -> tuple[int, int]:
        """Replicas and stages."""
        return self.settings.replicas, self.settings.stages

    @property
    def caught(self) -> int:
        """Hostile workers that were banned."""
        return round((self.recall or 0.0) * self.hostile_workers)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data: the fields, the mesh beside them, and the settings that repeat the run."""
        data = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        data["val_loss"] = dataclasses.asdict(self.val_loss)
        data["banned"], data["losses"] = list(self.banned), list(self.losses)
        data["bans_at"] = {str(slot): step for slot, step in self.bans_at.items()}
        settings = self.settings.to_json()
        data |= {name: settings[name] for name in _SHOWN}
        data["settings"] = settings
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cell:
        """The inverse; ConfigError says what is missing or wrong."""
        if not isinstance(data, Mapping):
            raise ConfigError(f"a cell is a JSON object, not {type(data).__name__}")
        names = [item.name for item in dataclasses.fields(cls)]
        missing = [name for name in names if name not in data]
        if missing:
            raise ConfigError(f"a cell without {', '.join(missing)}")
        values = {name: data[name] for name in names}
        try:
            values["settings"] = RunSettings.from_json(values["settings"])
            values["val_loss"] = Losses(**values["val_loss"])
            values["banned"] = tuple(int(slot) for slot in values["banned"])
            values["losses"] = tuple(float(loss) for loss in values["losses"])
            values["bans_at"] = {int(slot): int(step) for slot, step in values["bans_at"].items()}
            cell = cls(**values)
            if not math.isfinite(cell.own_loss):
                raise ValueError(f"val_loss.{kind(cell.settings)} is {cell.own_loss}")
        except (TypeError, ValueError, AttributeError, AssertionError) as error:
            raise ConfigError(f"not a cell: {error or 'the loss of its own run is missing'}") from None
        return cell


# Of the fields that a cell has from its run: those that change their type on the way, and the others.
_CHANGED: Final = {"val_loss", "banned", "bans_at", "losses"}
_COPIED: Final = {item.name for item in dataclasses.fields(RunResult)}.intersection(
    item.name for item in dataclasses.fields(Cell)
).difference(_CHANGED)


def kind(settings: RunSettings) -> str:
    """Which of the three losses a run measures."""
    if settings.policy != UNVERIFIED:
        return "verified"
    return "unverified" if settings.attack else "clean"


# What makes no difference where nobody looks, so that it does not make two runs of one.
_UNSEEN: Final[dict[str, Any]] = {
    name: getattr(RunSettings, name) for name in ("collude", "corrupt_drivers", "drivers", "recompute")
}


def clean_of(settings: RunSettings) -> RunSettings:
    """The run without attack and without checks that this one is compared with."""
    return dataclasses.replace(
        settings, attack="", direction="none", policy=UNVERIFIED, malicious=0.0, duty=1, **_UNSEEN
    )


def unverified_of(settings: RunSettings) -> RunSettings:
    """The same attack with nobody looking."""
    return dataclasses.replace(settings, policy=UNVERIFIED, **_UNSEEN)


def cell_of(result: RunResult, attack: str, strength: float | None) -> Cell:
    """The cell of a run; the losses of other runs come in with ``compared``."""
    settings = result.settings
    return Cell(
        attack=attack if settings.attack else CLEAN,
        strength=strength,
        direction=settings.direction,
        policy=settings.policy,
        seed=settings.seed,
        val_loss=Losses(**{kind(settings): result.val_loss}),
        spec=settings.attack,
        banned=tuple(result.banned),
        bans_at=dict(result.bans_at),
        losses=tuple(loss if math.isfinite(loss) else NO_LOSS for loss in result.losses),
        **{name: getattr(result, name) for name in _COPIED},
    )


def compared(cells: Iterable[Cell]) -> list[Cell]:
    """The cells with the losses of the clean and the unverified run of the same mesh and seed, where known."""
    found = list(cells)
    known = {cell.settings: cell.own_loss for cell in found}
    done = []
    for cell in found:
        losses = {"clean": known.get(clean_of(cell.settings))}
        if cell.settings.attack:
            losses["unverified"] = known.get(unverified_of(cell.settings))
        losses[kind(cell.settings)] = cell.own_loss
        done.append(dataclasses.replace(cell, val_loss=Losses(**losses)))
    return done
