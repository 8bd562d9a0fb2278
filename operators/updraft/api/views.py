"""Convert records of the ledger and of the store to answers. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from updraft import schemas
from updraft.api import history
from updraft.controller.idempotency import Promotion, RegisteredModel
from updraft.controller.records import manifest_of
from updraft.ledger import Attempt, Job, ListedJob, Request, Transition
from updraft.ledger.records import JobSizes
from updraft.lifecycle import State, Verdict
from updraft.lifecycle.workflow import PROMOTE_TASK, TRAIN_ROLE
from updraft.manifest.strategy import strategy_text
from updraft.mlflow_pages import run_page, version_page
from updraft.settings import Settings
from updraft_learner.contract import LearnerStatus


@dataclass(frozen=True)
class Known:
    """The ledger's facts about a job besides the job itself."""

    transitions: Sequence[Transition]
    attempts: Sequence[Attempt]  # oldest first
    requests: Sequence[Request]  # only those without an answer
    model: schemas.Model | None
    place: int | None = None  # in the queue, from 1
    waits_for_approval: bool = False
    sizes: JobSizes = field(default_factory=JobSizes)


def summary(job: ListedJob, known: Known, progress: schemas.Progress | None) -> schemas.JobSummary:
    return schemas.JobSummary(**_common(job, known), progress=progress)


def detail(job: Job, settings: Settings, known: Known, learners: Sequence[schemas.Learner]) -> schemas.JobDetail:
    training = [learner for learner in learners if learner.role == TRAIN_ROLE]
    elastic = job.manifest.get("elastic")
    return schemas.JobDetail(
        **_common(job, known),
        progress=slowest(training),
        dag_id=job.dag_id,
        run_id=job.run_id,
        revision=job.revision,
        cancel_requested=job.cancel_requested_at is not None,
        transitions=tuple(transition(item) for item in known.transitions),
        learners=tuple(learners),
        metrics=next((dict(each.metrics) for each in training if each.metrics), {}),
        strategy=strategy_text(manifest_of(job)) if job.manifest.get("strategy") else None,
        queue=queue(job, known),
        min_learners=elastic.get("min_learners", 1) if elastic else None,
        max_learners=elastic.get("max_learners") if elastic else None,
        resize=elastic.get("resize", "restart") if elastic else None,
        sizes=tuple(schemas.JobSize(**asdict(size)) for size in known.sizes.rows),
        size_remarks=tuple(known.sizes.remarks),
        gradient_noise=known.sizes.noise,
        verdict=None if job.verdict is None else verdict(job.verdict),
        approval=approval_page(job, settings) if known.waits_for_approval else None,
        links=links(job, settings),
    )


def _common(job: Job | ListedJob, known: Known) -> dict[str, Any]:
    return {
        "id": job.id,
        "name": job.name,
        "tenant": job.tenant,
        "user": job.submitted_by,
        "state": job.state.value,
        "reason": job.reason,
        "ended": job.ended,
        "created_at": job.submitted_at,
        "updated_at": job.ended_at or known.transitions[-1].at,
        "model": known.model,
        # Attempt numbers rise over all roles; users count the launches of the training.
        "attempt": sum(attempt.role == TRAIN_ROLE for attempt in known.attempts),
        "loss": history.loss(known.attempts),
        "requests": tuple(history.request(item) for item in known.requests),
        "override": history.override(job),
    }


def transition(item: Transition) -> schemas.Transition:
    return schemas.Transition(
        at=item.at,
        state=item.to_state.value,
        previous=None if item.from_state is None else item.from_state.value,
        reason=item.reason,
        evidence=dict(item.evidence),
    )


def queue(job: Job, known: Known) -> schemas.Queue | None:
    """Place and reason while the job waits; when it was granted, afterwards."""
    if job.state is State.QUEUED:
        return schemas.Queue(place=known.place, reason=job.reason)
    granted = next((item for item in known.transitions if item.to_state is State.DEPLOYING), None)
    return None if granted is None else schemas.Queue(granted_at=granted.at, reason=granted.reason)


def verdict(found: Verdict) -> dict[str, Any]:
    evidence = asdict(found.evidence) if is_dataclass(found.evidence) else dict(found.evidence)
    return {"state": found.state.value, "reason": found.reason, **evidence}


def learners(statuses: Iterable[tuple[Attempt, int, LearnerStatus]]) -> tuple[schemas.Learner, ...]:
    return tuple(
        schemas.Learner(
            role=attempt.role,
            attempt=attempt.number,
            learner=number,
            phase=status.phase,
            heard_at=datetime.fromtimestamp(status.t, UTC),
            progress=progress(status.progress),
            metrics=history.finite(status.last_metrics),
            checkpoints=sum(1 for checkpoint in status.checkpoints if checkpoint.uploaded),
            warnings=status.warnings,
        )
        for attempt, number, status in statuses
    )


def progress(found: Mapping[str, int]) -> schemas.Progress | None:
    return schemas.Progress.model_validate(found) if found else None


def slowest(found: Sequence[schemas.Learner]) -> schemas.Progress | None:
    """Return the progress of the learner that is furthest behind: a gang is as far as its slowest member."""
    told = [learner.progress for learner in found if learner.role == TRAIN_ROLE and learner.progress is not None]
    return min(told, key=lambda item: item.step or 0, default=None)


def number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def model(version: RegisteredModel | None, promotion: Promotion | None, settings: Settings) -> schemas.Model | None:
    """Return the model that the job registered, with the alias that its promotion gave it."""
    if version is None:
        return None
    return schemas.Model(
        name=version.name,
        version=version.version,
        alias=promotion.alias if promotion is not None and promotion.promoted else None,
        url=version_page(settings.mlflow_browser_uri, version.name, version.version),
    )


def approval_page(job: Job, settings: Settings) -> str:
    """Return the address of Airflow's page where a person approves or rejects the job's model."""
    airflow = settings.airflow_public_uri.rstrip("/")
    run = f"{airflow}/dags/{quote(job.dag_id, safe='')}/runs/{quote(job.run_id, safe='')}"
    return f"{run}/tasks/{PROMOTE_TASK}/required_actions"


def links(job: Job, settings: Settings) -> schemas.Links:
    airflow = settings.airflow_public_uri.rstrip("/")
    run = None
    if job.mlflow_run_id:
        run = run_page(settings.mlflow_browser_uri, job.mlflow_experiment_id or "", job.mlflow_run_id)
    return schemas.Links(
        airflow_run=f"{airflow}/dags/{quote(job.dag_id, safe='')}/runs/{quote(job.run_id, safe='')}",
        mlflow_run=run,
        page=f"{airflow}{schemas.PAGES_PREFIX}/{quote(job.id, safe='')}",
    )
