"""Decide the sizes of all elastic jobs that share a pool of devices, with what each change brings. Pure.

A job's score for a number of learners is its speed-up: its goodput there (`updraft.allocation.scalability`) against
that with its fewest learners. A size that differs from the current one counts less, by the restart factor
`max(age - resizes * pause, 0) / (age + pause)` of Pollux (Qiao et al., OSDI 2021) with the measured pause of a resize:
the part of the job's life that resizes leave. The sum of the scores is made as large as it can be
(`updraft.allocation.sizing`); with a `fairness` below 1, that of their powers, so that the first learners of a job
count more than the last ones of another (a power mean).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from updraft.allocation.scalability import Point
from updraft.allocation.sizing import Floats, NoSizesError, Options, Sizes, choose_sizes

PAUSES, LEAST_KEEP_SECONDS = 100, 60.0


def keep_seconds(pause_seconds: float, least_seconds: float) -> float:
    """Return the least time between two resizes of a job: `PAUSES` times its pause, so that resizes cost about 1 % of
    its time; at least a minute, in which its speed is measured, and at most `least_seconds`.

    Args:
        pause_seconds: How long the job stands still in a resize.
        least_seconds: What the operator has chosen.
    """
    return min(least_seconds, max(LEAST_KEEP_SECONDS, PAUSES * pause_seconds))


class Curve:
    """The sizes of a job with their goodput.

    Args:
        points: By number of learners, ascending; at least one.

    Attributes:
        learners: The sizes.
        speedups: The goodput of each against that of the smallest one.

    Raises:
        ValueError: if the sizes do not ascend, or a goodput is not finite and above 0.
    """

    def __init__(self, points: Sequence[Point]) -> None:
        self.points = tuple(points)
        self.learners = np.array([point.learners for point in points], np.int64)
        goodput = np.array([point.goodput for point in points], np.float64)
        if not points or self.learners[0] < 1 or (np.diff(self.learners) <= 0).any():
            raise ValueError(f"sizes must be numbers of learners that ascend, at least one: {self.learners.tolist()}")
        if not (np.isfinite(goodput).all() and (goodput > 0).all()):
            raise ValueError(f"the goodput of each size must be finite and above 0: {goodput.tolist()}")
        self.speedups = goodput / goodput[0]
        self._at = {point.learners: n for n, point in enumerate(points)}

    def at(self, learners: int) -> int | None:
        """Return which of the sizes it is; None: it is none of them."""
        return self._at.get(learners)


@dataclass(frozen=True)
class ElasticJob:
    """An elastic job that has room, or gets some in this round.

    Args:
        devices: What one learner takes of the pool.
        current: Its learners now; 0: it has none yet.
        age_seconds: Since its first start.
        pause_seconds: How long it stands still in a resize.
        resizes: How often it was resized.
        since_seconds: Since its last start or resize.
    """

    job_id: str
    curve: Curve
    devices: int = 1
    current: int = 0
    age_seconds: float = 0.0
    pause_seconds: float = 0.0
    resizes: int = 0
    since_seconds: float = math.inf

    def restart_factor(self) -> float:
        """Return the part of the job's life that is left if it is resized once more."""
        if not self.current:
            return 1.0
        rest = max(self.age_seconds - self.resizes * self.pause_seconds, 0.0)
        whole = self.age_seconds + self.pause_seconds
        return rest / whole if whole > 0 else 1.0


@dataclass(frozen=True)
class SizingRules:
    """What an operator has decided about sizes.

    Args:
        fairness: The exponent of the speed-ups that are added up. 1 gives devices where they bring most, even nearly
            all to one of two jobs that scale well; smaller ones spread them, as -1 does in Pollux.
        least_gain: The part by which the sum of the speed-ups must rise for a round to change sizes that could stay.
        least_seconds: How long a job keeps a size before it is resized for the sake of speed alone, at most; see
            `keep_seconds`.
    """

    fairness: float = 0.5
    least_gain: float = 0.05
    least_seconds: float = 60.0


@dataclass(frozen=True)
class Resize:
    """A job whose size changes.

    Args:
        speedup: Its speed-up before and after.
    """

    job_id: str
    before: int
    after: Point
    speedup: tuple[float, float]
    reason: str


