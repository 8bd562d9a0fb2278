"""Whether Airflow starts the tasks that it has queued. Called by `status` and `doctor`."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

LATE_SECONDS = 15.0
COUNTS = """
SELECT count(*), min(queued_dttm), (SELECT count(*) FROM task_instance WHERE state IN ('running', 'restarting'))
  FROM task_instance WHERE state = 'queued'
"""


def tasks_not_starting(database: Path, *, slots: int, now: datetime | None = None) -> str | None:
    """What is wrong when tasks have been queued for more than `LATE_SECONDS` though slots are free, else None.

    `database`: Airflow's SQLite file. None too when it does not answer: that is for the checks of the parts to say.
    """
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=2.0)) as connection:
            queued, oldest, running = connection.execute(COUNTS).fetchone()
    except sqlite3.Error:
        return None
    if not queued or running >= slots or oldest is None:
        return None
    since = datetime.fromisoformat(oldest)
    waited = ((now or datetime.now(UTC)) - since.replace(tzinfo=since.tzinfo or UTC)).total_seconds()
    if waited < LATE_SECONDS:
        return None
    tasks = "1 task is" if queued == 1 else f"{queued} tasks are"
    free = f"{slots - running} of {slots} slots are free"
    return f"{tasks} queued and not started, the oldest for {waited:.0f} s, though {free}"
