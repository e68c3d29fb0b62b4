"""`sentinel worker start`: from a keystore to a slot that earns, and out again in order."""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import torch

from sentinel_market.attacks import ScheduledAttack, get_attack
from sentinel_market.chain.announcements import signed_endpoints
from sentinel_market.chain.client import ChainClient
from sentinel_market.chain.network import Network, load_network
from sentinel_market.chain.roster import ChainRoster
from sentinel_market.chain.signing import HotKey
from sentinel_market.config import Settings
from sentinel_market.domain.job_spec import JobSpec
from sentinel_market.errors import ConfigError, Fatal, PeerGone, Rejected
from sentinel_market.keys.keystore import Keystore
from sentinel_market.models.init import init_flat
from sentinel_market.models.jobs import frame_shapes, model_config
from sentinel_market.ports import SeatInfo, SlotInfo
from sentinel_market.wire.http_client import CoordinatorClient
from sentinel_market.wire.tensors import encode, encoded_hash
from worker.compute import StageRunner
from worker.session import Worker, WorkerContext

log = logging.getLogger("worker")

POLL_SECONDS = 0.3
INTERRUPTED = 130
RELEASE_PATIENCE_SECONDS = 120
"""A lock whose evidence tail ends sooner is waited for; else `sentinel slot exit` finishes the job later."""


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """What the command line says. ``job_id`` None: the newest job that still needs workers."""

    name: str
    job_id: int | None = None
    slot: int | None = None
    attack: str | None = None
    attack_seed: int = 0
    attack_onset: int = 0


def main(settings: Settings, password: str, options: WorkerOptions, say: Callable[[str], None]) -> int:
    """Run until the job ends or a signal comes; returns the exit code. Raises SentinelError.

    ``say`` shows one line to the user.
    """
    torch.set_num_threads(1)
    network = load_network(settings.network_file)
    if options.attack is not None and not network.local:
        raise ConfigError("--attack is for local test chains only; this network is not one")
    with Keystore(settings.keys_dir).use_hot(options.name, password) as key:
        return _Agent(settings, network, key, options, say).run()


