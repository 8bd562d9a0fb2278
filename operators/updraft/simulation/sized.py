"""Define the policies that choose the sizes of all jobs at once: the paper's two, the platform's, and a search like
Pollux'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from updraft.allocation.elastic import Curve, ElasticJob, SizingRules, power, size_jobs
from updraft.allocation.scalability import Point
from updraft.allocation.sizing import Options, choose_sizes
from updraft.simulation.engine import DROP, Course, View
from updraft.simulation.policies import Decision, admitted, changes, fixed_batch_points, free_batch_points


@dataclass
class MostThroughput:
    """The sum of the speed-ups over one learner is made as large as it can be, at each look (Saxena et al., Effective
    Elastic Scaling of Deep Learning Workloads, MASCOTS 2020).

    Args:
        batch: Whether the batch is chosen with the learners. Without, this is the paper's baseline.
        drop: Whether a job that does not have room when it comes is turned away; otherwise it waits.
    """

    batch: bool
    drop: bool = False
    period: float | None = None
    _known: dict[Course, tuple[tuple[Point, ...], Options]] = field(default_factory=dict, repr=False)

    def decide(self, view: View) -> Decision:
        """Admit in order of arrival, and size all that are admitted."""
        courses = admitted([*view.running, *view.waiting], self._points, view.devices)
        found = choose_sizes([self._known[course][1] for course in courses], view.devices)
        chosen = {
            course: next(point for point in self._points(course) if point.learners == learners)
            for course, learners in zip(courses, found.chosen, strict=True)
        }
        decided = changes(view, chosen)
        if self.drop:
            decided.update({course: DROP for course in view.waiting if course not in chosen})
        return decided

    def _points(self, course: Course) -> tuple[Point, ...]:
        if course not in self._known:
            points = free_batch_points(course) if self.batch else fixed_batch_points(course)
            scores = np.array([point.goodput / points[0].goodput for point in points])
            sizes = np.array([point.learners for point in points], np.int64)
            self._known[course] = points, Options(sizes, scores)
        return self._known[course][0]


@dataclass
class Updraft:
    """The platform's own decision (`updraft.allocation.elastic`): goodput, the price of a resize, and no change for a
    small gain."""

    rules: SizingRules = field(default_factory=SizingRules)
    drop: bool = False
    period: float | None = None
    _curves: dict[Course, Curve] = field(default_factory=dict, repr=False)

    def decide(self, view: View) -> Decision:
        """Admit in order of arrival, and size all that are admitted."""
        courses = admitted([*view.running, *view.waiting], lambda course: self._of(course).points, view.devices)
        found = size_jobs([self._job(course, view) for course in courses], view.devices, self.rules)
        decided = changes(view, {course: found.sizes[course.job.job_id] for course in courses})
        if self.drop:
            decided.update({course: DROP for course in view.waiting if course not in set(courses)})
        return decided

    def _of(self, course: Course) -> Curve:
        if course not in self._curves:
            self._curves[course] = Curve(free_batch_points(course))
        return self._curves[course]

    def _job(self, course: Course, view: View) -> ElasticJob:
        return ElasticJob(
            course.job.job_id,
            self._of(course),
            current=course.devices,
            age_seconds=0.0 if course.started is None else view.now - course.started,
            pause_seconds=view.pause_seconds,
            resizes=course.resizes,
            since_seconds=view.now - course.changed if course.size else np.inf,
        )


@dataclass
class GeneticSearch:
    """A search over sizes by a genetic algorithm (NSGA-II) on a power mean of the speed-ups and on the devices in use,
    as Pollux has it (Qiao et al., OSDI 2021): without nodes, and with fewer generations.

    Args:
        exponent: Of the power mean.
        population, generations: Of the search.
    """

    exponent: float = -1.0
    population: int = 40
    generations: int = 40
    period: float | None = 60.0
    seed: int = 0
    _points: dict[Course, tuple[Point, ...]] = field(default_factory=dict, repr=False)

    def decide(self, view: View) -> Decision:
        """Admit in order of arrival, and search for the sizes of all that are admitted."""
        courses = admitted([*view.running, *view.waiting], self._of, view.devices)
        if not courses:
            return {}
        tables = Tables(
            [(self._of(course), _factor(course, view), course.devices) for course in courses], self.exponent
        )
        best = tables.search(view.devices, self.population, self.generations, np.random.default_rng(self.seed))
        chosen = {course: self._of(course)[int(n)] for course, n in zip(courses, best, strict=True)}
        return changes(view, chosen)

    def _of(self, course: Course) -> tuple[Point, ...]:
        if course not in self._points:
            self._points[course] = free_batch_points(course)
        return self._points[course]


def _factor(course: Course, view: View) -> float:
    """Return Pollux' restart factor."""
    if course.size is None or course.started is None:
        return 1.0
    age = view.now - course.started
    return max(age - course.resizes * view.pause_seconds, 0.0) / (age + view.pause_seconds)


