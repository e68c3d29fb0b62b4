"""`sentinel verifier start`: from a keystore to a seat that drives, checks and earns."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from sentinel_market.chain.announcements import signed_endpoints
from sentinel_market.chain.client import ChainClient
from sentinel_market.chain.eip712 import digest
from sentinel_market.chain.network import Network, load_network
from sentinel_market.chain.roster import ChainRoster
from sentinel_market.chain.signing import HotKey
from sentinel_market.config import Settings
from sentinel_market.data.corpus import Corpus, load_corpus
from sentinel_market.domain.job_spec import JobSpec
from sentinel_market.domain.messages import Endpoint
from sentinel_market.errors import ConfigError, Fatal, PeerGone, Rejected
from sentinel_market.keys.keystore import Keystore
from sentinel_market.ports import JobInfo, SeatInfo
from sentinel_market.wire.http_client import CoordinatorClient
from verifier.check.check import warm
from verifier.context import SeatContext, check_policy
from verifier.events import SeatEvents
from verifier.recording.recorder import DEFAULT_MAX_BYTES, DirectoryRecorder, Recorder
from verifier.seat import Outside, Seat

log = logging.getLogger("verifier")

_T = TypeVar("_T")
POLL_SECONDS = 0.3
SETTLE_PATIENCE_SECONDS = 120


@dataclass(frozen=True, kw_only=True)
class VerifierOptions:
    """What the command line says. ``listen``: host:port to bind; port 0 takes a free one. ``public``: what workers
    dial, where it differs. ``job_id`` None: the newest job with a free seat. ``record``: a new folder for a recording
    of at most ``record_bytes``."""

    name: str
    job_id: int | None = None
    listen: str = "127.0.0.1:0"
    public: str | None = None
    record: Path | None = None
    record_bytes: int = DEFAULT_MAX_BYTES


def main(settings: Settings, password: str, options: VerifierOptions, say: Callable[[str], None]) -> int:
    """Run until the job is settled or a signal comes; returns the exit code. Raises SentinelError.

    ``say`` shows one line to the user.
    """
    torch.set_num_threads(1)
    network = load_network(settings.network_file)
    with Keystore(settings.keys_dir).use_hot(options.name, password) as key:
        recorder = Recorder() if options.record is None else DirectoryRecorder(options.record, options.record_bytes)
        try:
            return asyncio.run(_Agent(settings, network, key, options, say, recorder).run())
        finally:
            recorder.close()
            if recorder.summary:
                say(recorder.summary)


def check_corpus(spec: JobSpec) -> Corpus:
    """The job's data as this machine has it; ConfigError when it is not the data that was posted."""
    data = spec.data
    corpus = load_corpus(
        data.kind,
        data.path or None,
        tokenizer=data.tokenizer,
        validation_fraction_ppm=data.validation_ppm,
        vocab_size=spec.model.vocab_size,
        seq_len=spec.model.seq_len,
    )
    for name, found, wanted in (
        ("training", corpus.train_digest, data.train_digest),
        ("validation", corpus.validation_digest, data.validation_digest),
    ):
        if wanted and found != wanted:
            raise ConfigError(
                f"the {name} data here has digest {found[:16]}..., the job was posted with {wanted[:16]}...; here is "
                f"Python {platform.python_version()}, the data was posted under {data.python or 'another one'}; "
                "use the same data (for stdlib: the same Python version)"
            )
    return corpus


