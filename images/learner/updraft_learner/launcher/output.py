"""Copy what processes print, line by line behind their rank, and print the launcher's own lines."""

from __future__ import annotations

import collections
import contextlib
import os
import select
import time

LONGEST_LINE_BYTES = 64 << 10  # a longer line is printed in pieces
SAYS = "updraft: launcher: "
DRAIN_SECONDS = 5.0


class Stream:
    """One output of a process, copied line by line behind the process' rank.

    Args:
        source: The pipe's descriptor.
        target: The descriptor that lines are copied to.
        last: Receives each copied line.
    """

    def __init__(self, source: int, target: int, prefix: bytes, last: collections.deque[bytes]) -> None:
        self.source = source
        self._target, self._prefix, self._last, self._rest = target, prefix, last, b""

    def read(self) -> bool:
        """Copy what is available; return False at the end of the stream."""
        data = os.read(self.source, 65536)
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > LONGEST_LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        self._print(lines)
        if not data:
            self.finish()
        return bool(data)

    def finish(self) -> None:
        """Print the last line, if no newline ends it."""
        if self._rest:
            self._print([self._rest])
            self._rest = b""

    def _print(self, lines: list[bytes]) -> None:
        made = [self._prefix + line + b"\n" for line in lines]
        self._last.extend(made)
        write(self._target, b"".join(made))


def copy(streams: dict[int, Stream], ready: list[int]) -> None:
    """Copy from the streams that are ready, and remove those that have ended."""
    for source in ready:
        if not streams[source].read():
            del streams[source]


def drain(streams: dict[int, Stream], seconds: float = DRAIN_SECONDS) -> None:
    """Copy what is left in the pipes once all processes have ended."""
    until = time.monotonic() + seconds
    while streams and time.monotonic() < until:
        ready, _, _ = select.select(list(streams), [], [], 0)
        if not ready:
            break
        copy(streams, ready)
    for stream in streams.values():
        stream.finish()


def say(text: str) -> None:
    """Print a line of the launcher itself to stderr."""
    write(2, f"{SAYS}{text}\n".encode())


def write(target: int, data: bytes) -> None:
    """Write all of `data`. If nobody reads the log any more, drop it: the processes go on."""
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(target, data) :]
