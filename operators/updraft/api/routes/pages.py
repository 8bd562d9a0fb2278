"""/jobs: the pages for users, shown inside Airflow's UI and behind the same log-in (by its cookie)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from updraft.api import history, queue, rounds, series, tenants
from updraft.api.depends import ReaderDep, TenantDep
from updraft.api.pages import (
    PageFacts,
    ShownMetric,
    curves,
    job_page,
    jobs_page,
    queue_page,
    series_list_page,
    series_page,
    sizes_page,
    tenants_page,
)
from updraft.api.reading import JobReader
from updraft.api.routes.jobs import read_metrics
from updraft.exceptions import NotFoundError, UnavailableError
from updraft.lifecycle import State
from updraft.lifecycle.workflow import TRAIN_ROLE
from updraft.mlflow_pages import version_page
from updraft.recovery.outcome import FailureClass
from updraft.schemas import PAGES_PREFIX, LogPage, Metrics

if TYPE_CHECKING:
    from updraft.ledger import Attempt, Job, Shown

SHOWN_JOBS = 200
SHOWN_SERIES = 200
SHOWN_LINES = 200
STATIC = Path(__file__).parent.parent / "pages" / "static"
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; connect-src 'self'; "
    "frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
)
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

router = APIRouter()


@router.get("/")
def start() -> RedirectResponse:
    """Return the address that people type."""
    return RedirectResponse(PAGES_PREFIX, status_code=307)


@router.get("/jobs/static/pages.js")
def script() -> Response:
    return Response((STATIC / "pages.js").read_bytes(), media_type="text/javascript", headers=HEADERS)


@router.get("/jobs", response_class=HTMLResponse)
def show_jobs(reader: ReaderDep) -> HTMLResponse:
    """Show the list of jobs; without metrics while MLflow does not answer."""
    jobs = reader.jobs(None, None, SHOWN_JOBS)
    metrics: dict[str, ShownMetric] = {}
    trouble = ""
    try:
        metrics = _shown_metrics(reader)
    except UnavailableError as exc:
        trouble = str(exc)
    return answer(lambda nonce: jobs_page(jobs, datetime.now(UTC), metrics, trouble, SHOWN_JOBS, nonce=nonce))


@router.get("/jobs/{job_id}", response_class=HTMLResponse)
def show_job(
    reader: ReaderDep,
    job_id: str,
    attempt: Annotated[int | None, Query(ge=1, description="Of which launch the log is; default: the latest")] = None,
    role: Annotated[str | None, Query(description="Whose log; default: train, or what made the job fail")] = None,
) -> HTMLResponse:
    """Show a job. While MLflow or the store does not answer, the page says so and has no metrics or log."""
    job = reader.detail(job_id)
    airflow_url = reader.parts.settings.airflow_public_uri.rstrip("/")
    if not job.transitions:  # accepted, but not recorded: nothing else is known
        return answer(lambda nonce: job_page(job, PageFacts(), airflow_url, datetime.now(UTC), nonce=nonce))
    known = reader.job(job_id)
    trouble: list[str] = []
    metrics: Metrics | None = None
    logs: LogPage | None = None
    try:
        metrics = read_metrics(reader, job_id)
        # Prefer the training's metrics, which have many points; the evaluation's have one.
        names = dict.fromkeys([*known.shown.metrics, *job.metrics, *sorted(metrics.last)])
        keys = [name for name in curves.own(list(names)) if name in metrics.last][: curves.SHOWN]
        metrics = read_metrics(reader, job_id, keys) if keys else metrics
    except UnavailableError as exc:
        trouble.append(str(exc))
    try:
        logs = _end_of_log(reader, job_id, role, attempt)
    except NotFoundError:
        pass  # there is no attempt, or no attempt with this number
    except UnavailableError as exc:
        trouble.append(str(exc))
    facts = PageFacts(
        attempts=history.attempts(reader.attempts(known)),
        checkpoints=[history.checkpoint(item) for item in reader.checkpoints(known)],
        requests=[history.request(item) for item in reader.requests(known)],
        metrics=metrics,
        logs=logs,
        trouble=trouble,
        manifest=known.manifest,
    )
    return answer(lambda nonce: job_page(job, facts, airflow_url, datetime.now(UTC), nonce=nonce))


@router.get("/queue", response_class=HTMLResponse)
def show_queue(reader: ReaderDep) -> HTMLResponse:
    """Show the jobs that wait for room in the cluster, and those that have it."""
    found = queue.listed(reader)
    return answer(lambda nonce: queue_page(found, nonce=nonce))


@router.get("/sizes", response_class=HTMLResponse)
def show_sizes(reader: ReaderDep) -> HTMLResponse:
    """Show how the sizes of elastic jobs changed, why, and what that brought."""
    found = rounds.listed(reader)
    return answer(lambda nonce: sizes_page(found, nonce=nonce))


@router.get("/tenants", response_class=HTMLResponse)
def show_tenants(reader: ReaderDep) -> HTMLResponse:
    """Return what the caller's tenants may use of the cluster, and what they use, as HTML."""
    found = tenants.listed(reader)
    return answer(lambda nonce: tenants_page(found, nonce=nonce))


