"""Fetches the samples of the next steps in threads while the current one is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from updraft_learner.elastic.sample_order import DataCursor, SampleOrder, share


class Prefetcher:
    """Batches of one learner, by cursor.

    Args:
        data: A map-style data set.
        collate: Makes a batch of a list of samples.
        ahead: How many steps' samples are fetched ahead.
    """

    def __init__(self, order: SampleOrder, data: Any, collate: Callable[[list[Any]], Any], ahead: int) -> None:
        self._order, self._data, self._collate, self._ahead = order, data, collate, ahead
        self._pool = ThreadPoolExecutor(max(1, ahead), thread_name_prefix="updraft-elastic-prefetch")
        self._fetched: dict[DataCursor, Future[Any]] = {}
        self._rank, self._learners = 0, 1

    def regroup(self, rank: int, learners: int) -> None:
        """Forget what was fetched: its samples are drawn again, by whoever has them now."""
        for each in self._fetched.values():
            each.cancel()
        self._fetched.clear()
        self._rank, self._learners = rank, learners

    def get(self, cursor: DataCursor) -> Any:
        """Return the batch of the step at `cursor`; raise what the data set raised."""
        if not self._ahead:
            return self._fetch(self._mine(cursor))
        following = cursor
        for _ in range(self._ahead + 1):
            if following not in self._fetched and (indices := self._mine(following)):
                self._fetched[following] = self._pool.submit(self._fetch, indices)
            following = self._order.after(following)
        return self._fetched.pop(cursor).result()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _mine(self, cursor: DataCursor) -> tuple[int, ...]:
        return share(self._order.draw(cursor), self._rank, self._learners)

    def _fetch(self, indices: Sequence[int]) -> Any:
        return self._collate([self._data[index] for index in indices])
