"""Canonical weights: those of my own stages, and those of others on demand, checked against the final record."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict

import torch

from sentinel_market.errors import PeerGone, ProtocolError
from sentinel_market.models.init import init_flat
from sentinel_market.models.layout import EMBEDDING, LM_HEAD, flat_size, parameter
from sentinel_market.wire import relay_pb2 as pb
from sentinel_market.wire.tensors import decode, encode, encoded_hash
from verifier.context import SeatContext
from verifier.peers import Peers

KEPT_STEPS = 4
AHEAD_SECONDS = 10.0


class WeightsStore:
    """``hashes[step][stage]`` is what step ``step`` starts from, as the final record of the step before says."""

    def __init__(self, context: SeatContext, peers: Peers) -> None:
        self.context = context
        self._peers = peers
        self.hashes: dict[int, list[bytes]] = {}
        self._payloads: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._locks: dict[tuple[int, int], asyncio.Lock] = {}
        self._flats: OrderedDict[tuple[int, int], torch.Tensor] = OrderedDict()

    def genesis(self) -> None:
        """Weights of step 0, made from the job's seed by everybody alike."""
        c = self.context
        hashes = []
        for stage in range(c.num_stages):
            payload = encode(init_flat(c.config, stage, c.num_stages, c.spec.seed))
            hashes.append(encoded_hash(payload))
            self._payloads[0, stage] = payload
        self.hashes[0] = hashes

    def put(self, step: int, stage: int, payload: bytes) -> None:
        """Keep the weights that ``step`` starts from; old steps are dropped."""
        self._payloads[step, stage] = payload
        for key in [key for key in self._payloads if key[0] <= step - KEPT_STEPS]:
            del self._payloads[key]
            self._flats.pop(key, None)
            self._locks.pop(key, None)
        for old in [old for old in self.hashes if old <= step - KEPT_STEPS]:
            del self.hashes[old]

    def payload(self, step: int, stage: int) -> bytes | None:
        return self._payloads.get((step, stage))

    async def fetch(self, step: int, stage: int) -> bytes:
        """The payload, from here or from the stage's primary; its hash is that of the record. Raises PeerGone."""
        async with self._locks.setdefault((step, stage), asyncio.Lock()):
            found = self._payloads.get((step, stage))
            if found is not None:
                return found
            expected = self.hashes.get(step, [])
            if stage >= len(expected):
                raise PeerGone(f"the weights of stage {stage} for step {step} are not known here")
            primary = self.context.primary(stage).account
            query = pb.SeatMessage(weights_query=pb.WeightsQuery(stage=stage, step=step))
            answer = await self._peers.insist(primary, query)
            payload = answer.weights_answer.payload
            if encoded_hash(payload) != expected[stage]:
                raise ProtocolError("weights", f"seat {primary} served other weights than the record names")
            self.put(step, stage, payload)
            return payload

    async def serve(self, query: pb.WeightsQuery, ahead: int) -> pb.WeightsAnswer:
        """For another seat. ``ahead``: the step after this seat's; a faster seat may have finished the step whose
        signatures this one is still collecting, so for that one it waits. Raises ProtocolError("weights")."""
        until = time.monotonic() + AHEAD_SECONDS
        while (payload := self.payload(query.step, query.stage)) is None and query.step == ahead:
            if time.monotonic() > until:
                break
            await asyncio.sleep(0.005)
        if payload is None:
            raise ProtocolError("weights", f"weights of stage {query.stage} for step {query.step} are not kept here")
        return pb.WeightsAnswer(payload=payload)

    async def flat(self, step: int, stage: int) -> torch.Tensor:
        """fp32 [N]; shared, do not write."""
        key = (step, stage)
        found = self._flats.get(key)
        if found is None:
            size = flat_size(self.context.config, stage, self.context.num_stages)
            found = decode(await self.fetch(step, stage), shape=(size,), dtype=torch.float32)
            self._flats[key] = found
        return found

    async def embedding(self, step: int) -> torch.Tensor:
        """[V, D] of stage 0: its rows are what a screen treats as stage 0's input."""
        return self._view(await self.flat(step, 0), 0, EMBEDDING)

    async def head(self, step: int) -> torch.Tensor:
        """[V, D] of the last stage."""
        last = self.context.num_stages - 1
        return self._view(await self.flat(step, last), last, LM_HEAD)

    def _view(self, flat: torch.Tensor, stage: int, name: str) -> torch.Tensor:
        return parameter(flat, self.context.config, stage, self.context.num_stages, name)
