"""Send to MLflow what sidecars could not, before a job's metrics are compared and its MLflow run is closed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from updraft.controller.comparing import run_of
from updraft.controller.idempotency import ReplayRecord
from updraft.controller.idempotency import replayed as replayed_key
from updraft_learner.contract import Keys

if TYPE_CHECKING:
    from updraft.ledger import Attempt, Job
    from updraft.services import Services
    from updraft.tracking.replay import ReplayLimits, TimeBudget

log = logging.getLogger(__name__)


def replay_metrics(services: Services, job: Job, limits: ReplayLimits | None = None) -> None:
    """Bring into the job's MLflow run what its learners recorded and MLflow has not; once per learner and attempt.

    A learner without a completion marker was lost with its sidecar: what it had stored counts too.
    Raises UnavailableError.
    """
    if job.mlflow_run_id is None:
        return
    from updraft.tracking.replay import LIMITS, TimeBudget

    deadline = TimeBudget()
    for attempt in services.ledger.attempts.of_job(job.id):
        run_id = run_of(services, job, attempt.role)
        if run_id is None:
            continue
        for learner in attempt.membership.ever:
            _replay(services, job, run_id, attempt, learner, deadline, limits or LIMITS)


def _replay(
    services: Services,
    job: Job,
    run_id: str,
    attempt: Attempt,
    learner: int,
    deadline: TimeBudget,
    limits: ReplayLimits,
) -> None:
    from updraft.storage import objects
    from updraft.storage.errors import platform_errors
    from updraft.tracking.replay import replay

    place = (job.id, attempt.role, attempt.number, learner)
    key = replayed_key(attempt.role, attempt.number, learner)
    if services.ledger.idempotency.get(job.id, key) is not None:
        return
    done = objects.read_done(job.tenant, *place, store=services.store)
    if done is not None and not done.get("metrics_pending") and not done.get("artifacts_pending"):
        return
    keys = Keys(job.tenant)
    with platform_errors():
        replayed = replay(
            services.settings, services.store, run_id, keys.metrics(*place), keys.artifacts(*place), deadline, limits
        )
    for warning in replayed.warnings:
        log.warning("%s of learner %d: %s", attempt.role, learner, warning)
    whose = f"attempt {attempt.number}, learner {learner} of {attempt.role}"
    missing = [f"{whose}: in the object store, but not in MLflow: {left}" for left in replayed.left]
    for text in missing:
        log.warning("%s", text)
    if replayed.points or replayed.artifacts:
        log.info(
            "Learner %d of %s: %d points and %d artifacts reached MLflow late",
            learner,
            attempt.role,
            replayed.points,
            replayed.artifacts,
        )
    if attempt.ended_at is not None or done is not None:  # otherwise its sidecar may still be writing
        record = ReplayRecord(replayed.points, replayed.artifacts, tuple(replayed.left))
        services.ledger.idempotency.record(job.id, key, record)
        for text in missing:
            services.ledger.jobs.note(job.id, text, {"attempt": attempt.number, "learner": learner})
