"""Limits what a request may send, while it is being sent; and reads a body in the thread that stores it."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from typing import Any

import anyio.from_thread
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

JSON_LIMIT_BYTES = 32 * 1024 * 1024  # a tree of 100,000 files is half of it


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


class BodyReader(io.RawIOBase):
    """The body of a request as a file, for a worker thread; the event loop receives while the thread waits."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
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
            return await anext(self._chunks)
        except StopAsyncIteration:
            self._ended = True
            return b""
