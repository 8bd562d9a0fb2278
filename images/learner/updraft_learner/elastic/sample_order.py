"""The order of an epoch's samples, and which learner uses which. Pure: the same answer on every learner.

A `DataCursor` is part of the training state, like the optimizer: it moves when a step is committed, and a learner that
copies the state of another copies its cursor. So samples that were drawn or fetched for a step that nobody committed
need not be handed back: they lie at the cursor, and the next group draws them again.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np


class DataCursor(NamedTuple):
    """The first sample that no committed step used: `position` in the order of `epoch` (both count from 0)."""

    epoch: int = 0
    position: int = 0


@dataclass(frozen=True)
class SampleOrder:
    """All samples of a training, in the order of their use: a permutation of the data set for each epoch.

    Args:
        length: Samples in the data set.
        batch: Samples of one step, all learners together; of each learner if the batch grows. The last step of an epoch
            has what is left.
        epochs: How often each sample is used.
        seed: Of the permutations.
        virtual_ranks: How many parts a step's samples have, however many learners compute them. 0: one of each
            learner.
        grows: The batch of a step is `batch` times the number of learners.

    Raises:
        ValueError: a number is too small.
    """

    length: int
    batch: int
    epochs: int
    seed: int = 0
    virtual_ranks: int = 0
    grows: bool = False

    def __post_init__(self) -> None:
        for name in ("length", "batch", "epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.virtual_ranks < 0:
            raise ValueError(f"virtual_ranks is {self.virtual_ranks}; it must be at least 1, or 0 for none")

    def finished(self, cursor: DataCursor) -> bool:
        return cursor.epoch >= self.epochs

    def samples_of_step(self, learners: int) -> int:
        """Return how many samples a step has with so many learners, if the epoch has as many left."""
        return self.batch * learners if self.grows else self.batch

    def draw(self, cursor: DataCursor, learners: int = 1) -> tuple[int, ...]:
        """Return the indices of the step at `cursor`; empty when the training is finished."""
        if self.finished(cursor):
            return ()
        end = cursor.position + self.samples_of_step(learners)
        indices: list[int] = _permutation(self.seed, cursor.epoch, self.length)[cursor.position : end].tolist()
        return tuple(indices)

    def drawn(self, cursor: DataCursor, learners: int = 1) -> int:
        """Return how many samples the step at `cursor` has."""
        return 0 if self.finished(cursor) else min(self.samples_of_step(learners), self.length - cursor.position)

    def used(self, cursor: DataCursor, rank: int, learners: int) -> tuple[int, ...]:
        """Return the virtual ranks of `rank` that have samples in the step at `cursor`. Without virtual ranks, the
        learner itself is one. The last ones have none if there are fewer samples than virtual ranks."""
        return _used(self.drawn(cursor, learners), rank, learners, self.virtual_ranks or learners)

    def parts(self, cursor: DataCursor, rank: int, learners: int) -> dict[int, tuple[int, ...]]:
        """Return the indices that `rank` uses in the step at `cursor`, by virtual rank."""
        indices, parts = self.draw(cursor, learners), self.virtual_ranks or learners
        begin, end = bounds(parts, rank, learners)
        return {each: share(indices, each, parts) for each in range(begin, end)}

    def after(self, cursor: DataCursor, learners: int = 1) -> DataCursor:
        """Return where the next step begins, once the step at `cursor` is committed."""
        position = cursor.position + self.samples_of_step(learners)
        return DataCursor(cursor.epoch, position) if position < self.length else DataCursor(cursor.epoch + 1, 0)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def share(indices: tuple[int, ...], rank: int, learners: int) -> tuple[int, ...]:
    """Return the part of a step's indices that `rank` uses: parts differ by one sample at most, lower ranks have more.

    A rank has none if there are fewer samples than learners.
    """
    begin, end = bounds(len(indices), rank, learners)
    return indices[begin:end]


def bounds(length: int, rank: int, learners: int) -> tuple[int, int]:
    """Return where the part of `rank` begins and ends, if `length` things are shared in the order of ranks."""
    each, more = divmod(length, learners)
    begin = rank * each + min(rank, more)
    return begin, begin + each + (rank < more)


def size(length: int, rank: int, learners: int) -> int:
    """Return how many of `length` things `rank` has."""
    begin, end = bounds(length, rank, learners)
    return end - begin


@lru_cache(maxsize=8)
def _used(drawn: int, rank: int, learners: int, parts: int) -> tuple[int, ...]:
    return tuple(each for each in range(*bounds(parts, rank, learners)) if size(drawn, each, parts))


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, length: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    # RandomState, not Generator: NumPy promises that its permutations never change, and a checkpoint relies on that.
    bits = random.Random(f"{seed}/{epoch}").getrandbits(32)
    return np.random.RandomState(bits).permutation(length)
