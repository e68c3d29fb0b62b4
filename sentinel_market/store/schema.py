"""The tables. Amounts are decimal strings (they exceed 64 bits), digests lower-case hex, times Unix seconds.

Everything here can be checked against the chain, a signature or a digest; nothing is an authority.
"""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Index, Integer, LargeBinary, MetaData, String, Table, Text

metadata = MetaData()

specs = Table(
    "specs",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("body", LargeBinary, nullable=False),
    Column("received_at", BigInteger, nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("submitter", String(42), nullable=False),
    Column("spec_digest", String(64), nullable=False),
    Column("budget", String(40), nullable=False),
    Column("state", String(16), nullable=False),
    Column("posted_block", BigInteger, nullable=False),
    Column("uri", Text, nullable=False),
)
Index("jobs_by_spec", jobs.c.spec_digest)

endpoints = Table(
    "endpoints",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("verifier", String(42), primary_key=True),
    Column("endpoint", String(255), nullable=False),
    Column("issued", BigInteger, nullable=False),
    Column("signature", LargeBinary, nullable=False),
)

metrics = Table(
    "metrics",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("verifier", String(42), primary_key=True),
    Column("issued", BigInteger, nullable=False),
    Column("body", JSON, nullable=False),
)

verdicts = Table(
    "verdicts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("digest", String(64), nullable=False, unique=True),
    Column("job_id", BigInteger, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("slot", Integer, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("verifier", String(42), nullable=False),
    Column("body", JSON, nullable=False),
)
Index("verdicts_by_job", verdicts.c.job_id, verdicts.c.id)

seat_records = Table(
    "seat_records",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("verifier", String(42), primary_key=True),
    Column("step", BigInteger, nullable=False),
    Column("issued", BigInteger, nullable=False),
    Column("body", JSON, nullable=False),
)

quarantines = Table(
    "quarantines",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("nonce", BigInteger, primary_key=True, autoincrement=False),
    Column("verifier", String(42), primary_key=True),
    Column("step", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
)

chain_events = Table(
    "chain_events",
    metadata,
    Column("block", BigInteger, primary_key=True, autoincrement=False),
    Column("log_index", Integer, primary_key=True, autoincrement=False),
    Column("tx", String(66), nullable=False),
    Column("contract", String(32), nullable=False),
    Column("name", String(40), nullable=False),
    Column("job_id", BigInteger, nullable=True),
    Column("args", JSON, nullable=False),
)
Index("chain_events_by_job", chain_events.c.job_id, chain_events.c.block)
Index("chain_events_by_name", chain_events.c.name, chain_events.c.job_id)

cursors = Table(
    "cursors",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("block", BigInteger, nullable=False),
)

blobs = Table(
    "blobs",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("received_at", BigInteger, nullable=False),
)

settlements = Table(
    "settlements",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("root", String(64), primary_key=True),
    Column("total", String(40), nullable=False),
    Column("step_record_hash", String(64), nullable=False),
    Column("verifier", String(42), nullable=False),
)

settlement_leaves = Table(
    "settlement_leaves",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("root", String(64), primary_key=True),
    Column("account", String(42), primary_key=True),
    Column("cumulative", String(80), nullable=False),
    Column("proof", JSON, nullable=False),
)
