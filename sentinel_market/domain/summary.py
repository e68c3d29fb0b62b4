"""``summary.json``: what a finished run claims, built in one place and checked in one place.

Amounts are decimal strings of base units. ``val_loss.clean`` and ``val_loss.unverified`` are null without
``--compare``; ``stake_*`` is bonded + unbonding, ``stake_after`` read when the job is Settled.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{40}")
_AMOUNT: Final = re.compile(r"0|[1-9][0-9]{0,77}")


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerResult:
    """One worker at the end of a run. Amounts in base units; ``attack`` is None for an honest one."""

    address: str
    stage: int
    replica: int
    attack: str | None
    quarantined_at_step: int | None
    banned: bool
    banned_at_step: int | None
    reason: str | None
    stake_before: int
    stake_after: int
    paid: int


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifierResult:
    """One verifier at the end of a run; ``paid`` in base units."""

    address: str
    paid: int


@dataclass(frozen=True, kw_only=True, slots=True)
class JobResult:
    """The job's money at the end: budget = paid + refunded + fee. Amounts in base units."""

    id: int
    budget: int
    paid: int
    refunded: int
    fee: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Detection:
    """How fast one hostile worker was caught."""

    steps_to_quarantine: int
    """Steps from its first bad frame to its quarantine."""
    seconds_to_ban: float
    """Seconds from the quarantine to the ban on chain."""


def build_summary(
    *,
    seed: int,
    steps: int,
    tokens_per_second: float,
    verification_share: float,
    verified_loss: float | None,
    clean_loss: float | None = None,
    unverified_loss: float | None = None,
    workers: Sequence[WorkerResult],
    verifiers: Sequence[VerifierResult],
    job: JobResult,
    rpc: str,
    chain_id: int,
    contracts: Mapping[str, str],
    detections: Sequence[Detection] = (),
) -> dict[str, Any]:
    """The content of ``summary.json``. Check it with ``check_summary`` before it is written."""
    return {
        "seed": seed,
        "steps": steps,
        "tokens_per_second": tokens_per_second,
        "verification_share": verification_share,
        "val_loss": {"verified": verified_loss, "clean": clean_loss, "unverified": unverified_loss},
        "workers": [_row(worker, "stake_before", "stake_after", "paid") for worker in workers],
        "verifiers": [_row(verifier, "paid") for verifier in verifiers],
        "job": _row(job, "budget", "paid", "refunded", "fee"),
        "chain": {"rpc": rpc, "chain_id": chain_id, "contracts": dict(sorted(contracts.items()))},
        "detection": {
            "median_steps_to_quarantine": median(one.steps_to_quarantine for one in detections) if detections else None,
            "max_seconds_to_ban": max(one.seconds_to_ban for one in detections) if detections else None,
        },
    }


def _row(item: WorkerResult | VerifierResult | JobResult, *amounts: str) -> dict[str, Any]:
    return {key: str(value) if key in amounts else value for key, value in asdict(item).items()}


# ----------------------------------------------------------------------------------------------------------
# The checker


Check = Callable[[Any], bool]


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _address(value: Any) -> bool:
    return isinstance(value, str) and _ADDRESS.fullmatch(value) is not None


def _amount(value: Any) -> bool:
    return isinstance(value, str) and _AMOUNT.fullmatch(value) is not None


