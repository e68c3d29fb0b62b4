"""What a stranger's bytes may do to the codec and to the check: each target reads a program from bytes, runs it, and
raises only if something holds that must not. Seeds are programs that reach far already."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

import numpy as np
import torch

from sentinel_market.errors import ProtocolError
from sentinel_market.wire.parts import Assembler
from sentinel_market.wire.relay_pb2 import Part
from sentinel_market.wire.tensors import HEADER_BYTES, all_finite, decode, encode, encoded_hash, tensor_hash
from verifier.check.check import Screening
from verifier.check.engine import Engine
from verifier.check.frame import Frame
from verifier.check.policy import Policy
from verifier.check.verdict import VerdictKind

NUM_STAGES, T, D, N = 3, 3, 4, 12
"""Stages, tokens, width and the length of a stage's gradient in the make-believe job."""
CODES = {"size", "header", "dtype", "shape"}
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
)
NUMBERS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e-30, 1e19, 3.4e38, -3.4e38, math.nan, math.inf, -math.inf)
POLICIES = ("screen+confirm+audit", "screen", "paper", "none", "paper:no-ema")


class Reader:
    """Small numbers from bytes; zeros once they are used up."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    @property
    def left(self) -> int:
        return max(0, len(self.data) - self.at)

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1] if self.at <= len(self.data) else 0

    def below(self, limit: int) -> int:
        return self.byte() % limit

    def take(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at].ljust(count, b"\0")


def tensor(reader: Reader, due: tuple[int, ...]) -> torch.Tensor | None:
    """Absent, of the shape that is due or of another, of any type, content and layout."""
    form = reader.byte()
    if form == 255:
        return None
    shape = due if form % 4 else tuple(reader.below(5) for _ in range(reader.below(5)))
    dtype, content, layout = DTYPES[reader.below(32) % len(DTYPES)], reader.below(6), reader.below(6)
    count = math.prod(shape)
    if content == 0:
        values = torch.full((count,), NUMBERS[reader.below(len(NUMBERS))], dtype=torch.float64)
    elif content == 1:  # raw bits: every float32 there is
        raw = np.frombuffer(reader.take(4 * count), dtype=np.float32)
        values = torch.from_numpy(np.where(np.isnan(raw), np.nan, raw).astype(np.float64))
    else:
        values = torch.randn(count, generator=torch.Generator().manual_seed(reader.byte())).double()
        if content == 3 and count:
            values[reader.byte() % count] = NUMBERS[reader.below(len(NUMBERS))]
        elif content == 4:
            values *= 10.0 ** (reader.below(90) - 45)
        elif content == 5:
            values[::2] = NUMBERS[reader.below(len(NUMBERS))]
    if not dtype.is_floating_point and not dtype.is_complex:
        values = values.nan_to_num(0, 1, -1).clamp(-9, 9)  # what else a cast makes of it depends on the machine
    found = values.to(dtype).reshape(shape)
    if layout == 1 and found.dim() >= 2:
        found = found.transpose(0, -1).contiguous().transpose(0, -1)
    elif layout == 2 and found.dim():
        found = found.repeat_interleave(2, dim=-1)[..., ::2]
    elif layout == 3 and found.numel() and found.dim():
        found = found.reshape(-1)[:1].expand(shape)
    elif layout == 4 and dtype.is_floating_point:
        found = found.clone().requires_grad_(True)
    elif layout == 5 and found.dim():
        found = torch.cat((found[:1], found))[1:]  # begins inside its storage
    return found


def _healthy(engine: Engine) -> None:
    """Nothing that is not a number has come into what later frames are held against."""
    for baseline in engine.baselines.values():
        for array in (baseline.mean, baseline.change):
            assert array is None or bool(np.isfinite(array).all()), "a moving average is not finite"
        assert not np.isinf(baseline.window).any(), "a window holds Inf"
        assert baseline.window.shape[1] == len(baseline.metrics)
    for one in engine.gradients:
        assert one.mean is None or bool(np.isfinite(one.mean).all()), "a gradient's average is not finite"
        assert not np.isinf(one.window).any(), "a gradient's window holds Inf"


def _sound(screening: Screening, *sent: torch.Tensor | None) -> None:
    verdict = screening.verdict
    assert verdict.reason, "a verdict without a reason"
    assert verdict.kind is not VerdictKind.VIOLATION, "only a recompute convicts"
    for score in verdict.scores:
        assert all(type(v) is int for v in score[1:] if v is not None), score
    if verdict.kind is VerdictKind.ACCEPT:
        assert all(one is None or all_finite(one.detach()) for one in sent), "accepted, and not finite"


def frames(data: bytes) -> None:
    """Frames of any kind at any boundary; each is screened, and some that were not accepted are folded in all the same,
    as after a recompute that cleared them. Then an honest frame gets a verdict, and the state comes back from bytes."""
    reader = Reader(data)
    engine = Engine(Policy.named(POLICIES[reader.below(len(POLICIES))], warmup_frames=6, early_frames=2), NUM_STAGES, 1)
    for number in range(8):
        if not reader.left:
            break
        what = reader.byte()
        stage, direction, honest = what % NUM_STAGES, what // 3 % 2, what & 64
        loss = stage == NUM_STAGES - 1 and direction == 0
        due = (1 + what // 6 % 3, T) if loss else (1 + what // 6 % 3, T, D)
        if honest:
            output: torch.Tensor | None = torch.rand(due, generator=torch.Generator().manual_seed(number)) + 0.5
            given = None if loss or output is None else output + 0.3
        else:
            output, given = tensor(reader, due), tensor(reader, due)
        frame = Frame(
            output=output,
            input=given,
            direction=direction,
            stage=stage,
            num_stages=NUM_STAGES,
            step=50 + number,
            worker=stage * 2 + number % 2,
        )
        if what & 128:
            engine.begin_step(number)
        found = engine.screen(frame, number)
        _sound(found, output)
        again = engine.screen(frame, number)
        assert again.verdict == found.verdict, "judged twice, differently"
        engine.note(frame, found)
        if found.verdict.kind is VerdictKind.ACCEPT or reader.byte() & 1:
            engine.cleared_by_recompute(stage, direction, found)
            engine.accept(stage, direction, found)
        _healthy(engine)
    state = engine.state_dict()
    back = Engine.from_state_dict(engine.policy, state).state_dict()
    assert all(torch.equal(one.nan_to_num(), back[name].nan_to_num()) for name, one in state.items())


def gradients(data: bytes) -> None:
    """Sums of up to four replicas of a stage, over some steps."""
    reader = Reader(data)
    engine = Engine(Policy(warmup_frames=6, early_frames=2), 1, 1)
    for step in range(4):
        if not reader.left:
            break
        engine.begin_step(step)
        sums = {}
        for slot in range(reader.below(5)):
            one = tensor(reader, (N,))
            if one is not None:
                sums[slot] = (one, reader.below(4))
        found = engine.screen_gradients(0, sums)
        assert list(found) == list(sums)
        aggregate = tensor(reader, (N,))
        for slot, screening in found.items():
            _sound(screening, sums[slot][0])
            if aggregate is not None and (screening.verdict.kind is VerdictKind.ACCEPT or reader.byte() & 1):
                engine.accept_gradient(0, slot, screening, aggregate)
        _healthy(engine)


def _header(code: int, sizes: tuple[int, ...], body: bytes = b"") -> bytes:
    return struct.pack("<4sBBH7Q", b"SNT1", code, len(sizes), 0, *sizes, *[0] * (7 - len(sizes))) + body


def shapes(data: bytes) -> None:
    """A well-formed header of any sizes, 0 and powers of two and their neighbours, with as many bytes as they ask for
    where that is little; then as ``codec``."""
    reader = Reader(data)
    code, sizes = reader.below(8), []
    for _ in range(reader.below(8)):
        what = reader.byte()
        sizes.append(0 if what < 16 else max(0, (1 << what % 64) + what // 64 - 2))
    count = math.prod(sizes)
    body = reader.take(min(count, 64) * (0, 4, 2, 2, 8, 4, 1, 1)[code])
    codec(_header(code, tuple(sizes), body))


def codec(data: bytes) -> None:
    """Bytes as a frame: refused with a code, or a tensor that is these bytes again."""
    try:
        found = decode(data)
    except ProtocolError as error:
        assert error.code in CODES and str(error), error
        return
    assert encode(found) == data, "decoded, and encoded to other bytes"
    assert tensor_hash(found) == encoded_hash(data)
    assert decode(data, shape=found.shape, dtype=found.dtype).shape == found.shape
    for shape, dtype in (((*found.shape, 2), found.dtype), (found.shape, torch.float64)):
        try:
            decode(data, shape=shape, dtype=dtype)
        except ProtocolError as error:
            assert error.code in ("shape", "dtype")
        else:
            raise AssertionError("another shape or type than the one that is due")


def assembly(data: bytes) -> None:
    """Parts of messages in any order: whole messages or a refusal, and never more memory than the limit."""
    reader, assembler, sent = Reader(data), Assembler(64), b""
    while reader.left:
        length = reader.byte()
        chunk = reader.take(length % 80)
        sent += chunk
        try:
            whole = assembler.feed(Part(data=chunk, more=bool(length & 128)))
        except ProtocolError as error:
            assert error.code in ("size", "message")
            return
        if whole is not None:
            assert whole == sent and len(whole) <= 64
            sent = b""


TARGETS: dict[str, tuple[Callable[[bytes], None], tuple[bytes, ...]]] = {
    "frames": (
        frames,
        (
            bytes(40),
            bytes([0, *[64 + 1] * 8]),
            bytes([1, 64 + 128 + 5, 1, 1, 1, 0, 2, 1, 0, 0, 9, 9]),
            bytes([2, *[64 + 2] * 4, 2, 1, 0, 4, 0, 3, 60, 1]),
            bytes([0, 4, 1, 0, 3, 4, 2, 7, 9, 1, 0, 5, 1, 3, 4, 11, 1]),
            bytes([3, 1, 1, 3, 0, 1, 9, 1, 0, 0, 2, 5, 1]),
        ),
    ),
    "gradients": (
        gradients,
        (
            bytes(30),
            bytes([3, 1, 0, 2, 0, 1, 2, 1, 0, 2, 0, 2, 2, 1, 0, 0, 0, 9, 1, 1, 0, 2, 0, 3]),
            bytes([2, 1, 0, 4, 1, 80, 2, 1, 0, 3, 2, 5, 6, 10, 1, 1, 0, 0, 0, 7, 1]),
        ),
    ),
    "codec": (
        codec,
        (
            encode(torch.ones(2, 3)),
            encode(torch.zeros(0, 3, 1, 2)),
            encode(torch.arange(5)),
            encode(torch.tensor(1.5, dtype=torch.bfloat16)),
            _header(6, (1,) * 7, b"\1"),
        ),
    ),
    "shapes": (
        shapes,
        (
            bytes([1, 2, 65, 66, *range(24)]),
            bytes([6, 3, 64, 0, 70]),
            bytes([4, 0, *range(8)]),
            bytes.fromhex("9c060340009c9c9c9c9c9c9c02915d0046"),  # empty, with strides that no integer holds
        ),
    ),
    "assembly": (
        assembly,
        (bytes([3, 1, 2, 3]), bytes([130, 1, 2, 2, 3, 4]), bytes([128]), bytes([198, *range(70)])),
    ),
}
"""Name -> (target, seeds)."""
assert HEADER_BYTES == 64, "the seeds' header is that of version 1"
