"""The pages as HTML. Pure; every value is escaped, there is no script, and no other server is asked for anything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from urllib.parse import quote

from updraft.wire import PAGES_PREFIX, JobDetail, JobSummary, LogPage, Metrics, Progress

REFRESH_SECONDS = 5
STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #888; }
body { font: 14px/1.5 system-ui, sans-serif; margin: 1.5rem 2rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 1.8rem; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .25rem 1rem .25rem 0; vertical-align: top; }
tr { border-bottom: 1px solid var(--line); } th, .soft { color: var(--soft); font-weight: normal; }
pre { border: 1px solid var(--line); padding: .8rem; overflow-x: auto; max-height: 32rem; }
td:not(:last-child) { white-space: nowrap; }
nav a { margin-right: 1rem; } .state { font-weight: 600; white-space: nowrap; }
.COMPLETED { color: #2e8b57; } .FAILED { color: #d0342c; } .CANCELLED { color: #b8860b; }
progress { width: 8rem; }
"""


def page(title: str, body: str, *, refresh: bool) -> str:
    again = f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">' if refresh else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{again}<title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>{body}</body></html>"
    )


def jobs_page(jobs: Sequence[JobSummary]) -> str:
    if not jobs:
        return page(
            "Updraft jobs", "<p>No jobs yet. Submit one: <code>updraft submit MANIFEST</code></p>", refresh=True
        )
    rows = [
        (
            f'<a href="{PAGES_PREFIX}/{quote(job.id, safe="")}">{escape(job.id)}</a>',
            state(job.state),
            bar(job.progress),
            escape(f"{job.model.name} v{job.model.version}") if job.model else "",
            moment(job.created_at),
            escape(job.user or ""),
            escape(job.reason),
        )
        for job in jobs
    ]
    headings = ("job", "state", "progress", "model", "submitted", "by", "reason")
    return page("Updraft jobs", table(headings, rows), refresh=any(not job.ended for job in jobs))


def job_page(job: JobDetail, metrics: Metrics | None, logs: LogPage | None, trouble: Sequence[str]) -> str:
    parts = [
        f'<nav><a href="{PAGES_PREFIX}">All jobs</a>{"".join(links(job))}</nav>',
        f"<p>{state(job.state)} {escape(job.reason)}</p>",
        *(f'<p class="FAILED">{escape(text)}</p>' for text in trouble),
    ]
    if job.model is not None:
        alias = f" @{job.model.alias}" if job.model.alias else ""
        parts.append(f"<p>Model {escape(job.model.name)} version {escape(job.model.version + alias)}</p>")
    history = [(moment(item.at), state(item.state), escape(item.reason)) for item in job.transitions]
    parts += ["<h2>States</h2>", table(("since", "state", "reason"), history)]
    if job.learners:
        rows = [
            (
                escape(learner.role),
                str(learner.learner),
                str(learner.attempt),
                escape(learner.phase),
                bar(learner.progress),
                escape("; ".join(learner.warnings)),
            )
            for learner in job.learners
        ]
        headings = ("role", "learner", "attempt", "phase", "progress", "warnings")
        parts += ["<h2>Learners</h2>", table(headings, rows)]
    if metrics is not None and metrics.last:
        rows_ = [(escape(name), "NaN" if value is None else f"{value:.6g}") for name, value in metrics.last.items()]
        parts += ["<h2>Metrics</h2>", table(("metric", "last"), rows_)]
    if logs is not None and logs.lines:
        lines = "\n".join(escape(line.line) for line in logs.lines)
        parts += [f"<h2>Log of {escape(logs.role)}, learner {logs.learner}, its end</h2>", f"<pre>{lines}</pre>"]
    return page(job.id, "".join(parts), refresh=not job.ended)


def links(job: JobDetail) -> Iterable[str]:
    known = (
        ("Airflow run", job.links.airflow_run),
        ("MLflow run", job.links.mlflow_run),
        ("Model", job.model.url if job.model else None),
    )
    for label, url in known:
        if url:
            yield f'<a href="{escape(url)}" target="_top">{label}</a>'


def state(name: str) -> str:
    return f'<span class="state {escape(name)}">{escape(name)}</span>'


def bar(progress: Progress | None) -> str:
    if progress is None:
        return ""
    for label, now, end in (("step", progress.step, progress.total), ("epoch", progress.epoch, progress.epochs)):
        if now is not None and end:
            return f'<progress value="{now}" max="{end}"></progress> <span class="soft">{label} {now}/{end}</span>'
    return "" if progress.step is None else f"step {progress.step}"


def moment(at: datetime) -> str:
    return f'<span class="soft">{at:%Y-%m-%d %H:%M:%S}</span>'


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML already."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
