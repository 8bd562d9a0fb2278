"""Store the sizes of elastic jobs, and how long their steps take."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from updraft.ledger.tables import ID_LENGTH, UtcDateTime

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

GRANTS = ("elastic", "batch", "target", "target_batch", "sized_at", "asked_at", "resizes")


def upgrade() -> None:
    op.add_column("grants", sa.Column("elastic", sa.JSON(none_as_null=True)))
    for name in ("batch", "target", "target_batch"):
        op.add_column("grants", sa.Column(name, sa.Integer))
    op.add_column("grants", sa.Column("sized_at", UtcDateTime))
    op.add_column("grants", sa.Column("asked_at", UtcDateTime))
    op.add_column("grants", sa.Column("resizes", sa.Integer, nullable=False, server_default="0"))
    op.add_column("attempts", sa.Column("batch", sa.Integer))
    op.create_table(
        "speeds",
        sa.Column("job_id", sa.String(ID_LENGTH), sa.ForeignKey("jobs.id", name="fk_speeds_job_id"), nullable=False),
        sa.Column("attempt", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("learners", sa.Integer, nullable=False),
        sa.Column("batch", sa.Integer),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("steps", sa.BigInteger, nullable=False),
        sa.Column("pause", sa.Float),
        sa.Column("at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "attempt", name="pk_speeds"),
    )
    op.create_index("ix_speeds_at", "speeds", ["at"])


def downgrade() -> None:
    op.drop_table("speeds")
    op.drop_column("attempts", "batch")
    for name in reversed(GRANTS):
        op.drop_column("grants", name)