class _Agent:
    def __init__(
        self,
        settings: Settings,
        network: Network,
        key: HotKey,
        options: VerifierOptions,
        say: Callable[[str], None],
        recorder: Recorder,
    ) -> None:
        self.settings, self.network, self.key, self.options, self.say = settings, network, key, options, say
        self.recorder = recorder
        self.endpoints: dict[str, str] = {}

    async def run(self) -> int:
        client = await asyncio.to_thread(
            ChainClient.connect,
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
        host, port = _split(self.options.listen)
        with CoordinatorClient(
            url,
            signer=self.key.sign,
            chain_id=self.network.chain_id,
            market=self.network.contracts["JobMarket"],
            timeout=60.0,
        ) as coordinator:
            job_id = self.options.job_id if self.options.job_id is not None else _newest_job(client)
            job = roster.job(job_id)
            spec = coordinator.spec(job.spec_digest)
            corpus = await asyncio.to_thread(check_corpus, spec)
            # The check compiles for seconds on a new machine: not inside the event loop, where pings would go unheard.
            await asyncio.to_thread(warm)
            seat = await asyncio.to_thread(self._take_seat, roster, job_id)
            work = asyncio.create_task(self._work(client, roster, coordinator, job, spec, corpus, seat, host, port))
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, work.cancel)
            try:
                return await work
            except asyncio.CancelledError:
                self.say("stopped; the seat stays taken: start again to go on serving it")
                return 130

    def _take_seat(self, roster: ChainRoster, job_id: int) -> SeatInfo:
        held = roster.held_seat(job_id)
        if held is not None:
            self.say(f"seat {held.index} of job {job_id} is ours already")
            return held
        seat = roster.take_seat(job_id)
        self.say(f"took seat {seat.index} of job {job_id}")
        return seat

    async def _work(
        self,
        client: ChainClient,
        roster: ChainRoster,
        coordinator: CoordinatorClient,
        job: JobInfo,
        spec: JobSpec,
        corpus: Corpus,
        mine: SeatInfo,
        host: str,
        port: int,
    ) -> int:
        job_id = job.job_id
        seats = await self._wait_for(
            "seats", job_id, roster, lambda: roster.seats(job_id), lambda found: len(found) == job.num_seats
        )
        slots = await asyncio.to_thread(roster.slots, job_id)
        context = SeatContext(
            job_id=job_id,
            spec=spec,
            key=self.key,
            deployment=roster.deployment(),
            seats=tuple(seats),
            slots={slot.slot: slot for slot in slots},
            quorum=job.quorum,
            me=mine.index,
            policy=check_policy(spec),
        )
        home = self.settings.home / "verifier" / f"job-{job_id}-seat-{mine.index}"
        events = SeatEvents(home / "events.jsonl", coordinator, job_id)
        outside = Outside(
            court=roster, escrow=roster, blobs=coordinator, events=events, params=client.params.get().quote_params()
        )
        seat = Seat(
            context,
            corpus,
            outside,
            self.endpoints.get,
            home,
            lambda: {slot.slot: slot for slot in roster.slots(job_id)},
            self.recorder,
        )
        bound = await seat.start(host, port)
        announced = self.options.public or f"{host}:{bound}"
        message = Endpoint(job_id, mine.account, announced, int(time.time() * 1000))
        signature = self.key.sign(digest(context.domain, message))
        await asyncio.to_thread(coordinator.announce, message, signature)
        self.say(f"seat {mine.index} listens on {announced}; primary of stages {list(context.my_stages)}")
        try:
            await self._find_peers(coordinator, context)
            await self._wait_for(
                "slots",
                job_id,
                roster,
                lambda: _stages_covered(roster, job_id, job.replicas),
                lambda covered: covered == job.stages,
            )
            await seat.refresh()
            await seat.run()
        except Fatal as error:
            await seat.stop("stopped", str(error))
            _write_costs(home, seat)
            raise
        except asyncio.CancelledError:
            await seat.stop("stopped", f"seat {mine.index} was stopped")
            raise
        finally:
            await asyncio.to_thread(events.close)
        await seat.stop("finished", f"job {job_id} is finished")
        _write_costs(home, seat)
        self.say(f"job {job_id} is trained; waiting for its settlement on chain")
        await asyncio.to_thread(self._settle, client, job_id, mine.index)
        return 0

    async def _wait_for(
        self, what: str, job_id: int, roster: ChainRoster, read: Callable[[], _T], enough: Callable[[_T], bool]
    ) -> _T:
        told = time.monotonic()
        while True:
            found = await asyncio.to_thread(read)
            if enough(found):
                return found
            state = (await asyncio.to_thread(roster.job, job_id)).state
            if state in {"cancelled", "closing", "settled"}:
                raise Fatal(f"job {job_id} is {state}; the seat's stake can be released")
            if time.monotonic() - told > 10:
                self.say(f"waiting for {what} of job {job_id}")
                told = time.monotonic()
            await asyncio.sleep(POLL_SECONDS)

    async def _find_peers(self, coordinator: CoordinatorClient, context: SeatContext) -> None:
        """Signed announcements of all other seats."""
        while len(self.endpoints) < len(context.others):
            try:
                views = await asyncio.to_thread(coordinator.endpoints, context.job_id)
            except PeerGone as error:
                log.warning("%s", error)
                views = []
            found = signed_endpoints(views, context.job_id, context.domain, context.hot_keys)
            self.endpoints.update({account: at for account, at in found.items() if account != context.account})
            await asyncio.sleep(POLL_SECONDS)

    def _settle(self, client: ChainClient, job_id: int, seat: int) -> None:
        """Push the job to Settled and get the seat's lock back, where that takes seconds; else say how."""
        until = time.monotonic() + SETTLE_PATIENCE_SECONDS
        while time.monotonic() < until:
            state = client.market.job(job_id).state
            try:
                if state == "closing":
                    client.market.settle_job(job_id)
                elif state == "settled":
                    client.market.release_seat(job_id, seat)
                    self.say(f"job {job_id} is settled; seat {seat} is released, its stake is free")
                    return
            except Rejected as error:
                log.info("%s", error)
            time.sleep(0.7)
        self.say("the evidence tail is longer than this program waits: `sentinel job settle` and `seat release` later")


def _stages_covered(roster: ChainRoster, job_id: int, replicas: int) -> int:
    return len({slot.slot // replicas for slot in roster.slots(job_id) if int(slot.hot_key, 16)})


def _newest_job(client: ChainClient) -> int:
    """The newest job with a free seat."""
    for job_id in range(client.market.job_count(), 0, -1):
        job = client.market.job(job_id)
        if job.state in {"open", "active"} and len(client.market.seats(job_id)) < job.num_seats:
            return job_id
    raise ConfigError("no job on this chain has a free verifier seat now; see `sentinel job list`")


def _split(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"--listen {listen!r} is not HOST:PORT, for example 127.0.0.1:7000")
    return host.strip("[]"), int(port)


def _write_costs(home: Path, seat: Seat) -> None:
    """CPU seconds, for the share of verification in summary.json."""
    costs = {
        "process": time.process_time(),
        "sections": seat.meter.seconds,
        "replays": seat.driver.replay_micros / 1e6,
        "workers": [
            {"id": f"{slot}-{session}", "process": process / 1e6, "overhead": overhead / 1e6}
            for (slot, session), (process, overhead) in seat.teller.worker_costs.items()
        ],
        "pid": os.getpid(),
    }
    (home / "costs.json").write_text(json.dumps(costs))
