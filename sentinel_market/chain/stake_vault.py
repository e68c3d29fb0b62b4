"""StakeVault: stake, unbonding, credits, hot keys, locks, bans."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel_market.chain.client import Block, ChainClient, Receipt
from sentinel_market.chain.eip712 import digest
from sentinel_market.chain.signing import HotKey
from sentinel_market.domain.job_spec import format_amount
from sentinel_market.domain.messages import SignerGrant

GRANT_SECONDS = 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class Stake:
    """An account's money in the vault, in base units. bonded = locked + free."""

    bonded: int
    locked: int
    free: int
    unbonding: int
    credits: int
    banned: bool

    @property
    def total(self) -> int:
        """Stake as the ledger counts it: bonded + unbonding."""
        return self.bonded + self.unbonding


@dataclass(frozen=True, kw_only=True, slots=True)
class Unbond:
    """One unbonding request that is still open."""

    id: int
    amount: int
    matures_at: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StakeLock:
    """Stake set aside for one duty."""

    account: str
    releasable_at: int
    holds: int
    live: bool
    original: int
    amount: int


class StakeVault:
    """Reads and writes of the vault."""

    NAME = "StakeVault"

    def __init__(self, client: ChainClient) -> None:
        self._client = client

    @property
    def address(self) -> str:
        """Where the vault is."""
        return self._client.network.contracts[self.NAME]

    # --- reading

    def stake_of(self, account: str, block: Block = "latest") -> Stake:
        """Everything about an account's money."""
        bonded, locked, free, unbonding, credits, banned = self._client.call(self.NAME, "stakeOf", account, block=block)
        return Stake(bonded=bonded, locked=locked, free=free, unbonding=unbonding, credits=credits, banned=banned)

    def is_banned(self, account: str, block: Block = "latest") -> bool:
        """Whether the account is banned."""
        return bool(self._client.call(self.NAME, "isBanned", account, block=block))

    def hot_key_of(self, account: str, block: Block = "latest") -> str | None:
        """The account's current hot key."""
        return _address_or_none(self._client.call(self.NAME, "hotKeyOf", account, block=block))

    def account_of(self, signer: str, block: Block = "latest") -> str | None:
        """The account whose hot key this is."""
        return _address_or_none(self._client.call(self.NAME, "accountOf", signer, block=block))

    def unbonds(self, account: str, block: Block = "latest") -> tuple[Unbond, ...]:
        """Open unbonding requests, oldest first."""
        count = int(self._client.call(self.NAME, "unbondCount", account, block=block))
        found = []
        for index in range(count):
            amount, matures_at = self._client.call(self.NAME, "getUnbond", account, index, block=block)
            if amount:
                found.append(Unbond(id=index, amount=amount, matures_at=matures_at))
        return tuple(found)

    def lock(self, lock_id: int, block: Block = "latest") -> StakeLock:
        """One lock."""
        raw = self._client.call(self.NAME, "getLock", lock_id, block=block)
        return StakeLock(
            account=raw.account,
            releasable_at=raw.releasableAt,
            holds=raw.holds,
            live=raw.state == 1,
            original=raw.original,
            amount=raw.amount,
        )

    # --- writing (cold key)

    def deposit(self, amount: int) -> Receipt:
        """Add to the sender's free stake; approves the vault first where needed."""
        if amount > 0:
            self._client.token.ensure_allowance(self.address, amount)
        return self._client.send(
            self.NAME, "deposit", amount, intent=f"deposit {format_amount(amount)} tokens of stake"
        )

    def register_signer(self, hot: HotKey) -> Receipt:
        """Register ``hot`` as the sender's hot key, with its proof of possession."""
        account = self._client.address
        nonce = int(self._client.call(self.NAME, "signerNonce", account))
        grant = SignerGrant(
            account=account, signer=hot.address, nonce=nonce, deadline=self._client.now() + GRANT_SECONDS
        )
        signature = hot.sign(digest(self._client.network.domain(self.NAME), grant))
        return self._client.send(
            self.NAME,
            "registerSigner",
            hot.address,
            grant.deadline,
            signature,
            intent=f"register the hot key {hot.address}",
        )

    def revoke_signer(self) -> Receipt:
        """Take the sender's hot key off."""
        return self._client.send(self.NAME, "revokeSigner", intent="revoke the hot key")

    def request_unbond(self, amount: int) -> tuple[Receipt, int | None]:
        """Start to unbond free stake; returns the receipt and the request's id (None in dry mode)."""
        receipt = self._client.send(self.NAME, "requestUnbond", amount, intent=f"unbond {format_amount(amount)} tokens")
        return receipt, None if receipt.dry else receipt.event("UnbondRequested").args["id"]

    def cancel_unbond(self, unbond_id: int) -> Receipt:
        """Return an unbonding request to free stake."""
        return self._client.send(self.NAME, "cancelUnbond", unbond_id, intent=f"cancel unbonding {unbond_id}")

    def withdraw(self, unbond_id: int) -> Receipt:
        """Pay a matured request out."""
        return self._client.send(self.NAME, "withdraw", unbond_id, intent=f"withdraw unbonding {unbond_id}")

    def withdraw_credits(self) -> Receipt:
        """Pay all credits of the sender out."""
        return self._client.send(self.NAME, "withdrawCredits", intent="withdraw credits")


def _address_or_none(address: str) -> str | None:
    return None if int(address, 16) == 0 else address
