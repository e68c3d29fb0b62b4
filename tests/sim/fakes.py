"""A simulation that takes no time: what it finds is a function of the settings that a test can predict."""

from __future__ import annotations

import os
from collections.abc import Callable

from sentinel_market.sim.plan import Level, Row
from sentinel_market.sim.settings import UNVERIFIED, RunResult, RunSettings

Progress = Callable[[int, int], None] | None
SUITE = {
    "zeros": ("forward", "backward"),
    "sign_flip": ("forward", "backward"),
    "identity": ("both",),
    "noise": ("forward", "backward"),
    "delay": ("forward", "backward"),
    "alie": ("gradient",),
}


def directions(name: str) -> tuple[str, ...]:
    return SUITE[name]


def ladder(name: str, direction: str) -> tuple[str, ...]:
    way = f",direction={direction}" if direction in ("forward", "backward") else ""
    if name in ("noise", "delay", "alie"):
        return tuple(f"{name}:strength={level:g}{way}" for level in (0.5, 1, 2, 4, 8))
    return (name + way.replace(",", ":"),)


def strength(settings: RunSettings) -> float:
    """The number of the specification; 4 where there is none."""
    for pair in settings.attack.partition(":")[2].split(","):
        if pair.startswith("strength="):
            return float(pair.removeprefix("strength="))
    return 4.0


def clean_loss(settings: RunSettings) -> float:
    return 2.0 + 0.01 * settings.seed + 0.1 * (settings.stages == 16)


def run_cell(settings: RunSettings, progress: Progress = None) -> RunResult:
    """Unverified, an attack of strength x costs 2 x % of loss. Whoever screens bans everybody hostile; ``paper`` misses
    gradients, and bans an honest worker under a delay."""
    if progress is not None:
        progress(settings.steps, settings.steps)
    per_stage = round(settings.malicious * settings.replicas) if settings.attack else 0
    hostile = [stage * settings.replicas + r for stage in range(settings.stages - 1) for r in range(per_stage)]
    sees = settings.policy != UNVERIFIED and not (
        settings.policy.startswith("paper") and settings.direction == "backward"
    )
    banned = list(hostile) if sees and settings.policy != "paper:l1" else []
    honest = [settings.stages * settings.replicas - 1]
    wrong = honest if settings.policy == "paper" and settings.attack.startswith("delay") else []
    worse = 0.0 if not settings.attack else 0.001 if banned else 0.02 * strength(settings)
    everybody = banned + wrong
    return RunResult(
        settings=settings,
        val_loss=clean_loss(settings) * (1 + worse),
        precision=len(banned) / len(everybody) if everybody else None,
        recall=len(banned) / len(hostile) if hostile else None,
        f1=2 * len(banned) / (len(everybody) + len(hostile)) if hostile else None,
        honest_bans=len(wrong),
        honest_workers=settings.stages * settings.replicas - len(hostile),
        honest_frames=settings.counted_frames,
        flag_rate_honest=0.004,
        steps_to_quarantine=(7.0 if settings.policy.startswith("paper") else 1.0) if banned else None,
        confirmations=10,
        recomputes=3,
        audits=4,
        tokens_per_second=1000.0,
        verification_share=0.1,
        hostile_workers=len(hostile),
        banned=sorted(everybody),
        bans_at=dict.fromkeys(everybody, settings.onset + 1),
        first_attack_step=settings.onset if hostile else None,
        losses=[5.0, 4.0, float("inf") if worse > 0.1 else 3.0, 2.5, 2.4, 2.3, 2.2, 2.1],
        seconds=1.0,
    )


def dies(settings: RunSettings, progress: Progress = None) -> RunResult:
    """As when the machine runs out of memory."""
    del settings, progress
    os._exit(7)


def fails_on_noise(settings: RunSettings, progress: Progress = None) -> RunResult:
    """A user's attack with a bug."""
    if settings.attack.startswith("noise"):
        raise ZeroDivisionError("division by zero")
    return run_cell(settings, progress)


def row(name: str, direction: str) -> Row:
    specs = ladder(name, direction)
    levels = (0.5, 1.0, 2.0, 4.0, 8.0) if len(specs) > 1 else (1.0,)
    return Row(
        attack=name,
        direction=direction,
        levels=tuple(Level(spec=spec, strength=level) for spec, level in zip(specs, levels, strict=True)),
    )


def all_rows() -> list[Row]:
    return [row(name, way) for name, ways in SUITE.items() for way in ways]
