"""Put blocks together: which files a job streams, and the bytes of one of them. Called by the sidecar's endpoint."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from updraft_learner.prepare.buckets import Listed
from updraft_learner.streams.blocks import BLOCK_BYTES, BlockCache, NoRoom, block_name
from updraft_learner.streams.remote import RangeReader, RemoteSource

THREADS = 4  # blocks that are fetched at the same time
AHEAD = 3  # blocks that are fetched before the program has read up to them
TRIES = 3  # to open a block that another sidecar may remove


class Out(Protocol):
    """Where the bytes of a file go."""

    def send_file(self, file: BinaryIO, offset: int, size: int) -> None:
        """Send a part of an open file."""

    def send(self, data: bytes) -> None: ...


@dataclass(frozen=True)
class StreamFile:
    """A file that the program may read."""

    remote: RemoteSource
    item: Listed

    @property
    def size(self) -> int:
        return self.item.size

    @property
    def version(self) -> str:
        """Return the object's version as an HTTP entity tag."""
        return f'"{self.item.version}"'


class DataStreams:
    """The files of a job's streamed data sets.

    Args:
        files: By path below DATA_DIR.
        cache: Where blocks are kept.
        reader: Reads the objects.
    """

    def __init__(
        self, files: Mapping[str, StreamFile], cache: BlockCache, reader: RangeReader, *, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self._files, self._paths = files, sorted(files)
        self._cache, self._reader, self._block_bytes = cache, reader, block_bytes
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="stream")
        self._fetching: dict[str, Future[None]] = {}
        self._lock = threading.RLock()  # a fetch that ends at once is forgotten by the thread that began it
        self.sent_bytes = self.fetched_bytes = 0

    def find(self, path: str) -> StreamFile | None:
        return self._files.get(path)

    def page(self, after: str, limit: int) -> list[tuple[str, int]]:
        """Return paths and sizes, in order of the paths, from the one that follows `after`."""
        first = bisect_right(self._paths, after) if after else 0
        return [(path, self._files[path].size) for path in self._paths[first : first + limit]]

    def send(self, file: StreamFile, start: int, stop: int, out: Out) -> None:
        """Send the bytes from `start` up to `stop`. Blocks up to `stop` are fetched ahead.

        Raises StreamError, and what `out` raises.
        """
        size = self._block_bytes
        last = max(start, stop - 1) // size
        while start < stop:
            number = start // size
            for coming in range(number + 1, min(number + AHEAD, last) + 1):
                self._begin(file, coming)
            offset = start - number * size
            wanted = min(stop, (number + 1) * size) - start
            block = self._block(file, number)
            if block is None:  # no room to keep it
                self._reader.copy(file.remote, file.item, start, wanted, self._counted(out.send))
            else:
                with block:
                    out.send_file(block, offset, wanted)
                if offset + wanted == self._size(file, number):
                    self._cache.read_to_end(self._name(file, number))
            start += wanted
            with self._lock:
                self.sent_bytes += wanted

    def stop(self) -> None:
        """End all fetching; the reader's event must be set before."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _block(self, file: StreamFile, number: int) -> BinaryIO | None:
        """Return a block, fetched if it is missing; None if it cannot be kept."""
        name, size = self._name(file, number), self._size(file, number)
        for _ in range(TRIES):
            found = self._cache.open(name, size)
            if found is not None:
                return found
            try:
                self._fetch(file, number, name).result()
            except NoRoom:
                return None
        return None

    def _begin(self, file: StreamFile, number: int) -> None:
        name = self._name(file, number)
        found = self._cache.open(name, self._size(file, number))
        if found is not None:
            found.close()
        else:
            self._fetch(file, number, name)

    def _fetch(self, file: StreamFile, number: int, name: str) -> Future[None]:
        """Return the fetch of a block, which is under way or begins."""
        with self._lock:
            running = self._fetching.get(name)
            if running is None:
                running = self._fetching[name] = self._pool.submit(self._add, file, number, name)
                running.add_done_callback(lambda _: self._forget(name))
            return running

    def _forget(self, name: str) -> None:
        with self._lock:
            self._fetching.pop(name, None)

    def _add(self, file: StreamFile, number: int, name: str) -> None:
        offset, size = number * self._block_bytes, self._size(file, number)
        if (found := self._cache.open(name, size)) is not None:  # it came between the caller's look and this fetch
            found.close()
            return
        self._cache.add(
            name, size, lambda write: self._reader.copy(file.remote, file.item, offset, size, self._counted(write))
        )

    def _counted(self, write: Callable[[bytes], object]) -> Callable[[bytes], object]:
        def counting(data: bytes) -> None:
            write(data)
            with self._lock:
                self.fetched_bytes += len(data)

        return counting

    def _size(self, file: StreamFile, number: int) -> int:
        return min(self._block_bytes, file.size - number * self._block_bytes)

    def _name(self, file: StreamFile, number: int) -> str:
        store, item = file.remote.store, file.item
        return block_name(store.endpoint, store.bucket, item.key, item.version, number, self._block_bytes)
