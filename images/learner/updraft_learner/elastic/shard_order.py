"""The order of the samples of a data set in shards, of which nobody knows how long they are. Pure.

The shards of an epoch are dealt to *lanes*, as many whatever the number of learners. A lane is read from its beginning
to its end, so its place is two numbers: which of its shards, and how many samples of that are used. The places of all
lanes are the cursor. Who reads a lane says where it is after a step, in the exchange of gradients: so all learners know
all places, and another learner can go on with a lane at any step.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from updraft_learner.elastic.sample_order import bounds

ENDED = -1  # instead of the shard: the lane has nothing left in this epoch


@dataclass(frozen=True, order=True)
class ShardCursor:
    """Where a step begins: the epoch, from 0, and of each lane its shard and its offset."""

    epoch: int
    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ShardOrder:
    """All samples of a training, in the order of their use.

    Args:
        shards: How many there are.
        lanes: How many are read at the same time, by all learners together.
        batch: Samples of one step, all learners together; lanes that end leave it smaller.
        epochs: How often each sample is used.
        seed: Of the order of the shards in each epoch.
        virtual_ranks: How many parts a step has; 0: one of each learner.

    Raises:
        ValueError: a number is too small.
    """

    shards: int
    lanes: int
    batch: int
    epochs: int
    seed: int = 0
    virtual_ranks: int = 0

    def __post_init__(self) -> None:
        for name in ("shards", "lanes", "batch", "epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.virtual_ranks < 0:
            raise ValueError(f"virtual_ranks is {self.virtual_ranks}; it must be at least 1, or 0 for none")
        if self.batch < self.lanes:
            raise ValueError(f"batch is {self.batch}; with {self.lanes} lanes it must be at least {self.lanes}")

    def first(self, epoch: int = 0) -> ShardCursor:
        """Return where an epoch begins."""
        return ShardCursor(epoch, tuple((0, 0) if self.of_lane(epoch, lane) else (ENDED, 0) for lane in self._lanes()))

    def of_lane(self, epoch: int, lane: int) -> tuple[int, ...]:
        """Return the shards of a lane, in the order of their use."""
        return _permutation(self.seed, epoch, self.shards)[lane :: self.lanes]

    def parts(self, cursor: ShardCursor, rank: int, learners: int) -> dict[int, dict[int, int]]:
        """Return the lanes that `rank` reads in the step at `cursor` and how many samples it uses of each: by virtual
        rank, which is the learner itself where there are none."""
        reading = [lane for lane in self._lanes() if cursor.places[lane][0] != ENDED]
        quota = {}
        for number, lane in enumerate(reading):
            begin, end = bounds(self.batch, number, len(reading))
            quota[lane] = end - begin
        if not self.virtual_ranks:
            owned, parts = range(rank, rank + 1), learners
        else:
            owned, parts = range(*bounds(self.virtual_ranks, rank, learners)), self.virtual_ranks
        found = {}
        for part in owned:
            begin, end = bounds(len(reading), part, parts)
            found[part] = {lane: quota[lane] for lane in reading[begin:end]}
        return found

    def after(self, cursor: ShardCursor, places: dict[int, tuple[int, int]]) -> ShardCursor:
        """Return where the next step begins, from the new places of the lanes that were read."""
        following = tuple(places.get(lane, cursor.places[lane]) for lane in self._lanes())
        if all(shard == ENDED for shard, _ in following):
            return self.first(cursor.epoch + 1)
        return ShardCursor(cursor.epoch, following)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def _lanes(self) -> range:
        return range(self.lanes)


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, length: int) -> tuple[int, ...]:
    numbers = list(range(length))
    random.Random(f"{seed}/shards/{epoch}").shuffle(numbers)
    return tuple(numbers)
