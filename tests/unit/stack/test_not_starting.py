"""Queued tasks that do not start, in a database with the columns of Airflow's that are asked for."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from airflow.jobs.job import Job
from airflow.models.taskinstance import TaskInstance
from rich.console import Console

from updraft.stack import control, display
from updraft.stack.layout import Home
from updraft.stack.not_starting import scheduler_starts_nothing, tasks_not_starting
from updraft.stack.status import stack_status

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def written(seconds_ago: float) -> str:
    """As SQLAlchemy writes it."""
    return (NOW - timedelta(seconds=seconds_ago)).strftime("%Y-%m-%d %H:%M:%S.%f")


def database(folder: Path, *tasks: tuple[str, float], beat: float = 2.0) -> Path:
    """`tasks`: state, and seconds since it was queued. `beat`: seconds since the scheduler's last heartbeat."""
    file = folder / "airflow.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE task_instance (state TEXT, queued_dttm TEXT)")
        connection.executemany(
            "INSERT INTO task_instance VALUES (?, ?)", [(state, written(ago)) for state, ago in tasks]
        )
        connection.execute("CREATE TABLE job (job_type TEXT, state TEXT, latest_heartbeat TEXT)")
        jobs = [("SchedulerJob", "failed", 0.0), ("TriggererJob", "running", 0.0), ("SchedulerJob", "running", beat)]
        connection.executemany(
            "INSERT INTO job VALUES (?, ?, ?)", [(kind, state, written(at)) for kind, state, at in jobs]
        )
    return file


def test_airflow_has_these_columns() -> None:
    assert {"state", "queued_dttm"} <= set(TaskInstance.__table__.columns.keys())
    assert {"job_type", "state", "latest_heartbeat"} <= set(Job.__table__.columns.keys())


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


def test_the_scheduler_is_to_blame_for_queued_tasks_without_a_process(tmp_path: Path) -> None:
    file = database(tmp_path, ("queued", 20.0), ("running", 60.0))
    assert scheduler_starts_nothing(file, slots=8, processes=1, now=NOW) == (
        "1 task is queued and not started, the oldest for 20 s, though 7 of 8 slots are free"
    )


@pytest.mark.parametrize(
    ("tasks", "processes", "beat"),
    [
        ((("queued", 300.0), ("running", 600.0)), 2, 2.0),
        ((("queued", 300.0),) * 20, 8, 2.0),
        ((("queued", 20.0),), 0, 12.0),
        ((("queued", 12.0),), 0, 1.0),
        ((("running", 60.0),), 0, 2.0),
    ],
    ids=[
        "each has a process, which has not told yet",
        "all slots have a process",
        "the scheduler's loop has not gone round since",
        "just queued",
        "none queued",
    ],
)
def test_the_scheduler_is_not_to_blame(
    tmp_path: Path, tasks: tuple[tuple[str, float], ...], processes: int, beat: float
) -> None:
    file = database(tmp_path, *tasks, beat=beat)
    assert scheduler_starts_nothing(file, slots=8, processes=processes, now=NOW) is None


def test_without_a_database_nobody_is_to_blame(tmp_path: Path) -> None:
    assert scheduler_starts_nothing(tmp_path / "none.db", slots=8, processes=0) is None


def test_status_is_not_ready_and_says_so(home: Home) -> None:
    control.initialise(home)
    status = replace(stack_status(home, cpu_sample_seconds=0), phase="running", not_starting="1 task is queued")
    assert not status.ready
    output = StringIO()
    display.show_status(status, Console(file=output, width=100))
    assert "Airflow: 1 task is queued." in output.getvalue()
