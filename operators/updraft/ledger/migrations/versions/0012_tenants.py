"""Store the tenants in force, what jobs have used, and which jobs are asked to give their room back."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from updraft.ledger.tables import ID_LENGTH, WORD_LENGTH, UtcDateTime

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("grants", sa.Column("leaving", sa.Text))
    op.create_table(
        "uses",
        sa.Column("id", sa.Integer, autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(ID_LENGTH), sa.ForeignKey("jobs.id", name="fk_uses_job_id"), nullable=False),
        sa.Column("learners", sa.Integer, nullable=False),
        sa.Column("cpus", sa.Float, nullable=False),
        sa.Column("memory_mib", sa.BigInteger, nullable=False),
        sa.Column("gpus", sa.Integer, nullable=False),
        sa.Column("gpu_type", sa.String(WORD_LENGTH)),
        sa.Column("granted_at", UtcDateTime, nullable=False),
        sa.Column("released_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_uses"),
    )
    op.create_index("ix_uses_released_at", "uses", ["released_at"])
    op.create_table(
        "tenancy",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.Column("read_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tenancy"),
    )


def downgrade() -> None:
    op.drop_table("tenancy")
    op.drop_table("uses")
    op.drop_column("grants", "leaving")
