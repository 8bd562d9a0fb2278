"""Describe how fast a job trains with a number of learners and a batch size, and find its best batch for each. Pure.

The seconds of one step with a global batch of `b` samples on `k` learners are
`t(b, k) = fixed + per_sample * b / k + (sync + sync_per_learner * (k - 2) if k >= 2 else 0)`:
the time of the computation, and that of exchanging the gradients. Saxena et al. (Effective Elastic Scaling of Deep
Learning Workloads, MASCOTS 2020) add the two from tables; the linear forms are Pollux' (Qiao et al., OSDI 2021).

A step with a larger batch does not bring as much more: with the gradient noise scale `n` (McCandlish et al., An
Empirical Model of Large-Batch Training, 2018), a sample in a batch of `b` is worth `(n + b0) / (n + b)` of one in a
batch of `b0` (Pollux calls it the statistical efficiency). Goodput is the product of that and of the samples in a
second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Speed:
    """The seconds of a step; see above. None may be negative, and a sample takes some time."""

    fixed: float
    per_sample: float
    sync: float = 0.0
    sync_per_learner: float = 0.0

    def __post_init__(self) -> None:
        values = (self.fixed, self.per_sample, self.sync, self.sync_per_learner)
        if not all(math.isfinite(value) and value >= 0 for value in values) or self.fixed + self.per_sample <= 0:
            raise ValueError(f"the seconds of a step must be finite, not negative and not all zero: {values}")

    def step_seconds(self, batch: float, learners: int) -> float:
        """Return the seconds of one step with a global batch of `batch` samples."""
        exchange = self.sync + self.sync_per_learner * (learners - 2) if learners > 1 else 0.0
        return self.fixed + self.per_sample * batch / learners + exchange


@dataclass(frozen=True)
class Limits:
    """What an elastic job allows.

    Args:
        min_batch, max_batch: Of the global batch; None: the batch is the program's own matter.
        max_per_learner: The most samples for which a learner has memory; None: it is not known.
        noise: The gradient noise scale, in samples; None: each sample is worth the same within the range of batches.
        reference_batch: The batch in which a sample counts as one; None: `min_batch`.
        in_place: Whether learners join and leave while the others train.
        batch_ignored: Whether the program does not follow the batch that the platform chooses. Then the smallest one is
            chosen, and a step counts as one whatever its batch.
    """

    min_learners: int
    max_learners: int
    min_batch: int | None = None
    max_batch: int | None = None
    max_per_learner: int | None = None
    noise: float | None = None
    reference_batch: int | None = None
    batch_ignored: bool = False
    in_place: bool = False

    def efficiency(self, batch: float) -> float:
        """Return what a sample in such a batch is worth against one in the reference batch."""
        reference = self.reference_batch or self.min_batch
        return 1.0 if self.noise is None or reference is None else (self.noise + reference) / (self.noise + batch)

    def goodput(self, batch: int | None, seconds: float) -> float:
        """Return the samples of the reference batch in a second, with steps of so many seconds; the steps, if the
        program does not follow a batch."""
        if batch is None or self.min_batch is None or self.batch_ignored:
            return 1 / seconds
        return batch / seconds * self.efficiency(batch)

    def batches(self, learners: int) -> range:
        """Return the global batches that so many learners share in equal parts, and have memory for; none if the batch
        is not chosen."""
        if self.min_batch is None or self.max_batch is None:
            return range(0)
        most = self.max_batch if self.max_per_learner is None else min(self.max_batch, self.max_per_learner * learners)
        return range(-(-self.min_batch // learners) * learners, most + 1, learners)


@dataclass(frozen=True)
class Point:
    """The best batch for a number of learners, and its goodput in samples of the reference batch per second; or in
    steps, if the job does not let the platform choose the batch (None)."""

    learners: int
    batch: int | None
    goodput: float


def best_points(speed: Speed, limits: Limits) -> tuple[Point, ...]:
    """Return the best batch of each number of learners that the job allows and that can share one; of equal ones the
    smallest.

    A number of learners is missing if no batch within the limits is its multiple. Where the batch is the program's own
    matter, goodput is steps per second, with the time of a step for a batch of 1.
    """
    points = []
    if limits.min_batch is None:
        sizes = range(limits.min_learners, limits.max_learners + 1)
        return tuple(Point(learners, None, 1 / speed.step_seconds(1, learners)) for learners in sizes)
    for learners in range(limits.min_learners, limits.max_learners + 1):
        choice = limits.batches(learners)
        if not choice:
            continue
        if limits.batch_ignored:
            batch = choice[0]
        elif limits.noise is None:
            # The step of a larger batch takes less time per sample: the largest is best, or as good as all others.
            batch = choice[-1] if speed.step_seconds(0, learners) > 0 else choice[0]
        else:
            batch = _nearest(choice, _best_batch(speed, learners, limits.noise), speed, limits, learners)
        points.append(Point(learners, batch, _goodput(speed, limits, batch, learners)))
    return tuple(points)


def _goodput(speed: Speed, limits: Limits, batch: int, learners: int) -> float:
    return limits.goodput(batch, speed.step_seconds(batch, learners))


def _best_batch(speed: Speed, learners: int, noise: float) -> float:
    """Return the batch whose goodput is largest, if it could be any number.

    Goodput is proportional to `b / ((o + c b) (n + b))` with the overhead `o` of a step and the seconds `c` of each
    sample; its derivative is zero at `b = sqrt(o n / c)`.
    """
    overhead, each = speed.step_seconds(0, learners), speed.per_sample / learners
    return math.sqrt(overhead * noise / each) if each else math.inf


def _nearest(choice: range, best: float, speed: Speed, limits: Limits, learners: int) -> int:
    """Return the better of the two allowed batches around the best one: goodput rises up to it, then falls."""
    below = choice[0] if best <= choice[0] else choice[-1] if best >= choice[-1] else int(best // learners) * learners
    around = [batch for batch in (below, below + learners) if batch in choice]
    return max(around, key=lambda batch: (_goodput(speed, limits, batch, learners), -batch))


@dataclass(frozen=True)
class Report:
    """The seconds of a step that a job has measured with a number of learners and a batch (None: its own)."""

    learners: int
    batch: int | None
    seconds: float
    weight: float = 1.0


def fit_speed(reports: Sequence[Report]) -> Speed | None:
    """Return the `Speed` that explains the reports best: least squares of relative errors, no term negative.

    Terms that the reports say nothing about are zero: those of the exchange, if all are of one learner.

    Returns:
        None: no report is usable (finite and positive seconds).
    """
    usable = [each for each in reports if math.isfinite(each.seconds) and each.seconds > 0 and each.weight > 0]
    if not usable:
        return None
    rows = np.array([_terms(each) for each in usable])
    scale = np.array([math.sqrt(each.weight) / each.seconds for each in usable])
    found = _non_negative(rows * scale[:, None], np.array([each.seconds for each in usable]) * scale)
    if found[0] + found[1] <= 0:  # all time in the exchange: the computation takes some of it
        found[0] = min(each.seconds * each.learners / (each.batch or 1) for each in usable) * 1e-3
    per_sample, fixed, sync, sync_per_learner = (float(value) for value in found)
    return Speed(fixed, per_sample, sync, sync_per_learner)


def _terms(report: Report) -> tuple[float, float, float, float]:
    """Return what the seconds are proportional to. The first term explains a single report alone: until a job has
    reported more, twice as many learners are expected to be twice as fast."""
    several = report.learners > 1
    return (report.batch or 1) / report.learners, 1.0, float(several), float(max(0, report.learners - 2))


def _non_negative(rows: Floats, target: Floats) -> Floats:
    """Return the solution of least squares without negative parts: the best one over all sets of parts that are not
    zero. There are four parts, so that these are fifteen small problems."""
    best, least = np.zeros(rows.shape[1]), math.inf
    for number in range(1, rows.shape[1] + 1):
        for chosen in combinations(range(rows.shape[1]), number):
            part, *_ = np.linalg.lstsq(rows[:, chosen], target, rcond=None)
            error = float(np.square(rows[:, chosen] @ part - target).sum())
            # A further part must explain something: data without noise leave rounding errors.
            if (part >= 0).all() and error < least * (1 - 1e-9) - 1e-18:
                best, least = np.zeros(rows.shape[1]), error
                best[list(chosen)] = part
    return best


def curve_points(limits: Limits, reports: Sequence[Report], composed: Sequence[Report] = ()) -> tuple[Point, ...]:
    """Return the sizes that a job may have now, with what the reports make of each.

    A job that has reported nothing is expected to scale perfectly. It may have at most twice as many learners as were
    measured, or as its fewest, so that a job which does not scale is noticed before it takes many. If what it would
    take with several learners is composed from measured parts, it may have them at once.

    Args:
        composed: What `composed_reports` expects.
    """
    points = best_points(fit_speed([*reports, *composed]) or Speed(0.0, 1.0), limits)
    if not points:
        return ()
    most = 2 * max([points[0].learners, *(each.learners for each in (*reports, *composed))])
    return tuple(point for point in points if point.learners <= most)


@dataclass(frozen=True)
class Exchange:
    """The seconds of an all-reduce of a number of bytes among learners with one kind of device.

    `t(n, k) = latency * (k - 1) + per_byte * n * 2 (k - 1) / k`: a ring sends each byte that often (Patarasuk and Yuan,
    Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations, 2009).
    """

    latency: float
    per_byte: float

    def seconds(self, size_bytes: float, learners: int) -> float:
        """Return the seconds of one all-reduce."""
        return self.latency * (learners - 1) + self.per_byte * size_bytes * 2 * (learners - 1) / learners


def fit_exchange(measured: Sequence[tuple[int, float, float]]) -> Exchange | None:
    """Return the `Exchange` that explains measurements best, by least squares of relative errors.

    Args:
        measured: Learners (2 or more), bytes and seconds of each.

    Returns:
        None: nothing usable was measured.
    """
    usable = [each for each in measured if each[0] > 1 and each[1] > 0 and math.isfinite(each[2]) and each[2] > 0]
    if not usable:
        return None
    rows = np.array([(k - 1, size * 2 * (k - 1) / k) for k, size, _ in usable], np.float64)
    seconds = np.array([each[2] for each in usable])
    latency, per_byte = (float(value) for value in _non_negative(rows / seconds[:, None], np.ones(len(usable))))
    return Exchange(latency, per_byte)


COMPOSED_WEIGHT = 10.0  # steps: what a job reports while it trains soon counts more


def composed_reports(
    limits: Limits, timings: Sequence[tuple[float, float]], gradient_bytes: float | None, exchange: Exchange | None
) -> list[Report]:
    """Return how long steps should take, from parts that were measured apart: the computation of one learner, and the
    exchange of gradients (as the job scalability analyser of Saxena et al. does).

    Args:
        timings: Samples of one learner, and the seconds of its step.
        gradient_bytes: What the learners exchange in a step; None: it is not known.
        exchange: Of the job's kind of device; None: it is not known. Then only one learner is spoken for.
    """
    if limits.min_batch is None:  # the batch that the steps had is not known
        return []
    found = []
    sizes = [1]
    if gradient_bytes is not None and exchange is not None:
        sizes += [learners for learners in (2, 4, 8, 16, 32, 64) if learners <= limits.max_learners]
    for learners in sizes:
        apart = exchange.seconds(gradient_bytes, learners) if learners > 1 and exchange and gradient_bytes else 0.0
        for share, seconds in timings:
            found.append(Report(learners, round(share * learners), seconds + apart, COMPOSED_WEIGHT))
    return found


SAME_STEP = 0.05  # the part by which times of steps differ that are called equal


def ignores_batch(reports: Sequence[Report]) -> bool:
    """Return whether steps take as long with small batches as with large ones, as far as was measured: the batches,
    and the samples of one learner, must differ by a factor of 2 at least. A GPU that is not full yet looks the same,
    so a program that follows its batch says that with `updraft.batch_size`."""
    known = [(each.batch, each.batch / each.learners) for each in reports if each.batch is not None]
    if not known or any(max(values) < 2 * min(values) for values in zip(*known, strict=True)):
        return False
    shares = [share for _, share in known]
    speed = fit_speed(reports)
    if speed is None:
        return False
    longest = max(each.seconds for each in reports)
    return speed.per_sample * (max(shares) - min(shares)) < SAME_STEP * longest


def ignores_learners(limits: Limits, reports: Sequence[Report]) -> bool:
    """Return whether no number of learners that was measured is faster than the smallest one of them."""
    best: dict[int, float] = {}
    for each in reports:
        goodput = limits.goodput(each.batch, each.seconds)
        best[each.learners] = max(goodput, best.get(each.learners, 0.0))
    if len(best) < 2:
        return False
    return max(best.values()) < best[min(best)] * (1 + SAME_STEP)
