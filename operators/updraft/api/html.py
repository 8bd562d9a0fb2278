"""The page of a job as HTML, and what it shares with the list. Pure; every value is escaped.

The only script is our own (`static/pages.js`), and no other server is asked for anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
from typing import Any
from urllib.parse import quote

from updraft.api import curves, timeline
from updraft.lifecycle.workflow import RESUME_DAG
from updraft.schemas import (
    API_PREFIX,
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

SCRIPT = f"{PAGES_PREFIX}/static/pages.js"
NONCE = "@NONCE@"  # replaced once, where the page is answered
SHOWN_STATES = 30
OF_LEARNER = re.compile(r"^system/node_\d+/(learner|gpu)_")
STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #888; }
* { box-sizing: border-box; }
body { font: 14px/1.5 system-ui, sans-serif; margin: 1.2rem clamp(.7rem, 2vw, 2rem); }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 1.8rem; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .25rem 1rem .25rem 0; vertical-align: top; }
tr { border-bottom: 1px solid var(--line); } th, .soft { color: var(--soft); font-weight: normal; }
pre { border: 1px solid var(--line); padding: .8rem; overflow-x: auto; max-height: 32rem; }
td, p { overflow-wrap: anywhere; } td .soft, td .state { overflow-wrap: normal; } .wide { overflow-x: auto; }
.moment span, td code { white-space: nowrap; overflow-wrap: normal; } .wide td:nth-child(6) { min-width: 12rem; }
.wide td { overflow-wrap: break-word; }
nav a { margin-right: 1rem; } .state { font-weight: 600; white-space: nowrap; }
.COMPLETED { color: #2e8b57; } .FAILED { color: #d0342c; } .CANCELLED { color: #b8860b; }
.RECOVERING { color: #d9822b; } .HALTED, .note { color: #b8860b; }
progress { width: 8rem; } summary { color: var(--soft); cursor: pointer; margin: .4rem 0; }
button, input, select { font: inherit; padding: .3rem .7rem; max-width: 100%; } button { cursor: pointer; }
button[data-armed] { background: #d0342c; color: #fff; }
.actions { display: flex; flex-wrap: wrap; gap: .5rem; align-items: center; } .tools input { width: 20rem; }
.jobs { width: 100%; } .jobs th button { all: unset; cursor: pointer; white-space: nowrap; }
.jobs th[aria-sort=ascending] button::after { content: " \\2191"; }
.jobs th[aria-sort=descending] button::after { content: " \\2193"; }
.jobs td[data-label=Job] { min-width: 9rem; }
.jobs td[data-label=Model] { min-width: 8rem; } .jobs td[data-label=Reason] { min-width: 14rem; }
td, p { white-space: pre-line; }
.jobs td[data-label=Duration], .jobs td[data-label=Submitted] { white-space: nowrap; }
.size { white-space: nowrap; }
@media (min-width: 801px) { .moment { white-space: nowrap; } }
@media (max-width: 800px) {
  .wide td:nth-child(3):last-child, .wide td:nth-last-child(2):first-child { overflow-wrap: anywhere; }
  .jobs thead { display: none; } .jobs, .jobs tbody { display: block; }
  .jobs tr { display: block; padding: .6rem 0; } .jobs tr[hidden] { display: none; }
  .jobs td { display: block; padding: .1rem 0; } .jobs td:empty { display: none; }
  .jobs td::before { content: attr(data-label) ": "; color: var(--soft); }
  .jobs td[data-label=Job]::before { content: none; }
}
"""


