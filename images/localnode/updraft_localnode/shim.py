"""Run one container's program and outlive the local node. Standard library only; starts in milliseconds.

Started as `python -I -S shim.py` in a session of its own. It reads its orders as JSON from stdin: {argv, env, cwd,
folder}. They may contain secrets, so they are neither in argv nor in a file. It writes into the folder

- `log`        every line of the program, as `<RFC 3339 with nanoseconds> stdout|stderr F|P <text>` (CRI format)
- `started`    {"pid", "startedAt"} once the program runs
- `exit`       {"exitCode", "reason"?, "message"?, "startedAt", "finishedAt"}, atomically, as the last thing

and the line of `started` (or `exit`, if the program could not start) to stdout. When the program ends by itself, its
remaining processes are killed, as at the end of a PID namespace. A SIGTERM to the shim is passed on to the program,
also below its shell, as `kubernetes.termination` does in a container. If the first process dies of it (as pid 1 of a
container it would have ignored it), SIGTERM goes to the rest of its process group, which may continue until the grace
period ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time

LONGEST_LINE_BYTES = 16384
SHELLS = frozenset({"sh", "dash", "bash", "ash", "ksh", "mksh", "zsh", "busybox"})
_LINUX_PR_SET_CHILD_SUBREAPER = 36


def timestamp() -> str:
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{nanoseconds:09d}Z"


def write_atomically(path: str, content: dict[str, object]) -> None:
    with open(f"{path}.new", "w") as handle:
        json.dump(content, handle)
    os.replace(f"{path}.new", path)


class LineLog:
    """Splits one stream into lines of the log file."""

    def __init__(self, fd: int, name: str, log: int) -> None:
        self.fd, self._name, self._log = fd, name.encode(), log
        self._rest = b""

    def read(self) -> bool:
        """Read what is available; return False at the end of the stream."""
        data = os.read(self.fd, 65536)
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        out = [self._format(line) for line in lines]
        while len(self._rest) >= LONGEST_LINE_BYTES:
            out.append(self._entry(b"P", self._rest[:LONGEST_LINE_BYTES]))
            self._rest = self._rest[LONGEST_LINE_BYTES:]
        if not data and self._rest:
            out.append(self._entry(b"P", self._rest))  # the stream ended without a newline; P marks that
            self._rest = b""
        if out:
            _write_all(self._log, b"".join(out))
        return bool(data)

    def _format(self, line: bytes) -> bytes:
        parts = [line[i : i + LONGEST_LINE_BYTES] for i in range(0, len(line), LONGEST_LINE_BYTES)] or [b""]
        return b"".join(self._entry(b"P", p) for p in parts[:-1]) + self._entry(b"F", parts[-1])

    def _entry(self, tag: bytes, text: bytes) -> bytes:
        return b"%s %s %s %s\n" % (timestamp().encode(), self._name, tag, text)


def _write_all(fd: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:
        pass  # the disk is full: the program continues, its log does not


def become_subreaper() -> None:
    """Make orphans of the program children of this process (on Linux), so that they can be found and killed."""
    if sys.platform != "linux":
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_LINUX_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _parents() -> dict[int, int]:
    """Return the parent of every process."""
    parents: dict[int, int] = {}
    if os.path.isdir("/proc/self"):
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{entry}/stat") as handle:
                    parents[int(entry)] = int(handle.read().rpartition(")")[2].split()[1])
        return parents
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        listing = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=False).stdout
        for line in listing.splitlines():
            pid, parent = line.split()
            parents[int(pid)] = int(parent)
    return parents


def _is_waiting_shell(pid: int) -> bool:
    """Return whether the process is a shell without a trap for SIGTERM, which the signal would end together with what
    it runs; False if /proc does not say.

    bash also handles SIGTERM and SIGALRM while it has a trap for its exit, and is ended by them all the same.
    """
    try:
        name = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
        with open(f"/proc/{pid}/status") as handle:
            caught = int(next(line for line in handle if line.startswith("SigCgt:")).split()[1], 16)
    except (OSError, StopIteration, ValueError):
        return False
    traps = caught >> (signal.SIGTERM - 1) & 1 and not caught >> (signal.SIGALRM - 1) & 1
    return name in SHELLS and not traps


def told_of_sigterm(first: int) -> list[int]:
    """Return the processes that get a container's SIGTERM: the first process, or what runs below it if that is a shell
    that waits."""
    parents, looked_at, found = _parents(), [first], []
    for pid in looked_at:
        below = [child for child, parent in parents.items() if parent == pid]
        if below and _is_waiting_shell(pid):
            looked_at += below
        else:
            found.append(pid)
    return found


def descendants(root: int) -> list[int]:
    parents, found = _parents(), [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def kill_rest(group: int) -> None:
    """Kill the program's process group and everything that descends from us."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    for pid in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def exit_code(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def start(orders: dict[str, object], out: int, err: int) -> subprocess.Popen[bytes]:
    """Start the program. Raises OSError if it cannot be started."""
    argv = [str(a) for a in orders["argv"]]  # type: ignore[attr-defined]
    env = {str(k): str(v) for k, v in orders["env"].items()}  # type: ignore[attr-defined]
    if "/" not in argv[0]:
        found = shutil.which(argv[0], path=env.get("PATH", ""))
        if found is None:
            raise FileNotFoundError(2, "executable file not found in $PATH", argv[0])
        executable = found
    else:
        executable = argv[0]
    return subprocess.Popen(
        argv,
        executable=executable,
        env=env,
        cwd=str(orders["cwd"]),
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        start_new_session=True,
        umask=0o022,
    )


