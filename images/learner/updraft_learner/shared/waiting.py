"""Wait for a counter in shared memory, and wake who waits: the kernel's futex, without a lock that can stay locked.

A *bell* is a word that belongs to one process. Others change it and wake that process after they have stored what it
may wait for. Bells decide nothing: a waiting process looks again by itself after a few milliseconds, so a bell that a
killed process never rang costs that time.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable

YIELDS = 4
LONGEST_SECONDS = 0.005
_FUTEX = 202  # the number of the system call on x86_64, the only processor that `require_ordered_stores` allows
_WAIT, _WAKE = 0, 1
_ALL = 0x7FFFFFFF
_TIMEOUT = ctypes.create_string_buffer(struct.pack("qq", 0, int(LONGEST_SECONDS * 1e9)))
_syscall = ctypes.CDLL(None, use_errno=False).syscall


class Bell:
    """A word of 4 bytes in shared memory, on which one process waits.

    Args:
        words: The shared memory, as unsigned numbers of 8 bytes.
        word: Which of them this is.
        address: Of `words` in this process.
    """

    def __init__(self, words: memoryview, word: int, address: int) -> None:
        self._words, self._word = words, word
        self._address = ctypes.c_void_p(address + 8 * word)

    @property
    def value(self) -> int:
        return self._words[self._word]

    def ring(self) -> None:
        """Wake the process that waits. Two that ring at once may set the same value; it wakes all the same."""
        self._words[self._word] = (self._words[self._word] + 1) & 0xFFFFFFFF
        _syscall(_FUTEX, self._address, _WAKE, _ALL, None, None, 0)

    def wait(self, seen: int) -> None:
        """Return when the bell is rung, at once if its value is not `seen` any more, and after a few milliseconds."""
        _syscall(_FUTEX, self._address, _WAIT, ctypes.c_uint32(seen), _TIMEOUT, None, 0)


def wait_until(ready: Callable[[], object], bell: Bell) -> None:
    """Return when `ready()` is true. It is asked a few times, and then each time that the bell rings."""
    for _ in range(YIELDS):
        if ready():
            return
        os.sched_yield()
    while True:
        seen = bell.value  # before `ready`: what is stored after it rings
        if ready():
            return
        bell.wait(seen)
