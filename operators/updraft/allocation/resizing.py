"""Plan the queue and the sizes of elastic jobs together. Pure.

- A waiting job needs room for its fewest learners. It is planned as all others (`updraft.allocation.plan`).
- If a job waits for room that elastic jobs could make, these shrink for it, and no job gives up all of its room.
- If no job waits for room, elastic jobs grow into what is free.

The devices of elastic jobs of one kind are shared among their tenants by weight, as far as each can use them. Within
its share, a tenant's jobs are sized together (`updraft.allocation.elastic`). Sizes that the nodes cannot hold are
solved again with fewer devices. A job grows only into room that is free now, so that no device is given twice: what
others shrink is given away in the round after they have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from updraft.allocation.elastic import ElasticJob, Resize, SizingRules, keep_seconds, size_jobs
from updraft.allocation.model import Capacity, GangRequest, Grant, Plan, Policy, Resized
from updraft.allocation.packing import Room, free_after
from updraft.allocation.plan import plan_admissions
from updraft.allocation.shares import Past, Shares
from updraft.allocation.sizing import NoSizesError
from updraft.tenants import CPU, GPU, Tenant
from updraft.wording import counted


def plan_sizes(
    queue: Sequence[GangRequest],
    granted: Sequence[Grant],
    capacity: Capacity,
    *,
    policy: Policy,
    past: Past,
    now: datetime,
) -> Plan:
    """Decide as `plan_admissions` does, and which elastic jobs are resized. While one is being resized, no other is,
    and no job is asked for its room: what becomes free is not known yet."""
    if any(grant.request.elastic is not None and grant.request.elastic.resizing for grant in granted):
        return plan_admissions(queue, granted, capacity, policy=policy, past=past)
    plan = plan_admissions(queue, granted, capacity, policy=policy, past=past, now=now)
    by_id = {request.job_id: request for request in queue}
    started = [Grant(by_id[job_id], now) for job_id in plan.granted]
    every = [*granted, *started]
    movable = [
        grant
        for grant in every
        if grant.request.elastic is not None and grant.movable and not grant.leaving and grant.request.learners
    ]
    if not movable:
        return plan
    if any(each.rule == "room" for each in plan.waiting):
        return _shrunk(plan, queue, every, movable, capacity, policy, past, now)
    sizes = _Sizes(every, movable, (), set(plan.granted), capacity, policy, now)
    return replace(plan, resized=sizes.chosen())


def _shrunk(
    plan: Plan,
    queue: Sequence[GangRequest],
    every: Sequence[Grant],
    movable: Sequence[Grant],
    capacity: Capacity,
    policy: Policy,
    past: Past,
    now: datetime,
) -> Plan:
    """Shrink elastic jobs if a job that waits for room can then start."""
    started = set(plan.granted)
    may = {grant.request.job_id for grant in movable if _rested(grant, now, policy)}
    least = [
        replace(grant, request=_smallest(grant.request)) if grant.request.job_id in may else grant for grant in every
    ]
    waiting = [request for request in queue if request.job_id not in started]
    then = plan_admissions(waiting, least, capacity, policy=policy, past=past)
    if not then.granted:
        return plan
    by_id = {request.job_id: request for request in waiting}
    coming = [by_id[job_id] for job_id in then.granted]
    shrinking = [grant for grant in movable if grant.request.job_id in may]
    resized = _Sizes(every, shrinking, coming, started, capacity, policy, now).chosen()
    if not resized:
        return plan
    return replace(
        plan, resized=resized, reclaimed=tuple(each for each in plan.reclaimed if each.for_job not in set(then.granted))
    )


def _rested(grant: Grant, now: datetime, policy: Policy) -> bool:
    """Return whether the job has had its size for long enough to shrink for another one."""
    elastic = grant.request.elastic
    assert elastic is not None
    if elastic.sized_at is None:
        return True
    keep = keep_seconds(elastic.pause_seconds, policy.least_size.total_seconds())
    return (now - elastic.sized_at).total_seconds() >= keep


def _smallest(request: GangRequest) -> GangRequest:
    assert request.elastic is not None
    return request.resized(min(request.learners, int(request.elastic.curve.learners[0])))


class _Sizes:
    """The sizes of elastic gangs, with what the gangs that come for room need."""

    def __init__(
        self,
        every: Sequence[Grant],
        movable: Sequence[Grant],
        coming: Sequence[GangRequest],
        new: Collection[str],
        capacity: Capacity,
        policy: Policy,
        now: datetime,
    ) -> None:
        self._policy, self._now, self._new = policy, now, new
        self._rules = SizingRules(least_gain=policy.least_gain, least_seconds=policy.least_size.total_seconds())
        self._held = {grant.request.job_id: grant.request for grant in every}
        self._coming = coming
        kinds = [request.placement for request in (*self._held.values(), *coming)]
        # A job that trains must not stand still for a node that its pool has yet to get.
        nodes = tuple(node for node in capacity.open_to(kinds) if not node.grows)
        self._nodes, self._room = nodes, Room.of(nodes)
        self._pools: dict[str, dict[str, list[Grant]]] = defaultdict(lambda: defaultdict(list))
        for grant in movable:
            self._pools[_kind(grant.request)][grant.request.tenant].append(grant)
        # The sizes that are decided so far. Jobs that make room count with their fewest learners until they are sized.
        self._decided = dict(self._held)
        if coming:
            self._decided |= {grant.request.job_id: _smallest(grant.request) for grant in movable}
        self._found: dict[str, tuple[Resize, str]] = {}

    def chosen(self) -> tuple[Resized, ...]:
        """Return the resizes that can begin now: all that shrink, and those that grow into room that is free."""
        for _, tenants in sorted(self._pools.items()):
            self._solve(tenants)
        shrinking = [each for each, _ in self._found.values() if each.after.learners < self._held[each.job_id].learners]
        growing = [each for each, _ in self._found.values() if each.after.learners > self._held[each.job_id].learners]
        held, begins = dict(self._held), list(shrinking)
        shares = Shares(self._policy.tenants, self._nodes, held.values(), {})
        for each in growing:
            present = held[each.job_id]
            larger = {**held, each.job_id: present.resized(each.after.learners)}
            more = present.resized(each.after.learners - present.learners)
            if shares.lacks(more) is None and free_after([*larger.values()], self._room, self._nodes) is not None:
                held = larger
                shares.take(more)
                begins.append(each)
        return tuple(self._resized(each) for each in begins)

    def _resized(self, each: Resize) -> Resized:
        reason = self._found[each.job_id][1]
        before, after = each.speedup
        return Resized(each.job_id, each.after.learners, each.after.batch, after / before if before else None, reason)

    def _solve(self, tenants: Mapping[str, list[Grant]]) -> None:
        """Find the most devices for which the sizes of this kind have room, by bisection."""
        jobs = {tenant: [self._job(grant) for grant in grants] for tenant, grants in tenants.items()}
        low = sum(_least(job) for each in jobs.values() for job in each)
        high = sum(_most(job) for each in jobs.values() for job in each)
        best = self._at(jobs, low)
        while best is not None and low < high:
            middle = (low + high + 1) // 2
            found = self._at(jobs, middle)
            low, high = (middle, high) if found is not None else (low, middle - 1)
            best = best if found is None else found
        for each in best or ():
            self._decided[each.job_id] = self._held[each.job_id].resized(each.after.learners)
            self._found[each.job_id] = each, self._reason(each)

    def _at(self, jobs: Mapping[str, Sequence[ElasticJob]], devices: int) -> list[Resize] | None:
        """Return the resizes with so many devices; None if the sizes do not have room."""
        shared = _shared(devices, {name: self._limits(name, each) for name, each in jobs.items()})
        resizes: list[Resize] = []
        decided = dict(self._decided)
        for tenant, each in jobs.items():
            try:
                found = size_jobs(each, shared[tenant], self._rules)
            except NoSizesError:
                return None
            resizes += found.resizes
            for job_id, point in found.sizes.items():
                decided[job_id] = self._held[job_id].resized(point.learners)
        room = free_after([*decided.values(), *self._coming], self._room, self._nodes)
        return None if room is None else resizes

    def _limits(self, tenant: str, jobs: Sequence[ElasticJob]) -> tuple[float, int, int]:
        """Return the weight of a tenant, and the fewest and most devices that its elastic jobs may have."""
        least, most = sum(map(_least, jobs)), sum(map(_most, jobs))
        mine = {job.job_id for job in jobs}
        others = [each for each in self._decided.values() if each.job_id not in mine]
        shares = Shares(self._policy.tenants, self._nodes, [*others, *self._coming], {})
        any_of_them = self._held[jobs[0].job_id]
        while most > least and shares.lacks(any_of_them.resized(-(-most // jobs[0].devices))) is not None:
            most -= 1
        return self._policy.tenants.get(tenant, _UNLIMITED).weight, least, most

    def _job(self, grant: Grant) -> ElasticJob:
        request, elastic = grant.request, grant.request.elastic
        assert elastic is not None
        new = request.job_id in self._new
        since = 0.0 if elastic.sized_at is None else (self._now - elastic.sized_at).total_seconds()
        return ElasticJob(
            request.job_id,
            elastic.curve,
            devices=max(1, request.gpus),
            current=0 if new else request.learners,
            age_seconds=max(0.0, (self._now - grant.granted_at).total_seconds()),
            pause_seconds=elastic.pause_seconds,
            resizes=elastic.resizes,
            since_seconds=since if elastic.sized_at is not None else float("inf"),
        )

    def _reason(self, each: Resize) -> str:
        """Return what changes and why, for people."""
        was = self._held[each.job_id].learners
        batch = f" and a batch of {each.after.batch}" if each.after.batch is not None else ""
        if each.before == 0:
            return f"starts with {counted(each.after.learners)}{batch}: the devices are free"
        if each.after.learners < was and self._coming:
            names = ", ".join(self._named(request, self._held[each.job_id]) for request in self._coming[:3])
            return f"resized from {was} to {counted(each.after.learners)}{batch}: makes room for {names}"
        if (elastic := self._held[each.job_id].elastic) is not None and elastic.asked:
            return f"resized from {was} to {counted(each.after.learners)}{batch}: {elastic.asked}"
        before, after = each.speedup
        faster = f", expected to be {after / before:.2f} times as fast" if before else ""
        return f"resized from {was} to {counted(each.after.learners)}{batch}: {each.reason}{faster}"

    def _named(self, other: GangRequest, to: GangRequest) -> str:
        """Return the name of a job for the users of another one, who may not know the jobs of other tenants."""
        return other.job_id if other.tenant == to.tenant else f"a job of tenant {other.tenant}"


def _kind(request: GangRequest) -> str:
    """Return the kind of device that the gang takes of its quota."""
    return request.gpu_type or GPU if request.gpus else CPU


def _least(job: ElasticJob) -> int:
    return int(job.curve.learners[0]) * job.devices


def _most(job: ElasticJob) -> int:
    return int(job.curve.learners[-1]) * job.devices


def _shared(devices: int, limits: Mapping[str, tuple[float, int, int]]) -> dict[str, int]:
    """Share devices by weight: each tenant has its fewest, and each further one goes to the tenant whose devices per
    weight are fewest and who can use it.

    Args:
        limits: Weight, fewest and most devices of each tenant.
    """
    shared = {name: least for name, (_, least, _) in limits.items()}
    left = devices - sum(shared.values())
    while left > 0:
        open_ = [name for name, (_, _, most) in limits.items() if shared[name] < most]
        if not open_:
            break
        poorest = min(open_, key=lambda name: (shared[name] / limits[name][0], name))
        shared[poorest] += 1
        left -= 1
    return shared


_UNLIMITED = Tenant()
