"""Store what a list of jobs shows of a manifest beside it, so that a list of many jobs reads no manifests.

The column is empty in rows that an earlier version writes; for these the manifest is read.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

from updraft.ledger.records import Shown

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

jobs = sa.table("jobs", sa.column("id", sa.String), sa.column("manifest", sa.JSON), sa.column("shown", sa.JSON))


def upgrade() -> None:
    op.add_column("jobs", sa.Column("shown", sa.JSON))
    if not context.is_offline_mode():
        _fill(op.get_bind())


def _fill(connection: sa.Connection) -> None:
    """One manifest after the other: each may have a megabyte."""
    for job_id in connection.execute(sa.select(jobs.c.id)).scalars().all():
        of_job = jobs.c.id == job_id
        manifest = connection.execute(sa.select(jobs.c.manifest).where(of_job)).scalar_one()
        connection.execute(sa.update(jobs).where(of_job).values(shown=Shown.of(manifest).to_json()))


def downgrade() -> None:
    op.drop_column("jobs", "shown")
