"""When an elastic training saves its state, and when its process ends because somebody asked for that."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from updraft_learner import runtime
from updraft_learner.checkpoint import Checkpointer

LEAVE_SECONDS = 5.0  # after which a learner that was told to leave ends, though the others did not let it go


class Saving:
    """The checkpoints of a training. Rank 0 saves, whichever learner that is.

    Args:
        checkpoints: Where to, and how often.
    """

    def __init__(self, checkpoints: Checkpointer) -> None:
        checkpoints.saves = True  # rank 0 may be any of the learners
        self._checkpoints = checkpoints
        self._told_to_go: float | None = None  # when this learner alone was asked to leave
        runtime.install_signal_handler()

    def restored(self) -> dict[str, Any] | None:
        """Return the state of the newest checkpoint, if there is one."""
        found = self._checkpoints.restore()
        return None if found is None else found[0]

    def may_go_on(
        self, rank: int, learners: int, steps: int, state: Callable[[], dict[str, Any]], leave: Callable[[], None]
    ) -> bool:
        """Save if it is time to. Return False once the program has to end, and what it has is saved.

        Args:
            rank: Of this learner.
            learners: How many there are.
            steps: How many steps are committed.
            state: Returns what to save.
            leave: Asks that this learner leaves.
        """
        leads = rank == 0
        if runtime.stop_asked_of_all():
            if leads:
                self.save(state(), steps)
            return not leads  # the others train until rank 0 has saved, and end when they lose it
        if runtime.stop_pending():  # of this process: the others go on without it, if there are any
            if self._told_to_go is None:
                self._told_to_go = time.monotonic()
                leave()
            if learners == 1 or time.monotonic() - self._told_to_go > LEAVE_SECONDS:
                if leads:
                    self.save(state(), steps)
                return False
        if leads and self._checkpoints.due():
            self._checkpoints.save(state(), steps)
        return True

    def save(self, state: dict[str, Any], steps: int) -> None:
        """Save, and return when that is done."""
        self._checkpoints.save(state, steps, block=True)
