"""Queued tasks that do not start, in a database with the columns of Airflow's that are asked for."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from airflow.models.taskinstance import TaskInstance
from rich.console import Console

from updraft.stack import control, display
from updraft.stack.layout import Home
from updraft.stack.not_starting import tasks_not_starting
from updraft.stack.status import stack_status

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def database(folder: Path, *tasks: tuple[str, float]) -> Path:
    """`tasks`: state, and seconds since it was queued. Written as SQLAlchemy writes it."""
    file = folder / "airflow.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE task_instance (state TEXT, queued_dttm TEXT)")
        rows = [(state, (NOW - timedelta(seconds=ago)).strftime("%Y-%m-%d %H:%M:%S.%f")) for state, ago in tasks]
        connection.executemany("INSERT INTO task_instance VALUES (?, ?)", rows)
    return file


def test_airflow_has_these_columns() -> None:
    assert {"state", "queued_dttm"} <= set(TaskInstance.__table__.columns.keys())


@pytest.mark.parametrize(
    "tasks",
    [
        (),
        (("queued", 3.0),),
        (("running", 900.0), ("success", 900.0)),
        (*(("running", 900.0),) * 8, ("queued", 600.0)),
    ],
    ids=["nothing", "just queued", "none queued", "no slot free"],
)
def test_what_is_right(tmp_path: Path, tasks: tuple[tuple[str, float], ...]) -> None:
    assert tasks_not_starting(database(tmp_path, *tasks), slots=8, now=NOW) is None


def test_tasks_that_are_queued_though_slots_are_free(tmp_path: Path) -> None:
    file = database(tmp_path, ("queued", 3.0), ("queued", 40.0), ("running", 60.0))
    assert tasks_not_starting(file, slots=8, now=NOW) == (
        "2 tasks are queued and not started, the oldest for 40 s, though 7 of 8 slots are free"
    )


def test_no_database_is_no_answer(tmp_path: Path) -> None:
    assert tasks_not_starting(tmp_path / "none.db", slots=8) is None
    assert not (tmp_path / "none.db").exists()


def test_status_is_not_ready_and_says_so(home: Home) -> None:
    control.initialise(home)
    status = replace(stack_status(home, cpu_sample_seconds=0), phase="running", not_starting="1 task is queued")
    assert not status.ready
    output = StringIO()
    display.show_status(status, Console(file=output, width=100))
    assert "Airflow: 1 task is queued." in output.getvalue()
