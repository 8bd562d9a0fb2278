"""Store when jobs were expected to start, to compare it with when they did."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from updraft.ledger.tables import UtcDateTime

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("grants", sa.Column("estimated", sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("grants", sa.Column("expected_at", UtcDateTime))


def downgrade() -> None:
    op.drop_column("grants", "expected_at")
    op.drop_column("grants", "estimated")
