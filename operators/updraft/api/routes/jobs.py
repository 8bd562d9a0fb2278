"""/jobs: read jobs, their history, logs, metrics and checkpoints."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query

from updraft.api import history, views
from updraft.api.depends import ReaderDep
from updraft.exceptions import NotFoundError
from updraft.lifecycle.workflow import TRAIN_ROLE
from updraft.schemas import (
    AttemptList,
    CheckpointList,
    JobDetail,
    JobList,
    JobManifest,
    LogPage,
    MetricPoint,
    Metrics,
    TransitionList,
)

LOG_LINES = 1_000
KEYS = 200

router = APIRouter(tags=["jobs"])


@router.get("/jobs", summary="Jobs, newest first")
def list_jobs(
    reader: ReaderDep,
    state: Annotated[str | None, Query(description="Only jobs in this state")] = None,
    name: Annotated[str | None, Query(description="Only jobs of this name")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="How many")] = 50,
) -> JobList:
    return JobList(jobs=tuple(reader.jobs(state, name, limit)))


@router.get("/jobs/{job_id}", summary="One job with its transitions, learners, verdict and model")
def show_job(reader: ReaderDep, job_id: str) -> JobDetail:
    return reader.detail(job_id)


@router.get("/jobs/{job_id}/manifest", summary="The job's manifest; uploaded code and data are named by their trees")
def show_manifest(reader: ReaderDep, job_id: str) -> JobManifest:
    return JobManifest(manifest=dict(reader.job(job_id).manifest))


@router.get("/jobs/{job_id}/transitions", summary="Every change of state with its time, reason and evidence")
def list_transitions(reader: ReaderDep, job_id: str) -> TransitionList:
    found = reader.transitions(reader.job_if_recorded(job_id))
    return TransitionList(transitions=tuple(views.transition(item) for item in found))


@router.get("/jobs/{job_id}/logs", summary="Lines of one learner's log, in pages")
def read_logs(
    reader: ReaderDep,
    job_id: str,
    learner: Annotated[
        int | None, Query(ge=1, description="Which learner, from 1; default: the first that belongs")
    ] = None,
    role: Annotated[
        str, Query(description="prepare, build, train, evaluate, export, champion-N or compare-N")
    ] = TRAIN_ROLE,
    attempt: Annotated[int | None, Query(ge=1, description="Which launch; default: the latest")] = None,
    after: Annotated[int, Query(ge=0, description="Number of the last line that is known")] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000, description="How many lines")] = LOG_LINES,
    last: Annotated[bool, Query(description="The last so many lines; `after` is not looked at")] = False,
) -> LogPage:
    job = reader.job(job_id)
    chosen, latest = reader.attempt(job, role, attempt)
    learner = learner or chosen.membership.learners[0]  # learner 1 may have left
    if learner > (count := len(chosen.membership.ever)):  # learners are numbered from 1 without gaps
        raise NotFoundError(f"job {job_id} has no learner {learner} in {role}; it has {count}")
    parts = reader.parts
    where = (job.tenant, job.id, role, chosen.number, learner)
    read = (lambda: parts.store.log_end(*where, limit)) if last else (lambda: parts.store.log(*where, after, limit))
    lines = parts.deadline.call("storage", read)
    return LogPage(
        role=role,
        attempt=chosen.number,
        latest_attempt=latest.number,
        learner=learner,
        lines=tuple(lines),
        after=lines[-1].n if lines else after,
    )


@router.get("/jobs/{job_id}/metrics", summary="Last value of each metric, and the history of those asked for")
def read_metrics(
    reader: ReaderDep,
    job_id: str,
    key: Annotated[list[str] | None, Query(max_length=KEYS, description="A metric; may be given again")] = None,
) -> Metrics:
    job, parts = reader.job_if_recorded(job_id), reader.parts
    if job is None or (run_id := job.mlflow_run_id) is None:
        return Metrics(run_id=None, last={})
    last = parts.deadline.call("mlflow", lambda: parts.tracking.last(run_id))
    known = [name for name in dict.fromkeys(key or ()) if name in last]
    history = {}
    for name in known:
        points = parts.deadline.call("mlflow", partial(parts.tracking.history, run_id, name))
        history[name] = tuple(MetricPoint(step=step, t=t, value=views.number(value)) for step, t, value in points)
    return Metrics(
        run_id=run_id, last={name: views.number(value) for name, value in sorted(last.items())}, history=history
    )


@router.get("/jobs/{job_id}/attempts", summary="Every launch: how it began and ended, and what was done about it")
def list_attempts(reader: ReaderDep, job_id: str) -> AttemptList:
    return AttemptList(attempts=history.attempts(reader.attempts(reader.job_if_recorded(job_id))))


@router.get("/jobs/{job_id}/checkpoints", summary="Checkpoints, lowest step first")
def list_checkpoints(
    reader: ReaderDep,
    job_id: str,
    all: Annotated[bool, Query(description="Also those that were deleted or quarantined, with the reason")] = False,
) -> CheckpointList:
    found = [history.checkpoint(item) for item in reader.checkpoints(reader.job_if_recorded(job_id))]
    return CheckpointList(checkpoints=tuple(item for item in found if all or item.state == "kept"))
