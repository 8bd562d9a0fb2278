"""Brings MLflow to what the ledger says: messages written with a job's transitions, delivered in order.

Called by `release` for its own job and by the reaper for all. Delivering twice is harmless.
"""

from __future__ import annotations

import logging

from updraft.exceptions import NotFoundError, RefusedError, UnavailableError
from updraft.guardian.records import ledger
from updraft.lifecycle import State

log = logging.getLogger(__name__)


def deliver(job_id: str) -> None:
    """Raises UnavailableError when MLflow does not answer; what is left stays in the ledger."""
    from updraft import tracking

    book = ledger()
    job = book.job(job_id)
    for message in book.outbox(job_id):
        try:
            if job.mlflow_run_id:
                tags = {name: str(value) for name, value in message.tags.items()}
                tracking.show_state(tracking.client(), job.mlflow_run_id, State(message.state), tags)
        except UnavailableError as exc:
            book.undelivered(message.id, str(exc))
            raise
        except (NotFoundError, RefusedError) as exc:  # the run was deleted, or will never take it: the ledger keeps it
            log.warning("MLflow will not be told that %s is %s: %s", job.id, message.state, exc)
        book.delivered(message.id)
