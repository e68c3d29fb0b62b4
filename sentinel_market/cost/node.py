"""The processes of ``sentinel bench cost``: real seats and workers over real gRPC, seats and slots from a fixed roster.

No chain and no coordinator: nothing is settled, the run ends after the last measured step. Each process writes what it
used at each mark, the beginning of a step, to ``NAME-STEP.json``.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from sentinel_market.chain.eip712 import Domain
from sentinel_market.chain.signing import HotKey
from sentinel_market.cost.clock import Clock, leave_out
from sentinel_market.data.corpus import load_corpus
from sentinel_market.domain.job_spec import JobSpec, parse_job
from sentinel_market.domain.quote import QuoteParams
from sentinel_market.errors import Fatal
from sentinel_market.models.init import init_flat
from sentinel_market.models.jobs import frame_shapes, model_config
from sentinel_market.ports import BlobStore, Court, Deployment, Escrow, Money, SeatInfo, SlotInfo, SlotState
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire import tensors
from sentinel_market.wire.tensors import encode
from verifier.check.check import warm
from verifier.check.policy import Policy
from verifier.context import SeatContext
from verifier.seat import Outside, Seat
from worker.compute import StageRunner
from worker.session import Worker, WorkerContext

JOB_ID = 1
CHAIN_ID = 31337
CONTRACTS = {name: f"0x{index:040x}" for index, name in enumerate(("JobMarket", "ViolationCourt", "JobEscrow"), 1)}
CORPUS_BYTES = 400_000


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What every process of one run is told. ``marks``: the steps at whose beginning it writes its costs."""

    toml: str
    policy: Policy
    hashing: bool
    ports: tuple[int, ...]
    marks: tuple[int, ...]
    home: Path

    @property
    def spec(self) -> JobSpec:
        return parse_job(self.toml)

    def names(self) -> list[str]:
        """Of all processes."""
        spec = self.spec
        return [f"seat-{i}" for i in range(spec.seats.num)] + [f"worker-{i}" for i in range(spec.parallelism.num_slots)]

    def file(self, name: str, step: int) -> Path:
        return self.home / f"{name}-{step}.json"


def key_of(name: str) -> HotKey:
    """A key for a process of the benchmark; everybody can make it."""
    return HotKey(hashlib.sha256(f"sentinel bench cost {name}".encode()).digest())


def _seats(spec: JobSpec) -> tuple[SeatInfo, ...]:
    return tuple(
        SeatInfo(index=i, account=key_of(f"seat-cold-{i}").address, hot_key=key_of(f"seat-{i}").address)
        for i in range(spec.seats.num)
    )


def _slots(spec: JobSpec) -> dict[int, SlotInfo]:
    return {
        i: SlotInfo(
            slot=i,
            nonce=1,
            account=key_of(f"worker-cold-{i}").address,
            hot_key=key_of(f"worker-{i}").address,
            state=SlotState.CLAIMED,
        )
        for i in range(spec.parallelism.num_slots)
    }


class _NoMoney:
    """What a seat asks of an escrow before it settles."""

    def money(self, job_id: int) -> Money:
        del job_id
        return Money(last_epoch=0, total=0, allowance=2**127)

    def claimed(self, job_id: int, account: str) -> int:
        del job_id, account
        return 0


class _Silence:
    """An Events port that nobody listens to."""

    def step(self, data: Mapping[str, object]) -> None: ...
    def verdict(self, data: Mapping[str, object]) -> None: ...
    def settlement(self, data: Mapping[str, object]) -> None: ...

    def seat(self, data: Mapping[str, object]) -> None: ...


class _Costs:
    """Writes a process's costs at the marks."""

    def __init__(self, plan: Plan, name: str) -> None:
        self._plan, self._name = plan, name
        self._clock = Clock()
        if not plan.hashing:
            leave_out()
        self._clock.count(hashing=plan.hashing)

    def mark(self, step: int, **more: object) -> None:
        if step in self._plan.marks:
            path = self._plan.file(self._name, step)
            data = {"process": time.process_time(), "wall": time.monotonic(), "clock": self._clock.seconds, **more}
            path.with_suffix(".new").write_text(json.dumps(data))
            path.with_suffix(".new").replace(path)


