"""Estimate when gangs that wait will start, by planning again at each expected end of a gang that runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from updraft.allocation.model import Capacity, GangRequest, Grant, Policy
from updraft.allocation.packing import Room, sums_allow
from updraft.allocation.plan import plan_admissions
from updraft.allocation.shares import Past

MOST = 20
PLACED = 10_000  # gangs that are placed for all estimates together: bounds the time


def estimate_starts(
    queue: Sequence[GangRequest],
    granted: Sequence[Grant],
    capacity: Capacity,
    seconds: Mapping[str, float],
    now: datetime,
    *,
    policy: Policy | None = None,
    past: Past | None = None,
    most: int = MOST,
) -> dict[str, datetime]:
    """Return the estimated start of the gangs that start first, at most `most` of them, by job id.

    Args:
        seconds: How long a job is expected to hold its room, by job id. A job that is missing is expected to hold it
            for ever; one that has held it for longer is expected to end now.
        policy, past: As for `plan_admissions`. That jobs give room back, and that others pass, is not foreseen.

    A gang without an estimate has none: the expected ends do not make enough room for it, or it is far behind.
    """
    by_id = {request.job_id: request for request in queue}
    first = plan_admissions(queue, granted, capacity, policy=policy, past=past)
    # Hardly anything starts before what is in front of it, so that those behind the first ones do not matter.
    names = (*first.granted, *(each.job_id for each in first.waiting))[:most]
    waiting = [by_id[name] for name in names]
    running, found, placed = list(granted), dict[str, datetime](), 0
    ends = {
        grant.request.job_id: max(now, grant.granted_at + timedelta(seconds=seconds[grant.request.job_id]))
        for grant in granted
        if grant.request.job_id in seconds
    }
    at, whole = now, Room.of(capacity.nodes)
    while waiting and placed < PLACED:
        held = [grant.request for grant in running]
        firsts = {request.tenant: request for request in reversed(waiting)}.values()
        if placed == 0 or any(sums_allow([*held, request], whole) for request in firsts):
            plan = plan_admissions(waiting, running, capacity, policy=policy, past=past)
            placed += len(running) + len(waiting)
            for request in waiting:
                if request.job_id in plan.granted:
                    found[request.job_id] = at
                    running.append(Grant(request, at))
                    if request.job_id in seconds:
                        ends[request.job_id] = at + timedelta(seconds=seconds[request.job_id])
            left = {each.job_id for each in plan.waiting}
            waiting = [request for request in waiting if request.job_id in left]
        if not ends:
            break
        at = min(ends.values())
        over = {job_id for job_id, end in ends.items() if end <= at}
        running = [grant for grant in running if grant.request.job_id not in over]
        ends = {job_id: end for job_id, end in ends.items() if job_id not in over}
    return found
