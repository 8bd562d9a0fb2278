"""Store speeds by generation, sizes that users ask for, and sizes that learners could not reach."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from updraft.ledger.tables import NAME_LENGTH

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("speeds") as batch:
        batch.add_column(sa.Column("generation", sa.Integer, autoincrement=False, nullable=False, server_default="1"))
        batch.drop_constraint("pk_speeds", type_="primary")
        batch.create_primary_key("pk_speeds", ["job_id", "attempt", "generation"])
    op.add_column("grants", sa.Column("pinned", sa.Integer))
    op.add_column("grants", sa.Column("pinned_by", sa.String(NAME_LENGTH)))
    op.add_column("resizes", sa.Column("refused", sa.Boolean, nullable=False, server_default=sa.false()))


def downgrade() -> None:
    op.drop_column("resizes", "refused")
    op.drop_column("grants", "pinned_by")
    op.drop_column("grants", "pinned")
    op.execute("DELETE FROM speeds WHERE generation > 1")
    with op.batch_alter_table("speeds") as batch:
        batch.drop_constraint("pk_speeds", type_="primary")
        batch.create_primary_key("pk_speeds", ["job_id", "attempt"])
        batch.drop_column("generation")
