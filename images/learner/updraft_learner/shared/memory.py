"""What lies where in the shared memory, and the only three ways in which a process changes it.

A *word* is an unsigned number of 8 bytes, alone in a line of the cache. Its store is atomic: after a SIGKILL it holds
the old value or the new one. Arrays of float32 are not: a kill in `change` leaves any part of them changed. A server
goes over its range with `apply`, compiled code that changes arrays and words by the same rules.
What is stored first is seen first, which x86-64 promises; `require_ordered_stores` refuses other processors.

| word | written by | meaning |
|---|---|---|
| `pushed[learner]` | the learner | how many gradients it has published; number s lies in slot s % 2 |
| `skips[learner, slot]` | the learner | 2 x (its skipped gradients so far) + 1 if the one in this slot is skipped |
| `base[learner, slot]` | the learner | how many gradients the weights had in them from which this one was computed |
| `applied[range, learner]` | the server | how many gradients of the learner the range has in it |
| `intent[range]` | the server | the gradient being applied: its number x 65536 + (learner + 1, or ALL) |
| `intent_update[range]` | the server | which update of the optimizer that is; 1 for the first |
| `progress[range]` | the server | 2 x (chunks done) + 1 while the undo copy of the next one is whole |
| `updates[range]` | the server | how many updates of the optimizer are complete |
| `stalest[range]` | the server | the most updates that a gradient had missed when it was applied |
| `limit` | who called `train` | after how many gradients each learner pauses; 0: no pause is wanted |

A word more of each learner and each server is its bell (`waiting.py`), on which the protocol does not rest.
`learner`, `slot`, `range` and chunk are counted from 0, gradients from 1. Tests subclass Segment to crash in a write.
"""

from __future__ import annotations

import mmap
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from updraft_learner.contract import MEMORY_ENV
from updraft_learner.shared.errors import InvalidSetting, NotEnoughSharedMemory
from updraft_learner.shared.waiting import Bell

Array = np.ndarray[Any, np.dtype[np.float32]]

CHUNK = 8192  # elements: weights, moments and undo copy of a chunk fit into the cache of a core
SLOTS = 2
ALL = 0xFFFF  # in an intent: one gradient of each learner, averaged
MOST_LEARNERS = 256
_LINE = 8  # words, 64 bytes
_ITEM = 4  # bytes of a float32


