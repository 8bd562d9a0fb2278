"""What an API server's audit log says: who asked for what, and when. Follows the log while it grows and is rotated.

Called by the figures that need the test cluster.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import IO


@dataclass(frozen=True)
class Request:
    """One request; times are unix seconds."""

    received: float
    answered: float  # of a long one (watch, followed log): its beginning
    user: str
    agent: str
    verb: str
    resource: str  # with its subresource: pods/log
    name: str
    code: int


class Reader:
    """Turns lines into requests, each once: a long one is told at its beginning and at its end."""

    def __init__(self) -> None:
        self._begun: set[str] = set()

    def read(self, lines: Iterable[str]) -> Iterator[Request]:
        for line in lines:
            event = json.loads(line)
            told, stage = event["auditID"], event["stage"]
            if stage == "ResponseStarted":
                self._begun.add(told)
            elif told in self._begun:
                self._begun.discard(told)
                continue
            yield request_of(event)


def request_of(event: dict[str, object]) -> Request:
    """Read a request from an event in API form (audit.k8s.io/v1)."""
    about: dict[str, str] = event.get("objectRef") or {}  # type: ignore[assignment]
    user: dict[str, str] = event.get("user") or {}  # type: ignore[assignment]
    status: dict[str, int] = event.get("responseStatus") or {}  # type: ignore[assignment]
    resource = "/".join(part for part in (about.get("resource"), about.get("subresource")) if part)
    return Request(
        received=_seconds(str(event["requestReceivedTimestamp"])),
        answered=_seconds(str(event["stageTimestamp"])),
        user=user.get("username", ""),
        agent=str(event.get("userAgent") or ""),
        verb=str(event["verb"]),
        resource=resource,
        name=about.get("name", ""),
        code=int(status.get("code") or 0),
    )


class AuditLog:
    """The requests that are added from `with` on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader = Reader()
        self._file: IO[bytes] | None = None
        self._rest = b""

    def __enter__(self) -> AuditLog:
        self._file = self._path.open("rb")
        self._file.seek(0, os.SEEK_END)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def new(self) -> list[Request]:
        """Return the requests since the last call. Call it before the log is rotated twice."""
        assert self._file is not None
        found = self._read()
        try:
            rotated = os.stat(self._path).st_ino != os.fstat(self._file.fileno()).st_ino
        except FileNotFoundError:  # between its renaming and the new one
            rotated = False
        if rotated:
            found += self._read()
            self._file.close()
            self._file = self._path.open("rb")
            self._rest = b""
            found += self._read()
        return found

    def _read(self) -> list[Request]:
        assert self._file is not None
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        return list(self._reader.read(line.decode() for line in lines if line))


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