@dataclass(frozen=True)
class SizingRound:
    """The sizes of all jobs after a round.

    Args:
        sizes: By job id.
        resizes: The jobs whose size changes, in the order of the jobs.
        gain: The part by which the sum of the speed-ups of the jobs that ran before changes.
        price: What one device more would bring, in speed-up.
        reason: Why the round changes sizes, or why not.
    """

    sizes: Mapping[str, Point] = field(default_factory=dict)
    resizes: tuple[Resize, ...] = ()
    gain: float = 0.0
    price: float = 0.0
    reason: str = ""


def size_jobs(jobs: Sequence[ElasticJob], devices: int, rules: SizingRules = SizingRules()) -> SizingRound:
    """Choose the size of each job so that they use at most `devices`.

    A job that has been resized a short time ago keeps its size, and all keep theirs if the gain is small, as long as
    the jobs have room so.

    Raises:
        NoSizesError: if even the smallest sizes need more devices.
    """
    before = [job.curve.at(job.current) for job in jobs]
    rests = [
        at is not None and job.since_seconds < keep_seconds(job.pause_seconds, rules.least_seconds)
        for job, at in zip(jobs, before, strict=True)
    ]
    try:
        found, chosen = _solve(
            jobs, [at if rest else None for at, rest in zip(before, rests, strict=True)], devices, rules
        )
    except NoSizesError:  # room for others goes before rest
        found, chosen = _solve(jobs, [None] * len(jobs), devices, rules)
    stays = None not in before and sum(job.devices * job.current for job in jobs) <= devices
    ran = [(job.curve, at, to) for job, at, to in zip(jobs, before, chosen, strict=True) if at is not None]
    was = sum(float(curve.speedups[at]) for curve, at, _ in ran)
    gain = sum(float(curve.speedups[to]) for curve, _, to in ran) / was - 1 if was else 0.0
    if stays and gain < rules.least_gain:
        same = {job.job_id: job.curve.points[at] for job, at in zip(jobs, before, strict=True) if at is not None}
        return SizingRound(same, (), 0.0, found.price, _no_change(gain, rules))
    sizes = {job.job_id: job.curve.points[to] for job, to in zip(jobs, chosen, strict=True)}
    resizes = tuple(
        Resize(
            job.job_id,
            job.current,
            sizes[job.job_id],
            _speedups(job.curve, at, to),
            _why(job, sizes[job.job_id], stays),
        )
        for job, at, to in zip(jobs, before, chosen, strict=True)
        if sizes[job.job_id].learners != job.current
    )
    reason = f"the speed of the running jobs changes by {gain:+.1%}" if was else "jobs start"
    return SizingRound(sizes, resizes, gain, found.price, reason)


def _solve(
    jobs: Sequence[ElasticJob], fixed: Sequence[int | None], devices: int, rules: SizingRules
) -> tuple[Sizes, list[int]]:
    """Return the best sizes, and which of each job's they are. A job with a fixed one has no other."""
    options = []
    for job, at in zip(jobs, fixed, strict=True):
        sizes, speedups = job.curve.learners, job.curve.speedups
        if at is not None:
            sizes, speedups = sizes[at : at + 1], speedups[at : at + 1]
        elif job.current:
            speedups = np.where(sizes == job.current, speedups, np.maximum(speedups * job.restart_factor(), 1e-9))
        options.append(Options(sizes * job.devices, power(speedups, rules.fairness)))
    found = choose_sizes(options, devices)
    chosen = [job.curve.at(size // job.devices) for job, size in zip(jobs, found.chosen, strict=True)]
    return found, [at for at in chosen if at is not None]


def power(speedups: Floats, exponent: float) -> Floats:
    """Return the terms whose sum has the same order as the power mean of the speed-ups: a larger one is better."""
    if exponent == 1:
        return speedups
    if exponent == 0:
        return np.log(speedups)
    terms: Floats = math.copysign(1.0, exponent) * speedups**exponent
    return terms


def _speedups(curve: Curve, before: int | None, after: int) -> tuple[float, float]:
    return (0.0 if before is None else float(curve.speedups[before]), float(curve.speedups[after]))


def _why(job: ElasticJob, point: Point, could_stay: bool) -> str:
    if not job.current:
        return "starts"
    if point.learners > job.current:
        return "grows into devices that are free, or that bring more here"
    return "gives devices to jobs for which they bring more" if could_stay else "makes room for jobs that start"


def _no_change(gain: float, rules: SizingRules) -> str:
    if gain <= 0:
        return "no other sizes are faster"
    return f"other sizes would be faster by {gain:.1%}, less than {rules.least_gain:.0%}"
