"""Store the planner's decision about a waiting job in the job's row, and a counter that shows when to plan.

The row of `queue` replaces the lock row of the allocation.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

LOCK = "allocation"
INDEX = "ix_grants_changed"
ADDED = ("disk_mib", "place", "reason", "impossible", "changed")


def _columns() -> tuple[sa.Column[Any], ...]:
    zero: dict[str, Any] = {"nullable": False, "server_default": "0"}
    return (
        sa.Column("disk_mib", sa.BigInteger, **zero),
        sa.Column("place", sa.Integer),
        sa.Column("reason", sa.Text),
        sa.Column("impossible", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("changed", sa.BigInteger, **zero),
    )


def upgrade() -> None:
    queue = op.create_table(
        "queue",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("changes", sa.BigInteger, nullable=False),
        sa.Column("planned", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_queue"),
    )
    op.bulk_insert(queue, [{"id": 1, "changes": 1, "planned": 0}])  # jobs that wait now are planned at once
    for column in _columns():
        op.add_column("grants", column)
    op.create_index(INDEX, "grants", ["changed"])
    op.execute(f"DELETE FROM locks WHERE name = '{LOCK}'")


def downgrade() -> None:
    op.execute(f"INSERT INTO locks (name) VALUES ('{LOCK}')")
    op.drop_index(INDEX, "grants")
    for name in reversed(ADDED):
        op.drop_column("grants", name)
    op.drop_table("queue")
