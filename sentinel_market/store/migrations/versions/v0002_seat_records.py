"""The public record of seats, and who held a seat where."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table, and the index by which an account's jobs are found."""
    op.create_table(
        "seat_records",
        sa.Column("job_id", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("verifier", sa.String(42), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("issued", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "verifier"),
    )
    op.create_index("chain_events_by_name", "chain_events", ["name", "job_id"])


def downgrade() -> None:
    """Drop both."""
    op.drop_index("chain_events_by_name", "chain_events")
    op.drop_table("seat_records")
