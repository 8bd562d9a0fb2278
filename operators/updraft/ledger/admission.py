"""Store the queue and the grants. The planner passes in the function that decides which jobs start.

Each change increments `queue.changes` in the same transaction. From this counter the planner sees that there is
something to plan, and waiting triggers see which rows have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row, bindparam, func, insert, select, update

from updraft.allocation import GangRequest, Grant, Placement, Plan, Priority
from updraft.exceptions import RefusedError
from updraft.ledger import bounds, revisions, rounds
from updraft.ledger import jobs as job_rows
from updraft.ledger.records import UNPLANNED, Admission, Analysis, JobSizes, QueueNews, QueueRow, SizeRow, Use
from updraft.ledger.sizes import Measured, Series, elasticity, limits_of, measured_in_queue, measured_of, remarks
from updraft.ledger.sizes import note_analysis as record_analysis
from updraft.ledger.tables import WORD_LENGTH, UtcDateTime, checkpoints, grants, jobs, queue, speeds, uses
from updraft.lifecycle import TERMINAL, State

if TYPE_CHECKING:  # they need NumPy, and only elastic jobs need them
    from updraft.allocation.scalability import Limits, Report

_AMOUNTS = ("learners", "cpus", "memory_mib", "gpus", "gpu_type")
_WAITS = grants.c.released_at.is_(None) & grants.c.granted_at.is_(None)


Decide = Callable[[Sequence[GangRequest], Sequence[Grant]], Plan]  # takes the queue in its order, and the grants


def enqueue(connection: Connection, job_id: str, request: GangRequest) -> None:
    """Put the job in the queue. There, or granted, it keeps its place; after a release it joins at the end."""
    if request.job_id != job_id:
        raise RefusedError(f"request: is of job {request.job_id!r}, not of {job_id!r}")
    job = job_rows.get(connection, job_id, lock=True)
    if job.ended:
        raise RefusedError(f"job: {job_id!r} has ended {job.state}; it cannot queue again")
    row = _row(connection, job_id)
    if row is not None and row.released_at is None:
        return
    values = {
        "learners": request.learners,
        "cpus": request.cpus,
        "memory_mib": request.memory_mib,
        "gpus": request.gpus,
        "gpu_type": None if request.gpu_type is None else bounds.identifier("gpu_type", request.gpu_type, WORD_LENGTH),
        "disk_mib": request.disk_mib,
        "placement": request.placement.to_json(),
        "priority": request.priority,
        "requested_at": request.requested_at,
        "granted_at": None,
        "released_at": None,
        "place": None,
        "reason": None,
        "impossible": False,
        "changed": count_change(connection),
        "leaving": None,
        "behind": None,
        "estimated": False,
        "expected_at": None,
        "elastic": None if request.elastic is None else _allowed(request.elastic.limits),
        "batch": None if request.elastic is None else request.elastic.curve.points[0].batch,
        "target": None,
        "target_batch": None,
        "sized_at": None,
        "asked_at": None,
    }
    if row is not None and row.pinned is not None and request.elastic is not None:
        values |= _waiting_amounts(request.elastic.limits, row.pinned)
    if row is None:
        connection.execute(insert(grants).values(job_id=job_id, **values))
    else:
        connection.execute(update(grants).where(grants.c.job_id == job_id).values(**values))


def prioritize(connection: Connection, job_id: str, priority: Priority, by: str, now: datetime) -> bool:
    """Give the job another priority, in its manifest too; return whether it waits in the queue now.

    Raises RefusedError if the job has ended.
    """
    manifest = {**job_rows.get(connection, job_id, lock=True).manifest, "priority": priority}
    revisions.revise(connection, job_id, manifest, {"priority": priority}, by, now)
    waits = (grants.c.job_id == job_id) & _WAITS
    if connection.execute(select(grants.c.job_id).where(waits)).first() is None:
        return False
    values = {"priority": priority, "changed": count_change(connection)}
    connection.execute(update(grants).where(waits).values(**values))
    return True


def listing(connection: Connection) -> list[QueueRow]:
    """Return what is granted, oldest first, and then the jobs that wait, in the order of the newest plan."""
    live = jobs.c.state.not_in([state.value for state in TERMINAL]) & jobs.c.cancel_requested_at.is_(None)
    of_job = (jobs.c.tenant, jobs.c.name, jobs.c.submitted_by, jobs.c.state)
    query = (
        select(grants, *of_job)
        .join_from(grants, jobs, grants.c.job_id == jobs.c.id)
        .where(grants.c.released_at.is_(None), grants.c.granted_at.is_not(None) | live)
        .order_by(grants.c.granted_at.is_(None), grants.c.granted_at, grants.c.place.is_(None), grants.c.place)
    )
    return [
        QueueRow(
            _request(row),
            row.tenant,
            row.name,
            row.submitted_by,
            State(row.state),
            _admission(row),
            row.granted_at,
            row.leaving,
            row.estimated,
        )
        for row in connection.execute(query.order_by(grants.c.requested_at, grants.c.job_id))
    ]


def expect(connection: Connection, waiting: Collection[str], starts: Mapping[str, datetime]) -> None:
    """Record once for each of these jobs when it is expected to start; a job that is not in `starts` has no
    estimate."""
    change = update(grants).where(grants.c.job_id == bindparam("of"), _WAITS, grants.c.estimated.is_(False))
    rows = [{"of": job_id, "at": starts.get(job_id)} for job_id in waiting]
    if rows:
        connection.execute(change.values(estimated=True, expected_at=bindparam("at", type_=UtcDateTime)), rows)


def estimate_errors(connection: Connection, newest: int) -> list[float]:
    """Return by how many seconds the newest jobs started later than they were expected to."""
    query = (
        select(grants.c.granted_at, grants.c.expected_at)
        .where(grants.c.granted_at.is_not(None), grants.c.expected_at.is_not(None))
        .order_by(grants.c.granted_at.desc())
        .limit(newest)
    )
    return [(row.granted_at - row.expected_at).total_seconds() for row in connection.execute(query)]


def usual_seconds(connection: Connection, tenant: str, name: str, newest: int) -> float | None:
    """Return the median of how long the newest completed jobs of a series have held their room; None if none has."""
    query = (
        select(grants.c.granted_at, grants.c.released_at)
        .join_from(grants, jobs, grants.c.job_id == jobs.c.id)
        .where(jobs.c.tenant == tenant, jobs.c.name == name, jobs.c.state == State.COMPLETED.value)
        .where(grants.c.granted_at.is_not(None), grants.c.released_at.is_not(None))
        .order_by(grants.c.released_at.desc())
        .limit(newest)
    )
    held = [(row.released_at - row.granted_at).total_seconds() for row in connection.execute(query)]
    return median(held) if held else None


def requeue(connection: Connection, job_id: str, request: GangRequest, now: datetime) -> None:
    """Add a job that released its grant to the end of the queue, or to its earlier place if it gave its room back when
    the planner asked for it. Does nothing for a job that is in the queue, or is not QUEUED."""
    if job_rows.get(connection, job_id, lock=True).state is not State.QUEUED:
        return
    row = _row(connection, job_id)
    since = now if row is None or row.leaving is None else row.requested_at
    enqueue(connection, job_id, replace(request, requested_at=since))


def in_line(connection: Connection, job_id: str) -> bool:
    """Return whether the job has a place in the queue, or a grant."""
    row = _row(connection, job_id)
    return row is not None and row.released_at is None


def take_place(connection: Connection, job_id: str, reason: str, now: datetime) -> bool:
    """Move a QUEUED job whose turn has come to DEPLOYING. Returns False and does nothing if that no longer holds: the
    caller may have been stopped since it saw the grant, and the job has launched, released the grant and waits again.
    """
    job = job_rows.get(connection, job_id, lock=True)
    row = _row(connection, job_id)
    if job.state is not State.QUEUED or row is None or row.granted_at is None or row.released_at is not None:
        return False
    job_rows.move(connection, job_id, State.DEPLOYING, reason, {}, now)
    return True


def plan(connection: Connection, decide: Decide, clock: Callable[[], datetime]) -> None:
    """Write what `decide` makes of the queue and of what is granted: grants to every job whose turn it is, and for each
    other one its place and why it waits.

    Jobs that ended or were asked to cancel are no longer in the queue; what they were granted counts until released.
    Running jobs that have to give their room back are asked to.
    """
    _lock(connection)
    # Not before the newest release: the process that wrote it has another clock, and what one job holds after another
    # would overlap in the history.
    released = connection.execute(select(func.max(uses.c.released_at))).scalar_one()
    now = max(clock(), released) if released else clock()
    waiting = _waiting(connection)
    measured = measured_in_queue(connection, now)
    requests = [_request(row, measured) for row in waiting.values()]
    planned = decide(requests, live_grants(connection, measured))
    for each in planned.reclaimed:
        held = (grants.c.job_id == each.job_id) & grants.c.granted_at.is_not(None) & grants.c.released_at.is_(None)
        values = {"leaving": bounds.message(each.reason), "changed": count_change(connection)}
        connection.execute(update(grants).where(held, grants.c.leaving.is_(None)).values(**values))
    _resize(connection, planned, now)
    decided = {job_id: _decision(granted_at=now) for job_id in planned.granted}
    for job_id, behind in planned.passing.items():
        connection.execute(update(grants).where(grants.c.job_id == job_id).values(behind=behind))
    decided |= {each.job_id: _decision(place=each.place, reason=each.reason) for each in planned.waiting}
    decided |= {each.job_id: _decision(reason=each.reason, impossible=True) for each in planned.impossible}
    _write(connection, waiting, decided)
    connection.execute(update(queue).values(planned=queue.c.changes))


def hold(connection: Connection, problem: str) -> None:
    """Grant nothing while the capacity is unknown, and let each job wait for this reason."""
    _lock(connection)
    waiting = _waiting(connection)
    _write(connection, waiting, dict.fromkeys(waiting, _decision(reason=problem)))
    connection.execute(update(queue).values(planned=queue.c.changes))


def plan_is_due(connection: Connection) -> bool:
    """Return whether the queue has changed since the newest plan."""
    row = connection.execute(select(queue)).one()
    return bool(row.changes != row.planned)


def admission(connection: Connection, job_id: str) -> Admission:
    """Return the newest plan's decision about the job. Raises RefusedError if the job is not in the queue."""
    row = _row(connection, job_id)
    if row is None or row.released_at is not None:
        raise RefusedError(f"job: {job_id!r} is not in the queue; enqueue it first")
    return _admission(row)


