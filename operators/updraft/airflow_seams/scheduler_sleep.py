"""The seam `scheduler_sleep`: Airflow's idle scheduler sleeps until something has happened that concerns it.

Airflow's scheduler looks at everything once per `scheduler_idle_sleep_time`. A short time costs some per cent of a core
permanently, a long time delays every step of every job. On the embedded stack's SQLite, a cheap query shows often
whether anything was written that concerns the scheduler, which improves both. Called by `stack.airflow_scheduler`; with
another database, Airflow's own sleep stays.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from updraft.airflow_seams.switch import applies

LOOK_SECONDS = 0.1
LOOK_SHARE = 0.05  # of the time at most: with thousands of tasks a query takes longer, and is made less often
BUSY_SECONDS = 5.0  # after a change, no sleep is longer than Airflow's default for this time
FALLBACK_SECONDS = 1.0  # Airflow's default, used if the database does not answer

# Runs and tasks that may need the scheduler. A task that ends leaves `running`, a trigger that fires leaves `deferred`,
# a new run is `queued`. What becomes due by time alone (cron, a retry's delay) waits for the end of the sleep.
CONCERNS = """
SELECT 'run', id, state FROM dag_run WHERE state IN ('queued', 'running')
UNION ALL
SELECT 'task', id, state FROM task_instance
 WHERE state IN ('scheduled', 'queued', 'running', 'restarting', 'deferred', 'up_for_retry', 'up_for_reschedule')
UNION ALL
SELECT 'task', id, NULL FROM task_instance WHERE state IS NULL
UNION ALL
SELECT 'dag', count(*), max(next_dagrun_create_after) FROM dag WHERE NOT is_paused
"""


class WakingSleep:
    """`sleep(seconds)` that returns as soon as the database's facts differ from those at the last return.

    A change before the call, while the scheduler was working, ends the sleep at once: nothing is missed.
    """

    def __init__(
        self,
        file: Path,
        *,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
        self._pause = pause
        self._clock = clock
        self._connection: sqlite3.Connection | None = None
        self._version: int | None = None
        self._busy_until = 0.0
        self._known: frozenset[tuple[Any, ...]] | None = None

    def sleep(self, seconds: float) -> None:
        now = self._clock()
        # The process of an ended task is free again a moment later, which no table shows.
        until = now + (min(seconds, FALLBACK_SECONDS) if now < self._busy_until else seconds)
        try:
            while True:
                began = self._clock()
                if self._changed():
                    self._busy_until = self._clock() + BUSY_SECONDS
                    return
                if (left := until - self._clock()) <= 0:
                    return
                self._pause(min(left, max(LOOK_SECONDS, (self._clock() - began) / LOOK_SHARE)))
        except sqlite3.Error as exc:
            logging.getLogger(__name__).debug("cannot look for changes: %s", exc)
            self._connection = self._version = self._known = None
            self._pause(max(0.0, min(FALLBACK_SECONDS, until - self._clock())))

    def _changed(self) -> bool:
        if self._connection is None:
            address = f"{self._file.absolute().as_uri()}?mode=ro"
            self._connection = sqlite3.connect(address, uri=True, timeout=FALLBACK_SECONDS, check_same_thread=False)
        version = self._connection.execute("PRAGMA data_version").fetchone()[0]
        if version == self._version:
            return False
        self._version = version
        found = frozenset(self._connection.execute(CONCERNS))
        changed = found != self._known
        self._known = found
        return changed


def install(runner: Any, connection: str) -> bool:
    """Give Airflow's scheduler this sleep; return whether it got it.

    runner: the module `airflow.jobs.scheduler_job_runner`, which uses `time` for its idle sleep only.
    connection: Airflow's address of its database.
    """
    if not applies("scheduler_sleep"):
        return False
    path = connection.partition("?")[0].removeprefix("sqlite:///")
    if path == connection.partition("?")[0]:
        return False
    runner.time = SimpleNamespace(sleep=WakingSleep(Path(path)).sleep)
    return True
