"""What only tests ask of a ledger."""

from __future__ import annotations

from functools import partial

from updraft.allocation import Capacity, Grant, plan_admissions
from updraft.ledger import Admission, Ledger, admission
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
