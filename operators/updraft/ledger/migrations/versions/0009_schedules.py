"""Store what is known of each series that a schedule with conditions starts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from updraft.ledger.tables import ID_LENGTH, NAME_LENGTH, WORD_LENGTH, UtcDateTime

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "schedules",
        sa.Column("tenant", sa.String(WORD_LENGTH), nullable=False),
        sa.Column("series", sa.String(NAME_LENGTH), nullable=False),
        sa.Column("dag_id", sa.String(ID_LENGTH), nullable=False),
        sa.Column("rule", sa.JSON, nullable=False),
        sa.Column("since", UtcDateTime, nullable=False),
        sa.Column("slot", UtcDateTime),
        sa.Column("fired_at", UtcDateTime),
        sa.Column("fired_on", sa.String(WORD_LENGTH)),
        sa.Column("seen", sa.String(WORD_LENGTH)),
        sa.Column("seen_since", UtcDateTime),
        sa.Column("looked_at", UtcDateTime),
        sa.Column("next_at", UtcDateTime),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("paused_by", sa.String(NAME_LENGTH)),
        sa.PrimaryKeyConstraint("tenant", "series", name="pk_schedules"),
    )


def downgrade() -> None:
    op.drop_table("schedules")
