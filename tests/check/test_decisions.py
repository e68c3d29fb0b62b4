"""Everything in the check that decides with integers: confirmation, audits, tolerance, policy, verdicts."""

from __future__ import annotations

import itertools
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel_market.errors import ConfigError, ProtocolError
from verifier.check import (
    Action,
    Event,
    Policy,
    Score,
    Tolerance,
    Verdict,
    VerdictKind,
    audit_share_ppm,
    compare,
    compare_sketch,
    decide,
    goes_straight_to_recompute,
    is_audited,
    numeric_edge,
)
from verifier.check.audit import owes_audit
from verifier.check.frame import BACKWARD, FORWARD
from verifier.check.verdict import to_e6

E = Event
STOP = VerdictKind

# events -> action, verdict, cleared by, judge the replayer, replayer guilty
TABLE = [
    ([E.SUSPECT], Action.REPLAY, None, "", False, False),
    ([E.AUDIT], Action.REPLAY, None, "", False, False),
    ([E.SUSPECT, E.STRAIGHT], Action.RECOMPUTE, None, "", False, False),
    ([E.AUDIT, E.NO_REPLICA], Action.RECOMPUTE, None, "", False, False),
    ([E.SUSPECT, E.FAR], Action.RECOMPUTE, None, "", False, False),
    ([E.WATCHED], Action.RECOMPUTE, None, "", False, False),
    ([E.SUSPECT, E.AUDIT, E.WATCHED], Action.RECOMPUTE, None, "", False, False),
    ([E.WATCHED, E.RECOMPUTE_AGREES], Action.FINAL, STOP.ACCEPT, "recompute", False, False),
    ([E.SUSPECT, E.FAR, E.RECOMPUTE_DISAGREES], Action.FINAL, STOP.VIOLATION, "", False, False),
    ([E.SUSPECT, E.REPLAY_AGREES], Action.FINAL, STOP.ACCEPT, "replay", False, False),
    ([E.SUSPECT, E.REPLAY_LOST], Action.RECOMPUTE, None, "", False, False),
    ([E.SUSPECT, E.REPLAY_DISAGREES], Action.RECOMPUTE, None, "", True, False),
    ([E.AUDIT, E.STRAIGHT, E.RECOMPUTE_AGREES], Action.FINAL, STOP.ACCEPT, "recompute", False, False),
    ([E.AUDIT, E.STRAIGHT, E.RECOMPUTE_DISAGREES], Action.FINAL, STOP.VIOLATION, "", False, False),
    ([E.AUDIT, E.STRAIGHT, E.RECOMPUTE_EDGE], Action.FINAL, STOP.INCONCLUSIVE, "", False, False),
    ([E.AUDIT, E.STRAIGHT, E.RECOMPUTE_IMPOSSIBLE], Action.FINAL, STOP.INCONCLUSIVE, "", False, False),
    ([E.SUSPECT, E.REPLAY_LOST, E.RECOMPUTE_DISAGREES], Action.FINAL, STOP.VIOLATION, "", False, False),
    ([E.SUSPECT, E.REPLAY_DISAGREES, E.RECOMPUTE_DISAGREES], Action.FINAL, STOP.VIOLATION, "", True, False),
    ([E.SUSPECT, E.REPLAY_DISAGREES, E.RECOMPUTE_AGREES], Action.FINAL, STOP.ACCEPT, "recompute", True, False),
    ([E.SUSPECT, E.REPLAY_DISAGREES, E.RECOMPUTE_EDGE], Action.FINAL, STOP.INCONCLUSIVE, "", False, False),
    (
        [E.SUSPECT, E.REPLAY_DISAGREES, E.RECOMPUTE_AGREES, E.REPLAY_REFUTED],
        Action.FINAL,
        STOP.ACCEPT,
        "recompute",
        False,
        True,
    ),
    (
        [E.SUSPECT, E.REPLAY_DISAGREES, E.RECOMPUTE_DISAGREES, E.REPLAY_REFUTED],
        Action.FINAL,
        STOP.VIOLATION,
        "",
        False,
        True,
    ),
    (
        [E.AUDIT, E.REPLAY_DISAGREES, E.RECOMPUTE_DISAGREES, E.REPLAY_UPHELD],
        Action.FINAL,
        STOP.VIOLATION,
        "",
        False,
        False,
    ),
]


