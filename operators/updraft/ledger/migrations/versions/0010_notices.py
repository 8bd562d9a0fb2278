"""Store messages to people."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from updraft.ledger.tables import ID_LENGTH, NAME_LENGTH, WORD_LENGTH, UtcDateTime

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "notices",
        sa.Column("id", sa.Integer, autoincrement=True, nullable=False),
        sa.Column("key", sa.String(NAME_LENGTH), nullable=False),
        sa.Column("job_id", sa.String(ID_LENGTH), sa.ForeignKey("jobs.id", name="fk_notices_job_id")),
        sa.Column("notifier", sa.String(WORD_LENGTH), nullable=False),
        sa.Column("kind", sa.String(WORD_LENGTH), nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("due_at", UtcDateTime),
        sa.Column("delivered_at", UtcDateTime),
        sa.Column("tries", sa.Integer, nullable=False, server_default="0"),
        sa.Column("error", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_notices"),
        sa.UniqueConstraint("key", name="uq_notices_key"),
    )
    op.create_index("ix_notices_due_at", "notices", ["due_at"])


def downgrade() -> None:
    op.drop_table("notices")
