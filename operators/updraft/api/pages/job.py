"""Make the page of one job."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from updraft.api.pages import curves, timeline
from updraft.api.pages.jobs import notes
from updraft.api.pages.render import render, shown, span
from updraft.lifecycle.workflow import RESUME_DAG, tenant_dag
from updraft.schemas import Attempt, Checkpoint, JobDetail, LogPage, Metrics, Request

SHOWN_STATES = 30
OF_LEARNER = re.compile(r"^system/node_\d+/(learner|gpu)_")

Values = list[tuple[str, float | None]]


@dataclass(frozen=True)
class PageFacts:
    """What a job's page shows besides the job. `trouble`: the errors of the parts that did not answer."""

    attempts: Sequence[Attempt] = ()
    checkpoints: Sequence[Checkpoint] = ()
    requests: Sequence[Request] = ()
    metrics: Metrics | None = None
    logs: LogPage | None = None
    trouble: Sequence[str] = ()
    manifest: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MetricsSection:
    """The program's metrics, as curves and last values, and the platform's metrics, folded by their source.

    `more`: the number of the program's metrics that are not drawn; 0 if none is drawn.
    """

    curves: str
    more: int
    own: Values
    folded: tuple[tuple[str, Values], ...]


def job_page(job: JobDetail, facts: PageFacts, airflow_url: str, now: datetime, *, nonce: str = "") -> str:
    """Return the page of a job as HTML. The page of a job that has not ended asks for itself again every few seconds.

    Args:
        job: The job.
        facts: What else the page shows.
        airflow_url: Where Airflow's UI is, without a slash at the end.
        now: The end of the pictures and durations of a job that still runs.
        nonce: Allows the page's script under its Content-Security-Policy.
    """
    logs = facts.logs
    params = facts.manifest.get("params")
    return render(
        "job.html",
        title=job.id,
        live=not job.ended,
        nonce=nonce,
        job=job,
        facts=facts,
        links=list(_links(job)),
        notes=notes(job),
        summary=list(_summary(job, now)),
        airflow_url=airflow_url,
        resume_dag=tenant_dag(RESUME_DAG, job.tenant),
        timeline=timeline.draw(job, facts.attempts, facts.checkpoints, now),
        metrics=_metrics(facts),
        other_logs=[a for a in facts.attempts if logs is not None and (a.role, a.number) != (logs.role, logs.attempt)],
        earlier_states=job.transitions[:-SHOWN_STATES],
        states=job.transitions[-SHOWN_STATES:],
        kept=[item for item in facts.checkpoints if item.state != "deleted"],
        deleted=[item for item in facts.checkpoints if item.state == "deleted"],
        params=[(name, shown(value)) for name, value in params.items()] if isinstance(params, Mapping) else [],
        manifest=json.dumps(facts.manifest, indent=2, default=str),
    )


def _links(job: JobDetail) -> Iterator[tuple[str, str]]:
    known = (
        ("Airflow run", job.links.airflow_run),
        ("MLflow run", job.links.mlflow_run),
        ("Model", job.model.url if job.model else None),
    )
    for label, url in known:
        if url:
            yield label, url


def _summary(job: JobDetail, now: datetime) -> Iterator[tuple[str, str]]:
    yield "Submitted", f"{job.created_at:%Y-%m-%d %H:%M:%S} UTC by {job.user or 'unknown'}"
    yield "Duration", span(((job.updated_at if job.ended else now) - job.created_at).total_seconds())
    if job.strategy is not None:
        yield "Strategy", job.strategy
    if job.model:
        yield "Model", f"{job.model.name} version {job.model.version}" + f" @{job.model.alias}" * bool(job.model.alias)


def _metrics(facts: PageFacts) -> MetricsSection | None:
    if facts.metrics is None or not facts.metrics.last:
        return None
    last = facts.metrics.last
    own = curves.own(list(last))
    drawn = curves.draw(facts.metrics.history, facts.attempts)
    theirs = [name for name in last if name not in own]
    of_learners = [name for name in theirs if OF_LEARNER.search(name)]
    of_machine = [name for name in theirs if name not in of_learners]
    return MetricsSection(
        curves=drawn,
        more=sum(name not in facts.metrics.history for name in own) if drawn else 0,
        own=[(name, last[name]) for name in own],
        folded=(
            ("learners: their memory and GPUs", [(name, last[name]) for name in of_learners]),
            ("machine", [(name, last[name]) for name in of_machine]),
        ),
    )