def page(title: str, body: str, *, live: bool) -> str:
    """`live`: the page's script asks for it again every few seconds. `NONCE` is replaced where the page is answered."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<script nonce="{NONCE}" src="{SCRIPT}" defer></script>'  # before any text of a user
        f"<title>{escape(title)}</title><style>{STYLE}{timeline.STYLE}{curves.STYLE}</style></head>"
        f'<body data-live="{"yes" if live else "no"}"><h1>{escape(title)}</h1>{body}</body></html>'
    )


def notes(job: JobSummary) -> list[str]:
    """What people asked and made Airflow say."""
    asked = [f"{escape(item.by)} asked to {escape(item.kind)}; not answered yet" for item in job.requests]
    said = [*asked, *([escape(job.override)] if job.override else [])]
    return [f'<span class="note">{text}</span>' for text in said]


@dataclass(frozen=True)
class PageFacts:
    """What the page of a job shows beside the job."""

    attempts: Sequence[Attempt] = ()
    checkpoints: Sequence[Checkpoint] = ()
    requests: Sequence[Request] = ()
    metrics: Metrics | None = None
    logs: LogPage | None = None
    trouble: Sequence[str] = ()  # parts that did not answer
    manifest: Mapping[str, Any] = field(default_factory=dict)


def job_page(job: JobDetail, facts: PageFacts, airflow_url: str, now: datetime) -> str:
    halting = "" if job.ended else _actions(job, airflow_url) if job.transitions else _only_cancel(job)
    parts = {
        "head": f"<p>{state(job.state)} {escape(job.reason)}</p>{_facts(job, now)}",
        "notes": "".join(
            [*(f"<p>{note}</p>" for note in notes(job)), *(f'<p class="FAILED">{escape(t)}</p>' for t in facts.trouble)]
        ),
        "actions": halting,
        "attempts": titled("Attempts", timeline.draw(job, facts.attempts, facts.checkpoints, now)),
        "metrics": _metrics(facts, job.id),
        "log": _log(facts.logs, facts.attempts),
        "states": titled("States", _states(job)),
        "requests": titled("Requests", _requests(facts.requests)),
        "checkpoints": titled("Checkpoints", _checkpoints(facts.checkpoints) if facts.checkpoints else ""),
        "learners": titled("Learners", _learners(job.learners)),
        "manifest": _manifest(facts.manifest),
    }
    nav = f'<nav><a href="{PAGES_PREFIX}">All jobs</a><span data-part="links">{"".join(links(job))}</span></nav>'
    body = "".join(f'<div data-part="{name}">{text}</div>' for name, text in parts.items())
    # Outside the parts, so that an answer stays when they are shown anew.
    told = '<p><output id="told" role="status"></output></p>'
    return page(job.id, nav + told + body, live=not job.ended)


def titled(title: str, text: str) -> str:
    return f'<h2>{title}</h2><div class="wide">{text}</div>' if text else ""


def _facts(job: JobDetail, now: datetime) -> str:
    until = job.updated_at if job.ended else now
    alias = f" @{job.model.alias}" if job.model and job.model.alias else ""
    model = f"{job.model.name} version {job.model.version}{alias}" if job.model else ""
    rows = (
        ("Submitted", f"{job.created_at:%Y-%m-%d %H:%M:%S} UTC by {job.user or 'unknown'}"),
        ("Duration", timeline.span((until - job.created_at).total_seconds())),
        ("Model", model),
    )
    return (
        f"<table>{''.join(f'<tr><th>{name}</th><td>{escape(text)}</td></tr>' for name, text in rows if text)}</table>"
    )


def _metrics(facts: PageFacts, job_id: str) -> str:
    """The program's own as curves and in sight; those of the platform folded."""
    if facts.metrics is None or not facts.metrics.last:
        return ""
    last = facts.metrics.last
    theirs = curves.own(list(last))
    others = [name for name in last if name not in theirs]
    of_learners = [name for name in others if OF_LEARNER.search(name)]
    text = curves.draw(facts.metrics.history, facts.attempts)
    more = [name for name in theirs if name not in facts.metrics.history] if text else []
    if more:
        count = f"{len(more)} more metric{'s' * (len(more) != 1)}"
        text += f'<p class="soft">{count}: <code>updraft metrics {escape(job_id)}</code></p>'
    if theirs:
        text += _values({name: last[name] for name in theirs})
    for whose, names in (
        ("learners: their memory and GPUs", of_learners),
        ("machine", [name for name in others if name not in of_learners]),
    ):
        if names:
            text += f"<details><summary>{len(names)} metric{'s' * (len(names) != 1)} of the {whose}</summary>"
            text += f"{_values({name: last[name] for name in names})}</details>"
    return titled("Metrics", text)


