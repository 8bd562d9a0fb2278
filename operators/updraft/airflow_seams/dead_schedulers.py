"""The seam `dead_schedulers`: when a scheduler starts, it frees the tasks of a killed predecessor at once.

Called by `stack.airflow_scheduler` before Airflow's scheduler starts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from updraft.airflow_seams.switch import applies

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


def close_dead_schedulers(session: Session, hostname: str) -> int:
    """Mark the running SchedulerJobs of this host as failed; returns how many there were.

    Airflow frees the tasks of a dead scheduler (queued, running or restarting ones; deferred tasks belong to the
    triggerer) when its job no longer counts as running: `SchedulerJobRunner.adopt_or_reset_orphaned_tasks`, at each
    start and every 30 s. A scheduler that was killed counts as running until its heartbeat is 30 s old, so the look at
    the start would find nothing, and tasks would wait for a minute.

    No task runs twice, because the tasks of the earlier scheduler have ended before the next one starts. The embedded
    supervisor kills what is left of the scheduler's session (tasks leave their process group, not their session), and a
    container or a pod ends with all of its processes. On Linux the kernel also kills the process of a task with the one
    that watches it. Airflow gives a freed task a new id, with which it refuses what a process of
    the earlier try says.

    A scheduler on another host, as a second replica or a container made anew, keeps its record: only it knows its
    tasks. If that one is dead, they wait for its heartbeat as before.
    """
    from airflow._shared.timezones import timezone
    from airflow.jobs.job import Job, JobState
    from sqlalchemy import update

    closed = session.execute(
        update(Job)
        .where(Job.job_type == "SchedulerJob", Job.state == JobState.RUNNING, Job.hostname == hostname)
        .values(state=JobState.FAILED, end_date=timezone.utcnow())
    )
    return int(getattr(closed, "rowcount", 0))


def free_tasks_of_dead_schedulers(close: Callable[[Session, str], int] = close_dead_schedulers) -> None:
    """Close the records of the earlier schedulers of this host; without a database Airflow frees the tasks later."""
    if not applies("dead_schedulers"):
        return
    from airflow.utils.net import get_hostname
    from airflow.utils.session import create_session
    from sqlalchemy.exc import SQLAlchemyError

    log = logging.getLogger(__name__)
    try:
        with create_session() as session:
            closed = close(session, get_hostname())
    except SQLAlchemyError as exc:
        log.warning("The records of earlier schedulers were not closed; their tasks are free a minute later: %s", exc)
        return
    if closed:
        log.info("%d earlier scheduler(s) of this host ended without saying so; their tasks are free now", closed)
