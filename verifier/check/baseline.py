"""What is known about honest frames of one (driver, boundary, direction): EMAs, windows, fences' widths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from sentinel_market.errors import ProtocolError
from verifier.check.frame import BACKWARD, FORWARD
from verifier.check.kernels import NUM_DIRECTIONS, Array, Fit, fit
from verifier.check.verdict import E6

VERSION = 2
# sentinel.md sections 2 and 3. Distances and norms are kept as logarithms: fences on ratios follow shrinking gradients.
FRAME_METRICS = ("l1", "l2", "sfr", "sw", "align", "rms", "even", "cosine", "blur", "gain", "change", "drift")
LOSS_METRICS = ("mean", "std", "zeros")


def make_directions(width: int, seed: int) -> Array:
    """Unit vectors [D, 8], float32: a pure function of width and seed (a counter-based hash, no random state)."""
    index = np.arange(width * NUM_DIRECTIONS, dtype=np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15) % 2**64)
    with np.errstate(over="ignore"):
        bits = (index ^ (index >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits ^= bits >> np.uint64(31)
    uniform = (bits >> np.uint64(11)).astype(np.float64) / 2.0**53 - 0.5
    directions = uniform.reshape(width, NUM_DIRECTIONS)
    directions /= np.linalg.norm(directions, axis=0, keepdims=True)
    return directions.astype(np.float32)


@dataclass(kw_only=True)
class Window:
    """Metric values of the last accepted frames, and what they say about the next one.

    ``window`` [n, M] float64, oldest row first, NaN where a metric was absent; ``workers`` [n]: who made them;
    ``frames``: accepted so far, those included that have left the window.
    """

    frames: int = 0
    window: Array = field(default_factory=lambda: np.zeros((0, 0)))
    workers: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _fit: Fit | None = None

    def fitted(self) -> Fit:
        """The summary of the window; made once for all frames that are held against it."""
        if self._fit is None:
            self._fit = fit(self.window)
        return self._fit

    def append(self, values: Sequence[float], worker: int, size: int) -> None:
        """One more accepted frame; the window keeps the last ``size``."""
        keep = min(size - 1, len(self.window))
        window = np.empty((keep + 1, len(values)))
        window[:keep], window[keep] = self.window[len(self.window) - keep :], values
        workers = np.empty(keep + 1, dtype=np.int64)
        workers[:keep], workers[keep] = self.workers[len(self.workers) - keep :], worker
        self.window, self.workers = window, workers
        self.frames += 1
        self._fit = None

    def forget(self, worker: int) -> int:
        """Take a worker's rows out; returns how many."""
        keep = self.workers != worker
        dropped = int((~keep).sum())
        if dropped:
            self.window, self.workers = self.window[keep], self.workers[keep]
            self._fit = None
        return dropped


