"""A learner's side of the protocol, without PyTorch: when it may start a step, and how it publishes a gradient.

It waits on counters of the server alone. A learner that was killed before the store of `pushed` never published that
gradient and computes it again; after it, it goes on with the next.
"""

from __future__ import annotations

from collections.abc import Callable

from updraft_learner.shared.memory import SLOTS, Array, Segment


class Publisher:
    """One learner, seen from the shared memory.

    Args:
        memory: The shared memory.
        learner: Which learner this is.
        staleness: How many steps it may be ahead of the slowest learner's applied steps; None: it trains synchronously.
    """

    def __init__(self, memory: Segment, learner: int, staleness: int | None) -> None:
        self._memory = memory
        self._layout = memory.layout
        self._learner = learner
        self._ahead = staleness or 0
        self._base = 0

    @property
    def pushed(self) -> int:
        return self._memory.load(self._layout.pushed(self._learner))

    def may_start(self) -> bool:
        """Return whether the weights are new enough to compute the next gradient from them, and no pause is wanted."""
        if 0 < self._memory.load(self._layout.limit) <= self.pushed:
            return False
        needed = self.pushed - self._ahead
        return needed <= 0 or all(self._memory.least_applied(each) >= needed for each in range(self._layout.learners))

    def may_publish(self) -> bool:
        """Return whether the slot of the next gradient is free: all ranges have the one that was in it."""
        return self._memory.least_applied(self._learner) >= self.pushed + 1 - SLOTS

    def start(self) -> None:
        """Begin a step: note how new the weights are that are read after this call."""
        self._base = min(self._memory.version(each) for each in range(self._layout.ranges))

    def publish(self, write: Callable[[Array], bool]) -> bool:
        """Publish the next gradient; `may_publish` must be true.

        Args:
            write: Writes the gradient into the slot that it is given, and returns whether it is to be applied. If not,
                the step counts as skipped.

        Returns:
            What `write` returned.
        """
        memory, layout, learner = self._memory, self._layout, self._learner
        number = self.pushed + 1
        slot = number % SLOTS
        skipped = memory.skipped(learner)
        good = False

        def act(gradient: Array) -> None:
            nonlocal good
            good = write(gradient)

        memory.change((memory.slots[learner][slot],), act)
        memory.store(layout.skips(learner, slot), 2 * skipped if good else 2 * (skipped + 1) + 1)
        memory.store(layout.base(learner, slot), self._base)
        memory.store(layout.pushed(learner), number)
        for bell in memory.bells[layout.learners :]:
            bell.ring()
        return good
