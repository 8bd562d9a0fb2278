"""Define the policies that keep a job's size, and those that size jobs by throughput, as their papers describe them.

`updraft.simulation.sized` has the policies that solve for all sizes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from updraft.allocation.scalability import Point, best_points
from updraft.simulation.engine import Course, Size, View

Decision = Mapping[Course, Size | None]
PointsOf = Callable[[Course], Sequence[Point]]
THRESHOLD = 3600.0  # device-seconds in Tiresias' first queue
PROMOTED = 8.0  # times that a job has waited as long as it ran: back to the first queue
CROWDED = 10  # jobs that wait, above which Elastic-Tiresias takes devices from jobs of the second queue


@dataclass
class Fifo:
    """Jobs of fixed size start in order of arrival; the first one that has no room stops all behind it."""

    period: float | None = None

    def decide(self, view: View) -> Decision:
        """Start jobs from the front of the line."""
        started: dict[Course, Size | None] = {}
        free = view.free
        for course in view.waiting:
            if course.job.fixed.learners > free:
                break
            free -= course.job.fixed.learners
            started[course] = course.job.fixed
        return started


@dataclass
class FfDL:
    """Gangs of fixed size start in order of arrival, and one that has room passes one that has none (Jayaram et al.,
    FfDL, Middleware 2019)."""

    period: float | None = None

    def decide(self, view: View) -> Decision:
        """Start every job of the line that has room."""
        started: dict[Course, Size | None] = {}
        free = view.free
        for course in view.waiting:
            if course.job.fixed.learners <= free:
                free -= course.job.fixed.learners
                started[course] = course.job.fixed
        return started


@dataclass
class Tiresias:
    """The jobs that have had least come first: two queues by device-seconds held, in order of arrival within each, and
    jobs give way to those before them (Gu et al., Tiresias, NSDI 2019, discretized 2D-LAS). Sizes are fixed."""

    period: float | None = 60.0

    def decide(self, view: View) -> Decision:
        """Run the jobs that come first and have room together; stop the others."""
        left, chosen = view.devices, set[Course]()
        for course in self.ordered(view):
            if course.job.fixed.learners <= left:
                left -= course.job.fixed.learners
                chosen.add(course)
        changes: dict[Course, Size | None] = {course: None for course in view.running if course not in chosen}
        changes.update({course: course.job.fixed for course in view.waiting if course in chosen})
        return changes

    def ordered(self, view: View) -> list[Course]:
        """Return all jobs in the order in which they get devices."""
        courses = [*view.running, *view.waiting]
        return sorted(courses, key=lambda course: (self.demoted(course, view.now), course.job.arrives))

    def demoted(self, course: Course, now: float) -> bool:
        """Return whether the job is in the second queue."""
        service = course.service_at(now)
        if service < THRESHOLD:
            return False
        waited = now - course.waited_from if course.size is None else 0.0
        ran = service / course.job.fixed.learners
        return waited < PROMOTED * ran


@dataclass
class ElasticTiresias(Tiresias):
    """Tiresias with two more rules (Wu et al., EDL, 2019): when many jobs wait, those of the second queue are made as
    small as they may be; devices that no job waits for go where they add most throughput. The batch stays fixed."""

    _points: dict[Course, tuple[Point, ...]] = field(default_factory=dict, repr=False)

    def decide(self, view: View) -> Decision:
        """Choose who runs at which size, then give the rest away."""
        compact = len(view.waiting) > CROWDED
        left, sizes = view.devices, dict[Course, Point]()
        for course in self.ordered(view):
            points = self.points(course)
            wanted = (
                points[0] if compact and self.demoted(course, view.now) else _point(points, course.job.fixed.learners)
            )
            if wanted.learners <= left:
                left -= wanted.learners
                sizes[course] = wanted
        if len(sizes) == len(view.running) + len(view.waiting):
            _give_away(sizes, self.points, left)
        return changes(view, sizes)

    def points(self, course: Course) -> tuple[Point, ...]:
        """Return the sizes of the job with its fixed batch."""
        if course not in self._points:
            self._points[course] = fixed_batch_points(course)
        return self._points[course]


def _point(points: Sequence[Point], learners: int) -> Point:
    return min(points, key=lambda point: abs(point.learners - learners))


def _give_away(sizes: dict[Course, Point], points_of: PointsOf, left: int) -> None:
    """Give devices that are free to the jobs to whose throughput they add most, each."""
    while True:
        best: tuple[float, Course, Point] | None = None
        for course, point in sizes.items():
            for larger in points_of(course):
                extra = larger.learners - point.learners
                if 0 < extra <= left:
                    gain = (larger.goodput - point.goodput) / points_of(course)[0].goodput / extra
                    if gain > 1e-9 and (best is None or gain > best[0]):
                        best = (gain, course, larger)
        if best is None:
            return
        left -= best[2].learners - sizes[best[1]].learners
        sizes[best[1]] = best[2]


@dataclass
class Afs:
    """Each further device goes to the job whose throughput gains the larger part by it; of two, the one that would be
    complete sooner comes first (Hwang et al., Elastic Resource Sharing, NSDI 2021, AFS-L). It knows how much each job
    has left. The batch stays fixed."""

    period: float | None = None
    _points: dict[Course, tuple[Point, ...]] = field(default_factory=dict, repr=False)

    def decide(self, view: View) -> Decision:
        """Admit in order of arrival, then hand out device by device."""
        courses = admitted([*view.running, *view.waiting], self.points, view.devices)
        sizes = {course: self.points(course)[0] for course in courses}
        left = view.devices - sum(point.learners for point in sizes.values())
        rest = {course: course.end() if course.size else view.now + course.job.seconds_alone() for course in courses}
        open_ = set(courses)
        while open_ and left > 0:
            best: Course | None = None
            for course in sorted(open_, key=rest.__getitem__):
                larger = self._next(course, sizes[course])
                if larger is None or larger.learners - sizes[course].learners > left:
                    open_.discard(course)
                elif best is None or self._gain(course, sizes[course]) > self._gain(best, sizes[best]):
                    best = course
            if best is None:
                break
            larger = self._next(best, sizes[best])
            assert larger is not None
            left -= larger.learners - sizes[best].learners
            sizes[best] = larger
        return changes(view, sizes)

    def points(self, course: Course) -> tuple[Point, ...]:
        """Return the sizes of the job with its fixed batch, without those that are not faster than a smaller one."""
        if course not in self._points:
            rising: list[Point] = []
            for point in fixed_batch_points(course):
                if not rising or point.goodput > rising[-1].goodput:
                    rising.append(point)
            self._points[course] = tuple(rising)
        return self._points[course]

    def _next(self, course: Course, point: Point) -> Point | None:
        return next((each for each in self.points(course) if each.learners > point.learners), None)

    def _gain(self, course: Course, point: Point) -> float:
        larger = self._next(course, point)
        assert larger is not None
        return (larger.goodput - point.goodput) / larger.goodput / (larger.learners - point.learners)


def fixed_batch_points(course: Course) -> tuple[Point, ...]:
    """Return the numbers of learners that share the job's fixed batch, with their goodput; its fixed size if there is
    none."""
    job = course.job
    found = [
        Point(learners, job.fixed.batch, job.rate(Size(learners, job.fixed.batch)))
        for learners in range(job.limits.min_learners, job.limits.max_learners + 1)
        if job.fixed.batch in job.limits.batches(learners)
    ]
    return tuple(found) or (Point(job.fixed.learners, job.fixed.batch, job.rate(job.fixed)),)


def free_batch_points(course: Course) -> tuple[Point, ...]:
    """Return the numbers of learners with the best batch of each; the fixed size if the limits allow none."""
    job = course.job
    return best_points(job.speed, job.limits) or (Point(job.fixed.learners, job.fixed.batch, job.rate(job.fixed)),)


def admitted(courses: Sequence[Course], points_of: PointsOf, devices: int) -> list[Course]:
    """Return the jobs, in this order, whose smallest sizes have room together: one that has none stops those behind."""
    found, left = [], devices
    for course in courses:
        least = points_of(course)[0].learners
        if least > left:
            break
        left -= least
        found.append(course)
    return found


def changes(view: View, sizes: Mapping[Course, Point]) -> dict[Course, Size | None]:
    """Return what differs from the present sizes."""
    found: dict[Course, Size | None] = {course: None for course in view.running if course not in sizes}
    for course, point in sizes.items():
        assert point.batch is not None  # the jobs of a trace let it be chosen
        size = Size(point.learners, point.batch)
        if course.size != size:
            found[course] = size
    return found
