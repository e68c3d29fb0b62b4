"""What is stored and read, one class a table. Methods take and give plain values; no SQL leaves this module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from sqlalchemy import Connection, delete, func, select
from sqlalchemy.dialects.sqlite import insert

from sentinel_market.store import schema

Row = dict[str, Any]


class _Repository:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _rows(self, statement: Any) -> list[Row]:
        return [dict(row) for row in self._connection.execute(statement).mappings()]

    def _one(self, statement: Any) -> Row | None:
        row = self._connection.execute(statement).mappings().first()
        return None if row is None else dict(row)

    def _count(self, statement: Any) -> int:
        return int(self._connection.execute(statement).scalar_one() or 0)


class Specs(_Repository):
    """Job specs by digest."""

    def put(self, digest: str, body: bytes, now: int, max_unposted: int) -> None:
        """Store a spec. Of those that no job on chain names, only the newest ``max_unposted`` are kept."""
        table = schema.specs
        values = {"digest": digest, "body": body, "received_at": now}
        statement = insert(table).values(values)
        self._connection.execute(statement.on_conflict_do_update(index_elements=["digest"], set_={"received_at": now}))
        posted = select(schema.jobs.c.spec_digest)
        unposted = (
            select(table.c.digest)
            .where(table.c.digest.not_in(posted))
            .order_by(table.c.received_at.desc(), table.c.digest)
            .offset(max_unposted)
        )
        self._connection.execute(delete(table).where(table.c.digest.in_(unposted)))

    def get(self, digest: str) -> bytes | None:
        """The canonical bytes, None when they are not here."""
        row = self._one(select(schema.specs.c.body).where(schema.specs.c.digest == digest))
        return None if row is None else cast(bytes, row["body"])


class Jobs(_Repository):
    """Jobs as the chain's events tell them."""

    def posted(self, job_id: int, submitter: str, spec_digest: str, budget: int, block: int, uri: str) -> None:
        """A job was posted; repeated events change nothing."""
        values = {
            "job_id": job_id,
            "submitter": submitter,
            "spec_digest": spec_digest,
            "budget": str(budget),
            "state": "Open",
            "posted_block": block,
            "uri": uri,
        }
        self._connection.execute(insert(schema.jobs).values(values).on_conflict_do_nothing())

    def set_state(self, job_id: int, state: str) -> None:
        """The job entered a state."""
        table = schema.jobs
        self._connection.execute(table.update().where(table.c.job_id == job_id).values(state=state))

    def get(self, job_id: int) -> Row | None:
        """One job."""
        return self._one(select(schema.jobs).where(schema.jobs.c.job_id == job_id))

    def page(self, before: int | None, limit: int) -> list[Row]:
        """Jobs with an id below ``before``, newest first."""
        statement = select(schema.jobs).order_by(schema.jobs.c.job_id.desc()).limit(limit)
        if before is not None:
            statement = statement.where(schema.jobs.c.job_id < before)
        return self._rows(statement)

    def count(self) -> int:
        """How many jobs are indexed."""
        return self._count(select(func.count()).select_from(schema.jobs))


class Endpoints(_Repository):
    """Where each seat's relay listens; the newest announcement of a seat wins."""

    def put(self, job_id: int, verifier: str, endpoint: str, issued: int, signature: bytes) -> bool:
        """Store an announcement; False when it is not newer than the one that is here."""
        table = schema.endpoints
        values = {
            "job_id": job_id,
            "verifier": verifier.lower(),
            "endpoint": endpoint,
            "issued": issued,
            "signature": signature,
        }
        statement = insert(table).values(values)
        statement = statement.on_conflict_do_update(
            index_elements=["job_id", "verifier"], set_=values, where=table.c.issued < issued
        )
        return self._connection.execute(statement).rowcount > 0

    def of_job(self, job_id: int) -> list[Row]:
        """All announcements of a job, by verifier."""
        table = schema.endpoints
        return self._rows(select(table).where(table.c.job_id == job_id).order_by(table.c.verifier))


