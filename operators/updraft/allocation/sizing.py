"""Choose the sizes of all elastic jobs of a pool at once: the exact maximum of the sum of their scores. Pure.

Each job has a score for each number of devices that it can use; exactly one number is chosen for each job, and together
they use at most the devices of the pool. It is the multiple-choice knapsack problem. Saxena et al., Effective Elastic
Scaling of Deep Learning Workloads (MASCOTS 2020), solve it by the recurrence
`P[j][c] = max over g of P[j-1][c-g] + score_j(g)`, which takes jobs x devices x sizes steps. Here most of these steps
are left out, with the same result:

1. A price for each device turns the problem into one problem per job: take the size whose score less its price is
   largest. The price at which the jobs want as many devices as there are gives an upper bound (Lagrangian duality).
2. Sizes that are rounded down to whole devices, and filled up, give a lower bound.
3. A size that loses more against its job's best one than the two bounds differ is in no solution that is better than
   the lower bound. This leaves one size for most jobs, and few for the others (reduced-cost fixing, as in Pisinger, A
   minimal algorithm for the multiple-choice knapsack problem, EJOR 1995).
4. The recurrence solves what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

EXACT = 1e-12  # relative: sums of a few thousand numbers of double precision are equal up to this


class NoSizesError(ValueError):
    """The smallest sizes of all jobs together need more devices than there are."""


class Options(NamedTuple):
    """The numbers of devices that a job can use, and what each is worth.

    Attributes:
        sizes: Whole numbers of devices, ascending; 0 is allowed.
        scores: One finite number for each size. They need not rise, and need not be concave.
    """

    sizes: Integers
    scores: Floats


@dataclass(frozen=True)
class Sizes:
    """The chosen numbers of devices, in the order of the jobs.

    Args:
        total: The sum of the scores.
        price: What one device more would add to the sum, about: the price of step 1. 0 if no job can use one.
    """

    chosen: tuple[int, ...]
    total: float
    price: float


def choose_sizes(jobs: Sequence[Options], devices: int) -> Sizes:
    """Choose one size for each job so that the sum of the scores is largest and at most `devices` are used.

    Of several best choices, the same one is found each time.

    Raises:
        NoSizesError: if the smallest sizes need more than `devices`.
        ValueError: if options are not as `Options` describes them.
    """
    return _Pool(jobs, devices).solve() if jobs else Sizes((), 0.0, 0.0)


class _Pool:
    """One problem. Rows are jobs, columns are their sizes in order; what a job lacks is minus infinity."""

    def __init__(self, jobs: Sequence[Options], devices: int) -> None:
        if any(sizes.shape != scores.shape or sizes.ndim != 1 or not len(sizes) for sizes, scores in jobs):
            raise ValueError("each size needs one score, and each job a size")
        width = max(len(sizes) for sizes, _ in jobs)
        self._rows = np.arange(len(jobs))
        self._devices = devices
        self._sizes = np.zeros((len(jobs), width), np.int64)
        self._scores = np.full((len(jobs), width), -np.inf)
        for row, (sizes, scores) in enumerate(jobs):
            self._sizes[row, : len(sizes)] = sizes
            self._scores[row, : len(scores)] = scores
        there = np.arange(width) < np.array([len(sizes) for sizes, _ in jobs])[:, None]
        if not np.isfinite(self._scores[there]).all():
            raise ValueError("scores must be finite")
        if (self._sizes[:, 0] < 0).any() or (np.diff(self._sizes, axis=1)[there[:, 1:]] <= 0).any():
            raise ValueError("sizes must be at least 0 and ascend")
        least = int(self._sizes[:, 0].sum())
        if least > devices:
            raise NoSizesError(f"{len(jobs)} jobs need at least {least} devices, and there are {devices}")
        # No size is chosen that is not worth more than each smaller one.
        best = np.maximum.accumulate(self._scores, axis=1)
        self._scores[:, 1:][self._scores[:, 1:] <= best[:, :-1]] = -np.inf

    def solve(self) -> Sizes:
        most = self._best_at(0.0)
        if self._used(most) <= self._devices:
            return self._result(most, 0.0)
        price, fewer, more = self._prices(most)
        rounded = self._filled(fewer, more)
        lost = self._lost(price)
        bound = self._value(fewer) + price * (self._devices - self._used(fewer))
        gap = bound - self._value(rounded)
        slack = EXACT * max(1.0, float(np.abs(self._scores[np.isfinite(self._scores)]).sum(initial=0.0)))
        if gap <= slack:
            return self._result(rounded, price)
        left = _Rest(self._sizes, lost, self._devices, price, gap + slack).solve()
        better = rounded if left is None or self._value(left) < self._value(rounded) else left
        return self._result(better, price)

    def _result(self, chosen: Integers, price: float) -> Sizes:
        sizes = self._sizes[self._rows, chosen]
        return Sizes(tuple(int(size) for size in sizes), self._value(chosen), price)

    def _used(self, chosen: Integers) -> int:
        return int(self._sizes[self._rows, chosen].sum())

    def _value(self, chosen: Integers) -> float:
        return float(self._scores[self._rows, chosen].sum())

    def _best_at(self, price: float) -> Integers:
        """Return the column of each job that is best at this price; of equal ones the smallest size."""
        best: Integers = np.argmax(self._scores - price * self._sizes, axis=1)
        return best

    def _lost(self, price: float) -> Floats:
        """Return what each size loses at this price against the best one of its job."""
        net = self._scores - price * self._sizes
        lost: Floats = net.max(axis=1, keepdims=True) - net
        return lost

    def _prices(self, most: Integers) -> tuple[float, Integers, Integers]:
        """Return the price whose bound is lowest, with a choice that is best at it and fits, and one that does not fit.

        The bound is a convex function of the price, made of lines: one for each choice. The next price is where the
        lines of the two choices meet; it is the lowest point when no other choice is better there.
        """
        fewer = np.zeros(len(self._rows), np.int64)  # an infinite price
        while True:
            few, many = self._used(fewer), self._used(most)
            price = (self._value(most) - self._value(fewer)) / (many - few)
            found = self._best_at(price)
            used = self._used(found)
            better = self._value(found) - price * used - (self._value(fewer) - price * few)
            if better <= EXACT * max(1.0, abs(self._value(fewer))):
                return price, fewer, most
            if used <= self._devices:
                fewer = found
            else:
                most = found

    def _filled(self, fewer: Integers, more: Integers) -> Integers:
        """Return the choice that fits, with what is left given to jobs: first to those that want more at the same
        price, then where one step adds most for each device."""
        chosen = fewer.copy()
        left = self._devices - self._used(chosen)
        steps = self._sizes[self._rows, more] - self._sizes[self._rows, fewer]
        for row in np.argsort(-steps, kind="stable"):
            if 0 < steps[row] <= left:
                chosen[row] = more[row]
                left -= int(steps[row])
        while left:
            now = self._sizes[self._rows, chosen][:, None]
            extra = self._sizes - now
            gain = self._scores - self._scores[self._rows, chosen][:, None]
            allowed = (extra > 0) & (extra <= left) & (gain > 0)
            if not allowed.any():
                break
            worth = np.where(allowed, gain / np.maximum(extra, 1), -np.inf)
            row, column = divmod(int(np.argmax(worth)), self._sizes.shape[1])
            left -= int(extra[row, column])
            chosen[row] = column
        return chosen


class _Rest:
    """The recurrence for the sizes that the bounds leave: the smallest sum of what is lost, plus the price of the
    devices that are not used."""

    def __init__(self, sizes: Integers, lost: Floats, devices: int, price: float, most: float) -> None:
        kept = lost <= most
        self._first = kept.argmax(axis=1)  # the smallest size of each job that is left
        rows = np.arange(len(sizes))
        self._room = devices - int(sizes[rows, self._first].sum())
        self._start = float(lost[rows, self._first][kept.sum(axis=1) == 1].sum())
        self._idle = int(min(self._room, most / price)) if price > 0 else self._room
        self._price, self._most = price, most
        # What is left to decide: for each such job its columns, with the devices beyond the smallest of them.
        self._open: list[tuple[int, list[tuple[int, int, float]]]] = []
        for row in np.flatnonzero(kept.sum(axis=1) > 1):
            base = sizes[row, self._first[row]]
            columns = np.flatnonzero(kept[row])
            self._open.append((int(row), [(int(c), int(sizes[row, c] - base), float(lost[row, c])) for c in columns]))

    def solve(self) -> Integers | None:
        """Return the columns of the best choice; None if none loses less than the lower bound."""
        if self._room < 0:
            return None
        low, costs = 0, np.array([self._start])
        steps = []  # before each job: the fewest devices, and the cost of that number and of each larger one
        for (_, columns), (first, last) in zip(self._open, self._spans(), strict=True):
            steps.append((low, costs))
            found = np.full(last - first + 1, np.inf)
            for _, extra, lost in columns:
                start, end = max(first, low + extra), min(last, low + extra + len(costs) - 1)
                if start <= end:
                    target = found[start - first : end - first + 1]
                    np.minimum(target, costs[start - extra - low : end - extra - low + 1] + lost, out=target)
            low, costs = first, found
        final = costs + self._price * (self._room - np.arange(low, low + len(costs)))
        at = int(np.argmin(final))
        return self._traced(low + at, float(costs[at]), steps) if final[at] <= self._most else None

    def _spans(self) -> Iterator[tuple[int, int]]:
        """Return, after each job, the fewest and the most devices that can still become a solution: not more than there
        are, and not so few that the jobs behind cannot use enough of the others."""
        most = [max(extra for _, extra, _ in columns) for _, columns in self._open]
        behind, reached = sum(most), 0
        for step in most:
            behind -= step
            reached = min(self._room, reached + step)
            yield min(reached, max(0, self._room - self._idle - behind)), reached

    def _traced(self, used: int, cost: float, steps: Sequence[tuple[int, Floats]]) -> Integers:
        """Return the columns that lead to this number of devices at this cost."""
        chosen: Integers = self._first.astype(np.int64)
        for (row, columns), (low, costs) in zip(reversed(self._open), reversed(steps), strict=True):
            for column, extra, lost in columns:
                at = used - extra - low
                if 0 <= at < len(costs) and costs[at] + lost == cost:
                    chosen[row], used, cost = column, used - extra, float(costs[at])
                    break
        return chosen
