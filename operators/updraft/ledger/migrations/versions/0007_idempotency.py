"""The names of the code: idempotency records, and the controller that has last touched a job."""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

COLUMNS = {"guardian_seen_at": "controller_seen_at", "guardian_what": "controller_what"}


def upgrade() -> None:
    op.rename_table("effects", "idempotency_records")
    for old, new in COLUMNS.items():
        op.alter_column("jobs", old, new_column_name=new)


def downgrade() -> None:
    for old, new in COLUMNS.items():
        op.alter_column("jobs", new, new_column_name=old)
    op.rename_table("idempotency_records", "effects")