def news(connection: Connection, since: int | None) -> QueueNews:
    """Return the rows that changed after the counter had this value; None: only its value now."""
    changes = connection.execute(select(queue.c.changes)).scalar_one()
    if since is None or changes == since:
        return QueueNews(changes, {})
    rows = connection.execute(select(grants).where(grants.c.changed > since)).all()
    return QueueNews(changes, {row.job_id: None if row.released_at is not None else _admission(row) for row in rows})


def release(connection: Connection, job_id: str, now: datetime) -> bool:
    """Give back what was granted, or leaves the queue. Whether there was anything to give back."""
    _lock(connection)  # or two that release it at once would both write down what it held
    live = (grants.c.job_id == job_id) & grants.c.released_at.is_(None)
    row = connection.execute(select(grants).where(live)).one_or_none()
    if row is None:
        return False
    if row.granted_at is not None:
        _used(connection, row, now)
        rounds.close(connection, job_id, now)
    values = {"released_at": now, "changed": count_change(connection)}
    return connection.execute(update(grants).where(live).values(**values)).rowcount > 0


def _used(connection: Connection, row: Row[Any], now: datetime) -> None:
    """Write down what a job has held with its present size."""
    held = {name: getattr(row, name) for name in ("job_id", *_AMOUNTS)}
    connection.execute(insert(uses).values(**held, granted_at=row.sized_at or row.granted_at, released_at=now))


