"""Store what the planner decided about sizes, what it brought, and what elastic jobs measure of their own scaling."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from updraft.ledger.tables import ID_LENGTH, WORD_LENGTH, UtcDateTime

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def _job(table: str) -> sa.Column[str]:
    key = sa.ForeignKey("jobs.id", name=f"fk_{table}_job_id")
    return sa.Column("job_id", sa.String(ID_LENGTH), key, nullable=False)


def upgrade() -> None:
    op.create_table(
        "analyses",
        _job("analyses"),
        sa.Column("timings", sa.JSON, nullable=False),
        sa.Column("gradient_bytes", sa.Float),
        sa.Column("noise", sa.Float),
        sa.Column("follows_batch", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("job_id", name="pk_analyses"),
    )
    op.create_index("ix_analyses_at", "analyses", ["at"])
    op.create_table(
        "exchanges",
        sa.Column("tenant", sa.String(ID_LENGTH), nullable=False),
        sa.Column("kind", sa.String(WORD_LENGTH), nullable=False),
        sa.Column("learners", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("measured", sa.JSON, nullable=False),
        _job("exchanges"),
        sa.Column("at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "kind", "learners", name="pk_exchanges"),
    )
    op.create_table(
        "resizes",
        sa.Column("id", sa.Integer, autoincrement=True, nullable=False),
        sa.Column("round", sa.BigInteger, nullable=False),
        _job("resizes"),
        sa.Column("at", UtcDateTime, nullable=False),
        sa.Column("before", sa.Integer, nullable=False),
        sa.Column("before_batch", sa.Integer),
        sa.Column("after", sa.Integer, nullable=False),
        sa.Column("after_batch", sa.Integer),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("expected", sa.Float),
        sa.Column("step_worth", sa.Float, nullable=False),
        sa.Column("seconds_before", sa.Float),
        sa.Column("gained", sa.Float),
        sa.Column("pause", sa.Float),
        sa.Column("closed_at", UtcDateTime),
        sa.Column("shown", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.PrimaryKeyConstraint("id", name="pk_resizes"),
    )
    op.create_index("ix_resizes_round", "resizes", ["round"])
    op.create_index("ix_resizes_job_id", "resizes", ["job_id"])


def downgrade() -> None:
    for name in ("resizes", "exchanges", "analyses"):
        op.drop_table(name)
