"""Read ranges of the objects of a listing, and refuse an object that is no longer the one that was listed.

An object store that does not answer is waited for. Called by `reader` from several threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from updraft_learner.backoff import Backoff
from updraft_learner.prepare.buckets import Listed, is_version
from updraft_learner.store import S3Store, StorageError

CHUNK_BYTES = 1 << 20
WAIT_SECONDS = 600.0  # for an object store that does not answer
SAY_AFTER_SECONDS = 10.0
BACKOFF = Backoff(0.5, 15.0)


class StreamError(Exception):
    """Streamed data cannot be read. `kind` is `changed`, `denied`, `unavailable` or `stopped`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class RemoteSource:
    """The store that holds the objects of one data set.

    Args:
        store: Makes one try for each request.
        source: The data set's source, for messages.
        fixed: Whether the objects never change, because they are named by their content.
        secret: The secret that the store is read with; None: the platform's own access.
    """

    store: S3Store
    source: str
    fixed: bool = False
    secret: str | None = None


class RangeReader:
    """Copies ranges of objects.

    Args:
        warn: Gets a key and a sentence about something that a person should know.
        stop: Ends all waiting when it is set.
        wait_seconds: How long a store may not answer before StreamError is raised.
    """

    def __init__(
        self,
        warn: Callable[[str, str], None],
        stop: threading.Event,
        *,
        wait_seconds: float = WAIT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._warn, self._stop, self._wait_seconds, self._clock = warn, stop, wait_seconds, clock

    def copy(
        self, remote: RemoteSource, item: Listed, offset: int, size: int, write: Callable[[bytes], object]
    ) -> None:
        """Pass `size` bytes from `offset` on to `write`, in parts. A broken connection continues where it broke.

        Raises StreamError; OSError of `write`.
        """
        done = tries = 0
        began = self._clock()
        while done < size:
            if self._stop.is_set():
                raise StreamError("stopped", "the learner ends")
            try:
                body = self._open(remote, item, offset + done, size - done)
            except StorageError as exc:
                tries += 1
                self._wait_or_raise(remote, exc, began, tries)
                continue
            try:
                while done < size and (part := body.read(min(CHUNK_BYTES, size - done))):
                    write(part)
                    done += len(part)
                    tries, began = 0, self._clock()
            except ConnectionError as exc:  # S3Unreachable; the next request continues
                tries += 1
                error = StorageError("unreachable", f"{remote.source}: {item.key!r}: the connection broke")
                error.__cause__ = exc
                self._wait_or_raise(remote, error, began, tries)
            finally:
                body.close()

    def _open(self, remote: RemoteSource, item: Listed, offset: int, size: int) -> Any:
        try:
            opened = remote.store.open_range(item.key, offset, size)
        except StorageError as exc:
            if exc.kind == "missing" or "InvalidRange" in str(exc):
                what = "was deleted" if exc.kind == "missing" else "became shorter"
                raise self._changed(remote, item, what) from exc
            raise
        same_size = opened.total is None or opened.total == item.size
        if remote.fixed or (same_size and is_version(item.version, opened.etag, opened.modified)):
            return opened.body
        opened.body.close()
        raise self._changed(remote, item, "was changed")

    def _changed(self, remote: RemoteSource, item: Listed, what: str) -> StreamError:
        text = f"{remote.source}: object {item.key!r} {what} after the job was staged; submit the job again"
        self._warn(f"stream {remote.source}", text)
        return StreamError("changed", text)

    def _wait_or_raise(self, remote: RemoteSource, error: StorageError, began: float, tries: int) -> None:
        if error.kind != "unreachable":
            used = f"secret {remote.secret!r} was used" if remote.secret else "the platform's own access was used"
            text = f"{remote.source}: {error}; {used}"
            self._warn(f"stream {remote.source}", text)
            raise StreamError("denied", text) from error
        waited = self._clock() - began
        if waited >= self._wait_seconds:
            raise StreamError("unavailable", f"{remote.source}: {error}; waited for {waited:.0f} s") from error
        if waited >= SAY_AFTER_SECONDS:
            self._warn(f"stream {remote.source}", f"{remote.source}: reading waits: {error}")
        self._stop.wait(BACKOFF.jittered_seconds(tries))
