"""Start the processes of one learner, and be their parent: the platform's own launcher.

    python3 -I -S launcher.py --processes N --stop-seconds S COMMAND

Staging copies this file into the pod, and the image's own Python runs it (3.8 or newer, standard library only), so it
imports nothing of this package. Each process runs COMMAND in a shell of its own, with its rank in the environment and
with no input. Its lines are printed with its rank, as `[rank 3] ...`. `RANK`, `LOCAL_RANK`, `WORLD_SIZE` and
`LOCAL_WORLD_SIZE` are set; every process sees all GPUs of the learner and takes the one that LOCAL_RANK names.

If a process fails, the others get SIGTERM, and SIGKILL after PEER_SECONDS. A SIGTERM to the launcher is passed on to
all processes, and SIGKILL follows after `--stop-seconds`. The exit code is that of the process which failed first; 128
plus the signal's number if a signal ended it. Nothing that a process started outlives the launcher.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import select
import signal
import subprocess
import sys
import time

PEER_SECONDS = 30.0  # from the first failure to the SIGKILL of the other processes
PREEMPTED = 75  # updraft_learner.contract.ExitCode.PREEMPTED: all ranks agreed to leave, so let each do it by itself
LONGEST_LINE_BYTES = 64 << 10
REPEATED_LINES = 20  # of the process that failed first, printed again when others have printed after it
SAYS = "updraft: launcher: "
_SHELLS = frozenset({"sh", "dash", "bash", "ash", "ksh", "mksh", "zsh", "busybox"})
_PR_SET_CHILD_SUBREAPER = 36


class Stream:
    """One output of a process, copied line by line behind the process' rank."""

    def __init__(self, source: int, target: int, prefix: bytes, last: collections.deque[bytes]) -> None:
        self.source = source
        self._target, self._prefix, self._last, self._rest = target, prefix, last, b""

    def read(self) -> bool:
        """Copy what is available; return False at the end of the stream."""
        data = os.read(self.source, 65536)
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if self._rest and (not data or len(self._rest) > LONGEST_LINE_BYTES):
            lines.append(self._rest)
            self._rest = b""
        made = [self._prefix + line + b"\n" for line in lines]
        self._last.extend(made)
        _write(self._target, b"".join(made))
        return bool(data)


