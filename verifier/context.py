"""What a seat knows about its job before the first step. Everything comes from the chain and the job's spec."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from sentinel_market.chain.eip712 import Domain, digest
from sentinel_market.chain.signing import HotKey, recover
from sentinel_market.domain import assignment
from sentinel_market.domain.job_spec import JobSpec
from sentinel_market.domain.messages import Typed
from sentinel_market.domain.shapes import FrameShapes
from sentinel_market.errors import ProtocolError
from sentinel_market.models.config import ModelConfig
from sentinel_market.models.jobs import frame_shapes, model_config
from sentinel_market.ports import Deployment, SeatInfo, SlotInfo
from verifier.check.calibrate import tolerance_for
from verifier.check.policy import Policy
from verifier.check.tolerance import Tolerance


def check_policy(spec: JobSpec) -> Policy:
    v = spec.verification
    return Policy(name=v.policy, audit_share_ppm=v.audit_ppm, warmup_audit_share_ppm=v.warmup_audit_ppm)


@dataclass(frozen=True, kw_only=True)
class SeatContext:
    """Immutable for the life of a run (number 1: the live set of seats never changes)."""

    job_id: int
    spec: JobSpec
    key: HotKey
    deployment: Deployment
    seats: tuple[SeatInfo, ...]
    slots: dict[int, SlotInfo]
    """Slot snapshots as last read from the chain; replaced when a slot changes hands."""
    quorum: int
    me: int
    policy: Policy
    tolerance: Tolerance = field(default_factory=lambda: tolerance_for("float32", "cpu"))

    @cached_property
    def domain(self) -> Domain:
        return self._domain("JobMarket")

    @cached_property
    def court_domain(self) -> Domain:
        return self._domain("ViolationCourt")

    @cached_property
    def escrow_domain(self) -> Domain:
        return self._domain("JobEscrow")

    def _domain(self, name: str) -> Domain:
        return Domain(name, "1", self.deployment.chain_id, self.deployment.contracts[name])

    @cached_property
    def config(self) -> ModelConfig:
        return model_config(self.spec)

    @cached_property
    def shapes(self) -> FrameShapes:
        return frame_shapes(self.spec)

    @property
    def num_stages(self) -> int:
        return self.spec.parallelism.stages

    @property
    def num_replicas(self) -> int:
        return self.spec.parallelism.replicas

    @property
    def account(self) -> str:
        return self.seats[self.me].account

    @cached_property
    def live(self) -> tuple[int, ...]:
        return tuple(seat.index for seat in self.seats)

    @cached_property
    def hot_keys(self) -> dict[str, str]:
        return {seat.account: seat.hot_key for seat in self.seats}

    @cached_property
    def others(self) -> tuple[SeatInfo, ...]:
        return tuple(seat for seat in self.seats if seat.index != self.me)

    @cached_property
    def my_stages(self) -> tuple[int, ...]:
        return self.stages_of(self.me)

    def stages_of(self, seat: int) -> tuple[int, ...]:
        return tuple(s for s in range(self.num_stages) if assignment.primary_of(s, self.live) == seat)

    def primary(self, stage: int) -> SeatInfo:
        return self.seats[assignment.primary_of(stage, self.live)]

    def my_microbatches(self) -> tuple[int, ...]:
        return assignment.microbatches_of(self.me, self.spec.training.microbatches, self.live)

    def share_of(self, seat: int) -> int:
        """How many microbatches a seat drives a step."""
        return len(assignment.microbatches_of(seat, self.spec.training.microbatches, self.live))

    def ends_epoch(self, step: int) -> bool:
        training = self.spec.training
        return (step + 1) % training.epoch_steps == 0 or step == training.steps - 1

    def stage_of(self, slot: int) -> int:
        return assignment.stage_of(slot, self.num_replicas)

    def sign(self, message: Typed, domain: Domain | None = None) -> bytes:
        return self.key.sign(digest(domain or self.domain, message))

    def check_seat(self, account: str, message: Typed, signature: bytes, domain: Domain | None = None) -> None:
        """Raises ProtocolError("signature") unless the hot key of this seat signed it."""
        expected = self.hot_keys.get(account)
        signer = recover(digest(domain or self.domain, message), signature)
        if signer != expected:
            raise ProtocolError("signature", f"{type(message).__name__} of {account} is signed by {signer}")
