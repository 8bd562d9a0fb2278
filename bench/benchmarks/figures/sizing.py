"""How long it takes to choose the sizes of all elastic jobs at once: the pure function, against the recurrence of the
paper in plain NumPy, and against a genetic search."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

import numpy as np

from benchmarks import placing
from benchmarks.options import Options as Chosen
from benchmarks.results import Budget, Comparison, Measured, TableOf, Value
from updraft.allocation.scalability import Limits, Point, Speed, best_points
from updraft.allocation.sizing import Options, choose_sizes
from updraft.simulation.sized import Tables

NAME, TITLE = "sizing", "Sizes of elastic jobs"
JOBS, DEVICES, MOST = 1000, 4096, 64
SMALLER = (400, 2000, 64)
SEARCH = 100  # people and generations
PLACED = {  # devices for each learner
    "1 device for each learner": (1,),
    "1, 2 or 4 devices": (1, 2, 4),
    "2, 3 or 5 devices": (2, 3, 5),
}

NOTES = (
    "One call of `updraft.allocation.sizing.choose_sizes` for 1,000 jobs, 4,096 devices and up to 64 devices for each "
    "job, on one thread. *Recurrence*: the dynamic program of Saxena et al., one operation of NumPy for each job and "
    "size. Both find the largest sum; the figure checks that it is the same.",
    "*Speed-ups*: curves of jobs with unlike seconds per sample, exchange of gradients and ranges of batches, as the "
    "platform makes them. *Random*: each size of a job is worth a random number. *Steps*: most sizes bring nothing "
    "over the one before. *Ties*: all jobs have the same steps, each as good as any other; no bound decides here, and "
    "the recurrence does the work.",
    "*Genetic search*: NSGA-II with 100 choices in 100 generations on the same curves, as Pollux and AdaptDL do. Its "
    "aims are the sum of the speed-ups and few devices; the best sum of the last generation counts.",
    "*Placed*: up to 6 jobs on up to 4 nodes of 8 devices, parts of which are taken. The planner "
    "(`updraft.allocation.resizing.plan_sizes`) chooses sizes as if devices were one pool, and solves again with fewer "
    "devices until the nodes have room. A mixed-integer program (HiGHS) chooses sizes and nodes together. *Gap*: the "
    "part of the best sum of scores that is missing.",
)

Shape = Callable[[random.Random, int], Options]


def measure(options: Chosen) -> Measured:
    rounds = options.pairs(10, 2)
    comparisons, values = [], []
    for name, shape in SHAPES.items():
        jobs = _made(shape, JOBS, MOST)
        pairs = []
        for _ in range(rounds):
            start = time.perf_counter()
            found = choose_sizes(jobs, DEVICES).total
            middle = time.perf_counter()
            other = recurrence(jobs, DEVICES)
            pairs.append((middle - start, time.perf_counter() - middle))
            if abs(found - other) > 1e-9 * abs(other):
                raise AssertionError(f"{name}: choose_sizes finds {found}, and the recurrence {other}")
        common = name != "ties"
        comparisons.append(
            Comparison(
                name=f"Sizes of 1,000 jobs, {name}",
                unit="s",
                a="choose_sizes",
                b="recurrence",
                pairs=tuple(pairs),
                budget=Budget(at="most", value=0.1) if common else None,
            )
        )
        values.append(
            Value(
                name=f"Sizes of 1,000 jobs, {name}",
                unit="s",
                samples=tuple(a for a, _ in pairs),
                budget=Budget(at="most", value=0.1) if common else None,
            )
        )
    return Measured(
        settings={"rounds": rounds},
        comparisons=tuple(comparisons),
        values=tuple(values),
        tables=(_searched(), _smaller(), _placed(20 if options.quick else 200)),
        notes=NOTES,
    )


def recurrence(jobs: list[Options], devices: int) -> float:
    """Return the largest sum, by the recurrence as the paper writes it."""
    before = np.zeros(devices + 1)
    for sizes, scores in jobs:
        after = np.full(devices + 1, -np.inf)
        for size, score in zip(sizes, scores, strict=True):
            np.maximum(after[size:], before[: devices + 1 - size] + score, out=after[size:])
        before = after
    return float(before.max())


def _searched() -> TableOf:
    """Compare with the genetic search: what it finds, and how long it takes."""
    rows = []
    for count, devices in ((50, 200), (200, 800), (JOBS, DEVICES)):
        chance = random.Random(count)
        curves = [_points(chance, MOST) for _ in range(count)]
        jobs = [_options(points) for points in curves]
        start = time.perf_counter()
        best = choose_sizes(jobs, devices).total
        middle = time.perf_counter()
        tables = Tables([(points, 1.0, 0) for points in curves], 1.0)
        columns = tables.search(devices, SEARCH, SEARCH, np.random.default_rng(0))
        took = time.perf_counter() - middle
        found = sum(float(job.scores[n]) for job, n in zip(jobs, columns, strict=True))
        rows.append(
            (f"{count} jobs, {devices} devices", round(middle - start, 4), round(took, 2), f"{found / best:.1%}")
        )
    return TableOf(
        title="Against a genetic search (NSGA-II), 100 x 100",
        columns=("", "choose_sizes, s", "search, s", "what the search finds of the best sum"),
        rows=tuple(rows),
    )


def _smaller() -> TableOf:
    """Time other sizes of the problem once."""
    rows = []
    for count, devices, most in ((100, 400, 16), SMALLER, (1000, 10_000, 64)):
        jobs = _made(_scaling, count, most)
        start = time.perf_counter()
        choose_sizes(jobs, devices)
        middle = time.perf_counter()
        recurrence(jobs, devices)
        took = time.perf_counter() - middle
        rows.append((f"{count} jobs, {devices} devices, {most} for each", round(middle - start, 4), round(took, 4)))
    return TableOf(title="Other sizes, once", columns=("", "choose_sizes, s", "recurrence, s"), rows=tuple(rows))


def _placed(cases: int) -> TableOf:
    """Compare the sizes that the planner places on nodes with those of a mixed-integer program that knows the nodes."""
    rows = []
    for name, gpus in PLACED.items():
        chance = random.Random(7)
        gaps: list[float] = []
        while len(gaps) < cases:
            if (gap := placing.gap(chance, gpus)) is not None:
                gaps.append(gap)
        best = sum(gap < 1e-9 for gap in gaps)
        rows.append((name, f"{best / cases:.0%}", f"{statistics.fmean(gaps):.2%}", f"{max(gaps):.2%}"))
    return TableOf(
        title=f"Sizes placed on nodes, {cases} clusters each",
        columns=("", "as good as the mixed-integer program", "mean gap", "largest gap"),
        rows=tuple(rows),
    )


def _made(shape: Shape, count: int, most: int) -> list[Options]:
    chance = random.Random(count)
    return [shape(chance, most) for _ in range(count)]


def _points(chance: random.Random, most: int) -> tuple[Point, ...]:
    speed = Speed(
        chance.uniform(0, 0.05), 10 ** chance.uniform(-3.5, -1.5), chance.uniform(0, 0.3), chance.uniform(0, 0.01)
    )
    batch = chance.choice((16, 32, 64, 256))
    return best_points(speed, Limits(1, most, batch, batch * chance.choice((1, 4, 16, 64)), None))


def _options(points: tuple[Point, ...]) -> Options:
    goodput = np.array([point.goodput for point in points])
    return Options(np.array([point.learners for point in points], np.int64), goodput / goodput[0])


def _scaling(chance: random.Random, most: int) -> Options:
    return _options(_points(chance, most))


def _random(chance: random.Random, most: int) -> Options:
    return Options(np.arange(1, most + 1), np.array([chance.random() for _ in range(most)]))


def _steps(chance: random.Random, most: int) -> Options:
    steps = [chance.choice((0, 0, 0, 1, 3)) * chance.random() for _ in range(most)]
    return Options(np.arange(1, most + 1), np.cumsum(steps))


def _ties(chance: random.Random, most: int) -> Options:
    return Options(np.arange(1, most + 1), np.floor(np.arange(1, most + 1) / 3) * 3)


SHAPES: dict[str, Shape] = {"speed-ups": _scaling, "random": _random, "steps": _steps, "ties": _ties}
