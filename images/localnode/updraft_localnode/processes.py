"""Handle the processes of containers: start them with the shim, find them after a restart, signal, measure, kill.

Each run of a container has a folder: `process` (pids and creation times of shim and program), `started`, `exit` and
`log` (see `shim`). A pid is used only with its creation time, so a reused pid is never signalled. `kill_leftovers` is
for a dead node; `leftovers` runs it for `updraft down`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from updraft_localnode import disks, shim

SHIM = Path(shim.__file__)
WATCH_SECONDS = 0.25  # interval between looks at processes that are not this process's children
MEMORY_SECONDS = 0.5
SHIM_EXIT_SECONDS = 3.0
FREEZE_ROUNDS = 50


@dataclass(frozen=True)
class ProcessId:
    """The identity of a process, which a later process with the same pid does not share."""

    pid: int
    created: float

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        try:
            return cls(pid, psutil.Process(pid).create_time())
        except psutil.Error:
            return None

    def process(self) -> psutil.Process | None:
        """Return the process, or None if it no longer exists. A zombie counts as ended."""
        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.created) > 0.05 or process.status() == psutil.STATUS_ZOMBIE:
                return None
        except psutil.Error:
            return None
        return process


@dataclass(frozen=True)
class ProcessExit:
    """The end of a container's program."""

    code: int
    reason: str
    started_at: str
    finished_at: str
    message: str = ""


@dataclass(eq=False)
class ContainerProcess:
    """One run of one container."""

    folder: Path
    shim: ProcessId | None
    main: ProcessId | None = None
    started_at: str = ""  # empty if the program could not be started
    memory_limit_bytes: int | None = None
    popen: subprocess.Popen[bytes] | None = None
    exit: ProcessExit | None = None
    exited: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self) -> ProcessExit:
        await self.exited.wait()
        assert self.exit is not None
        return self.exit


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return None


def _write(path: Path, content: Mapping[str, Any]) -> None:
    aside = path.with_name(path.name + ".new")
    aside.write_text(json.dumps(content))
    aside.replace(path)


def _record(process: ContainerProcess) -> None:
    ids = {"shim": process.shim, "main": process.main}
    _write(process.folder / "process", {k: [v.pid, v.created] for k, v in ids.items() if v is not None})


def _load(folder: Path) -> ContainerProcess | None:
    """Return what was recorded of an attempt; None if it was never started."""
    recorded = _read(folder / "process")
    if recorded is None:
        return None
    started = _read(folder / "started") or {}
    ids = {name: ProcessId(int(value[0]), float(value[1])) for name, value in recorded.items()}
    process = ContainerProcess(folder, ids.get("shim"), ids.get("main"), str(started.get("startedAt", "")))
    if process.main is None and "pid" in started and process.shim is not None and process.shim.process() is not None:
        process.main = ProcessId.of(int(started["pid"]))  # its parent is alive, so the pid is still its own
    return process


def _members(process: ContainerProcess) -> list[psutil.Process]:
    """Return every living process of the container except the shim."""
    found: dict[int, psutil.Process] = {}
    for identity in (process.shim, process.main):
        root = identity.process() if identity is not None else None
        if root is not None:
            with contextlib.suppress(psutil.Error):
                found |= {child.pid: child for child in root.children(recursive=True)}
            if identity is process.main:
                found[root.pid] = root
    if process.main is not None:
        # Orphans of the program stay in its session, whose number is not reused while one of them lives.
        for pid in psutil.pids():
            with contextlib.suppress(OSError, psutil.Error):
                if pid not in found and os.getsid(pid) == process.main.pid:
                    found[pid] = psutil.Process(pid)
    return list(found.values())


def kill_all(process: ContainerProcess) -> None:
    """Send SIGKILL to all of the container except the shim, which then records the end."""
    for member in _members(process):
        with contextlib.suppress(psutil.Error):
            member.kill()


def terminate(process: ContainerProcess) -> None:
    """Send SIGTERM to the program, through the shim."""
    shim_process = process.shim.process() if process.shim is not None else None
    if shim_process is not None:
        with contextlib.suppress(psutil.Error):
            shim_process.send_signal(signal.SIGTERM)
        return
    for member in _members(process):
        with contextlib.suppress(psutil.Error):
            member.terminate()


