"""What a cluster has left on this machine, in sentences: processes, mounts, devices, routes, control groups, files.

Called by tests, after `down`.
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from kubecluster import cgroups
from kubecluster.building import UNFINISHED
from kubecluster.layout import Layout
from kubecluster.running import members

# Made by kubelets, container runtimes and network plugins where nothing keeps them from it.
FOREIGN = ("/var/lib/kubelet", "/var/lib/cni", "/var/log/pods", "/var/log/containers", "/usr/libexec/kubernetes")


@dataclass(frozen=True)
class Namespaces:
    """Process, mount and network namespaces, and when they were seen (unix seconds)."""

    names: frozenset[str] = frozenset()
    at: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.names)


def namespaces(layout: Layout) -> Namespaces:
    """Those of the cluster's machines, while they run."""
    own = set(_namespaces(os.getpid()))
    found = frozenset(found for process in members(layout) for found in _namespaces(process.pid))
    return Namespaces(found - own, time.time())


def leftovers(layout: Layout, before: Namespaces = Namespaces()) -> list[str]:
    """What is still there. `before`: namespaces that the cluster had."""
    found = [f"process {p.pid} {p.name()}" for p in members(layout)]
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            inside = before.names.intersection(_namespaces(process.pid))
            # The kernel gives the number of a namespace that is gone to the next one, of whomever: of a container that
            # is built beside the tests, for instance. What began later (to a second, as psutil knows it) is another's.
            if inside and process.create_time() <= before.at + 1 and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"process {process.pid} {process.name()} in {', '.join(sorted(inside))}")
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found += [f"mount {line}" for line in mounts if str(layout.root) in line or layout.name in line]
    for what in (["link"], ["route"], ["netns"]):
        lines = subprocess.run(["ip", *what], capture_output=True, text=True, check=True).stdout.splitlines()
        found += [f"{what[0]} {line}" for line in lines if layout.name in line]
    found += [f"control group {path}" for path in cgroups.remains(layout.name)]
    found += [f"folder {layout.root}"] if layout.root.exists() else []
    found += [f"unfinished {path}" for path in layout.cache.glob(f"{UNFINISHED}{layout.name}*")]
    return found


def foreign_folders() -> set[str]:
    """Which of the places exist that a cluster without machines of its own would write to."""
    return {path for path in FOREIGN if Path(path).exists()}


def _namespaces(pid: int) -> list[str]:
    found = []
    for kind in ("pid", "mnt", "net"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/{pid}/ns/{kind}"))
    return found
