"""Show what a program's threads are doing: when the platform asks, or when one call blocks the whole process.

A daemon thread reads DUMP_FILE once a second. When its number changes, the stacks of all threads are written to stderr
and to LOG_DIR/stack-<number>.txt. The same thread keeps restarting a timer of faulthandler, which needs no GIL. If one
call has held the GIL for longer than `HELD_SECONDS`, the timer expires and writes the stacks to stderr. Importing
`runtime` or `metrics` inside a learner's container starts this; outside the platform nothing happens. Forked children
have neither the thread nor the timer.
"""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

POLL_SECONDS = 1.0
HELD_SECONDS = 30.0
WIND_SECONDS = 10.0  # the timer is restarted this often, so it expires 30 to 40 s after the GIL was taken
STDERR = 2  # not sys.stderr, which the program may have replaced by an object without a file

_lock = threading.Lock()
_started = False


def start() -> None:
    """Begin to watch, once per process, if this is a learner's container."""
    global _started
    path = os.environ.get("UPDRAFT_DUMP_FILE")
    with _lock:
        if not path or _started:
            return
        _started = True
    StackWatch(Path(path), Path(os.environ.get("LOG_DIR") or Path(path).parent)).start()


class StackWatch:
    """The thread and the timer that write stacks.

    Args:
        folder: Receives the answers.
        held_seconds: How long one call may hold the GIL.
        wind_seconds: The time between two restarts of the timer.
    """

    def __init__(
        self,
        request_file: Path,
        folder: Path,
        *,
        held_seconds: float = HELD_SECONDS,
        wind_seconds: float = WIND_SECONDS,
    ) -> None:
        self._request_file, self._folder = request_file, folder
        self._held_seconds, self._wind_seconds = held_seconds, wind_seconds
        self._wound: float | None = None
        self._winding = threading.Lock()
        self._seen: tuple[int, int] | None = None
        # A request from before this process counts only if it has no answer.
        self._answered = self._number()
        if self._answered is not None and not self._file(self._answered).exists():
            self._answered = self._seen = None

    def start(self) -> None:
        # A child forked with a running timer would wait at its exit for the timer's thread, which it does not have.
        after = self._winding.release
        os.register_at_fork(before=self._stop_timer, after_in_parent=after, after_in_child=after)
        threading.Thread(target=self._run, name="updraft-stacks", daemon=True).start()

    def poll(self) -> bool:
        """Answer a new request; return whether there was one."""
        number = self._number()
        if number is None or number == self._answered:
            return False
        self._answered = number
        head = f"updraft: stacks of all threads (request {number}, process {os.getpid()}):\n".encode()
        with suppress(OSError):
            _write(STDERR, head)
        with suppress(OSError):
            descriptor = os.open(self._file(number), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o664)
            try:
                _write(descriptor, head)
            finally:
                os.close(descriptor)
        return True

    def _run(self) -> None:
        while True:
            with self._winding:
                now = time.monotonic()
                if self._wound is None or now - self._wound >= self._wind_seconds:
                    faulthandler.dump_traceback_later(self._held_seconds + self._wind_seconds, file=STDERR)
                    self._wound = now
            self.poll()
            time.sleep(min(POLL_SECONDS, self._wind_seconds))

    def _stop_timer(self) -> None:
        self._winding.acquire()
        faulthandler.cancel_dump_traceback_later()
        self._wound = None

    def _number(self) -> int | None:
        """Return the number in the request file; None when there is none yet."""
        try:
            facts = self._request_file.stat()
            if self._seen == (facts.st_mtime_ns, facts.st_size):
                return self._answered
            text = self._request_file.read_text(encoding="ascii")[:20].strip()
        except (OSError, ValueError):
            return None
        if not text.isdecimal():  # it is just being written
            return None
        self._seen = (facts.st_mtime_ns, facts.st_size)
        return int(text)

    def _file(self, number: int) -> Path:
        return self._folder / f"stack-{number}.txt"


def _write(descriptor: int, head: bytes) -> None:
    os.write(descriptor, head)
    faulthandler.dump_traceback(descriptor, all_threads=True)
