"""The data-parallel axis: which replica's mean gradient is suspect, and that nothing it sends breaks the check."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel_market.errors import ProtocolError
from verifier.check import kernels
from verifier.check.check import Screening
from verifier.check.engine import Engine
from verifier.check.gradient import GRADIENT_METRICS, GradientBaseline, accept_gradient, screen_gradients
from verifier.check.policy import Policy
from verifier.check.verdict import VerdictKind

N = 4000
POLICY = Policy(warmup_frames=40)
Lie = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
LIES: dict[str, Lie] = {
    "sign flip": lambda own, others: -own,
    "twice": lambda own, others: 2.0 * own,
    "ten times": lambda own, others: 10.0 * own,
    "a tenth": lambda own, others: 0.1 * own,
    "inner product": lambda own, others: -0.5 * others,
    "zeros": lambda own, others: torch.zeros_like(own),
    "noise": lambda own, others: torch.randn(N, generator=torch.Generator().manual_seed(1)) * own.std(),
}


class Replicas:
    """R replicas of one stage: a common gradient that turns and shrinks, and noise of its length at each."""

    def __init__(self, seed: int, num: int = 8, noise: float = 1.0) -> None:
        self.g = torch.Generator().manual_seed(seed)
        self.num, self.noise = num, noise
        self.common = torch.randn(N, generator=self.g)
        self.length = 1.0

    def step(self) -> list[torch.Tensor]:
        self.common = 0.9 * self.common + math.sqrt(1 - 0.81) * torch.randn(N, generator=self.g)
        self.length *= 0.995
        return [self.length * (self.common + self.noise * torch.randn(N, generator=self.g)) for _ in range(self.num)]


def beside(engine: Engine, mean: torch.Tensor, *others: torch.Tensor) -> Screening:
    """Screen the mean of replica 0 with others beside it."""
    return engine.screen_gradients(0, {slot: (one, 1) for slot, one in enumerate((mean, *others))})[0]


def screened(baseline: GradientBaseline, worker: int, mean: torch.Tensor, *others: torch.Tensor) -> Screening:
    """The same of a worker, held against a baseline alone."""
    sums = {worker: (mean, 1)} | {100 + index: (one, 1) for index, one in enumerate(others)}
    return screen_gradients(baseline, sums, POLICY)[worker]


def others_of(means: list[torch.Tensor], replica: int) -> torch.Tensor:
    return torch.stack(means[:replica] + means[replica + 1 :]).mean(0)


def one_step(engine: Engine, step: int, means: list[torch.Tensor]) -> list[bool]:
    """Screen all, then fold in what was not flagged, as the primary does; who was flagged."""
    engine.begin_step(step)
    found = list(engine.screen_gradients(0, {replica: (mean, 1) for replica, mean in enumerate(means)}).values())
    accepted = [mean for mean, one in zip(means, found, strict=True) if one.verdict.kind is VerdictKind.ACCEPT]
    aggregate = torch.stack(accepted or means).mean(0)
    for replica, screening in enumerate(found):
        if screening.verdict.kind is VerdictKind.ACCEPT:
            engine.accept_gradient(0, replica, screening, aggregate)
    return [one.verdict.kind is VerdictKind.SUSPECT for one in found]


@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
def test_honest_replicas_are_flagged_less_than_once_in_a_hundred(noise: float) -> None:
    flags = checks = 0
    for seed in range(3):
        engine, replicas = Engine(POLICY, 1, 0), Replicas(seed, noise=noise)
        for step in range(150):
            row = one_step(engine, step, replicas.step())
            flags, checks = flags + sum(row), checks + len(row)
    assert checks == 3600 and flags < 0.01 * checks


def test_a_window_that_happens_to_be_tight_flags_no_small_surprise() -> None:
    engine, replicas = Engine(POLICY, 1, 0), Replicas(3, noise=0.01)
    for step in range(60):
        one_step(engine, step, replicas.step())
    replicas.noise = 0.012
    flags = [flag for step in range(60, 70) for flag in one_step(engine, step, replicas.step())]
    assert not any(flags)


@pytest.mark.parametrize("name", sorted(LIES))
@pytest.mark.parametrize("onset", [0, 30])
def test_a_lie_is_flagged_from_its_first_steps_on(name: str, onset: int) -> None:
    engine, replicas = Engine(POLICY, 1, 0), Replicas(7, noise=0.5)
    caught = []
    for step in range(onset + 10):
        means = replicas.step()
        if step >= onset:
            means[2] = LIES[name](means[2], others_of(means, 2))
        flagged = one_step(engine, step, means)
        if step >= onset:
            caught.append(flagged[2])
    patient = 3 if onset == 0 and name in ("a tenth", "noise") else 0  # no window yet, nothing absolute to hold against
    assert all(caught[patient:]), caught


def test_two_hostile_of_eight_together_are_flagged_until_they_are_gone() -> None:
    """They spoil the others' mean, so honest replicas are flagged beside them: a recompute clears those. Once the two
    are gone nobody is."""
    engine, replicas = Engine(POLICY, 1, 0), Replicas(8, noise=0.5)
    for step in range(20):
        means = replicas.step()
        means[0] = means[1] = -torch.stack(means[2:]).mean(0)
        assert one_step(engine, step, means)[:2] == [True, True]
    flags = [any(one_step(engine, step, replicas.step()[2:])) for step in range(20, 40)]
    assert sum(flags) <= 1


def test_the_average_moves_once_a_step_and_flagged_ones_never_enter_the_window() -> None:
    engine, replicas = Engine(POLICY, 1, 0), Replicas(9)
    one_step(engine, 0, replicas.step())
    baseline = engine.gradients[0]
    assert (baseline.updates, baseline.frames, baseline.step) == (1, 8, 0)
    before = baseline.mean
    means = replicas.step()
    means[5] = -means[5]
    assert one_step(engine, 1, means)[5]
    assert (baseline.updates, baseline.frames) == (2, 15)
    assert 5 not in baseline.workers[8:]
    assert before is not None and baseline.mean is not None
    aggregate = torch.stack(means[:5] + means[6:]).mean(0)
    want = 0.5 * before + 0.5 * aggregate.numpy()  # the second of a young average counts half, later beta = 0.8
    assert torch.allclose(torch.from_numpy(baseline.mean), torch.from_numpy(want), atol=1e-6)


def test_shape_type_and_nonfinite_are_suspect_with_a_reason() -> None:
    engine, replicas = Engine(POLICY, 1, 0), Replicas(10)
    one_step(engine, 0, replicas.step())
    good = replicas.step()
    for bad, word in [
        (torch.full((N,), math.nan), "NaN or Inf"),
        (torch.full((N,), math.inf), "NaN or Inf"),
        (good[0][:-1], "shape"),
        (good[0].reshape(2, -1), "shape"),
        (torch.zeros(0), "shape"),
        (torch.ones(N, dtype=torch.int64), "dtype"),
        (torch.zeros(N), "vanished"),
    ]:
        found = beside(engine, bad, *good[1:])
        assert found.verdict.kind is VerdictKind.SUSPECT and word in found.verdict.reason
    assert beside(engine, good[0][:-1]).verdict.kind is VerdictKind.SUSPECT, "the average knows N"


def test_a_lone_replica_is_held_against_the_average() -> None:
    engine, replicas = Engine(POLICY, 1, 0), Replicas(11, num=1, noise=0.2)
    for step in range(60):
        (mean,) = replicas.step()
        engine.begin_step(step)
        engine.accept_gradient(0, 0, beside(engine, mean), mean)
    (mean,) = replicas.step()
    assert beside(engine, mean).verdict.kind is VerdictKind.ACCEPT
    assert "align" in beside(engine, -mean).verdict.reason
    assert "norm" in beside(engine, 4 * mean).verdict.reason


def test_others_that_are_broken_say_nothing_about_this_replica() -> None:
    engine, replicas = Engine(POLICY, 1, 0), Replicas(12)
    for step in range(10):
        one_step(engine, step, replicas.step())
    mean = replicas.step()[0]
    found = beside(engine, mean, torch.full((N,), math.nan))
    assert found.verdict.kind is VerdictKind.ACCEPT
    assert math.isnan(found.values[GRADIENT_METRICS.index("peers")])


def test_policy_none_looks_at_structure_only() -> None:
    engine = Engine(Policy(name="none"), 1, 0)
    others = torch.ones(10)
    assert beside(engine, -others, others).verdict.kind is VerdictKind.ACCEPT
    assert beside(engine, others * math.nan, others).verdict.kind is VerdictKind.SUSPECT


def test_state_comes_back_and_what_does_not_fit_is_refused() -> None:
    engine, replicas = Engine(POLICY, 1, 0), Replicas(13)
    for step in range(12):
        one_step(engine, step, replicas.step())
    state = engine.gradients[0].state_dict()
    again = GradientBaseline.from_state_dict(state)
    means = replicas.step()
    for replica, mean in enumerate(means):
        others = means[:replica] + means[replica + 1 :]
        assert screened(engine.gradients[0], replica, mean, *others) == screened(again, replica, mean, *others)
    for key, value in [("window", torch.zeros(3, 2)), ("workers", torch.zeros(1)), ("mean", torch.zeros(2, 2))]:
        with pytest.raises(ProtocolError, match="baseline"):
            GradientBaseline.from_state_dict(state | {key: value})
    with pytest.raises(ProtocolError, match="baseline"):
        GradientBaseline.from_state_dict({})


NUMBERS = st.sampled_from([0.0, 1.0, -1.0, 1e-45, 3e38, -3e38, 1e-20, math.nan, math.inf])
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.bool])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(NUMBERS, min_size=0, max_size=6),
    DTYPES,
    st.sampled_from(["flat", "strided", "matrix", "scalar", "expanded"]),
    st.one_of(st.none(), st.lists(NUMBERS, min_size=6, max_size=6)),
)
def test_anything_gets_a_verdict_and_never_poisons(
    numbers: list[float], dtype: torch.dtype, form: str, others: list[float] | None
) -> None:
    baseline, g = GradientBaseline(), torch.Generator().manual_seed(0)
    for step in range(6):
        mean = torch.randn(6, generator=g)
        accept_gradient(baseline, 0, screened(baseline, 0, mean), mean, step)
    flat = torch.tensor(numbers, dtype=torch.float64).to(dtype)
    if form == "strided":
        flat = flat.repeat_interleave(2)[::2]
    elif form == "matrix":
        flat = flat.reshape(1, -1)
    elif form == "scalar":
        flat = torch.tensor(1.0).to(dtype)
    elif form == "expanded":
        flat = torch.ones(1).to(dtype).expand(6)
    found = screened(baseline, 1, flat, *([] if others is None else [torch.tensor(others)]))
    assert found.verdict.reason and found.verdict.kind in (VerdictKind.ACCEPT, VerdictKind.SUSPECT)
    accept_gradient(baseline, 1, found, flat, 6)
    assert baseline.mean is not None and bool(torch.isfinite(torch.from_numpy(baseline.mean)).all())
    assert baseline.mean.shape == (6,)
    good = torch.randn(6, generator=g)
    assert screened(baseline, 0, good).verdict.reason


def expected(mean: torch.Tensor, others: list[torch.Tensor], average: torch.Tensor | None) -> list[float]:
    """The metrics by their definitions, in float64."""

    def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
        return float(torch.nn.functional.cosine_similarity(a, b, dim=0))

    g, rest = mean.double(), torch.stack(others).double()
    o = rest.mean(0)
    return [
        math.log(g.norm()),
        math.nan if average is None else cosine(g, average.double()),
        cosine(g, o),
        math.log(g.norm() / o.norm()),
        math.log((g - o).norm() / o.norm()),
        math.log(1 - max(cosine(g, one) for one in rest)),
    ]


def test_all_replicas_at_once_against_the_definitions() -> None:
    """Longer than one chunk, three finite and one not: that one is suspect and nobody's other."""
    g, size = torch.Generator().manual_seed(14), 70_001
    engine = Engine(POLICY, 1, 0)
    common = torch.randn(size, generator=g)
    for step in range(8):
        sums = {slot: (3 * (common + torch.randn(size, generator=g)), 3) for slot in (4, 1, 2, 7)}
        if step == 5:
            sums[7][0][-1] = math.inf
        engine.begin_step(step)
        found = engine.screen_gradients(0, sums)
        assert list(found) == [4, 1, 2, 7]
        average = engine.gradients[0].mean
        means = {slot: total / count for slot, (total, count) in sums.items() if slot != 7 or step != 5}
        for slot, mean in means.items():
            others = [one for other, one in means.items() if other != slot]
            want = expected(mean, others, None if average is None else torch.from_numpy(average))
            assert found[slot].values == pytest.approx(want, rel=1e-6, abs=1e-6, nan_ok=True)
        for slot in means:
            engine.accept_gradient(0, slot, found[slot], sums[4][0] / 3)
        assert (found[7].verdict.reason[:9] == "nonfinite") == (step == 5)
    assert not engine.screen_gradients(0, {})


