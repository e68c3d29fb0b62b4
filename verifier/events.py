"""What a seat tells the world: a JSON-lines log of its own, and the coordinator for those who watch.

Neither may ever hold up a step: a thread writes, and what the coordinator does not take is logged and dropped.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from sentinel_market.errors import SentinelError
from sentinel_market.wire import dto
from sentinel_market.wire.http_client import CoordinatorClient

log = logging.getLogger("verifier")


class SeatEvents:
    """The ``Events`` port. ``close`` waits until everything is written."""

    def __init__(self, path: Path, coordinator: CoordinatorClient, job_id: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._coordinator = coordinator
        self._job_id = job_id
        self._bans = 0
        self._quarantines = 0
        self._jobs: queue.SimpleQueue[tuple[str, dict[str, object]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True, name="events")
        self._thread.start()

    def step(self, data: Mapping[str, object]) -> None:
        self._jobs.put(("step", dict(data)))

    def verdict(self, data: Mapping[str, object]) -> None:
        self._jobs.put(("verdict", dict(data)))

    def settlement(self, data: Mapping[str, object]) -> None:
        self._jobs.put(("settlement", dict(data)))

    def seat(self, data: Mapping[str, object]) -> None:
        self._jobs.put(("seat", dict(data)))

    def close(self, time_limit: float = 10.0) -> None:
        self._jobs.put(None)
        self._thread.join(time_limit)

    def _run(self) -> None:
        with self._path.open("a", encoding="utf-8") as out:
            while (job := self._jobs.get()) is not None:
                topic, data = job
                print(json.dumps({"topic": topic, "at": time.time(), **data}, default=str), file=out, flush=True)
                try:
                    self._publish(topic, data)
                except SentinelError as error:
                    log.warning("the coordinator did not take a %s: %s", topic, error)
                except (ValueError, KeyError, TypeError, AssertionError):
                    log.exception("a %s could not be told", topic)

    def _publish(self, topic: str, data: dict[str, object]) -> None:
        if topic == "step":
            self._publish_step(data)
        elif topic == "verdict":
            self._publish_verdict(data)
        elif topic == "seat":
            self._publish_seat(data)
        elif data.get("transaction"):
            self._publish_settlement(data)

    def _publish_step(self, data: dict[str, object]) -> None:
        self._quarantines = int(str(data.get("quarantines", self._quarantines)))
        self._coordinator.post_metrics(
            dto.StepMetrics(
                job_id=self._job_id,
                step=int(str(data["step"])),
                issued=_now(),
                loss=_number(data.get("loss")),
                tokens=int(str(data.get("tokens", 0))),
                tokens_per_second=_number(data.get("tokens_per_second")) or 0.0,
                suspects=int(str(data.get("suspects", 0))),
                quarantines=self._quarantines,
                bans=self._bans,
                validation_loss=_number(data.get("validation_loss")),
                checkpoint=_text(data.get("checkpoint")),
                record=_text(data.get("record")),
            )
        )

    def _publish_verdict(self, data: dict[str, object]) -> None:
        kinds: dict[str, dto.VerdictName] = {
            "suspect": "suspect",
            "quarantined": "quarantine",
            "executed": "violation",
            "false alarm": "false-alarm",
        }
        kind = kinds.get(str(data["kind"]))
        if data["kind"] == "confirmed" and _was_suspect(data):  # audits that found nothing are not told one by one
            ended: dict[str, dto.VerdictName] = {"ACCEPT": "cleared", "INCONCLUSIVE": "inconclusive"}
            kind = ended.get(str(data["verdict"]))
        self._bans += data["kind"] == "executed"
        if kind is None:
            return
        slot = int(str(data["slot"]))
        reason = str(data.get("reason") or f"slashed and banned by {data.get('transaction', 'the court')}")
        self._coordinator.post_verdicts(
            self._job_id,
            [
                dto.VerdictEvent(
                    step=int(str(data["step"])),
                    slot=slot,
                    nonce=int(str(data["nonce"])),
                    kind=kind,
                    reason=reason[:500],
                    issued=_now(),
                    microbatch=_int(data.get("microbatch")),
                    direction=1 if data.get("direction") == 1 else 0 if data.get("direction") == 0 else None,
                    metric=_text(data.get("metric")),
                    value_e6=_int(data.get("value_e6")),
                    fence_e6=_int(data.get("fence_e6")),
                )
            ],
        )

    def _publish_seat(self, data: dict[str, object]) -> None:
        if data["kind"] != "record":  # what led to it is only in the log
            return
        told = {"job_id": self._job_id, "step": data["step"], "issued": _now(), "seats": data["seats"]}
        self._coordinator.post_seats_record(dto.SeatsRecord.model_validate(told))

    def _publish_settlement(self, data: dict[str, object]) -> None:
        amounts = data["amounts"]
        assert isinstance(amounts, dict)
        self._coordinator.post_settlement(
            dto.SettlementProposal(
                job_id=self._job_id,
                epoch=int(str(data["epoch"])),
                root=str(data["root"]),
                total=str(data["total"]),
                step_record_hash=str(data["record"]),
                leaves=[
                    dto.SettlementLeaf(account=account, cumulative=str(amount)) for account, amount in amounts.items()
                ],
            )
        )


def _number(value: object) -> float | None:
    return None if value is None else float(str(value))


def _int(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _was_suspect(data: Mapping[str, object]) -> bool:
    history = data.get("history")
    return isinstance(history, list) and bool(history) and history[0].get("event") == "SUSPECT"


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _now() -> int:
    return int(time.time() * 1000)
