"""A recorded live run judged again: the same answers, replays and weights, and what the judge here makes of them held
against what the live seat made of them, in order (``verifier.recording``)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from sentinel_market.domain.shapes import FrameShapes
from sentinel_market.errors import ConfigError, ProtocolError
from sentinel_market.models.config import ModelConfig
from sentinel_market.models.layout import flat_size
from sentinel_market.models.stage import Stage
from sentinel_market.sim.difference import Comparer, Report
from sentinel_market.sim.hearing import Hearing, Wants
from sentinel_market.wire.tensors import all_finite
from verifier.check import Event, Frame, Policy, Screening, Tolerance, Verdict, VerdictKind, compare, compare_sketch
from verifier.check.audit import goes_straight_to_recompute, gradient_share_ppm, is_gradient_audited, owes_audit
from verifier.check.frame import BACKWARD, FORWARD
from verifier.evidence.files import MAX_STAGES, model_from_json, typed_from_json
from verifier.evidence.gradient import RunningSum, judge_sum
from verifier.evidence.recompute import Recomputed, recompute
from verifier.recording.pack import MAX_TENSOR_BYTES, VERSION, PackReader
from verifier.recording.traced import TracedEngine, verdict_told

SKETCH = (64,)
Line = dict[str, Any]


class Diverged(Exception):  # noqa: N818
    """The live seat did what the judge here would not have done."""


@dataclass(frozen=True)
class Content:
    """The tensors of one answer; None where it has none."""

    output: Tensor | None
    gradient: Tensor | None
    sketch: Tensor | None

    def agrees(self, other: Content | Recomputed, tolerance: Tolerance) -> bool:
        """Whether all that both have lies within the tolerance."""
        pairs = ((self.output, other.output), (self.gradient, other.gradient))
        for mine, theirs in pairs:
            if mine is not None and theirs is not None and not compare(mine, theirs, tolerance).agrees:
                return False
        if self.sketch is None or other.sketch is None:
            return True
        return compare_sketch(self.sketch, other.sketch, tolerance).agrees


@dataclass
class Pending:
    """An answer whose confirmation runs."""

    hearing: Hearing
    content: Content
    first_name: bytes
    audited: bool
    replay: Content | None = None
    replayer: int = -1
    events: list[list[object]] = field(default_factory=list)


@dataclass(frozen=True)
class Head:
    """By what the live seat judged, from a recording's first line."""

    job: int
    seat: int
    seed: int
    stages: int
    warmup_steps: int
    policy: Policy
    tolerance: Tolerance
    model: ModelConfig
    shapes: FrameShapes

    @classmethod
    def read(cls, line: Line) -> Head:
        """Raises KeyError, TypeError, ValueError, ProtocolError or ConfigError for what is none."""
        if line.get("in") != "head":
            raise ValueError("a recording begins with its head")
        if line.get("version") != VERSION:
            raise ValueError(f"version {line.get('version')!r:.40}; this program reads version {VERSION}")
        names = ("job", "seat", "seed", "stages", "warmup_steps", "batch")
        job, seat, seed, stages, warmup_steps, batch = (_count(line, name) for name in names)
        if not isinstance(line["policy"], dict) or not 1 <= stages <= MAX_STAGES or batch < 1:
            raise ValueError(f"{stages} stages, batch {batch}")
        model = model_from_json(line["model"])
        largest = max(flat_size(model, stage, stages) for stage in range(stages))
        if 4 * max(largest, batch * model.seq_len * model.dim) > MAX_TENSOR_BYTES:
            raise ValueError(f"tensors of more than {MAX_TENSOR_BYTES} bytes")
        shapes = FrameShapes(batch=batch, length=model.seq_len, dim=model.dim, largest_stage=largest)
        policy, tolerance = Policy.from_json(line["policy"]), typed_from_json(Tolerance, line["tolerance"])
        return cls(job, seat, seed, stages, warmup_steps, policy, tolerance, model, shapes)


def _count(line: Line, name: str) -> int:
    value = line[name]
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{name} is {value!r:.40}, no natural number")
    return value


