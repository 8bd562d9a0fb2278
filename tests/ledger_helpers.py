"""What only tests ask of a ledger."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from updraft.allocation import Capacity, Grant, plan_admissions
from updraft.ledger import Admission, Job, Ledger, NewJob, admission
from updraft.ledger.admission import Decide
from updraft.ledger.engine import reading


def deciding(capacity: Capacity) -> Decide:
    return partial(plan_admissions, capacity=capacity)


def grants(ledger: Ledger) -> list[Grant]:
    """Granted and not released, oldest first."""
    with reading(ledger._engine) as connection:
        return admission.live_grants(connection)


def try_admit(ledger: Ledger, job_id: str, capacity: Capacity) -> Admission:
    """Plan the queue, and say what was decided about this job."""
    ledger.queue.plan(deciding(capacity))
    return ledger.queue.admission(job_id)


def add_job(ledger: Ledger, job_id: str, *, tenant: str = "default", manifest: Mapping[str, Any] | None = None) -> Job:
    """Record another job than the one that the test submits."""
    return ledger.jobs.record(NewJob(job_id, tenant, "other", "train_model", job_id, dict(manifest or {}), "ada"))
