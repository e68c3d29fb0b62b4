"""A whole mesh in one process: real gRPC over loopback, real torch, seats and slots from a fixed roster.

For tests of the pipeline itself. The chain's place is taken by the fakes below, which pass the abstract suites of
``tests/ports``; processes, chain and coordinator are real in the end-to-end tests.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import blake3
import torch

from sentinel_market.attacks import get_attack
from sentinel_market.chain.eip712 import Domain
from sentinel_market.chain.signing import HotKey
from sentinel_market.data.corpus import Corpus, load_corpus
from sentinel_market.domain.job_spec import JobSpec, parse_job
from sentinel_market.domain.quote import QuoteParams
from sentinel_market.errors import Fatal, PeerGone
from sentinel_market.models.init import init_flat
from sentinel_market.models.jobs import frame_shapes, model_config
from sentinel_market.ports import (
    CaseInfo,
    Deployment,
    JobInfo,
    Money,
    SeatInfo,
    SignedReport,
    SlotInfo,
    SlotState,
)
from sentinel_market.wire.tensors import encode, encoded_hash
from verifier.context import SeatContext, check_policy
from verifier.seat import Outside, Seat
from worker.compute import StageRunner
from worker.session import Worker, WorkerContext

JOB_ID = 1
CONTRACTS = {name: f"0x{index:040x}" for index, name in enumerate(("JobMarket", "ViolationCourt", "JobEscrow"), 1)}


def key(name: str) -> HotKey:
    return HotKey(hashlib.sha256(name.encode()).digest())


def job_toml(
    *,
    steps: int = 6,
    replicas: int = 3,
    stages: int = 4,
    layers: int = 4,
    microbatches: int = 6,
    policy: str = "screen+confirm+audit",
    seats: int = 3,
    quorum: int = 2,
    epoch_steps: int = 0,
    warmup_steps: int = 10,
    audit_ppm: int = 10_000,
    warmup_audit_ppm: int = 100_000,
    seed: int = 7,
    path: str = "",
    dim: int = 32,
    seq_len: int = 32,
    extra: str = "",
) -> str:
    kind = "text" if path else "stdlib"
    if not policy.endswith("+audit"):
        audit_ppm = warmup_audit_ppm = 0
    return f"""