def _resize(connection: Connection, planned: Plan, now: datetime) -> None:
    """Write down the sizes that elastic jobs get. Devices that a job gets are its own from now on, those that it gives
    back when its learners have left (`settle`)."""
    if planned.granted:
        started = grants.c.job_id.in_(planned.granted) & grants.c.elastic.is_not(None)
        connection.execute(update(grants).where(started).values(sized_at=now))
    number = count_change(connection) if planned.resized else 0
    for each in planned.resized:
        row = _row(connection, each.job_id)
        if row is None or row.released_at is not None or row.leaving is not None:
            continue
        mine = grants.c.job_id == each.job_id
        starts = row.granted_at is None
        if starts and each.job_id not in planned.granted:
            continue
        rounds.record(connection, number, row, each, now, starts=starts)
        if starts:
            values: dict[str, Any] = {"learners": each.learners, "batch": each.batch}
            connection.execute(update(grants).where(mine).values(**values))
            continue
        values = {
            "target": each.learners,
            "target_batch": each.batch,
            "leaving": bounds.message(each.reason),
            "asked_at": now,
            "changed": number,
        }
        if each.learners > row.learners:
            _used(connection, row, now)
            values |= {"learners": each.learners, "sized_at": now}
        connection.execute(update(grants).where(mine).values(**values))


