"""Store which waiting job a job was let pass, because that one may have its room back."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("grants", sa.Column("behind", sa.String(250)))


def downgrade() -> None:
    op.drop_column("grants", "behind")
