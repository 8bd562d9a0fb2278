"""What only tests ask of a ledger."""

from __future__ import annotations

from updraft.allocation import Capacity, Grant
from updraft.ledger import Admission, Ledger, admission
from updraft.ledger.engine import reading


def grants(ledger: Ledger) -> list[Grant]:
    """Granted and not released, oldest first."""
    with reading(ledger._engine) as connection:
        return admission.live_grants(connection)


def try_admit(ledger: Ledger, job_id: str, capacity: Capacity) -> Admission:
    """Plan the queue, and say what was decided about this job."""
    ledger.plan_queue(capacity)
    return ledger.admission(job_id)