name = "mesh"
seed = {seed}
[model]
dim = {dim}
num_layers = {layers}
num_heads = 2
num_kv_heads = 2
ffn_dim = {2 * dim}
seq_len = {seq_len}
[data]
kind = "{kind}"
path = "{path}"
[training]
steps = {steps}
microbatches = {microbatches}
microbatch_size = 4
learning_rate = 0.003
epoch_steps = {epoch_steps or steps}
validation_sequences = 8
[parallelism]
stages = {stages}
replicas = {replicas}
[seats]
num = {seats}
quorum = {quorum}
[verification]
policy = "{policy}"
audit_ppm = {audit_ppm}
warmup_audit_ppm = {warmup_audit_ppm}
warmup_steps = {warmup_steps}
[market]
budget = "5000"
price_per_microbatch = "0.1"
relay_price = "0.01"
audit_price = "0.01"
slot_stake = "100"
seat_stake = "500"
{extra}
"""


class FixedRoster:
    """Roster port from a fixed table (part A; tests)."""

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        p = spec.parallelism
        self.worker_keys = {slot: key(f"worker-{slot}") for slot in range(p.num_slots)}
        self.seat_keys = {index: key(f"seat-{index}") for index in range(spec.seats.num)}
        self._seats = tuple(
            SeatInfo(index=i, account=key(f"seat-cold-{i}").address, hot_key=k.address)
            for i, k in self.seat_keys.items()
        )
        self._slots = tuple(
            SlotInfo(
                slot=slot,
                nonce=1,
                account=key(f"worker-cold-{slot}").address,
                hot_key=k.address,
                state=SlotState.CLAIMED,
            )
            for slot, k in self.worker_keys.items()
        )

    def deployment(self) -> Deployment:
        return Deployment(chain_id=31337, contracts=CONTRACTS)

    def job(self, job_id: int) -> JobInfo:
        p = self.spec.parallelism
        return JobInfo(
            job_id=job_id,
            spec_digest=self.spec.digest(),
            submitter="0x" + "11" * 20,
            state="active",
            budget=self.spec.market.budget,
            stages=p.stages,
            replicas=p.replicas,
            num_seats=self.spec.seats.num,
            quorum=self.spec.seats.quorum,
        )

    def seats(self, job_id: int) -> tuple[SeatInfo, ...]:
        return self._seats

    def slots(self, job_id: int) -> tuple[SlotInfo, ...]:
        return self._slots


class MemoryCourt:
    """Court port that executes at once. Shared by all seats of a mesh."""

    def __init__(self) -> None:
        self.cases: dict[bytes, CaseInfo] = {}
        self.reports: list[tuple[int, int]] = []

    def case_id(self, job_id: int, slot: int, nonce: int, kind: int, commitment_hash: bytes) -> bytes:
        return hashlib.sha256(repr((job_id, slot, nonce, kind)).encode() + commitment_hash).digest()

    def report(
        self,
        job_id: int,
        slot: int,
        nonce: int,
        kind: int,
        commitment_hash: bytes,
        reports: Sequence[SignedReport],
    ) -> str:
        case_id = self.case_id(job_id, slot, nonce, kind, commitment_hash)
        self.cases[case_id] = CaseInfo(
            case_id=case_id, state="appealable", slot=slot, nonce=nonce, accused="", deadline=self.now()
        )
        self.reports.append((slot, len(reports)))
        return "0x" + case_id.hex()

    def case(self, case_id: bytes) -> CaseInfo:
        return self.cases[case_id]

    def execute(self, case_id: bytes) -> str:
        case = self.cases[case_id]
        self.cases[case_id] = CaseInfo(
            case_id=case_id, state="executed", slot=case.slot, nonce=case.nonce, accused="", deadline=0
        )
        return "0x" + case_id.hex()

    def settle_bond(self, case_id: bytes, seat: int) -> str:
        return "0x" + case_id.hex()

    def now(self) -> int:
        return int(time.time())


class MemoryEscrow:
    """Escrow port without money."""

    def __init__(self) -> None:
        self.roots: list[tuple[int, bytes, int]] = []
        self.finished = 0

    def money(self, job_id: int) -> Money:
        return Money(last_epoch=len(self.roots), total=self.roots[-1][2] if self.roots else 0, allowance=2**127)

    def claimed(self, job_id: int, account: str) -> int:
        return 0

    def submit_root(
        self,
        job_id: int,
        epoch: int,
        root: bytes,
        total: int,
        record_hash: bytes,
        signatures: Sequence[tuple[int, bytes]],
    ) -> str:
        self.roots.append((epoch, root, total))
        return "0x00"

    def finish(self, job_id: int, epoch: int, record_hash: bytes, signatures: Sequence[tuple[int, bytes]]) -> str:
        self.finished = epoch
        return "0x00"

    def settle_job(self, job_id: int) -> str:
        return "0x00"


class MemoryBlobs:
    """BlobStore port in a dict."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def put(self, data: bytes) -> str:
        digest = blake3.blake3(data).hexdigest()
        self.blobs[digest] = data
        return digest

    def get(self, digest: str) -> bytes:
        if digest not in self.blobs:
            raise PeerGone(f"no blob {digest}")
        return self.blobs[digest]


@dataclass
class ListEvents:
    """Events port that remembers."""

    steps: list[dict[str, object]] = field(default_factory=list)
    verdicts: list[dict[str, object]] = field(default_factory=list)
    settlements: list[dict[str, object]] = field(default_factory=list)
    seats: list[dict[str, object]] = field(default_factory=list)

    def step(self, data: Mapping[str, object]) -> None:
        self.steps.append(dict(data))

    def verdict(self, data: Mapping[str, object]) -> None:
        self.verdicts.append(dict(data))

    def settlement(self, data: Mapping[str, object]) -> None:
        self.settlements.append(dict(data))

    def seat(self, data: Mapping[str, object]) -> None:
        self.seats.append(dict(data))

    @property
    def losses(self) -> list[float]:
        return [float(str(s["loss"])) for s in self.steps if "loss" in s]


