"""The demo's own judge: a claim that the chain does not bear out is a failure."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from sentinel_market.demo.plan import Hostile
from sentinel_market.demo.results import check, detections
from sentinel_market.demo.run import Cast, JobRun, verification_share
from sentinel_market.demo.settings import DemoSettings, job_toml
from sentinel_market.domain.job_spec import parse_job

SETTINGS = DemoSettings(steps=2, stages=1, replicas=2)


@dataclass
class FakeChain:
    """What the judge reads of the chain."""

    state: str = "settled"
    budget: int = 100
    paid: int = 70
    refunded: int = 28
    fee: int = 2
    claimed_total: int = 70
    banned: set[str] = field(default_factory=lambda: {"worker-0"})

    def market(self) -> Any:
        money = SimpleNamespace(
            budget=self.budget, paid=self.paid, refunded=self.refunded, fee=self.fee, claimed=self.claimed_total
        )
        reader = SimpleNamespace(
            escrow=SimpleNamespace(money=lambda _job: money, claimed=lambda _job, _account: 1),
            market=SimpleNamespace(job=lambda _job: SimpleNamespace(state=self.state)),
            vault=SimpleNamespace(is_banned=lambda account: account in self.banned),
        )
        people = {
            name: SimpleNamespace(account=name)
            for name in ("worker-0", "worker-1", "verifier-0", "verifier-1", "verifier-2")
        }
        return SimpleNamespace(reader=reader, people=people)


def run() -> JobRun:
    cast = Cast(
        "submitter",
        ("worker-0", "worker-1"),
        ("verifier-0", "verifier-1", "verifier-2"),
        (Hostile(0, "sign_flip", 0, 1),),
    )
    found = JobRun(cast, SETTINGS, parse_job(job_toml(SETTINGS)), 1)
    found.steps = [{"step": 0, "loss": 2.0}, {"step": 1, "loss": 1.0}]
    found.stake_before = dict.fromkeys(("verifier-0", "verifier-1", "verifier-2"), 5)
    found.stake_after = dict(found.stake_before)
    return found


def summary(**changes: Any) -> dict[str, Any]:
    rows = [
        {"banned": True, "stake_before": "10", "stake_after": "5"},
        {"banned": False, "stake_before": "10", "stake_after": "10"},
    ]
    return {"workers": rows, **changes}


def failed(chain: FakeChain, one: JobRun, data: dict[str, Any]) -> list[str]:
    return [c.text for c in check(chain.market(), one, data) if not c.holds and "well formed" not in c.text]


def test_a_true_run_passes() -> None:
    assert failed(FakeChain(), run(), summary()) == []


@pytest.mark.parametrize(
    ("chain", "word"),
    [
        (FakeChain(state="closing"), "settled"),
        (FakeChain(paid=71, claimed_total=71), "budget"),
        (FakeChain(claimed_total=69), "claimed"),
        (FakeChain(banned=set()), "banned and slashed"),
    ],
)
def test_what_the_chain_does_not_say_fails(chain: FakeChain, word: str) -> None:
    assert any(word in text for text in failed(chain, run(), summary()))


def test_an_honest_worker_that_lost_stake_fails() -> None:
    data = summary()
    data["workers"][1]["stake_after"] = "9"
    assert failed(FakeChain(), run(), data) == ["worker-1 (honest) keeps its stake"]


def test_an_untrained_step_fails() -> None:
    one = run()
    one.steps.pop()
    assert failed(FakeChain(), one, summary()) == ["all 2 steps were trained"]


def test_detection_counts_from_the_first_bad_frame() -> None:
    one = run()
    one.first_bad_step = {0: 3}
    one.verdicts = [
        {"kind": "quarantined", "slot": 0, "step": 5, "at": 100.0},
        {"kind": "executed", "slot": 0, "step": 5, "at": 104.5},
    ]
    (found,) = detections(one)
    assert (found.steps_to_quarantine, found.seconds_to_ban) == (2, 4.5)


def test_the_share_of_verification_counts_each_worker_once() -> None:
    one = run()
    seat = {
        "sections": {"check": 1.0, "crypto": 1.0, "recompute": 1.0, "evidence": 0.0, "reduce": 9.0},
        "replays": 1.0,
        "process": 20.0,
        "workers": [{"id": "0-1", "process": 30.0, "overhead": 0.5}],
    }
    one.costs = [seat, seat]
    assert verification_share(one) == pytest.approx(2 * 4.5 / (40.0 + 30.0))
