"""/jobs: pages for people, shown inside Airflow's UI, behind the same log-in (its cookie comes along)."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from updraft.api import history, html
from updraft.api.depends import ReaderDep
from updraft.api.reading import Reader
from updraft.api.routes.jobs import read_metrics
from updraft.exceptions import NotFoundError, UnavailableError
from updraft.wire import LogPage, Metrics

SHOWN_JOBS = 100
SHOWN_LINES = 200
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'; base-uri 'none'",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}

router = APIRouter()


@router.get("/jobs", response_class=HTMLResponse)
def show_jobs(reader: ReaderDep) -> HTMLResponse:
    return HTMLResponse(html.jobs_page(reader.jobs(None, None, SHOWN_JOBS)), headers=HEADERS)


@router.get("/jobs/{job_id}", response_class=HTMLResponse)
def show_job(reader: ReaderDep, job_id: str) -> HTMLResponse:
    """Without metrics or log while MLflow or the store is away: the page says so."""
    job = reader.detail(job_id)
    known = reader.job(job_id)
    trouble: list[str] = []
    metrics: Metrics | None = None
    logs: LogPage | None = None
    try:
        metrics = read_metrics(reader, job_id)
    except UnavailableError as exc:
        trouble.append(str(exc))
    try:
        logs = _end_of_log(reader, job_id)
    except NotFoundError:
        pass  # nothing was launched
    except UnavailableError as exc:
        trouble.append(str(exc))
    facts = html.JobFacts(
        attempts=history.attempts(reader.attempts(known)),
        checkpoints=[history.checkpoint(item) for item in reader.checkpoints(known)],
        requests=[history.request(item) for item in reader.requests(known)],
        metrics=metrics,
        logs=logs,
        trouble=trouble,
    )
    airflow_url = reader.parts.settings.airflow_public_uri.rstrip("/")
    return HTMLResponse(html.job_page(job, facts, airflow_url, datetime.now(UTC)), headers=HEADERS)


def _end_of_log(reader: Reader, job_id: str) -> LogPage:
    """Of the training's first learner; a log may be long, so only its end is read."""
    job = reader.job(job_id)
    attempt, latest = reader.attempt(job, "train", None)
    store = reader.parts.store
    lines = reader.parts.deadline.call(
        "storage", lambda: store.log_end(job.tenant, job.id, "train", attempt.number, 1, SHOWN_LINES)
    )
    return LogPage(
        role="train",
        attempt=attempt.number,
        latest_attempt=latest.number,
        learner=1,
        lines=tuple(lines),
        after=lines[-1].n if lines else 0,
    )
