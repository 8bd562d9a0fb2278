"""Read the body of an upload in the thread that stores it."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import anyio.from_thread
from anyio import CapacityLimiter
from anyio.lowlevel import RunVar
from starlette.exceptions import HTTPException

UPLOADS = 32  # at the same time, each in a thread
USER_UPLOADS = 4  # of one user, as many as our client sends at once; more uploads of that user wait without a thread
USER_TREES = 1  # likewise: the trees of one user are stored one after the other
IDLE_SECONDS = 30.0
MINIMUM_BYTES_PER_SECOND = 8 * 1024  # on average, after the first IDLE_SECONDS
LONGEST_SECONDS = 2 * 3600.0

_uploads: RunVar[CapacityLimiter] = RunVar("updraft_uploads")
_of_users: RunVar[dict[tuple[str, str], CapacityLimiter]] = RunVar("updraft_uploads_of_users")


def user_slot(user: str) -> AbstractAsyncContextManager[None]:
    """Hold one of the user's upload slots, so that one user's uploads, slow or idle, leave threads to other users."""
    return _slot("upload", user, USER_UPLOADS)


def tree_slot(user: str) -> AbstractAsyncContextManager[None]:
    """Return the same for a tree, whose document is held in memory."""
    return _slot("tree", user, USER_TREES)


@asynccontextmanager
async def _slot(kind: str, user: str, places: int) -> AsyncIterator[None]:
    try:
        slots = _of_users.get()
    except LookupError:
        _of_users.set(slots := {})
    slot = slots.setdefault((kind, user), CapacityLimiter(places))
    try:
        async with slot:
            yield
    finally:
        if not slot.borrowed_tokens and not slot.statistics().tasks_waiting:
            slots.pop((kind, user), None)


def upload_limiter() -> CapacityLimiter:
    """Return the limiter of the threads that uploads use. They are apart from the threads of Airflow's other routes,
    because a slow client keeps one for as long as it sends. A request that finds none free waits without a thread."""
    try:
        return _uploads.get()
    except LookupError:
        _uploads.set(CapacityLimiter(UPLOADS))
        return _uploads.get()


class BodyReader(io.RawIOBase):
    """The body of a request as a file for a worker thread; the event loop receives while the thread waits.

    Raises HTTPException 408 if nothing arrives for `idle_seconds`, if the average since the first read is below
    `MINIMUM_BYTES_PER_SECOND`, or too low for the `announced_bytes` to arrive within `LONGEST_SECONDS`, and after
    `LONGEST_SECONDS`. `clock` returns seconds.
    """

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        announced_bytes: int | None = None,
        idle_seconds: float = IDLE_SECONDS,
        clock: Callable[[], float] = anyio.current_time,
    ) -> None:
        self._chunks = chunks
        self._least_bytes_per_second = max(MINIMUM_BYTES_PER_SECOND, (announced_bytes or 0) / LONGEST_SECONDS)
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._started: float | None = None
        self._received_bytes = 0
        self._rest = b""
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest and not self._ended:
            self._rest = anyio.from_thread.run(self._next)
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    async def _next(self) -> bytes:
        if self._started is None:
            self._started = self._clock()
        try:
            with anyio.fail_after(self._idle_seconds):
                chunk = await anext(self._chunks)
            self._received_bytes += len(chunk)
            self._check_pace(self._clock() - self._started)
            return chunk
        except TimeoutError:
            raise HTTPException(408, f"no byte of the body came for {self._idle_seconds:g} s; send it again") from None
        except StopAsyncIteration:
            self._ended = True
            return b""

    def _check_pace(self, seconds: float) -> None:
        if seconds > LONGEST_SECONDS:
            problem = f"the upload took longer than {LONGEST_SECONDS / 3600:g} h"
            raise HTTPException(408, f"{problem}; bring data of this size into the object store and name it as s3://")
        least_bytes = self._least_bytes_per_second
        if seconds > self._idle_seconds and self._received_bytes < seconds * least_bytes:
            problem = f"the upload is too slow: {self._received_bytes} bytes in {seconds:.0f} s"
            raise HTTPException(408, f"{problem}; at least {least_bytes:.0f} bytes a second are expected")
