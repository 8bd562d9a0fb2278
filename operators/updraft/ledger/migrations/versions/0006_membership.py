"""Store each attempt's membership: its learners, by generation.

The column is empty for attempts of an earlier version; their members come from the job's manifest.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("generation", sa.Integer, nullable=False, server_default="1"))
    op.add_column("attempts", sa.Column("membership", sa.JSON))


def downgrade() -> None:
    op.drop_column("attempts", "membership")
    op.drop_column("attempts", "generation")
