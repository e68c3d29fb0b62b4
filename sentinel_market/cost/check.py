"""What the check costs beside the least that any check must do (``sentinel bench check``).

The least: one compiled loop that reads the frame, its input and the moving average, and writes the new average. Frames
are taken in turn from a pool that no cache holds, as on the live path, where each frame comes off the network once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch

from sentinel_market.errors import ConfigError
from verifier.check import kernels
from verifier.check.baseline import Baseline
from verifier.check.check import accept, screen, warm
from verifier.check.frame import FORWARD, Frame
from verifier.check.policy import Policy

DIMS = (256, 512, 1024, 2048, 4096)
TOKENS = (512, 1024, 2048, 4096, 8192)
POOL_BYTES = 192 << 20
BATCH = 4
_BETA = 0.9


@dataclass(frozen=True)
class CheckCost:
    """CPU microseconds a frame, medians. ``least``: the reference loop; ``one_pass``: the compiled pass over the frame,
    the sliced distance and the average's update; ``check``: all of ``screen`` and ``accept``. ``frame_bytes``: of the
    arrays that any check must touch."""

    dim: int
    tokens: int
    frame_bytes: int
    least: float
    one_pass: float
    check: float

    @property
    def gigabytes(self) -> float:
        """GB/s of the whole check."""
        return self.frame_bytes / self.check / 1e3


def _least(x: Any, y: Any, m: Any, out: Any, share: Any, keep: Any) -> Any:
    total = np.float32(0.0)
    for t in range(x.shape[1]):
        for d in range(x.shape[2]):
            out[t, d] = keep * m[t, d]
        for b in range(x.shape[0]):
            for d in range(x.shape[2]):
                value = x[b, t, d]
                total += value * y[b, t, d]
                out[t, d] += share * value
    return total


def _compiled_least() -> Callable[..., Any]:
    if not kernels.COMPILED:
        raise ConfigError("numba does not work here, and the reference loop needs it; install numba")
    from numba import njit

    compiled: Callable[..., Any] = njit(nogil=True, fastmath=True)(_least)
    return compiled


def measure(dim: int, tokens: int, rounds: int, least: Callable[..., Any] | None = None) -> CheckCost:
    """Times the three in turn, on each of a pool of frames [4, tokens / 4, dim], ``rounds`` times."""
    loop = least or _compiled_least()
    warm()
    shape = (BATCH, tokens // BATCH, dim)
    generator = torch.Generator().manual_seed(0)
    size = max(2, POOL_BYTES // (8 * tokens * dim))
    inputs = [torch.randn(shape, generator=generator) for _ in range(size)]
    outputs = [x + 0.3 * torch.randn(shape, generator=generator) for x in inputs]
    baseline, policy = Baseline.new(1, 4, FORWARD, 0), Policy()

    def frame(index: int) -> Frame:
        return Frame(
            output=outputs[index % size],
            input=inputs[index % size],
            direction=FORWARD,
            stage=1,
            num_stages=4,
            step=0,
            worker=0,
        )

    for index in range(policy.warmup_frames + 1):
        accept(baseline, screen(frame(index), baseline, policy))
    mean = baseline.mean
    assert mean is not None
    out, directions = np.empty_like(mean), baseline.directions(dim)
    share, keep = np.float32((1 - _BETA) / BATCH), np.float32(_BETA)

    def the_least(index: int) -> None:
        loop(outputs[index % size].numpy(), inputs[index % size].numpy(), mean, out, share, keep)

    def one_pass(index: int) -> None:
        found = kernels.moments(outputs[index % size].numpy(), inputs[index % size].numpy(), mean, directions)
        kernels.blend(mean, found.mean, _BETA)

    def check(index: int) -> None:
        accept(baseline, screen(frame(index), baseline, policy))

    the_least(0)
    times: dict[str, list[float]] = {}
    for number in range(rounds):
        for offset, what in enumerate((the_least, one_pass, check)):
            index = number * 3 + offset  # never the frame that was touched just before
            began = time.thread_time()
            what(index)
            times.setdefault(what.__name__, []).append((time.thread_time() - began) * 1e6)
    least_, pass_, check_ = (median(times[name]) for name in ("the_least", "one_pass", "check"))
    return CheckCost(dim, tokens, 8 * tokens * dim + 8 * tokens // BATCH * dim, least_, pass_, check_)


def measure_all(dims: Sequence[int], tokens: Sequence[int], say: Callable[[str], None]) -> list[CheckCost]:
    """Each size; large ones fewer times."""
    least = _compiled_least()
    found = []
    for dim in dims:
        for count in tokens:
            found.append(measure(dim, count, max(9, min(200, (64 << 20) // (dim * count))), least))
            say(f"{dim} x {count} done")
    return found


@dataclass(frozen=True)
class Need:
    """What one worker of ``tflops`` needs of the verifiers: cores for checks, hashes and signatures, and the Mbit/s of
    its frames (each activation and gradient once in and once out; weights apart)."""

    tflops: float
    dim: int
    cores: float
    mbits: float


def needs(*, dim: int, tokens: int, check_gbs: float, hash_gbs: float, recover_seconds: float) -> list[Need]:
    """For workers of 10, 50, 100 TFLOP/s, one layer of ``dim`` a stage, microbatches of ``tokens``.

    A forward and a backward are about 6 x 12 dim^2 x tokens FLOPs. The seat checks two frames, hashes what comes back,
    recovers two signers, and relays four tensors of 4 tokens dim bytes.
    """
    flops = 6 * 12 * dim * dim * tokens
    tensor = 4 * tokens * dim
    seconds = 2 * 2.5 * tensor / (check_gbs * 1e9) + 2 * tensor / (hash_gbs * 1e9) + 2 * recover_seconds
    found = []
    for tflops in (10.0, 50.0, 100.0):
        units = tflops * 1e12 / flops
        found.append(Need(tflops, dim, units * seconds, units * 4 * tensor * 8 / 1e6))
    return found


def speeds() -> tuple[float, float]:
    """(GB/s of BLAKE3 on one core, CPU seconds to recover a signer), measured now."""
    import blake3

    from sentinel_market.chain.signing import HotKey, recover

    data, key, digest = bytes(8 << 20), HotKey(bytes(31) + b"\x07"), bytes(32)
    signature = key.sign(digest)
    hashing, signing = [], []
    for _ in range(9):
        began = time.thread_time()
        blake3.blake3(data).digest()
        hashing.append(time.thread_time() - began)
        began = time.thread_time()
        for _ in range(50):
            recover(digest, signature)
        signing.append((time.thread_time() - began) / 50)
    return len(data) / median(hashing) / 1e9, median(signing)
