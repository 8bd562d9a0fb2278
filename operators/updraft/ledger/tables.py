"""Define the current tables for SQLAlchemy. `migrations/` holds the steps to them; a test compares the two."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
)
from sqlalchemy.types import TypeDecorator

ID_LENGTH = 250  # the length that Airflow allows for a run id
WORD_LENGTH = 100
NAME_LENGTH = 250


class UtcDateTime(TypeDecorator[datetime]):
    """Times in UTC with a time zone. SQLite stores them without the zone, PostgreSQL as timestamptz."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value.isoformat()} has no time zone; the ledger takes aware times only")
        return value.astimezone(UTC)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        stored: datetime = value
        return stored.replace(tzinfo=UTC) if stored.tzinfo is None else stored.astimezone(UTC)


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    }
)


def _job_id() -> Column[str]:
    return Column("job_id", String(ID_LENGTH), ForeignKey("jobs.id"), primary_key=True)


jobs = Table(
    "jobs",
    metadata,
    Column("id", String(ID_LENGTH), primary_key=True),
    Column("tenant", String(WORD_LENGTH), nullable=False),
    Column("name", String(NAME_LENGTH), nullable=False),
    Column("dag_id", String(ID_LENGTH), nullable=False),
    Column("run_id", String(ID_LENGTH), nullable=False),
    Column("manifest", JSON, nullable=False),
    Column("state", String(WORD_LENGTH), nullable=False),
    Column("reason", Text, nullable=False),
    Column("submitted_by", String(NAME_LENGTH), nullable=False),
    Column("mlflow_run_id", String(NAME_LENGTH)),
    Column("mlflow_experiment_id", String(NAME_LENGTH)),
    Column("submitted_at", UtcDateTime, nullable=False),
    Column("started_at", UtcDateTime),
    Column("ended_at", UtcDateTime),
    Column("verdict", JSON(none_as_null=True)),
    Column("code_tree", String(WORD_LENGTH)),
    Column("data", JSON, nullable=False),
    Column("cancel_requested_at", UtcDateTime),
    Column("cancel_requested_by", String(NAME_LENGTH)),
    Column("revision", Integer, nullable=False, server_default="0"),
    Column("guardian_seen_at", UtcDateTime, key="controller_seen_at"),
    Column("guardian_what", String(NAME_LENGTH), key="controller_what"),
    Column("override", JSON(none_as_null=True)),
    Column("shown", JSON(none_as_null=True)),
    Index(None, "submitted_at", "id"),
    Index(None, "tenant", "name"),
    Index(None, "state"),
    UniqueConstraint("dag_id", "run_id"),
)

transitions = Table(
    "transitions",
    metadata,
    _job_id(),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("at", UtcDateTime, nullable=False),
    Column("from_state", String(WORD_LENGTH)),
    Column("to_state", String(WORD_LENGTH), nullable=False),
    Column("reason", Text, nullable=False),
    Column("evidence", JSON, nullable=False),
)

