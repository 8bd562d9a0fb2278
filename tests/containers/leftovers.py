"""Removes what an engine leaves on the machine, also one that was killed: processes, mounts, bridges, control groups.

Everything is recognised by the engine's own state folder, so nothing of another engine is touched. Called by `engine`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from containers.places import Places

KILL_SECONDS = 10.0
CGROUPS = Path("/sys/fs/cgroup")
SIOCSIFFLAGS, SIOCBRDELBR, BRIDGE_NAME_BYTES = 0x8914, 0x89A1, 16


def daemon(places: Places) -> int | None:
    """The engine's process, if it lives: a process of another program may have got its number."""
    try:
        pid = int(places.pid_file.read_text())
    except (OSError, ValueError):
        return None
    return pid if pid in dict(_processes_of(places)) else None


def remove_all(places: Places) -> None:
    """Leaves the state folder's lock only."""
    bridges = _bridges(places)
    end_processes(places)
    unmount(places)
    for name in bridges:
        _remove_bridge(name)
    _remove_cgroups(places)
    for path in _shim_sockets(places):
        path.unlink(missing_ok=True)
    for path in places.state.iterdir():
        if path.name == "lock":
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def end_processes(places: Places) -> None:
    """SIGKILL for the engine's own programs, then for what its containers run."""
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        pids = {*dict(_processes_of(places)), *_members(places)}
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def unmount(places: Places) -> None:
    below = f"{places.state}/"
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    mounts = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    for mount in sorted((m for m in mounts if m.startswith(below)), key=len, reverse=True):
        subprocess.run(["umount", "--lazy", mount], capture_output=True)


def _processes_of(places: Places) -> Iterator[tuple[int, str]]:
    """Processes of the engine: their command lines name its folders."""
    marks = (f"{places.run}/".encode(), str(places.data).encode(), str(places.run).encode() + b"\0")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes()
            program = line.split(b"\0")[0].rpartition(b"/")[2].decode(errors="replace")
            known = program.startswith(("dockerd", "containerd", "docker-proxy", "runc"))
            if known and any(mark in line for mark in marks):
                yield int(entry.name), program


def _members(places: Places) -> set[int]:
    """Processes in the control groups of this engine's containers."""
    found: set[int] = set()
    for group in _groups(places):
        with contextlib.suppress(OSError, ValueError):
            found |= {int(line) for line in (group / "cgroup.procs").read_text().split()}
    return found


def _groups(places: Places) -> list[Path]:
    """Deepest first; each controller has a tree of its own on older systems."""
    roots = [CGROUPS / places.cgroup, *CGROUPS.glob(f"*/{places.cgroup}")]
    found = [Path(folder) for root in roots if root.is_dir() for folder, _, _ in os.walk(root)]
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def _remove_cgroups(places: Places) -> None:
    for group in _groups(places):
        with contextlib.suppress(OSError):
            group.rmdir()


def _bridges(places: Places) -> list[str]:
    """Bridges whose names come from networks in the engine's own book."""
    try:
        book = (places.data / "network" / "files" / "local-kv.db").read_bytes()
    except OSError:
        return []
    names = [path.parent.name for path in Path("/sys/class/net").glob("br-*/bridge")]
    return [name for name in names if name.removeprefix("br-").encode() in book]


def _remove_bridge(name: str) -> None:
    if not Path("/sys/class/net", name).exists():
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        down = struct.pack("16sh14x", name.encode(), 0)
        fcntl.ioctl(control, SIOCSIFFLAGS, down)
        fcntl.ioctl(control, SIOCBRDELBR, name.encode().ljust(BRIDGE_NAME_BYTES, b"\0"))


def _shim_sockets(places: Places) -> list[Path]:
    """Sockets that shims keep in a folder which all of the machine share."""
    found = []
    for file in places.run.glob("containerd/daemon/io.containerd.runtime.v2.task/*/*/address"):
        with contextlib.suppress(OSError):
            path = Path(file.read_text().strip().removeprefix("unix://"))
            if path.parent == Path("/run/containerd/s"):
                found.append(path)
    return found
