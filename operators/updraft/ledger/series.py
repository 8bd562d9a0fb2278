"""Store what happened to the models of each series: promotions, rejections, approvals and roll-backs."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select
from sqlalchemy.exc import IntegrityError

from updraft.ledger import bounds
from updraft.ledger.records import NewSeriesEvent, Series, SeriesEvent
from updraft.ledger.tables import NAME_LENGTH, jobs, series_events


def record(connection: Connection, new: NewSeriesEvent, now: datetime) -> SeriesEvent:
    """Record an event. The first record of its key stays, and is returned."""
    bounds.identifier("key", new.key, NAME_LENGTH)
    existing = find(connection, new.key)
    if existing is not None:
        return existing
    values = {**asdict(new), "reason": bounds.message(new.reason), "evidence": bounds.evidence(new.evidence)}
    try:
        with connection.begin_nested():
            connection.execute(insert(series_events).values(**values, at=now))
    except IntegrityError:  # another process recorded it meanwhile
        pass
    made = find(connection, new.key)
    assert made is not None
    return made


def find(connection: Connection, key: str) -> SeriesEvent | None:
    row = connection.execute(select(series_events).where(series_events.c.key == key)).one_or_none()
    return None if row is None else _event(row)


def events(
    connection: Connection, tenant: str, *, series: str | None, model: str | None, limit: int | None
) -> list[SeriesEvent]:
    """Return a tenant's events, oldest first; with `limit`, the newest of them."""
    query = select(series_events).where(series_events.c.tenant == tenant)
    if series is not None:
        query = query.where(series_events.c.series == series)
    if model is not None:
        query = query.where(series_events.c.model == model)
    query = query.order_by(series_events.c.id.desc())
    if limit is not None:
        query = query.limit(limit)
    return [_event(row) for row in connection.execute(query)][::-1]


def model_of(connection: Connection, tenant: str, name: str) -> str | None:
    """Return the model that a series registered last; None if it has registered none."""
    query = select(series_events.c.model).where(
        series_events.c.tenant == tenant, series_events.c.series == name, series_events.c.model.is_not(None)
    )
    return connection.execute(query.order_by(series_events.c.id.desc()).limit(1)).scalar_one_or_none()


def list_series(connection: Connection, tenant: str | None, limit: int) -> list[Series]:
    """Return the series with recorded jobs, most recent job first."""
    last = func.max(jobs.c.submitted_at)
    query = select(jobs.c.tenant, jobs.c.name, func.count(), last).group_by(jobs.c.tenant, jobs.c.name)
    if tenant is not None:
        query = query.where(jobs.c.tenant == tenant)
    query = query.order_by(last.desc(), jobs.c.name).limit(limit)
    return [Series(*row) for row in connection.execute(query)]


def _event(row: Row[Any]) -> SeriesEvent:
    return SeriesEvent(**dict(row._mapping))
