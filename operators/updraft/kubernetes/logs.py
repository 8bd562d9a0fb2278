"""Follow a container's log and pass each line on once, in order, with its number and time.

The cluster's log API takes a start time in whole seconds. After an interruption the follower therefore asks from the
second of the last recorded line, and drops the lines that are already recorded. Used by `updraft.triggers`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from updraft.kubernetes.throttling import asked_pause_seconds
from updraft.kubernetes.token_bucket import TokenBucket
from updraft_learner.backoff import Backoff

log = logging.getLogger(__name__)

FLUSH_SECONDS = 1.0
CHUNK_LINES = 2_000
CHUNK_CHARACTERS = 1 << 20
PENDING_CHARACTERS = 16 << 20  # read but not stored; beyond this, reading pauses and the log waits in the cluster
MAX_LINE_CHARACTERS = 16_384
MAX_LINE_BYTES = 4 * MAX_LINE_CHARACTERS + 64  # the longest part of an unfinished line, with its time, that is kept
LINES_AT_ONCE = 200  # then other tasks of the event loop get a turn
READ_TIMEOUT_SECONDS = 300
BACKOFF = Backoff(0.3, 5.0)
END_PAUSE_SECONDS = 10.0


class LogRefusedError(ConnectionError):
    """The cluster answered with an error instead of a log; its headers say when to ask again."""

    def __init__(self, text: str, headers: Mapping[str, str]) -> None:
        super().__init__(text)
        self.headers = headers


@dataclass(frozen=True)
class Line:
    """One line of a learner's log."""

    n: int  # from 1, without gaps
    t: str  # RFC 3339 with nanoseconds, as the node wrote it
    line: str


@dataclass
class Cursor:
    """The position up to which the log is recorded: the last line's number and time, and how many lines share that
    time."""

    n: int = 0
    t: str = ""
    same: int = 0

    def accept(self, time: str, skip: int) -> bool:
        """Return whether a line read again from the cluster is new. `skip` counts lines seen with the cursor's own
        time."""
        return time > self.t or (time == self.t and skip > self.same)

    def advance(self, time: str) -> int:
        self.same = self.same + 1 if time == self.t else 1
        self.t = time
        self.n += 1
        return self.n


def split_line(raw: str) -> tuple[str, str]:
    """Split `2026-01-02T03:04:05.000000006Z text` into time and text; the time of a line without one is empty."""
    time, _, text = raw.partition(" ")
    if len(time) >= 20 and time[4] == "-" and time[10] == "T":
        return pad_nanoseconds(time), text[:MAX_LINE_CHARACTERS]
    return "", raw[:MAX_LINE_CHARACTERS]


def pad_nanoseconds(time: str) -> str:
    """Pad the time to nine digits, so that times compare as text; Kubernetes trims trailing zeros."""
    body, zone = (time[:-1], "Z") if time.endswith("Z") else (time, "")
    whole, _, fraction = body.partition(".")
    return f"{whole}.{fraction:0<9.9}{zone}"


async def follow(
    api: Any, namespace: str, pod: str, container: str, cursor: Cursor, flow: TokenBucket | None = None
) -> AsyncIterator[Line]:
    """Yield the lines after the cursor until the container's log ends, no faster than the flow. Raises what the client
    raises when the connection is cut."""
    flow = flow or TokenBucket()
    query: list[tuple[str, str]] = [("container", container), ("follow", "true"), ("timestamps", "true")]
    if cursor.t:
        query.append(("sinceTime", cursor.t.partition(".")[0] + "Z"))
    response = await api.call_api(
        f"/api/v1/namespaces/{namespace}/pods/{pod}/log",
        "GET",
        query_params=query,
        header_params={"Accept": "application/json, */*"},
        auth_settings=["BearerToken"],
        _preload_content=False,
        _return_http_data_only=True,
        _request_timeout=READ_TIMEOUT_SECONDS,
    )
    async with response:
        if response.status >= 400:
            raise LogRefusedError(f"log of {pod}: the cluster answered {response.status}", response.headers)
        reader, buffer = LogReader(cursor), b""
        async for part in response.content.iter_any():
            buffer += part
            *whole, buffer = buffer.split(b"\n")
            buffer = buffer[:MAX_LINE_BYTES]
            await flow.pass_on(len(part), 0)
            for at in range(0, len(whole), LINES_AT_ONCE):
                some = whole[at : at + LINES_AT_ONCE]
                for raw in some:
                    if (line := reader.take(raw)) is not None:
                        yield line
                await flow.pass_on(0, len(some))
        if buffer and (line := reader.take(buffer)) is not None:
            yield line


