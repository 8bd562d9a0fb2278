"""Store messages to people until they are sent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from updraft.ledger import bounds
from updraft.ledger.records import NewNotice, Notice
from updraft.ledger.tables import NAME_LENGTH, notices


def put(connection: Connection, new: Iterable[NewNotice], now: datetime) -> None:
    """Record messages, to be sent now. The first record of a key stays."""
    for each in new:
        bounds.identifier("key", each.key, NAME_LENGTH)
        if connection.execute(select(notices.c.id).where(notices.c.key == each.key)).first() is None:
            values = {name: text if text is None else bounds.message(text) for name, text in asdict(each).items()}
            connection.execute(insert(notices).values(**values, created_at=now, due_at=now))


def due(connection: Connection, now: datetime, limit: int) -> list[Notice]:
    """Return the messages that are to be sent now, those that were tried least first."""
    query = select(notices).where(notices.c.due_at <= now).order_by(notices.c.tries, notices.c.id).limit(limit)
    return [_notice(row) for row in connection.execute(query)]


def of_job(connection: Connection, job_id: str) -> list[Notice]:
    query = select(notices).where(notices.c.job_id == job_id).order_by(notices.c.id)
    return [_notice(row) for row in connection.execute(query)]


def delivered(connection: Connection, notice_id: int, now: datetime) -> None:
    key = (notices.c.id == notice_id) & notices.c.delivered_at.is_(None)
    connection.execute(
        update(notices).where(key).values(delivered_at=now, due_at=None, tries=notices.c.tries + 1, error=None)
    )


def failed(connection: Connection, notice_id: int, error: str, due_at: datetime | None) -> None:
    """Record a failed try, and when the next one is due; None: it is given up."""
    key = (notices.c.id == notice_id) & notices.c.delivered_at.is_(None)
    values = {"error": bounds.message(error), "due_at": due_at}
    connection.execute(update(notices).where(key).values(tries=notices.c.tries + 1, **values))


def _notice(row: Row[Any]) -> Notice:
    return Notice(**dict(row._mapping))