class Mesh:
    """Seats in this thread's event loop, workers in threads of their own."""

    def __init__(self, toml: str, home: Path, attacks: Mapping[int, tuple[str, int]] | None = None) -> None:
        """``attacks``: slot -> (attack name, onset step)."""
        torch.set_num_threads(1)
        self.spec = parse_job(toml)
        self.roster = FixedRoster(self.spec)
        self.corpus: Corpus = load_corpus(
            self.spec.data.kind,
            self.spec.data.path or None,
            validation_fraction_ppm=self.spec.data.validation_ppm,
            max_bytes=400_000 if not self.spec.data.path else None,
        )
        self.home = home
        self.attacks = dict(attacks or {})
        self.court, self.escrow, self.blobs = MemoryCourt(), MemoryEscrow(), MemoryBlobs()
        self.endpoints: dict[str, str] = {}
        self.seats: list[Seat] = []
        self.events = [ListEvents() for _ in range(self.spec.seats.num)]
        self.workers: dict[int, Worker] = {}
        self.worker_errors: dict[int, str] = {}
        self._threads: list[threading.Thread] = []

    def seat(self, index: int) -> Seat:
        slots = {slot.slot: slot for slot in self.roster.slots(JOB_ID)}
        context = SeatContext(
            job_id=JOB_ID,
            spec=self.spec,
            key=self.roster.seat_keys[index],
            deployment=self.roster.deployment(),
            seats=self.roster.seats(JOB_ID),
            slots=slots,
            quorum=self.spec.seats.quorum,
            me=index,
            policy=check_policy(self.spec),
        )
        outside = Outside(
            court=self.court,
            escrow=self.escrow,
            blobs=self.blobs,
            events=self.events[index],
            params=QuoteParams(),
        )
        return Seat(context, self.corpus, outside, self.endpoints.get, self.home / f"seat-{index}", lambda: slots)

    def worker(self, slot: int, home: Path | None = None) -> Worker:
        spec = self.spec
        stage = slot // spec.parallelism.replicas
        config = model_config(spec)
        attack = None
        if slot in self.attacks:
            name, onset = self.attacks[slot]
            attack = get_attack(name, seed=slot, onset=onset)
        context = WorkerContext(
            job_id=JOB_ID,
            slot=slot,
            nonce=1,
            key=self.roster.worker_keys[slot],
            domain=Domain("JobMarket", "1", 31337, CONTRACTS["JobMarket"]),
            seats=self.roster.seats(JOB_ID),
            quorum=spec.seats.quorum,
            shapes=frame_shapes(spec),
            state_dir=home or self.home / f"worker-{slot}",
        )
        flat = init_flat(config, stage, spec.parallelism.stages, spec.seed)
        runner = StageRunner(config, stage, spec.parallelism.stages, JOB_ID, attack)
        return Worker(context, runner, self.endpoints.get, (flat, encoded_hash(encode(flat))))

    def start_worker(self, slot: int) -> Worker:
        worker = self.workers[slot] = self.worker(slot)

        def serve() -> None:
            torch.set_num_threads(1)
            try:
                worker.run()
            except Fatal as error:
                self.worker_errors[slot] = str(error)

        thread = threading.Thread(target=serve, daemon=True, name=f"worker-{slot}")
        thread.start()
        self._threads.append(thread)
        return worker

    async def start_seats(self) -> None:
        self.seats = [self.seat(index) for index in range(self.spec.seats.num)]
        for seat in self.seats:
            port = await seat.start("127.0.0.1", 0)
            self.endpoints[seat.context.account] = f"127.0.0.1:{port}"

    async def train(self, meanwhile: object = None) -> None:
        """Everything until the job is done. ``meanwhile``: a coroutine to run beside it."""
        await self.start_seats()
        for slot in range(self.spec.parallelism.num_slots):
            self.start_worker(slot)
        beside = asyncio.ensure_future(meanwhile) if asyncio.iscoroutine(meanwhile) else None
        try:
            await asyncio.gather(*(seat.run() for seat in self.seats))
        finally:
            if beside is not None:
                beside.cancel()
            await self.close()

    async def close(self) -> None:
        await asyncio.gather(*(seat.stop("finished", "the job is done") for seat in self.seats))
        for worker in self.workers.values():
            worker.stop("the test is over")
        for thread in self._threads:
            await asyncio.to_thread(thread.join, 5)
