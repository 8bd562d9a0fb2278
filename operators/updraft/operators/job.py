"""What all tasks of a job share: finding the job, and turning an error into the right end.

An error that waiting may cure is left to Airflow's retries, and recorded when those are used up. Every other error of
ours is recorded once as the job's failure and ends the task for good; `release` makes the verdict of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from updraft.exceptions import DataError, NotFoundError, UnavailableError, UpdraftError
from updraft.recovery.outcome import Cause
from updraft.settings import settings

if TYPE_CHECKING:
    from airflow.sdk import Context

    from updraft.ledger import Job, Ledger
    from updraft.manifest import Manifest

log = logging.getLogger(__name__)

FAILURE = "failure"  # effect: the first task that failed, and why
MODEL_VERSION = "model_version"
DECISION = "promotion decided"  # and against which champion; recorded before the alias is moved
PROMOTION = "promotion"


def ledger() -> Ledger:
    from updraft.ledger import open_ledger

    return open_ledger(settings().ledger_url)


def run_key(context: Context) -> tuple[str, str]:
    run = context["dag_run"]
    return run.dag_id, run.run_id


def find_job(context: Context) -> Job:
    """The job of this run; NotFoundError if `admit` has not recorded it."""
    return ledger().job_of_run(*run_key(context))


def manifest_of(job: Job) -> Manifest:
    from updraft.manifest import parse

    return parse(job.manifest)


def record_failure(job_id: str, task: str, cause: Cause, reason: str) -> None:
    """The first failure of a job is its reason; later ones follow from it."""
    value: Mapping[str, Any] = {"task": task, "cause": cause.value, "reason": reason}
    kept = ledger().record_effect(job_id, FAILURE, value)
    if kept == value:
        log.error("The job fails: %s", reason)


def fail(context: Context, job_id: str, cause: Cause, reason: str) -> AirflowFailException:
    """Record the job's failure; the caller raises what this returns."""
    record_failure(job_id, context["ti"].task_id, cause, reason)
    return AirflowFailException(reason)


def memory_mib(manifest: Manifest) -> int:
    """Memory of one learner's program."""
    return -(-manifest.resources.memory_bytes // 1024**2)


def last_try(context: Context) -> bool:
    """Whether Airflow will not run this task again by itself."""
    ti = context["ti"]
    return bool(ti.try_number > ti.max_tries)


def stop_if_over(context: Context, job_id: str) -> None:
    """Ends this task if the job has failed already (this task may run a second time) or a person has cancelled it."""
    if (failure := ledger().effect(job_id, FAILURE)) is not None:
        raise AirflowFailException(failure["reason"])
    by = ledger().job(job_id).cancel_requested_by
    if by is not None:
        raise fail(context, job_id, Cause.CANCELLED, f"cancelled by {by}")


@contextmanager
def ends_job(context: Context, cause: Cause, *, must_run: bool = False) -> Iterator[Job]:
    """The job of this task; an UpdraftError inside becomes its recorded failure with the given cause.

    Does not let a job go on that has ended, or that `stop_if_over` stops; with `must_run`, only an end stops it: for
    work that leaves things behind when it is passed over.
    """
    try:
        job = find_job(context)
    except NotFoundError as exc:
        raise AirflowFailException(f"{exc}: `admit` has not run; submit the job again") from exc
    if job.ended:
        raise AirflowFailException(
            f"job {job.id} has ended {job.state.value} ({job.reason}); an end has no exit, submit it again"
        )
    if not must_run:
        stop_if_over(context, job.id)
    try:
        yield job
    except UnavailableError as exc:
        if last_try(context):
            raise fail(context, job.id, Cause.INFRASTRUCTURE, str(exc)) from exc
        raise
    except UpdraftError as exc:
        raise fail(context, job.id, Cause.DATA if isinstance(exc, DataError) else cause, str(exc)) from exc
