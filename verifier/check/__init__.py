"""The check: pure torch, numpy and numba. No I/O, clock, random state, environment or logging in this package.

``screen`` judges one frame against a ``Baseline`` and changes nothing; ``accept`` folds an accepted frame in.
``decide`` walks a suspect or audited frame from replay to recompute to a final verdict. See docs/verification.md.
"""

from verifier.check.audit import audit_share_ppm, goes_straight_to_recompute, is_audited
from verifier.check.baseline import Baseline
from verifier.check.check import Screening, accept, cleared_by_recompute, forget, screen, warm
from verifier.check.confirm import Action, ConfirmStep, Event, decide
from verifier.check.frame import BACKWARD, FORWARD, Frame
from verifier.check.policy import Policy
from verifier.check.tolerance import Comparison, Tolerance, compare, compare_sketch, numeric_edge
from verifier.check.verdict import Score, Verdict, VerdictKind

__all__ = [
    "BACKWARD",
    "FORWARD",
    "Action",
    "Baseline",
    "Comparison",
    "ConfirmStep",
    "Event",
    "Frame",
    "Policy",
    "Score",
    "Screening",
    "Tolerance",
    "Verdict",
    "VerdictKind",
    "accept",
    "audit_share_ppm",
    "cleared_by_recompute",
    "compare",
    "compare_sketch",
    "decide",
    "forget",
    "goes_straight_to_recompute",
    "is_audited",
    "numeric_edge",
    "screen",
    "warm",
]
