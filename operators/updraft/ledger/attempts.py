"""Launches of a job's learners, with the fencing number that keeps older launches from having effects."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select, update

from updraft.exceptions import NotFoundError, StaleAttemptError
from updraft.ledger import bounds
from updraft.ledger import jobs as job_rows
from updraft.ledger.records import Attempt
from updraft.ledger.tables import WORD_LENGTH, attempts

SUPERSEDED = "superseded"


def open_attempt(connection: Connection, job_id: str, role: str, now: datetime) -> int:
    """A new number, higher than all before of this job. An attempt of the role still open is closed as superseded."""
    job_rows.get(connection, job_id, lock=True)
    bounds.word("role", role, WORD_LENGTH)
    last = connection.execute(select(func.max(attempts.c.number)).where(attempts.c.job_id == job_id)).scalar()
    number = int(last or 0) + 1
    connection.execute(
        update(attempts)
        .where(attempts.c.job_id == job_id, attempts.c.role == role, attempts.c.ended_at.is_(None))
        .values(ended_at=now, outcome=SUPERSEDED, reason=f"attempt {number} was started")
    )
    connection.execute(insert(attempts).values(job_id=job_id, role=role, number=number, started_at=now, evidence={}))
    return number


def current_attempt(connection: Connection, job_id: str, role: str) -> Attempt | None:
    """The newest of the role, open or closed."""
    query = select(attempts).where(attempts.c.job_id == job_id, attempts.c.role == role)
    row = connection.execute(query.order_by(attempts.c.number.desc()).limit(1)).one_or_none()
    return None if row is None else _attempt(row)


def list_attempts(connection: Connection, job_id: str) -> list[Attempt]:
    """Oldest first."""
    query = select(attempts).where(attempts.c.job_id == job_id).order_by(attempts.c.number)
    return [_attempt(row) for row in connection.execute(query)]


def close_attempt(
    connection: Connection,
    job_id: str,
    role: str,
    number: int,
    outcome: str,
    reason: str,
    evidence: Mapping[str, Any] | None,
    now: datetime,
) -> Attempt:
    """The first close stands. Raises StaleAttemptError when a newer attempt of the role exists."""
    job_rows.get(connection, job_id, lock=True)
    current = current_attempt(connection, job_id, role)
    if current is None or number > current.number:
        raise NotFoundError(f"attempt: {job_id} has no attempt {number} of role {role!r}")
    if number < current.number:
        raise StaleAttemptError(
            f"attempt: {number} of role {role!r} of {job_id} is not the newest ({current.number} is); refused"
        )
    if current.ended_at is not None:
        return current
    values = {
        "ended_at": now,
        "outcome": bounds.word("outcome", outcome, WORD_LENGTH),
        "reason": bounds.prose(reason),
        "evidence": bounds.evidence(evidence),
    }
    connection.execute(
        update(attempts).where(attempts.c.job_id == job_id, attempts.c.number == number).values(**values)
    )
    closed = current_attempt(connection, job_id, role)
    assert closed is not None
    return closed


def _attempt(row: Row[Any]) -> Attempt:
    return Attempt(**dict(row._mapping))