@router.get("/series", response_class=HTMLResponse)
def show_all_series(reader: ReaderDep) -> HTMLResponse:
    """Show the list of series."""
    found = series.listed(reader, SHOWN_SERIES)
    return answer(lambda nonce: series_list_page(found, nonce=nonce))


@router.get("/series/{name}", response_class=HTMLResponse)
def show_one_series(reader: ReaderDep, tenant: TenantDep, name: str) -> HTMLResponse:
    """Show a series: its jobs, its champion, and what happened to its models."""
    found = series.detail(reader, tenant, name)
    mlflow = reader.parts.settings.mlflow_browser_uri
    champion = version_page(mlflow, found.model, found.champion) if found.model and found.champion else None
    return answer(lambda nonce: series_page(found, champion, nonce=nonce))


def answer(page: Callable[[str], str]) -> HTMLResponse:
    """Return the page that `page` makes with a new nonce; the browser runs only the script that carries it."""
    nonce = secrets.token_urlsafe(16)
    policy = {"Content-Security-Policy": POLICY.format(nonce=nonce)}
    return HTMLResponse(page(nonce), headers=HEADERS | policy)


def _shown_metrics(reader: JobReader) -> dict[str, ShownMetric]:
    """Return, for each job, the metric that decides about its model, or the first metric of its program. Makes one
    request to MLflow."""
    runs = {job.mlflow_run_id: job for job in reader.records(SHOWN_JOBS) if job.mlflow_run_id}
    experiments = sorted({str(job.mlflow_experiment_id) for job in runs.values()})
    if not runs:
        return {}
    parts = reader.parts
    found = parts.deadline.call("mlflow", lambda: parts.tracking.last_of(experiments, list(runs)))
    shown = {runs[run].id: _decisive(runs[run].shown, values) for run, values in found.items() if run in runs}
    return {job_id: metric for job_id, metric in shown.items() if metric is not None}


def _decisive(shown: Shown, values: Mapping[str, float]) -> ShownMetric | None:
    wanted = [*shown.metrics, *curves.own(sorted(values))]
    name = next((name for name in wanted if name in values), None)
    return None if name is None else ShownMetric(name, values[name])


def _end_of_log(reader: JobReader, job_id: str, role: str | None, number: int | None) -> LogPage:
    """Return the end of the log of the learner that failed, or of the first learner. A log may be long, so only its end
    is read.

    Without a number, the log is that of the latest attempt, or of the attempt before it while the latest has written
    nothing.
    """
    job = reader.job(job_id)
    attempts = reader.attempts(job)
    role = role or _role_to_show(job, attempts)
    attempt, latest = reader.attempt(job, role, number)
    page = _end_of_attempt(reader, job, attempt, latest.number)
    if page.lines or number is not None:
        return page
    earlier = [item for item in attempts if item.role == role and item.number < attempt.number]
    return _end_of_attempt(reader, job, earlier[-1], latest.number) if earlier else page


def _role_to_show(job: Job, attempts: Sequence[Attempt]) -> str:
    """Return `train`, or, for a job that FAILED, the role of the newest attempt that was not done."""
    lost = [item for item in attempts if item.outcome != FailureClass.DONE] if job.state is State.FAILED else []
    return max(lost, key=lambda item: item.started_at).role if lost else TRAIN_ROLE


def _end_of_attempt(reader: JobReader, job: Job, attempt: Attempt, latest: int) -> LogPage:
    first = attempt.membership.learners[0]
    learner = next((number for number, code in attempt.evidence.exit_codes.items() if code), first)
    store = reader.parts.store
    lines = reader.parts.deadline.call(
        "storage", lambda: store.log_end(job.tenant, job.id, attempt.role, attempt.number, learner, SHOWN_LINES)
    )
    return LogPage(
        role=attempt.role,
        attempt=attempt.number,
        latest_attempt=latest,
        learner=learner,
        lines=tuple(lines),
        after=lines[-1].n if lines else 0,
    )
