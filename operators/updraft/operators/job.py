"""What all tasks of a job share: finding the job, and turning an error into the right end.

An error that waiting may cure is left to Airflow's retries. Every other error of ours is recorded once as the job's
failure and ends the task for good; `release` makes the verdict of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from updraft.exceptions import UnavailableError, UpdraftError
from updraft.recovery.outcome import Cause
from updraft.settings import settings

if TYPE_CHECKING:
    from airflow.sdk import Context

    from updraft.ledger import Job, Ledger
    from updraft.manifest import Manifest

log = logging.getLogger(__name__)

FAILURE = "failure"  # effect: the first task that failed, and why
MODEL_VERSION = "model_version"
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


@contextmanager
def ends_job(context: Context, cause: Cause) -> Iterator[Job]:
    """The job of this task; an UpdraftError inside becomes its recorded failure with the given cause."""
    job = find_job(context)
    if job.ended:
        raise AirflowFailException(
            f"job {job.id} has ended {job.state.value} ({job.reason}); an end has no exit, submit it again"
        )
    try:
        yield job
    except UnavailableError:
        raise
    except UpdraftError as exc:
        raise fail(context, job.id, cause, str(exc)) from exc