def settle(connection: Connection, job_id: str, now: datetime) -> bool:
    """Give a job whose learners have left the size that was decided for it. Returns False if none was."""
    _lock(connection)
    row = _row(connection, job_id)
    if row is None or row.target is None or row.granted_at is None or row.released_at is not None:
        return False
    smaller = row.learners != row.target  # what it grows into is its own already
    if smaller:
        _used(connection, row, now)
    values = {
        "learners": row.target,
        "batch": row.target_batch,
        "target": None,
        "target_batch": None,
        "leaving": None,
        "sized_at": now if smaller else row.sized_at,
        "resizes": row.resizes + 1,
        "changed": count_change(connection),
    }
    connection.execute(update(grants).where(grants.c.job_id == job_id).values(**values))
    return True


def target(connection: Connection, job_id: str) -> tuple[int, str] | None:
    """Return the learners that a job is being given, and why; None if it keeps its size."""
    row = _row(connection, job_id)
    if row is None or row.target is None or row.granted_at is None or row.released_at is not None:
        return None
    return row.target, row.leaving or ""


def settle_in_place(connection: Connection, job_id: str, learners: int, pause: float | None, now: datetime) -> None:
    """Give a job whose learners have joined or left while the others trained the size that it has now.

    Args:
        learners: Those that train. Another number than was decided is what the cluster had room for.
        pause: The seconds for which the others stood still; None: unknown.
    """
    _lock(connection)
    row = _row(connection, job_id)
    if row is None or row.granted_at is None or row.released_at is not None:
        return
    if row.target is None and learners >= row.learners:  # lost learners were replaced
        return
    refused = learners < (row.target or row.learners)
    if row.learners != learners:  # what it grew into was its own from the decision on
        _used(connection, row, now)
    values = {
        "learners": learners,
        "target": None,
        "target_batch": None,
        "leaving": None,
        "asked_at": None,
        "sized_at": now if row.learners != learners else row.sized_at,
        "resizes": row.resizes + 1,
        "changed": count_change(connection),
    }
    if refused:  # or a size that a user asked for would be tried again at once
        values |= {"pinned": None, "pinned_by": None}
    connection.execute(update(grants).where(grants.c.job_id == job_id).values(**values))
    rounds.settled(connection, job_id, pause, now, refused=refused)


