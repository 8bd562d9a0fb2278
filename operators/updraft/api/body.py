"""Limits what a request may send, while it is being sent; and reads a body in the thread that stores it."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.from_thread
from anyio import CapacityLimiter
from anyio.lowlevel import RunVar
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

JSON_LIMIT_BYTES = 32 * 1024 * 1024  # a tree of 100,000 files is half of it
UPLOADS = 8  # blobs that are stored at the same time
IDLE_SECONDS = 30.0


class BodyLimit:
    """Answers 413 to a body over the limit, whatever its header says; blobs have a limit of their own."""

    def __init__(self, app: ASGIApp, limit_bytes: int = JSON_LIMIT_BYTES) -> None:
        self.app = app
        self.limit_bytes = limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or "/api/v1/blobs/" in scope["path"]:
            await self.app(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.limit_bytes:
                raise HTTPException(413, f"the body is larger than the limit of {self.limit_bytes} bytes")
            return message

        await self.app(scope, counted, send)


_uploads: RunVar[CapacityLimiter] = RunVar("updraft_uploads")


def upload_limiter() -> CapacityLimiter:
    """Threads for what is being uploaded. Their own, because a slow client keeps one for as long as it sends, and
    all other routes of Airflow's api-server share the usual ones. Who finds none free waits without a thread."""
    try:
        return _uploads.get()
    except LookupError:
        _uploads.set(CapacityLimiter(UPLOADS))
        return _uploads.get()


class BodyReader(io.RawIOBase):
    """The body of a request as a file, for a worker thread; the event loop receives while the thread waits.

    Raises HTTPException 408 when nothing comes for `idle_seconds`.
    """

    def __init__(self, chunks: AsyncIterator[bytes], idle_seconds: float = IDLE_SECONDS) -> None:
        self._chunks = chunks
        self._idle_seconds = idle_seconds
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
        try:
            with anyio.fail_after(self._idle_seconds):
                return await anext(self._chunks)
        except TimeoutError:
            raise HTTPException(408, f"no byte of the body came for {self._idle_seconds:g} s; send it again") from None
        except StopAsyncIteration:
            self._ended = True
            return b""
