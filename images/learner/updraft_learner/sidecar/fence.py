"""Fence off older attempts: an attempt that is no longer the newest of its role changes nothing outside its pod.

The platform writes `Keys.fence` before the pods of an attempt exist. The sidecar makes every change in the object store
through `FencedStore`, and calls `check_before_sending` before every request to MLflow; both read the fence first. An
older attempt never sends anything again. While the fence cannot be read, nothing is sent and everything is kept: behind
a network failure, a newer attempt may be running.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from updraft_learner.contract import SIGNAL_LIMIT_BYTES, Keys, PodConfig
from updraft_learner.mlflow_rest import ServerUnavailable
from updraft_learner.record.fenced import Fenced
from updraft_learner.store import READ_LIMIT_BYTES, ObjectStore, StorageError, StoredObject

FRESH_SECONDS = 1.0  # how long a reading counts


class Fence:
    """The fence of one attempt; thread-safe.

    Args:
        store: A store of its own with short timeouts, because callers wait for the answer.
        on_fenced: Called once, by the thread that finds the newer attempt.
    """

    def __init__(
        self,
        config: PodConfig,
        store: ObjectStore,
        on_fenced: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._role, self._attempt, self._store = config.role, config.attempt, store
        self._key = Keys(config.prefix).fence(config.job_id)
        self._on_fenced, self._clock = on_fenced, clock
        self._read_at: float | None = None
        self._error: StorageError | None = None
        self._error_at = 0.0
        self._lock = threading.Lock()
        self.fenced = False

    def check(self) -> None:
        """Return if this attempt may have effect now.

        Raises:
            Fenced: it may not, and never will again.
            StorageError: that cannot be found out now.
        """
        with self._lock:
            now = self._clock()
            if not self.fenced and self._error is not None and now - self._error_at < FRESH_SECONDS:
                raise StorageError(self._error.kind, str(self._error))
            newest = 0
            if not self.fenced and (self._read_at is None or now - self._read_at >= FRESH_SECONDS):
                newest = self._read()
                self._read_at = now  # the time of the request: the answer is at least that recent
                self.fenced = newest > self._attempt
        if newest > self._attempt:
            self._on_fenced(newest)
        if self.fenced:
            raise Fenced

    def check_before_sending(self) -> None:
        """Raise Fenced before a request to MLflow, or ServerUnavailable when the fence cannot be read."""
        try:
            self.check()
        except StorageError as exc:
            text = "the object store does not say whether a newer attempt of the job runs"
            raise ServerUnavailable(text, ambiguous=False) from exc

    def _read(self) -> int:
        """Return the newest attempt of this role; 0 where no fence was ever written."""
        self._error = None
        try:
            text = self._store.get_bytes(self._key, SIGNAL_LIMIT_BYTES)
            return 0 if text is None else int(json.loads(text).get(self._role, 0))
        except StorageError as exc:
            self._error = exc
        except (ValueError, TypeError, AttributeError):
            self._error = StorageError("refused", f"{self._key} is unreadable: it holds no attempt number per role")
        self._error_at = self._clock()
        raise self._error


class FencedStore:
    """An object store that an older attempt cannot change."""

    def __init__(self, store: ObjectStore, fence: Fence) -> None:
        self._store, self._fence = store, fence

    def put_bytes(self, key: str, data: bytes) -> None:
        self._fence.check()
        self._store.put_bytes(key, data)

    def put_file(self, key: str, source: Path | Callable[[], BinaryIO]) -> None:
        def opened() -> BinaryIO:
            file = source.open("rb", buffering=0) if isinstance(source, Path) else source()
            return cast("BinaryIO", _CheckedFile(file, self._fence))

        self._fence.check()
        self._store.put_file(key, opened)

    def delete(self, key: str) -> None:
        self._fence.check()
        self._store.delete(key)

    def abort_uploads(self, prefix: str, stale: Callable[[str], bool]) -> int:
        self._fence.check()
        return self._store.abort_uploads(prefix, stale)

    def get_bytes(self, key: str, limit_bytes: int = READ_LIMIT_BYTES) -> bytes | None:
        return self._store.get_bytes(key, limit_bytes)

    def open(self, key: str) -> BinaryIO:
        return self._store.open(key)

    def size(self, key: str) -> int | None:
        return self._store.size(key)

    def list(self, prefix: str, after: str = "") -> Iterator[StoredObject]:
        return self._store.list(prefix, after)


class _CheckedFile:
    """A file that checks the fence at each read: the upload of a large file takes longer than a reading counts."""

    def __init__(self, file: BinaryIO, fence: Fence) -> None:
        self._file, self._fence = file, fence

    def read(self, size: int = -1) -> bytes:
        self._fence.check()
        return self._file.read(size)

    def __enter__(self) -> _CheckedFile:
        self._file.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._file.__exit__(*exc)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
