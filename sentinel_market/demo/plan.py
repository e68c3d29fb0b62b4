"""Who plays what in a demo: a pure function of the seed. Only the hostile workers' own processes are told."""

from __future__ import annotations

import random
from dataclasses import dataclass

ATTACKS: dict[str, range] = {
    "sign_flip": range(3),
    "noise:direction=backward": range(1, 4),
    "identity": range(3),
}
"""Attack -> stages of a four-stage job where it acts: a forward attack on 0-2, one on gradients on 1-3."""
LAST_STEPS = 100
"""An attack begins at least this many steps before the end."""


@dataclass(frozen=True)
class Hostile:
    """One hostile worker."""

    slot: int
    attack: str
    onset: int
    seed: int


def draw_hostiles(seed: int, steps: int, replicas: int) -> tuple[Hostile, ...]:
    """Three attacks, at most one a stage; replica and onset from the seed, one onset 0."""
    rng = random.Random(f"sentinel-demo-{seed}")
    while True:
        stages = {name: rng.choice(list(where)) for name, where in ATTACKS.items()}
        if len(set(stages.values())) == len(stages):
            break
    first = rng.choice(sorted(ATTACKS))
    latest = max(1, steps - LAST_STEPS)
    found = []
    for name in sorted(ATTACKS):
        onset = 0 if name == first else rng.randint(min(20, latest), latest)
        found.append(Hostile(stages[name] * replicas + rng.randrange(replicas), name, onset, rng.randrange(2**31)))
    return tuple(found)
