"""Store what happened to the models of a series: promotions, rejections, approvals and roll-backs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from updraft.ledger.tables import ID_LENGTH, NAME_LENGTH, WORD_LENGTH, UtcDateTime

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "series_events",
        sa.Column("id", sa.Integer, autoincrement=True, nullable=False),
        sa.Column("key", sa.String(NAME_LENGTH), nullable=False),
        sa.Column("tenant", sa.String(WORD_LENGTH), nullable=False),
        sa.Column("series", sa.String(NAME_LENGTH), nullable=False),
        sa.Column("at", UtcDateTime, nullable=False),
        sa.Column("kind", sa.String(WORD_LENGTH), nullable=False),
        sa.Column("job_id", sa.String(ID_LENGTH), sa.ForeignKey("jobs.id", name="fk_series_events_job_id")),
        sa.Column("model", sa.String(NAME_LENGTH)),
        sa.Column("version", sa.String(WORD_LENGTH)),
        sa.Column("by", sa.String(NAME_LENGTH)),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("evidence", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_series_events"),
        sa.UniqueConstraint("key", name="uq_series_events_key"),
    )
    op.create_index("ix_series_events_tenant_series", "series_events", ["tenant", "series"])
    op.create_index("ix_series_events_tenant_model", "series_events", ["tenant", "model"])


def downgrade() -> None:
    op.drop_table("series_events")
