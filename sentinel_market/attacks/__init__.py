"""Attacks on frames, for tests, benchmarks and the demo; see docs/attacks.md. Never on a public network."""

from sentinel_market.attacks.base import BACKWARD, FORWARD, Attack, AttackContext, ScheduledAttack
from sentinel_market.attacks.registry import get_attack, names

__all__ = ["BACKWARD", "FORWARD", "Attack", "AttackContext", "ScheduledAttack", "get_attack", "names"]
