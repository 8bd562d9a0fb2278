"""Find and signal the processes that descend from the launcher, through /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import time

KILL_SECONDS = 5.0
_SHELLS = frozenset({"sh", "dash", "bash", "ash", "ksh", "mksh", "zsh", "busybox"})
_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Adopt the orphans of the processes (on Linux), so that they can be found and killed."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def collect() -> list[tuple[int, int]]:
    """Return process id and wait status of every child that has ended, adopted ones included."""
    found: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        found.append((pid, status))


def kill_rest(seconds: float = KILL_SECONDS) -> None:
    """Kill all that descends from the launcher, for at most `seconds`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        collect()
        left = _below(os.getpid(), _parents())
        if not left:
            return
        for pid in left:
            kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def told_of_sigterm(first: int) -> list[int]:
    """Return the processes that get SIGTERM: the first, or what runs below it if that is a shell that waits."""
    parents, looked_at, found = _parents(), [first], []
    for pid in looked_at:
        children = [child for child, parent in parents.items() if parent == pid]
        if children and _is_waiting_shell(pid):
            looked_at.extend(children)
        else:
            found.append(pid)
    return found


def kill(pid: int, number: int) -> None:
    """Send a signal; do nothing if the process has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _is_waiting_shell(pid: int) -> bool:
    """Return whether the process is a shell without a trap for SIGTERM, which would end without passing it on."""
    try:
        name = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
        with open(f"/proc/{pid}/status") as file:
            caught = int(next(line for line in file if line.startswith("SigCgt:")).split()[1], 16)
    except (OSError, StopIteration, ValueError):
        return False
    # bash catches SIGTERM together with SIGALRM for `trap ... EXIT`, and is ended by it all the same.
    traps = caught >> (signal.SIGTERM - 1) & 1 and not caught >> (signal.SIGALRM - 1) & 1
    return name in _SHELLS and not traps


def _parents() -> dict[int, int]:
    """Return the parent of every process; empty where there is no /proc."""
    parents: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{entry}/stat") as file:
                    parents[int(entry)] = int(file.read().rpartition(")")[2].split()[1])
    return parents


def _below(root: int, parents: dict[int, int]) -> list[int]:
    found = [root]
    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid)
    return found[1:]
