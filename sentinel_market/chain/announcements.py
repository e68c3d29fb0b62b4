"""Where seats listen: announcements that anybody may pass on, believed only under the seat's hot key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from sentinel_market.chain.eip712 import Domain, digest
from sentinel_market.chain.signing import recover
from sentinel_market.domain.messages import Endpoint
from sentinel_market.errors import ProtocolError


class Announcement(Protocol):
    """What a coordinator answers; the fields are those of ``domain.messages.Endpoint`` and its signature in hex."""

    @property
    def job_id(self) -> int: ...
    @property
    def verifier(self) -> str: ...
    @property
    def endpoint(self) -> str: ...
    @property
    def issued(self) -> int: ...
    @property
    def signature(self) -> str: ...


def signed_endpoints(
    found: Iterable[Announcement], job_id: int, domain: Domain, hot_keys: Mapping[str, str]
) -> dict[str, str]:
    """account -> endpoint, the newest that each seat [account -> hot key] signed for this job."""
    accounts = {account.lower(): account for account in hot_keys}
    newest: dict[str, tuple[int, str]] = {}
    for view in found:
        account = accounts.get(view.verifier.lower())
        if account is None or view.job_id != job_id:
            continue
        message = Endpoint(view.job_id, account, view.endpoint, view.issued)
        try:
            signer = recover(digest(domain, message), bytes.fromhex(view.signature.removeprefix("0x")))
        except (ProtocolError, ValueError):
            continue
        if signer == hot_keys[account] and view.issued >= newest.get(account, (0, ""))[0]:
            newest[account] = (view.issued, view.endpoint)
    return {account: endpoint for account, (_, endpoint) in newest.items()}