def _values(values: Mapping[str, float | None]) -> str:
    rows = [(escape(name), "NaN" if value is None else f"{value:.6g}") for name, value in values.items()]
    return table(("metric", "last"), rows)


def _log(logs: LogPage | None, attempts: Sequence[Attempt]) -> str:
    """The end of one attempt's log, and links to those of the others."""
    if logs is None:
        return ""
    lines = "\n".join(escape(line.line) for line in logs.lines) or "(nothing was written)"
    title = f"Log of {escape(logs.role)}, learner {logs.learner}, attempt {logs.attempt}, its end"
    others = [item for item in attempts if (item.role, item.number) != (logs.role, logs.attempt)]
    more = "".join(
        f' <a href="?role={quote(item.role)}&amp;attempt={item.number}#log">'
        f"{'' if item.role == logs.role else f'{escape(item.role)}, '}attempt {item.number}</a>"
        for item in others
    )
    return f'<h2 id="log">{title}</h2>{f"<p>Others:{more}</p>" if more else ""}<pre class="log">{lines}</pre>'


def _requests(found: Sequence[Request]) -> str:
    asked = [_request_row(item) for item in found]
    return table(("at (UTC)", "asked", "by", "changes", "answer"), asked) if asked else ""


def _learners(found: Sequence[Learner]) -> str:
    headings = ("role", "learner", "attempt", "phase", "progress", "warnings")
    return table(headings, [_learner_row(item) for item in found]) if found else ""


def _manifest(manifest: Mapping[str, Any]) -> str:
    if not manifest:
        return ""
    params = manifest.get("params")
    text = ""
    if isinstance(params, Mapping) and params:
        rows = [(escape(str(name)), escape(shown(value))) for name, value in params.items()]
        text = titled("Params", table(("param", "value"), rows))
    whole = escape(json.dumps(manifest, indent=2, default=str))
    return f"{text}<h2>Manifest</h2><details><summary>Show the manifest</summary><pre>{whole}</pre></details>"


def shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


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
            yield f"{prefix}{name} = {shown(value)}"


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
    metrics = "<br>".join(f"{escape(name)} {value:.5g}" for name, value in item.metrics.items())
    reason = f": {escape(item.reason)}" if item.reason else ""
    css = "FAILED" if item.state == "quarantined" else "soft"
    return (
        escape(item.name),
        "" if item.step is None else str(item.step),
        str(item.attempt or ""),
        f'<span class="size">{item.size_bytes / 1e6:.1f} MB</span>',
        "" if item.created_at is None else moment(item.created_at),
        metrics,
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


def _actions(job: JobDetail, airflow_url: str) -> str:
    """Buttons that ask the job; its script posts to the routes of halt, resume and cancel."""
    halted = job.state == "HALTED"
    going = "resume" if halted else "halt"
    what = "Resume" if halted else "Halt"
    if job.cancel_requested:
        return '<p class="note">The job is being cancelled.</p>'
    return (
        f'<h2>{what}, cancel</h2><p class="actions">{_button(job, going, what)}'
        f"{_button(job, 'cancel', 'Cancel', confirm='Click again: it ends for good')}</p>"
        f'<p class="soft">In a terminal: <code>updraft {going} {escape(job.id)}</code>. '
        "Halting saves a checkpoint and frees what the job holds. "
        f'To resume with changes, trigger <a href="{escape(airflow_url)}/dags/{RESUME_DAG}" target="_top">'
        f"{RESUME_DAG}</a>.</p>"
    )


def _only_cancel(job: JobDetail) -> str:
    """Of a job that is not recorded: there is nobody yet who would obey a request."""
    return f'<p class="soft">In a terminal, <code>updraft cancel {escape(job.id)}</code> ends it.</p>'


def _button(job: JobDetail, verb: str, label: str, confirm: str = "") -> str:
    url = escape(f"{API_PREFIX}/jobs/{quote(job.id, safe='')}/{verb}")
    asks = f' data-confirm="{confirm}"' if confirm else ""
    return f'<button type="button" id="{verb}" data-verb="{verb}" data-url="{url}"{asks}>{label}</button>'


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
    return f'<span class="soft moment"><span>{at:%Y-%m-%d}</span> <span>{at:%H:%M:%S}</span></span>'


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML already."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