def signal_program(process: ContainerProcess, number: int) -> int:
    """Send a signal to the program alone; return its pid. Raises ProcessLookupError if it has ended."""
    program = process.main.process() if process.main is not None else None
    if program is None:
        raise ProcessLookupError
    with contextlib.suppress(psutil.NoSuchProcess):
        program.send_signal(number)
    return program.pid


def kill_out_of_memory(process: ContainerProcess) -> None:
    """Do what the kernel does to a container over its limit: all its processes die, and its end is OOMKilled."""
    (process.folder / "oom").touch()
    kill_all(process)


def freeze(process: ContainerProcess) -> None:
    """Stop every process of the container, also processes that are forked in the meantime; `thaw` continues them."""
    (process.folder / "frozen").touch()
    for _ in range(FREEZE_ROUNDS):
        moving = [m for m in _members(process) if _status(m) not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)]
        if not moving:
            return
        for member in moving:
            with contextlib.suppress(psutil.Error):
                member.suspend()
        time.sleep(0.01)


def thaw(process: ContainerProcess) -> None:
    (process.folder / "frozen").unlink(missing_ok=True)
    for member in _members(process):
        with contextlib.suppress(psutil.Error):
            member.resume()


def is_frozen(process: ContainerProcess) -> bool:
    return (process.folder / "frozen").exists()


