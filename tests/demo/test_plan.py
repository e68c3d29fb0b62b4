"""Who attacks in a demo: a pure function of the seed, within the issue's bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sentinel_market.demo.plan import ATTACKS, LAST_STEPS, draw_hostiles


@given(seed=st.integers(0, 2**31), steps=st.integers(150, 5000), replicas=st.integers(1, 5))
def test_three_attacks_at_three_stages_where_they_act(seed: int, steps: int, replicas: int) -> None:
    found = draw_hostiles(seed, steps, replicas)
    assert sorted(h.attack for h in found) == sorted(ATTACKS)
    stages = [h.slot // replicas for h in found]
    assert len(set(stages)) == 3, "at most one a stage"
    assert all(h.slot // replicas in ATTACKS[h.attack] for h in found)
    assert sum(h.onset == 0 for h in found) == 1
    assert all(h.onset <= steps - LAST_STEPS for h in found)
    assert found == draw_hostiles(seed, steps, replicas)


def test_seeds_differ_and_reach_every_replica_and_stage() -> None:
    plans = [draw_hostiles(seed, 400, 3) for seed in range(200)]
    assert len(set(plans)) > 150
    assert {h.slot for plan in plans for h in plan} == set(range(12))
    assert {h.attack for plan in plans for h in plan if h.onset == 0} == set(ATTACKS)
