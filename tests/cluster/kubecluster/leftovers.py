"""What a cluster has left on this machine, in sentences: processes, mounts, devices, routes, control groups, files.

Called by tests, after `down`.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

from kubecluster import cgroups
from kubecluster.building import UNFINISHED
from kubecluster.layout import Layout
from kubecluster.running import members

# Made by kubelets, container runtimes and network plugins where nothing keeps them from it.
FOREIGN = ("/var/lib/kubelet", "/var/lib/cni", "/var/log/pods", "/var/log/containers", "/usr/libexec/kubernetes")


def inhabitants(layout: Layout) -> frozenset[psutil.Process]:
    """All processes of the cluster: its parts, and below them those of its containers, which do not carry its mark."""
    found = set(members(layout))
    for process in tuple(found):
        with suppress(psutil.Error):
            found.update(process.children(recursive=True))
    return frozenset(found)


def leftovers(layout: Layout, before: frozenset[psutil.Process] = frozenset()) -> list[str]:
    """What is still there. `before`: inhabitants that the cluster had.

    Not what is in the namespaces of then: the kernel gives the number of one that is gone to the next, of whomever.
    """
    found = [f"process {p.pid} {p.name()}" for p in members(layout)]
    for process in before:
        with suppress(psutil.Error):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"process {process.pid} {process.name()}")
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
