"""Doubles for tests of the Python API's checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Callable

from updraft_learner.checkpoint import Background


class HeldBackground(Background):
    """A save that has begun waits, before it writes anything, until `go_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def start(self, work: Callable[[], None]) -> None:
        def held() -> None:
            self.begun.set()
            assert self.go_on.wait(30)
            work()

        super().start(held)
