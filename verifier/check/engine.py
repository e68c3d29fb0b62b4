"""The engine: all that one driver knows of honest frames and decides from it. The same object live and simulated.

Deterministic in the order of calls, and pure in the sense of this package: no clock, random state or I/O. Whoever
drives it (``verifier.driver``, ``sentinel_market.sim``) asks replicas and recomputes; the engine says what to think.
"""

from __future__ import annotations

from dataclasses import dataclass

from verifier.check import check
from verifier.check.baseline import Baseline
from verifier.check.check import Screening
from verifier.check.frame import BACKWARD, FORWARD, Frame
from verifier.check.kernels import Array
from verifier.check.policy import Policy


@dataclass(frozen=True, slots=True)
class Ban:
    """A worker that statistics alone condemn (policies ``paper`` and ``screen``): no recompute stands behind it."""

    worker: int
    step: int
    reason: str


class Engine:
    """Baselines of every (boundary, direction) of one driver, and what is counted about each worker."""

    def __init__(self, policy: Policy, num_stages: int, seed: int) -> None:
        self.policy = policy
        self.num_stages = num_stages
        self.baselines: dict[tuple[int, int], Baseline] = {
            (stage, direction): Baseline.new(stage, num_stages, direction, seed)
            for stage in range(num_stages)
            for direction in (FORWARD, BACKWARD)
        }

    def begin_step(self, step: int) -> None:
        """Forget which microbatches of the step before are tainted."""

    def screen(self, frame: Frame, microbatch: int) -> Screening:
        """Judge a frame; nothing changes but the cascade of policy ``paper``: once a boundary has flagged a
        microbatch, its later frames are INCONCLUSIVE (tainted) until ``begin_step``."""
        del microbatch
        return check.screen(frame, self.baselines[frame.stage, frame.direction], self.policy)

    def accept(self, stage: int, direction: int, screening: Screening) -> None:
        """A final ACCEPT: fold the frame into its baseline."""
        check.accept(self.baselines[stage, direction], screening)

    def cleared_by_recompute(self, stage: int, direction: int, screening: Screening) -> bool:
        """A recompute cleared a suspect; returns whether a fence moved. Before ``accept``."""
        return check.cleared_by_recompute(self.baselines[stage, direction], screening)

    def convict(self, worker: int) -> None:
        """Take a convict's frames out of every window."""
        for baseline in self.baselines.values():
            check.forget(baseline, worker)

    def note(self, frame: Frame, screening: Screening) -> Ban | None:
        """Count a worker's screened frame; policies ``paper`` (strikes) and ``screen`` (sequential test) answer with a
        ban when it is due, the others never do."""
        del frame, screening
        return None

    def substitute(self, stage: int) -> Array | None:
        """Policy ``paper``: what a flagged gradient leaving ``stage`` is replaced by, the EMA gradient [T, D]."""
        return self.baselines[stage, BACKWARD].mean
