"""summary.json: what the builder makes passes the checker; what was changed does not."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from sentinel_market.domain.summary import (
    Detection,
    JobResult,
    VerifierResult,
    WorkerResult,
    build_summary,
    check_summary,
)


def address(number: int) -> str:
    return f"0x{number:040x}"


def worker(number: int, *, caught: bool = False) -> WorkerResult:
    return WorkerResult(
        address=address(number),
        stage=number % 4,
        replica=0,
        attack="sign-flip" if caught else None,
        quarantined_at_step=12 if caught else None,
        banned=caught,
        banned_at_step=20 if caught else None,
        reason="recompute differs" if caught else None,
        stake_before=100,
        stake_after=50 if caught else 100,
        paid=30,
    )


def summary() -> dict[str, Any]:
    return build_summary(
        seed=0,
        steps=600,
        tokens_per_second=9000.5,
        verification_share=0.07,
        verified_loss=1.73,
        workers=[worker(1), worker(2, caught=True)],
        verifiers=[VerifierResult(address=address(9), paid=20)],
        job=JobResult(id=1, budget=100, paid=80, refunded=18, fee=2),
        rpc="http://127.0.0.1:8545",
        chain_id=31337,
        contracts={"JobMarket": address(100)},
        detections=[
            Detection(steps_to_quarantine=2, seconds_to_ban=8.5),
            Detection(steps_to_quarantine=4, seconds_to_ban=9),
        ],
    )


def test_a_good_summary() -> None:
    made = summary()
    assert check_summary(made) == []
    assert check_summary(json.loads(json.dumps(made))) == []
    assert made["val_loss"] == {"verified": 1.73, "clean": None, "unverified": None}
    assert made["workers"][0]["stake_before"] == "100" and made["job"]["budget"] == "100"
    assert made["detection"] == {"median_steps_to_quarantine": 3, "max_seconds_to_ban": 9}


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (("seed",), "0", "seed = '0' is not valid"),
        (("steps",), True, "steps"),
        (("verification_share",), 1.2, "verification_share"),
        (("tokens_per_second",), float("nan"), "tokens_per_second"),
        (("job", "paid"), 80, "job.paid = 80 is not valid"),
        (("job", "paid"), "081", "job.paid"),
        (("job", "fee"), "3", "budget 100 is not paid + refunded + fee"),
        (("verifiers", 0, "paid"), "90", "is less than the 150"),
        (("verifiers", 0, "address"), address(1), "appears twice"),
        (("workers", 1, "reason"), None, "banned without step or reason"),
        (("workers", 1, "stake_after"), "100", "its stake did not shrink"),
        (("workers", 1, "quarantined_at_step"), None, "without a quarantine"),
        (("workers", 0, "stake_after"), "99", "not banned, but"),
        (("workers", 0, "address"), "0x1", "workers[0].address"),
        (("workers", 0), 3, "workers[0] is not an object"),
        (("workers",), {}, "workers"),
        (("chain", "contracts"), {}, "chain.contracts"),
        (("extra",), 1, "extra is not part of a summary"),
    ],
)
def test_what_is_wrong_is_named(path: tuple[Any, ...], value: Any, expected: str) -> None:
    made = copy.deepcopy(summary())
    target: Any = made
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    assert expected in "\n".join(check_summary(made))


def test_missing_keys_are_named() -> None:
    made = summary()
    del made["val_loss"]
    del made["workers"][0]["attack"]
    assert check_summary(made) == ["val_loss is missing", "workers[0].attack is missing"]
