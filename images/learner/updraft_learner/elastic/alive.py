"""Tells the coordinator of a killed learner before the learner's connections end.

The kernel frees the memory of a killed process before it closes its connections: 35 ms for a small program with
PyTorch, seconds for one with much memory, during which the others would wait. Still earlier it releases the robust
futexes of each thread (get_robust_list(2)). So a learner holds such a lock in a file, and its sidecar waits for it, in
another container, which survives when the learner's is killed for its memory.

The file is the program's own. So who waits for it reads it only: a number, and where to send the news.

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

SIZE = mmap.PAGESIZE
NEWS_AT = 128  # where the JSON begins; glibc's mutex has 40 or 48 bytes
POLL_SECONDS = 0.1
# Of the first number of a robust mutex, in futex(2) and in glibc: owner's thread, "owner died", "somebody waits".
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
        self._path, self._news = path, json.dumps({"address": address, "member": name}).encode()
        self._memory: mmap.mmap | None = None
        self._libc = ctypes.CDLL(None)

    def take(self) -> None:
        """Take the lock, and let others see the file. If that fails, say so: the others then notice this learner's
        death later, when its connections end."""
        try:
            self._take()
        except (OSError, AttributeError) as exc:
            print(f"updraft_learner.elastic: {self._path} cannot be locked: {exc}", file=sys.stderr, flush=True)

    def _take(self) -> None:
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with temporary.open("w+b") as file:
            file.truncate(SIZE)
            self._memory = mmap.mmap(file.fileno(), SIZE)
        _mapped.append(self._memory)
        self._mutex = mutex = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
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
        word = ctypes.c_uint32.from_buffer(self._memory)
        word.value |= WAITERS  # so that the kernel and glibc wake who waits
        self._memory[NEWS_AT : NEWS_AT + len(self._news)] = self._news
        temporary.replace(self._path)

    def release(self) -> None:
        """Say that the learner does not need the group any more; its process may end now."""
        if self._memory is not None:
            self._libc.pthread_mutex_unlock(ctypes.c_void_p(self._mutex))


def news_of(path: Path, stop: Callable[[], bool]) -> tuple[str, str] | None:
    """Wait until the lock is taken. Return the address of the coordinator and the name of the learner; None: `stop`
    says that nobody needs to wait any more. Raises OSError or ValueError."""
    while not path.exists():
        if stop():
            return None
        time.sleep(POLL_SECONDS)
    news = json.loads(path.read_bytes()[NEWS_AT:SIZE].rstrip(b"\0"))
    return str(news["address"]), str(news["member"])


def wait_for_death(path: Path, stop: Callable[[], bool]) -> bool:
    """Return True once the thread that holds the lock is dead; False: the lock is released, or `stop` says that nobody
    needs to wait any more. Raises OSError if this machine cannot wait."""
    if FUTEX_CALL is None:
        raise OSError(f"no futex call is known for {platform.machine()}")
    libc, patience = ctypes.CDLL(None, use_errno=True), _Timespec(1, 0)
    libc.mmap.restype = ctypes.c_void_p
    with path.open("rb") as file:
        # The address is for the kernel alone: reading there would be a crash if the program made the file shorter.
        size, zero = ctypes.c_size_t(SIZE), ctypes.c_long(0)
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), zero)
        if address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), f"{path} cannot be mapped: {os.strerror(ctypes.get_errno())}")
        try:
            while True:
                seen = int.from_bytes(os.pread(file.fileno(), 4, 0), sys.byteorder)
                if seen & DIED:
                    return True
                if not seen & OWNER or stop():
                    return False
                word = ctypes.c_void_p(address)
                libc.syscall(FUTEX_CALL, word, FUTEX_WAIT, ctypes.c_uint32(seen), ctypes.byref(patience), None, 0)
        finally:
            libc.munmap(ctypes.c_void_p(address), size)


def report_death(path: Path, token: str, stop: Callable[[], bool]) -> None:
    """Wait for the death of the learner that holds the lock, and tell the coordinator. Returns when it is told, or when
    nobody needs to wait any more. What does not work is only said: the others notice without this, but later."""
    early = None
    try:
        if (news := news_of(path, stop)) is None:
            return
        address, name = news
        with suppress(OSError):  # in advance, because every millisecond counts later
            early = connect(address)
        if wait_for_death(path, stop):
            message = {"type": "killed", "member": name, "token": token}
            try:
                ask(early or connect(address), message)
            except OSError:  # the coordinator has been started again since
                ask(connect(address), message)
            print(f"the coordinator knows that learner {name} was killed", file=sys.stderr, flush=True)
    except (OSError, ValueError, KeyError, TypeError) as exc:
        print(f"the coordinator cannot be told early of a killed learner: {exc}", file=sys.stderr, flush=True)
    finally:
        if early is not None:
            early.close()


if __name__ == "__main__":
    report_death(Path(sys.argv[1]), "", lambda: False)
