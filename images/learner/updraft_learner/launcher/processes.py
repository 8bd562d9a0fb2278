"""Hold the processes of one learner, and decide when they are ended."""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import subprocess

from .output import Stream, say
from .proctree import kill, told_of_sigterm

PREEMPTED = 75  # updraft_learner.contract.ExitCode.PREEMPTED: all ranks agreed to leave, so let each do it by itself
REPEATED_LINES = 100  # of the process that failed first, printed again as the log's last lines
GIVE_UP_SECONDS = 30.0  # from the first SIGKILL to the launcher's end, even if a process cannot be killed
KILL_AGAIN_SECONDS = 1.0  # for a process that starts others while it is killed


class Process:
    """One process of the learner: its shell is the leader of a process group of its own."""

    def __init__(self, rank: int, local_rank: int, command: str, environment: dict[str, str]) -> None:
        self.name = f"rank {rank} (local rank {local_rank})"
        self.code: int | None = None
        self.last: collections.deque[bytes] = collections.deque(maxlen=REPEATED_LINES)
        child = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        self.pid = child.pid
        assert child.stdout is not None
        assert child.stderr is not None
        self._pipes = (child.stdout, child.stderr)  # keeps both open
        prefix = b"" if environment["WORLD_SIZE"] == "1" else b"[rank%d]: " % rank
        self.streams = [Stream(pipe.fileno(), n, prefix, self.last) for n, pipe in enumerate(self._pipes, 1)]
        child.returncode = 0  # the launcher collects the status of every child by itself

    def terminate(self) -> None:
        """Send SIGTERM to the program, also below a shell that waits for it; a program ends its workers by itself."""
        if self.code is None:
            for pid in told_of_sigterm(self.pid):
                kill(pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and its group. Once it has ended, its number may belong to a process of somebody else."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


class Learner:
    """The processes of one learner. The caller passes the time, in seconds of a monotonic clock.

    Args:
        stop_seconds: From a request to stop to SIGKILL.
        peer_seconds: From the first failure to SIGKILL.
    """

    def __init__(self, processes: list[Process], stop_seconds: float, peer_seconds: float) -> None:
        self.processes = processes
        self.first: Process | None = None  # the first that ended with another code than 0
        self.failed = False  # whether it did so by itself
        self._stop_seconds, self._peer_seconds = stop_seconds, peer_seconds
        self._terminate_at: float | None = None
        self._kill_at: float | None = None
        self._give_up_at: float | None = None
        self._told = False

    def running(self) -> list[Process]:
        """Return the processes that have not ended."""
        return [each for each in self.processes if each.code is None]

    def stop(self, now: float) -> None:
        """Pass a request to stop on, once."""
        latest = now + self._stop_seconds
        self._kill_at = latest if self._kill_at is None else min(self._kill_at, latest)
        self._terminate(now)

    def ended(self, process: Process, code: int, now: float) -> None:
        """Take note of a process' end; the first failure ends the others."""
        process.code = code
        if code == 0 or self.first is not None:
            return
        self.first = process
        self.failed = not self._told and code != PREEMPTED
        if self._told or not self.running():
            return
        self._kill_at = now + self._peer_seconds
        self._terminate_at = now + self._peer_seconds / 2 if code == PREEMPTED else now
        say(f"{process.name} ended with {described(code)}; the other processes of this learner are stopped")

    def tick(self, now: float) -> float | None:
        """Send the signals that are due; return the seconds until the next, None if there is none."""
        if self._terminate_at is not None and now >= self._terminate_at:
            self._terminate(now)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill(now)
        waits = [at - now for at in (self._terminate_at, self._kill_at) if at is not None]
        return max(0.0, min(waits)) if waits else None

    def given_up(self, now: float) -> bool:
        """Return whether a process has outlived SIGKILL for so long that the launcher ends without it."""
        return self._give_up_at is not None and now >= self._give_up_at

    def exit_code(self) -> int:
        """Return the learner's exit code, which is that of the process that failed first."""
        if self.first is not None and self.first.code is not None:
            return self.first.code
        return 128 + signal.SIGKILL if self.running() else 0

    def _terminate(self, now: float) -> None:
        self._terminate_at = None
        if not self._told:
            self._told = True
            for process in self.running():
                process.terminate()

    def _kill(self, now: float) -> None:
        if self._give_up_at is None:
            self._give_up_at = now + GIVE_UP_SECONDS
            for process in self.running():
                say(f"{process.name} did not end after SIGTERM and is killed")
        for process in self.running():
            process.kill()
        self._kill_at = now + KILL_AGAIN_SECONDS


def described(code: int) -> str:
    """Return an exit code in words."""
    return f"exit code {code}" + (f" (signal {code - 128})" if code > 128 else "")
