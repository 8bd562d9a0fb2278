"""Check whether Airflow starts the tasks that it has queued. Called by `status`, `doctor` and `supervisor`."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

LATE_SECONDS = 15.0
BEAT_AFTER_SECONDS = 10.0  # two heartbeats of the scheduler: its loop has run since the task was queued
COUNTS = """
SELECT count(*), min(queued_dttm), (SELECT count(*) FROM task_instance WHERE state IN ('running', 'restarting'))
  FROM task_instance WHERE state = 'queued'
"""
HEARTBEAT = "SELECT max(latest_heartbeat) FROM job WHERE job_type = 'SchedulerJob' AND state = 'running'"


@dataclass(frozen=True)
class TaskQueue:
    queued: int
    oldest: str | None
    running: int


def tasks_not_starting(database: Path, *, slots: int, now: datetime | None = None) -> str | None:
    """Return what is wrong when tasks have been queued for more than `LATE_SECONDS` though slots are free, else None.

    `database`: Airflow's SQLite file. None too when it does not answer: that is for the checks of the parts to say.
    """
    try:
        with closing(_open(database)) as connection:
            queue = TaskQueue(*connection.execute(COUNTS).fetchone())
    except sqlite3.Error:
        return None
    return _late(queue, slots, now)


def scheduler_starts_nothing(database: Path, *, slots: int, processes: int, now: datetime | None = None) -> str | None:
    """Return what is wrong when the scheduler is to blame that queued tasks do not start, else None.

    On a busy machine, or while the api-server is away, a task stays queued though its process runs: the process itself
    tells the api-server that it has begun. So the scheduler is to blame only if tasks lack a process, and if its loop
    has gone round since they were queued, which its heartbeat shows.

    processes: how many it has started that still live, one for each task.
    """
    try:
        with closing(_open(database)) as connection:
            queue = TaskQueue(*connection.execute(COUNTS).fetchone())
            (beat,) = connection.execute(HEARTBEAT).fetchone()
    except sqlite3.Error:
        return None
    if queue.oldest is None or beat is None or processes >= min(queue.queued + queue.running, slots):
        return None
    went_round = (_moment(beat) - _moment(queue.oldest)).total_seconds() >= BEAT_AFTER_SECONDS
    return _late(queue, slots, now) if went_round else None


def _open(database: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=2.0)


def _late(queue: TaskQueue, slots: int, now: datetime | None) -> str | None:
    if not queue.queued or queue.running >= slots or queue.oldest is None:
        return None
    waited = ((now or datetime.now(UTC)) - _moment(queue.oldest)).total_seconds()
    if waited < LATE_SECONDS:
        return None
    tasks = "1 task is" if queue.queued == 1 else f"{queue.queued} tasks are"
    free = f"{slots - queue.running} of {slots} slots are free"
    return f"{tasks} queued and not started, the oldest for {waited:.0f} s, though {free}"


def _moment(text: str) -> datetime:
    """Parse a time as Airflow writes it: UTC, without a zone."""
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=moment.tzinfo or UTC)
