"""Run training jobs on a pool of like devices in virtual time: an event queue, and a policy that is asked at events.

Between events each job trains at a constant rate. A job that starts or is resized stands still for a pause first, and
loses no work. Times are seconds since the start of the simulation.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, Protocol

from updraft.allocation.scalability import Limits, Speed

MOST_EVENTS = 50_000_000  # a policy that never lets the last job end must not run for ever


class Size(NamedTuple):
    """Learners, each of which takes one device, and the global batch that they share."""

    learners: int
    batch: int


@dataclass(frozen=True)
class TrainingJob:
    """A job of a trace.

    Args:
        arrives: In seconds.
        work: Samples, as worth as those of its reference batch, until it is complete.
        speed: How long its steps take.
        limits: Between which sizes it may be resized.
        fixed: The size that it has where the policy does not resize, or not the batch.
    """

    job_id: str
    arrives: float
    work: float
    speed: Speed
    limits: Limits
    fixed: Size

    def rate(self, size: Size) -> float:
        """Return its goodput at this size: samples of its reference batch in a second."""
        seconds = self.speed.step_seconds(size.batch, size.learners)
        return size.batch / seconds * self.limits.efficiency(size.batch)

    def seconds_alone(self) -> float:
        """Return how long it trains at its fixed size."""
        return self.work / self.rate(self.fixed)


class Course:
    """What becomes of a job. Policies read it; only the engine writes it.

    Attributes:
        size: The present one; None: it waits, or is over.
        left: The work that is left, as of `at`.
        pause_until: When it trains again after a start or a resize.
        service: Device-seconds that it has held, as of `at`.
        resizes: How often its size was changed while it ran.
        changed: When it got its present size.
        started: When it first ran.
        ended: When it was complete.
        dropped: Whether it was turned away.
    """

    __slots__ = (
        "at", "changed", "dropped", "ended", "job", "left", "pause_until", "rate", "resizes", "service", "size",
        "started", "version", "waited_from",
    )  # fmt: skip

    def __init__(self, job: TrainingJob) -> None:
        self.job = job
        self.size: Size | None = None
        self.left, self.rate, self.service = job.work, 0.0, 0.0
        self.at = self.changed = self.pause_until = self.waited_from = job.arrives
        self.started: float | None = None
        self.ended: float | None = None
        self.dropped = False
        self.resizes = self.version = 0

    @property
    def devices(self) -> int:
        return self.size.learners if self.size else 0

    def service_at(self, now: float) -> float:
        """Return the device-seconds that the job has held until `now`."""
        return self.service + self.devices * (now - self.at)

    def advance(self, now: float) -> None:
        """Count the work and the service until `now`."""
        if self.size is not None:
            self.left -= self.rate * max(0.0, now - max(self.at, self.pause_until))
            self.service += self.size.learners * (now - self.at)
        self.at = now

    def end(self) -> float:
        """Return when it is complete at the present size."""
        return max(self.at, self.pause_until) + max(0.0, self.left) / self.rate


@dataclass(frozen=True)
class View:
    """What a policy sees.

    Args:
        waiting: In order of arrival; a job that had to stop keeps its place.
        running: In order of arrival.
    """

    now: float
    devices: int
    free: int
    waiting: Sequence[Course]
    running: Sequence[Course]
    pause_seconds: float


class Policy(Protocol):
    """Decides the sizes.

    Attributes:
        period: Seconds between looks; None: it is asked at each arrival and end.
    """

    @property
    def period(self) -> float | None: ...

    def decide(self, view: View) -> Mapping[Course, Size | None]:
        """Return the courses whose size changes; None: the job stops and waits. A waiting job is dropped by the size
        (0, 0)."""
        ...


DROP = Size(0, 0)


@dataclass(frozen=True)
class Run:
    """What a simulation leaves.

    Args:
        courses: In order of arrival.
        ended: The time of the last event.
        usage: (time, devices in use, jobs that wait) after each event at which one of them changed.
        events: How many events were handled.
        rounds: How often the policy was asked.
    """

    courses: tuple[Course, ...]
    devices: int
    ended: float
    usage: tuple[tuple[float, int, int], ...]
    events: int
    rounds: int


def simulate(
    jobs: Sequence[TrainingJob],
    devices: int,
    policy: Policy,
    *,
    pause_seconds: float = 30.0,
    start_seconds: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> Run:
    """Run the jobs until all are complete or dropped.

    Args:
        pause_seconds: How long a job stands still when it is resized.
        start_seconds: How long it stands still when it starts; None: as long as when it is resized.
        progress: Is called with the number of jobs that are over, after each one.

    Raises:
        ValueError: if the policy hands out more devices than there are, or a size that a job does not allow, or leaves
            jobs waiting for ever.
    """
    start_seconds = pause_seconds if start_seconds is None else start_seconds
    return _Cluster(jobs, devices, policy, pause_seconds, start_seconds, progress).run()


_ARRIVES, _ENDS, _LOOKS = range(3)


class _Cluster:
    def __init__(
        self,
        jobs: Sequence[TrainingJob],
        devices: int,
        policy: Policy,
        pause_seconds: float,
        start_seconds: float,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._devices = self._free = devices
        self._policy, self._pause, self._progress = policy, pause_seconds, progress
        self._start = start_seconds
        ordered = sorted(jobs, key=lambda job: (job.arrives, job.job_id))
        self._courses = [Course(job) for job in ordered]
        self._order = {course: n for n, course in enumerate(self._courses)}
        self._waiting: dict[Course, None] = {}
        self._running: dict[Course, None] = {}
        self._numbers = count()
        self._events: list[tuple[float, int, int, Course | None, int]] = [
            (course.job.arrives, next(self._numbers), _ARRIVES, course, 0) for course in self._courses
        ]
        heapq.heapify(self._events)
        self._usage: list[tuple[float, int, int]] = []
        self._looks_at: float | None = None
        self._over = 0

    def run(self) -> Run:
        events, rounds, now = self._events, 0, 0.0
        handled = 0
        while events:
            now, changed, looks = events[0][0], False, False
            while events and events[0][0] == now:
                _, _, kind, course, version = heapq.heappop(events)
                handled += 1
                if kind == _ARRIVES:
                    assert course is not None
                    self._waiting[course] = None
                    changed = True
                elif kind == _ENDS:
                    assert course is not None
                    if course.version == version:
                        self._end(course, now)
                        changed = True
                else:
                    self._looks_at, looks = None, True
            if handled > MOST_EVENTS:
                raise ValueError(f"more than {MOST_EVENTS} events: the policy does not come to an end")
            if (changed and self._policy.period is None) or looks:
                rounds += 1
                changed = self._decide(now) or changed
            self._look_later(now)
            if looks and self._waiting and not self._running and len(events) == 1:
                break  # nothing else happens, and the policy has not started any of them
            if changed:
                self._usage.append((now, self._devices - self._free, len(self._waiting)))
        if self._waiting or self._running:
            names = ", ".join(course.job.job_id for course in list(self._waiting)[:3])
            raise ValueError(f"{len(self._waiting)} jobs wait for ever, among them {names}: no size of theirs has room")
        return Run(tuple(self._courses), self._devices, now, tuple(self._usage), handled, rounds)

    def _end(self, course: Course, now: float) -> None:
        course.advance(now)
        course.left, course.ended = 0.0, now
        self._free += course.devices
        course.size = None
        del self._running[course]
        self._count()

    def _count(self) -> None:
        self._over += 1
        if self._progress is not None:
            self._progress(self._over)

    def _decide(self, now: float) -> bool:
        view = View(
            now, self._devices, self._free, self._sorted(self._waiting), self._sorted(self._running), self._pause
        )
        decided = self._policy.decide(view)
        changed = False
        for course, size in decided.items():
            if size != course.size:
                self._set(course, size, now)
                changed = True
        if self._free < 0:
            raise ValueError(f"{type(self._policy).__name__} hands out {-self._free} devices more than there are")
        return changed

    def _sorted(self, courses: dict[Course, None]) -> list[Course]:
        return sorted(courses, key=self._order.__getitem__)

    def _set(self, course: Course, size: Size | None, now: float) -> None:
        if course.ended is not None or course.dropped:
            raise ValueError(f"{course.job.job_id} is over and cannot be resized")
        if size == DROP and course.size is None:
            course.dropped = True
            del self._waiting[course]
            self._count()
            return
        if size is not None:
            _check(course.job, size)
        course.advance(now)
        self._free += course.devices - (size.learners if size else 0)
        course.version += 1
        pause = self._start if course.size is None else self._pause
        if size is None:
            del self._running[course]
            self._waiting[course] = None
            course.waited_from = now
        elif course.size is None:
            del self._waiting[course]
            self._running[course] = None
            course.started = now if course.started is None else course.started
        else:
            course.resizes += 1
        course.size, course.changed = size, now
        if size is not None:
            course.rate, course.pause_until = course.job.rate(size), now + pause
            heapq.heappush(self._events, (course.end(), next(self._numbers), _ENDS, course, course.version))

    def _look_later(self, now: float) -> None:
        """Ask a policy that looks from time to time again at the next multiple of its period."""
        period = self._policy.period
        if period is not None and self._looks_at is None and (self._waiting or self._running):
            self._looks_at = (math.floor(now / period + 1e-9) + 1) * period
            heapq.heappush(self._events, (self._looks_at, next(self._numbers), _LOOKS, None, 0))


def _check(job: TrainingJob, size: Size) -> None:
    allowed = size == job.fixed or (
        job.limits.min_learners <= size.learners <= job.limits.max_learners
        and size.batch in job.limits.batches(size.learners)
    )
    if not allowed:
        raise ValueError(f"{job.job_id} cannot have {size.learners} learners and a batch of {size.batch}")