class StopRequest:
    """A handler that remembers a SIGTERM to the shim and passes it on."""

    def __init__(self) -> None:
        self.received = False
        self.main: int | None = None

    def __call__(self, *_: object) -> None:
        self.received = True
        self.forward()

    def forward(self) -> None:
        if self.received and self.main is not None:
            for pid in told_of_sigterm(self.main):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGTERM)


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def supervise(main: int, streams: list[LineLog], stop: StopRequest, wake: int) -> int:
    """Copy output until the program has ended and nothing of it is left; returns its wait status."""
    open_streams = {stream.fd: stream for stream in streams}
    status: int | None = None
    while True:
        known = status is not None
        status, children_left = _reap(main, status)
        if status is not None:
            stop.main = None  # from now on, its pid may be another process's
            died_of_request = stop.received and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM
            if not children_left and not _exists(main):
                break
            if not died_of_request:
                kill_rest(main)
            elif not known:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(main, signal.SIGTERM)
        ready, _, _ = select.select([wake, *open_streams], [], [], None if status is None else 0.1)
        for fd in ready:
            if fd == wake:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
            elif not open_streams[fd].read():
                del open_streams[fd]
    while open_streams:  # read what is left in the pipes; no process writes any more
        ready, _, _ = select.select(list(open_streams), [], [], 0)
        if not ready:
            break
        for fd in ready:
            if not open_streams[fd].read():
                del open_streams[fd]
    return status


def listen_for_signals(stop: StopRequest) -> int:
    """Install handlers (not SIG_IGN, which the program would inherit); returns a file that wakes `select`."""
    wake_read, wake_write = os.pipe()
    for fd in (wake_read, wake_write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGTERM, stop)
    return wake_read


def _reap(main: int, status: int | None) -> tuple[int | None, bool]:
    """Collect every ended child. Returns the program's status once known, and whether a child is left."""
    while True:
        try:
            pid, child_status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status, False
        if pid == 0:
            return status, True
        if pid == main:
            status = child_status


def main() -> None:
    stop = StopRequest()
    wake = listen_for_signals(stop)
    text = sys.stdin.read()
    if not text:
        return  # the local node died before it sent the orders
    orders = json.loads(text)
    folder = str(orders["folder"])
    become_subreaper()
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    log = os.open(os.path.join(folder, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    started_at = timestamp()
    exit_file = os.path.join(folder, "exit")
    try:
        process = start(orders, out_write, err_write)
    except OSError as exc:
        message = f"failed to start container: exec: {json.dumps(orders['argv'][0])}: {exc.strerror}"
        failed = {"exitCode": 128, "reason": "StartError", "message": message}
        result = {**failed, "startedAt": started_at, "finishedAt": timestamp()}
        write_atomically(exit_file, result)
        _tell(result)
        return
    stop.main = process.pid
    stop.forward()
    for fd in (out_write, err_write):
        os.close(fd)
    started: dict[str, object] = {"pid": process.pid, "startedAt": started_at}
    write_atomically(os.path.join(folder, "started"), started)
    _tell(started)
    streams = [LineLog(out_read, "stdout", log), LineLog(err_read, "stderr", log)]
    status = supervise(process.pid, streams, stop, wake)
    ended = {"exitCode": exit_code(status), "startedAt": started_at, "finishedAt": timestamp()}
    write_atomically(exit_file, ended)


def _tell(fact: dict[str, object]) -> None:
    """Hand one line to the local node, if it still listens."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(fact).encode() + b"\n")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


if __name__ == "__main__":
    main()