@pytest.mark.parametrize(("events", "action", "verdict", "cleared", "judge", "guilty"), TABLE)
def test_table(
    events: list[Event], action: Action, verdict: VerdictKind | None, cleared: str, judge: bool, guilty: bool
) -> None:
    step = decide(events)
    got = (step.action, step.verdict, step.cleared_by, step.judge_replayer, step.replayer_violation)
    assert got == (action, verdict, cleared, judge, guilty)
    assert step.reason


def test_every_history_there_is() -> None:
    """All 2^15 sets of events: ValueError, or a decision that keeps the rules."""
    decided = 0
    for size in range(len(Event) + 1):
        for events in itertools.combinations(Event, size):
            try:
                step = decide(events)
            except ValueError:
                continue
            decided += 1
            seen = set(events)
            final = step.action is Action.FINAL
            assert final == (step.verdict is not None)
            assert step.verdict is not VerdictKind.SUSPECT
            # only a recompute convicts
            if step.verdict is VerdictKind.VIOLATION:
                assert E.RECOMPUTE_DISAGREES in seen
            if step.replayer_violation:
                assert {E.REPLAY_REFUTED, E.REPLAY_DISAGREES} <= seen
                assert seen & {E.RECOMPUTE_AGREES, E.RECOMPUTE_DISAGREES}
            # nobody is cleared by a replay in the quarter that goes straight, far out, watched, or when too few live
            skipping = {E.STRAIGHT, E.FAR, E.WATCHED, E.NO_REPLICA}
            if step.cleared_by == "replay":
                assert not seen & skipping
            if E.REPLAY_DISAGREES in seen and not final:
                assert step.action is Action.RECOMPUTE
            if seen & skipping:
                assert step.action is not Action.REPLAY
            if E.FAR in seen:
                assert E.SUSPECT in seen
            if E.RECOMPUTE_EDGE in seen or E.RECOMPUTE_IMPOSSIBLE in seen:
                assert step.verdict is VerdictKind.INCONCLUSIVE
    assert decided == DECIDED


# Without replay: nothing or one of 4 recomputes. With: nothing, agrees, lost (and 4), disagrees (and 4, of which 2 may
# judge the replayer twice). SUSPECT, AUDIT or both may be replayed. What skips it: some of STRAIGHT and NO_REPLICA; for
# a SUSPECT also FAR; all subsets, the empty one too, when WATCHED is among what it begins with.
WITHOUT, WITH = 5, 1 + 1 + 5 + (1 + 4 + 2 * 2)
PLAIN = (2 * 7 + 1 * 3) * WITHOUT + 3 * WITH
WATCHED = (2 * 8 + 2 * 4) * WITHOUT
DECIDED = PLAIN + WATCHED


def test_histories_end_within_three_actions() -> None:
    answers = {
        Action.REPLAY: [E.REPLAY_AGREES, E.REPLAY_DISAGREES, E.REPLAY_LOST],
        Action.RECOMPUTE: [E.RECOMPUTE_AGREES, E.RECOMPUTE_DISAGREES, E.RECOMPUTE_EDGE, E.RECOMPUTE_IMPOSSIBLE],
    }
    open_histories = [[E.SUSPECT], [E.AUDIT], [E.AUDIT, E.STRAIGHT], [E.SUSPECT, E.NO_REPLICA], [E.WATCHED]]
    for _ in range(3):
        following = []
        for history in open_histories:
            step = decide(history)
            if step.action is Action.FINAL:
                if step.judge_replayer:
                    for event in (E.REPLAY_UPHELD, E.REPLAY_REFUTED):
                        assert not decide([*history, event]).judge_replayer
                continue
            following += [[*history, event] for event in answers[step.action]]
        open_histories = following
    assert not open_histories


@pytest.mark.parametrize(
    "events",
    [
        [],
        [E.STRAIGHT],
        [E.FAR],
        [E.AUDIT, E.FAR],
        [E.REPLAY_AGREES],
        [E.WATCHED, E.REPLAY_AGREES],
        [E.SUSPECT, E.FAR, E.REPLAY_DISAGREES],
        [E.SUSPECT, E.RECOMPUTE_AGREES],
        [E.AUDIT, E.REPLAY_REFUTED],
    ],
)
def test_impossible_histories_are_our_bug(events: list[Event]) -> None:
    with pytest.raises(ValueError):
        decide(events)


# --- audits


def hashes(count: int) -> list[bytes]:
    import blake3

    return [blake3.blake3(i.to_bytes(4, "big")).digest() for i in range(count)]


def test_audits_hit_their_share_and_straights_are_independent() -> None:
    secret = bytes(range(32))
    drawn = [h for h in hashes(40_000) if is_audited(secret, h, 100_000)]
    assert 3_700 < len(drawn) < 4_300
    straight = sum(goes_straight_to_recompute(secret, h) for h in drawn)
    assert 0.22 < straight / len(drawn) < 0.28


