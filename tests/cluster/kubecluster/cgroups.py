"""The control groups of a cluster: one tree for each node, below one named after the cluster, in each hierarchy.

Version 1 has a hierarchy for each controller, version 2 one for all. Called by `machines` and `running`.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

MOUNTED = Path("/sys/fs/cgroup")
NEEDED = ("cpu", "cpuset", "memory", "pids")


def hierarchies(mounted: Path = MOUNTED) -> list[Path]:
    """The folders that each hold a whole tree of groups."""
    if (mounted / "cgroup.controllers").exists():
        return [mounted]
    found = {}
    for folder in sorted(mounted.iterdir()) if mounted.is_dir() else []:
        if (folder / "cgroup.procs").exists():
            found[os.stat(folder).st_dev, os.stat(folder).st_ino] = folder  # `cpu,cpuacct` has links to it
    return list(found.values())


def make(name: str, mounted: Path = MOUNTED) -> None:
    """The group `name` ("cluster/node") in each hierarchy, able to hold processes and groups."""
    for hierarchy in hierarchies(mounted):
        folder = hierarchy
        for part in name.split("/"):
            if hierarchy == mounted:  # version 2: what children may use is said by their parent
                have = (folder / "cgroup.controllers").read_text().split()
                for controller in have:
                    with suppress(OSError):
                        (folder / "cgroup.subtree_control").write_text(f"+{controller}")
            parent, folder = folder, folder / part
            folder.mkdir(exist_ok=True)
            for setting in ("cpuset.cpus", "cpuset.mems"):  # version 1: empty until set, and then nothing may enter
                if (folder / setting).exists() and not (folder / setting).read_text().strip():
                    with suppress(OSError):
                        (folder / setting).write_text((parent / setting).read_text())


def missing(mounted: Path = MOUNTED) -> list[str]:
    """Controllers that a kubelet needs and this machine does not have mounted."""
    if (mounted / "cgroup.controllers").exists():
        have = set((mounted / "cgroup.controllers").read_text().split())
    else:
        have = {part for path in hierarchies(mounted) for part in path.name.split(",")}
        have |= {path.name for path in mounted.iterdir()} if mounted.is_dir() else set()
    return [name for name in NEEDED if name not in have]


def remains(name: str, mounted: Path = MOUNTED) -> list[Path]:
    return [folder / name for folder in hierarchies(mounted) if (folder / name).exists()]


def remove(name: str, *, within_seconds: float = 10.0, mounted: Path = MOUNTED) -> list[Path]:
    """End every process in the group's tree and remove it. Returns what could not be removed in time."""
    deadline = time.monotonic() + within_seconds
    while True:
        left = remains(name, mounted)
        for root in left:
            for folder, _, files in os.walk(root):
                if "freezer.state" in files:  # version 1 keeps even SIGKILL from a frozen process
                    with suppress(OSError):
                        (Path(folder) / "freezer.state").write_text("THAWED")
            for folder, _, _ in os.walk(root, topdown=False):
                with suppress(OSError):
                    for pid in (Path(folder) / "cgroup.procs").read_text().split():
                        os.kill(int(pid), signal.SIGKILL)
                with suppress(OSError):
                    os.rmdir(folder)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)