class Metrics(_Repository):
    """What seats say about steps: display only."""

    def put(self, job_id: int, step: int, verifier: str, issued: int, body: Mapping[str, Any]) -> bool:
        """Store a seat's metrics of a step; False when they are not newer than what is here."""
        table = schema.metrics
        values = {
            "job_id": job_id,
            "step": step,
            "verifier": verifier.lower(),
            "issued": issued,
            "body": dict(body),
        }
        statement = insert(table).values(values)
        statement = statement.on_conflict_do_update(
            index_elements=["job_id", "step", "verifier"], set_=values, where=table.c.issued < issued
        )
        return self._connection.execute(statement).rowcount > 0

    def since(self, job_id: int, step: int, limit: int) -> list[Row]:
        """Rows of steps >= ``step`` in ascending order; one a (step, verifier)."""
        table = schema.metrics
        return self._rows(
            select(table)
            .where(table.c.job_id == job_id, table.c.step >= step)
            .order_by(table.c.step, table.c.verifier)
            .limit(limit)
        )

    def last_step(self, job_id: int) -> int | None:
        """Highest step with metrics."""
        return cast(
            "int | None",
            self._connection.execute(
                select(func.max(schema.metrics.c.step)).where(schema.metrics.c.job_id == job_id)
            ).scalar(),
        )


class Verdicts(_Repository):
    """Verdict events that seats publish."""

    def put(self, digest: str, job_id: int, verifier: str, body: Mapping[str, Any]) -> bool:
        """Store one; False when the very same event is here already."""
        values = {
            "digest": digest,
            "job_id": job_id,
            "step": body["step"],
            "slot": body["slot"],
            "kind": body["kind"],
            "verifier": verifier.lower(),
            "body": dict(body),
        }
        statement = insert(schema.verdicts).values(values).on_conflict_do_nothing(index_elements=["digest"])
        return self._connection.execute(statement).rowcount > 0

    def after(self, job_id: int, last_id: int, limit: int) -> list[Row]:
        """Events with an id above ``last_id``, oldest first."""
        table = schema.verdicts
        return self._rows(
            select(table).where(table.c.job_id == job_id, table.c.id > last_id).order_by(table.c.id).limit(limit)
        )

    def newest(self, job_id: int, limit: int) -> list[Row]:
        """The newest events, newest first."""
        table = schema.verdicts
        return self._rows(select(table).where(table.c.job_id == job_id).order_by(table.c.id.desc()).limit(limit))

    def counts(self, job_id: int) -> dict[tuple[int, str], int]:
        """How many events a (slot, kind)."""
        table = schema.verdicts
        statement = (
            select(table.c.slot, table.c.kind, func.count().label("count"))
            .where(table.c.job_id == job_id)
            .group_by(table.c.slot, table.c.kind)
        )
        return {(row["slot"], row["kind"]): row["count"] for row in self._rows(statement)}

    def count(self, job_id: int, verifier: str) -> int:
        """How many events one seat has stored for a job."""
        table = schema.verdicts
        return self._count(
            select(func.count())
            .select_from(table)
            .where(table.c.job_id == job_id, table.c.verifier == verifier.lower())
        )


class SeatRecords(_Repository):
    """What each seat says of all seats of its job; the newest document of a seat wins."""

    def put(self, job_id: int, verifier: str, step: int, issued: int, body: Mapping[str, Any]) -> bool:
        """Store a seat's document; False when it is of an older step than what is here, or not newer at the same."""
        table = schema.seat_records
        values = {
            "job_id": job_id,
            "verifier": verifier.lower(),
            "step": step,
            "issued": issued,
            "body": dict(body),
        }
        newer = (table.c.step < step) | ((table.c.step == step) & (table.c.issued < issued))
        statement = insert(table).values(values)
        statement = statement.on_conflict_do_update(index_elements=["job_id", "verifier"], set_=values, where=newer)
        return self._connection.execute(statement).rowcount > 0

    def of_job(self, job_id: int) -> list[Row]:
        """The newest document of each seat, by verifier."""
        table = schema.seat_records
        return self._rows(select(table).where(table.c.job_id == job_id).order_by(table.c.verifier))


class Quarantines(_Repository):
    """Which seat quarantined which assignment, from which step on, and why."""

    def put(self, job_id: int, slot: int, nonce: int, verifier: str, step: int, reason: str) -> None:
        """A seat's first word on an assignment stays."""
        values = {
            "job_id": job_id,
            "slot": slot,
            "nonce": nonce,
            "verifier": verifier.lower(),
            "step": step,
            "reason": reason,
        }
        self._connection.execute(insert(schema.quarantines).values(values).on_conflict_do_nothing())

    def of_job(self, job_id: int) -> list[Row]:
        """All of a job, by slot and step."""
        table = schema.quarantines
        return self._rows(select(table).where(table.c.job_id == job_id).order_by(table.c.slot, table.c.step))


