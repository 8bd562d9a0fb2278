"""Store the sizes that the planner gives to elastic jobs, and what each change brought."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, Row, func, insert, select, true, update

from updraft.ledger import bounds
from updraft.ledger.records import ResizeRow
from updraft.ledger.sizes import limits_now
from updraft.ledger.tables import jobs, resizes, speeds

if TYPE_CHECKING:
    from updraft.allocation import Resized
    from updraft.allocation.scalability import Report

_OPEN = resizes.c.closed_at.is_(None)


def record(
    connection: Connection, number: int, grant: Row[Any], decided: Resized, now: datetime, *, starts: bool
) -> None:
    """Write down a decision. What became of the job's earlier one cannot be measured any more.

    Args:
        number: Of the round.
        grant: The job's row before the decision.
        starts: Whether the job starts with this size.
    """
    close(connection, grant.job_id, now)
    limits = limits_now(connection, grant.job_id, now)
    worth = limits.goodput(decided.batch, 1.0) / limits.goodput(grant.batch, 1.0)
    connection.execute(
        insert(resizes).values(
            round=number,
            job_id=grant.job_id,
            at=now,
            before=0 if starts else grant.learners,
            before_batch=None if starts else grant.batch,
            after=decided.learners,
            after_batch=decided.batch,
            reason=bounds.message(decided.reason),
            expected=decided.expected,
            step_worth=worth,
            seconds_before=None if starts else _step_seconds(connection, grant),
            closed_at=now if starts else None,
        )
    )


def close(connection: Connection, job_id: str, now: datetime) -> None:
    """Stop waiting for the result of the job's newest decision."""
    connection.execute(update(resizes).where(resizes.c.job_id == job_id, _OPEN).values(closed_at=now))


def measured(connection: Connection, job_id: str, report: Report, pause: float | None, now: datetime) -> None:
    """Record how fast the job is with the size of its newest decision. Later reports are more exact, and replace it."""
    row = connection.execute(
        select(resizes).where(resizes.c.job_id == job_id).order_by(resizes.c.id.desc()).limit(1)
    ).one_or_none()
    if row is None or row.after != report.learners or not row.before:
        return
    if row.closed_at is not None and row.pause is None and row.gained is None:
        return  # closed without a result, as by a relaunch into the queue
    values: dict[str, Any] = {"closed_at": row.closed_at or now}
    if row.seconds_before is not None:
        values["gained"] = row.step_worth * row.seconds_before / report.seconds
    if pause is not None:
        values["pause"] = pause
    connection.execute(update(resizes).where(resizes.c.id == row.id).values(**values))


def settled(connection: Connection, job_id: str, pause: float | None, now: datetime, *, refused: bool) -> None:
    """Record that the learners of the job's newest decision have joined or left while the others trained.

    Args:
        pause: The seconds for which the others stood still; None: unknown.
        refused: Whether not all that should join did; then there is no result to wait for.
    """
    values: dict[str, Any] = {"pause": pause, "refused": refused}
    if refused:
        values["closed_at"] = now
    connection.execute(update(resizes).where(resizes.c.job_id == job_id, _OPEN).values(**values))


def newest(connection: Connection, limit: int, tenants: Collection[str]) -> list[ResizeRow]:
    """Return the decisions about jobs of these tenants, newest round first; at most `limit` rounds."""
    of_tenants = jobs.c.tenant.in_(tenants)
    rounds = (
        select(resizes.c.round)
        .join_from(resizes, jobs, resizes.c.job_id == jobs.c.id)
        .where(of_tenants)
        .distinct()
        .order_by(resizes.c.round.desc())
        .limit(limit)
    )
    return _rows(connection, [row.round for row in connection.execute(rounds)], of_tenants)


def to_show(connection: Connection) -> list[ResizeRow]:
    """Return the decisions of the oldest round whose results are all known and that no run of the DAG has reported;
    empty if there is none."""
    known = (
        select(resizes.c.round)
        .where(resizes.c.shown.is_(False))
        .group_by(resizes.c.round)
        .having(func.count() == func.count(resizes.c.closed_at))
        .order_by(resizes.c.round)
        .limit(1)
    )
    return _rows(connection, [row.round for row in connection.execute(known)])


def mark_shown(connection: Connection, number: int) -> None:
    """Record that a run of the DAG has reported a round."""
    connection.execute(update(resizes).where(resizes.c.round == number).values(shown=True))


def _rows(connection: Connection, rounds: Collection[int], which: ColumnElement[bool] | None = None) -> list[ResizeRow]:
    query = (
        select(resizes, jobs.c.tenant, jobs.c.name)
        .join_from(resizes, jobs, resizes.c.job_id == jobs.c.id)
        .where(resizes.c.round.in_(rounds), true() if which is None else which)
        .order_by(resizes.c.round.desc(), resizes.c.id)
    )
    return [_row(row) for row in connection.execute(query)]


def _row(row: Row[Any]) -> ResizeRow:
    return ResizeRow(
        id=row.id,
        round=row.round,
        job_id=row.job_id,
        tenant=row.tenant,
        name=row.name,
        at=row.at,
        before=row.before,
        before_batch=row.before_batch,
        after=row.after,
        after_batch=row.after_batch,
        reason=row.reason,
        expected=row.expected,
        gained=row.gained,
        pause_seconds=row.pause,
        closed=row.closed_at is not None,
    )


def _step_seconds(connection: Connection, grant: Row[Any]) -> float | None:
    """Return how long a step of the job takes with its present size, if it has reported that."""
    query = select(speeds).where(speeds.c.job_id == grant.job_id).order_by(speeds.c.attempt.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    return None if row is None or row.learners != grant.learners else float(row.seconds)
