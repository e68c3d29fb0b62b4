"""MarketParams: versioned parameter sets."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from sentinel_market.chain.client import Block, ChainClient
from sentinel_market.domain.quote import QuoteParams


@dataclass(frozen=True, kw_only=True, slots=True)
class ParamSet:
    """One set: times in seconds, shares in basis points, amounts in base units. Names as in ``IMarketParams``."""

    version: int
    evidence_tail: int
    collect: int
    appeal: int
    arbitration: int
    margin: int
    unbonding: int
    objection_window: int
    exit_notice: int
    fee_bps: int
    slash_equivocation_bps: int
    slash_bad_compute_bps: int
    slash_bad_aggregate_bps: int
    slash_verifier_equivocation_bps: int
    slash_false_root_bps: int
    verifier_share_bps: int
    submitter_share_bps: int
    treasury_floor_bps: int
    quorum_stake_bps: int
    gamma_bps: int
    spam_fee_bps: int
    kappa_bps: int
    treasury: str
    min_bond: int
    min_slot_stake: int
    min_seat_stake: int
    gas_settlement: int
    gas_report: int
    gas_execute: int
    gas_settle_bond: int

    def quote_params(self) -> QuoteParams:
        """The part that prices and settlement amounts are made of."""
        return QuoteParams(**{item.name: getattr(self, item.name) for item in fields(QuoteParams)})


class MarketParams:
    """Reads of the parameters."""

    NAME = "MarketParams"

    def __init__(self, client: ChainClient) -> None:
        self._client = client

    def latest(self, block: Block = "latest") -> int:
        """The newest version."""
        return int(self._client.call(self.NAME, "latest", block=block))

    def get(self, version: int | None = None, block: Block = "latest") -> ParamSet:
        """A set; the newest when no version is given."""
        number = self.latest(block) if version is None else version
        raw = self._client.call(self.NAME, "get", number, block=block)._asdict()
        values: dict[str, Any] = {snake(name): value for name, value in raw.items()}
        known = {field.name for field in fields(ParamSet)}
        return ParamSet(version=number, **{name: value for name, value in values.items() if name in known})


def snake(name: str) -> str:
    """``slashBadComputeBps`` -> ``slash_bad_compute_bps``."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
