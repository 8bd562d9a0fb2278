"""The pages as HTML. Pure; every value is escaped, there is no script, and no other server is asked for anything."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Any
from urllib.parse import quote

from updraft.api import timeline
from updraft.wire import (
    PAGES_PREFIX,
    Attempt,
    Checkpoint,
    JobDetail,
    JobSummary,
    Learner,
    LogPage,
    Metrics,
    Progress,
    Request,
)

REFRESH_SECONDS = 5
SHOWN_STATES = 30
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
.RECOVERING { color: #d9822b; } .HALTED, .note { color: #b8860b; }
progress { width: 8rem; } summary { color: var(--soft); cursor: pointer; margin: .4rem 0; }
tr:target { outline: 2px solid #b8860b; outline-offset: 2px; }
"""


def page(title: str, body: str, *, refresh: bool) -> str:
    again = f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">' if refresh else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{again}<title>{escape(title)}</title>'
        f"<style>{STYLE}{timeline.STYLE}</style></head><body><h1>{escape(title)}</h1>{body}</body></html>"
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
            attempt_cell(job),
            bar(job.progress),
            escape(f"{job.model.name} v{job.model.version}") if job.model else "",
            moment(job.created_at),
            escape(job.user or ""),
            "<br>".join([escape(job.reason), *notes(job)]),
        )
        for job in jobs
    ]
    headings = ("job", "state", "attempt", "progress", "model", "submitted (UTC)", "by", "reason")
    return page("Updraft jobs", table(headings, rows), refresh=any(not job.ended for job in jobs))


def attempt_cell(job: JobSummary) -> str:
    if not job.attempt:
        return ""
    if job.loss is None or job.state not in ("RECOVERING", "FAILED"):
        return str(job.attempt)
    label = f" <code>{escape(job.loss.label)}</code>" if job.loss.label else ""
    return f"{job.loss.attempt}: {escape(job.loss.cause)}{label}"


def notes(job: JobSummary) -> list[str]:
    """What people asked and made Airflow say."""
    asked = [f"{escape(item.by)} asked to {escape(item.kind)}; not answered yet" for item in job.requests]
    said = [*asked, *([escape(job.override)] if job.override else [])]
    return [f'<span class="note">{text}</span>' for text in said]


@dataclass(frozen=True)
class JobFacts:
    """What the page of a job shows beside the job."""

    attempts: Sequence[Attempt] = ()
    checkpoints: Sequence[Checkpoint] = ()
    requests: Sequence[Request] = ()
    metrics: Metrics | None = None
    logs: LogPage | None = None
    trouble: Sequence[str] = ()  # parts that did not answer


def job_page(job: JobDetail, facts: JobFacts, airflow_url: str, now: datetime) -> str:
    parts = [
        f'<nav><a href="{PAGES_PREFIX}">All jobs</a>{"".join(links(job))}</nav>',
        f"<p>{state(job.state)} {escape(job.reason)}</p>",
        *(f"<p>{note}</p>" for note in notes(job)),
        *(f'<p class="FAILED">{escape(text)}</p>' for text in facts.trouble),
    ]
    if job.model is not None:
        alias = f" @{job.model.alias}" if job.model.alias else ""
        parts.append(f"<p>Model {escape(job.model.name)} version {escape(job.model.version + alias)}</p>")
    if picture := timeline.draw(job, facts.attempts, facts.checkpoints, now):
        parts += ["<h2>Attempts</h2>", picture]
    parts += ["<h2>States</h2>", _states(job)]
    if facts.requests:
        asked = [_request_row(item) for item in facts.requests]
        parts += ["<h2>Requests</h2>", table(("at (UTC)", "asked", "by", "changes", "answer"), asked)]
    if facts.checkpoints:
        parts += ["<h2>Checkpoints</h2>", _checkpoints(facts.checkpoints)]
    if job.learners:
        headings = ("role", "learner", "attempt", "phase", "progress", "warnings")
        parts += ["<h2>Learners</h2>", table(headings, [_learner_row(item) for item in job.learners])]
    if facts.metrics is not None and facts.metrics.last:
        last = facts.metrics.last.items()
        rows_ = [(escape(name), "NaN" if value is None else f"{value:.6g}") for name, value in last]
        parts += ["<h2>Metrics</h2>", table(("metric", "last"), rows_)]
    if not job.ended:
        parts += ["<h2>Halt, resume, cancel</h2>", _verbs(job, airflow_url)]
    if facts.logs is not None and facts.logs.lines:
        lines = "\n".join(escape(line.line) for line in facts.logs.lines)
        parts += [f"<h2>Log of {escape(facts.logs.role)}, learner {facts.logs.learner}, its end</h2>"]
        parts += [f"<pre>{lines}</pre>"]
    return page(job.id, "".join(parts), refresh=not job.ended)


