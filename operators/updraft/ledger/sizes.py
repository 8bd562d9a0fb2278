"""Read how fast the jobs of a series have trained with each size, and which sizes an elastic job may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row, select

from updraft.allocation import Elasticity
from updraft.ledger.tables import grants, jobs, speeds

if TYPE_CHECKING:  # NumPy, which only elastic jobs need
    from updraft.allocation.scalability import Report

MOST_REPORTS = 100  # of a series
MOST_WEIGHT = 1000  # steps: what was measured over more counts no more, so that a short attempt counts too
RESIZE_SECONDS = 30.0  # in which a job stands still while it is resized, until it is measured


@dataclass(frozen=True)
class Measured:
    """What the jobs of a series have measured: the time of their steps, newest first, and their pauses in resizes."""

    reports: Sequence[Report] = ()
    pauses: Sequence[float] = ()


Series = Mapping[tuple[str, str], Measured]  # by tenant and name


def measured_in_queue(connection: Connection) -> Series:
    """Return what the series have measured whose elastic jobs are in the queue."""
    elastic = (grants.c.elastic.is_not(None)) & grants.c.released_at.is_(None)
    query = select(jobs.c.tenant, jobs.c.name).join_from(grants, jobs, grants.c.job_id == jobs.c.id).where(elastic)
    series = connection.execute(query.distinct()).all()
    return {(tenant, name): measured_of(connection, tenant, name) for tenant, name in series}


def measured_of(connection: Connection, tenant: str, name: str) -> Measured:
    """Return what a series has measured."""
    from updraft.allocation.scalability import Report

    query = (
        select(speeds)
        .join_from(speeds, jobs, speeds.c.job_id == jobs.c.id)
        .where(jobs.c.tenant == tenant, jobs.c.name == name)
        .order_by(speeds.c.at.desc())
        .limit(MOST_REPORTS)
    )
    rows = connection.execute(query).all()
    return Measured(
        [Report(row.learners, row.batch, row.seconds, float(min(row.steps, MOST_WEIGHT))) for row in rows],
        [row.pause for row in rows if row.pause is not None],
    )


def elasticity(row: Row[Any], measured: Series) -> Elasticity | None:
    """Return the sizes of an elastic job, from what its series has measured."""
    if row.elastic is None:
        return None
    from updraft.allocation.elastic import Curve
    from updraft.allocation.scalability import Limits, curve_points

    limits, known = Limits(**row.elastic), measured.get((row.tenant, row.name), Measured())
    points = curve_points(limits, known.reports)
    if not points:  # the manifest was checked: it allows one
        return None
    pause = median(known.pauses) if known.pauses else RESIZE_SECONDS
    return Elasticity(limits, Curve(points), row.sized_at, pause, row.resizes, row.target is not None)
