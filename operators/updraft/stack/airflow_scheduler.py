"""`python -m updraft.stack.airflow_scheduler`: Airflow's scheduler, with the heavy imports of tasks made once.

The executor (`airflow_executor`) forks each task from the scheduler. What is imported here is shared by all of them;
otherwise every task would spend seconds and its own memory on KubernetesPodOperator and the MLflow client. Great
Expectations is left out: one task needs it, and only when data has changed.

Before it starts it closes the records of schedulers that died on this host, so that their tasks are free at once.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from updraft.stack.airflow_wakeup import install

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

PRELOADED = (
    "airflow.dag_processing.bundles.manager",
    "airflow.dag_processing.dagbag",
    "airflow.providers.cncf.kubernetes.operators.pod",
    "airflow.sdk.execution_time.task_runner",
    "httpx",
    "kubernetes.client",
    "mlflow.store.tracking.rest_store",
    "mlflow.tracking.request_auth.registry",
    "mlflow.tracking.request_header.registry",
    "sqlalchemy",
    "updraft.guardian.ending",
    "updraft.kubernetes.preflight",
    "updraft.ledger",
    "updraft.operators.reaper",
    "updraft.operators.requests",
    "updraft.operators.wiring",
    "updraft.storage.objects",
    "updraft.tracking.replay",
)


def preload(names: Iterable[str]) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:  # a task that needs it will say so where people look
            logging.getLogger(__name__).warning("%s cannot be imported", name, exc_info=True)


def close_dead_schedulers(session: Session, hostname: str) -> int:
    """Mark the running SchedulerJobs of this host as failed; returns how many there were.

    Airflow frees the tasks of a dead scheduler (queued, running or restarting ones; deferred tasks belong to the
    triggerer) when its job no longer counts as running: `SchedulerJobRunner.adopt_or_reset_orphaned_tasks`, at each
    start and every 30 s. A scheduler that was killed counts as running until its heartbeat is 30 s old, so the look at
    the start would find nothing, and tasks would wait for a minute.

    No task runs twice. The host has one scheduler at a time, and whoever starts it has seen the end of the one before
    and of its tasks: the embedded supervisor kills what is left of its session (tasks leave their process group, not
    their session), and a container or a pod ends with all of its processes. On Linux the kernel also kills the process
    of a task with the one that watches it. Airflow gives a freed task a new id, with which it refuses what a process of
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


def free_tasks_of_dead_schedulers() -> None:
    """Close their records; without a database Airflow frees the tasks later, by itself."""
    from airflow.utils.net import get_hostname
    from airflow.utils.session import create_session
    from sqlalchemy.exc import SQLAlchemyError

    log = logging.getLogger(__name__)
    try:
        with create_session() as session:
            closed = close_dead_schedulers(session, get_hostname())
    except SQLAlchemyError as exc:
        log.warning("The records of earlier schedulers were not closed; their tasks are free a minute later: %s", exc)
        return
    if closed:
        log.info("%d earlier scheduler(s) of this host ended without saying so; their tasks are free now", closed)


def main() -> None:
    preload(PRELOADED)
    from airflow.configuration import conf  # takes seconds, and other modules import this one
    from airflow.jobs import scheduler_job_runner

    from updraft.storage.platform import warm_up

    warm_up()

    install(scheduler_job_runner, conf.get("database", "sql_alchemy_conn"))
    free_tasks_of_dead_schedulers()
    sys.argv = ["airflow", "scheduler", "--skip-serve-logs"]
    importlib.import_module("airflow.__main__").main()


if __name__ == "__main__":
    main()
