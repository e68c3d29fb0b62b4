"""The verification policy of a job: what is checked, and how often somebody looks twice."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from sentinel_market.errors import ConfigError

PPM = 1_000_000
PAPER_METRICS = ("l1", "l2", "sfr", "sw")
POLICIES = ("none", "paper", "screen", "screen+confirm", "screen+confirm+audit")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Settings of the engine; frozen, and part of the job, so that every seat judges alike.

    ``window`` and ``warmup_frames`` count accepted frames of one baseline, so one (driver, boundary, direction).
    ``k_*`` are multiples of the interquartile range (Tukey's fences). Shares are parts per million of frames.
    """

    name: str = "screen+confirm+audit"
    beta_forward: float = 0.9  # sentinel.md section 2, beta_h
    beta_backward: float = 0.8  # beta_g
    window: int = 64
    warmup_frames: int = 40
    early_frames: int = 4  # from here on the wide fences on conditional metrics hold, also in warm-up
    k_init: float = 3.5
    k_min: float = 2.5
    k_max: float = 8.0
    k_early: float = 3.0
    target_flags_ppm: int = 5_000  # honest frames that may cross a fence; steers k
    audit_share_ppm: int = 10_000
    warmup_audit_share_ppm: int = 100_000
    activation_source_factor: int = 3  # the audit share of the first stage's activations is this many times higher
    gradient_source_factor: int = 6  # and of the last stage's gradients: no incoming one to hold them against
    straight_share_ppm: int = 250_000  # confirmations that skip the replay and go to recompute
    paper_metrics: str = "l1,l2,sfr,sw"  # policy paper: a subset is an ablation
    paper_ema: bool = True  # policy paper: False is the ablation without an average (beta = 0)
    paper_k: float = 2.5  # Q3 + k IQR at the start; then it follows the boundary's own flags
    paper_k_min: float = 1.0
    paper_k_max: float = 6.0
    paper_target_flags_ppm: int = 5_000  # the paper keeps false positives under 1 %
    paper_warmup_steps: int = 40  # taken to be honest, as in the paper (about 1000 steps there); nothing is flagged
    paper_strikes: int = 6  # a flag is a strike; a cheat in each microbatch is banned in its sixth step
    paper_forgive: int = 10  # clean checks in a row that forgive all strikes
    alpha_ppm: int = 100  # policy screen: chance of a false ban a worker and job, at most

    def __post_init__(self) -> None:
        problems: list[str] = []
        if self.name not in POLICIES:
            problems.append(f"policy {self.name!r} is unknown; use one of {', '.join(POLICIES)}")
        for name in ("beta_forward", "beta_backward"):
            if not 0.0 <= getattr(self, name) < 1.0:
                problems.append(f"{name} = {getattr(self, name)} must lie in [0, 1)")
        if not 16 <= self.window <= 4096:
            problems.append(f"window = {self.window} must lie in 16 .. 4096 frames")
        if not 2 <= self.early_frames <= self.warmup_frames:
            problems.append(f"early_frames = {self.early_frames} must lie in 2 .. warmup_frames")
        if not 0.0 < self.k_min <= self.k_init <= self.k_max:
            problems.append(f"k_min {self.k_min} <= k_init {self.k_init} <= k_max {self.k_max} does not hold")
        low, start, high = self.paper_k_min, self.paper_k, self.paper_k_max
        if not 0.0 < low <= start <= high:
            problems.append(f"paper_k_min {low} <= paper_k {start} <= paper_k_max {high} does not hold")
        chosen = self.paper_metrics.split(",")
        if len(set(chosen)) != len(chosen) or not set(chosen) <= set(PAPER_METRICS):
            problems.append(f"paper_metrics = {self.paper_metrics!r} must be some of {','.join(PAPER_METRICS)}")
        if self.paper_warmup_steps < 0:
            problems.append(f"paper_warmup_steps = {self.paper_warmup_steps} must not be negative")
        for name in ("paper_strikes", "paper_forgive", "alpha_ppm"):
            if getattr(self, name) < 1:
                problems.append(f"{name} = {getattr(self, name)} must be at least 1")
        for field in fields(self):
            if field.name.endswith("_ppm") and not 0 <= getattr(self, field.name) <= PPM:
                problems.append(f"{field.name} = {getattr(self, field.name)} must lie in 0 .. {PPM}")
        for name in ("activation_source_factor", "gradient_source_factor"):
            if getattr(self, name) < 1:
                problems.append(f"{name} = {getattr(self, name)} must be at least 1")
        if problems:
            raise ConfigError("; ".join(problems))

    @property
    def screens(self) -> bool:
        """Whether frames are held against fences at all."""
        return self.name != "none"

    @property
    def confirms(self) -> bool:
        """Whether a suspect is replayed and recomputed before anybody is accused."""
        return "confirm" in self.name

    @property
    def audits(self) -> bool:
        """Whether frames are drawn at random for a second look."""
        return "audit" in self.name

    def beta(self, direction: int) -> float:
        """The EMA's memory for direction 0 (forward) or 1 (backward)."""
        if self.name == "paper" and not self.paper_ema:
            return 0.0
        return self.beta_backward if direction else self.beta_forward

    @classmethod
    def named(cls, text: str, **settings: object) -> Policy:
        """A policy by its name. ``paper`` takes ablations after colons: ``paper:no-ema``, ``paper:l1`` (one or several
        of the four distances, with commas), ``paper:l2:no-ema``. ConfigError says what there is."""
        name, *parts = text.split(":")
        if parts and name != "paper":
            raise ConfigError(f"policy {text!r}: only paper has ablations; write {name!r}")
        for part in parts:
            if part == "no-ema":
                settings["paper_ema"] = False
            elif part and set(part.split(",")) <= set(PAPER_METRICS):
                settings["paper_metrics"] = part
            else:
                raise ConfigError(f"policy {text!r}: {part!r} is neither no-ema nor some of {','.join(PAPER_METRICS)}")
        return cls(name=name, **settings)  # type: ignore[arg-type]

    def to_json(self) -> dict[str, object]:
        """Strings and integers only (0 and 1 for no and yes): ratios x 1e6, under the field's name with ``_e6``."""
        found: dict[str, object] = {}
        for name, value in asdict(self).items():
            if isinstance(value, float):
                found[name + "_e6"] = round(value * PPM)
            else:
                found[name] = int(value) if isinstance(value, bool) else value
        return found

    @classmethod
    def from_json(cls, data: dict[str, object]) -> Policy:
        """The inverse of ``to_json``; ConfigError names an unknown or mistyped key."""
        known = {f.name: f for f in fields(cls)}
        values: dict[str, object] = {}
        for key, value in data.items():
            name = key.removesuffix("_e6")
            if name not in known or (key != name) != isinstance(known[name].default, float):
                raise ConfigError(f"unknown policy setting {key!r}")
            if isinstance(known[name].default, str):
                if not isinstance(value, str):
                    raise ConfigError(f"policy setting {key} = {value!r} must be text")
                values[name] = value
            elif isinstance(known[name].default, bool):
                if type(value) is not int or value not in (0, 1):
                    raise ConfigError(f"policy setting {key} = {value!r} must be 0 or 1")
                values[name] = bool(value)
            elif type(value) is not int:
                raise ConfigError(f"policy setting {key} = {value!r} must be an integer")
            else:
                values[name] = value / PPM if key != name else value
        return cls(**values)  # type: ignore[arg-type]
