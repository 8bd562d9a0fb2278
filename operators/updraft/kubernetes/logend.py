"""Read the last lines of an ended container's log, however far the reader of the whole log is behind.

Whole logs are read at a limited rate (`token_bucket`). If a program prints faster and fails, its traceback would be
read late, or never. Used by `updraft.triggers.followers` and, in threads, by `updraft.controller.final_logs`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from updraft.kubernetes.logs import Cursor, Line, LogReader, LogRefusedError, split_line

if TYPE_CHECKING:
    from aiohttp import ClientResponse

END_LINES = 200
# A line of the log's file has at most 16 KiB. The cluster counts this limit from the first of the requested lines, so
# it must exceed their total size: a lower limit would cut off the last lines.
END_BYTES = 4 << 20
END_SECONDS = 10.0
COUNT_BYTES = 256 << 20  # if more lies between, the missing lines are reported without their number
COUNT_SECONDS = 5.0
TIME_BYTES = 64  # the part of a line that contains its time
# A runtime reads a program's two streams separately, so a traceback may precede lines that were printed before it: as
# many as a pipe (64 KiB) and the runtime's buffer hold.
OVERTAKEN_LINES = 16_384
OVERTAKEN_BYTES = 16 << 20
TRACEBACK = "Traceback (most recent call last):"
TRACEBACK_LINES = 100
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: .*)?")


async def read_end(api: Any, namespace: str, pod: str, container: str) -> list[bytes]:
    """Return the last `END_LINES` lines with their times. Raises what the client raises."""
    query = [("tailLines", str(END_LINES)), ("limitBytes", str(END_BYTES))]
    response = await _open(api, namespace, pod, container, query, END_SECONDS)
    async with response:
        return raw_lines(b"".join([part async for part in response.content.iter_any()]))


async def read_overtaken(api: Any, namespace: str, pod: str, container: str) -> list[str]:
    """Return the last traceback of the log's last `OVERTAKEN_LINES`, without the lines printed in between; empty if
    there is none. Raises what the client raises."""
    query = [("tailLines", str(OVERTAKEN_LINES)), ("limitBytes", str(OVERTAKEN_BYTES))]
    response = await _open(api, namespace, pod, container, query, END_SECONDS)
    async with response:
        data = b"".join([part async for part in response.content.iter_any()])
    return last_traceback(texts(line for line in data.split(b"\n") if line))


def last_traceback(lines: Sequence[str]) -> list[str]:
    """Return the last traceback among the lines: its head, the indented lines after it, and the exception."""
    heads = [number for number, line in enumerate(lines) if line.endswith(TRACEBACK)]
    if not heads:
        return []
    found = [lines[heads[-1]]]
    for line in lines[heads[-1] + 1 :]:
        ended = _EXCEPTION.fullmatch(line) is not None
        if ended or line.startswith("  "):
            found.append(line)
        if ended or len(found) >= TRACEBACK_LINES:
            break
    return found


async def count_between(
    api: Any, namespace: str, pod: str, container: str, cursor: Cursor, end: Sequence[bytes]
) -> int | None:
    """Return how many lines of the log lie after the cursor and before `end`; None if that takes too long to find
    out."""
    query = [("sinceTime", cursor.t.partition(".")[0] + "Z")] if cursor.t else []
    counter = Counter(cursor, end)
    try:
        async with asyncio.timeout(COUNT_SECONDS):
            response = await _open(api, namespace, pod, container, query, COUNT_SECONDS)
            async with response:
                async for part in response.content.iter_any():
                    if counter.read(part):
                        break
                    await asyncio.sleep(0)
    except Exception:  # noqa: BLE001 - the lines are missing in any case; only their number is unknown
        return None
    return counter.counted


async def _open(
    api: Any, namespace: str, pod: str, container: str, query: list[tuple[str, str]], timeout_seconds: float
) -> ClientResponse:
    response: ClientResponse = await api.call_api(
        f"/api/v1/namespaces/{namespace}/pods/{pod}/log",
        "GET",
        query_params=[("container", container), ("timestamps", "true"), *query],
        header_params={"Accept": "application/json, */*"},
        auth_settings=["BearerToken"],
        _preload_content=False,
        _return_http_data_only=True,
        _request_timeout=timeout_seconds,
    )
    if response.status >= 400:
        raise LogRefusedError(f"log of {pod}: the cluster answered {response.status}", response.headers)
    return response


class Counter:
    """Count the lines of a log between a cursor and the beginning of its end, part by part."""

    def __init__(self, cursor: Cursor, end: Sequence[bytes]) -> None:
        self._cursor = replace(cursor)
        self._reader = LogReader(self._cursor)
        self._recorded, self._found = (cursor.n, cursor.t), 0
        self._until = begins(end)
        self._rest, self._left_bytes = b"", COUNT_BYTES
        self.counted: int | None = None

    def read(self, part: bytes) -> bool:
        """Return whether the counting is over: the end has begun, or more was read than is worth it."""
        *whole, rest = (self._rest + part).split(b"\n")
        self._rest = rest[:TIME_BYTES]
        if whole and self._cursor.t > self._recorded[1] and _time(whole[-1]) < self._until:
            self._found += len(whole)  # all of these lines lie between
        else:
            for raw in whole:
                if _time(raw) >= self._until:
                    self.counted = self._found + self._cursor.n - self._recorded[0]
                    return True
                self._reader.take(raw[:TIME_BYTES])
        self._left_bytes -= len(part)
        return self._left_bytes < 0


def _time(raw: bytes) -> str:
    return split_line(raw[:TIME_BYTES].decode("utf-8", "replace"))[0]


def raw_lines(data: bytes) -> list[bytes]:
    """Return the last `END_LINES` lines of an answer of the log API, with their times."""
    return [line for line in data.split(b"\n") if line][-END_LINES:]


def texts(end: Iterable[bytes]) -> list[str]:
    return [split_line(raw.decode("utf-8", "replace"))[1] for raw in end]


def lines_after(cursor: Cursor, end: Sequence[bytes], skipped: int | None) -> list[Line]:
    """Return what is left to record of a log's end; its first line says how many lines before it are not kept.

    `skipped`: the number of lines between the cursor and `end`, None if it is not known. Moves the cursor on. Empty if
    everything is recorded.
    """
    reader, notice = LogReader(cursor), []
    if begins(end) > cursor.t and skipped != 0:
        time = cursor.t or begins(end)
        notice = [Line(cursor.advance(time), time, notice_of(skipped))]
    return [*notice, *(line for raw in end if (line := reader.take(raw)) is not None)]


def begins(end: Sequence[bytes]) -> str:
    """Return the time of the first of these lines."""
    return _time(end[0]) if end else ""


def notice_of(skipped: int | None) -> str:
    lines = "lines" if skipped is None else "1 line" if skipped == 1 else f"{skipped:,} lines"
    return f"... {lines} not kept: the program printed faster than its log is read ..."