def test_audits_are_nested_pinned_and_need_the_secret() -> None:
    one, two = bytes(32), bytes([1]) * 32
    all_hashes = hashes(2_000)
    few = {h for h in all_hashes if is_audited(one, h, 10_000)}
    assert few <= {h for h in all_hashes if is_audited(one, h, 30_000)}
    assert few != {h for h in all_hashes if is_audited(two, h, 10_000)}
    assert all(is_audited(one, h, 1_000_000) for h in all_hashes)
    assert not any(is_audited(one, h, 0) for h in all_hashes)
    # the draw is part of the protocol: another seat repeats it years later
    assert [i for i, h in enumerate(all_hashes[:200]) if is_audited(one, h, 30_000)] == PINNED
    with pytest.raises(ValueError, match="31 and 32"):
        is_audited(bytes(31), bytes(32), 1)


PINNED = [37, 47, 82, 86, 94, 130]


def test_audit_shares() -> None:
    policy = Policy()
    shares = {
        (stage, direction, warm): audit_share_ppm(
            policy, stage=stage, num_stages=4, direction=direction, in_warmup=warm
        )
        for stage in range(4)
        for direction in (FORWARD, BACKWARD)
        for warm in (False, True)
    }
    assert [shares[s, FORWARD, False] for s in range(4)] == [30_000, 10_000, 10_000, 10_000]
    assert [shares[s, BACKWARD, False] for s in range(4)] == [10_000, 10_000, 10_000, 60_000]
    assert [shares[s, FORWARD, True] for s in range(4)] == [300_000, 100_000, 100_000, 100_000]
    assert [shares[s, BACKWARD, True] for s in range(4)] == [100_000, 100_000, 100_000, 600_000]
    most = audit_share_ppm(Policy(audit_share_ppm=900_000), stage=0, num_stages=4, direction=FORWARD, in_warmup=False)
    assert most == 1_000_000
    none = audit_share_ppm(Policy(name="screen+confirm"), stage=0, num_stages=4, direction=FORWARD, in_warmup=True)
    assert none == 0


def test_an_answer_is_drawn_by_the_share_of_each_of_its_directions() -> None:
    policy = Policy()

    def drawn(*directions: int) -> float:
        count = 0
        for index in range(4000):
            names = [(d, (2 * index + d).to_bytes(32, "big")) for d in directions]
            count += owes_audit(policy, bytes(32), names, stage=3, num_stages=4, in_warmup=False)
        return count / 4000

    assert drawn(FORWARD) == pytest.approx(0.01, abs=0.006)
    assert drawn(BACKWARD) == pytest.approx(0.06, abs=0.012)
    assert drawn(FORWARD, BACKWARD) == pytest.approx(0.0694, abs=0.013)


# --- tolerance


def test_compare_both_criteria_and_the_edges() -> None:
    t = Tolerance(relative_e6=100, element_e6=5_000)
    reference = torch.ones(1000)
    assert compare(reference, reference.clone(), t).error_e6 == 0
    near = compare(reference * 1.00005, reference, t)
    assert near.agrees and near.error_e6 in (50, 51) and near.limit_e6 == 100
    far = compare(reference * 1.001, reference, t)
    assert not far.agrees and far.criterion == "relative" and "beyond" in far.text()
    spike = reference.clone()
    spike[7] += 0.02  # relative error 6e-4 of the norm: hidden from a looser relative limit
    one = compare(spike, reference, Tolerance(relative_e6=1_000, element_e6=5_000))
    assert not one.agrees and one.criterion == "element" and one.error_e6 in (20_000, 20_001)


@pytest.mark.parametrize(
    "claimed",
    [
        torch.full((4,), math.nan),
        torch.full((4,), math.inf),
        torch.ones(5),
        torch.ones(2, 2),
        torch.zeros(4),
        torch.empty(0),
    ],
)
def test_compare_never_agrees_with_nonsense(claimed: torch.Tensor) -> None:
    result = compare(claimed, torch.ones(4), Tolerance())
    assert not result.agrees and type(result.error_e6) is int
    assert not compare_sketch(claimed, torch.ones(4), Tolerance()).agrees


def test_compare_with_a_zero_reference() -> None:
    assert compare(torch.zeros(4), torch.zeros(4), Tolerance()).agrees
    assert not compare(torch.full((4,), 1e-30), torch.zeros(4), Tolerance()).agrees
    assert compare(torch.empty(0), torch.empty(0), Tolerance()).agrees


