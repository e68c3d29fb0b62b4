"""What ends a run from outside: a seat that falls silent. And which of several errors it was."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from sentinel_market.errors import Fatal, PeerGone, ProtocolError, SentinelError
from sentinel_market.wire import relay_pb2 as pb
from verifier.context import SeatContext
from verifier.peers import Peers

PEER_PATIENCE_SECONDS = 6.0
"""A seat that is silent for longer is named and the run stops (shadow promotion comes with number 4)."""
FIRST_SECONDS = 120.0
"""The same before it was ever heard."""


async def watch_others(context: SeatContext, peers: Peers, ping: Callable[[], pb.SeatMessage]) -> None:
    """Ping the others; a seat that stays silent stops the run within ten seconds: Fatal names it and its stages."""
    heard = {seat.account: time.monotonic() for seat in context.others}
    first = dict.fromkeys(heard, True)
    while True:
        for seat in context.others:
            try:
                await peers.ask(seat.account, ping(), time_limit=3.0)
                heard[seat.account] = time.monotonic()
                first[seat.account] = False
            except (PeerGone, ProtocolError) as error:
                silent = time.monotonic() - heard[seat.account]
                if silent > (FIRST_SECONDS if first[seat.account] else PEER_PATIENCE_SECONDS):
                    stages = ", ".join(map(str, context.stages_of(seat.index))) or "none"
                    raise Fatal(
                        f"seat {seat.index} ({seat.account}) stopped answering ({error}); it held stages {stages}. "
                        "The run stops: nothing is lost, finished epochs stay payable, the rest is refunded"
                    ) from error
        await asyncio.sleep(1.0)


def is_peer_gone(task: asyncio.Task[None]) -> bool:
    """Whether a call to another seat is what ended it."""
    error = None if task.cancelled() else task.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return isinstance(error, PeerGone)


def first_of(group: BaseExceptionGroup[SentinelError]) -> SentinelError:
    """The first error of a group of groups."""
    for error in group.exceptions:
        return first_of(error) if isinstance(error, BaseExceptionGroup) else error
    raise AssertionError("an exception group is never empty")
