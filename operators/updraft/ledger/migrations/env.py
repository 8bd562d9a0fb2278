"""Run Alembic on the connection that `updraft.ledger.migrate` passes in, inside its transaction."""

from __future__ import annotations

from alembic import context

from updraft.ledger.migrate import VERSION_TABLE
from updraft.ledger.tables import metadata

if context.is_offline_mode():
    # Print the SQL instead of running it, for an administrator who runs it by hand.
    context.configure(
        dialect_name=context.config.attributes.get("dialect", "postgresql"),
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        literal_binds=True,
    )
else:
    context.configure(
        connection=context.config.attributes["connection"], target_metadata=metadata, version_table=VERSION_TABLE
    )
with context.begin_transaction():
    context.run_migrations()