@dataclass(kw_only=True)
class Baseline(Window):
    """Shaped by the first accepted frame; saved with the checkpoint; changed only by ``check.accept``,
    ``check.cleared_by_recompute`` and ``check.forget``.

    ``mean`` [T, D]: EMA of the batch mean. ``change`` [D]: EMA of mean(out - in).
    ``k_e6`` [M]: width of the fences; ``k_moved`` [M]: frame count at which each k last moved (-1: never).
    ``clearances``: worker -> frame count at its last clearance that counted. ``moved_until``: frame count up to which
    the fences are as wide as in warm-up, since honest frames moved.
    """

    stage: int
    num_stages: int
    direction: int
    seed: int
    mean: Array | None = None
    change: Array | None = None
    k_e6: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    k_moved: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    clearances: dict[int, int] = field(default_factory=dict)
    moved_until: int = 0
    _directions: Array | None = None

    @classmethod
    def new(cls, stage: int, num_stages: int, direction: int, seed: int) -> Baseline:
        """An empty baseline. ``seed`` fixes the projections; use one a job."""
        if not 0 <= stage < num_stages or direction not in (FORWARD, BACKWARD):
            raise ValueError(f"no boundary has stage {stage} of {num_stages}, direction {direction}")
        baseline = cls(stage=stage, num_stages=num_stages, direction=direction, seed=seed)
        num_metrics = len(baseline.metrics)
        baseline.window = np.zeros((0, num_metrics))
        baseline.k_e6 = np.zeros(num_metrics, dtype=np.int64)
        baseline.k_moved = np.full(num_metrics, -1, dtype=np.int64)
        return baseline

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the columns of ``window``."""
        is_loss = self.direction == FORWARD and self.stage == self.num_stages - 1
        return LOSS_METRICS if is_loss else FRAME_METRICS

    def directions(self, width: int) -> Array:
        """The projections [D, 8] for this boundary."""
        if self._directions is None or self._directions.shape[0] != width:
            self._directions = make_directions(width, self.seed * 1009 + self.stage * 2 + self.direction)
        return self._directions

    def is_young(self, warmup_frames: int) -> bool:
        """Whether only wide fences hold: in warm-up, and for a while after honest frames moved."""
        return self.frames < max(warmup_frames, self.moved_until)

    def k(self, metric: int, k_init: float) -> float:
        """The fence's width for a column; ``k_init`` until it first moved."""
        stored = int(self.k_e6[metric])
        return stored / E6 if stored else k_init

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Contiguous tensors only, as safetensors wants them; an absent EMA is an empty tensor."""
        pairs = sorted(self.clearances.items())
        return {
            "meta": torch.tensor(
                [VERSION, self.stage, self.num_stages, self.direction, self.seed, self.frames, self.moved_until],
                dtype=torch.int64,
            ),
            "mean": _tensor(self.mean, 2),
            "change": _tensor(self.change, 1),
            "window": torch.from_numpy(self.window.copy()),
            "workers": torch.from_numpy(self.workers.copy()),
            "k_e6": torch.from_numpy(self.k_e6.copy()),
            "k_moved": torch.from_numpy(self.k_moved.copy()),
            "clearances": torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2),
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, torch.Tensor]) -> Baseline:
        """The inverse; ProtocolError("baseline") for a state that does not fit together."""
        try:
            version, stage, num_stages, direction, seed, frames, moved = (int(v) for v in state["meta"])
            if version != VERSION:
                raise ValueError(f"version {version}, this build reads {VERSION}")
            baseline = cls.new(stage, num_stages, direction, seed)
            num_metrics = len(baseline.metrics)
            window, workers = state["window"].double(), state["workers"].long()
            if window.dim() != 2 or window.shape[1] != num_metrics or workers.shape != window.shape[:1]:
                raise ValueError(f"window {list(window.shape)} and workers {list(workers.shape)}")
            k_e6, k_moved = state["k_e6"].long(), state["k_moved"].long()
            if k_e6.shape != (num_metrics,) or k_moved.shape != (num_metrics,):
                raise ValueError(f"k_e6 {list(k_e6.shape)}, k_moved {list(k_moved.shape)}")
            baseline.mean = _array(state["mean"], 2)
            baseline.change = _array(state["change"], 1)
            baseline.clearances = {int(w): int(f) for w, f in state["clearances"].reshape(-1, 2)}
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise ProtocolError("baseline", f"not a baseline's state: {error}") from error
        baseline.frames, baseline.moved_until = frames, moved
        baseline.window, baseline.workers = window.numpy().copy(), workers.numpy().copy()
        baseline.k_e6, baseline.k_moved = k_e6.numpy().copy(), k_moved.numpy().copy()
        return baseline


def _tensor(array: Array | None, dims: int) -> torch.Tensor:
    return torch.zeros([0] * dims) if array is None else torch.from_numpy(array.copy())


def _array(tensor: torch.Tensor, dims: int) -> Array | None:
    if tensor.dim() != dims:
        raise ValueError(f"{list(tensor.shape)} where {dims} dimensions are due")
    return None if tensor.numel() == 0 else tensor.float().numpy().copy()
