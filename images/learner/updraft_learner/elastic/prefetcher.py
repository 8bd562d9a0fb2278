"""Fetches samples of a map-style data set while the step before is computed, in threads or in processes."""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

from updraft_learner.elastic.sample_order import DataCursor, SampleOrder

PARENT_SECONDS = 2.0  # how soon a worker process notices that its learner is dead

_fetched_by_worker: tuple[Any, Callable[[list[Any]], Any]]  # of a worker process: data set and collate


class Prefetcher:
    """A `SampleSource`: batches of one learner, by cursor and virtual rank.

    Args:
        order: Says which samples a step has.
        data: A map-style data set.
        collate: Makes a batch of a list of samples.
        ahead: How many steps' samples are fetched ahead.
        workers: Processes that fetch; 0: threads of this process do. They are forked here, so make this before there
            are threads. In a worker, the random numbers of `random`, NumPy and PyTorch are a function of the seed and
            the step.
    """

    def __init__(
        self, order: SampleOrder, data: Any, collate: Callable[[list[Any]], Any], ahead: int, workers: int = 0
    ) -> None:
        self._order, self._data, self._collate, self._ahead, self._workers = order, data, collate, ahead, workers
        self._pool: Executor = ThreadPoolExecutor(max(1, ahead), thread_name_prefix="updraft-elastic-prefetch")
        if workers:
            forks = multiprocessing.get_context("fork")
            self._pool = ProcessPoolExecutor(workers, forks, _begin_worker, (data, collate, os.getpid()))
            self._pool.submit(int).result()  # forks all of them
        self._fetched: dict[tuple[DataCursor, int], Future[Any]] = {}
        self._rank, self._learners = 0, 1

    def first(self) -> DataCursor:
        return DataCursor()

    def finished(self, cursor: DataCursor) -> bool:
        return self._order.finished(cursor)

    def parts(self, cursor: DataCursor) -> list[int]:
        return list(self._order.used(cursor, self._rank, self._learners))

    def regroup(self, rank: int, learners: int) -> None:
        """Forget what was fetched: its samples are drawn again, by whoever has them now."""
        for each in self._fetched.values():
            each.cancel()
        self._fetched.clear()
        self._rank, self._learners = rank, learners

    def get(self, cursor: DataCursor, part: int) -> tuple[Any, float]:
        """Return a batch, and its part of the samples of the step.

        Raises:
            BrokenProcessPool: a worker process died.
            Exception: what the data set raised.
        """
        mine = self._order.parts(cursor, self._rank, self._learners)[part]
        weight = len(mine) / self._order.drawn(cursor, self._learners)
        if not (self._ahead or self._workers):
            return self._fetch(mine), weight
        following = cursor
        for _ in range(self._ahead + 1):
            for each, indices in self._order.parts(following, self._rank, self._learners).items():
                if indices and (following, each) not in self._fetched and (following, each) >= (cursor, part):
                    self._fetched[following, each] = self._submit(following, each, indices)
            following = self._order.after(following, self._learners)
        return self._fetched.pop((cursor, part)).result(), weight

    def facts(self) -> list[float]:
        return []

    def divisor(self, facts: list[float]) -> float:
        return 1.0

    def after(self, cursor: DataCursor, facts: list[float]) -> DataCursor:
        return self._order.after(cursor, self._learners)

    def epoch(self, cursor: DataCursor) -> int:
        return cursor.epoch

    def to_json(self, cursor: DataCursor) -> Any:
        return [cursor.epoch, cursor.position]

    def from_json(self, value: Any) -> DataCursor:
        return DataCursor(*map(int, value))

    def as_json(self) -> dict[str, Any]:
        return self._order.as_json()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _submit(self, cursor: DataCursor, part: int, indices: Sequence[int]) -> Future[Any]:
        if not self._workers:
            return self._pool.submit(self._fetch, indices)
        return self._pool.submit(_fetch_in_worker, indices, f"{self._order.seed}/{cursor}/{part}")

    def _fetch(self, indices: Sequence[int]) -> Any:
        return self._collate([self._data[index] for index in indices])


def seed_all(text: str) -> None:
    """Seed the random numbers of `random`, and of NumPy and PyTorch if they are imported, from any text."""
    chance = random.Random(text)
    random.seed(chance.getrandbits(64))
    for name, bits in (("numpy", 32), ("torch", 63)):
        seed = chance.getrandbits(bits)  # whether or not it is used, so that the other's does not depend on it
        if (module := sys.modules.get(name)) is not None:
            module.random.seed(seed) if name == "numpy" else module.manual_seed(seed)


def _begin_worker(data: Any, collate: Callable[[list[Any]], Any], parent: int) -> None:
    global _fetched_by_worker
    _fetched_by_worker = data, collate
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)


def _fetch_in_worker(indices: Sequence[int], seed: str) -> Any:
    data, collate = _fetched_by_worker
    seed_all(seed)
    return collate([data[index] for index in indices])
