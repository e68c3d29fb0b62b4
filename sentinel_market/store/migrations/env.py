"""Alembic's entry: runs on the connection that ``store.database.migrate`` hands over; there is no ini file."""

from __future__ import annotations

from alembic import context

from sentinel_market.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=False,
    render_as_batch=True,
)
context.run_migrations()
