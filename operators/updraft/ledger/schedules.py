"""Store what is known of each series that a schedule starts: rule, cursor and last decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from updraft.exceptions import NotFoundError
from updraft.ledger import bounds, series
from updraft.ledger.records import NewSeriesEvent, Schedule, SeriesEvent
from updraft.ledger.tables import schedules, series_events


def ensure(
    connection: Connection, tenant: str, name: str, dag_id: str, rule: Mapping[str, Any], now: datetime
) -> Schedule:
    """Return the schedule, recorded if it is new. A rule that has changed comes into force now: earlier moments of its
    cron do not count, and the data that it last fired on stays known."""
    found = _find(connection, tenant, name)
    if found is None:
        made = Schedule(tenant, name, dag_id, bounds.document("rule", rule), now)
        connection.execute(insert(schedules).values(**asdict(made)))
        return made
    if found.rule == rule and found.dag_id == dag_id:
        return found
    changed = replace(found, dag_id=dag_id, rule=bounds.document("rule", rule), since=now, slot=None)
    _write(connection, changed)
    return changed


def save(connection: Connection, changed: Schedule, fired: NewSeriesEvent | None, now: datetime) -> SeriesEvent | None:
    """Store what a look decided, and the event of a schedule that fires, together. A pause stays as it is stored."""
    stored = get(connection, changed.tenant, changed.series)
    _write(connection, replace(changed, paused_by=stored.paused_by, reason=bounds.message(changed.reason)))
    return None if fired is None else series.record(connection, fired, now)


def pause(connection: Connection, tenant: str, name: str, by: str | None) -> Schedule:
    """Pause a schedule in the name of a user; None lets it go on. Raises NotFoundError."""
    changed = replace(get(connection, tenant, name), paused_by=by)
    _write(connection, changed)
    return changed


def get(connection: Connection, tenant: str, name: str) -> Schedule:
    found = _find(connection, tenant, name)
    if found is None:
        raise NotFoundError(f"schedule: series {name!r} of tenant {tenant!r} has no schedule")
    return found


def list_schedules(connection: Connection, tenant: str) -> list[Schedule]:
    query = select(schedules).where(schedules.c.tenant == tenant).order_by(schedules.c.series)
    return [_schedule(row) for row in connection.execute(query)]


def untaken(connection: Connection, tenant: str, name: str) -> SeriesEvent | None:
    """Return the newest firing of a series, if no job has taken it."""
    query = select(series_events).where(
        series_events.c.tenant == tenant, series_events.c.series == name, series_events.c.kind == "fired"
    )
    row = connection.execute(query.order_by(series_events.c.id.desc()).limit(1)).one_or_none()
    return None if row is None or row.job_id is not None else SeriesEvent(**dict(row._mapping))


def take(connection: Connection, key: str, job_id: str) -> str | None:
    """Give a firing to a job; return the job that has it. None: there is no such firing."""
    free = (series_events.c.key == key) & series_events.c.job_id.is_(None)
    connection.execute(update(series_events).where(free).values(job_id=job_id))
    found = series.find(connection, key)
    return None if found is None else found.job_id


def _find(connection: Connection, tenant: str, name: str) -> Schedule | None:
    query = select(schedules).where(schedules.c.tenant == tenant, schedules.c.series == name)
    row = connection.execute(query.with_for_update()).one_or_none()
    return None if row is None else _schedule(row)


def _write(connection: Connection, changed: Schedule) -> None:
    values = asdict(changed)
    key = (schedules.c.tenant == values.pop("tenant")) & (schedules.c.series == values.pop("series"))
    connection.execute(update(schedules).where(key).values(**values))


def _schedule(row: Row[Any]) -> Schedule:
    return Schedule(**dict(row._mapping))