@pytest.mark.parametrize("onset", [0, 30])
def test_accomplices_who_send_the_same_are_flagged_though_each_looks_likely(onset: int) -> None:
    """Each sends a mean that lies among the honest ones; that both send the same one gives them away."""
    engine, replicas = Engine(POLICY, 1, 0), Replicas(15, noise=3.0)
    for step in range(onset + 6):
        means = replicas.step()
        if step >= onset:
            means[1] = means[4]
        flagged = one_step(engine, step, means)
        if step >= onset:
            assert flagged[1] and flagged[4] and sum(flagged) <= 3, (step, flagged)


def test_the_shape_of_most_is_due_where_no_average_says_it() -> None:
    engine = Engine(POLICY, 1, 0)
    sums = {0: (torch.ones(7), 1), 1: (torch.ones(9), 1), 2: (torch.arange(9.0), 2), 3: (torch.ones(9).double(), 1)}
    found = engine.screen_gradients(0, sums)
    assert [found[slot].verdict.reason[:5] for slot in (0, 3)] == ["shape", "dtype"]
    assert found[1].verdict.kind is VerdictKind.ACCEPT


def test_inner_products_are_the_same_compiled_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (torch.randn(1000, generator=torch.Generator().manual_seed(n)).numpy() for n in range(2))
    compiled = kernels.dot(a, b)
    monkeypatch.setattr(kernels, "COMPILED", False)
    assert kernels.dot(a, b) == pytest.approx(compiled, rel=1e-12)
