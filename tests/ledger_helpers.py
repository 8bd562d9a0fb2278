"""What only tests ask of a ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from updraft.allocation import Capacity, Elasticity, GangRequest, Grant, Plan, Resized, plan_admissions
from updraft.allocation.elastic import Curve
from updraft.allocation.scalability import Limits, Report, curve_points
from updraft.ledger import Admission, AttemptClosure, Job, Ledger, NewJob, admission
from updraft.ledger.admission import Decide
from updraft.ledger.engine import reading
from updraft.ledger.records import Shift
from updraft.lifecycle import State
from updraft.recovery.policy import PlannedRelaunch


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


LIMITS = Limits(1, 8, 32, 256)


def run_elastic(ledger: Ledger, job_id: str, learners: int, *, step_seconds: float | None = None) -> None:
    """Let a recorded job train with so many learners, of 1 to 8, and 32 samples each."""
    submitted_at = ledger.jobs.get(job_id).submitted_at
    sizes = Elasticity(LIMITS, Curve(curve_points(LIMITS, ())))
    ledger.queue.enqueue(job_id, GangRequest(job_id, 1, 1, 256, 1, None, submitted_at, elastic=sizes))
    ledger.jobs.move(job_id, State.QUEUED, "waiting")
    resize(ledger, {job_id: learners}, granted=(job_id,))
    ledger.queue.start(job_id, "granted")
    ledger.attempts.ensure(job_id, "train", after=None, learners=learners, batch=32 * learners)
    ledger.jobs.move(job_id, State.PROCESSING, "runs")
    if step_seconds is not None:
        ledger.queue.note_speed(job_id, 1, Report(learners, 32 * learners, step_seconds), 100, ledger.now())


def resize(ledger: Ledger, sizes: Mapping[str, int], *, granted: Sequence[str] = ()) -> None:
    """Decide a round: each of these jobs gets so many learners."""
    resized = tuple(
        Resized(job_id, n, 32 * n, None if job_id in granted else 1.5, f"{n} learners for {job_id}")
        for job_id, n in sizes.items()
    )
    ledger.queue.plan(lambda *_: Plan(granted=tuple(granted), resized=resized))


def train_resized(ledger: Ledger, job_id: str, learners: int, step_seconds: float) -> None:
    """Let the job train with the size that was decided, and report how long a step takes, 12 s after the decision."""
    shift = Shift("attempt 1 of train was stopped", {}, {})
    relaunch = PlannedRelaunch(ledger.now(), 0.0, "again")
    closure = AttemptClosure("preempted", "asked", label="grant.resized", relaunch=relaunch, shift=shift)
    ledger.attempts.close(job_id, "train", 1, closure)
    ledger.attempts.ensure(job_id, "train", after=1, learners=learners, batch=32 * learners)
    ledger.jobs.move(job_id, State.PROCESSING, "runs")
    decided = next(
        row.at for row in ledger.queue.rounds(100, (ledger.jobs.get(job_id).tenant,)) if row.job_id == job_id
    )
    began = decided + timedelta(seconds=12)  # not from now: the report's seconds must not depend on this machine
    ledger.queue.note_speed(job_id, 2, Report(learners, 32 * learners, step_seconds), 100, began)