class _Seat(Seat):
    costs: _Costs
    last_mark: int
    looks: dict[str, int]

    async def _one_step(self, step: int) -> None:
        for name in ("suspects", "confirmations", "audits", "recomputes"):
            self.looks[name] = self.looks.get(name, 0) + int(getattr(self.driver.counters, name))
        self.costs.mark(step, sections=self.meter.seconds, replay=self.driver.replay_micros / 1e6, looks=self.looks)
        if step >= self.last_mark:
            await asyncio.Event().wait()  # measured; the others may still need this seat
        await super()._one_step(step)


class _Worker(Worker):
    costs: _Costs

    def _weights(self, weights: pb.Weights) -> None:
        if weights.step > self.runner.step:
            self.costs.mark(weights.step)
        super()._weights(weights)


def run_node(plan: Plan, name: str, log: Path) -> None:
    """One process: a seat or a worker, until it is told to stop."""
    with log.open("a") as file:
        logging.basicConfig(stream=file, level=logging.WARNING, force=True)
        torch.set_num_threads(1)
        kind, _, number = name.partition("-")
        try:
            if kind == "seat":
                warm()
                asyncio.run(_run_seat(plan, int(number)))
            else:
                _worker(plan, int(number)).run()
        except Fatal as error:
            logging.getLogger("cost").error("%s: %s", name, error)
            raise SystemExit(1) from None


def _endpoints(plan: Plan, spec: JobSpec) -> dict[str, str]:
    return {seat.account: f"127.0.0.1:{port}" for seat, port in zip(_seats(spec), plan.ports, strict=True)}


async def _run_seat(plan: Plan, index: int) -> None:
    spec = plan.spec
    costs = _Costs(plan, f"seat-{index}")
    slots = _slots(spec)
    context = SeatContext(
        job_id=JOB_ID,
        spec=spec,
        key=key_of(f"seat-{index}"),
        deployment=Deployment(chain_id=CHAIN_ID, contracts=CONTRACTS),
        seats=_seats(spec),
        slots=slots,
        quorum=spec.seats.quorum,
        me=index,
        policy=plan.policy,
    )
    nothing: Any = _NoMoney()
    outside = Outside(
        court=cast(Court, nothing),
        escrow=cast(Escrow, nothing),
        blobs=cast(BlobStore, nothing),
        events=_Silence(),
        params=QuoteParams(),
    )
    corpus = load_corpus(spec.data.kind, None, validation_fraction_ppm=spec.data.validation_ppm, max_bytes=CORPUS_BYTES)
    home = plan.home / f"seat-{index}"
    seat = _Seat(context, corpus, outside, _endpoints(plan, spec).get, home, lambda: slots)
    seat.costs, seat.last_mark, seat.looks = costs, plan.marks[-1], {}
    await seat.start("127.0.0.1", plan.ports[index])
    await seat.run()


def _worker(plan: Plan, slot: int) -> Worker:
    spec = plan.spec
    costs = _Costs(plan, f"worker-{slot}")
    config, stages = model_config(spec), spec.parallelism.stages
    stage = slot // spec.parallelism.replicas
    context = WorkerContext(
        job_id=JOB_ID,
        slot=slot,
        nonce=1,
        key=key_of(f"worker-{slot}"),
        domain=Domain("JobMarket", "1", CHAIN_ID, CONTRACTS["JobMarket"]),
        seats=_seats(spec),
        quorum=spec.seats.quorum,
        shapes=frame_shapes(spec),
        state_dir=plan.home / f"worker-{slot}",
    )
    flat = init_flat(config, stage, stages, spec.seed)
    hashed = tensors.encoded_hash(encode(flat))  # whatever stands for the hash in this process
    worker = _Worker(context, StageRunner(config, stage, stages, JOB_ID), _endpoints(plan, spec).get, (flat, hashed))
    worker.costs = costs
    return worker
