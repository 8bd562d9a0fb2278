"""On SQLite, no request to Airflow waits on the event loop for a lock that another request holds."""

from __future__ import annotations

import asyncio
import importlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.orm import sessionmaker as plain_session_maker
from structlog.testing import capture_logs

from updraft.airflow_seams.sqlite_sessions import _writer, session_maker, write
from updraft.stack.config import choose_config, generate_secrets, reveal
from updraft.stack.files import airflow_configuration
from updraft.stack.layout import Home

LOCK_SECONDS = 20.0
HOUR = timedelta(hours=1)


class Base(DeclarativeBase):
    pass


class Audit(Base):
    __tablename__ = "log"
    id: Mapped[int] = mapped_column(primary_key=True)
    event: Mapped[str]


class Other(Base):
    __tablename__ = "other"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "airflow.db"


@pytest.fixture
def engine(file: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{file}?timeout={LOCK_SECONDS}", connect_args={"check_same_thread": False})
    with made.begin() as connection:
        connection.execute(text("PRAGMA journal_mode=WAL"))
    Base.metadata.create_all(made)
    yield made
    made.dispose()


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """As a request that has written, and whose commit is still to come."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.rollback()


def written() -> None:
    """All rows that were handed over until now."""
    _writer().submit(int).result(timeout=60)


def events(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.execute(text("select event from log order by id")).scalars())


async def add(session: Any, *rows: Any) -> None:
    session.add_all(rows)
    session.commit()


def test_audit_rows_of_the_event_loop_are_written_by_a_thread_in_their_order(engine: Engine, file: Path) -> None:
    make = session_maker(engine)
    with locked(file), make() as session:
        for name in ("one", "two", "three"):
            asyncio.run(asyncio.wait_for(add(session, Audit(event=name)), LOCK_SECONDS / 4))
        assert events(engine) == []
    written()
    assert events(engine) == ["one", "two", "three"]


def test_everything_else_is_committed_where_it_is_asked_for(engine: Engine) -> None:
    make = session_maker(engine)
    with make() as session:
        asyncio.run(add(session, Audit(event="with another row"), Other()))
        assert events(engine) == ["with another row"]
        session.add(Audit(event="off the loop"))
        session.commit()
    assert events(engine) == ["with another row", "off the loop"]


def test_a_lock_that_stays_loses_audit_rows_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "impatient.db"
    engine = create_engine(f"sqlite:///{file}?timeout=0")
    Base.metadata.create_all(engine)
    with locked(file):
        write(engine, "1 row(s) of the audit log", lambda session: session.add(Audit(event="lost")), 0.0)
    assert "1 row(s) of the audit log could not be written: database is locked" in caplog.text
    engine.dispose()


@pytest.mark.parametrize("maker", [session_maker, plain_session_maker])
def test_airflows_own_audit_log_is_what_would_wait(engine: Engine, file: Path, maker: Any) -> None:
    """If the second case passes some day, Airflow writes its audit log elsewhere, and the session maker can go."""
    from airflow.api_fastapi.logging.decorators import action_logging
    from airflow.models.log import Log

    with engine.begin() as connection:
        connection.execute(text("drop table log"))
        Log.__table__.create(connection)  # type: ignore[attr-defined]
    request: Any = SimpleNamespace(scope={}, headers={}, query_params={}, path_params={}, method="POST")
    user = SimpleNamespace(get_name=lambda: "admin")
    waited = create_engine(f"sqlite:///{file}?timeout=0.2", connect_args={"check_same_thread": False})
    with locked(file), maker(waited)() as session:
        coroutine = action_logging("trigger_dag_run")(request, session, user)
        if maker is session_maker:
            asyncio.run(coroutine)
        else:
            with pytest.raises(Exception, match="database is locked"):
                asyncio.run(coroutine)
    written()
    assert events(engine) == (["trigger_dag_run"] if maker is session_maker else [])
    waited.dispose()


@pytest.mark.parametrize("maker", [session_maker, plain_session_maker])
def test_airflow_deletes_expired_tokens_without_waiting_on_the_loop(
    engine: Engine, file: Path, maker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second case is Airflow's own: it waits for the lock on the loop, gives up and logs a traceback. If it passes
    some day without one, Airflow deletes tokens elsewhere, and this part of the session maker can go."""
    from airflow.models.revoked_token import RevokedToken

    RevokedToken.__table__.create(engine)  # type: ignore[attr-defined]
    now = datetime.now(UTC)
    with plain_session_maker(engine)() as session:
        session.add_all([RevokedToken(jti="old", exp=now - timedelta(days=1)), RevokedToken(jti="new", exp=now + HOUR)])
        session.commit()
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_EXPIRATION_TIME", "0")  # it deletes them twice as often as they expire
    waited = create_engine(f"sqlite:///{file}?timeout=0.2", connect_args={"check_same_thread": False})

    async def asked() -> bool:
        with maker(waited)() as session:
            return RevokedToken.is_revoked("new", session=session)

    with locked(file), capture_logs() as logged:
        assert asyncio.run(asked())
        assert bool(logged) == (maker is plain_session_maker)
    written()
    with engine.connect() as connection:
        left = set(connection.execute(text("select jti from revoked_token")).scalars())
    assert left == ({"new"} if maker is session_maker else {"old", "new"})
    waited.dispose()


def test_airflow_is_told_of_it(tmp_path: Path) -> None:
    home = Home(root=tmp_path, repository=tmp_path)
    text = airflow_configuration(home, choose_config({}), reveal(generate_secrets()))
    named = next(line for line in text.splitlines() if line.startswith("sql_alchemy_session_maker"))
    module, _, name = named.split(" = ")[1].rpartition(".")
    assert getattr(importlib.import_module(module), name) is session_maker
