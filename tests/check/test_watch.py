"""Riders just inside the fences are watched; suspects far outside get no replay."""

from __future__ import annotations

import random

import pytest

from verifier.check.confirm import Action, Event, decide
from verifier.check.verdict import Score, Verdict, VerdictKind
from verifier.check.watch import ALPHA, FAR, NEAR, UPHELD, Watch, is_far

FENCED = {"low_e6": -1_000_000, "high_e6": 1_000_000}


def verdict(reach: float, kind: VerdictKind | None = None) -> Verdict:
    score = Score("rms", round(reach * 1e6), **FENCED)
    found = VerdictKind.SUSPECT if score.crossed else VerdictKind.ACCEPT
    return Verdict(kind or found, "", (score,))


def step(watch: Watch, near: dict[int, bool], direction: int = 0) -> None:
    for worker, is_near in near.items():
        watch.note(1, direction, worker, verdict(NEAR if is_near else NEAR - 0.01))
    watch.close_step()


@pytest.mark.parametrize(
    ("reach", "far"), [(0.5, False), (1.0, False), (1.01, False), (FAR, False), (FAR + 0.01, True), (-FAR - 1, True)]
)
def test_far_is_measured_from_the_middle_of_the_fences(reach: float, far: bool) -> None:
    assert is_far(verdict(reach)) is far


def test_what_no_window_excuses_is_far() -> None:
    assert is_far(Verdict(VerdictKind.SUSPECT, "identity", (Score("rms", 0, **FENCED),)))
    assert is_far(Verdict(VerdictKind.SUSPECT, "nonfinite"))
    assert not is_far(Verdict(VerdictKind.ACCEPT, ""))


def test_scores_without_two_fences_have_no_reach() -> None:
    assert Score("sfr", 10**9, None, 5).reach == 0.0
    assert Score("l1", 7).reach == 0.0
    assert Score("l1", 7, 3, 3).reach == 0.0
    assert Score("l1", 5, 3, 7).reach == 0.0
    assert Score("l1", 9, 3, 7).reach == 2.0


@pytest.mark.parametrize("event", [Event.FAR, Event.WATCHED])
def test_neither_is_replayed(event: Event) -> None:
    opening = [Event.SUSPECT if event is Event.FAR else Event.AUDIT]
    assert decide(opening).action is Action.REPLAY
    assert decide([*opening, event]).action is Action.RECOMPUTE
    with pytest.raises(ValueError, match="not replayed"):
        decide([*opening, event, Event.REPLAY_AGREES])
    assert decide([*opening, event, Event.RECOMPUTE_DISAGREES]).verdict is VerdictKind.VIOLATION


def riders(watch: Watch, steps: int, direction: int = 0) -> int | None:
    """Workers 0..7, of which 0 and 1 always ride; the step in which both are watched."""
    rng = random.Random(5)
    for now in range(steps):
        step(watch, {w: w < 2 or rng.random() < 0.08 for w in range(8)}, direction)
        if all(watch.watched(w, (direction,)) for w in (0, 1)):
            return now
    return None


@pytest.mark.parametrize("direction", [0, 1])
def test_a_rider_is_watched_within_a_few_steps_in_its_direction(direction: int) -> None:
    watch = Watch()
    found = riders(watch, 20, direction)
    assert found is not None and found < 10
    assert not watch.watched(0, (1 - direction,)) and watch.watched(0, (0, 1))


def test_honest_workers_are_watched_with_at_most_the_stated_chance() -> None:
    """64 workers x 200 steps, each frame near with 8 % whatever the others are."""
    rng, watched = random.Random(1), set()
    for group in range(8):
        watch = Watch()
        for _ in range(200):
            step(watch, {w: rng.random() < 0.08 for w in range(8)})
            watched |= {(group, w) for w in range(8) if watch.watched(w, (0,))}
    assert len(watched) <= 64 * ALPHA + 3 * (64 * ALPHA) ** 0.5


def test_a_worker_that_recomputes_bear_out_begins_anew() -> None:
    watch = Watch()
    assert riders(watch, 20) is not None
    for left in range(UPHELD, 0, -1):
        assert watch.watched(0, (0,)), left
        watch.upheld(0, (0,))
    assert not watch.watched(0, (0,))
    assert watch.watched(1, (0,))
    step(watch, {0: True} | dict.fromkeys(range(2, 8), False))
    assert not watch.watched(0, (0,)), "one near frame is no evidence"
    assert riders(watch, 20) is not None, "but it is caught again"


def test_frames_without_fences_say_nothing() -> None:
    watch = Watch()
    for _ in range(50):
        for worker in range(8):
            watch.note(1, 0, worker, Verdict(VerdictKind.ACCEPT, "", (Score("rms", 10**9),)))
        watch.close_step()
    assert not any(watch.watched(worker, (0,)) for worker in range(8))


def test_a_boundary_that_moves_for_all_watches_nobody() -> None:
    watch = Watch()
    for _ in range(30):
        step(watch, dict.fromkeys(range(8), False))
    for _ in range(30):
        step(watch, dict.fromkeys(range(8), True))
    assert not any(watch.watched(worker, (0,)) for worker in range(8))


def test_a_convict_is_no_peer() -> None:
    watch = Watch()
    assert riders(watch, 20) is not None
    watch.forget(0)
    assert not watch.watched(0, (0,))


def test_the_state_goes_round() -> None:
    watch, copy = Watch(), Watch()
    riders(watch, 4)
    watch.note(1, 0, 3, verdict(0.9))
    copy.load(watch.state_dict())
    for one in (watch, copy):
        riders(one, 20)
    left, right = watch.state_dict(), copy.state_dict()
    assert left.keys() == right.keys() and all(left[k].equal(right[k]) for k in left)
    assert copy.watched(0, (0,)) and copy.watched(1, (0,))
