"""A worker without a mesh, and a seat that does whatever a test tells it to."""

from __future__ import annotations

import queue
import secrets
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import torch

from sentinel_market.chain.eip712 import Domain, digest
from sentinel_market.chain.signing import HotKey, recover
from sentinel_market.domain import step_record
from sentinel_market.domain.job_spec import JobSpec, parse_job
from sentinel_market.domain.messages import SessionHello, StepRecord, WorkReceipt
from sentinel_market.errors import Fatal
from sentinel_market.models.init import init_flat
from sentinel_market.models.jobs import frame_shapes, model_config
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.parts import CHANNEL_OPTIONS, SERVICE, Assembler, split
from sentinel_market.wire.records import from_record
from sentinel_market.wire.tensors import encode, encoded_hash
from tests.support.mesh import CONTRACTS, JOB_ID, FixedRoster, job_toml
from worker.compute import StageRunner
from worker.session import Worker, WorkerContext

DOMAIN = Domain("JobMarket", "1", 31337, CONTRACTS["JobMarket"])
PATIENCE = 30.0


def small_spec() -> JobSpec:
    return parse_job(job_toml(stages=2, layers=2, replicas=2, dim=16, seq_len=8))


class FakeSeat:
    """Listens like a seat; the test says what it answers. Messages of the worker arrive in ``inbox``; None: hung up."""

    def __init__(self, account: str, key: HotKey, worker_key: str) -> None:
        self.account, self.key, self.worker_key = account, key, worker_key
        self.inbox: queue.Queue[pb.ToSeat | None] = queue.Queue()
        self.hellos: list[pb.Hello] = []
        self.proofs = 0
        self.welcomes = True
        """False: the test plays the handshake itself with ``say``."""
        self.forgives = False
        """True: ``hear`` waits on when the worker hangs up, for it will dial again."""
        self._outbox: queue.Queue[bytes | None] = queue.Queue()
        self._sequence = 0
        self._dispatch = 0
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=4), options=CHANNEL_OPTIONS)
        handler = grpc.stream_stream_rpc_method_handler(
            self._work, request_deserializer=pb.Part.FromString, response_serializer=pb.Part.SerializeToString
        )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Work": handler}),))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def close(self) -> None:
        self._outbox.put(None)
        self._server.stop(None)

    # ---- the stream

    def _work(self, requests: Iterator[pb.Part], context: grpc.ServicerContext) -> Iterator[pb.Part]:
        outbox = self._outbox = queue.Queue()
        threading.Thread(target=self._read, args=(requests, outbox), daemon=True).start()
        while (data := outbox.get()) is not None:
            yield from split(data)

    def _read(self, requests: Iterator[pb.Part], outbox: queue.Queue[bytes | None]) -> None:
        assembler = Assembler(1 << 24)
        try:
            for part in requests:
                data = assembler.feed(part)
                if data is not None:
                    self._heard(pb.ToSeat.FromString(data), outbox)
        except Exception:  # noqa: BLE001 - the worker hung up
            pass
        self.inbox.put(None)
        outbox.put(None)

    def _heard(self, message: pb.ToSeat, outbox: queue.Queue[bytes | None]) -> None:
        kind = message.WhichOneof("kind")
        if kind == "hello":
            self.hellos.append(message.hello)
            self._sequence = message.hello.next_sequence
            if self.welcomes:
                outbox.put(pb.ToWorker(challenge=self.challenge()).SerializeToString())
        elif kind == "proof" and self.welcomes:
            assert recover(digest(DOMAIN, self._hello()), message.proof.signature) == self.worker_key
            self.proofs += 1
            outbox.put(pb.ToWorker(welcome=pb.Welcome()).SerializeToString())
        else:
            self.inbox.put(message)

    def challenge(self, key: HotKey | None = None, **changes: object) -> pb.Challenge:
        """A challenge for the last hello, signed by ``key`` (mine) over what ``changes`` says."""
        self._nonce = secrets.token_bytes(32)
        return pb.Challenge(
            verifier_nonce=self._nonce, signature=(key or self.key).sign(digest(DOMAIN, self._hello(**changes)))
        )

    def _hello(self, **changes: object) -> SessionHello:
        hello = self.hellos[-1]
        values: dict[str, object] = {
            "job_id": hello.job_id,
            "slot": hello.slot,
            "nonce": hello.nonce,
            "verifier": self.account,
            "worker_nonce": hello.worker_nonce,
            "verifier_nonce": self._nonce,
            "session": hello.session,
            "next_sequence": hello.next_sequence,
        }
        return SessionHello(**{**values, **changes})  # type: ignore[arg-type]

    def hang_up(self) -> None:
        self._outbox.put(None)

    def say(self, message: pb.ToWorker | bytes) -> None:
        self._outbox.put(message if isinstance(message, bytes) else message.SerializeToString())

    def hear(self, kind: str | None = None, time_limit: float = PATIENCE) -> pb.ToSeat:
        """The next message of this kind (of any kind but Ready); what came before it is dropped."""
        while True:
            message = self.inbox.get(timeout=time_limit)
            if message is None and self.forgives:
                continue
            assert message is not None, f"the worker hung up; expected {kind}"
            found = message.WhichOneof("kind")
            if found == kind or (kind is None and found != "ready"):
                return message

    # ---- work

    def task(self, **fields: object) -> pb.Task:
        """A numbered task; ``fields`` override everything."""
        self._dispatch += 1
        values = {"dispatch": self._dispatch, "sequence": self._sequence, **fields}
        task = pb.Task(**values)  # type: ignore[arg-type]
        self._sequence += 2 if task.operation == pb.LOSS else 1
        return task

    def ask(self, task: pb.Task) -> pb.ToSeat:
        """Send, and the answer (a result or a refusal)."""
        self.say(pb.ToWorker(task=task))
        answer = self.hear()
        if answer.WhichOneof("kind") == "refusal":
            self._sequence = task.sequence  # it was not taken
        return answer

    def receipt(self, step: int, units: int = 1, key: HotKey | None = None, account: str | None = None) -> pb.Receipt:
        hello = self.hellos[-1]
        message = WorkReceipt(hello.job_id, hello.slot, hello.nonce, account or self.account, step, units)
        return pb.Receipt(step=step, units=units, signature=(key or self.key).sign(digest(DOMAIN, message)))


