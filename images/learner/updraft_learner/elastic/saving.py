"""When an elastic training saves its state, and when its process ends because somebody asked for that."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from typing import Any

from updraft_learner import runtime
from updraft_learner.checkpoint import Checkpointer

LEAVE_SECONDS = 5.0  # after which a learner that was told to leave ends, though the others did not let it go


class Wish(Enum):
    """What a learner does between two steps, apart from training."""

    NOTHING = "nothing"
    SAVE = "save"
    SAVE_AND_END = "save and end"
    END = "end"

    @property
    def saves(self) -> bool:
        """Return whether the state is saved."""
        return self in (Wish.SAVE, Wish.SAVE_AND_END)

    @property
    def ends(self) -> bool:
        """Return whether the program ends."""
        return self in (Wish.END, Wish.SAVE_AND_END)


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

    def wish(self, rank: int, learners: int, leave: Callable[[], None]) -> Wish:
        """Return what to do before the next step; if the optimizer's state is in parts, after it.

        Args:
            rank: Of this learner.
            learners: How many there are.
            leave: Asks that this learner leaves.
        """
        leads = rank == 0
        if runtime.stop_asked_of_all():
            # The others train until rank 0 has saved, and end when they lose it.
            return Wish.SAVE_AND_END if leads else Wish.NOTHING
        if runtime.stop_pending():  # of this process: the others go on without it, if there are any
            if self._told_to_go is None:
                self._told_to_go = time.monotonic()
                leave()
            if learners == 1 or time.monotonic() - self._told_to_go > LEAVE_SECONDS:
                return Wish.SAVE_AND_END if leads else Wish.END
        return Wish.SAVE if leads and self._checkpoints.due() else Wish.NOTHING

    def save(self, state: dict[str, Any], steps: int, block: bool = True) -> None:
        """Save the state after so many steps. `block`: return when that is done."""
        self._checkpoints.save(state, steps, block=block)