class _Agent:
    def __init__(
        self, settings: Settings, network: Network, key: HotKey, options: WorkerOptions, say: Callable[[str], None]
    ) -> None:
        self.settings, self.network, self.key, self.options, self.say = settings, network, key, options, say
        self.stopping = threading.Event()
        self.worker: Worker | None = None
        self.endpoints: dict[str, str] = {}
        self._looked = 0.0

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        client = ChainClient.connect(
            self.network,
            key=self.key,
            journal_dir=self.settings.journal_dir,
            rpc=self.settings.rpc,
            confirmations=self.settings.confirmations,
        )
        roster = ChainRoster(client)
        url = self.settings.coordinator or self.network.coordinator
        if url is None:
            raise ConfigError("no coordinator is known: set SENTINEL_COORDINATOR or name one in the network file")
        with CoordinatorClient(url) as coordinator:
            job_id, slot = self._take_slot(client, roster)
            spec = coordinator.spec(roster.job(job_id).spec_digest)
            seats = self._wait_for_seats(roster, job_id)
            if seats is None:
                return INTERRUPTED
            code = self._serve(roster, coordinator, job_id, slot, spec, seats)
        self._leave(client, job_id, slot)
        return code

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.stopping.set()
        if self.worker is not None:
            self.worker.stop(signal.Signals(number).name)

    # ---- before

    def _take_slot(self, client: ChainClient, roster: ChainRoster) -> tuple[int, SlotInfo]:
        job_id = self.options.job_id if self.options.job_id is not None else _newest_job(client)
        held = roster.held_slots(job_id)
        if held:
            slot = held[0]
            self.say(f"rejoining job {job_id}: slot {slot.slot}, nonce {slot.nonce}")
            return job_id, slot
        slot = roster.claim_slot(job_id, self.options.slot)
        stage = slot.slot // roster.job(job_id).replicas
        self.say(f"claimed slot {slot.slot} (stage {stage}) of job {job_id}, nonce {slot.nonce}")
        return job_id, slot

    def _wait_for_seats(self, roster: ChainRoster, job_id: int) -> tuple[SeatInfo, ...] | None:
        told = 0
        while not self.stopping.is_set():
            job, seats = roster.job(job_id), roster.seats(job_id)
            if job.state in {"settled", "cancelled", "closing"}:
                raise Fatal(f"job {job_id} is {job.state}; nothing to compute. The slot's stake is free again")
            if len(seats) == job.num_seats:
                return seats
            if told != len(seats) + 1:
                self.say(f"waiting for verifiers: {len(seats)} of {job.num_seats} seats are taken")
                told = len(seats) + 1
            self.stopping.wait(POLL_SECONDS)
        return None

    def _attack(self) -> ScheduledAttack | None:
        o = self.options
        if o.attack is None:
            return None
        try:
            return get_attack(o.attack, seed=o.attack_seed, onset=o.attack_onset)
        except ValueError as error:
            raise ConfigError(str(error)) from None

    # ---- serving

    def _serve(
        self,
        roster: ChainRoster,
        coordinator: CoordinatorClient,
        job_id: int,
        slot: SlotInfo,
        spec: JobSpec,
        seats: tuple[SeatInfo, ...],
    ) -> int:
        config, stages = model_config(spec), spec.parallelism.stages
        stage = slot.slot // spec.parallelism.replicas
        flat = init_flat(config, stage, stages, spec.seed)
        runner = StageRunner(config, stage, stages, job_id, self._attack())
        domain = self.network.domain("JobMarket")
        context = WorkerContext(
            job_id=job_id,
            slot=slot.slot,
            nonce=slot.nonce,
            key=self.key,
            domain=domain,
            seats=seats,
            quorum=roster.job(job_id).quorum,
            shapes=frame_shapes(spec),
            state_dir=self.settings.home / "worker",
        )
        hot_keys = {seat.account: seat.hot_key for seat in seats}

        def endpoint_of(account: str) -> str | None:
            """Announcements are signed by the seat's hot key; the newest wins."""
            if time.monotonic() - self._looked > POLL_SECONDS:
                self._looked = time.monotonic()
                try:
                    found = coordinator.endpoints(job_id)
                except PeerGone as error:
                    log.warning("%s", error)
                    found = []
                self.endpoints.update(signed_endpoints(found, job_id, domain, hot_keys))
            return self.endpoints.get(account)

        self.worker = Worker(context, runner, endpoint_of, (flat, encoded_hash(encode(flat))))
        if self.stopping.is_set():
            return INTERRUPTED
        self.say(f"serving stage {stage} of job {job_id}: {flat.numel():,} parameters; Ctrl-C leaves in order")
        try:
            self.worker.run()
        finally:
            self._note_attack(runner)
        if self.worker.finished:
            self.say("the job is finished")
            return 0
        self.say(f"stopped: {self.worker.reason}; the slot stays ours: start again to go on, or `sentinel slot exit`")
        return INTERRUPTED

    def _note_attack(self, runner: StageRunner) -> None:
        """For whoever plays the attacker (demo, benchmarks): when it really began. Nobody else reads it."""
        if runner.attack is None:
            return
        path = self.settings.home / "attack.json"
        path.write_text(json.dumps({"attack": runner.attack.name, "first_bad_step": runner.first_attacked_step}))

    # ---- after

    def _leave(self, client: ChainClient, job_id: int, slot: SlotInfo) -> None:
        """Get the lock back where that takes seconds (local networks); else say when and how."""
        if self.worker is None or not self.worker.finished:
            return
        until = time.monotonic() + RELEASE_PATIENCE_SECONDS
        while not self.stopping.is_set() and time.monotonic() < until:
            try:
                client.market.release_slot(job_id, slot.slot)
            except Rejected:
                self.stopping.wait(1.0)
            else:
                self.say(f"slot {slot.slot} is released; its stake is free")
                return
        self.say(f"the stake of slot {slot.slot} is locked until the evidence tail is over: `sentinel slot release`")


def _newest_job(client: ChainClient) -> int:
    """The newest job with a vacant slot."""
    for job_id in range(client.market.job_count(), 0, -1):
        job = client.market.job(job_id)
        if job.state in {"open", "active"} and any(s.state == "vacant" for s in client.market.slots(job_id)):
            return job_id
    raise ConfigError("no job on this chain needs workers now; see `sentinel job list`")
