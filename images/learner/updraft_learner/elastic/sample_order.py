"""The order of an epoch's samples, and which learner uses which. Pure: the same answer on every learner.

A `DataCursor` is part of the training state, like the optimizer: it moves when a step is committed, and a learner that
copies the state of another copies its cursor. So samples that were drawn or fetched for a step that nobody committed
need not be handed back: they lie at the cursor, and the next group draws them again.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any


@dataclass(frozen=True, order=True)
class DataCursor:
    """The first sample that no committed step used: `position` in the order of `epoch` (both count from 0)."""

    epoch: int = 0
    position: int = 0


@dataclass(frozen=True)
class SampleOrder:
    """All samples of a training, in the order of their use: a permutation of the data set for each epoch.

    Args:
        length: Samples in the data set.
        batch: Samples of one step, all learners together. The last step of an epoch has what is left.
        epochs: How often each sample is used.
        seed: Of the permutations.

    Raises:
        ValueError: a number is below 1.
    """

    length: int
    batch: int
    epochs: int
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("length", "batch", "epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")

    def finished(self, cursor: DataCursor) -> bool:
        return cursor.epoch >= self.epochs

    def draw(self, cursor: DataCursor) -> tuple[int, ...]:
        """Return the indices of the step at `cursor`; empty when the training is finished."""
        if self.finished(cursor):
            return ()
        return _permutation(self.seed, cursor.epoch, self.length)[cursor.position : cursor.position + self.batch]

    def after(self, cursor: DataCursor) -> DataCursor:
        """Return where the next step begins, once the step at `cursor` is committed."""
        position = cursor.position + self.batch
        return DataCursor(cursor.epoch, position) if position < self.length else DataCursor(cursor.epoch + 1, 0)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def share(indices: tuple[int, ...], rank: int, learners: int) -> tuple[int, ...]:
    """Return the part of a step's indices that `rank` uses: parts differ by one sample at most, lower ranks have more.

    A rank has none if there are fewer samples than learners.
    """
    each, more = divmod(len(indices), learners)
    begin = rank * each + min(rank, more)
    return indices[begin : begin + each + (rank < more)]


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, length: int) -> tuple[int, ...]:
    indices = list(range(length))
    random.Random(f"{seed}/{epoch}").shuffle(indices)
    return tuple(indices)
