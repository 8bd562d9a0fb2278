"""The idle scheduler sleeps for as long as nothing concerns it, and not longer."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from updraft.airflow_seams import scheduler_sleep
from updraft.airflow_seams.scheduler_sleep import FALLBACK_SECONDS, LOOK_SECONDS, WakingSleep

LONG_SECONDS = 5.0


class Time:
    """A clock that goes on by sleeping only; `events` happen during the sleep that passes their second."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[tuple[float, Callable[[], object]]] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        due = [event for at, event in self.events if at <= self.now]
        self.events = [(at, event) for at, event in self.events if at > self.now]
        for event in due:
            event()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "airflow.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=wal")
        connection.execute("CREATE TABLE dag_run (id INTEGER PRIMARY KEY, state TEXT, last_scheduling_decision TEXT)")
        connection.execute("CREATE TABLE task_instance (id TEXT PRIMARY KEY, state TEXT, last_heartbeat_at TEXT)")
        connection.execute("CREATE TABLE dag (dag_id TEXT, is_paused INTEGER, next_dagrun_create_after TEXT)")
        connection.execute("INSERT INTO dag_run VALUES (1, 'running', '')")
        connection.execute("INSERT INTO task_instance VALUES ('a', 'running', '')")
        yield connection


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def waking(database: sqlite3.Connection, tmp_path: Path, time: Time) -> WakingSleep:
    made = WakingSleep(tmp_path / "airflow.db", pause=time.sleep, clock=lambda: time.now)
    made.sleep(LONG_SECONDS)  # the first look is a change
    assert time.now == 0.0
    made._busy_until = 0.0
    return made


def test_nothing_happens_and_the_sleep_is_whole(waking: WakingSleep, time: Time) -> None:
    waking.sleep(LONG_SECONDS)
    assert time.now == pytest.approx(LONG_SECONDS)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE task_instance SET state = 'success'",
        "UPDATE task_instance SET state = 'deferred'",
        "INSERT INTO task_instance VALUES ('b', NULL, '')",
        "INSERT INTO dag_run VALUES (2, 'queued', '')",
        "UPDATE dag_run SET state = 'failed'",
        "INSERT INTO dag VALUES ('new', 0, '2026-01-01')",
    ],
)
def test_what_concerns_the_scheduler_ends_the_sleep(
    waking: WakingSleep, database: sqlite3.Connection, time: Time, statement: str
) -> None:
    time.events = [(2.0, lambda: database.execute(statement))]
    waking.sleep(LONG_SECONDS)
    assert 2.0 <= time.now <= 2.0 + 2 * LOOK_SECONDS


def test_one_task_ends_as_another_begins_and_the_sleep_ends(
    waking: WakingSleep, database: sqlite3.Connection, time: Time
) -> None:
    def swap() -> None:
        database.execute("UPDATE task_instance SET state = 'success'")
        database.execute("INSERT INTO task_instance VALUES ('b', 'running', '')")

    time.events = [(2.0, swap)]
    waking.sleep(LONG_SECONDS)
    assert time.now < LONG_SECONDS


@pytest.mark.parametrize(
    "statement",
    ["UPDATE task_instance SET last_heartbeat_at = 'now'", "UPDATE dag_run SET last_scheduling_decision = 1"],
)
def test_a_sign_of_life_does_not_end_it(
    waking: WakingSleep, database: sqlite3.Connection, time: Time, statement: str
) -> None:
    time.events = [(2.0, lambda: database.execute(statement))]
    waking.sleep(LONG_SECONDS)
    assert time.now == pytest.approx(LONG_SECONDS)


def test_soon_after_a_change_it_looks_again_within_a_second(
    waking: WakingSleep, database: sqlite3.Connection, time: Time
) -> None:
    """The place of a task that has ended is free only when its process has gone, of which no table speaks."""
    database.execute("UPDATE task_instance SET state = 'success'")
    waking.sleep(LONG_SECONDS)
    waking.sleep(LONG_SECONDS)
    assert time.now == pytest.approx(FALLBACK_SECONDS)


def test_what_came_while_the_scheduler_worked_is_not_slept_over(
    waking: WakingSleep, database: sqlite3.Connection, time: Time
) -> None:
    database.execute("UPDATE task_instance SET state = 'success'")
    waking.sleep(LONG_SECONDS)
    assert time.now == 0.0


def test_without_an_answer_it_is_airflows_own_second(tmp_path: Path, time: Time) -> None:
    waking = WakingSleep(tmp_path / "missing.db", pause=time.sleep, clock=lambda: time.now)
    waking.sleep(LONG_SECONDS)
    assert time.now == FALLBACK_SECONDS


def test_only_sqlite_gets_it() -> None:
    runner = SimpleNamespace(time=None)
    assert not scheduler_sleep.install(runner, "postgresql+psycopg://airflow@db/airflow")
    assert runner.time is None
    assert scheduler_sleep.install(runner, "sqlite:////srv/airflow.db?timeout=15")
    assert callable(runner.time.sleep)
