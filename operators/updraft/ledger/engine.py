"""Make engines and transactions. Only this module distinguishes SQLite and PostgreSQL.

SQLite: write-ahead log, `BEGIN IMMEDIATE` for every writing transaction, and 30 s of waiting for the lock, so that
writers queue instead of failing. PostgreSQL: READ COMMITTED, and row locks (`SELECT ... FOR UPDATE`) by the callers.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from updraft.exceptions import UnavailableError, UpdraftError

BUSY_SECONDS = 30
CONNECT_SECONDS = 10
_WRITE = "updraft_write"


def make_engine(url: str) -> Engine:
    """Create an engine for `url`. Raises UpdraftError when the URL is no SQLAlchemy URL of a supported database."""
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, NoSuchModuleError) as exc:
        # No `from exc`: the message of `exc` repeats the URL, which may contain a password.
        raise UpdraftError(
            f"ledger_url: not a database URL ({type(exc).__name__}); use sqlite:////path/file.db or postgresql://…"
        ) from None
    if backend not in ("sqlite", "postgresql"):
        raise UpdraftError(f"ledger_url: {backend} is not supported; use sqlite:////path/file.db or postgresql://…")
    if backend == "postgresql":
        # Without these, a call waits for many minutes if the network drops packets.
        patience = {"connect_timeout": CONNECT_SECONDS, "tcp_user_timeout": 1000 * BUSY_SECONDS}
        return create_engine(
            parsed, pool_pre_ping=True, pool_recycle=1800, isolation_level="READ COMMITTED", connect_args=patience
        )
    if not parsed.database or parsed.database == ":memory:":
        raise UpdraftError("ledger_url: names no file; processes share the ledger, so use sqlite:////path/file.db")
    Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    # One connection per working thread; a connection in use is never given to another thread.
    engine = create_engine(
        parsed, connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False}, pool_size=4, max_overflow=60
    )
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)
    return engine


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Open a connection for reading: one consistent snapshot on SQLite; on PostgreSQL a snapshot for each statement."""
    with _translated(engine), engine.connect() as connection, connection.begin():
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Open a transaction that commits at the end and rolls back on any exception."""
    with _translated(engine), engine.connect().execution_options(**{_WRITE: True}) as connection, connection.begin():
        yield connection


@contextmanager
def _translated(engine: Engine) -> Iterator[None]:
    where = engine.url.render_as_string(hide_password=True)
    try:
        yield
    except (OperationalError, ProgrammingError) as exc:
        text = str(exc.orig).strip().splitlines()[0] if str(exc.orig).strip() else type(exc.orig).__name__
        if "no such table" in text or "does not exist" in text:
            raise UnavailableError(f"The ledger at {where} is not set up ({text}); run its migrations first") from exc
        raise UnavailableError(f"The ledger at {where} cannot be used ({text}); try again") from exc
    except PoolTimeoutError as exc:
        raise UnavailableError(f"The ledger at {where} is too busy; try again") from exc
    except DBAPIError as exc:
        if exc.connection_invalidated:
            raise UnavailableError(f"The connection to the ledger at {where} was lost; try again") from exc
        raise


def _on_connect(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # otherwise sqlite3 begins transactions by itself, deferred ones
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000}")
    _use_write_ahead_log(cursor)
    cursor.execute("PRAGMA synchronous=FULL")  # an accepted job survives a power failure
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _use_write_ahead_log(cursor: sqlite3.Cursor) -> None:
    """Switch the file to write-ahead logging; the first process that opens a new file does it. SQLite does not wait
    here, whatever busy_timeout says."""
    give_up = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() >= give_up:
                raise
            time.sleep(0.02)


def _on_begin(connection: Connection) -> None:
    immediate = connection.get_execution_options().get(_WRITE)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
