"""Report to users: the sidecar's own log on stderr, and warnings that are sent in status.json."""

from __future__ import annotations

import io
import sys
import threading
import time
from contextlib import suppress
from typing import TextIO

from updraft_learner.contract import TEXT_CHARACTERS, TEXTS


def log(text: str, file: TextIO | None = None) -> None:
    """Write a line to `file`, by default stderr."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with suppress(OSError):  # the log may be on a full disk
        print(f"{stamp} updraft-sidecar: {text}", file=file or sys.stderr, flush=True)


class LogLines(io.TextIOBase):
    """A file whose lines are written to the log."""

    def write(self, text: str) -> int:
        for line in text.splitlines():
            log(line)
        return len(text)


def cut(text: str, characters: int = TEXT_CHARACTERS) -> str:
    """Return what a program wrote, for people: names of files and metrics may have any length."""
    return text if len(text) <= characters else f"{text[: characters - 3]}..."


class Warnings:
    """The newest warning of each topic, one line each; limited in number, because a program may cause any number."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._lock = threading.Lock()

    def add(self, topic: str, text: str) -> None:
        topic, text = cut(topic), cut(text)
        with self._lock:
            new = topic not in self._texts
            if new and len(self._texts) >= TEXTS:
                return
            self._texts[topic] = text
        if new:
            log(text)

    def clear(self, topic: str) -> None:
        """Remove a warning whose cause is over."""
        with self._lock:
            self._texts.pop(cut(topic), None)

    def texts(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._texts.values())
