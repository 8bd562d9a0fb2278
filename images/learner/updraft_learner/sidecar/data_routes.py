"""Serve streamed data over the sidecar's endpoint.

    GET  /updraft/data?after=PATH&limit=N   the files, in pages: {"files": [{"path", "size"}], "next": PATH or null}
    GET  /updraft/data/PATH                 a file; `Range` with one range is honoured
    HEAD /updraft/data/PATH                 its size

Paths are those below DATA_DIR. Called by `endpoint`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from updraft_learner.sidecar.refusals import EndpointError
from updraft_learner.streams.reader import DataStreams, StreamFile
from updraft_learner.streams.remote import StreamError

PAGE_FILES = 10_000
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


@dataclass(frozen=True)
class Part:
    """What is sent of a file.

    Args:
        start: The first byte.
        stop: The byte after the last one.
        partial: Whether the request asked for a range.
    """

    file: StreamFile
    start: int
    stop: int
    partial: bool

    def headers(self) -> dict[str, str]:
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(self.stop - self.start),
            "Accept-Ranges": "bytes",
            "ETag": self.file.version,
        }
        if self.partial:
            headers["Content-Range"] = f"bytes {self.start}-{self.stop - 1}/{self.file.size}"
        return headers


class DataRoutes:
    """The routes of streamed data. `streams` is None for a job without such data."""

    def __init__(self, streams: DataStreams | None) -> None:
        self._streams = streams

    def page(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return one page of the list of files. Raises EndpointError for a limit that is no number."""
        text = query.get("limit", str(PAGE_FILES))
        if not text.isdecimal() or not 0 < len(text) < 9 or int(text) == 0:
            raise EndpointError.invalid(f"limit: {text[:100]!r} is not a number from 1 on")
        limit = min(int(text), PAGE_FILES)
        found = [] if self._streams is None else self._streams.page(query.get("after", ""), limit)
        files = [{"path": path, "size": size} for path, size in found]
        return {"files": files, "next": found[-1][0] if len(found) == limit else None}

    def part(self, path: str, wanted: str | None) -> Part:
        """Return what a request for a file gets; `wanted` is its header `Range`. Raises EndpointError."""
        file = None if self._streams is None else self._streams.find(path)
        if file is None:
            raise EndpointError.missing(
                f"{path[:300]!r} is no streamed file of this job; updraft_learner.data.files() lists those that exist"
            )
        match = _RANGE.fullmatch(wanted.strip()) if wanted else None
        if match is None or not (match[1] or match[2]):  # no range, or several, which a server may ignore
            return Part(file, 0, file.size, partial=False)
        if match[1]:
            start, stop = int(match[1]), min(int(match[2]) + 1 if match[2] else file.size, file.size)
        else:
            start, stop = max(0, file.size - int(match[2])), file.size
        if start >= stop:
            raise EndpointError("INVALID_RANGE", f"{path[:300]!r} has {file.size} bytes", 416)
        return Part(file, start, stop, partial=True)

    def send(self, part: Part, out: Sender) -> None:
        """Send a file's bytes. Raises EndpointError; OSError if the client is gone."""
        assert self._streams is not None
        try:
            self._streams.send(part.file, part.start, part.stop, out)
        except StreamError as exc:
            raise _refusal(exc) from exc


class Sender:
    """Sends headers before the first bytes, so that an error that comes before them gets a status of its own."""

    def __init__(
        self, begin: Callable[[], None], write: Callable[[bytes], object], file: Callable[[BinaryIO, int, int], int]
    ) -> None:
        self._begin, self._write, self._file = begin, write, file
        self._begun = False

    def begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._begin()

    def send(self, data: bytes) -> None:
        self.begin()
        self._write(data)

    def send_file(self, file: BinaryIO, offset: int, size: int) -> None:
        self.begin()
        if self._file(file, offset, size) < size:
            raise ConnectionError("a block on the disk is shorter than it was")


def _refusal(error: StreamError) -> EndpointError:
    if error.kind == "changed":
        return EndpointError("RESOURCE_CONFLICT", str(error), 409)
    if error.kind == "denied":
        return EndpointError.permission(str(error))
    return EndpointError("TEMPORARILY_UNAVAILABLE", str(error), 503)