def test_numeric_edge() -> None:
    t = Tolerance()
    a = torch.randn(64, generator=torch.Generator().manual_seed(0))
    assert not numeric_edge(a, a, t)
    assert not numeric_edge(a, a * (1 + t.relative_e6 / 11e6), t)
    assert numeric_edge(a, a * (1 + t.relative_e6 / 9e6), t)
    for bad in (math.nan, math.inf):
        assert numeric_edge(torch.full((3,), bad), torch.ones(3), t)
        assert numeric_edge(torch.ones(3), torch.full((3,), bad), t)


def test_tolerance_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="relative_e6 = 0"):
        Tolerance(relative_e6=0)
    assert Tolerance(**Tolerance().to_json()) == Tolerance()


# --- policy and verdict


def test_policy_names_and_properties() -> None:
    want = {
        "none": (False, False, False),
        "paper": (True, False, False),
        "screen": (True, False, False),
        "screen+confirm": (True, True, False),
        "screen+confirm+audit": (True, True, True),
    }
    for name, flags in want.items():
        policy = Policy(name=name)
        assert (policy.screens, policy.confirms, policy.audits) == flags
    assert Policy().name == "screen+confirm+audit"
    assert (Policy().beta(0), Policy().beta(1)) == (0.9, 0.8)


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"paper_k": 9.0}, "paper_k_max"),
        ({"paper_metrics": "l1,l3"}, "l1,l2,sfr,sw"),
        ({"paper_metrics": "l1,l1"}, "paper_metrics"),
        ({"paper_strikes": 0}, "paper_strikes"),
        ({"alpha_ppm": 0}, "alpha_ppm"),
        ({"name": "strict"}, "unknown"),
        ({"beta_forward": 1.0}, "beta_forward"),
        ({"window": 3}, "window"),
        ({"k_init": 99.0}, "k_max"),
        ({"audit_share_ppm": -1}, "audit_share_ppm"),
        ({"early_frames": 0}, "early_frames"),
        ({"activation_source_factor": 0}, "activation_source_factor"),
        ({"gradient_source_factor": 0}, "gradient_source_factor"),
    ],
)
def test_policy_refuses(settings_: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Policy(**settings_)  # type: ignore[arg-type]


def test_policy_json_holds_integers_and_comes_back() -> None:
    policy = Policy(k_init=3.25, window=128, paper_metrics="l2", beta_forward=0.0)
    data = json.loads(json.dumps(policy.to_json()))
    assert all(type(v) in (int, str) for v in data.values())
    assert Policy.from_json(data) == policy
    for bad in ({"window": "64"}, {"windows": 64}, {"k_init": 3}, {"name": 3}, {"paper_metrics": 1}, {"window_e6": 3}):
        with pytest.raises(ConfigError):
            Policy.from_json(data | bad)


scores = st.builds(
    Score,
    st.text(max_size=8),
    st.integers(-(10**15), 10**15),
    st.none() | st.integers(-(10**15), 10**15),
    st.none() | st.integers(-(10**15), 10**15),
)


@settings(max_examples=50)
@given(st.builds(Verdict, st.sampled_from(VerdictKind), st.text(max_size=20), st.lists(scores, max_size=4).map(tuple)))
def test_verdict_json_comes_back(verdict: Verdict) -> None:
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"kind": "GUILTY", "reason": "", "scores": []},
        {"kind": "ACCEPT", "reason": 3, "scores": []},
        {"kind": "ACCEPT", "reason": "", "scores": [3]},
        {"kind": "ACCEPT", "reason": "", "scores": [{"metric": "a", "value_e6": 1.5, "low_e6": None, "high_e6": None}]},
        {"kind": "ACCEPT", "reason": "", "scores": [{"metric": "a", "value_e6": 1, "low_e6": True, "high_e6": None}]},
    ],
)
def test_verdict_refuses(data: object) -> None:
    with pytest.raises(ProtocolError, match="verdict"):
        Verdict.from_json(data)


def test_scores_at_the_edge_are_integers() -> None:
    assert to_e6(0.1234567) == 123457
    assert to_e6(math.inf) == 10**15 and to_e6(-math.inf) == -(10**15) and to_e6(math.nan) == 10**15
    assert Score("cosine", -912_000, 861_200, None).text() == "cosine -0.912 below its fence 0.8612"
    assert Score("l1", 3, None, 2).crossed and not Score("l1", 2, 2, 2).crossed
