"""``sentinel ledger``."""

from __future__ import annotations

from typing import Any

import click

from sentinel_market.cli.common import App, job_or_fail, table, tokens, verb
from sentinel_market.errors import SentinelError

_group = click.Group()


@verb(_group, "ledger", example="sentinel ledger 1\nsentinel ledger 1 --json")
@click.argument("job_id", metavar="JOB", type=int)
@click.option("--offline", is_flag=True, help="Replay the chain only; earned and pending need the coordinator.")
def ledger(app: App, job_id: int, offline: bool) -> int:
    """Who earned, may claim, drew and lost what on a job. Every figure is replayed from the chain's events here and
    compared with the contracts' own, and with the coordinator's; a difference is shown and makes the exit code 1."""
    from sentinel_market.chain.logs import EventFeed
    from sentinel_market.domain.ledger import Ledger

    job_or_fail(app, job_id)
    client = app.reader
    head = client.block_number()
    book = Ledger().replay(EventFeed(client).fetch_events(client.network.deployed_block, head))
    money = client.escrow.money(job_id, head)
    problems = list(book.problems())
    accounts = _accounts(app, job_id, head)
    remote: dict[str, Any] = {}
    same_block = False
    if not offline:
        try:
            view = app.coordinator.ledger(job_id)
            remote = {line.account.lower(): line for line in view.rows}
            same_block = view.block == head
            problems += [f"coordinator: {problem}" for problem in view.problems]
        except SentinelError as exc:
            app.note(f"earned and pending are not known: {exc}")
    rows = []
    for account, role in accounts.items():
        stake = client.vault.stake_of(account, head)
        own = book.account(account)
        line = remote.get(account.lower())
        row: dict[str, Any] = {
            "account": account,
            "role": role,
            "earned": line.earned if line else None,
            "pending": line.pending if line else None,
            "claimable": line.claimable if line else None,
            "claimed": str(client.escrow.claimed(job_id, account, head)),
            "slashed": str(own.slashed),
            "bonded": str(stake.bonded),
            "unbonding": str(stake.unbonding),
            "credits": str(stake.credits),
            "banned": stake.banned,
        }
        replayed = {
            "claimed": book.claimed(job_id, account),
            "bonded": own.bonded,
            "unbonding": own.unbonding,
            "credits": own.credits,
        }
        problems += [
            f"{account}: {key} is {row[key]} on chain and {value} by its events"
            for key, value in replayed.items()
            if row[key] != str(value)
        ]
        if line and same_block:
            problems += [
                f"{account}: {key} is {row[key]} on chain and {getattr(line, key)} at the coordinator"
                for key in ("claimed", "bonded", "unbonding", "credits", "slashed")
                if row[key] != getattr(line, key)
            ]
        rows.append(row)
    if money.settled and money.budget != money.paid + money.fee + money.refund:
        problems.append(f"budget {money.budget} is not paid {money.paid} + fee {money.fee} + refund {money.refund}")
    columns = ("earned", "pending", "claimable", "claimed", "slashed", "bonded", "unbonding", "credits")
    lines = [
        (
            row["account"],
            row["role"],
            *("?" if row[c] is None else tokens(int(row[c])) for c in columns),
            "BANNED" if row["banned"] else "",
        )
        for row in rows
    ]
    summary = (
        f"budget {tokens(money.budget)} = paid {tokens(money.paid)} + fee {tokens(money.fee)} + "
        + (
            f"refund {tokens(money.refund)}"
            if money.settled
            else f"open {tokens(money.budget - money.paid - money.fee)}"
        )
        + f"; claimed {tokens(money.claimed)}, refunded {tokens(money.refunded)}"
    )
    app.emit(
        {
            "job_id": job_id,
            "block": head,
            "money": {k: str(v) if not isinstance(v, bool) else v for k, v in _fields(money).items()},
            "lines": rows,
            "problems": problems,
        },
        "\n".join([table(("ACCOUNT", "ROLE", *(c.upper() for c in columns), ""), lines), summary, *problems]),
    )
    return 1 if problems else 0


def _fields(money: Any) -> dict[str, Any]:
    return {name: getattr(money, name) for name in money.__slots__}


def _accounts(app: App, job_id: int, head: int) -> dict[str, str]:
    """Everybody who ever had a part in a job, with the role."""
    client = app.reader
    found = {client.market.job(job_id, head).submitter: "submitter"}
    for event in client.fetch_events(client.network.deployed_block, head):
        if event.args.get("jobId") == job_id and event.name in ("SeatTaken", "SlotClaimed"):
            found.setdefault(event.args["account"], "verifier" if event.name == "SeatTaken" else "worker")
    return found
