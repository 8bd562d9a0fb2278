"""The server: applies what learners have pushed to the range of the weights that it owns, each gradient once, in order.

It never waits on a particular learner: `turn` applies whatever can be applied, or says that nothing can. A new server
calls `recover` first. The order of the stores here and in `kernels.apply` is what
docs/design/models/shared_memory.pml checks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from updraft_learner.shared.memory import ALL, SLOTS, Segment
from updraft_learner.shared.optimizers import SGD, Adam

Places = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Item:
    """What is applied at once: gradient `number` of one learner, or of all of them, averaged."""

    learner: int | None
    number: int

    def intent(self) -> int:
        return self.number << 16 | (ALL if self.learner is None else self.learner + 1)

    @classmethod
    def of(cls, intent: int) -> Item | None:
        if not intent:
            return None
        who = intent & 0xFFFF
        return cls(None if who == ALL else who - 1, intent >> 16)


class RangeServer:
    """The owner of one range.

    Args:
        memory: The shared memory.
        range_: Which range it owns.
        optimizer: How a gradient changes the weights.
        synchronous: Apply the average of one gradient of each learner; otherwise each gradient by itself.
    """

    def __init__(self, memory: Segment, range_: int, optimizer: SGD | Adam, *, synchronous: bool) -> None:
        self._memory = memory
        self._layout = memory.layout
        self._range = range_
        self._optimizer = optimizer
        self._synchronous = synchronous
        low, high = self._layout.bounds[range_]
        self._place = self._layout.progress(range_), low, high, self._layout.chunk
        self._arrays = _places(self._layout.state()), _places(self._layout.undo(range_))
        self._scratch = np.empty(self._layout.chunk, np.float32)
        self._next = 0  # the learner to look at first

    def recover(self) -> bool:
        """Finish what a killed server has begun; return whether there was something."""
        item = Item.of(self._memory.load(self._layout.intent(self._range)))
        if item is None or all(self._applied(learner) >= item.number for learner in self._members(item)):
            return False
        self._work(item)
        return True

    def turn(self) -> bool:
        """Apply what can be applied next; return False if nothing can."""
        item = self._choose()
        if item is None:
            return False
        memory, layout = self._memory, self._layout
        self._note_staleness(item)
        if not self._contributing(item):
            self._finish(item)
            return True
        memory.store(layout.intent_update(self._range), memory.load(layout.updates(self._range)) + 1)
        memory.store(layout.progress(self._range), 0)
        memory.store(layout.intent(self._range), item.intent())
        self._work(item)
        return True

    def _choose(self) -> Item | None:
        learners = self._layout.learners
        if self._synchronous:
            number = min(map(self._applied, range(learners))) + 1
            return Item(None, number) if all(self._pushed(each) >= number for each in range(learners)) else None
        for offset in range(learners):
            learner = (self._next + offset) % learners
            number = self._applied(learner) + 1
            if self._pushed(learner) >= number:
                self._next = (learner + 1) % learners
                return Item(learner, number)
        return None

    def _work(self, item: Item) -> None:
        """Apply the chunks that are left, and count the gradient; the intent is stored."""
        memory, optimizer = self._memory, self._optimizer
        slots = _places([self._layout.slot(learner, item.number % SLOTS) for learner in self._contributing(item)])
        step = memory.load(self._layout.intent_update(self._range))
        numbers = optimizer.numbers(step, max(2, len(slots)))
        memory.apply(*self._place, *self._arrays, slots, numbers, self._scratch)
        memory.store(self._layout.updates(self._range), step)
        self._finish(item)

    def _finish(self, item: Item) -> None:
        for learner in self._members(item):
            self._memory.store(self._layout.applied(self._range, learner), item.number)
        for bell in self._memory.bells[: self._layout.learners]:
            bell.ring()

    def _members(self, item: Item) -> range:
        return range(self._layout.learners) if item.learner is None else range(item.learner, item.learner + 1)

    def _contributing(self, item: Item) -> list[int]:
        """Return the learners whose gradient is not skipped."""
        skips, slot = self._layout.skips, item.number % SLOTS
        return [each for each in self._members(item) if not self._memory.load(skips(each, slot)) & 1]

    def _note_staleness(self, item: Item) -> None:
        memory, layout = self._memory, self._layout
        if item.learner is not None:
            missed = memory.version(self._range) - memory.load(layout.base(item.learner, item.number % SLOTS))
            if missed > memory.load(layout.stalest(self._range)):
                memory.store(layout.stalest(self._range), missed)

    def _applied(self, learner: int) -> int:
        return self._memory.load(self._layout.applied(self._range, learner))

    def _pushed(self, learner: int) -> int:
        return self._memory.load(self._layout.pushed(learner))


def _places(starts: list[int]) -> Places:
    return np.array(starts, np.int64)
