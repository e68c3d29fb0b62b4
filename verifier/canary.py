"""Canaries: accusations of frames that are right, whose answers the asker knows. They find seats that sign unread.

A canary must look like any other accusation. So it is one: made of a frame that the driver's recompute upheld, by the
code that accuses, with one thing changed. In place of the recompute it claims a pass through weights that are
slightly off. Whatever can be seen without computing the frame holds for that as well as for the truth: equal tokens
give equal rows, the sketch is that of the gradient, all numbers in it agree.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace

import torch

from sentinel_market.errors import SentinelError
from verifier.answers import Offence, Upheld, farthest, refuted_by
from verifier.check.confirm import Event, decide
from verifier.context import SeatContext
from verifier.cosign import is_clear
from verifier.docket import Docket
from verifier.recompute import Recomputed, Recomputer
from verifier.weights import WeightsStore

log = logging.getLogger("verifier")

CANARY_SHARE_PPM = 20_000
"""Of frames that a recompute upheld: at most one audit in 200 while replays clear three quarters. A canary costs n
recomputes at n seats; with three seats and 1 % audits that is 0.015 % of all frames."""
WEAKEST, STRONGEST = 0.003, 0.03
"""How far, relative, the weights of the falsified pass are off: beyond every tolerance, and no more than small."""
_REPLAYED = {Event.REPLAY_AGREES, Event.REPLAY_DISAGREES, Event.REPLAY_UPHELD, Event.REPLAY_REFUTED}


class Canaries:
    """One a driver, and one canary at a time: in earnest a driver accuses a worker only once."""

    def __init__(
        self,
        context: SeatContext,
        weights: WeightsStore,
        recomputer: Recomputer,
        probe: Callable[[Offence], Awaitable[None]],
        docket: Docket,
    ) -> None:
        """``probe`` asks the others."""
        self.context = context
        self._weights = weights
        self._recomputer = recomputer
        self._probe = probe
        self._docket = docket
        self._random = secrets.SystemRandom()
        self._open = False

    def consider(self, upheld: Upheld) -> None:
        """Hear of an upheld frame, and let it be one if the draw says so. The draw is from randomness that nobody ever
        learns: the secret of the audits is revealed at the end of the step."""
        if self._open or not self.context.policy.confirms or self._docket.barred(upheld.answer.session.slot.slot):
            return
        if self._random.randrange(1_000_000) < CANARY_SHARE_PPM:
            self._open = True
            self._docket.hold(self._ask(upheld))

    async def _ask(self, upheld: Upheld) -> None:
        """What goes wrong is logged: nothing depends on a canary."""
        try:
            canary = await self.make(upheld)
            if canary is not None:
                await self._probe(canary)
        except SentinelError as error:
            log.warning("a canary in step %d came to nothing: %s", upheld.step, error)
        finally:
            self._open = False

    async def make(self, upheld: Upheld) -> Offence | None:
        """The offence that ``upheld`` would be, were the falsified recompute true. None where the frame does not serve:
        a replay vouched for it (the replica's signature cannot be falsified), or it is not right beyond dispute."""
        answer, last = upheld.answer, upheld.history[-1]
        if last.event is not Event.RECOMPUTE_AGREES or _REPLAYED & {one.event for one in upheld.history}:
            return None
        if last.comparison is None or not is_clear([last.comparison]):
            return None
        forged = await self._forge(upheld)
        found = answer.against(forged, self.context.tolerance)
        refuted = refuted_by(found)
        if refuted is None or forged.at_edge(self.context.tolerance):
            return None
        history = (*upheld.history[:-1], replace(last, event=Event.RECOMPUTE_DISAGREES, comparison=farthest(found)))
        signed, comparison = refuted
        return Offence(
            answer,
            signed,
            upheld.held,
            forged,
            comparison,
            upheld.screening,
            decide([one.event for one in history]).reason,
            upheld.step,
            upheld.screened.get(signed.message.direction),
            history,
        )

    async def _forge(self, upheld: Upheld) -> Recomputed:
        """The same pass from weights that are each a little off."""
        answer = upheld.answer
        strength = WEAKEST * (STRONGEST / WEAKEST) ** self._random.random()
        flat = await self._weights.flat(upheld.step, answer.stage)
        noise = torch.randn(flat.shape, generator=torch.Generator().manual_seed(secrets.randbits(63)))
        x, incoming = upheld.held.given(answer.stage, answer.operation, self.context.shapes)
        return await self._recomputer.run(upheld.step, answer.stage, x, incoming, flat * (1 + strength * noise))
