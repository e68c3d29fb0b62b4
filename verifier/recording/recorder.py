"""What a seat calls to be recorded. ``Recorder`` records nothing; ``DirectoryRecorder`` writes a recording.

Lines ``{"in": ...}`` are what came from outside (answers, replays, recomputes), lines ``{"out": ...}`` what was
concluded from the line before: verdicts, bans, and what the engine was told to remember (``traced``). All calls come
from the event loop's thread, so the order of lines is the order in which it happened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors.torch
import torch

from verifier.check.engine import Engine
from verifier.check.frame import Frame
from verifier.check.verdict import Verdict
from verifier.recording.pack import VERSION, PackFull, PackWriter
from verifier.recording.traced import Told, TracedEngine

if TYPE_CHECKING:
    from verifier.answers import Answer
    from verifier.context import SeatContext
    from verifier.evidence.history import Happened

log = logging.getLogger("verifier")

DEFAULT_MAX_BYTES = 4_096_000_000
_Tensor = torch.Tensor | bytes | None


@dataclass(frozen=True, kw_only=True)
class GivenSum:
    """A replica's ``flat`` [N] sum of ``count`` gradients. ``digest``: of what was signed; ``problem``: how the sum
    contradicts its sketches; ``cleared``: recomputed before in this step."""

    slot: int
    count: int
    flat: torch.Tensor
    digest: bytes
    problem: str
    cleared: bool


class Recorder:
    """Records nothing: the default of a seat."""

    summary = ""
    """For people, once it is closed: what was recorded."""

    def engine(self, context: SeatContext) -> Engine:
        """A new engine for the seat's driver."""
        return Engine(context.policy, context.num_stages, context.spec.seed)

    def step(self, step: int, secret: bytes) -> None:
        """Before the engine begins a step. ``secret``: what the draws of this step go by."""

    def answer(self, microbatch: int, answer: Answer, frames: Sequence[Frame], *, seconded: bool) -> None:
        """A worker's answer is about to be judged."""

    def repeat(self, microbatch: int, answer: Answer, known: _Tensor) -> None:
        """A forward was done again and is about to be held against ``known``, the one that was accepted."""

    def confirm(self, answer: Answer, others: int, *, spent: bool) -> None:
        """A confirmation begins. ``others``: live replicas that could replay; ``spent``: no replays are left."""

    def replay(self, answer: Answer, replay: Answer) -> None:
        """Another replica replayed it."""

    def replay_lost(self, answer: Answer, slot: int) -> None:
        """The replica at ``slot`` did not."""

    def recompute(self, answer: Answer, given: _Tensor, incoming: _Tensor, weights: bytes | None) -> None:
        """The driver computed it itself. ``incoming`` None: a forward alone. ``weights`` None: it could not."""

    def final(self, answer: Answer, verdict: Verdict, history: Sequence[Happened]) -> None:
        """A confirmation ends, before the engine hears of it."""

    def lost(self, slot: int, stage: int) -> None:
        """A unit of work never came back."""

    def gradients(self, stage: int, sums: Sequence[GivenSum]) -> None:
        """The sums of all replicas of a stage are about to be screened."""

    def whole(
        self,
        where: tuple[int, int],
        submitted: torch.Tensor,
        weights: torch.Tensor,
        backwards: Sequence[tuple[torch.Tensor, torch.Tensor]] | None,
        verdict: Verdict,
    ) -> None:
        """A stage's sum was recomputed whole. ``backwards``: (input, incoming) of each; None where they are not at
        hand, so that the verdict has to be taken as it is."""

    def gradient_accepted(self, where: tuple[int, int], aggregate: torch.Tensor) -> None:
        """A sum is in the ``aggregate`` [N], and is about to be folded into its baseline."""

    def charged(self, slot: int) -> None:
        """Something outside the driver's own confirmations convicts a worker (a quorum, say)."""

    def close(self) -> None:
        """Nothing follows."""


