"""Provide what all tasks of a job share: find the job, and turn an error into the right end of the task.

If waiting may cure an error, it is left to Airflow's retries, and recorded when they are used up. Every other error of
the platform is recorded once as the job's failure and ends the task for good; `release` bases the verdict on it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from updraft.controller.idempotency import FAILURE, NOT_NEEDED, Failure
from updraft.exceptions import DataError, NotFoundError, RefusedError, UnavailableError, UpdraftError
from updraft.lifecycle.workflow import TRAIN_ROLE
from updraft.operators.ending import EndTaskError
from updraft.recovery.outcome import FailureClass

if TYPE_CHECKING:
    from airflow.sdk import Context

    from updraft.ledger import Job
    from updraft.lifecycle import State
    from updraft.services import Services

log = logging.getLogger(__name__)


def run_key(context: Context) -> tuple[str, str]:
    """Return the DAG id and the run id of this task's run."""
    run = context["dag_run"]
    return run.dag_id, run.run_id


def find_job(services: Services, context: Context) -> Job:
    """Return the job of this task's run. Raises NotFoundError if `admit` has not recorded it."""
    return services.ledger.jobs.of_run(*run_key(context))


def record_failure(services: Services, job_id: str, task: str, cause: FailureClass, reason: str) -> None:
    """Record why the job failed. The first recorded failure stays: later ones follow from it."""
    services.ledger.idempotency.record(job_id, FAILURE, Failure(task, cause, reason))


def fail(services: Services, context: Context, job_id: str, cause: FailureClass, reason: str) -> EndTaskError:
    """Record the job's failure and return the error that the caller must raise."""
    record_failure(services, job_id, context["ti"].task_id, cause, reason)
    return EndTaskError(reason)


def advance(services: Services, job_id: str, to: State, reason: str, evidence: Mapping[str, Any] | None = None) -> None:
    """Move the job to its next state on the way to the launch.

    Does nothing once its learners were launched: a task that a user cleared afterwards must not set the state back.
    """
    if services.ledger.attempts.current(job_id, TRAIN_ROLE) is None:
        services.ledger.jobs.move(job_id, to, reason, evidence)


def require_trained(services: Services, job: Job) -> None:
    """Raise RefusedError unless the ledger says that the training succeeded; Airflow's task state is no proof."""
    train = services.ledger.attempts.current(job.id, TRAIN_ROLE)
    if train is None or train.outcome != FailureClass.DONE:
        said = (
            "it was never launched" if train is None else f"attempt {train.number} {train.outcome or 'has not ended'}"
        )
        raise RefusedError(
            f"train has no proof of success, whatever Airflow shows: {said}; clear the task train to go on with it"
        )


def task_states(context: Context) -> dict[str, str | None]:
    """Return Airflow's state of each task of the run; empty when Airflow does not answer."""
    ti: Any = context["ti"]
    run = context["dag_run"]
    try:
        states = ti.get_task_states(dag_id=run.dag_id, run_ids=[run.run_id])
    except Exception as exc:  # noqa: BLE001 - the verdict does not depend on it
        log.warning("Airflow does not say how the run's tasks stand: %s", type(exc).__name__)
        return {}
    return dict(states.get(run.run_id) or {})


def last_try(context: Context) -> bool:
    """Return whether Airflow will not retry this task by itself."""
    ti = context["ti"]
    return bool(ti.try_number > ti.max_tries)


def stop_if_over(services: Services, context: Context, job_id: str) -> None:
    """Raise EndTaskError if a user has cancelled the job, or if it has failed and this task runs a second time."""
    if (failure := services.ledger.idempotency.get(job_id, FAILURE)) is not None:
        raise EndTaskError(failure.reason)
    by = services.ledger.jobs.get(job_id).cancel_requested_by
    if by is not None:
        raise fail(services, context, job_id, FailureClass.CANCELLED, f"cancelled by {by}")


@contextmanager
def ends_job(services: Services, context: Context, cause: FailureClass, *, must_run: bool = False) -> Iterator[Job]:
    """Give the job of this task, and record an UpdraftError that is raised inside as its failure with `cause`.

    An UnavailableError is recorded only after Airflow's last try. A job that has ended, failed or was cancelled is not
    given: EndTaskError is raised. With `must_run`, only an end is: for work that must not be skipped because it cleans
    up. The tasks of a job that turned out not to train are skipped.
    """
    try:
        job = find_job(services, context)
    except NotFoundError as exc:
        raise EndTaskError(f"{exc}: `admit` has not run; submit the job again") from exc
    if job.ended:
        raise EndTaskError(
            f"job {job.id} has ended {job.state.value} ({job.reason}); an end has no exit, submit it again"
        )
    if (why := services.ledger.idempotency.get(job.id, NOT_NEEDED)) is not None:
        raise AirflowSkipException(why)
    if not must_run:
        stop_if_over(services, context, job.id)
    try:
        yield job
    except UnavailableError as exc:
        if last_try(context):
            raise fail(services, context, job.id, FailureClass.INFRASTRUCTURE, str(exc)) from exc
        raise
    except UpdraftError as exc:
        raise fail(
            services, context, job.id, FailureClass.DATA if isinstance(exc, DataError) else cause, str(exc)
        ) from exc
