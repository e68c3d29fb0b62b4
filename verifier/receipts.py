"""Receipts on their way to the workers. A worker that has none for a step soon serves this seat no more."""

from __future__ import annotations

from collections.abc import Iterable

from sentinel_market.wire import relay_pb2 as pb
from verifier.relay import Relay, WorkerSession


class Receipts:
    """The newest of each holder of a slot; receipts are cumulative, so no older one is needed."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._newest: dict[tuple[int, int], pb.Receipt] = {}
        self._pending: set[tuple[int, int]] = set()

    def take(self, step: int, units: Iterable[pb.SlotUnits]) -> None:
        """Those of a step, for when the next one begins."""
        for entry in units:
            key = (entry.slot, entry.nonce)
            self._newest[key] = pb.Receipt(step=step, units=entry.units, signature=entry.signature)
            self._pending.add(key)

    def hand_out(self) -> None:
        """To all that are connected and have not got theirs."""
        for session in self._relay.sessions.values():
            if (session.slot.slot, session.slot.nonce) in self._pending and not session.closed:
                self.hand_to(session)

    def hand_to(self, session: WorkerSession) -> None:
        """On a new session also what went out before: it may have been lost with the stream that broke."""
        key = (session.slot.slot, session.slot.nonce)
        if key in self._newest:
            session.send(pb.ToWorker(receipt=self._newest[key]))
            self._pending.discard(key)
