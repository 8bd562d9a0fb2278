"""Records of schedulers that were killed, in Airflow's own tables on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.executors.base_executor import BaseExecutor
from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models.base import Base
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from sqlalchemy import Engine, create_engine, insert, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from updraft.airflow_seams.dead_schedulers import close_dead_schedulers, free_tasks_of_dead_schedulers

STATES = ("scheduled", "queued", "running", "restarting", "deferred", "success")


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = create_engine("sqlite://")
    Base.metadata.create_all(made)
    yield made
    made.dispose()


def add_job(session: Session, number: int, job_type: str, state: str, hostname: str) -> None:
    beat = datetime.now(UTC) - timedelta(seconds=3)
    row = {"id": number, "job_type": job_type, "state": state, "hostname": hostname, "latest_heartbeat": beat}
    session.execute(insert(Job).values(**row))


def test_only_the_running_schedulers_of_this_host_are_closed(engine: Engine) -> None:
    with Session(engine) as session:
        add_job(session, 1, "SchedulerJob", "running", "here")
        add_job(session, 2, "SchedulerJob", "running", "elsewhere")
        add_job(session, 3, "SchedulerJob", "success", "here")
        add_job(session, 4, "TriggererJob", "running", "here")
        add_job(session, 5, "SchedulerJob", "running", "here")

        assert close_dead_schedulers(session, "here") == 2

        found = session.execute(select(Job.id, Job.state, Job.end_date).order_by(Job.id)).all()
    assert [(number, state, ended is not None) for number, state, ended in found] == [
        (1, "failed", True),
        (2, "running", False),
        (3, "success", False),
        (4, "running", False),
        (5, "failed", True),
    ]


class OneExecutorRunner(SchedulerJobRunner):
    """All tasks are its only executor's; which one that is need not be configured."""

    def _executor_to_workloads(self, workloads: Any, session: Session) -> dict[BaseExecutor, Any]:
        return {self.executors[0]: workloads}


def test_airflow_then_frees_their_tasks_at_once_under_new_ids(engine: Engine) -> None:
    with Session(engine) as session:
        add_job(session, 1, "SchedulerJob", "running", "here")
        run = {"id": 1, "dag_id": "d", "run_id": "r", "run_type": "manual", "state": "running"}
        session.execute(insert(DagRun).values(**run, run_after=datetime.now(UTC)))
        for state in STATES:
            row = {"task_id": state, "dag_id": "d", "run_id": "r", "pool": "default_pool", "state": state}
            session.execute(insert(TaskInstance).values(**row, queued_by_job_id=1, try_number=1, max_tries=0))
        session.commit()

    runner = OneExecutorRunner(Job(), executors=[BaseExecutor()])

    def look() -> dict[str, tuple[str | None, str]]:
        """What the scheduler does first."""
        with Session(engine) as session:
            runner.adopt_or_reset_orphaned_tasks(session=session)
            session.commit()
            return {ti.task_id: (ti.state, str(ti.id)) for ti in session.scalars(select(TaskInstance))}

    before = look()
    assert {name: state for name, (state, _) in before.items()} == {state: state for state in STATES}

    with Session(engine) as session:
        close_dead_schedulers(session, "here")
        session.commit()
    after = look()

    freed = {"queued", "running", "restarting"}
    assert {name for name, (state, _) in after.items() if state is None} == freed
    assert {name for name in STATES if before[name] != after[name]} == freed
    assert {name for name in STATES if before[name][1] != after[name][1]} == freed


def test_a_scheduler_starts_where_the_database_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(*_: object) -> int:
        raise OperationalError("UPDATE job", {}, Exception("database is locked"))

    free_tasks_of_dead_schedulers(refuse)
    assert "database is locked" in caplog.text
