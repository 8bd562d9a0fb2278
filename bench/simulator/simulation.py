"""Run jobs of several tenants in virtual time: each event is followed by a round of `plan_admissions`."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count

from updraft.allocation import Capacity, GangRequest, Grant, Policy, plan_admissions
from updraft.allocation.shares import HALF_LIFE, average_use

START = datetime(2026, 1, 1, tzinfo=UTC)
SAVE = timedelta(seconds=30)  # from the wish for a job's room to its release


@dataclass(frozen=True)
class Work:
    """A job: what it asks for (`request.requested_at` is when it comes) and how long it trains."""

    request: GangRequest
    seconds: float


@dataclass
class Course:
    """What became of a job.

    Args:
        held: The spans in which it had room.
        waited_seconds: In all, before its starts.
    """

    work: Work
    held: list[tuple[datetime, datetime]] = field(default_factory=list)
    waited_seconds: float = 0.0

    @property
    def preemptions(self) -> int:
        return max(0, len(self.held) - 1)


class Simulation:
    """A cluster, its jobs and the policy of its operator. Preempted jobs lose nothing but the time to save."""

    def __init__(self, capacity: Capacity, works: Sequence[Work], policy: Policy) -> None:
        self._capacity, self._policy = capacity, policy
        self._left = {work.request.job_id: work.seconds for work in works}
        self._numbers = count()
        self._events: list[tuple[datetime, int, str, str, int]] = []  # time, order, kind, job, launch
        self._queue: dict[str, GangRequest] = {}
        self._since: dict[str, datetime] = {}
        self._running: dict[str, Grant] = {}
        self._launches: dict[str, int] = {}
        self._requests = {work.request.job_id: work.request for work in works}
        self.courses = {work.request.job_id: Course(work) for work in works}
        for work in works:
            self._at(work.request.requested_at, "comes", work.request.job_id)

    def run(self) -> Mapping[str, Course]:
        """Run until no job is left; return what became of each."""
        while self._events:
            now = self._events[0][0]
            while self._events and self._events[0][0] == now:
                _, _, kind, job_id, launch = heapq.heappop(self._events)
                self._happen(kind, job_id, launch, now)
            self._plan(now)
        return self.courses

    def _at(self, when: datetime, kind: str, job_id: str) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), kind, job_id, self._launches.get(job_id, 0)))

    def _happen(self, kind: str, job_id: str, launch: int, now: datetime) -> None:
        if kind == "comes":
            self._queue[job_id], self._since[job_id] = self._requests[job_id], now
        elif kind != "looks" and launch == self._launches.get(job_id, 0) and job_id in self._running:
            grant = self._running.pop(job_id)
            self.courses[job_id].held.append((grant.granted_at, now))
            if kind == "leaves":
                self._left[job_id] -= (now - SAVE - grant.granted_at).total_seconds()
                self._queue[job_id], self._since[job_id] = self._requests[job_id], now

    def _plan(self, now: datetime) -> None:
        past = average_use(self._held(), now, HALF_LIFE) if self._policy.tenants else {}
        plan = plan_admissions(
            list(self._queue.values()), list(self._running.values()), self._capacity,
            policy=self._policy, past=past, now=now,
        )  # fmt: skip
        for job_id in plan.granted:
            self._running[job_id] = Grant(self._queue.pop(job_id), now, behind=plan.passing.get(job_id))
            self._launches[job_id] = self._launches.get(job_id, 0) + 1
            self.courses[job_id].waited_seconds += (now - self._since[job_id]).total_seconds()
            self._at(now + timedelta(seconds=self._left[job_id]), "ends", job_id)
            if self._policy.tenants:
                self._at(now + self._policy.least_run, "looks", job_id)
        for each in plan.reclaimed:
            self._running[each.job_id] = replace(self._running[each.job_id], leaving=True)
            self._at(now + SAVE, "leaves", each.job_id)

    def _held(self) -> Iterator[tuple[GangRequest, datetime, datetime | None]]:
        for course in self.courses.values():
            yield from ((course.work.request, start, end) for start, end in course.held)
        yield from ((grant.request, grant.granted_at, None) for grant in self._running.values())