class Rig:
    """One worker of a job of 2 stages, dialling two fake seats (of which q = 2 sign records)."""

    def __init__(self, home: Path, *, stage: int = 1, num_seats: int = 2, quorum: int = 2) -> None:
        torch.set_num_threads(1)
        self.spec = small_spec()
        self.stage = stage
        roster = FixedRoster(self.spec)
        slot = stage * self.spec.parallelism.replicas
        self.key = roster.worker_keys[slot]
        self.infos = roster.seats(JOB_ID)[:num_seats]
        self.seat_keys = {info.account: roster.seat_keys[info.index] for info in self.infos}
        self.seats = [FakeSeat(i.account, self.seat_keys[i.account], self.key.address) for i in self.infos]
        self.shapes = frame_shapes(self.spec)
        self.config = model_config(self.spec)
        self.home = home
        self.slot = slot
        self.quorum = quorum
        self.flats = [init_flat(self.config, s, 2, self.spec.seed) for s in range(2)]
        self.fatal: Fatal | None = None
        self.crash: BaseException | None = None
        self.worker = self.make()
        self._thread: threading.Thread | None = None

    def make(self, genesis: bool = True) -> Worker:
        endpoints = {seat.account: f"127.0.0.1:{seat.port}" for seat in self.seats}
        context = WorkerContext(
            job_id=JOB_ID,
            slot=self.slot,
            nonce=1,
            key=self.key,
            domain=DOMAIN,
            seats=self.infos,
            quorum=self.quorum,
            shapes=self.shapes,
            state_dir=self.home,
        )
        flat = self.flats[self.stage]
        runner = StageRunner(self.config, self.stage, 2, JOB_ID)
        return Worker(context, runner, endpoints.get, (flat, encoded_hash(encode(flat))) if genesis else None)

    def start(self) -> Rig:
        def serve() -> None:
            torch.set_num_threads(1)
            try:
                self.worker.run()
            except Fatal as error:
                self.fatal = error
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                self.crash = error

        self._thread = threading.Thread(target=serve, daemon=True)
        self._thread.start()
        return self

    def ready(self) -> Rig:
        """Start, and wait until every seat heard Ready."""
        self.start()
        for seat in self.seats:
            seat.hear("ready")
        return self

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def ended(self, time_limit: float = PATIENCE) -> None:
        assert self._thread is not None
        self._thread.join(time_limit)
        assert not self.alive, "the worker did not stop"

    def close(self) -> None:
        self.worker.stop("the test is over")
        for seat in self.seats:
            seat.close()
        if self._thread is not None:
            self._thread.join(5)

    # ---- honest messages to build hostile ones from

    @property
    def weights_hash(self) -> bytes:
        return self.worker.runner.weights_hash

    def activation(self, seed: int = 0) -> torch.Tensor:
        return torch.randn(self.shapes.activation, generator=torch.Generator().manual_seed(seed))

    def tokens(self, seed: int = 0) -> torch.Tensor:
        return torch.randint(0, 256, self.shapes.tokens, generator=torch.Generator().manual_seed(seed))

    def input(self, seed: int = 0) -> bytes:
        return encode(self.tokens(seed) if self.stage == 0 else self.activation(seed))

    def loss(self, seat: FakeSeat, **fields: object) -> pb.Task:
        values = {
            "step": 0,
            "operation": pb.LOSS,
            "weights_hash": self.weights_hash,
            "input": self.input(),
            "incoming": encode(self.tokens(9)),
        }
        return seat.task(**{**values, **fields})

    def forward(self, seat: FakeSeat, **fields: object) -> pb.Task:
        values = {"step": 0, "operation": pb.FORWARD, "weights_hash": self.weights_hash, "input": self.input()}
        return seat.task(**{**values, **fields})

    def backward(self, seat: FakeSeat, forward: int, **fields: object) -> pb.Task:
        values = {
            "step": 0,
            "operation": pb.BACKWARD,
            "weights_hash": self.weights_hash,
            "incoming": encode(self.activation(5)),
            "forward": forward,
        }
        return seat.task(**{**values, **fields})

    def weights(self, step: int, seed: int = 1, signers: int | None = None, **changes: object) -> pb.Weights:
        """Weights that ``step`` starts from, under a record that the first ``signers`` seats signed."""
        flats = [torch.randn(f.shape, generator=torch.Generator().manual_seed(seed)) * 0.02 for f in self.flats]
        payloads = [encode(f) for f in flats]
        hashes = [encoded_hash(p) for p in payloads]
        states = [bytes(32) for _ in payloads]
        none = bytes(32)
        record = StepRecord(
            JOB_ID, step - 1, 0, none, none, none, none, step_record.aggregates_digest(hashes, states), none, none
        )
        accounts = [info.account for info in self.infos][: self.quorum if signers is None else signers]
        signed = from_record(
            record, hashes, states, {a: self.seat_keys[a].sign(digest(DOMAIN, record)) for a in accounts}
        )
        values = {"record": signed, "payload": payloads[self.stage], "step": step}
        return pb.Weights(**{**values, **changes})  # type: ignore[arg-type]
