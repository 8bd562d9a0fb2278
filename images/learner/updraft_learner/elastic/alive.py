"""Tells the coordinator of a killed learner before the learner's connections end.

The kernel frees the memory of a killed process, and then closes its connections. With much memory this takes long,
and the other learners would wait. The kernel releases the robust futexes of each thread before (get_robust_list(2)). So
a learner holds such a lock in a file, and its sidecar waits for the lock. The sidecar is in another container, which
survives when the learner's container is killed for its memory.

The file holds the lock, and then JSON with the coordinator's address and the learner's name. The program owns the file
and may write anything into it, so the sidecar checks what it reads. The sidecar sends nothing to that address that the
program cannot send itself.

Outside the platform, `python -m updraft_learner.elastic.alive FILE` waits. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import platform
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from updraft_learner.elastic.link import ask, connect
from updraft_learner.record.files import open_below

SIZE = mmap.PAGESIZE
CONTACT_AT = 128  # where the JSON begins; glibc's mutex has 40 or 48 bytes
POLL_SECONDS = 0.1  # until the file is there
CHANGED_SECONDS = 0.01  # between two looks at a number that keeps changing
# Bits of the first number of a robust mutex, see futex(2): the owner's thread, whether it died, whether a thread waits.
OWNER, DIED, WAITERS = 0x3FFFFFFF, 0x40000000, 0x80000000
PROCESS_SHARED = ROBUST = 1  # PTHREAD_PROCESS_SHARED, PTHREAD_MUTEX_ROBUST
FUTEX_WAIT = 0  # woken by a change, or after some time
FUTEX_CALL = {"x86_64": 202, "aarch64": 98}.get(platform.machine())

_mapped: list[mmap.mmap] = []  # for ever: the kernel reads the memory of a lock when its thread ends


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class AliveLock:
    """The lock that a learner holds. Take and release it in the same thread.

    Args:
        path: Of its file.
        address: Of the coordinator, "host:port".
        name: Of the learner.
    """

    def __init__(self, path: Path, address: str, name: str) -> None:
        self._path, self._contact = path, json.dumps({"address": address, "member": name}).encode()
        self._mutex: int | None = None  # its address in memory
        self._libc = ctypes.CDLL(None)

    def take(self) -> None:
        """Take the lock, and let others see the file. Print a message if that fails: the others then notice this
        learner's death later, when its connections end."""
        try:
            self._take()
        except (OSError, AttributeError) as exc:
            print(f"updraft_learner.elastic: {self._path} cannot be locked: {exc}", file=sys.stderr, flush=True)

    def release(self) -> None:
        """Say that the learner does not need the group any more; its process may end now."""
        if self._mutex is not None:
            self._libc.pthread_mutex_unlock(ctypes.c_void_p(self._mutex))

    def _take(self) -> None:
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with temporary.open("w+b") as file:
            os.posix_fallocate(file.fileno(), 0, SIZE)  # a write to memory cannot say that the disk is full
            memory = mmap.mmap(file.fileno(), SIZE)
        _mapped.append(memory)
        mutex = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        attributes = ctypes.create_string_buffer(64)
        for call, arguments in (
            ("pthread_mutexattr_init", (attributes,)),
            ("pthread_mutexattr_setpshared", (attributes, PROCESS_SHARED)),
            ("pthread_mutexattr_setrobust", (attributes, ROBUST)),
            ("pthread_mutex_init", (ctypes.c_void_p(mutex), attributes)),
            ("pthread_mutex_lock", (ctypes.c_void_p(mutex),)),
        ):
            if error := getattr(self._libc, call)(*arguments):
                raise OSError(error, f"{call}: {os.strerror(error)}")
        self._mutex = mutex
        ctypes.c_uint32.from_buffer(memory).value |= WAITERS  # so that the kernel and glibc wake who waits
        memory[CONTACT_AT : CONTACT_AT + len(self._contact)] = self._contact
        temporary.replace(self._path)


def wait_for_lock(root: Path, relative: str, stop: Callable[[], bool]) -> int | None:
    """Return a descriptor of the file `relative` below `root`, once it is there; None: `stop` says that nobody needs to
    wait any more. Raises OSError if the file is no regular one."""
    while not stop():
        try:
            with open_below(root, relative) as file:
                return os.dup(file.fileno())
        except FileNotFoundError:
            time.sleep(POLL_SECONDS)
    return None


def contact_in(file: int) -> tuple[str, str]:
    """Return the coordinator's address and the learner's name. Raises ValueError, KeyError or TypeError."""
    content = json.loads(os.pread(file, SIZE - CONTACT_AT, CONTACT_AT).rstrip(b"\0"))
    return str(content["address"]), str(content["member"])


def wait_for_death(file: int, stop: Callable[[], bool]) -> bool:
    """Return True once the thread that holds the lock is dead; False: the lock is released, or `stop` says that nobody
    needs to wait any more. Raises OSError if this machine cannot wait."""
    if FUTEX_CALL is None:
        raise OSError(f"no futex call is known for {platform.machine()}")
    libc, patience = ctypes.CDLL(None, use_errno=True), _Timespec(1, 0)
    libc.mmap.restype = ctypes.c_void_p
    # The address is for the kernel alone: reading there would be a crash if the program made the file shorter.
    size, zero = ctypes.c_size_t(SIZE), ctypes.c_long(0)
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file, zero)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"the lock cannot be mapped: {os.strerror(ctypes.get_errno())}")
    last = None
    try:
        while True:
            seen = int.from_bytes(os.pread(file, 4, 0), sys.byteorder)
            if seen & DIED:
                return True
            if not seen & OWNER or stop():
                return False
            if last not in (None, seen):
                time.sleep(CHANGED_SECONDS)
            last = seen
            word = ctypes.c_void_p(address)
            libc.syscall(FUTEX_CALL, word, FUTEX_WAIT, ctypes.c_uint32(seen), ctypes.byref(patience), None, 0)
    finally:
        libc.munmap(ctypes.c_void_p(address), size)


def report_death(root: Path, relative: str, token: str, stop: Callable[[], bool]) -> None:
    """Wait for the death of the learner that holds the lock, and tell the coordinator.

    Returns when the coordinator knows, or when nobody needs to wait any more. A failure is printed: the other learners
    notice without this, but later.

    Args:
        root: A folder of the program.
        relative: The lock's path below it.
        token: What the coordinator wants to see.
        stop: Tells that nobody needs to wait any more.
    """
    early, file = None, None
    try:
        if (file := wait_for_lock(root, relative, stop)) is None:
            return
        address, name = contact_in(file)
        with suppress(OSError):  # in advance, because every millisecond counts later
            early = connect(address)
        if wait_for_death(file, stop):
            message = {"type": "killed", "member": name, "token": token}
            try:
                ask(early or connect(address), message)
            except OSError:  # the coordinator has been started again since
                with connect(address) as late:
                    ask(late, message)
            print(f"the coordinator knows that learner {name} was killed", file=sys.stderr, flush=True)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as exc:
        print(f"the coordinator cannot be told early of a killed learner: {exc!r}", file=sys.stderr, flush=True)
    finally:
        if file is not None:
            os.close(file)
        if early is not None:
            early.close()


if __name__ == "__main__":
    watched = Path(sys.argv[1])
    report_death(watched.parent, watched.name, "", lambda: False)
