from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import select
from sqlalchemy.dialects import postgresql

from updraft.exceptions import UpdraftError
from updraft.ledger import Ledger
from updraft.ledger.engine import make_engine, reading
from updraft.ledger.migrate import VERSION_TABLE, configuration
from updraft.ledger.tables import jobs, locks, metadata


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


def test_the_lock_is_a_row_lock_on_postgresql() -> None:
    query = select(locks.c.name).with_for_update()
    assert "FOR UPDATE" in str(query.compile(dialect=postgresql.dialect()))  # type: ignore[no-untyped-call]
    assert jobs.c.manifest.type.compile(postgresql.dialect()) == "JSON"  # type: ignore[no-untyped-call]


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
    from datetime import datetime

    from sqlalchemy.exc import StatementError

    submit()
    with pytest.raises(StatementError, match="no time zone"):
        ledger.record_checkpoint(
            "job-1", "c", step=1, attempt=1, metrics={}, bytes=1, uri="s3://x", created_at=datetime(2026, 1, 1)
        )