class LogReader:
    """Return the new lines of an answer that begins in the second of the cursor's last line."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor, self._start, self._seen_same = cursor, cursor.t, 0

    def take(self, raw: bytes) -> Line | None:
        """Return the line with its number, or None if it is recorded already."""
        time, text = split_line(raw.decode("utf-8", "replace"))
        time = time or self._cursor.t
        if self._start:
            if time == self._start:
                self._seen_same += 1
            if time < self._start or (time == self._start and not self._cursor.accept(time, self._seen_same)):
                return None
            if time > self._start:
                self._start = ""
        return Line(self._cursor.advance(time), time, text)


def _chunk(pending: Iterable[Line]) -> list[Line]:
    """Return the first lines, up to a number and a size; at least one."""
    chunk: list[Line] = []
    characters = 0
    for line in pending:
        characters += len(line.line)
        if chunk and (characters > CHUNK_CHARACTERS or len(chunk) >= CHUNK_LINES):
            break
        chunk.append(line)
    return chunk


async def record(
    lines: Callable[[Cursor], AsyncIterator[Line]],
    cursor: Cursor,
    write: Callable[[list[Line]], Awaitable[None]],
    *,
    finished: asyncio.Event,
    flush_seconds: float = FLUSH_SECONDS,
    pending_characters: int = PENDING_CHARACTERS,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Collect lines into chunks and write each; follow again after a cut, until the container has ended.

    `finished` is set by the caller when the container has terminated: then the end of the stream is the end of the log.
    Lines are written every `flush_seconds`, and at once where more than `pending_characters` wait. A write that has
    begun is never cancelled: it may go on in a thread, and the next one may be for the same object.
    """
    pending: deque[Line] = deque()
    characters = 0
    writing = asyncio.Lock()
    leaving = asyncio.Event()

    async def flush() -> None:
        nonlocal characters
        async with writing:
            while pending:
                chunk = _chunk(pending)
                try:
                    await write(chunk)
                except Exception as exc:  # noqa: BLE001 - whatever the error: the lines are kept and written later
                    log.warning("A log chunk of %d lines was not stored (%s); kept", len(chunk), type(exc).__name__)
                    return
                for line in chunk:
                    pending.popleft()
                    characters -= len(line.line)

    async def flush_regularly() -> None:
        while not leaving.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(leaving.wait(), flush_seconds)
            await flush()

    flushes: set[asyncio.Task[None]] = set()  # references, so that no running task is garbage-collected
    flusher = asyncio.create_task(flush_regularly())
    try:
        failures = 0
        while True:
            ended, asked_seconds = finished.is_set(), 0.0
            try:
                async for line in lines(cursor):
                    pending.append(line)
                    characters += len(line.line)
                    failures = 0
                    while characters > pending_characters:
                        full = asyncio.create_task(flush())
                        flushes.add(full)
                        full.add_done_callback(flushes.discard)
                        await asyncio.shield(full)
                        if characters > pending_characters:  # the store does not answer
                            await sleep(flush_seconds)
                if ended:
                    break
            except Exception as exc:  # noqa: BLE001 - an interrupted stream is followed again from the cursor
                failures += 1
                asked_seconds = asked_pause_seconds(exc)
                if ended and failures > 5:
                    log.warning("The end of a log could not be read: %s: %s", type(exc).__name__, str(exc)[:200])
                    break
            # Once the program has ended, the job's end waits for the rest of its log, so limit the wait.
            asked_seconds = min(asked_seconds, END_PAUSE_SECONDS) if finished.is_set() else asked_seconds
            pause_seconds = max(asked_seconds, BACKOFF.seconds(failures + 1))
            if ended or asked_seconds:
                await sleep(pause_seconds)
            else:  # a stream often ends just before the watch reports why; then only one last look is left
                with suppress(TimeoutError):
                    await asyncio.wait_for(finished.wait(), pause_seconds)
    finally:
        leaving.set()
        await asyncio.gather(flusher, *flushes, return_exceptions=True)
        for _ in range(5):
            await flush()
            if not pending:
                break
            await sleep(1)
