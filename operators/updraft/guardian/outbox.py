"""Brings MLflow to what the ledger says: messages written with a job's transitions, delivered in order.

Called by `release` for its own job and by the reaper for all. Delivering twice is harmless.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from updraft.exceptions import NotFoundError, RefusedError, UnavailableError
from updraft.guardian.records import ledger
from updraft.lifecycle import State

if TYPE_CHECKING:
    from updraft.ledger import Job, Ledger

log = logging.getLogger(__name__)


def deliver(job_id: str) -> None:
    """Raises UnavailableError when MLflow does not answer; what is left stays in the ledger."""
    book = ledger()
    if not book.outbox(job_id, limit=1):
        return
    with book.lock(f"outbox {job_id}"):  # two at once could tell an older state after a newer one
        _deliver(book, book.job(job_id))


def _deliver(book: Ledger, job: Job) -> None:
    from updraft import tracking

    for message in book.outbox(job.id):
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