def _status(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.Error:
        return str(psutil.STATUS_ZOMBIE)


def kill_leftovers(state_dir: Path, pod_folder: str = "*") -> int:
    """Kill every process that a dead local node left behind; returns how many containers still ran.

    Only processes recorded below `state_dir` whose creation time is the recorded one are touched.
    """
    living = []
    for path in sorted(state_dir.glob(f"pods/{pod_folder}/c/*/*/process")):
        process = _load(path.parent)
        if process is not None and (_members(process) or (process.shim is not None and process.shim.process())):
            living.append(process)
    deadline = time.monotonic() + SHIM_EXIT_SECONDS
    left = living
    while left:
        late = time.monotonic() > deadline
        for process in left:
            kill_all(process)
            shim_process = process.shim.process() if process.shim is not None else None
            if late and shim_process is not None:
                with contextlib.suppress(psutil.Error):
                    shim_process.kill()
        if time.monotonic() > deadline + SHIM_EXIT_SECONDS:
            break
        time.sleep(0.05)
        left = [p for p in left if _members(p) or (p.shim is not None and p.shim.process() is not None)]
    for folder in state_dir.glob(f"pods/{pod_folder}"):
        disks.release_all(folder)
    return len(living)


def _resident_bytes(process: ContainerProcess, limit_bytes: int) -> int:
    """Return the memory of the container. Shared pages are counted once (Linux: PSS) before a limit counts as
    exceeded."""
    members = _members(process)
    total = 0
    for member in members:
        with contextlib.suppress(psutil.Error):
            total += member.memory_info().rss
    if total <= limit_bytes or sys.platform != "linux":
        return total
    total = 0
    for member in members:
        with contextlib.suppress(psutil.Error):
            total += member.memory_full_info().pss
    return total


def account(process: ContainerProcess, folder: Path) -> None:
    """Write what a kernel counts of a container with a control group of its own, under the same names. Blocks."""
    folder.mkdir(exist_ok=True)
    limit_bytes = process.memory_limit_bytes
    values = {
        "memory.current": _resident_bytes(process, 0),
        "memory.max": "max" if limit_bytes is None else limit_bytes,
        "memory.stat": "inactive_file 0",  # unmapped file pages are counted for the machine, not for this container
    }
    for name, value in values.items():
        (folder / name).write_text(f"{value}\n")


class ProcessTable:
    """All running containers. `watch` and `guard_memory` are its two background loops."""

    def __init__(self) -> None:
        self._running: list[ContainerProcess] = []
        self._wake = asyncio.Event()

    async def start(
        self,
        folder: Path,
        argv: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path,
        memory_limit_bytes: int | None = None,
    ) -> ContainerProcess:
        """Return once the program runs, or has failed to start (then `exit` is set)."""
        orders = {"argv": list(argv), "env": dict(environment), "cwd": str(cwd), "folder": str(folder)}
        process = await asyncio.to_thread(_start, folder, json.dumps(orders).encode())
        process.memory_limit_bytes = memory_limit_bytes
        self._running.append(process)
        self._look_at(process)
        return process

    def adopt(self, folder: Path, memory_limit_bytes: int | None = None) -> ContainerProcess | None:
        """Return the attempt that an earlier local node started in `folder`; None if there is none."""
        process = _load(folder)
        if process is None:
            return None
        if _gone(process.shim) and not (folder / "started").exists() and not (folder / "exit").exists():
            return None  # the earlier local node died before it sent the shim its orders
        process.memory_limit_bytes = memory_limit_bytes
        self._running.append(process)
        self._look_at(process)
        self._wake.set()  # an adopted process needs more frequent looks
        return process

    def living(self) -> list[ContainerProcess]:
        return [p for p in self._running if p.exit is None]

    def child_ended(self) -> None:
        """Handle SIGCHLD."""
        self._wake.set()

    async def watch(self) -> None:
        """Note ends: at once for our own children, within a quarter of a second for adopted ones."""
        while True:
            adopted = any(p.popen is None for p in self._running)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), WATCH_SECONDS if adopted else 5.0)
            self._wake.clear()
            for process in list(self._running):
                self._look_at(process)

    async def guard_memory(self) -> None:
        """Kill containers that hold more than their limit; their end is then called OOMKilled."""
        while True:
            limited = [(p, p.memory_limit_bytes) for p in self.living() if p.memory_limit_bytes is not None]
            for process, limit in limited:
                if await asyncio.to_thread(_resident_bytes, process, limit) > limit:
                    await asyncio.to_thread(kill_out_of_memory, process)
            await asyncio.sleep(MEMORY_SECONDS)

    def _look_at(self, process: ContainerProcess) -> None:
        if process.exit is not None:
            return
        ended = process.popen.poll() is not None if process.popen is not None else _gone(process.shim)
        if not ended:
            return
        result = _read(process.folder / "exit")
        if result is None:  # the shim was killed: nobody would see the program's end, so end it
            kill_all(process)
            now = shim.timestamp()
            message = "The container could not be located when the pod was terminated"
            started = process.started_at or now
            process.exit = ProcessExit(137, "ContainerStatusUnknown", started, now, message)
        else:
            process.exit = _exit_of(result, out_of_memory=(process.folder / "oom").exists())
        self._running.remove(process)
        process.exited.set()


def _gone(identity: ProcessId | None) -> bool:
    return identity is None or identity.process() is None


def _exit_of(result: Mapping[str, Any], *, out_of_memory: bool) -> ProcessExit:
    code = int(result["exitCode"])
    reason = str(result.get("reason") or ("Completed" if code == 0 else "Error"))
    if out_of_memory and code == 137:
        reason = "OOMKilled"
    started, finished = str(result["startedAt"]), str(result["finishedAt"])
    return ProcessExit(code, reason, started, finished, str(result.get("message", "")))


def _start(folder: Path, orders: bytes) -> ContainerProcess:
    """Block for some milliseconds."""
    popen = subprocess.Popen(
        [sys.executable, "-I", "-S", str(SHIM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        cwd="/",
        start_new_session=True,
    )
    process = ContainerProcess(folder, ProcessId.of(popen.pid), popen=popen)
    _record(process)  # before the orders are sent, so that `kill_leftovers` finds the process
    assert popen.stdin is not None
    assert popen.stdout is not None
    with contextlib.suppress(BrokenPipeError), popen.stdin:
        popen.stdin.write(orders)
    with popen.stdout:
        line = popen.stdout.readline()
    told = json.loads(line) if line.strip() else {}
    if "pid" in told:
        process.started_at = str(told["startedAt"])
        process.main = ProcessId.of(int(told["pid"]))
        _record(process)
    else:
        popen.wait()
    return process
