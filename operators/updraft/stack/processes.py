"""Handle processes of this machine: their identity, the stack they belong to, their memory, and ending them reliably.

Pids are reused, so a process is identified by its pid and its time of creation. Called by `supervisor`, `control` and
`status`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from updraft.stack.layout import MARK_VARIABLE, PART_VARIABLE, Home

MIB = 1024**2
KILL_ROUNDS = 5
LOG_LIMIT_BYTES = 20 * MIB  # a larger log is renamed at the next start; one such log is kept
CREATE_TIME_TOLERANCE_SECONDS = 0.05


@dataclass(frozen=True)
class Identity:
    """The identity of a process, which a later process with the same pid does not share."""

    pid: int
    create_time: float

    def alive(self) -> bool:
        return self.process() is not None

    def process(self) -> psutil.Process | None:
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.create_time) < CREATE_TIME_TOLERANCE_SECONDS
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None


def identify(pid: int) -> Identity | None:
    try:
        return Identity(pid, psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def spawn(
    argv: Iterable[str], *, environment: Mapping[str, str], cwd: Path, log: Path
) -> tuple[subprocess.Popen[bytes], Identity]:
    """Start a program as the leader of a session of its own, its output appended to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
        log.replace(log.with_suffix(".log.1"))
    with log.open("ab") as output:
        process = subprocess.Popen(
            list(argv),
            env=dict(environment),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # A child that has already ended still exists as a zombie, because nobody has waited for it.
    return process, Identity(process.pid, psutil.Process(process.pid).create_time())


# $1: the lines to drop. `exec` replaces this shell with the program, which so leads the session as it would without it.
_FILTER = 'drop=$1; shift; exec "$@" > >(exec grep --line-buffered -a -v -E -e "$drop") 2>&1'


def without_lines(argv: Iterable[str], drop: str) -> tuple[str, ...]:
    """Return the command with output that lacks the lines that match `drop`, an extended regular expression; as it is
    where there is no bash."""
    bash = shutil.which("bash")
    return tuple(argv) if bash is None else (bash, "-c", _FILTER, "bash", drop, *argv)


def session_members(leader: Identity) -> list[psutil.Process]:
    """Return every process in the session that `leader` began, also after its death.

    While a member lives, the system gives its session's number to no other session.
    """
    try:
        if abs(psutil.Process(leader.pid).create_time() - leader.create_time) >= CREATE_TIME_TOLERANCE_SECONDS:
            return []  # another process has the pid, so the session no longer exists
    except psutil.Error:
        pass
    members = []
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if os.getsid(process.pid) == leader.pid and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
    return members


def children(leader: Identity) -> list[psutil.Process]:
    """Return the living processes that `leader` itself has started."""
    process = leader.process()
    if process is None:
        return []
    try:
        return [child for child in process.children() if _lives(child)]
    except psutil.Error:
        return []


def marked(home: Home, part: str | None = None) -> list[psutil.Process]:
    """Return the processes whose environment says that they belong to this home, without this one and its ancestors."""
    spared = {os.getpid(), *(p.pid for p in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        if process.pid in spared:
            continue
        with suppress(psutil.Error, OSError):
            environment = process.environ()
            if environment.get(MARK_VARIABLE) != str(home.root):
                continue
            if part is None or environment.get(PART_VARIABLE) == part:
                found.append(process)
    return found


def end(processes: Iterable[psutil.Process], *, grace_seconds: float) -> int:
    """Send SIGTERM, wait, and send SIGKILL to what is left. Returns how many had to be killed."""
    living = list(processes)
    for process in living:
        with suppress(psutil.Error):
            process.terminate()
    return kill(_wait(living, grace_seconds))


def end_session(leader: Identity, *, grace_seconds: float) -> int:
    """Send SIGTERM to the leader, which ends its children, then SIGKILL to all that is left of its session."""
    process = leader.process()
    if process is not None:
        with suppress(psutil.Error):
            process.terminate()
        _wait([process], grace_seconds)
    killed = 0
    for _ in range(KILL_ROUNDS):  # a process may have forked after the members were listed
        if not (members := session_members(leader)):
            break
        killed += kill(members)
    return killed


def kill(processes: Iterable[psutil.Process]) -> int:
    doomed = list(processes)
    for process in doomed:
        with suppress(psutil.Error):
            process.kill()
    _wait(doomed, 5.0)
    return len(doomed)


def _wait(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Return the processes still alive after `seconds`; a zombie counts as ended."""
    deadline = time.monotonic() + seconds
    while True:
        living = [p for p in processes if _lives(p)]
        if not living or time.monotonic() >= deadline:
            return living
        time.sleep(0.05)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def signal_once(identity: Identity, number: signal.Signals) -> bool:
    process = identity.process()
    if process is None:
        return False
    with suppress(psutil.Error):
        process.send_signal(number)
    return True


def memory_bytes(process: psutil.Process) -> int:
    """Return the proportional share of memory where the system reports it (shared pages counted once), else the
    resident size."""
    try:
        full = process.memory_full_info()
    except psutil.Error:
        return 0
    return int(getattr(full, "pss", 0) or full.rss)


def cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)
