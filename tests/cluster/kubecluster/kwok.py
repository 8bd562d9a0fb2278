"""Nodes that nobody runs beside the real ones, for tests of many pods: KWOK writes their status and their pods'.

The nodes carry a label and a taint, so that only pods that ask for them lie there. Logs are served by `fakelogs`.
Called by `bench/`.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubecluster import api
from kubecluster.building import build_tool, kubernetes_version
from kubecluster.certificates import FAKE_KUBELET
from kubecluster.layout import ClusterError, Layout
from kubecluster.needs import marked_environment
from kubecluster.running import Cluster, Say
from kubecluster.stages import FAKE_LABEL, MANAGED, stages
from updraft.stack.config import port_taken
from updraft.stack.processes import Identity, end_session, spawn

MODULE = Path(__file__).resolve().parents[1] / "kwok"
PACKAGE, NAME = "sigs.k8s.io/kwok/cmd/kwok", "kwok"
LEASE_SECONDS = 8  # renewed after a quarter of it; the cluster gives a node up two seconds after it
READY_SECONDS = 60.0

SELECTOR = {FAKE_LABEL: "true"}  # a pod's nodeSelector
TOLERATION = {"key": MANAGED[0], "operator": "Equal", "value": MANAGED[1], "effect": "NoSchedule"}


@contextmanager
def fake_nodes(cluster: Cluster, count: int, say: Say, *, line_seconds: float = 60.0) -> Iterator[None]:
    """As many nodes for as long as this lasts. A program on them prints a line each `line_seconds`."""
    layout = cluster.layout
    environment = marked_environment(layout)
    program = build_tool(layout, MODULE, PACKAGE, NAME, environment, say)
    port = _free_port(cluster.network.host)
    configuration = layout.configuration / "kwok.json"
    configuration.write_text("\n---\n".join(json.dumps(stage) for stage in stages(kubernetes_version())))
    names = [f"fake-{n}" for n in range(1, count + 1)]
    started: list[Identity] = []
    try:
        for log, command in (
            ("fake-kubelet", _logs_command(layout, cluster.network.host, port, line_seconds)),
            ("kwok", _kwok_command(program, layout, configuration, cluster.network.host, port)),
        ):
            started.append(spawn(command, environment=environment, cwd=layout.root, log=layout.log_of(log))[1])
        for name in names:
            api.create(layout, f"{cluster.network.api_url}/api/v1/nodes", node(name))
        _wait_ready(cluster, names, port, started)
        yield
    finally:
        for name in names:
            api.request(layout, f"{cluster.network.api_url}/api/v1/nodes/{name}", "DELETE")
        for each in started:
            end_session(each, grace_seconds=5)


def node(name: str) -> dict[str, Any]:
    key, value = MANAGED
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {key: value},
            "labels": {**SELECTOR, "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
        },
        "spec": {"taints": [{"key": key, "value": value, "effect": "NoSchedule"}]},
    }


def _kwok_command(program: Path, layout: Layout, configuration: Path, host: str, port: int) -> list[str]:
    return [
        str(program),
        f"--kubeconfig={layout.kubeconfig}",
        f"--config={configuration}",
        f"--manage-nodes-with-annotation-selector={MANAGED[0]}={MANAGED[1]}",
        f"--node-ip={host}",
        f"--node-port={port}",
        f"--node-lease-duration-seconds={LEASE_SECONDS}",
        "--server-address=127.0.0.1:0",  # its own server would take the port, and never ends a log
    ]


def _logs_command(layout: Layout, host: str, port: int, line_seconds: float) -> list[str]:
    pki = layout.pki
    certificate = [str(pki / f"{FAKE_KUBELET}.crt"), str(pki / f"{FAKE_KUBELET}.key")]
    script = Path(__file__).parent / "fakelogs.py"
    return [sys.executable, str(script), str(layout.kubeconfig), host, str(port), str(line_seconds), *certificate]


def _wait_ready(cluster: Cluster, names: list[str], port: int, started: list[Identity]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not (port_taken(port, cluster.network.host) and all(_is_ready(cluster, name) for name in names)):
        if time.monotonic() > deadline or not all(each.alive() for each in started):
            raise ClusterError(f"The fake nodes are not ready; see {cluster.layout.log_of('kwok')} and its neighbours.")
        time.sleep(0.2)


def _is_ready(cluster: Cluster, name: str) -> bool:
    found = api.read(cluster.layout, f"{cluster.network.api_url}/api/v1/nodes/{name}") or {}
    conditions = found.get("status", {}).get("conditions", [])
    tainted = {taint["key"] for taint in found.get("spec", {}).get("taints", [])}
    return tainted == {MANAGED[0]} and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