def pin(connection: Connection, job_id: str, learners: int | None, by: str) -> None:
    """Fix the learners of an elastic job, or leave them to the planner again; counts as a change of the queue.

    Raises RefusedError if the job has no place, is not elastic, or is being resized.
    """
    job = job_rows.get(connection, job_id, lock=True)
    _lock(connection)
    row = _row(connection, job_id)
    if job.ended or row is None or row.released_at is not None or job.state is State.STORING:
        raise RefusedError(f"job: {job_id!r} is {job.state}, so it has no learners to scale")
    if row.elastic is None:
        raise RefusedError(f"job: {job_id!r} is not elastic; give its manifest the section elastic")
    if row.target is not None or job.state is State.RESIZING:
        raise RefusedError(f"job: {job_id!r} is being resized; retry when it is not")
    values: dict[str, Any] = {"pinned": learners, "pinned_by": by if learners is not None else None}
    if row.granted_at is None:
        values |= _waiting_amounts(limits_of(row, Measured()), learners)
    changed = count_change(connection)
    connection.execute(update(grants).where(grants.c.job_id == job_id).values(**values, changed=changed))


def promised(connection: Connection, job_id: str) -> int | None:
    """Return the learners that a job has, is being given, or waits for; None if it has no place."""
    row = _row(connection, job_id)
    return None if row is None or row.released_at is not None else (row.target or row.learners)


def _waiting_amounts(limits: Limits, learners: int | None) -> dict[str, Any]:
    """Return the columns of a job that waits for so many learners; None: for its fewest."""
    from updraft.allocation.scalability import curve_points

    if learners is not None:
        limits = replace(limits, min_learners=learners, max_learners=learners)
    first = curve_points(limits, ())[0]
    return {"learners": first.learners, "batch": first.batch}


def resizes(connection: Connection, job_id: str) -> bool:
    """Return whether the job is being given another size."""
    row = _row(connection, job_id)
    return row is not None and row.target is not None and row.released_at is None


def size(connection: Connection, job_id: str) -> tuple[int, int | None] | None:
    """Return the learners and the batch that an elastic job has been given; None for another job."""
    row = _row(connection, job_id)
    return None if row is None or row.elastic is None else (row.learners, row.batch)


def sizes(connection: Connection, job_id: str, now: datetime) -> JobSizes:
    """Return the sizes that an elastic job may have now; none for another job."""
    of_job = (jobs.c.tenant, jobs.c.name)
    query = select(grants, *of_job).join_from(grants, jobs, grants.c.job_id == jobs.c.id)
    row = connection.execute(query.where(grants.c.job_id == job_id)).one_or_none()
    if row is None or row.elastic is None:
        return JobSizes()
    measured = measured_of(connection, row.tenant, row.name, now)
    found = elasticity(row, {(row.tenant, row.name): measured})
    if found is None:
        return JobSizes()
    learners = found.curve.learners.tolist()
    seconds = {n: [each.seconds for each in measured.reports if each.learners == n] for n in learners}
    has_room = row.granted_at is not None and row.released_at is None
    rows = [
        SizeRow(
            point.learners,
            point.batch,
            float(speedup),
            fmean(seconds[point.learners]) if seconds[point.learners] else None,
            has_room and point.learners == row.learners,
        )
        for point, speedup in zip(found.curve.points, found.curve.speedups, strict=True)
    ]
    return JobSizes(rows, found.limits.noise, remarks(row, measured))


