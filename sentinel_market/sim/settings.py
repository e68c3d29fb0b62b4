"""What one simulated run is given and what it found out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sentinel_market.attacks import directions, names
from sentinel_market.errors import ConfigError
from sentinel_market.sim.conditions import CONDITIONS, Condition, condition

UNVERIFIED = "unverified"
"""Every frame travels on unseen: what an attack does when nobody looks."""


NO_LOSS = 1e9
"""In place of a loss that is not finite, which JSON cannot hold."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """One run of R replicas of S stages.

    ``malicious``: share of the replicas of each stage where the attack can act, rounded. ``attack``: a specification
    as of ``sentinel_market.attacks.get_attack``; empty for a clean run. ``policy``: one of ``verifier.check.Policy``,
    or ``unverified``. ``collude``: accomplices vouch for each other when asked for a replay. ``corrupt_drivers``: so
    many drivers are in the plot and accept whatever an accomplice sends. ``recompute``: False lets the
    majority of the accused and two replicas decide (a test shows with it what recomputes are for). ``condition``: what
    an honest mesh does otherwise, one of ``sentinel_market.sim.conditions``; empty for nothing.
    """

    replicas: int = 8
    stages: int = 8
    malicious: float = 0.25
    attack: str = ""
    direction: str = "forward"
    policy: str = "screen+confirm+audit"
    seed: int = 0
    steps: int = 100
    onset: int = 40
    duty: int = 1
    collude: bool = False
    corrupt_drivers: int = 0
    drivers: int = 0
    recompute: bool = True
    aggregation: str = "mean"
    model_dim: int = 32
    batch: int = 4
    seq_len: int = 32
    learning_rate: float = 0.01
    warmup_steps: int = 20
    audit_ppm: int = 10_000
    warmup_audit_ppm: int = 100_000
    validation_sequences: int = 128
    # Lines of runs that were made before there were conditions have no such key.
    condition: str = ""

    def __post_init__(self) -> None:
        problems = []
        for name, low in (("replicas", 1), ("stages", 2), ("steps", 1), ("batch", 1), ("seq_len", 2), ("duty", 1)):
            if getattr(self, name) < low:
                problems.append(f"{name} = {getattr(self, name)} must be at least {low}")
        if not 0.0 <= self.malicious <= 0.5:
            problems.append(f"malicious = {self.malicious} must lie in 0 .. 0.5 (fewer than half of any stage)")
        if not 0 <= self.drivers <= self.replicas:
            problems.append(f"drivers = {self.drivers} must lie in 0 .. replicas (0: half as many as replicas)")
        if not 0 <= self.corrupt_drivers < self.num_drivers:
            problems.append(f"corrupt_drivers = {self.corrupt_drivers} must be fewer than drivers = {self.num_drivers}")
        if self.model_dim < 8 or self.model_dim % 8:
            problems.append(f"model_dim = {self.model_dim} must be a multiple of 8, at least 8")
        if self.condition and self.condition not in CONDITIONS:
            problems.append(f"condition = {self.condition!r} is unknown; use one of {', '.join(CONDITIONS)}")
        elif self.condition and self.attack:
            problems.append(f"condition = {self.condition!r} is an honest mesh; leave out the attack {self.attack!r}")
        elif self.counted_from >= self.steps:
            problems.append(f"condition = {self.condition!r} begins at step {self.counted_from} of {self.steps}")
        if problems:
            raise ConfigError("; ".join(problems))

    @property
    def otherwise(self) -> Condition:
        """What this mesh does otherwise than an ordinary one."""
        return condition(self.condition)

    @property
    def sequences(self) -> int:
        """Of a microbatch."""
        return self.otherwise.sequences or self.batch

    @property
    def counted_from(self) -> int:
        """The first step whose honest frames count. Under a condition: after the warm-up, or when it begins."""
        if not self.condition:
            return 0
        return self.onset if self.otherwise.in_midrun else self.warmup_steps

    @property
    def counted_frames(self) -> int:
        """Tensors that a run without cheats screens in those steps; a backward of stage 0 returns none."""
        return (self.steps - self.counted_from) * self.replicas * (2 * self.stages - 1)

    @property
    def num_drivers(self) -> int:
        """Drivers that share the rows; two rows each unless told otherwise, as in a small live job. Policy ``paper``
        has one hub, as published."""
        return self.drivers or (1 if self.is_paper else max(1, self.replicas // 2))

    @property
    def is_paper(self) -> bool:
        """Whether the policy is the published one or an ablation of it."""
        return self.policy.partition(":")[0] == "paper"

    @property
    def spec(self) -> str:
        """The attack with its direction written out where it takes one and names none."""
        name, _, rest = self.attack.partition(":")
        ways = {"forward", "backward"}.intersection(directions(name)) if name in names() else set()
        if "direction=" in rest or self.direction not in ways:
            return self.attack
        return f"{self.attack}{',' if rest else ':'}direction={self.direction}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data; the key of a run."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RunSettings:
        """The inverse; ConfigError for an unknown name."""
        unknown = set(data) - {f.name for f in fields(cls)}
        if unknown:
            raise ConfigError(f"unknown run settings {sorted(unknown)}")
        return cls(**data)


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Numbers of one run. Workers are slots, stage x R + replica; a positive is a banned worker.

    ``steps_to_quarantine``: median over banned hostile workers of the steps from the first false tensor to the ban.
    ``verification_share``: of the CPU time, what screens, replays, recomputes and audits took.
    """

    settings: RunSettings
    val_loss: float
    precision: float | None
    recall: float | None
    f1: float | None
    honest_bans: int
    honest_workers: int
    honest_frames: int
    flag_rate_honest: float
    steps_to_quarantine: float | None
    confirmations: int
    recomputes: int
    audits: int
    tokens_per_second: float
    verification_share: float
    hostile_workers: int
    banned: list[int] = field(default_factory=list)
    bans_at: dict[int, int] = field(default_factory=dict)
    first_attack_step: int | None = None
    hostile_frames: int = 0
    flagged_hostile_frames: int = 0
    accepted_false_frames: int = 0
    skipped_steps: int = 0
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data."""
        data = asdict(self)
        data["bans_at"] = {str(slot): step for slot, step in self.bans_at.items()}
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RunResult:
        """The inverse of ``to_json``; ConfigError for data that is none."""
        try:
            values = dict(data)
            values["settings"] = RunSettings.from_json(values["settings"])
            values["bans_at"] = {int(slot): int(step) for slot, step in values["bans_at"].items()}
            return cls(**values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"not the result of a run: {error}") from error
