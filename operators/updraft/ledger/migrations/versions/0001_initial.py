"""Create jobs, transitions, grants, attempts, checkpoints, validations, effects, and the lock of the allocation."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ID, WORD, NAME = sa.String(250), sa.String(100), sa.String(250)
TIME = sa.DateTime(timezone=True)


def _of_job(table: str) -> list[sa.schema.SchemaItem]:
    return [
        sa.Column("job_id", ID, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=f"fk_{table}_job_id"),
    ]


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", ID, nullable=False),
        sa.Column("tenant", WORD, nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("dag_id", ID, nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("manifest", sa.JSON, nullable=False),
        sa.Column("state", WORD, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("submitted_by", NAME, nullable=False),
        sa.Column("mlflow_run_id", NAME),
        sa.Column("mlflow_experiment_id", NAME),
        sa.Column("submitted_at", TIME, nullable=False),
        sa.Column("started_at", TIME),
        sa.Column("ended_at", TIME),
        sa.Column("verdict", sa.JSON),
        sa.Column("code_tree", WORD),
        sa.Column("data", sa.JSON, nullable=False),
        sa.Column("cancel_requested_at", TIME),
        sa.Column("cancel_requested_by", NAME),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("dag_id", "run_id", name="uq_jobs_dag_id_run_id"),
    )
    op.create_index("ix_jobs_submitted_at_id", "jobs", ["submitted_at", "id"])
    op.create_index("ix_jobs_tenant_name", "jobs", ["tenant", "name"])
    op.create_index("ix_jobs_state", "jobs", ["state"])
    op.create_table(
        "transitions",
        *_of_job("transitions"),
        sa.Column("seq", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("from_state", WORD),
        sa.Column("to_state", WORD, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("evidence", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "seq", name="pk_transitions"),
    )
    op.create_table(
        "grants",
        *_of_job("grants"),
        sa.Column("learners", sa.Integer, nullable=False),
        sa.Column("cpus", sa.Float, nullable=False),
        sa.Column("memory_mib", sa.BigInteger, nullable=False),
        sa.Column("gpus", sa.Integer, nullable=False),
        sa.Column("gpu_type", WORD),
        sa.Column("requested_at", TIME, nullable=False),
        sa.Column("granted_at", TIME),
        sa.Column("released_at", TIME),
        sa.PrimaryKeyConstraint("job_id", name="pk_grants"),
    )
    op.create_index("ix_grants_released_at", "grants", ["released_at"])
    op.create_table(
        "attempts",
        *_of_job("attempts"),
        sa.Column("number", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("role", WORD, nullable=False),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("ended_at", TIME),
        sa.Column("outcome", WORD),
        sa.Column("reason", sa.Text),
        sa.Column("evidence", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "number", name="pk_attempts"),
    )
    op.create_table(
        "checkpoints",
        *_of_job("checkpoints"),
        sa.Column("name", NAME, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("metrics", sa.JSON, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("uri", sa.Text, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("verified_at", TIME),
        sa.Column("deleted_at", TIME),
        sa.Column("delete_reason", sa.Text),
        sa.PrimaryKeyConstraint("job_id", "name", name="pk_checkpoints"),
    )
    op.create_table(
        "validations",
        sa.Column("tenant", WORD, nullable=False),
        sa.Column("fingerprint", WORD, nullable=False),
        sa.Column("suite_digest", WORD, nullable=False),
        sa.Column("success", sa.Boolean, nullable=False),
        sa.Column("result", sa.JSON, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "fingerprint", "suite_digest", name="pk_validations"),
    )
    op.create_table(
        "effects",
        *_of_job("effects"),
        sa.Column("key", NAME, nullable=False),
        sa.Column("value", sa.JSON, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "key", name="pk_effects"),
    )
    locks = op.create_table(
        "locks",
        sa.Column("name", NAME, nullable=False),
        sa.Column("owner", WORD),
        sa.Column("expires_at", TIME),
        sa.PrimaryKeyConstraint("name", name="pk_locks"),
    )
    op.bulk_insert(locks, [{"name": "allocation"}])


def downgrade() -> None:
    for table in ("locks", "effects", "validations", "checkpoints", "attempts", "grants", "transitions", "jobs"):
        op.drop_table(table)
