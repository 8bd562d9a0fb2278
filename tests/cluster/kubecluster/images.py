"""Images on the nodes: archives enter each node's containerd, since no registry need be reachable.

Called by `running`, `python tests/cluster load` and tests.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

from kubecluster.layout import ClusterError, Layout
from kubecluster.machines import NODES, run_on

PAUSE_IMAGE = "updraft.test/pause:1"
PYTHON_IMAGE = "updraft.test/python:1"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"  # in each node's own /run


def load_image(archive: Path, layout: Layout, nodes: tuple[str, ...] | None = None) -> list[str]:
    """Import what `docker save` wrote on all nodes, or those named. Returns the images' names."""
    if not os.access(archive, os.R_OK):
        raise ClusterError(f"The image archive {archive} is not there or cannot be read.")
    names: list[str] = []
    for node in nodes or NODES:
        command = [*ctr(layout), "images", "import", "--snapshotter", snapshotter(layout, node), "-"]
        done = run_on(layout, node, command, standard_input=archive)
        if done.returncode != 0:
            raise ClusterError(f"{archive} could not be imported on {node}: {done.stderr.strip()[-400:]}")
        names = re.findall(r"^unpacking (\S+)", done.stdout, re.MULTILINE)
    return names


def image_names(layout: Layout, node: str) -> set[str]:
    return set(run_on(layout, node, [*ctr(layout), "images", "list", "--quiet"]).stdout.split())


def ctr(layout: Layout) -> list[str]:
    """Kubernetes' images are in a namespace of containerd's."""
    return ["ctr", "--address", CONTAINERD_SOCKET, "--namespace", "k8s.io"]


def snapshotter(layout: Layout, node: str) -> str:
    settings = tomllib.loads((layout.configuration / f"{node}.containerd.toml").read_text())
    found = settings["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["snapshotter"]
    return str(found)
