"""Make the list of jobs: one row for each job, which the page's script filters and sorts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from updraft.api.pages.render import render
from updraft.lifecycle import State
from updraft.schemas import JobSummary

HEADINGS = ("Job", "State", "Metric", "Progress", "Duration", "Submitted (UTC)", "Model", "Reason")


@dataclass(frozen=True)
class ShownMetric:
    """The one metric that a job's row shows."""

    name: str
    value: float


@dataclass(frozen=True)
class Row:
    """One job of the list. `seconds`: from its submission to its end, or to now."""

    job: JobSummary
    seconds: float
    metric: ShownMetric | None
    notes: Sequence[str]


def jobs_page(
    jobs: Sequence[JobSummary],
    now: datetime,
    metrics: Mapping[str, ShownMetric] | None = None,
    trouble: str = "",
    limit: int | None = None,
    *,
    nonce: str = "",
) -> str:
    """Return the list as HTML.

    Args:
        jobs: The jobs, newest first.
        now: The end of the duration of a job that still runs.
        metrics: The metric that a job's row shows, by job id.
        trouble: Why there are no metrics; shown above the list.
        limit: How many jobs the caller asked for; with as many, the page says that there may be more.
        nonce: Allows the page's script under its Content-Security-Policy.
    """
    known = metrics or {}
    rows = [
        Row(
            job,
            ((job.updated_at if job.ended else now) - job.created_at).total_seconds(),
            known.get(job.id),
            notes(job),
        )
        for job in jobs
    ]
    return render(
        "jobs.html",
        title="Updraft jobs",
        live=True,
        nonce=nonce,
        rows=rows,
        headings=HEADINGS,
        states=list(State),
        trouble=trouble,
        limit=limit,
    )


def notes(job: JobSummary) -> list[str]:
    """Return what users asked of the job that is not answered yet, and what a user made Airflow say of it."""
    asked = [f"{item.by} asked to {item.kind}; not answered yet" for item in job.requests]
    return [*asked, *([job.override] if job.override else [])]
