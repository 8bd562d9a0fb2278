"""Store what elastic jobs measure of their own scaling, and read which sizes an elastic job may have: from this, and
from how fast the jobs of its series have trained with each size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row, insert, select, update

from updraft.allocation import Elasticity
from updraft.ledger import jobs as job_rows
from updraft.ledger.records import Analysis, Job
from updraft.ledger.tables import analyses, attempts, exchanges, grants, jobs, resizes, speeds
from updraft.lifecycle.membership import Membership
from updraft.lifecycle.workflow import TRAIN_ROLE
from updraft.recovery.policy import NO_QUOTA, NO_ROOM
from updraft.wording import counted

if TYPE_CHECKING:  # NumPy, which only elastic jobs need
    from updraft.allocation.scalability import Limits, Report

MOST_REPORTS = 100  # of a series
MOST_ANALYSES = 10  # of a series
MOST_WEIGHT = 1000  # steps: what was measured over more counts no more, so that a short attempt counts too
REFUSED_FOR = timedelta(hours=1)  # how long a size for which there was no room is not tried again
RESIZE_SECONDS = 30.0  # in which a job stands still while it is resized, until it is measured
IN_PLACE_SECONDS = 1.0  # the same, if its learners join and leave while the others train


@dataclass(frozen=True)
class Measured:
    """What the jobs of a series have measured: the time of their steps, newest first, their pauses in resizes, and the
    scaling that their programs report.

    Args:
        noise: The gradient noise scale that each job has reported last, by job id; newest first.
        refused: The fewest learners for which the cluster or a quota had no room lately; None: it had for all.
        exchanges: Of each kind of device: learners, bytes and seconds.
    """

    reports: Sequence[Report] = ()
    pauses: Sequence[float] = ()
    analysis: Analysis = field(default_factory=Analysis)
    noise: Mapping[str, float] = field(default_factory=dict)
    exchanges: Mapping[str, Sequence[tuple[int, float, float]]] = field(default_factory=dict)
    refused: int | None = None


Series = Mapping[tuple[str, str], Measured]  # by tenant and name


def measured_in_queue(connection: Connection, now: datetime) -> Series:
    """Return what the series have measured whose elastic jobs are in the queue."""
    elastic = (grants.c.elastic.is_not(None)) & grants.c.released_at.is_(None)
    query = select(jobs.c.tenant, jobs.c.name).join_from(grants, jobs, grants.c.job_id == jobs.c.id).where(elastic)
    series = connection.execute(query.distinct()).all()
    return {(tenant, name): measured_of(connection, tenant, name, now) for tenant, name in series}


def measured_of(connection: Connection, tenant: str, name: str, now: datetime) -> Measured:
    """Return what a series has measured until now."""
    from updraft.allocation.scalability import Report

    query = (
        select(speeds)
        .join_from(speeds, jobs, speeds.c.job_id == jobs.c.id)
        .where(jobs.c.tenant == tenant, jobs.c.name == name)
        .order_by(speeds.c.at.desc())
        .limit(MOST_REPORTS)
    )
    rows = connection.execute(query).all()
    found, noise = _analyses(connection, tenant, name)
    return Measured(
        [Report(row.learners, row.batch, row.seconds, float(min(row.steps, MOST_WEIGHT))) for row in rows],
        _pauses(connection, tenant, name),
        found,
        noise,
        _exchanges(connection, tenant) if found.gradient_bytes is not None else {},
        _refused(connection, tenant, name, now - REFUSED_FOR),
    )


def _pauses(connection: Connection, tenant: str, name: str) -> list[float]:
    """Return for how long the jobs of a series stood still in resizes, newest first."""
    query = (
        select(resizes.c.pause)
        .join_from(resizes, jobs, resizes.c.job_id == jobs.c.id)
        .where(jobs.c.tenant == tenant, jobs.c.name == name, resizes.c.pause.is_not(None))
        .order_by(resizes.c.id.desc())
        .limit(MOST_REPORTS)
    )
    return [float(value) for value in connection.execute(query).scalars()]


def _refused(connection: Connection, tenant: str, name: str, since: datetime) -> int | None:
    """Return the fewest learners of attempts, or of resizes in place, for which there was no room though the planner
    had granted it."""
    query = (
        select(attempts.c.membership)
        .join_from(attempts, jobs, attempts.c.job_id == jobs.c.id)
        .where(jobs.c.tenant == tenant, jobs.c.name == name, attempts.c.role == TRAIN_ROLE)
        .where(attempts.c.label.in_((NO_ROOM, NO_QUOTA)), attempts.c.ended_at > since)
    )
    found = [Membership.from_json(value).size for value in connection.execute(query).scalars() if value is not None]
    others = (
        select(resizes.c.after)
        .join_from(resizes, jobs, resizes.c.job_id == jobs.c.id)
        .where(jobs.c.tenant == tenant, jobs.c.name == name, resizes.c.refused, resizes.c.closed_at > since)
    )
    return min([*found, *connection.execute(others).scalars()], default=None)


def note_analysis(connection: Connection, job_id: str, learners: int, found: Analysis, now: datetime) -> bool:
    """Record what a job has measured of its own scaling; what it does not say again stays. Returns whether it is new.

    The exchange of gradients is measured once for each tenant, kind of device and number of learners.
    """
    job = job_rows.get(connection, job_id, lock=True)  # one writer at a time
    row = connection.execute(select(analyses).where(analyses.c.job_id == job_id)).one_or_none()
    known = Analysis() if row is None else _analysis(row)
    merged = Analysis(
        timings=found.timings or known.timings,
        gradient_bytes=found.gradient_bytes or known.gradient_bytes,
        noise=found.noise or known.noise,
        follows_batch=found.follows_batch or known.follows_batch,
    )
    if merged != known:
        values = {
            "timings": [list(pair) for pair in merged.timings],
            "gradient_bytes": merged.gradient_bytes,
            "noise": merged.noise,
            "follows_batch": merged.follows_batch,
            "at": now,
        }
        if row is None:
            connection.execute(insert(analyses).values(job_id=job_id, **values))
        else:
            connection.execute(update(analyses).where(analyses.c.job_id == job_id).values(**values))
    exchanged = bool(found.exchange) and _note_exchange(connection, job, learners, found, now)
    return exchanged or replace(merged, noise=None) != replace(known, noise=None)


def _note_exchange(connection: Connection, job: Job, learners: int, found: Analysis, now: datetime) -> bool:
    grant = connection.execute(select(grants).where(grants.c.job_id == job.id)).one_or_none()
    if grant is None or learners < 2:
        return False
    kind = kind_of(grant)
    of_tenant = exchanges.c.tenant == job.tenant
    mine = of_tenant & (exchanges.c.kind == kind) & (exchanges.c.learners == learners)
    if connection.execute(select(exchanges.c.kind).where(mine)).first() is not None:
        return False
    pairs = [list(pair) for pair in found.exchange]
    values = {"tenant": job.tenant, "kind": kind, "learners": learners, "measured": pairs, "job_id": job.id, "at": now}
    connection.execute(insert(exchanges).values(**values))
    return True


def kind_of(grant: Row[Any]) -> str:
    """Return the kind of device of the learners, by which the exchange of gradients is told apart."""
    return (grant.gpu_type or "gpu") if grant.gpus else "cpu"


def _analyses(connection: Connection, tenant: str, name: str) -> tuple[Analysis, dict[str, float]]:
    """Return what the newest jobs of a series have measured, and the gradient noise of each."""
    query = (
        select(analyses)
        .join_from(analyses, jobs, analyses.c.job_id == jobs.c.id)
        .where(jobs.c.tenant == tenant, jobs.c.name == name)
        .order_by(analyses.c.at.desc())
        .limit(MOST_ANALYSES)
    )
    rows = connection.execute(query).all()
    found = [_analysis(row) for row in rows]
    whole = Analysis(
        timings=next((each.timings for each in found if each.timings), ()),
        gradient_bytes=next((each.gradient_bytes for each in found if each.gradient_bytes), None),
        follows_batch=any(each.follows_batch for each in found),
    )
    return whole, {row.job_id: row.noise for row in rows if row.noise is not None}


def _analysis(row: Row[Any]) -> Analysis:
    timings = tuple((float(samples), float(seconds)) for samples, seconds in row.timings)
    return Analysis(timings, row.gradient_bytes, row.noise, row.follows_batch)


def _exchanges(connection: Connection, tenant: str) -> dict[str, list[tuple[int, float, float]]]:
    found: dict[str, list[tuple[int, float, float]]] = {}
    for row in connection.execute(select(exchanges).where(exchanges.c.tenant == tenant)):
        found.setdefault(row.kind, []).extend((row.learners, float(n), float(seconds)) for n, seconds in row.measured)
    return found


def limits_of(row: Row[Any], known: Measured) -> Limits:
    """Return what an elastic job allows, with what its series knows of its batches."""
    from updraft.allocation.scalability import Limits, ignores_batch

    noise = known.noise.get(row.job_id) or (median(known.noise.values()) if known.noise else None)
    ignored = not known.analysis.follows_batch and ignores_batch(known.reports)
    return Limits(**row.elastic, noise=noise, batch_ignored=ignored)


def limits_now(connection: Connection, job_id: str, now: datetime) -> Limits:
    """Return the same for a job of which only the id is known."""
    of_job = (jobs.c.tenant, jobs.c.name)
    query = select(grants, *of_job).join_from(grants, jobs, grants.c.job_id == jobs.c.id)
    row = connection.execute(query.where(grants.c.job_id == job_id)).one()
    return limits_of(row, measured_of(connection, row.tenant, row.name, now))


def elasticity(row: Row[Any], measured: Series) -> Elasticity | None:
    """Return the sizes of an elastic job, from what its series has measured."""
    if row.elastic is None:
        return None
    from updraft.allocation.elastic import Curve
    from updraft.allocation.scalability import composed_reports, curve_points, fit_exchange

    known = measured.get((row.tenant, row.name), Measured())
    limits, analysis = limits_of(row, known), known.analysis
    exchange = fit_exchange(known.exchanges.get(kind_of(row), ()))
    composed = composed_reports(limits, analysis.timings, analysis.gradient_bytes, exchange)
    if row.pinned is not None:
        limits = replace(limits, min_learners=row.pinned, max_learners=row.pinned)
    points = curve_points(limits, known.reports, composed)
    if not points:  # the manifest was checked: it allows one
        return None
    if (
        known.refused is not None and row.pinned is None
    ):  # what the planner sees of the cluster is not all: a quota, pods of others
        points = tuple(point for point in points if point.learners < known.refused) or points[:1]
    pause = median(known.pauses) if known.pauses else IN_PLACE_SECONDS if limits.in_place else RESIZE_SECONDS
    asked = "" if row.pinned is None else f"asked for by {row.pinned_by}"
    return Elasticity(limits, Curve(points), row.sized_at, pause, row.resizes, row.target is not None, asked)


def remarks(row: Row[Any], known: Measured) -> list[str]:
    """Return what a user should know about how an elastic job scales: what was not measured, or is not as expected."""
    from updraft.allocation.scalability import ignores_learners

    limits, found = limits_of(row, known), []
    if row.pinned is not None and row.released_at is None:
        found.append(
            f"{row.pinned_by} has fixed it at {counted(row.pinned)}. `updraft scale JOB auto` "
            "leaves its size to the platform again."
        )
    if known.refused is not None and known.refused > limits.min_learners:
        found.append(
            f"The cluster had no room for {known.refused} learners that the planner had granted, so that many are not "
            f"tried again for {REFUSED_FOR.total_seconds() / 60:.0f} minutes. `updraft attempts` says what had no room."
        )
    if not known.reports and not known.analysis.timings:
        found.append(
            "No job of this series has reported the time of its steps yet, so it is expected to scale perfectly. "
            + ("It is measured while it trains." if limits.in_place else "Log a metric with each step (log_metrics).")
        )
    if limits.batch_ignored:
        found.append(
            "A step takes as long with a large batch as with a small one: the program seems to ignore UPDRAFT_BATCH. "
            f"Its batch stays {limits.min_batch}. If it follows the batch, read it with updraft.batch_size()."
        )
    if ignores_learners(limits, known.reports):
        fewest = min(each.learners for each in known.reports)
        found.append(
            f"It was not faster with more than {counted(fewest)}, so it gets no more. "
            + (
                "Its steps may be too short for the exchange of gradients, or its learners share a machine."
                if limits.in_place
                else "Check that the program shares each batch among its learners (updraft.world_size())."
            )
        )
    return found