def _or_null(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _share(value: Any) -> bool:
    return _number(value) and value <= 1


_WORKER: Final[Mapping[str, Check]] = {
    "address": _address,
    "stage": _whole,
    "replica": _whole,
    "attack": _or_null(_text),
    "quarantined_at_step": _or_null(_whole),
    "banned": _flag,
    "banned_at_step": _or_null(_whole),
    "reason": _or_null(_text),
    "stake_before": _amount,
    "stake_after": _amount,
    "paid": _amount,
}
_VERIFIER: Final[Mapping[str, Check]] = {"address": _address, "paid": _amount}
_JOB: Final[Mapping[str, Check]] = {
    "id": _whole,
    "budget": _amount,
    "paid": _amount,
    "refunded": _amount,
    "fee": _amount,
}
_LOSS: Final[Mapping[str, Check]] = {
    "verified": _or_null(_number),
    "clean": _or_null(_number),
    "unverified": _or_null(_number),
}
_DETECTION: Final[Mapping[str, Check]] = {
    "median_steps_to_quarantine": _or_null(_number),
    "max_seconds_to_ban": _or_null(_number),
}


def _contracts(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(_text(key) and _address(one) for key, one in value.items())


_CHAIN: Final[Mapping[str, Check]] = {"rpc": _text, "chain_id": _whole, "contracts": _contracts}
_TOP: Final[Mapping[str, Check]] = {
    "seed": _whole,
    "steps": _whole,
    "tokens_per_second": _number,
    "verification_share": _share,
    "val_loss": lambda value: isinstance(value, dict),
    "workers": lambda value: isinstance(value, list),
    "verifiers": lambda value: isinstance(value, list),
    "job": lambda value: isinstance(value, dict),
    "chain": lambda value: isinstance(value, dict),
    "detection": lambda value: isinstance(value, dict),
}


def check_summary(summary: Mapping[str, Any]) -> list[str]:
    """What is wrong with a summary: missing, unknown or malformed keys, and sums that do not hold."""
    found = _shape(summary, _TOP, "")
    for key, checks in (("val_loss", _LOSS), ("job", _JOB), ("chain", _CHAIN), ("detection", _DETECTION)):
        if isinstance(summary.get(key), dict):
            found += _shape(summary[key], checks, f"{key}.")
    for key, checks in (("workers", _WORKER), ("verifiers", _VERIFIER)):
        rows = summary.get(key)
        for index, row in enumerate(rows if isinstance(rows, list) else []):
            name = f"{key}[{index}]."
            found += _shape(row, checks, name) if isinstance(row, dict) else [f"{name[:-1]} is not an object"]
    return found or _sums(summary)


def _shape(value: Mapping[str, Any], checks: Mapping[str, Check], prefix: str) -> list[str]:
    found = [f"{prefix}{key} is missing" for key in checks if key not in value]
    found += [f"{prefix}{key} is not part of a summary" for key in value if key not in checks]
    return found + [
        f"{prefix}{key} = {value[key]!r:.80} is not valid"
        for key in checks
        if key in value and not checks[key](value[key])
    ]


def _sums(summary: Mapping[str, Any]) -> list[str]:
    job = {key: int(summary["job"][key]) for key in ("budget", "paid", "refunded", "fee")}
    found = []
    if job["budget"] != job["paid"] + job["refunded"] + job["fee"]:
        found.append(f"job: budget {job['budget']} is not paid + refunded + fee")
    people = [*summary["workers"], *summary["verifiers"]]
    drawn = sum(int(row["paid"]) for row in people)
    if drawn > job["paid"]:
        found.append(f"job.paid = {job['paid']} is less than the {drawn} that workers and verifiers were paid")
    addresses = [row["address"].lower() for row in people]
    if len(set(addresses)) != len(addresses):
        found.append("an address appears twice among workers and verifiers")
    for row in summary["workers"]:
        name, slashed = row["address"], int(row["stake_before"]) - int(row["stake_after"])
        if row["banned"] and (row["banned_at_step"] is None or row["reason"] is None):
            found.append(f"{name}: banned without step or reason")
        if row["banned"] and slashed <= 0:
            found.append(f"{name}: banned, but its stake did not shrink")
        if not row["banned"] and (row["banned_at_step"] is not None or slashed != 0):
            found.append(f"{name}: not banned, but it has a step of a ban or lost stake")
        if row["banned"] and row["quarantined_at_step"] is None:
            found.append(f"{name}: banned without a quarantine")
    return found
