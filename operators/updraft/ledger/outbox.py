"""Store messages to MLflow: written in the transaction of the fact they report, and kept until they are delivered.

The job's trigger, `release` or the reaper delivers them. The sender holds a lock per job, so that an older message
never arrives after a newer one.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, and_, func, insert, select, update

from updraft.exceptions import NotFoundError
from updraft.ledger import bounds
from updraft.ledger.records import Message
from updraft.ledger.tables import outbox
from updraft.lifecycle import State


def put(connection: Connection, job_id: str, state: State, tags: Mapping[str, Any], now: datetime) -> None:
    """Add a message. The caller has locked the job, so a job's messages keep their order."""
    values = {
        "state": state.value,
        "tags": {bounds.message(str(name)): bounds.message(str(text)) for name, text in tags.items()},
        "created_at": now,
    }
    connection.execute(insert(outbox).values(job_id=job_id, **values))


def undelivered_messages(connection: Connection, job_id: str | None, limit: int) -> list[Message]:
    """Return undelivered messages, those of a job in the order in which they were written. Jobs whose messages fail
    come last, so that they hold up no others."""
    waiting = outbox.c.delivered_at.is_(None)
    query = select(outbox).where(waiting)
    if job_id is not None:
        query = query.where(outbox.c.job_id == job_id).order_by(outbox.c.id)
    else:
        first = select(outbox.c.job_id, func.min(outbox.c.id).label("id")).where(waiting).group_by(outbox.c.job_id)
        heads, head = first.subquery("heads"), outbox.alias("head")
        query = query.join(heads, heads.c.job_id == outbox.c.job_id).join(head, and_(head.c.id == heads.c.id))
        query = query.order_by(head.c.tries, outbox.c.id)
    return [_message(row) for row in connection.execute(query.limit(limit))]


def delivered(connection: Connection, message_id: int, now: datetime) -> None:
    """Mark a message as delivered. A second call changes nothing."""
    _find(connection, message_id)
    key = (outbox.c.id == message_id) & outbox.c.delivered_at.is_(None)
    connection.execute(update(outbox).where(key).values(delivered_at=now))


def undelivered(connection: Connection, message_id: int, error: str) -> None:
    """Record a failed try. A message that another process has delivered meanwhile stays delivered."""
    _find(connection, message_id)
    key = (outbox.c.id == message_id) & outbox.c.delivered_at.is_(None)
    connection.execute(update(outbox).where(key).values(tries=outbox.c.tries + 1, error=bounds.message(error)))


def _find(connection: Connection, message_id: int) -> None:
    if connection.execute(select(outbox.c.id).where(outbox.c.id == message_id)).one_or_none() is None:
        raise NotFoundError(f"message: {message_id} is not in the outbox")


def _message(row: Row[Any]) -> Message:
    return Message(row.id, row.job_id, State(row.state), row.tags, row.created_at, row.tries, row.error)