def _states(job: JobDetail) -> str:
    headings = ("since (UTC)", "state", "reason")
    history = [(moment(item.at), state(item.state), escape(item.reason)) for item in job.transitions]
    last = table(headings, history[-SHOWN_STATES:])
    if len(history) <= SHOWN_STATES:
        return last
    earlier = table(headings, history[:-SHOWN_STATES])
    return f"<details><summary>{len(history) - SHOWN_STATES} earlier ones</summary>{earlier}</details>{last}"


def _request_row(item: Request) -> tuple[str, ...]:
    changes = "<br>".join(f"<code>{escape(text)}</code>" for text in flat(item.changes))
    answer = '<span class="note">not yet</span>' if item.answer is None else escape(item.answer)
    return moment(item.at), escape(item.kind), escape(item.by), changes, answer


def flat(changes: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """`resources.memory = 4GiB` for each value that changes."""
    for name, value in changes.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name} = {value if isinstance(value, str) else json.dumps(value)}"


def _checkpoints(found: Sequence[Checkpoint]) -> str:
    """Those that count in sight, the deleted ones folded away."""
    headings = ("checkpoint", "step", "attempt", "size", "made (UTC)", "metrics", "state")
    here = [_checkpoint_row(item) for item in found if item.state != "deleted"]
    gone = [_checkpoint_row(item) for item in found if item.state == "deleted"]
    text = table(headings, here) if here else "<p>None is kept.</p>"
    if gone:
        text += f"<details><summary>{len(gone)} deleted</summary>{table(headings, gone)}</details>"
    return text


def _checkpoint_row(item: Checkpoint) -> tuple[str, ...]:
    metrics = "  ".join(f"{name} {value:.5g}" for name, value in item.metrics.items())
    reason = f": {escape(item.reason)}" if item.reason else ""
    css = "FAILED" if item.state == "quarantined" else "soft"
    return (
        escape(item.name),
        "" if item.step is None else str(item.step),
        str(item.attempt or ""),
        f"{item.size_bytes / 1e6:.1f} MB",
        "" if item.created_at is None else moment(item.created_at),
        escape(metrics),
        f'<span class="{css}">{escape(item.state)}{reason}</span>',
    )


def _learner_row(learner: Learner) -> tuple[str, ...]:
    return (
        escape(learner.role),
        str(learner.learner),
        str(learner.attempt),
        escape(learner.phase),
        bar(learner.progress),
        escape("; ".join(learner.warnings)),
    )


def _verbs(job: JobDetail, airflow_url: str) -> str:
    """How each is done from here: this page itself only shows."""
    halted = job.state == "HALTED"
    verbs = (
        ("halt", not halted, "saves a checkpoint, stops, and frees what it holds; it can go on later"),
        ("resume", halted, "goes on from its checkpoint, as it was or with changes"),
        ("cancel", True, "ends as CANCELLED, for good"),
    )
    rows = ""
    for verb, possible, what in verbs:
        dag, job_id = f"{verb}_job", f"<code>{escape(job.id)}</code>"
        link = f'<a href="{escape(airflow_url)}/dags/{dag}" target="_top">{dag}</a>'
        how = f"In Airflow: trigger {link} with the job {job_id}. In a terminal: <code>updraft {verb}</code> {job_id}"
        cells = f"<td>{verb.capitalize()}</td><td>The job {what}.<br>{how if possible else 'Not possible now.'}</td>"
        rows += f"<tr id={verb}{'' if possible else ' class=soft'}>{cells}</tr>"
    return f"<table>{rows}</table>"


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
