"""The list of jobs as HTML: one row per job, which the page's script filters and sorts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from urllib.parse import quote

from updraft.api import html
from updraft.api.timeline import span
from updraft.lifecycle import State
from updraft.schemas import PAGES_PREFIX, JobSummary

HEADINGS = ("Job", "State", "Metric", "Progress", "Duration", "Submitted (UTC)", "Model", "Reason")
EMPTY = "<p>No jobs yet. Submit one: <code>updraft submit MANIFEST</code></p>"


@dataclass(frozen=True)
class ShownMetric:
    """The one metric of a job that its row shows."""

    name: str
    value: float


def jobs_page(
    jobs: Sequence[JobSummary],
    now: datetime,
    metrics: Mapping[str, ShownMetric] | None = None,
    trouble: str = "",
    limit: int | None = None,
) -> str:
    """`metrics` by job id. `trouble` says why there are none. `limit`: how many jobs are shown at most."""
    rows = "".join(_row(job, now, (metrics or {}).get(job.id)) for job in jobs)
    head = "".join(f'<th scope="col"><button type="button">{name}</button></th>' for name in HEADINGS)
    listed = f'<table class="jobs"><thead><tr>{head}</tr></thead><tbody data-part="rows">{rows}</tbody></table>'
    empty = f'<div data-part="empty">{"" if jobs else EMPTY}</div>'
    if limit is not None and len(jobs) >= limit:
        empty = f'<p data-part="empty" class="soft">The newest {limit}; <code>updraft list --limit 1000</code></p>'
    said = f'<p class="note">{escape(trouble)}</p>' if trouble else ""
    return html.page("Updraft jobs", f"{_tools()}{said}{listed}{empty}", live=True)


def _tools() -> str:
    states = "".join(f"<option>{name}</option>" for name in State)
    return (
        '<p class="tools"><input id="search" type="search" placeholder="Search jobs, users, reasons" '
        'aria-label="Search"> <select id="state" aria-label="State"><option value="">All states</option>'
        f'{states}</select> <span id="count" class="soft"></span></p>'
    )


def _row(job: JobSummary, now: datetime, metric: ShownMetric | None) -> str:
    seconds = ((job.updated_at if job.ended else now) - job.created_at).total_seconds()
    link = f'<a href="{PAGES_PREFIX}/{quote(job.id, safe="")}">{escape(job.id)}</a>'
    shown = f'<span class="soft">{escape(metric.name)}</span> {metric.value:.5g}' if metric else ""
    model = escape(f"{job.model.name} v{job.model.version}") if job.model else ""
    reason = "<br>".join([escape(job.reason), *html.notes(job)])
    progress = "<br>".join(filter(None, [attempt_cell(job), html.bar(job.progress)]))
    cells = (
        _cell("Job", f'{link}<br><span class="soft">{escape(job.user or "")}</span>', job.id),
        _cell("State", html.state(job.state), job.state),
        _cell("Metric", shown, f"{metric.value!r}" if metric else ""),
        _cell("Progress", progress, str(job.attempt)),
        _cell("Duration", span(seconds), f"{seconds:.0f}"),
        _cell("Submitted", html.moment(job.created_at), f"{job.created_at.timestamp():.0f}"),
        _cell("Model", model),
        _cell("Reason", reason),
    )
    return f'<tr data-state="{escape(job.state)}">{"".join(cells)}</tr>'


def _cell(label: str, text: str, sort_by: str | None = None) -> str:
    value = "" if sort_by is None else f' data-v="{escape(sort_by)}"'
    return f'<td data-label="{label}"{value}>{text}</td>'


def attempt_cell(job: JobSummary) -> str:
    if not job.attempt:
        return ""
    if job.loss is None or job.state not in ("RECOVERING", "FAILED"):
        return f"attempt {job.attempt}"
    label = f" <code>{escape(job.loss.label)}</code>" if job.loss.label else ""
    return f"attempt {job.loss.attempt}: {escape(job.loss.cause)}{label}"
