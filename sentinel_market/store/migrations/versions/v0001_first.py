"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create all tables."""
    op.create_table(
        "blobs",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_table(
        "chain_events",
        sa.Column("block", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("log_index", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("tx", sa.String(66), nullable=False),
        sa.Column("contract", sa.String(32), nullable=False),
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=True),
        sa.Column("args", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("block", "log_index"),
    )
    op.create_index("chain_events_by_job", "chain_events", ["job_id", "block"])
    op.create_table(
        "cursors",
        sa.Column("name", sa.String(32), nullable=False),
        sa.Column("block", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "endpoints",
        sa.Column("job_id", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("verifier", sa.String(42), nullable=False),
        sa.Column("endpoint", sa.String(255), nullable=False),
        sa.Column("issued", sa.BigInteger(), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "verifier"),
    )
    op.create_table(
        "jobs",
        sa.Column("job_id", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("submitter", sa.String(42), nullable=False),
        sa.Column("spec_digest", sa.String(64), nullable=False),
        sa.Column("budget", sa.String(40), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("posted_block", sa.BigInteger(), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id"),
    )
    op.create_index("jobs_by_spec", "jobs", ["spec_digest"])
    op.create_table(
        "metrics",
        sa.Column("job_id", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("step", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("verifier", sa.String(42), nullable=False),
        sa.Column("issued", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "step", "verifier"),
    )
    op.create_table(
        "quarantines",
        sa.Column("job_id", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("slot", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("nonce", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("verifier", sa.String(42), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "slot", "nonce", "verifier"),
    )
    op.create_table(
        "settlement_leaves",
        sa.Column("job_id", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("root", sa.String(64), nullable=False),
        sa.Column("account", sa.String(42), nullable=False),
        sa.Column("cumulative", sa.String(80), nullable=False),
        sa.Column("proof", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "epoch", "root", "account"),
    )
    op.create_table(
        "settlements",
        sa.Column("job_id", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("root", sa.String(64), nullable=False),
        sa.Column("total", sa.String(40), nullable=False),
        sa.Column("step_record_hash", sa.String(64), nullable=False),
        sa.Column("verifier", sa.String(42), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "epoch", "root"),
    )
    op.create_table(
        "specs",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_table(
        "verdicts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False, unique=True),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("verifier", sa.String(42), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("verdicts_by_job", "verdicts", ["job_id", "id"])


def downgrade() -> None:
    """Drop all tables."""
    for table in reversed(_TABLES):
        op.drop_table(table)


_TABLES = (
    "blobs",
    "chain_events",
    "cursors",
    "endpoints",
    "jobs",
    "metrics",
    "quarantines",
    "settlement_leaves",
    "settlements",
    "specs",
    "verdicts",
)
