"""What an honest mesh may do otherwise than in an ordinary run, without anybody cheating: figure 6 of the detection.

A condition is something real that must not look like an attack: machines that compute in another precision or another
order of sums, a learning rate or a data domain that jumps, replicas that come and go, microbatches of one sequence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from sentinel_market.data.corpus import Tokens
from sentinel_market.errors import ConfigError
from verifier.check.calibrate import tolerance_for
from verifier.check.tolerance import Tolerance
from verifier.evidence.recompute import DTYPES, rounded

LEARNING_RATE_JUMP: Final = 10.0
FRAMES: Final = 20_000
"""Honest frames that a condition is judged by, at least."""

_RULING: Final = re.compile(rb"(?m)^[*=~\-\"^+| ]{4,}$")

Way = Callable[[], AbstractContextManager[Any]]
"""Inside of what it makes, a replica computes as its own machine does."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """``in_midrun``: begins at step ``onset``, not with the run. ``dtype``: the job's, which its tolerance belongs to
    and its frames travel in. ``ways``: replica r computes by ``ways[r % len(ways)]``, None as everybody else does.
    ``sequences``: of a microbatch, 0 as the job says. ``rate``: times the learning rate, from ``onset`` on. ``prose``:
    the data is prose from ``onset`` on, code before. ``come_and_go``: see ``absent``."""

    in_midrun: bool = False
    dtype: str = "float32"
    ways: tuple[Way | None, ...] = (None,)
    sequences: int = 0
    rate: float = 1.0
    prose: bool = False
    come_and_go: bool = False

    @property
    def tolerance(self) -> Tolerance:
        """What calibration gives a job of this dtype on CPUs."""
        return tolerance_for(self.dtype, "cpu")

    def way(self, replica: int) -> Way | None:
        """How a replica of any stage computes; None for the usual way."""
        return self.ways[replica % len(self.ways)]

    def absent(self, replicas: int, step: int, *, onset: int, steps: int) -> frozenset[int]:
        """Replicas that get no work at ``step``: the last one joins at ``onset``; the first one leaves then, and comes
        back when half of the rest is over."""
        if not self.come_and_go:
            return frozenset()
        if step < onset:
            return frozenset({replicas - 1})
        return frozenset({0}) if step < (onset + steps) // 2 else frozenset()

    def travels(self, tensor: Tensor) -> Tensor:
        """A frame as the job's dtype can hold it, in fp32; in an fp32 job the tensor itself."""
        found = tensor if self.dtype == "float32" else rounded(tensor, DTYPES[self.dtype])
        assert found is not None
        return found


@lru_cache(maxsize=1)
def prose() -> Tokens:
    """Bytes of the Python language reference as ``pydoc`` carries it: English, where the corpus is code; without the
    rulings of its tables and headings, in one space's distance. ConfigError where this Python was installed without."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise ConfigError("this Python has no pydoc_data, whose text the condition domain trains on") from None
    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    return np.frombuffer(re.sub(rb"[ \n]+", b" ", _RULING.sub(b"", text)), dtype=np.uint8)


# ---- machines


def _bf16() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def _plain_attention() -> AbstractContextManager[Any]:
    return sdpa_kernel(SDPBackend.MATH)


@contextmanager
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Halves(TorchFunctionMode):
    """Matrix products summed in two halves, as another blocking does."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func is not F.linear:
            return func(*args, **(kwargs or {}))
        x, weight = args
        half = weight.shape[1] // 2
        return x[..., :half] @ weight[:, :half].T + x[..., half:] @ weight[:, half:].T


@contextmanager
def _two_threads_in_halves() -> Iterator[None]:
    with _two_threads(), _Halves():
        yield


USUAL: Final = Condition()
CONDITIONS: Final[dict[str, Condition]] = {
    "bf16": Condition(dtype="bfloat16", ways=(None, _bf16)),
    "threads": Condition(ways=(None, _two_threads, _plain_attention, _two_threads_in_halves)),
    "lr-jump": Condition(in_midrun=True, rate=LEARNING_RATE_JUMP),
    "domain": Condition(in_midrun=True, prose=True),
    "joiner": Condition(in_midrun=True, come_and_go=True),
    "batch-one": Condition(sequences=1),
}


def condition(name: str) -> Condition:
    """By its name, the ordinary run for none; ConfigError for an unknown one."""
    if not name:
        return USUAL
    found = CONDITIONS.get(name)
    if found is None:
        raise ConfigError(f"condition {name!r} is unknown; use one of {', '.join(CONDITIONS)}")
    return found