class Rehearsal:
    """Build, ``run``."""

    def __init__(self, reader: PackReader) -> None:
        self._reader = reader
        self._comparer = Comparer()
        self._pending: dict[str, Pending] = {}
        self._screenings: dict[tuple[int, int], Screening] = {}
        self._due: set[tuple[int, int]] = set()
        self._modules: dict[int, Stage] = {}
        self._step = -1
        self._secret = bytes(32)
        self._takes: dict[str, Callable[[Line], None]] = {
            "step": self._begin,
            "answer": self._answer,
            "repeat": self._repeat,
            "confirm": self._confirm,
            "replay": self._replay,
            "replay lost": self._replay_lost,
            "recompute": self._recompute,
            "recompute lost": self._recompute_lost,
            "lost": self._lost,
            "gradients": self._gradients,
            "whole": self._whole,
            "charged": self._charged,
            "gradient accepted": self._gradient_accepted,
        }

    def run(self) -> Report:
        """Judge every line. ConfigError for a recording that is cut short or does not hold together."""
        began = time.perf_counter()
        lines = self._reader.lines()
        head = next(lines)
        self._guarded(lambda: self._open(head))
        steps, ended = 0, ""
        for line in lines:
            if "out" in line:
                if not self._comparer.recorded(self._reader.number, line):
                    raise self._reader.broken("more verdicts than anything leads to")
                continue
            self._comparer.settle()
            if line.get("in") == "end":
                ended = str(line.get("why"))[:40]
                break
            steps += line.get("in") == "step"
            self._take(line)
        return self._comparer.report(
            steps=steps, ended=ended, seconds=time.perf_counter() - began, nbytes=self._reader.nbytes
        )

    def _take(self, line: Line) -> None:
        take = self._takes.get(str(line.get("in")))
        if take is None:
            raise self._reader.broken(f"nothing is known of {line.get('in')!r:.40}")
        self._comparer.begin(self._reader.number, self._step, line)
        try:
            self._guarded(lambda: take(line))
        except Diverged as error:
            self._comparer.diverged(str(error))

    def _guarded(self, read: Callable[[], None]) -> None:
        """A stranger's line: what it makes go wrong is its fault."""
        try:
            read()
        except ConfigError as error:
            if str(error).startswith(str(self._reader.directory)):
                raise
            raise self._reader.broken(str(error)[:300]) from None
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, ProtocolError) as error:
            raise self._reader.broken(f"it does not hold together: {error!r}"[:300]) from None

    def _open(self, line: Line) -> None:
        self.head = head = Head.read(line)
        self._engine = TracedEngine(head.policy, head.stages, head.seed)
        if line["engine"] is not None:
            size = _count(line, "engine_bytes")
            blob = self._reader.tensor(line["engine"], (size,), torch.uint8)
            try:
                state = safetensors.torch.load(blob.numpy().tobytes())
            except safetensors.SafetensorError as error:
                raise ValueError(f"the engine's state cannot be read: {error}") from None
            self._engine = TracedEngine.from_state_dict(head.policy, state)
        self._engine.tell = self._comparer.judged

    # ---- reading

    def _where(self, line: Line) -> tuple[int, int]:
        stage, slot = _count(line, "stage"), _count(line, "slot")
        if stage >= self.head.stages:
            raise ValueError(f"stage {stage} of {self.head.stages}")
        return stage, slot

    def _maybe(self, digest: object, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor | None:
        return None if digest is None else self._reader.tensor(digest, shape, dtype)

    def _output_shape(self, stage: int) -> tuple[int, ...]:
        shapes = self.head.shapes
        return shapes.tokens if stage == self.head.stages - 1 else shapes.activation

    def _size(self, stage: int) -> int:
        return flat_size(self.head.model, stage, self.head.stages)

    def _given(self, stage: int, digest: object) -> Tensor:
        """A stage's input: tokens at the first."""
        shapes = self.head.shapes
        if stage == 0:
            return self._reader.tensor(digest, shapes.tokens, torch.int64)
        return self._reader.tensor(digest, shapes.activation)

    def _incoming(self, stage: int, digest: object) -> Tensor:
        """A stage's incoming gradient: targets at the last."""
        shapes = self.head.shapes
        if stage == self.head.stages - 1:
            return self._reader.tensor(digest, shapes.tokens, torch.int64)
        return self._reader.tensor(digest, shapes.activation)

    def _module(self, stage: int, weights: Tensor) -> Stage:
        module = self._modules.get(stage)
        if module is None:
            module = self._modules[stage] = Stage(self.head.model, stage, self.head.stages)
        module.load_flat(weights)
        return module

    @property
    def _in_warmup(self) -> bool:
        return self._step < self.head.warmup_steps

    def _convict(self, slot: int, _reason: str) -> None:
        self._engine.convict(slot)

    # ---- frames

    def _begin(self, line: Line) -> None:
        self._step, self._secret = _count(line, "step"), bytes.fromhex(line["secret"])
        self._engine.begin_step(self._step)

    def _answer(self, line: Line) -> None:
        stage, slot = self._where(line)
        frames = [self._frame(one, stage, slot) for one in line["frames"][:2]]
        sent = {frame.direction: frame.output for frame in frames}
        content = Content(sent.get(FORWARD), sent.get(BACKWARD), self._maybe(line["sketch"], SKETCH))
        names = [bytes.fromhex(name) for name in line["names"][:2]]
        directions = (FORWARD, BACKWARD) if len(names) > 1 else tuple(frame.direction for frame in frames)
        signed = directions or (BACKWARD,)  # the first stage's gradient is signed, and not a frame
        hearing = Hearing(self._engine, slot, stage, directions, self._convict)
        hearing.screen(frames, _count(line, "microbatch"), content.sketch)
        audited = owes_audit(
            self.head.policy,
            self._secret,
            list(zip(signed, names, strict=True)),
            stage=stage,
            num_stages=self.head.stages,
            in_warmup=self._in_warmup or self._engine.has_moved(stage),
        )
        if hearing.suspect is None and not audited and not hearing.watched:
            hearing.accept()
        elif not self.head.policy.confirms:
            self._without_confirmation(hearing, content, seconded=bool(_count(line, "seconded")))
        else:
            self._pending[line["case"]] = Pending(hearing, content, names[0], audited)

    def _frame(self, one: Line, stage: int, slot: int) -> Frame:
        direction = one["direction"]
        if direction not in (FORWARD, BACKWARD):
            raise ValueError(f"direction {direction!r:.40}")
        activation = self.head.shapes.activation
        return Frame(
            output=self._maybe(one["output"], self._output_shape(stage) if direction == FORWARD else activation),
            input=self._maybe(one["input"], activation),
            direction=direction,
            stage=stage,
            num_stages=self.head.stages,
            step=self._step,
            worker=slot,
        )

    def _without_confirmation(self, hearing: Hearing, content: Content, *, seconded: bool) -> None:
        """Policies that ask nobody: ``paper`` lets a suspect go on as tainted, ``screen`` the third one flagged."""
        tensors = (content.output, content.gradient, content.sketch)
        if not all(all_finite(one) for one in tensors if one is not None):
            self._engine.inconclusive(hearing.slot, hearing.stage)
        elif self.head.policy.name == "paper":
            self._engine.substitute(hearing.stage)
        elif seconded and self.head.policy.screens:
            hearing.accept()

    def _repeat(self, line: Line) -> None:
        stage, slot = self._where(line)
        output = self._reader.tensor(line["output"], self.head.shapes.activation)
        found = compare(output, self._reader.tensor(line["known"], self.head.shapes.activation), self.head.tolerance)
        if found.agrees or not self.head.policy.confirms:
            return
        hearing = Hearing(self._engine, slot, stage, (FORWARD,), self._convict)
        hearing.accuse(FORWARD, Verdict(VerdictKind.SUSPECT, found.text()))
        name = bytes.fromhex(line["names"][0])
        self._pending[line["case"]] = Pending(hearing, Content(output, None, None), name, audited=False)

    # ---- confirmations

    def _case(self, line: Line, *wanted: Wants) -> Pending:
        pending = self._pending.get(line["case"])
        if pending is None:
            raise Diverged("the simulator had its verdict already, or confirms nothing here")
        if wanted and (not pending.events or pending.hearing.wants not in wanted):
            raise Diverged("the simulator would have asked somebody else")
        return pending

    def _confirm(self, line: Line) -> None:
        pending = self._case(line)
        spent, others = bool(_count(line, "spent")), _count(line, "others")
        straight = spent or goes_straight_to_recompute(self._secret, pending.first_name)
        pending.hearing.open(audited=pending.audited, straight=straight, others=others)
        pending.events = [[event.value, None] for event in pending.hearing.events]

    def _heard(self, pending: Pending, event: Event, slot: int | None = None, lost: int = -1) -> None:
        pending.events.append([event.value, slot])
        pending.hearing.heard(event, lost if slot is None else slot)

    def _replay(self, line: Line) -> None:
        pending = self._case(line, Wants.REPLAY)
        pending.replayer = _count(line, "slot")
        pending.replay = Content(
            self._maybe(line["output"], self._output_shape(pending.hearing.stage)),
            self._maybe(line["gradient"], self.head.shapes.activation),
            self._maybe(line["sketch"], SKETCH),
        )
        agrees = pending.content.agrees(pending.replay, self.head.tolerance)
        self._heard(pending, Event.REPLAY_AGREES if agrees else Event.REPLAY_DISAGREES, pending.replayer)
        self._conclude(line["case"], pending)

    def _replay_lost(self, line: Line) -> None:
        self._heard(self._case(line, Wants.REPLAY), Event.REPLAY_LOST, lost=_count(line, "slot"))

    def _recompute_lost(self, line: Line) -> None:
        pending = self._case(line, Wants.RECOMPUTE)
        self._heard(pending, Event.RECOMPUTE_IMPOSSIBLE)
        self._conclude(line["case"], pending)

    def _recompute(self, line: Line) -> None:
        pending = self._case(line, Wants.RECOMPUTE)
        stage = pending.hearing.stage
        reference = recompute(
            self._module(stage, self._reader.tensor(line["weights"], (self._size(stage),))),
            job_id=self.head.job,
            step=self._step,
            input=self._given(stage, line["input"]),
            incoming=None if line["incoming"] is None else self._incoming(stage, line["incoming"]),
            backward=line["incoming"] is not None,
        )
        if reference.at_edge(self.head.tolerance):
            self._heard(pending, Event.RECOMPUTE_EDGE)
        else:
            agrees = pending.content.agrees(reference, self.head.tolerance)
            self._heard(pending, Event.RECOMPUTE_AGREES if agrees else Event.RECOMPUTE_DISAGREES)
        if pending.hearing.wants is Wants.REPLAYER:
            assert pending.replay is not None
            upheld = pending.replay.agrees(reference, self.head.tolerance)
            self._heard(pending, Event.REPLAY_UPHELD if upheld else Event.REPLAY_REFUTED, pending.replayer)
        self._conclude(line["case"], pending)

    def _conclude(self, case: str, pending: Pending) -> None:
        if pending.hearing.wants is not Wants.NOTHING:
            return
        del self._pending[case]
        final = pending.hearing.final
        assert final.verdict is not None
        told = {"case": case, "kind": final.verdict.value, "reason": final.reason, "history": pending.events}
        self._comparer.judged({"out": "final", **told})
        pending.hearing.close()

    def _lost(self, line: Line) -> None:
        stage, slot = self._where(line)
        self._engine.inconclusive(slot, stage)

    # ---- stage gradients

    def _gradients(self, line: Line) -> None:
        stage, rows = _count(line, "stage"), {_count(one, "slot"): one for one in line["sums"]}
        if stage >= self.head.stages or not 0 < len(rows) == len(line["sums"]):
            raise ValueError(f"each replica's sum of stage {stage} once")
        shape = (self._size(stage),)
        sums = {slot: (self._reader.tensor(one["sum"], shape), _count(one, "count")) for slot, one in rows.items()}
        screenings = self._engine.screen_gradients(stage, sums)
        share = gradient_share_ppm(self.head.policy, in_warmup=self._in_warmup)
        for slot, one in rows.items():
            self._screenings[stage, slot] = screening = screenings[slot]
            suspect = screening.verdict.kind is not VerdictKind.ACCEPT or bool(_count(one, "problem"))
            drawn = is_gradient_audited(self._secret, bytes.fromhex(one["digest"]), share)
            self._due.discard((stage, slot))
            if (suspect or drawn) and not _count(one, "cleared"):
                self._due.add((stage, slot))

    def _whole(self, line: Line) -> None:
        where = stage, slot = self._where(line)
        if where not in self._due:
            raise Diverged("the simulator would not have recomputed this sum")
        self._due.discard(where)
        if line["backwards"] is None:
            said = line["said"]
            verdict = Verdict(VerdictKind(said["kind"]), str(said["reason"]))
        else:
            shape = (self._size(stage),)
            total = RunningSum(shape[0])
            module = self._module(stage, self._reader.tensor(line["weights"], shape))
            for given, incoming in line["backwards"]:
                total.add(module, self._given(stage, given), self._incoming(stage, incoming))
            module.zero_grad_flat()
            verdict, _ = judge_sum(self._reader.tensor(line["submitted"], shape), total, self.head.tolerance)
        told = verdict_told(verdict)
        self._comparer.judged(
            {"out": "whole", "stage": stage, "slot": slot, "kind": told["kind"], "reason": told["reason"]}
        )

    def _charged(self, line: Line) -> None:
        self._engine.convict(_count(line, "slot"))

    def _gradient_accepted(self, line: Line) -> None:
        where = stage, slot = self._where(line)
        if where not in self._screenings:
            raise ValueError("a sum that was never screened")
        aggregate = self._reader.tensor(line["aggregate"], (self._size(stage),))
        self._engine.accept_gradient(stage, slot, self._screenings[where], aggregate)
        if where in self._due:
            raise Diverged("the simulator would have recomputed this sum first")


def rehearse(directory: Path) -> Report:
    """Judge the recording in ``directory`` again, on one thread. ConfigError where it is no whole recording."""
    torch.set_num_threads(1)
    reader = PackReader(directory)
    try:
        return Rehearsal(reader).run()
    finally:
        reader.close()
