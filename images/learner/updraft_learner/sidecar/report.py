"""What the sidecar tells people: its own log on stderr, and warnings that travel in status.json."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress

LIMIT = 50


def log(text: str) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with suppress(OSError):  # a log on a full disk
        print(f"{stamp} updraft-sidecar: {text}", file=sys.stderr, flush=True)


class Warnings:
    """One line per topic, the newest text of each; bounded, because a program may cause any number of them."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._lock = threading.Lock()

    def add(self, topic: str, text: str) -> None:
        with self._lock:
            new = topic not in self._texts
            if new and len(self._texts) >= LIMIT:
                return
            self._texts[topic] = text
        if new:
            log(text)

    def clear(self, topic: str) -> None:
        """The trouble is over."""
        with self._lock:
            self._texts.pop(topic, None)

    def texts(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._texts.values())