class Tables:
    """The sizes and scores of all jobs: a row for each job, a column for each of its sizes."""

    def __init__(self, jobs: Sequence[tuple[Sequence[Point], float, int]], exponent: float) -> None:
        self._width = np.array([len(points) for points, _, _ in jobs])
        shape = len(jobs), int(self._width.max())
        self._sizes = np.zeros(shape, np.int64)
        self._scores = np.full(shape, -np.inf)
        self._now = np.zeros(len(jobs), np.int64)
        for row, (points, factor, current) in enumerate(jobs):
            learners = np.array([point.learners for point in points])
            speedups = np.array([point.goodput / points[0].goodput for point in points])
            speedups[learners != current] *= factor
            self._sizes[row, : len(points)] = learners
            self._scores[row, : len(points)] = power(np.maximum(speedups, 1e-9), exponent)
            self._now[row] = max(0, int(np.searchsorted(learners, current, side="right")) - 1)
        self._rows = np.arange(len(jobs))

    def search(self, devices: int, population: int, generations: int, chance: np.random.Generator) -> NDArray[np.int64]:
        """Return the best columns that were found by NSGA-II (Deb et al., A Fast and Elitist Multiobjective Genetic
        Algorithm, 2002), with two aims: the sum of the scores, and few devices."""
        people = np.concatenate([self._now[None], self._random(population - 1, chance)])
        people = self._repaired(people, devices, chance)
        order = self._ranked(people)
        for _ in range(generations):
            better = np.empty(len(people), np.int64)
            better[order] = np.arange(len(people))
            parents = [people[self._tournament(better, chance)] for _ in range(2)]
            children = np.where(chance.random(people.shape) < 0.5, *parents)
            mutated = chance.random(children.shape) < 1.0 / len(self._rows)
            children = np.where(mutated, self._random(len(children), chance), children)
            people = np.concatenate([people, self._repaired(children, devices, chance)])
            people = people[self._ranked(people)[:population]]
            order = np.arange(len(people))
        best: NDArray[np.int64] = people[np.argmax(self._scores[self._rows, people].sum(axis=1))]
        return best

    def _tournament(self, rank: NDArray[np.int64], chance: np.random.Generator) -> NDArray[np.int64]:
        """Return for each place the better one of two that are drawn."""
        pairs = chance.integers(0, len(rank), (len(rank), 2))
        won: NDArray[np.int64] = np.where(rank[pairs[:, 0]] < rank[pairs[:, 1]], pairs[:, 0], pairs[:, 1])
        return won

    def _ranked(self, people: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the people from best to worst: by fronts of those that no other is better than in both aims, and in a
        front those first that have few others near them."""
        score = self._scores[self._rows, people].sum(axis=1)
        used = self._sizes[self._rows, people].sum(axis=1)
        as_good = (score[:, None] >= score) & (used[:, None] <= used)
        beats = as_good & ~as_good.T
        front, left, number = np.zeros(len(people), np.int64), np.ones(len(people), bool), 0
        while left.any():
            first = left & ~beats[left].any(axis=0)
            front[first], left, number = number, left & ~first, number + 1
        lonely = np.zeros(len(people))
        for n in range(number):
            of_front = np.flatnonzero(front == n)
            for aim in (score, used.astype(float)):
                ordered = of_front[np.argsort(aim[of_front], kind="stable")]
                span = aim[ordered[-1]] - aim[ordered[0]]
                lonely[ordered[[0, -1]]] = np.inf
                if span > 0:
                    lonely[ordered[1:-1]] += (aim[ordered[2:]] - aim[ordered[:-2]]) / span
        return np.lexsort((-lonely, front))

    def _random(self, number: int, chance: np.random.Generator) -> NDArray[np.int64]:
        made: NDArray[np.int64] = chance.integers(0, self._width[None], (number, len(self._rows)))
        return made

    def _repaired(self, people: NDArray[np.int64], devices: int, chance: np.random.Generator) -> NDArray[np.int64]:
        """Make jobs of those that use too many devices smaller, at random."""
        for person in people:
            used = int(self._sizes[self._rows, person].sum())
            while used > devices:
                row = int(chance.choice(np.flatnonzero(person)))
                column = int(chance.integers(0, person[row]))
                used -= int(self._sizes[row, person[row]] - self._sizes[row, column])
                person[row] = column
        return people
