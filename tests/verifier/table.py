"""Seats that talk to each other without a network, and frames to accuse each other's workers of."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sentinel_market.chain.eip712 import digest
from sentinel_market.domain.cross_audit import FaultKind
from sentinel_market.errors import PeerGone
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.tensors import decode, encode, encoded_hash
from tests.verifier.rig import DOMAIN, OneSeat, small_mesh, tamper
from verifier.answers import Answer, Offence, Upheld
from verifier.check import audit
from verifier.seat import Seat

LAST, FIRST = 3, 0
"""Slots whose workers computed the material: of stage 1, which is the last, and of stage 0."""
Fault = tuple[FaultKind, str, int, bytes, bytes]
Hear = Callable[[str, pb.SeatMessage], Awaitable[pb.SeatMessage]]


@dataclass
class Material:
    """Frames that a driver upheld by a recompute (a loss, a forward, a backward), and one that it refuted. Good at any
    table: keys and weights of step 0 are the same everywhere."""

    upheld: list[Upheld]
    offence: Offence


def material(home: Path) -> Material:
    async def make() -> Material:
        async with OneSeat(home) as one:
            await one.with_workers(FIRST, LAST)
            driver, sessions, held = one.seat.driver, one.seat.relay.sessions, one.held()
            upheld, offences = list[Upheld](), list[Offence]()
            driver._is_audited = lambda *_: True  # type: ignore[method-assign]
            driver._on_upheld, driver._on_offence = upheld.append, offences.append

            async def judged(slot: int, stage: int, operation: int, forward: Answer | None = None) -> Answer:
                answer = await driver._work(sessions[slot], stage, held, operation, forward)
                await driver._judge(stage, held, answer)
                return answer

            below = await judged(FIRST, 0, pb.FORWARD)
            held.go_up(0, below)
            held.go_down(1, await judged(LAST, 1, pb.LOSS))
            await judged(FIRST, 0, pb.BACKWARD, below)
            tamper(one.mesh.workers[LAST], _wrong)
            await judged(LAST, 1, pb.LOSS)
            assert (len(upheld), len(offences)) == (3, 1)
            return Material([upheld[1], upheld[0], upheld[2]], offences[0])

    with patch.object(audit, "goes_straight_to_recompute", lambda *_: False):  # all by the same way
        return asyncio.run(make())


def _wrong(worker: Any, link: Any, message: pb.ToSeat) -> list[Any]:
    if message.WhichOneof("kind") == "result":
        result, given = message.result, message.result.commitments[0]
        result.output = encode(decode(result.output) * 1.05)
        given.output_hash = encoded_hash(result.output)
        frame = link.session_key.frame(
            sequence=given.sequence,
            step=0,
            microbatch=0,
            direction=0,
            input_hash=given.input_hash,
            output_hash=given.output_hash,
            weights_hash=result.weights_hash,
        )
        given.signature = worker.context.key.sign(digest(DOMAIN, frame))
    return [message]


@dataclass
class Table:
    """``said``: (from, to, kind of message), as it was asked; ``faults``: by the seat that raised them. What a seat
    hears goes through ``hears[index]`` if there is one; ``away`` are not there."""

    home: Path
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mesh = small_mesh(self.home, **self.options)
        self.seats = [self.mesh.seat(index) for index in range(self.mesh.spec.seats.num)]
        self.said: list[tuple[int, int, str]] = []
        self.faults: list[list[Fault]] = [[] for _ in self.seats]
        self.hears: dict[int, Hear] = {}
        self.away: set[int] = set()
        for index, seat in enumerate(self.seats):
            seat.weights.genesis()
            self._seat(index, seat)

    def _seat(self, index: int, seat: Seat) -> None:
        def on_fault(*fault: Any) -> None:
            self.faults[index].append(fault)

        async def ask(account: str, message: pb.SeatMessage, time_limit: float = 10.0) -> pb.SeatMessage:
            to = self.accounts.index(account)
            self.said.append((index, to, str(message.WhichOneof("kind"))))
            if to in self.away:
                raise PeerGone(f"seat {to} is away")
            hear = self.hears.get(to, self.seats[to]._hear)
            try:
                return await asyncio.wait_for(hear(seat.context.account, message), time_limit)
            except TimeoutError:
                raise PeerGone(f"seat {to} is late") from None

        seat.accuser._on_fault = seat.cosigner._on_fault = on_fault
        seat.peers.ask = ask  # type: ignore[method-assign]

    @property
    def accounts(self) -> list[str]:
        return [seat.context.account for seat in self.seats]

    def stamps(self, index: int) -> None:
        """This seat convicts whatever it is shown."""

        async def judgement(_: pb.Accuse) -> tuple[bool, str, bool]:
            return True, "", False

        self.seats[index].cosigner._judgement = judgement  # type: ignore[method-assign]

    def canary(self, upheld: Upheld) -> Offence:
        """What seat 0 makes of it."""
        found = asyncio.run(self.seats[0].canaries.make(upheld))
        assert found is not None
        return found

    def accusation(self, offence: Offence) -> pb.Accuse:
        """By seat 0."""
        return asyncio.run(
            self.seats[0].accuser._accusation(offence, self.home / "bundle", self.home / "bundle" / "weights")
        )

    def notes(self, kind: str) -> list[dict[str, object]]:
        return [v for v in self.mesh.events[0].verdicts if v["kind"] == kind]