class Process:
    """One process of the learner: its shell is the leader of a process group of its own."""

    def __init__(self, rank: int, command: str, environment: dict[str, str]) -> None:
        self.rank = rank
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
        prefix = b"[rank %d] " % rank
        assert child.stdout is not None
        assert child.stderr is not None
        self._pipes = (child.stdout, child.stderr)  # keeps both open
        self.streams = [Stream(pipe.fileno(), n, prefix, self.last) for n, pipe in enumerate(self._pipes, 1)]
        child.returncode = 0  # the launcher collects the status of every child by itself

    def terminate(self) -> None:
        """Send SIGTERM to the program, also below a shell that waits for it; a program ends its workers by itself."""
        if self.code is None:
            for pid in _told_of_sigterm(self.pid):
                _kill(pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and its group. Once it has ended, its number may belong to a process of somebody else."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


class Learner:
    """The processes of one learner, and when they are ended.

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
        self._told = False

    def running(self) -> list[Process]:
        return [each for each in self.processes if each.code is None]

    def stop(self, now: float) -> None:
        """Pass a request to stop on, once."""
        self._kill_at = min(self._kill_at or now + self._stop_seconds, now + self._stop_seconds)
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
        _say(f"rank {process.rank} ended with {_told_code(code)}; the other processes of this learner are stopped")

    def tick(self, now: float) -> float | None:
        """Send the signals that are due; return the seconds until the next, None if there is none."""
        if self._terminate_at is not None and now >= self._terminate_at:
            self._terminate(now)
        if self._kill_at is not None and now >= self._kill_at:
            for process in self.running():
                _say(f"rank {process.rank} did not end after SIGTERM and is killed")
                process.kill()
            self._kill_at = now + 1.0  # a process that starts others while it is killed
        waits = [at - now for at in (self._terminate_at, self._kill_at) if at is not None]
        return max(0.0, min(waits)) if waits else None

    def _terminate(self, now: float) -> None:
        self._terminate_at = None
        if not self._told:
            self._told = True
            for process in self.running():
                process.terminate()

    def exit_code(self) -> int:
        return 0 if self.first is None or self.first.code is None else self.first.code


class StopRequest:
    """The handler of SIGTERM, installed before the first process is started."""

    def __init__(self) -> None:
        self.received = False
        self.wake = -1  # a file that wakes `select` when a signal has come

    def __call__(self, *_: object) -> None:
        self.received = True

    def listen(self) -> None:
        self.wake, writing = os.pipe()
        for end in (self.wake, writing):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self)


def run(command: str, processes: int, stop_seconds: float, peer_seconds: float = PEER_SECONDS) -> int:
    """Start the processes, wait for their end, and return the learner's exit code."""
    stop = StopRequest()
    stop.listen()
    return start_and_wait(stop, command, processes, stop_seconds, peer_seconds)


def start_and_wait(stop: StopRequest, command: str, processes: int, stop_seconds: float, peer_seconds: float) -> int:
    """Do what `run` does, once the handler listens; start no process if SIGTERM has come already."""
    _become_subreaper()
    started: list[Process] = []
    for local_rank in range(processes):
        if not stop.received:
            environment = environment_of(os.environ, local_rank, processes)
            started.append(Process(int(environment["RANK"]), command, environment))
    if not started:
        return 128 + signal.SIGTERM
    learner = Learner(started, stop_seconds, peer_seconds)
    streams = {stream.source: stream for process in started for stream in process.streams}
    _supervise(learner, streams, stop)
    _kill_rest()
    _drain(streams)
    _repeat(learner)
    return learner.exit_code()


def environment_of(pod: os._Environ[str] | dict[str, str], local_rank: int, processes: int) -> dict[str, str]:
    """Return the environment of one process, from that of its pod, in which RANK is the rank of the learner."""
    node, nodes = int(pod.get("NODE_RANK") or 0), int(pod.get("NUM_LEARNERS") or 1)
    return {
        **pod,
        "RANK": str(node * processes + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(nodes * processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(nodes),
    }


def _supervise(learner: Learner, streams: dict[int, Stream], stop: StopRequest) -> None:
    by_pid = {process.pid: process for process in learner.processes}
    passed_on = False
    while True:
        now = time.monotonic()
        if stop.received and not passed_on:
            passed_on = True
            learner.stop(now)
        for pid, status in _collect():
            process = by_pid.pop(pid, None)  # an adopted process may get the same number later
            if process is not None:
                learner.ended(process, _exit_code(status), now)
        if not learner.running():
            return
        ready, _, _ = select.select([stop.wake, *streams], [], [], learner.tick(now))
        _copy(streams, [source for source in ready if source != stop.wake])
        if stop.wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(stop.wake, 4096)


def _copy(streams: dict[int, Stream], ready: list[int]) -> None:
    for source in ready:
        if not streams[source].read():
            del streams[source]


def _drain(streams: dict[int, Stream]) -> None:
    """Copy what is left in the pipes; no process writes any more."""
    while streams:
        ready, _, _ = select.select(list(streams), [], [], 0)
        if not ready:
            return
        _copy(streams, ready)


def _repeat(learner: Learner) -> None:
    """Print the last lines of the process that failed first again, so that they are the log's last lines."""
    first = learner.first
    if first is not None and learner.failed and len(learner.processes) > 1:
        _say(f"rank {first.rank} ended first, with {_told_code(first.code or 0)}; its last lines:")
        _write(2, b"".join(first.last))


def _collect() -> list[tuple[int, int]]:
    """Return process id and wait status of every child that has ended, adopted ones included."""
    found = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        found.append((pid, status))


def _kill_rest() -> None:
    """Kill what the processes have left behind: all that descends from the launcher."""
    until = time.monotonic() + 5.0
    while time.monotonic() < until:
        _collect()
        left = _below(os.getpid(), _parents())
        if not left:
            return
        for pid in left:
            _kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _told_of_sigterm(first: int) -> list[int]:
    """Return the processes that get SIGTERM: the first, or what runs below it if that is a shell that waits."""
    parents, looked_at, found = _parents(), [first], []
    for pid in looked_at:
        children = [child for child, parent in parents.items() if parent == pid]
        if children and _is_waiting_shell(pid):
            looked_at.extend(children)
        else:
            found.append(pid)
    return found


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


def _become_subreaper() -> None:
    """Adopt the orphans of the processes (on Linux), so that they can be found and killed."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _exit_code(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _told_code(code: int) -> str:
    return f"exit code {code}" + (f" (signal {code - 128})" if code > 128 else "")


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _say(text: str) -> None:
    _write(2, f"{SAYS}{text}\n".encode())


def _write(target: int, data: bytes) -> None:
    with contextlib.suppress(OSError):  # nobody reads the log any more; the processes go on
        while data:
            data = data[os.write(target, data) :]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Start the processes of one learner.")
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--stop-seconds", type=float, required=True)
    parser.add_argument("--peer-seconds", type=float, default=PEER_SECONDS)
    parser.add_argument("command", help="a line of shell")
    given = parser.parse_args(arguments)
    return run(given.command, given.processes, given.stop_seconds, given.peer_seconds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
