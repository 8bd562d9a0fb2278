"""Store the nodes that a queued job may lie on: its node selector and its tolerations.

The column is empty for jobs that were queued by an earlier version: any node, as before.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("grants", sa.Column("placement", sa.JSON))


def downgrade() -> None:
    op.drop_column("grants", "placement")
