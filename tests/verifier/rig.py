"""Seats without a run, and workers that say anything."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import grpc.aio
import torch

from sentinel_market.chain.eip712 import Domain, digest
from sentinel_market.chain.signing import HotKey, recover
from sentinel_market.domain.messages import SessionHello
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.parts import CHANNEL_OPTIONS, WIRE_VERSION, WORK, Assembler, split
from sentinel_market.wire.tensors import encode
from tests.support.mesh import CONTRACTS, JOB_ID, Mesh, job_toml
from verifier.answers import Answer, Held
from verifier.seat import Seat
from verifier.step import StepState
from worker.session import SeatLink, Worker

DOMAIN = Domain("JobMarket", "1", 31337, CONTRACTS["JobMarket"])
PATIENCE = 30.0
Tamper = Callable[[Worker, SeatLink, pb.ToSeat], list[pb.ToSeat | bytes]]


def small_mesh(home: Path, **options: object) -> Mesh:
    """2 stages x 3 replicas, 3 seats."""
    values: dict[str, object] = {"stages": 2, "layers": 2, "replicas": 3, "dim": 16, "seq_len": 8, "steps": 3}
    return Mesh(job_toml(**{**values, **options}), home)  # type: ignore[arg-type]


class RawWorker:
    """A gRPC client that can say the handshake, or something else."""

    def __init__(self, seat: Seat, port: int, key: HotKey, slot: int) -> None:
        self.seat, self.key, self.slot = seat, key, slot
        self.session = secrets.randbits(63) | 1
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS)
        self._outbox: asyncio.Queue[pb.Part | None] = asyncio.Queue()
        self._incoming = self._open()

    async def _parts(self) -> AsyncIterator[pb.Part]:
        while (part := await self._outbox.get()) is not None:
            yield part

    async def _open(self) -> AsyncIterator[pb.ToWorker]:
        call = self._channel.stream_stream(
            WORK, request_serializer=pb.Part.SerializeToString, response_deserializer=pb.Part.FromString
        )(self._parts())
        assembler = Assembler(1 << 24)
        async for part in call:
            data = assembler.feed(part)
            if data is not None:
                yield pb.ToWorker.FromString(data)

    def say(self, message: pb.ToSeat | bytes) -> None:
        data = message if isinstance(message, bytes) else message.SerializeToString()
        for part in split(data):
            self._outbox.put_nowait(part)

    async def hear(self, kind: str) -> pb.ToWorker:
        """The next message of this kind; what came before it is dropped."""
        async with asyncio.timeout(PATIENCE):
            async for message in self._incoming:
                if message.WhichOneof("kind") == kind:
                    return message
        raise AssertionError(f"the seat hung up before its {kind}")

    async def goodbye(self) -> str:
        """The code under which the seat ends the call."""
        return (await self.hear("goodbye")).goodbye.code

    def hello(self, **changes: object) -> pb.Hello:
        values = {
            "version": WIRE_VERSION,
            "job_id": JOB_ID,
            "slot": self.slot,
            "nonce": 1,
            "worker_nonce": secrets.token_bytes(32),
            "session": self.session,
            "next_sequence": 1,
        }
        return pb.Hello(**{**values, **changes})  # type: ignore[arg-type]

    def signed(self, hello: pb.Hello, challenge: pb.Challenge, **changes: object) -> bytes:
        values = {
            "job_id": hello.job_id,
            "slot": hello.slot,
            "nonce": hello.nonce,
            "verifier": self.seat.context.account,
            "worker_nonce": hello.worker_nonce,
            "verifier_nonce": challenge.verifier_nonce,
            "session": hello.session,
            "next_sequence": hello.next_sequence,
        }
        return digest(DOMAIN, SessionHello(**{**values, **changes}))  # type: ignore[arg-type]

    async def shake_hands(self, **changes: object) -> pb.HelloProof:
        """Open a session; returns the proof that was sent."""
        hello = self.hello(**changes)
        self.say(pb.ToSeat(hello=hello))
        challenge = (await self.hear("challenge")).challenge
        signed = self.signed(hello, challenge)
        assert recover(signed, challenge.signature) == self.seat.context.key.address
        proof = pb.HelloProof(signature=self.key.sign(signed))
        self.say(pb.ToSeat(proof=proof))
        await self.hear("welcome")
        return proof

    async def close(self) -> None:
        self._outbox.put_nowait(None)
        await self._channel.close()


def tamper(worker: Worker, change: Tamper) -> None:
    """Everything that this worker sends goes through ``change`` first."""
    for link in worker.links:

        def send(message: pb.ToSeat, link: SeatLink = link) -> None:
            for item in change(worker, link, message):
                link.outbox.put(item)  # type: ignore[arg-type]

        link.send = send  # type: ignore[method-assign]


class OneSeat:
    """Seat 0 of a small mesh, listening, in step 0, with all workers of the job; the other seats are away."""

    def __init__(self, home: Path, **options: object) -> None:
        self.mesh = small_mesh(home, **options)
        self.offences: list[int] = []

    async def __aenter__(self) -> OneSeat:
        seat = self.seat = self.mesh.seat(0)
        self.mesh.seats = [seat]
        self.port = await seat.start("127.0.0.1", 0)
        self.mesh.endpoints[seat.context.account] = f"127.0.0.1:{self.port}"
        await seat.driver.begin(StepState(0), secrets.token_bytes(32))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.mesh.close()

    async def with_workers(self, *slots: int) -> None:
        for slot in slots:
            self.mesh.start_worker(slot)
        async with asyncio.timeout(PATIENCE):
            while not all((s := self.seat.relay.sessions.get(slot)) and s.ready for slot in slots):
                await asyncio.sleep(0.01)

    def held(self, microbatch: int = 0) -> Held:
        """A microbatch with what every stage of it needs."""
        tokens, targets = self.seat.rows.batch(0, microbatch)
        held = Held(microbatch, tokens, targets)
        held.inputs = {0: encode(tokens), 1: encode(torch.randn(self.seat.context.shapes.activation))}
        held.incoming = {0: encode(torch.randn(self.seat.context.shapes.activation) * 1e-3), 1: encode(targets)}
        self._held = held
        return held

    def held_for(self, _answer: Answer) -> Held:
        """The microbatch of the last ``held``: what the answer was made from."""
        return self._held
