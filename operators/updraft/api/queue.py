"""Make the answers about the queue from the ledger's rows."""

from __future__ import annotations

from updraft.allocation import learner_text
from updraft.api.reading import JobReader
from updraft.ledger.records import QueueRow
from updraft.schemas import QueueEntry, QueueList


def listed(reader: JobReader) -> QueueList:
    """Return the queue as far as the caller may see its jobs."""
    rows = reader.parts.deadline.call("ledger", lambda: reader.parts.ledger().queue.listing())
    seen = [row for row in rows if reader.policy(reader.caller, row.tenant)]
    return QueueList(
        running=tuple(_entry(row) for row in seen if row.granted_at is not None),
        waiting=tuple(_entry(row) for row in seen if row.granted_at is None),
    )


def _entry(row: QueueRow) -> QueueEntry:
    request = row.request
    return QueueEntry(
        job=request.job_id,
        name=row.name,
        tenant=row.tenant,
        user=row.user,
        state=row.state.value,
        priority=request.priority,
        place=row.admission.place,
        learners=request.learners,
        each=learner_text(request),
        requested_at=request.requested_at,
        granted_at=row.granted_at,
        reason="" if row.granted_at is not None else row.admission.reason,
    )
