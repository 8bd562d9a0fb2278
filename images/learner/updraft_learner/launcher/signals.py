"""Take note of signals to the launcher, and end it by force if it is stuck."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

STUCK_SECONDS = 60.0  # after all other limits, for instance while the log's reader stands still


class StopRequest:
    """The handler of SIGTERM, installed before the first process is started."""

    def __init__(self) -> None:
        self.received = False
        self.wake = -1  # a descriptor that wakes `select` when a signal has come
        self._last_resort: Callable[[], None] | None = None
        self.longest_seconds = STUCK_SECONDS

    def __call__(self, *_: object) -> None:
        self.received = True
        self.limit(self.longest_seconds)

    def listen(self) -> None:
        """Install the handlers."""
        self.wake, writing = os.pipe()
        for end in (self.wake, writing):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGALRM, self._force)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self)

    def last_resort(self, kill_all: Callable[[], None], longest_seconds: float) -> None:
        """Set what is done if the launcher has not ended `longest_seconds` and STUCK_SECONDS after SIGTERM."""
        self._last_resort, self.longest_seconds = kill_all, longest_seconds + STUCK_SECONDS

    def limit(self, seconds: float) -> None:
        """End the launcher by force after `seconds`, unless a limit is set already."""
        if signal.getitimer(signal.ITIMER_REAL)[0] == 0:
            signal.setitimer(signal.ITIMER_REAL, seconds)

    def _force(self, *_: object) -> None:
        """Run in the midst of any call of the launcher, a blocked write included."""
        if self._last_resort is not None:
            self._last_resort()
        os._exit(128 + signal.SIGKILL)
