"""From receipts to a settlement root's amounts: integers in, integers out, the same for every seat.

Rules: an account earns its units at the price of their stage, rounded down once a stage; a seat earns what it
drove, what it recomputed and the fixed repayment of its transactions, less what the record of its faults takes. A terminated slot keeps what its
receipts say up to the last step before the offence. Nothing beyond ``payable(budget)`` is ever promised, nor
beyond the allowance of the escrow's rate cap: then what is new is cut in proportion, rounded down, and the rest waits
for the next root. Dust, less than one base unit an account and root, is not promised and is refunded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sentinel_market.domain.job_spec import JobSpec
from sentinel_market.domain.merkle import Hash, PayTree, address_bytes, pay_tree
from sentinel_market.domain.quote import QuoteParams, payable, stage_prices, unit_pay


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """A ``WorkReceipt`` with the account that held (slot, nonce). ``units`` are passes, cumulative."""

    account: str
    slot: int
    nonce: int
    verifier: str
    step: int
    units: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SeatWork:
    """What one seat did since the start of the job; counts are cumulative."""

    account: str
    driven: int = 0
    """Microbatches driven."""
    recomputes: int = 0
    """As it counts them itself."""
    audited: int = 0
    """Cross-audits that it was drawn for and told the outcome of."""
    voided: int = 0
    """Microbatches that it drove and is not paid for, for what its record says."""
    charged: int = 0
    """Recomputes that it is charged for."""
    settlements: int = 0
    """Settlement roots it sent."""
    reports: int = 0
    executions: int = 0
    bonds_settled: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Amounts:
    """What a root says. Amounts in base units, cumulative, keyed by account as it was spelled."""

    amounts: dict[str, int]
    total: int
    """``totalCumulative`` of the root: never below that of the root before."""
    earned: dict[str, int] = field(default_factory=dict)
    """The same before caps: ``earned - amounts`` is pending."""
    capped: bool = False

    def tree(self, job_id: int, keccak: Hash) -> PayTree:
        """Root and proofs."""
        return pay_tree(job_id, self.amounts, keccak)


def newest_units(
    receipts: Iterable[Receipt], replicas: int, offences: Mapping[tuple[int, int], int] | None = None
) -> dict[tuple[str, int], int]:
    """Units an (account, stage): the newest receipt of each (slot, nonce, verifier), summed.

    ``offences`` maps (slot, nonce) of a terminated assignment to the step of the offence: only receipts of
    earlier steps count for it. A receipt repeated or replayed changes nothing. Of two receipts of one step the
    lesser counts: a seat that signs two has no way to gain by it. ``ValueError`` when an assignment has two holders.
    """
    limits = offences or {}
    newest: dict[tuple[int, int, bytes], Receipt] = {}
    holders: dict[tuple[int, int], bytes] = {}
    for receipt in receipts:
        if receipt.units < 0 or receipt.step < 0 or receipt.slot < 0:
            raise ValueError(f"a receipt has negative numbers: {receipt}")
        holder = address_bytes(receipt.account)
        if holders.setdefault((receipt.slot, receipt.nonce), holder) != holder:
            raise ValueError(f"two accounts for slot {receipt.slot} under nonce {receipt.nonce}")
        limit = limits.get((receipt.slot, receipt.nonce))
        if limit is not None and receipt.step >= limit:
            continue
        key = (receipt.slot, receipt.nonce, address_bytes(receipt.verifier))
        other = newest.get(key)
        if other is None or (receipt.step, -receipt.units) > (other.step, -other.units):
            newest[key] = receipt
    units: dict[tuple[str, int], int] = {}
    spelling: dict[bytes, str] = {}
    for receipt in newest.values():
        account = spelling.setdefault(address_bytes(receipt.account), receipt.account)
        cell = (account, receipt.slot // replicas)
        units[cell] = units.get(cell, 0) + receipt.units
    return units


def settle(
    spec: JobSpec,
    params: QuoteParams,
    receipts: Iterable[Receipt],
    seats: Iterable[SeatWork],
    *,
    offences: Mapping[tuple[int, int], int] | None = None,
    previous: Mapping[str, int] | None = None,
    previous_total: int = 0,
    claimed: Mapping[str, int] | None = None,
    allowance: int | None = None,
) -> Amounts:
    """The amounts of the next root.

    ``previous`` and ``previous_total`` are those of the last root that the escrow took, ``claimed`` is what the
    chain has paid each account, ``allowance`` is ``JobEscrow.allowance`` (the highest total it would take now; None: no
    rate cap). All in base units.
    """
    prices = stage_prices(spec)
    spelling: dict[bytes, str] = {}
    earned: dict[bytes, int] = {}

    def add(account: str, amount: int) -> None:
        key = address_bytes(account)
        spelling.setdefault(key, account)
        earned[key] = earned.get(key, 0) + amount

    for (account, stage), units in newest_units(receipts, spec.parallelism.replicas, offences).items():
        if stage >= len(prices):
            raise ValueError(f"a receipt names stage {stage}, the job has {len(prices)}")
        add(account, unit_pay(prices[stage], units))
    for seat in seats:
        add(seat.account, _seat_pay(spec, params, seat))

    before = {address_bytes(account): amount for account, amount in (previous or {}).items()}
    for account in previous or {}:
        spelling.setdefault(address_bytes(account), account)
    limit = payable(spec.market.budget, params.fee_bps)
    if allowance is not None:
        limit = min(limit, allowance)
    drawn = {address_bytes(account): amount for account, amount in (claimed or {}).items()}
    # What a conviction voided may be promised anew, except what the convict has drawn already.
    kept = {
        key: max(min(before.get(key, 0), earned.get(key, 0)), drawn.get(key, 0))
        for key in earned.keys() | before.keys()
    }
    new = {key: max(0, earned.get(key, 0) - kept[key]) for key in kept}
    room, wanted = max(0, limit - sum(kept.values())), sum(new.values())
    capped = wanted > room
    if capped:
        new = {key: amount * room // wanted for key, amount in new.items()}
    amounts = {spelling[key]: kept[key] + new[key] for key in sorted(kept) if kept[key] + new[key]}
    return Amounts(
        amounts=amounts,
        total=max(previous_total, sum(amounts.values())),
        earned={spelling[key]: earned[key] for key in sorted(earned)},
        capped=capped,
    )


def _seat_pay(spec: JobSpec, params: QuoteParams, seat: SeatWork) -> int:
    gas = (
        seat.settlements * params.gas_settlement
        + seat.reports * params.gas_report
        + seat.executions * params.gas_execute
        + seat.bonds_settled * params.gas_settle_bond
    )
    driven = max(0, seat.driven - seat.voided)
    recomputes = max(0, seat.recomputes + seat.audited - seat.charged)
    return driven * spec.market.relay_price + recomputes * spec.market.audit_price + gas