class ChainEvents(_Repository):
    """The chain's events in order, and how far they were read."""

    def add(self, events: Iterable[Mapping[str, Any]]) -> int:
        """Store events; those that are here already change nothing. Returns how many were new."""
        added = 0
        for one in events:
            statement = insert(schema.chain_events).values(dict(one)).on_conflict_do_nothing()
            added += self._connection.execute(statement).rowcount
        return added

    def of_job(self, job_id: int, names: Sequence[str] | None = None) -> list[Row]:
        """Events that carry the job's id, in chain order."""
        table = schema.chain_events
        statement = select(table).where(table.c.job_id == job_id).order_by(table.c.block, table.c.log_index)
        if names is not None:
            statement = statement.where(table.c.name.in_(names))
        return self._rows(statement)

    def all(self) -> list[Row]:
        """Every event, in chain order."""
        table = schema.chain_events
        return self._rows(select(table).order_by(table.c.block, table.c.log_index))

    def jobs_with_seat(self, account: str) -> list[int]:
        """Jobs in which an account took a seat, newest first."""
        table = schema.chain_events
        holder = func.lower(table.c.args["account"].as_string())
        statement = (
            select(table.c.job_id)
            .where(table.c.name == "SeatTaken", holder == account.lower())
            .distinct()
            .order_by(table.c.job_id.desc())
        )
        return [row["job_id"] for row in self._rows(statement)]

    def after(self, block: int, log_index: int) -> list[Row]:
        """Events after a position, in chain order."""
        table = schema.chain_events
        later = (table.c.block > block) | ((table.c.block == block) & (table.c.log_index > log_index))
        return self._rows(select(table).where(later).order_by(table.c.block, table.c.log_index))

    def cursor(self, name: str = "chain") -> int | None:
        """The last block that was read whole; None before the first."""
        row = self._one(select(schema.cursors.c.block).where(schema.cursors.c.name == name))
        return None if row is None else int(row["block"])

    def set_cursor(self, block: int, name: str = "chain") -> None:
        """Everything up to ``block`` is stored."""
        statement = insert(schema.cursors).values({"name": name, "block": block})
        self._connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_={"block": block}))


class BlobRows(_Repository):
    """Which blobs are here; the bytes are files."""

    def put(self, digest: str, size: int, now: int) -> None:
        """Record a blob."""
        values = {"digest": digest, "size": size, "received_at": now}
        self._connection.execute(insert(schema.blobs).values(values).on_conflict_do_nothing())

    def get(self, digest: str) -> Row | None:
        """Size in bytes and time of arrival."""
        return self._one(select(schema.blobs).where(schema.blobs.c.digest == digest))


class Settlements(_Repository):
    """Settlement roots with their leaves. Several roots may be proposed for an epoch; the chain takes one."""

    def put(self, settlement: Mapping[str, Any], leaves: Iterable[Mapping[str, Any]]) -> bool:
        """Store a root with all its leaves; False when it is here already."""
        statement = insert(schema.settlements).values(dict(settlement)).on_conflict_do_nothing()
        if self._connection.execute(statement).rowcount == 0:
            return False
        key = {name: settlement[name] for name in ("job_id", "epoch", "root")}
        rows = [{**key, **leaf, "account": str(leaf["account"]).lower()} for leaf in leaves]
        if rows:
            self._connection.execute(insert(schema.settlement_leaves), rows)
        return True

    def of_job(self, job_id: int) -> list[Row]:
        """All roots of a job by epoch, without leaves."""
        table = schema.settlements
        return self._rows(select(table).where(table.c.job_id == job_id).order_by(table.c.epoch, table.c.root))

    def leaves(self, job_id: int, epoch: int, root: str, account: str | None = None) -> list[Row]:
        """Leaves of one root, or of one account under it."""
        table = schema.settlement_leaves
        statement = select(table.c.account, table.c.cumulative, table.c.proof).where(
            table.c.job_id == job_id, table.c.epoch == epoch, table.c.root == root
        )
        if account is not None:
            statement = statement.where(table.c.account == account.lower())
        return self._rows(statement.order_by(table.c.account))

    def count(self, job_id: int, verifier: str) -> int:
        """How many roots one seat has proposed for a job."""
        table = schema.settlements
        return self._count(
            select(func.count())
            .select_from(table)
            .where(table.c.job_id == job_id, table.c.verifier == verifier.lower())
        )
