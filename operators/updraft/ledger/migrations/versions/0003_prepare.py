"""Make the role part of an attempt's key: `prepare` counts its own attempts, and a training's begin with 1."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

KEY = "pk_attempts"


def upgrade() -> None:
    with op.batch_alter_table("attempts") as table:
        table.drop_constraint(KEY, type_="primary")
        table.create_primary_key(KEY, ["job_id", "role", "number"])


def downgrade() -> None:
    op.execute("DELETE FROM attempts WHERE role = 'prepare'")
    with op.batch_alter_table("attempts") as table:
        table.drop_constraint(KEY, type_="primary")
        table.create_primary_key(KEY, ["job_id", "number"])