def note_speed(
    connection: Connection,
    job_id: str,
    members: tuple[int, int],
    report: Report,
    steps: int,
    began: datetime,
    now: datetime,
) -> None:
    """Record how long a step takes with the members of an attempt's generation, whose first step was at `began`;
    replaces what was measured before. Its first report is a reason to plan, and ends the pause of a resize."""
    attempt, generation = members
    mine = (speeds.c.job_id == job_id) & (speeds.c.attempt == attempt) & (speeds.c.generation == generation)
    values = {
        "learners": report.learners,
        "batch": report.batch,
        "seconds": report.seconds,
        "steps": steps,
        "at": now,
    }
    job_rows.get(connection, job_id, lock=True)  # one writer at a time
    row, pause = _row(connection, job_id), None
    if connection.execute(update(speeds).where(mine).values(**values)).rowcount == 0:
        asked = None if row is None else row.asked_at
        pause = None if asked is None else max(0.0, (began - asked).total_seconds())
        connection.execute(insert(speeds).values(job_id=job_id, attempt=attempt, generation=generation, **values))
        change = update(grants).where(grants.c.job_id == job_id)
        connection.execute(change.values(asked_at=None, changed=count_change(connection)))
    if row is not None and row.elastic is not None and row.target is None:
        rounds.measured(connection, job_id, report, pause, now)


def note_analysis(connection: Connection, job_id: str, learners: int, found: Analysis, now: datetime) -> None:
    """Record what an elastic job has measured of its own scaling. What is new is a reason to plan."""
    if record_analysis(connection, job_id, learners, found, now):
        change = update(grants).where(grants.c.job_id == job_id)
        connection.execute(change.values(changed=count_change(connection)))


def _allowed(limits: Limits) -> dict[str, Any]:
    """Return what the manifest allows, without what was measured."""
    measured = ("noise", "batch_ignored")
    return {name: value for name, value in asdict(limits).items() if name not in measured}


def live_grants(connection: Connection, measured: Series | None = None) -> list[Grant]:
    """Return what is granted and not released, oldest first. With `measured`, elastic jobs have their sizes."""
    saved = (
        select(checkpoints.c.job_id, func.max(checkpoints.c.created_at).label("saved_at"))
        .group_by(checkpoints.c.job_id)
        .subquery()
    )
    query = (
        select(grants, jobs.c.tenant, jobs.c.name, jobs.c.state, saved.c.saved_at)
        .join_from(grants, jobs, grants.c.job_id == jobs.c.id)
        .outerjoin(saved, saved.c.job_id == grants.c.job_id)
        .where(grants.c.released_at.is_(None), grants.c.granted_at.is_not(None))
        .order_by(grants.c.granted_at)
    )
    return [_grant(row, measured) for row in connection.execute(query)]


def sized(connection: Connection, now: datetime) -> tuple[list[GangRequest], list[Grant]]:
    """Return the jobs that wait, in the order of the newest plan, and those that have room; elastic ones with their
    sizes."""
    measured, waiting = measured_in_queue(connection, now), _waiting(connection)
    order = [row.request.job_id for row in listing(connection) if row.granted_at is None]
    requests = [_request(waiting[job_id], measured) for job_id in order if job_id in waiting]
    return requests, live_grants(connection, measured)


def held(connection: Connection, job_id: str) -> GangRequest:
    """Return what the job asked for when it came into the queue."""
    query = select(grants, jobs.c.tenant, jobs.c.name).join_from(grants, jobs, grants.c.job_id == jobs.c.id)
    found = _request(connection.execute(query.where(grants.c.job_id == job_id)).one(), {})
    return found if found.elastic is None else found.resized(found.elastic.curve.points[0].learners)


def leaving(connection: Connection, job_id: str) -> str | None:
    """Return why the job is asked to give back what it was granted; None if it is not."""
    row = _row(connection, job_id)
    return None if row is None or row.granted_at is None or row.released_at is not None else row.leaving


def all_leaving(connection: Connection) -> frozenset[str]:
    """Return the jobs that are asked to give back what they were granted."""
    live = grants.c.released_at.is_(None) & grants.c.granted_at.is_not(None) & grants.c.leaving.is_not(None)
    return frozenset(connection.execute(select(grants.c.job_id).where(live)).scalars())


