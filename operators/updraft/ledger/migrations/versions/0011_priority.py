"""Store the priority of a job in the queue."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from updraft.ledger.tables import WORD_LENGTH

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("grants", sa.Column("priority", sa.String(WORD_LENGTH), nullable=False, server_default="normal"))


def downgrade() -> None:
    op.drop_column("grants", "priority")
