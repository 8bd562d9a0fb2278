"""How far the sizes that the planner places on nodes are from the best ones, which a mixed-integer program finds."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from updraft.allocation import Capacity, Elasticity, GangRequest, Grant, Node, Policy
from updraft.allocation.elastic import Curve
from updraft.allocation.resizing import plan_sizes
from updraft.allocation.scalability import Limits, Speed, best_points

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DEVICES = 8


def gap(chance: random.Random, gpus: Sequence[int]) -> float | None:
    """Make a cluster with elastic jobs that have their fewest learners; return which part of the best sum of scores the
    planner misses. None: not even these have room."""
    taken = [chance.choice((0, 0, 1, 2, 3, 5)) for _ in range(chance.randint(2, 4))]
    jobs = [_job(chance, f"job-{number}", chance.choice(gpus)) for number in range(chance.randint(2, 6))]
    grants = [Grant(_request(job_id, curve, each), NOW - timedelta(days=1)) for job_id, curve, each in jobs]
    nodes = tuple(Node(f"node-{n}", 64.0, 1 << 20, DEVICES - used) for n, used in enumerate(taken))
    best = _best([(curve, each) for _, curve, each in jobs], [node.gpus for node in nodes])
    if best is None:
        return None
    policy = Policy(least_gain=0.0, least_size=timedelta(0))
    plan = plan_sizes((), grants, Capacity(nodes), policy=policy, past={}, now=NOW)
    chosen = {each.job_id: each.learners for each in plan.resized}
    found = sum(_score(curve, chosen.get(job_id, 1)) for job_id, curve, _ in jobs)
    return max(0.0, 1 - found / best)


def _job(chance: random.Random, job_id: str, gpus: int) -> tuple[str, Curve, int]:
    speed = Speed(chance.uniform(0, 0.05), 10 ** chance.uniform(-3, -1.5), chance.uniform(0, 0.3))
    return job_id, Curve(best_points(speed, Limits(1, 16, 32, 512))), gpus


def _request(job_id: str, curve: Curve, gpus: int) -> GangRequest:
    sizes = Elasticity(Limits(1, 16, 32, 512), curve, NOW - timedelta(days=1))
    return GangRequest(job_id, 1, 0.1, 64, gpus, None, NOW - timedelta(days=1), elastic=sizes)


def _score(curve: Curve, learners: int) -> float:
    at = curve.at(learners)
    assert at is not None
    return math.sqrt(float(curve.speedups[at]))


def _best(jobs: Sequence[tuple[Curve, int]], free: Sequence[int]) -> float | None:
    """Return the largest sum of scores; None if there is no solution.

    A variable of 0 or 1 for each job and size, and the number of learners of each job on each node.
    """
    scores = [[_score(curve, int(size)) for size in curve.learners] for curve, _ in jobs]
    sizes = [len(each) for each in scores]
    offset = np.cumsum([0, *sizes])
    number = int(offset[-1]) + len(jobs) * len(free)
    rows: list[Mapping[int, float]] = []
    low: list[float] = []
    high: list[float] = []
    for j, (curve, _) in enumerate(jobs):
        rows.append({int(offset[j]) + n: 1.0 for n in range(sizes[j])})
        low.append(1.0)
        high.append(1.0)
        placed = {int(offset[j]) + n: -float(size) for n, size in enumerate(curve.learners)}
        placed |= {int(offset[-1]) + j * len(free) + n: 1.0 for n in range(len(free))}
        rows.append(placed)
        low.append(0.0)
        high.append(0.0)
    for n, devices in enumerate(free):
        rows.append({int(offset[-1]) + j * len(free) + n: float(gpus) for j, (_, gpus) in enumerate(jobs)})
        low.append(0.0)
        high.append(float(devices))
    matrix = np.zeros((len(rows), number))
    for n, row in enumerate(rows):
        for column, value in row.items():
            matrix[n, column] = value
    aims = np.zeros(number)
    aims[: int(offset[-1])] = [-score for each in scores for score in each]
    upper = np.full(number, 16.0)
    upper[: int(offset[-1])] = 1.0
    solved = milp(
        aims,
        integrality=np.ones(number),
        bounds=Bounds(np.zeros(number), upper),
        constraints=LinearConstraint(matrix, np.array(low), np.array(high)),
        options={"mip_rel_gap": 0.0},
    )
    return None if solved.x is None else -float(solved.fun)
