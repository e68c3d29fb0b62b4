"""The token of stake and pay."""

from __future__ import annotations

from sentinel_market.chain.client import Block, ChainClient, Receipt
from sentinel_market.domain.job_spec import format_amount


class Token:
    """ERC-20; on local networks with a faucet. Amounts in base units."""

    NAME = "TestToken"

    def __init__(self, client: ChainClient) -> None:
        self._client = client

    def balance_of(self, account: str, block: Block = "latest") -> int:
        """What ``account`` holds."""
        return int(self._client.call(self.NAME, "balanceOf", account, block=block))

    def allowance(self, owner: str, spender: str, block: Block = "latest") -> int:
        """What ``spender`` may take from ``owner``."""
        return int(self._client.call(self.NAME, "allowance", owner, spender, block=block))

    def approve(self, spender: str, amount: int) -> Receipt:
        """Let ``spender`` take up to ``amount`` from the sender."""
        return self._client.send(
            self.NAME, "approve", spender, amount, intent=f"approve {format_amount(amount)} tokens"
        )

    def transfer(self, to: str, amount: int) -> Receipt:
        """Send ``amount`` to ``to``."""
        return self._client.send(
            self.NAME, "transfer", to, amount, intent=f"transfer {format_amount(amount)} tokens to {to}"
        )

    def faucet(self, account: str, amount: int) -> Receipt:
        """Mint test tokens (local networks only)."""
        return self._client.send(
            self.NAME, "faucet", account, amount, intent=f"mint {format_amount(amount)} test tokens"
        )

    def ensure_allowance(self, spender: str, amount: int) -> Receipt | None:
        """Approve ``amount`` unless that much is allowed already. Never endless: that would outlive its use."""
        if self.allowance(self._client.address, spender) >= amount:
            return None
        return self.approve(spender, amount)
