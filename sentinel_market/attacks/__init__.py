"""Attacks on frames, computation and gradients, for tests, benchmarks and the demo; see docs/attacks.md.

Never on a public network.
"""

from sentinel_market.attacks.base import BACKWARD, FORWARD, Attack, AttackContext, PublicView, ScheduledAttack
from sentinel_market.attacks.registry import directions, get_attack, ladder, names

__all__ = [
    "BACKWARD",
    "FORWARD",
    "Attack",
    "AttackContext",
    "PublicView",
    "ScheduledAttack",
    "directions",
    "get_attack",
    "ladder",
    "names",
]