grants = Table(
    "grants",
    metadata,
    _job_id(),
    Column("learners", Integer, nullable=False),
    Column("cpus", Float, nullable=False),  # this and the next three: per learner
    Column("memory_mib", BigInteger, nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("gpu_type", String(WORD_LENGTH)),
    Column("requested_at", UtcDateTime, nullable=False),
    Column("granted_at", UtcDateTime),
    Column("released_at", UtcDateTime),
    Column("disk_mib", BigInteger, nullable=False, server_default="0"),  # per learner
    Column("placement", JSON(none_as_null=True)),  # labels of nodes and tolerations; none: any node
    Column("priority", String(WORD_LENGTH), nullable=False, server_default="normal"),
    # The planner's last decision while the job waits: its place from 1, the reason, whether waiting is useless.
    Column("place", Integer),
    Column("reason", Text),
    Column("impossible", Boolean, nullable=False, server_default=false()),
    Column("changed", BigInteger, nullable=False, server_default="0"),  # `queue.changes` when the row last changed
    Column("leaving", Text),  # why the job is asked to give back what it was granted
    Column("behind", String(ID_LENGTH)),  # the waiting job that it was let pass, and that may have its room back
    Column("estimated", Boolean, nullable=False, server_default=false()),  # whether its start was estimated
    Column("expected_at", UtcDateTime),  # the estimate; none: unknown
    # Of an elastic job: its limits; the batch of its size; the size that it is being given; since when it has its size.
    Column("elastic", JSON(none_as_null=True)),
    Column("batch", Integer),
    Column("target", Integer),
    Column("target_batch", Integer),
    Column("sized_at", UtcDateTime),
    Column("asked_at", UtcDateTime),  # when it was asked to leave for another size, until it trains with it
    Column("resizes", Integer, nullable=False, server_default="0"),
    Column("pinned", Integer),  # the learners that a user has asked for; none: the planner chooses
    Column("pinned_by", String(NAME_LENGTH)),
    Index(None, "released_at"),
    Index(None, "changed"),
)

# What jobs have held and released, one row for each grant.
uses = Table(
    "uses",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("job_id", String(ID_LENGTH), ForeignKey("jobs.id"), nullable=False),
    Column("learners", Integer, nullable=False),
    Column("cpus", Float, nullable=False),  # this and the next three: per learner
    Column("memory_mib", BigInteger, nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("gpu_type", String(WORD_LENGTH)),
    Column("granted_at", UtcDateTime, nullable=False),
    Column("released_at", UtcDateTime, nullable=False),
    Index(None, "released_at"),
)

# How long a step of an elastic job took with the members of one generation of one of its attempts.
speeds = Table(
    "speeds",
    metadata,
    _job_id(),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("generation", Integer, primary_key=True, autoincrement=False, server_default="1"),  # of its members
    Column("learners", Integer, nullable=False),
    Column("batch", Integer),  # global; none: the program's own
    Column("seconds", Float, nullable=False),
    Column("steps", BigInteger, nullable=False),
    Column("pause", Float),  # not used any more: earlier versions write it
    Column("at", UtcDateTime, nullable=False),
    Index(None, "at"),
)

# What elastic jobs have measured of their own scaling (`updraft_learner.scaling`).
analyses = Table(
    "analyses",
    metadata,
    _job_id(),
    Column("timings", JSON, nullable=False),  # [samples of one learner, seconds] of each batch
    Column("gradient_bytes", Float),
    Column("noise", Float),  # the gradient noise scale, in samples
    Column("follows_batch", Boolean, nullable=False, server_default=false()),
    Column("at", UtcDateTime, nullable=False),
    Index(None, "at"),
)

# How long a tenant's learners with a kind of device take to exchange gradients; what was measured first stays. Each
# tenant measures by itself: its programs say what they like.
exchanges = Table(
    "exchanges",
    metadata,
    Column("tenant", String(ID_LENGTH), primary_key=True),
    Column("kind", String(WORD_LENGTH), primary_key=True),  # the accelerator, or "cpu"
    Column("learners", Integer, primary_key=True, autoincrement=False),
    Column("measured", JSON, nullable=False),  # [bytes, seconds] of each size
    Column("job_id", String(ID_LENGTH), ForeignKey("jobs.id"), nullable=False),
    Column("at", UtcDateTime, nullable=False),
)

# The sizes that the planner has given to elastic jobs. The decisions of one plan are a round.
resizes = Table(
    "resizes",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("round", BigInteger, nullable=False),  # `queue.changes` at the decision
    Column("job_id", String(ID_LENGTH), ForeignKey("jobs.id"), nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("before", Integer, nullable=False),  # learners; 0: the job started with this size
    Column("before_batch", Integer),
    Column("after", Integer, nullable=False),
    Column("after_batch", Integer),
    Column("reason", Text, nullable=False),
    Column("expected", Float),  # how many times as fast as before
    Column("step_worth", Float, nullable=False),  # how many times as much as before a step brings
    Column("seconds_before", Float),  # of a step; none: not measured
    Column("gained", Float),  # how many times as fast as before; none: not measured
    Column("pause", Float),  # seconds without a step
    Column("closed_at", UtcDateTime),  # when the result was known, or could not be measured any more
    Column("shown", Boolean, nullable=False, server_default=false()),  # whether a run of the DAG has reported it
    Column("refused", Boolean, nullable=False, server_default=false()),  # whether learners that should join did not
    Index(None, "round"),
    Index(None, "job_id"),
)

# A single row: the tenants in force, as the file of tenants named them when it was last right.
tenancy = Table(
    "tenancy",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("document", JSON, nullable=False),
    Column("read_at", UtcDateTime, nullable=False),
)

# A single row. A transaction that changes the queue locks this row first and increments `changes`.
queue = Table(
    "queue",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("changes", BigInteger, nullable=False),
    Column("planned", BigInteger, nullable=False),  # value of `changes` after the newest plan
)

attempts = Table(
    "attempts",
    metadata,
    _job_id(),
    Column("role", String(WORD_LENGTH), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("started_at", UtcDateTime, nullable=False),
    Column("ended_at", UtcDateTime),
    Column("outcome", String(WORD_LENGTH)),
    Column("reason", Text),
    Column("evidence", JSON, nullable=False),
    Column("label", String(WORD_LENGTH)),
    Column("relaunch", JSON(none_as_null=True)),
    Column("resume", JSON(none_as_null=True)),
    Column("first_step", BigInteger),
    Column("last_step", BigInteger),
    Column("revision", Integer, nullable=False, server_default="0"),
    Column("generation", Integer, nullable=False, server_default="1"),  # the generation of `membership`
    Column("membership", JSON(none_as_null=True)),
    Column("batch", Integer),  # the global batch that the platform chose
)

checkpoints = Table(
    "checkpoints",
    metadata,
    _job_id(),
    Column("name", String(NAME_LENGTH), primary_key=True),
    Column("step", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("metrics", JSON, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("uri", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("verified_at", UtcDateTime),
    Column("deleted_at", UtcDateTime),
    Column("delete_reason", Text),
    Column("quarantined_at", UtcDateTime),
    Column("quarantine_reason", Text),
)

validations = Table(
    "validations",
    metadata,
    Column("tenant", String(WORD_LENGTH), primary_key=True),
    Column("fingerprint", String(WORD_LENGTH), primary_key=True),
    Column("suite_digest", String(WORD_LENGTH), primary_key=True),
    Column("success", Boolean, nullable=False),
    Column("result", JSON, nullable=False),
    Column("at", UtcDateTime, nullable=False),
)

idempotency_records = Table(
    "effects",
    metadata,
    _job_id(),
    Column("key", String(NAME_LENGTH), primary_key=True),
    Column("value", JSON, nullable=False),
    Column("at", UtcDateTime, nullable=False),
)

requests = Table(
    "requests",
    metadata,
    _job_id(),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("kind", String(WORD_LENGTH), nullable=False),
    Column("by", String(NAME_LENGTH), nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("revision", JSON(none_as_null=True)),
    Column("answered_at", UtcDateTime),
    Column("answer", Text),
)

revisions = Table(
    "revisions",
    metadata,
    _job_id(),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("manifest", JSON, nullable=False),
    Column("changes", JSON, nullable=False),
    Column("by", String(NAME_LENGTH), nullable=False),
    Column("at", UtcDateTime, nullable=False),
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("job_id", String(ID_LENGTH), ForeignKey("jobs.id"), nullable=False),
    Column("state", String(WORD_LENGTH), nullable=False),
    Column("tags", JSON, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("delivered_at", UtcDateTime),
    Column("tries", Integer, nullable=False, server_default="0"),
    Column("error", Text),
    Index(None, "delivered_at"),
)

# What happened to the models of a series: the runs of one manifest name of a tenant.
series_events = Table(
    "series_events",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("key", String(NAME_LENGTH), nullable=False),  # what was done once: a second record of it changes nothing
    Column("tenant", String(WORD_LENGTH), nullable=False),
    Column("series", String(NAME_LENGTH), nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("kind", String(WORD_LENGTH), nullable=False),
    Column("job_id", String(ID_LENGTH), ForeignKey("jobs.id")),
    Column("model", String(NAME_LENGTH)),
    Column("version", String(WORD_LENGTH)),
    Column("by", String(NAME_LENGTH)),
    Column("reason", Text, nullable=False),
    Column("evidence", JSON, nullable=False),
    Index(None, "tenant", "series"),
    Index(None, "tenant", "model"),
    UniqueConstraint("key"),
)

# What is known of each series that a schedule starts.
schedules = Table(
    "schedules",
    metadata,
    Column("tenant", String(WORD_LENGTH), primary_key=True),
    Column("series", String(NAME_LENGTH), primary_key=True),
    Column("dag_id", String(ID_LENGTH), nullable=False),
    Column("rule", JSON, nullable=False),
    Column("since", UtcDateTime, nullable=False),  # when this rule came into force
    Column("slot", UtcDateTime),  # the last moment of its cron that was decided
    Column("fired_at", UtcDateTime),
    Column("fired_on", String(WORD_LENGTH)),  # fingerprint of the data then
    Column("seen", String(WORD_LENGTH)),  # fingerprint of the data at the last look
    Column("seen_since", UtcDateTime),
    Column("looked_at", UtcDateTime),
    Column("next_at", UtcDateTime),
    Column("reason", Text, nullable=False),
    Column("paused_by", String(NAME_LENGTH)),
)

# Messages to people, which the reaper sends.
notices = Table(
    "notices",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("key", String(NAME_LENGTH), nullable=False),  # what is told once: a second record of it changes nothing
    Column("job_id", String(ID_LENGTH), ForeignKey("jobs.id")),
    Column("notifier", String(WORD_LENGTH), nullable=False),
    Column("kind", String(WORD_LENGTH), nullable=False),
    Column("subject", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("due_at", UtcDateTime),  # NULL: it was delivered, or given up
    Column("delivered_at", UtcDateTime),
    Column("tries", Integer, nullable=False, server_default="0"),
    Column("error", Text),
    Index(None, "due_at"),
    UniqueConstraint("key"),
)

locks = Table(
    "locks",
    metadata,
    Column("name", String(NAME_LENGTH), primary_key=True),
    Column("owner", String(WORD_LENGTH)),  # this and the next column: the leases of `Leases.lock`
    Column("expires_at", UtcDateTime),
)
