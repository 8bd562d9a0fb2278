from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, select, text
from sqlalchemy.dialects import postgresql

from updraft.exceptions import UpdraftError
from updraft.ledger import Attempt, AttemptClosure, Checkpoint, Ledger, Request, Revision, Shown
from updraft.ledger.engine import make_engine, reading, writing
from updraft.ledger.migrate import VERSION_TABLE, configuration, upgrade
from updraft.ledger.tables import jobs, locks, metadata
from updraft.lifecycle.membership import Membership

AT = "2026-01-01 12:00:00"
MANIFEST = {"name": "n", "resources": {"learners": 3}, "export": {"promote_if": {"auc": "> 0.5"}}}


def test_the_migrations_lead_to_the_tables_of_the_code(ledger_url: str) -> None:
    engine = make_engine(ledger_url)
    with reading(engine) as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        assert compare_metadata(context, metadata) == []
        head = ScriptDirectory.from_config(configuration()).get_current_head()
        assert context.get_current_revision() == head
    engine.dispose()


def test_the_migrations_are_sql_that_postgresql_has() -> None:
    config = configuration()
    config.output_buffer = io.StringIO()
    command.upgrade(config, "head", sql=True)
    sql = config.output_buffer.getvalue()
    assert "TIMESTAMP WITH TIME ZONE" in sql
    assert "memory_mib BIGINT NOT NULL" in sql
    assert "INSERT INTO locks (name" in sql
    assert "ALTER TABLE jobs ADD COLUMN revision INTEGER DEFAULT '0' NOT NULL" in sql
    assert "id SERIAL NOT NULL" in sql
    assert 'INSERT INTO requests (job_id, seq, kind, "by", at' in sql


def test_the_lock_is_a_row_lock_on_postgresql() -> None:
    query = select(locks.c.name).with_for_update()
    assert "FOR UPDATE" in str(query.compile(dialect=postgresql.dialect()))  # type: ignore[no-untyped-call]
    assert jobs.c.manifest.type.compile(postgresql.dialect()) == "JSON"  # type: ignore[no-untyped-call]


def rows_of_the_first_version(url: str) -> None:
    """A ledger as the first version left it: a job that runs, one that was cancelled, one whose cancel is pending."""
    upgrade(url, "0001")
    engine = make_engine(url)
    job = """INSERT INTO jobs (id, tenant, name, dag_id, run_id, manifest, state, reason, submitted_by, submitted_at,
                               data, ended_at, cancel_requested_at, cancel_requested_by)
             VALUES (:id, 't', 'n', 'd', :id, :manifest, :state, 'r', 'ada', :at, '[]', :ended, :asked, :by)"""
    at = {"at": AT, "manifest": json.dumps(MANIFEST)}
    with writing(engine) as connection:
        for row in (
            {"id": "runs", "state": "PROCESSING", "ended": None, "asked": None, "by": None},
            {"id": "ended", "state": "CANCELLED", "ended": AT, "asked": AT, "by": "bob"},
            {"id": "asked", "state": "QUEUED", "ended": None, "asked": AT, "by": "eve"},
        ):
            connection.execute(text(job), row | at)
        for statement in (
            "INSERT INTO transitions VALUES ('runs', 1, :at, NULL, 'PENDING', 'submitted', '{}')",
            "INSERT INTO attempts VALUES ('runs', 1, 'train', :at, NULL, NULL, NULL, '{}')",
            "INSERT INTO checkpoints VALUES ('runs', 's4', 4, 1, '{}', 7, 's3://x', :at, :at, NULL, NULL)",
        ):
            connection.execute(text(statement), at)
    engine.dispose()


def test_a_ledger_of_the_first_version_is_brought_up_with_its_rows(empty_url: str) -> None:
    rows_of_the_first_version(empty_url)
    upgrade(empty_url)
    ledger, noon = Ledger(empty_url), datetime(2026, 1, 1, 12, tzinfo=UTC)
    job = ledger.jobs.get("runs")
    assert (job.revision, job.controller_seen_at, job.override) == (0, None, None)
    assert ledger.jobs.revisions("runs") == [Revision("runs", 0, MANIFEST, {}, "ada", noon)]
    assert {job.id: job.shown for job in ledger.jobs.find()} == dict.fromkeys(
        ("runs", "ended", "asked"), Shown(3, ("auc",))
    )
    with reading(ledger._engine) as connection:  # kept, and not made of the manifest at each look
        assert connection.execute(select(jobs.c.shown)).scalars().all() == [{"learners": 3, "metrics": ["auc"]}] * 3
    assert ledger.attempts.of_job("runs") == [Attempt("runs", "train", 1, noon, membership=Membership.first(3))]
    assert ledger.checkpoints.of_job("runs") == [Checkpoint("runs", "s4", 4, 1, {}, 7, "s3://x", noon, noon)]
    # Whoever asked to cancel before is found by whoever asks again.
    assert ledger.requests.make("asked", "cancel", "ada") == Request("asked", 1, "cancel", "eve", noon)
    assert ledger.requests.of_job("ended") == [
        Request("ended", 1, "cancel", "bob", noon, answered_at=noon, answer="the job has ended CANCELLED")
    ]
    ledger.attempts.close("runs", "train", 1, AttemptClosure("infrastructure", "lost"))
    assert ledger.attempts.ensure("runs", "train", after=1).number == 2
    assert ledger.outbox.undelivered() == []
    ledger.close()


def test_the_newest_migration_can_be_taken_back(empty_url: str) -> None:
    rows_of_the_first_version(empty_url)
    engine = make_engine(empty_url)
    with reading(engine) as connection:
        before = {table: rows(connection, table) for table in ("jobs", "attempts", "checkpoints")}
    upgrade(empty_url)
    with writing(engine) as connection:
        command.downgrade(configuration(connection), "0001")
    with reading(engine) as connection:
        assert {table: rows(connection, table) for table in before} == before
    engine.dispose()


def rows(connection: Connection, table: str) -> list[dict[str, Any]]:
    return [dict(row._mapping) for row in connection.execute(text(f"SELECT * FROM {table} ORDER BY 1"))]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "not a database URL"),
        ("mysql://u:secret@h/d", "not supported|not a database URL"),
        ("sqlite://", "names no file"),
    ],
)
def test_urls_that_cannot_be_a_ledger_are_named_without_their_secret(url: str, message: str) -> None:
    with pytest.raises(UpdraftError, match=message) as caught:
        Ledger(url)
    assert "secret" not in str(caught.value)


def test_naive_times_are_refused(ledger: Ledger, submit: Callable[..., object]) -> None:
    from sqlalchemy.exc import StatementError

    submit()
    with pytest.raises(StatementError, match="no time zone"):
        ledger.checkpoints.record(
            "job-1", "c", step=1, attempt=1, metrics={}, bytes=1, uri="s3://x", created_at=datetime(2026, 1, 1)
        )