def used(connection: Connection, since: datetime) -> list[Use]:
    """Return what jobs have held after `since`: what is released, and then what is not."""
    query = select(uses, jobs.c.tenant).join_from(uses, jobs, uses.c.job_id == jobs.c.id)
    rows = [*connection.execute(query.where(uses.c.released_at > since).order_by(uses.c.id))]
    live = select(grants, jobs.c.tenant).join_from(grants, jobs, grants.c.job_id == jobs.c.id)
    rows += connection.execute(live.where(grants.c.released_at.is_(None), grants.c.granted_at.is_not(None)))
    return [
        Use(
            row.tenant,
            row.job_id,
            row.learners,
            row.cpus,
            row.memory_mib,
            row.gpus,
            row.gpu_type,
            getattr(row, "sized_at", None) or row.granted_at,
            row.released_at,
        )
        for row in rows
    ]


def count_change(connection: Connection) -> int:
    """Count a change of what the planner plans; until the transaction ends, no other one changes the queue."""
    counted = update(queue).values(changes=queue.c.changes + 1).returning(queue.c.changes)
    return int(connection.execute(counted).scalar_one())


def _lock(connection: Connection) -> None:
    """Let one plan be made at a time: by a row lock on PostgreSQL; on SQLite this transaction is the only writer
    already."""
    connection.execute(select(queue.c.id).with_for_update()).one()


def _waiting(connection: Connection) -> dict[str, Row[Any]]:
    ended = [state.value for state in TERMINAL]
    query = (
        select(grants, jobs.c.tenant, jobs.c.name)
        .join_from(grants, jobs, grants.c.job_id == jobs.c.id)
        .where(_WAITS, jobs.c.state.not_in(ended), jobs.c.cancel_requested_at.is_(None))
    )
    return {row.job_id: row for row in connection.execute(query)}


def _decision(**decided: Any) -> dict[str, Any]:
    """Return the planner's columns of a row."""
    return {"granted_at": None, "place": None, "reason": None, "impossible": False, **decided}


def _write(connection: Connection, waiting: Mapping[str, Row[Any]], decided: Mapping[str, dict[str, Any]]) -> None:
    """Write the decisions that are new. The jobs' own rows are left alone: others lock a job first, then the queue."""
    new = [
        {"of": job_id, **{f"new_{name}": value for name, value in decision.items()}}
        for job_id, decision in decided.items()
        if any(waiting[job_id]._mapping[name] != value for name, value in decision.items())
    ]
    if new:
        values: dict[str, Any] = {name: bindparam(f"new_{name}") for name in _decision()}
        change = update(grants).where(grants.c.job_id == bindparam("of"), _WAITS)
        connection.execute(change.values(**values, changed=count_change(connection)), new)


def _row(connection: Connection, job_id: str) -> Row[Any] | None:
    return connection.execute(select(grants).where(grants.c.job_id == job_id)).one_or_none()


def _admission(row: Row[Any]) -> Admission:
    if row.granted_at is not None:
        return Admission(True, None, "granted")
    return Admission(False, row.place, row.reason or UNPLANNED, row.impossible)


def _request(row: Row[Any], measured: Series | None = None) -> GangRequest:
    amounts = (row.learners, row.cpus, row.memory_mib, row.gpus, row.gpu_type)
    return GangRequest(
        row.job_id,
        *amounts,
        row.requested_at,
        row.disk_mib,
        placement=Placement.from_json(row.placement),
        priority=row.priority,
        tenant=row.tenant,
        elastic=None if measured is None else elasticity(row, measured),
    )


def _grant(row: Row[Any], measured: Series | None) -> Grant:
    # Only a job that trains, or is on its way to another size, is resized.
    sized = measured if row.target is not None or State(row.state) is State.PROCESSING else None
    return Grant(
        _request(row, sized),
        row.granted_at,
        saved_at=row.saved_at,
        leaving=row.leaving is not None and row.target is None,
        movable=State(row.state) is not State.STORING and State(row.state) not in TERMINAL,
        behind=row.behind,
    )
