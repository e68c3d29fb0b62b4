"""``sentinel pay``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sentinel_market.cli.common import App, tokens, verb
from sentinel_market.errors import ChainMismatch, PeerGone

if TYPE_CHECKING:
    from sentinel_market.chain.client import ChainClient


@click.group()
def pay() -> None:
    """Pay, refunds and credits that are due to an account."""


@verb(pay, "claim", example="sentinel pay claim alice\nsentinel pay claim alice --job 1")
@click.argument("name")
@click.option("--job", "job_id", type=int, help="Only this job; by default all of them.")
def claim(app: App, name: str, job_id: int | None) -> None:
    """Claim everything that is due: pay of active settlement roots, refunds of own jobs, credits of the vault.

    The hot key sends (it pays the gas), the money goes to the account. What was claimed already pays nothing again.
    """
    account = app.identity(name).account
    jobs = range(1, app.reader.market.job_count() + 1) if job_id is None else [job_id]
    client = app.hot(name)
    before = client.token.balance_of(account)
    lines: list[dict[str, Any]] = []
    problems: list[str] = []
    for number in jobs:
        try:
            lines += claim_pay(app, client, number, account)
        except PeerGone as exc:
            problems.append(f"job {number}: {exc}")
        lines += _refund(client, number, account)
    lines += _credits(app, client, name, account)
    paid = client.token.balance_of(account) - before
    shown = [f"{tokens(int(line['amount']))} tokens: {line['what']}" for line in lines]
    shown += problems
    app.emit(
        {"account": account, "received": str(paid), "claims": lines, "problems": problems},
        "\n".join([*shown, f"received {tokens(paid)} tokens" if lines else "nothing is due to this account now"]),
    )


def claim_pay(app: App, client: ChainClient, job_id: int, account: str) -> list[dict[str, Any]]:
    """Claim an account's pay of one job from the newest active root. The proof comes from the coordinator and is
    checked against the root on chain, so that a wrong one costs no gas."""
    from sentinel_market.chain.eip712 import keccak256
    from sentinel_market.domain.merkle import pay_leaf, verify
    from sentinel_market.wire.http_client import Refused

    epoch = client.escrow.active_epoch(job_id)
    if epoch == 0:
        return []
    try:
        detail = app.coordinator.settlement(job_id, epoch, account)
    except Refused as exc:
        if exc.code == "no-leaf":
            return []
        raise PeerGone(str(exc)) from None
    if not detail.leaves:
        return []
    leaf = detail.leaves[0]
    cumulative = int(leaf.cumulative)
    due = cumulative - client.escrow.claimed(job_id, account)
    if due <= 0:
        return []
    proof = [bytes.fromhex(node.removeprefix("0x")) for node in leaf.proof]
    root = client.escrow.root(job_id, epoch).root
    if not verify(root, pay_leaf(job_id, account, cumulative, keccak256), proof, keccak256):
        raise ChainMismatch(
            f"the coordinator's proof for {account} does not lead to the root of epoch {epoch} of job {job_id} on "
            "chain; use another coordinator (SENTINEL_COORDINATOR)"
        )
    receipt = client.escrow.claim(job_id, epoch, account, cumulative, proof)
    return [{"what": f"pay of job {job_id}, epoch {epoch}", "job_id": job_id, "amount": str(due), "tx": receipt.hash}]


def _refund(client: ChainClient, job_id: int, account: str) -> list[dict[str, Any]]:
    job = client.market.job(job_id)
    if job.submitter != account:
        return []
    if job.state == "closing":
        from sentinel_market.errors import Rejected

        try:
            client.market.settle_job(job_id)
        except Rejected:
            return []  # not over yet; nothing is due
    money = client.escrow.money(job_id)
    if not money.settled or money.refund == money.refunded:
        return []
    receipt = client.escrow.withdraw_refund(job_id)
    return [{"what": f"refund of job {job_id}", "job_id": job_id, "amount": str(money.refund), "tx": receipt.hash}]


def _credits(app: App, client: ChainClient, name: str, account: str) -> list[dict[str, Any]]:
    due = client.vault.stake_of(account).credits
    if due == 0:
        return []
    receipt = app.cold(name).vault.withdraw_credits()  # moves money: the cold key's own business
    return [{"what": "credits of the vault", "job_id": None, "amount": str(due), "tx": receipt.hash}]