class DirectoryRecorder(Recorder):
    """Writes into ``directory``. It ends early, at the end of a whole step, and never stops the seat, where the disk is
    full or ``max_bytes`` are reached."""

    def __init__(self, directory: Path, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        """ConfigError where ``directory`` cannot be written, or holds something."""
        self.directory = directory
        self._pack: PackWriter | None = PackWriter(directory, max_bytes)
        self._engine: TracedEngine | None = None
        self._context: SeatContext | None = None
        self._steps = 0

    # ---- writing

    def _tell(self, line: Told) -> None:
        self._write(lambda pack: pack.line(line))

    def _write(self, write: Callable[[PackWriter], None]) -> None:
        if self._pack is None:
            return
        try:
            write(self._pack)
        except PackFull:
            self._end("limit", "its limit is reached", cut=True)
        except OSError as error:
            self._end("error", error.strerror or str(error), cut=True)

    def _end(self, why: str, reason: str = "", *, cut: bool = False) -> None:
        pack, self._pack = self._pack, None
        if pack is None:
            return
        if cut:
            self._steps = max(0, self._steps - 1)
            log.error("the recording %s ends after %d whole steps: %s", self.directory, self._steps, reason)
        try:
            if cut:
                pack.cut()
            if self._steps == 0 and not cut:
                pack.discard()
                return
            pack.end({"in": "end", "why": why, "steps": self._steps})
            pack.close()
        except OSError as error:
            log.error("the recording %s has no last line: %s", self.directory, error.strerror or error)
            reason = "it is cut short"
        self.summary = f"recorded {self._steps} steps, {pack.nbytes / 1e6:.1f} MB, in {self.directory}" + (
            f"; it ends there: {reason}" if reason else ""
        )

    def _take(self, kind: str, fields: Told, **tensors: _Tensor) -> None:
        """An ``in`` line whose ``tensors`` are kept under their digests."""

        def write(pack: PackWriter) -> None:
            kept = {name: None if one is None else pack.tensor(one) for name, one in tensors.items()}
            pack.line({"in": kind, **fields, **kept})

        self._write(write)

    # ---- what happened

    def engine(self, context: SeatContext) -> Engine:
        self._context = context
        self._engine = TracedEngine(context.policy, context.num_stages, context.spec.seed)
        return self._engine

    def _head(self, engine: TracedEngine, c: SeatContext) -> None:
        """Who judged, by what; and the engine's state, should it know something already."""
        state = safetensors.torch.save(engine.state_dict())
        fresh = safetensors.torch.save(Engine(c.policy, c.num_stages, c.spec.seed).state_dict())
        blob = None if state == fresh else torch.frombuffer(bytearray(state), dtype=torch.uint8)
        self._take(
            "head",
            {
                "version": VERSION,
                "job": c.job_id,
                "seat": c.me,
                "seed": c.spec.seed,
                "stages": c.num_stages,
                "batch": c.spec.training.microbatch_size,
                "warmup_steps": c.spec.verification.warmup_steps,
                "policy": c.policy.to_json(),
                "tolerance": c.tolerance.to_json(),
                "model": {k: repr(v) if isinstance(v, float) else v for k, v in asdict(c.config).items()},
                "engine_bytes": 0 if blob is None else blob.numel(),
            },
            engine=blob,
        )

    def step(self, step: int, secret: bytes) -> None:
        if self._pack is None:
            return
        if self._steps == 0:
            assert self._engine is not None and self._context is not None, "a driver asks for its engine first"
            self._head(self._engine, self._context)
            self._engine.tell = self._tell
        if self._pack is not None:
            self._pack.keep()
        self._steps += 1
        self._take("step", {"step": step, "secret": secret.hex()})

    def answer(self, microbatch: int, answer: Answer, frames: Sequence[Frame], *, seconded: bool) -> None:
        def write(pack: PackWriter) -> None:
            shown = [
                {
                    "direction": frame.direction,
                    "output": None if frame.output is None else pack.tensor(frame.output),
                    "input": None if frame.input is None else pack.tensor(frame.input),
                }
                for frame in frames
            ]
            sketch = None if answer.sketch is None else pack.tensor(answer.sketch)
            fields = {**_named(microbatch, answer), "frames": shown, "sketch": sketch, "seconded": int(seconded)}
            pack.line({"in": "answer", **fields})

        self._write(write)

    def repeat(self, microbatch: int, answer: Answer, known: _Tensor) -> None:
        self._take("repeat", _named(microbatch, answer), output=answer.output, known=known)

    def confirm(self, answer: Answer, others: int, *, spent: bool) -> None:
        self._take("confirm", {"case": _case(answer), "others": others, "spent": int(spent)})

    def replay(self, answer: Answer, replay: Answer) -> None:
        self._take(
            "replay",
            {"case": _case(answer), "slot": replay.session.slot.slot},
            output=replay.output,
            gradient=replay.gradient,
            sketch=replay.sketch,
        )

    def replay_lost(self, answer: Answer, slot: int) -> None:
        self._take("replay lost", {"case": _case(answer), "slot": slot})

    def recompute(self, answer: Answer, given: _Tensor, incoming: _Tensor, weights: bytes | None) -> None:
        if weights is None:
            self._take("recompute lost", {"case": _case(answer)})
        else:
            self._take("recompute", {"case": _case(answer)}, input=given, incoming=incoming, weights=weights)

    def final(self, answer: Answer, verdict: Verdict, history: Sequence[Happened]) -> None:
        happened = [
            [one.event.value, one.slot, *((c.criterion, c.error_e6, c.limit_e6) if (c := one.comparison) else ())]
            for one in history
        ]
        self._tell(
            {
                "out": "final",
                "case": _case(answer),
                "kind": verdict.kind.value,
                "reason": verdict.reason,
                "history": happened,
            }
        )

    def lost(self, slot: int, stage: int) -> None:
        self._take("lost", {"slot": slot, "stage": stage})

    def gradients(self, stage: int, sums: Sequence[GivenSum]) -> None:
        def write(pack: PackWriter) -> None:
            given = [
                {
                    "slot": one.slot,
                    "count": one.count,
                    "digest": one.digest.hex(),
                    "problem": int(bool(one.problem)),
                    "cleared": int(one.cleared),
                    "sum": pack.tensor(one.flat),
                }
                for one in sums
            ]
            pack.line({"in": "gradients", "stage": stage, "sums": given})

        self._write(write)

    def whole(
        self,
        where: tuple[int, int],
        submitted: torch.Tensor,
        weights: torch.Tensor,
        backwards: Sequence[tuple[torch.Tensor, torch.Tensor]] | None,
        verdict: Verdict,
    ) -> None:
        said: Told = {"kind": verdict.kind.value, "reason": verdict.reason}

        def write(pack: PackWriter) -> None:
            fields: Told = {**_at(where), "said": said, "submitted": pack.tensor(submitted)}
            if backwards is None:
                fields |= {"weights": None, "backwards": None}
            else:
                kept = [[pack.tensor(given), pack.tensor(incoming)] for given, incoming in backwards]
                fields |= {"weights": pack.tensor(weights), "backwards": kept}
            pack.line({"in": "whole", **fields})
            pack.line({"out": "whole", **_at(where), **said})

        self._write(write)

    def gradient_accepted(self, where: tuple[int, int], aggregate: torch.Tensor) -> None:
        self._take("gradient accepted", _at(where), aggregate=aggregate)

    def charged(self, slot: int) -> None:
        self._take("charged", {"slot": slot})

    def close(self) -> None:
        self._end("closed")


def _case(answer: Answer) -> str:
    """No two answers have the same first commitment."""
    return answer.commitments[0].digest.hex()


def _named(microbatch: int, answer: Answer) -> Told:
    return {
        "case": _case(answer),
        "names": [one.digest.hex() for one in answer.commitments],
        "stage": answer.stage,
        "slot": answer.session.slot.slot,
        "microbatch": microbatch,
    }


def _at(where: tuple[int, int]) -> Told:
    return {"stage": where[0], "slot": where[1]}
