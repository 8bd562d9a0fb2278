"""Add relaunches, resume plans, users' requests, revisions, the guardian's lease, and messages to MLflow."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

ID, WORD, NAME = sa.String(250), sa.String(100), sa.String(250)
TIME = sa.DateTime(timezone=True)

REVISION = "revision"  # counted from 0, also in existing rows; all other new columns may be empty
ADDED: dict[str, dict[str, Any]] = {
    "jobs": {REVISION: sa.Integer, "guardian_seen_at": TIME, "guardian_what": NAME, "override": sa.JSON},
    "attempts": {
        "label": WORD,
        "relaunch": sa.JSON,
        "resume": sa.JSON,
        "first_step": sa.BigInteger,
        "last_step": sa.BigInteger,
        REVISION: sa.Integer,
    },
    "checkpoints": {"quarantined_at": TIME, "quarantine_reason": sa.Text},
}
CANCELS_SO_FAR = """
INSERT INTO requests (job_id, seq, kind, "by", at, answered_at, answer)
SELECT id, 1, 'cancel', COALESCE(cancel_requested_by, 'unknown'), cancel_requested_at, ended_at,
       CASE WHEN ended_at IS NULL THEN NULL ELSE 'the job has ended ' || state END
FROM jobs WHERE cancel_requested_at IS NOT NULL
"""


def _of_job(table: str) -> list[sa.schema.SchemaItem]:
    return [
        sa.Column("job_id", ID, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=f"fk_{table}_job_id"),
    ]


def upgrade() -> None:
    for table, columns in ADDED.items():
        for name, kind in columns.items():
            counted: dict[str, Any] = {"nullable": False, "server_default": "0"} if name == REVISION else {}
            op.add_column(table, sa.Column(name, kind, **counted))
    op.create_table(
        "requests",
        *_of_job("requests"),
        sa.Column("seq", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("kind", WORD, nullable=False),
        sa.Column("by", NAME, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("revision", sa.JSON),
        sa.Column("answered_at", TIME),
        sa.Column("answer", sa.Text),
        sa.PrimaryKeyConstraint("job_id", "seq", name="pk_requests"),
    )
    op.execute(CANCELS_SO_FAR)
    op.create_table(
        "revisions",
        *_of_job("revisions"),
        sa.Column("number", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("manifest", sa.JSON, nullable=False),
        sa.Column("changes", sa.JSON, nullable=False),
        sa.Column("by", NAME, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "number", name="pk_revisions"),
    )
    op.create_table(
        "outbox",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=True),
        *_of_job("outbox"),
        sa.Column("state", WORD, nullable=False),
        sa.Column("tags", sa.JSON, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("delivered_at", TIME),
        sa.Column("tries", sa.Integer, nullable=False, server_default="0"),
        sa.Column("error", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_outbox"),
    )
    op.create_index("ix_outbox_delivered_at", "outbox", ["delivered_at"])


def downgrade() -> None:
    for table in ("outbox", "revisions", "requests"):
        op.drop_table(table)
    for table, columns in ADDED.items():
        for name in columns:
            op.drop_column(table, name)
