"""Reads the lanes of a data set in shards, ahead of their use, in threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, runtime_checkable

from updraft_learner.elastic.shard_order import ENDED, ShardCursor, ShardOrder

THREADS = 4


@runtime_checkable
class Shards(Protocol):
    """A data set in shards: files, or ranges of something larger. It is the same on all learners."""

    def shards(self) -> Sequence[Any]:
        """Return the shards: names, or whatever `open` understands."""

    def open(self, shard: Any, offset: int) -> Iterator[Any]:
        """Yield the samples of a shard in an order that does not change, without the first `offset` ones."""


class ShardReader:
    """A `SampleSource`: batches of one learner from the lanes that it reads.

    Args:
        order: Says which samples a step has.
        data: The data set.
        collate: Makes a batch of a list of samples.
        ahead: How many steps' samples are read ahead.
    """

    def __init__(self, order: ShardOrder, data: Shards, collate: Callable[[list[Any]], Any], ahead: int) -> None:
        self._order, self._data, self._collate, self._ahead = order, data, collate, ahead
        self._names = list(data.shards())
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="updraft-elastic-shards")
        self._lanes: dict[int, _Lane] = {}
        self._rank, self._learners = 0, 1
        self._places: dict[int, tuple[int, int]] = {}  # after this step, of the lanes that are read here
        self._samples = 0

    def first(self) -> ShardCursor:
        return self._order.first()

    def finished(self, cursor: ShardCursor) -> bool:
        return cursor.epoch >= self._order.epochs

    def regroup(self, rank: int, learners: int) -> None:
        self._rank, self._learners = rank, learners

    def parts(self, cursor: ShardCursor) -> list[int]:
        self._places, self._samples = {}, 0
        parts = self._order.parts(cursor, self._rank, self._learners)
        reading = {lane for quota in parts.values() for lane in quota}
        self._lanes = {lane: each for lane, each in self._lanes.items() if lane in reading}
        return [part for part, quota in parts.items() if quota]

    def get(self, cursor: ShardCursor, part: int) -> tuple[Any, float]:
        """Return a batch, or None; raise what the data set raised."""
        samples: list[Any] = []
        quota = self._order.parts(cursor, self._rank, self._learners)[part]
        lanes = {}
        for lane, number in quota.items():
            place = cursor.places[lane]
            if (found := self._lanes.get(lane)) is None or (found.epoch, found.place) != (cursor.epoch, place):
                shards = [self._names[index] for index in self._order.of_lane(cursor.epoch, lane)]
                found = self._lanes[lane] = _Lane(cursor.epoch, place, shards, self._data)
            lanes[lane] = found
            found.fill(self._pool, number + 1)  # one more: so that a lane which ends is known to end
        for lane, number in quota.items():
            taken = lanes[lane].take(number)
            samples += taken
            self._places[lane] = lanes[lane].place
            if self._ahead and lanes[lane].place[0] != ENDED:
                lanes[lane].fill(self._pool, self._ahead * number + 1)
        self._samples += len(samples)
        return (self._collate(samples), float(len(samples))) if samples else (None, 0.0)

    def facts(self) -> list[float]:
        """Return the samples of this step here, and the places of the lanes: shard + 1 and offset, 0 of others' lanes.
        A lane's shard is ENDED at its end, so that is 0 too."""
        found = [float(self._samples)] + [0.0] * (2 * self._order.lanes)
        for lane, (shard, offset) in self._places.items():
            found[1 + 2 * lane : 3 + 2 * lane] = float(shard - ENDED), float(offset)
        return found

    def divisor(self, facts: list[float]) -> float:
        if not facts[0]:
            raise ValueError("the data set has no samples: all of its shards are empty")
        return facts[0]

    def after(self, cursor: ShardCursor, facts: list[float]) -> ShardCursor:
        places = {}
        for lane, (shard, _) in enumerate(cursor.places):
            if shard != ENDED:
                places[lane] = round(facts[1 + 2 * lane]) + ENDED, round(facts[2 + 2 * lane])
        return self._order.after(cursor, places)

    def epoch(self, cursor: ShardCursor) -> int:
        return cursor.epoch

    def to_json(self, cursor: ShardCursor) -> Any:
        return [cursor.epoch, [list(place) for place in cursor.places]]

    def from_json(self, value: Any) -> ShardCursor:
        epoch, places = value
        return ShardCursor(int(epoch), tuple((int(shard), int(offset)) for shard, offset in places))

    def as_json(self) -> dict[str, Any]:
        return self._order.as_json()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


class _Lane:
    """A lane that is being read.

    Attributes:
        place: Of its next sample: which of its shards, and the offset in that.
    """

    def __init__(self, epoch: int, place: tuple[int, int], shards: list[Any], data: Shards) -> None:
        self.epoch, self.place = epoch, place
        self._shards, self._data = shards, data
        self._fetched: deque[tuple[tuple[int, int], Any]] = deque()  # each sample and its place
        self._reading = self._read(*place)
        self._at_end = False
        self._filling: Future[None] | None = None

    def fill(self, pool: ThreadPoolExecutor, number: int) -> None:
        """Begin to fetch, so that so many samples are there."""
        self._wait()
        self._filling = pool.submit(self._fetch, number)

    def take(self, number: int) -> list[Any]:
        """Return the next samples; fewer at the end."""
        self._wait()
        taken = [self._fetched.popleft()[1] for _ in range(min(number, len(self._fetched)))]
        self.place = self._fetched[0][0] if self._fetched else (ENDED, 0)
        return taken

    def _wait(self) -> None:
        if self._filling is not None:
            filling, self._filling = self._filling, None
            filling.result()

    def _fetch(self, number: int) -> None:
        while len(self._fetched) < number and not self._at_end:
            if (found := next(self._reading, None)) is None:
                self._at_end = True
            else:
                self._fetched.append(found)

    def _read(self, shard: int, offset: int) -> Iterator[tuple[tuple[int, int], Any]]:
        for index in range(shard, len(self._shards)):
            begin = offset if index == shard else 0
            for number, sample in enumerate(self._data.open(self._shards[index], begin)):
                yield (index, begin + number), sample