@dataclass(frozen=True)
class SharedLayout:
    """The sizes that decide what lies where.

    Args:
        elements: Of the model's weights, float32.
        moments: How many further arrays of that length the optimizer keeps.
        learners: How many processes push gradients.
        ranges: Into how many parts the weights are divided; each has one owner.
        chunk: Elements that are applied at once, and of which an undo copy is kept.
    """

    elements: int
    moments: int
    learners: int
    ranges: int = 1
    chunk: int = CHUNK

    def pushed(self, learner: int) -> int:
        return _LINE * learner

    def skips(self, learner: int, slot: int) -> int:
        return _LINE * (self.learners + SLOTS * learner + slot)

    def base(self, learner: int, slot: int) -> int:
        return _LINE * ((1 + SLOTS) * self.learners + SLOTS * learner + slot)

    def applied(self, range_: int, learner: int) -> int:
        return _LINE * ((1 + 2 * SLOTS + range_) * self.learners + learner)

    def intent(self, range_: int) -> int:
        return self._of_range(0, range_)

    def intent_update(self, range_: int) -> int:
        return self._of_range(1, range_)

    def progress(self, range_: int) -> int:
        return self._of_range(2, range_)

    def updates(self, range_: int) -> int:
        return self._of_range(3, range_)

    def stalest(self, range_: int) -> int:
        return self._of_range(4, range_)

    def _of_range(self, kind: int, range_: int) -> int:
        return _LINE * ((1 + 2 * SLOTS + self.ranges) * self.learners + kind * self.ranges + range_)

    @property
    def limit(self) -> int:
        return self._of_range(5, 0)

    def bell(self, part: int) -> int:
        """Return the word of a learner by its number, or of the server of range r as `learners + r`."""
        return self.limit + _LINE * (1 + part)

    @property
    def words(self) -> int:
        return self.bell(self.learners + self.ranges)

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """Return where in the weights each range begins, and where it ends: whole chunks, save for the last one."""
        number = -(-self.elements // self.chunk)
        bounds = [self.chunk * (number * each // self.ranges) for each in range(self.ranges)] + [self.elements]
        return tuple(pairwise(bounds))

    def state(self) -> list[int]:
        """Return where the weights begin, and each array of moments: numbers of float32 values."""
        return [_up(self.elements) * each for each in range(1 + self.moments)]

    def undo(self, range_: int) -> list[int]:
        """Return where the undo copies of the range's weights and moments begin."""
        before = _up(self.elements) * (1 + self.moments)
        return [before + _up(self.chunk) * ((1 + self.moments) * range_ + each) for each in range(1 + self.moments)]

    def slot(self, learner: int, slot: int) -> int:
        """Return where a learner's slot begins."""
        return self.undo(self.ranges)[0] + _up(self.elements) * (SLOTS * learner + slot)

    @property
    def arrays(self) -> dict[str, int]:
        """Return how many bytes each kind of array takes."""
        whole = _ITEM * _up(self.elements)
        return {
            "weights": whole,
            "moments": whole * self.moments,
            "gradients": whole * SLOTS * self.learners,
            "undo copies": _ITEM * _up(self.chunk) * (1 + self.moments) * self.ranges,
        }

    @property
    def bytes(self) -> int:
        return 8 * self.words + sum(self.arrays.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{_mib(size)} of {name}" for name, size in self.arrays.items() if size)
        return f"{_mib(self.bytes)} of shared memory ({parts})"


class Segment:
    """The shared memory of one training, in a process that maps it.

    Args:
        layout: What lies where.
        buffer: At least `layout.bytes`, zeros at first.
    """

    def __init__(self, layout: SharedLayout, buffer: mmap.mmap | bytearray) -> None:
        self.layout = layout
        self.words = memoryview(buffer)[: 8 * layout.words].cast("Q")
        values = np.frombuffer(buffer, np.float32, offset=8 * layout.words)
        address = np.frombuffer(buffer, np.uint8).ctypes.data
        parts = range(layout.learners + layout.ranges)
        self.bells = tuple(Bell(self.words, layout.bell(part), address) for part in parts)
        self.values = values
        self.weights, *moments = (self._whole(start) for start in layout.state())
        self.moments = tuple(moments)
        self.slots = tuple(
            tuple(self._whole(layout.slot(learner, slot)) for slot in range(SLOTS))
            for learner in range(layout.learners)
        )

    def _whole(self, start: int) -> Array:
        return self.values[start : start + self.layout.elements]

    def load(self, word: int) -> int:
        return self.words[word]

    def store(self, word: int, value: int) -> None:
        """Set a word; atomic."""
        self.words[word] = value

    def change(self, targets: tuple[Array, ...], act: Callable[..., None]) -> None:
        """Call `act(*targets)`, which changes them in place; a kill leaves any part of them changed."""
        act(*targets)

    def apply(self, *arguments: Any) -> None:
        """Call `kernels.apply` with the words, the values and these arguments."""
        from updraft_learner.shared import kernels  # compiles; the process that calls `train` does not need it

        kernels.apply(np.frombuffer(self.words, np.int64), self.values, *arguments)

    def least_applied(self, learner: int) -> int:
        """Return how many gradients of the learner all ranges have in them."""
        layout = self.layout
        return min(self.words[layout.applied(range_, learner)] for range_ in range(layout.ranges))

    def version(self, range_: int) -> int:
        """Return how many gradients the range has in it."""
        layout = self.layout
        return sum(self.words[layout.applied(range_, learner)] for learner in range(layout.learners))

    def skipped(self, learner: int) -> int:
        """Return how many gradients the learner has skipped."""
        pushed = self.load(self.layout.pushed(learner))
        return self.load(self.layout.skips(learner, pushed % SLOTS)) >> 1


def create(layout: SharedLayout) -> int:
    """Return the descriptor of new shared memory. It has no name: it is gone when the last process is that has it open.

    Raises:
        NotEnoughSharedMemory: there is less than the layout needs.
    """
    require_room(layout)
    descriptor = os.memfd_create("updraft-shared")
    try:
        os.posix_fallocate(descriptor, 0, layout.bytes)
    except OSError as exc:
        os.close(descriptor)
        raise NotEnoughSharedMemory(f"this needs {layout}, which the system does not give: {exc.strerror}") from exc
    return descriptor


def attach(descriptor: int, layout: SharedLayout) -> Segment:
    return Segment(layout, mmap.mmap(descriptor, layout.bytes))


def readable_weights(descriptor: int, layout: SharedLayout) -> Array:
    """Return the weights in a mapping that this process cannot write to: an attempt ends it with SIGSEGV."""
    mapped = mmap.mmap(descriptor, layout.bytes, prot=mmap.PROT_READ)
    return np.frombuffer(mapped, np.float32, count=layout.elements, offset=8 * layout.words)


def require_room(layout: SharedLayout) -> None:
    """Raise NotEnoughSharedMemory if the machine, or the pod by its limit, has less room than the layout needs."""
    free, where = free_bytes()
    if free < layout.bytes:
        raise NotEnoughSharedMemory(
            f"this needs {layout}, and {where} has {_mib(free)} left; use fewer learners or a smaller model, or raise "
            "`memory` in the manifest"
        )


def require_ordered_stores() -> None:
    """Raise InvalidSetting on a machine where processes may see stores in another order, or without memfd_create."""
    if platform.machine() not in ("x86_64", "AMD64") or not hasattr(os, "memfd_create"):
        raise InvalidSetting(
            f"this machine is {platform.system()} on {platform.machine()}; shared-memory training needs Linux on x86_64"
        )


def free_bytes() -> tuple[int, str]:
    """Return how much more memory this process may use, and what limits it."""
    found = [(_available(), "the machine")]
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            found.append((int(Path(limit).read_text()) - int(Path(used).read_text()), "the pod's memory limit"))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    with suppress(KeyError, ValueError):  # not on the platform
        found.append((int(os.environ[MEMORY_ENV]) - _resident(), "the pod's memory limit"))
    return min(found)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _up(elements: int) -> int:
    """Round up to whole lines of the cache."""
    return -(-elements // 16) * 16


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"
