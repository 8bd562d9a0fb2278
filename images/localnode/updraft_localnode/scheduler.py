"""Schedule pods to nodes by requests, node affinity and taints. `place` is pure; `Scheduler` applies it to the store.

First come, first served, but as in Kubernetes a pod that does not fit does not block the pods after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from updraft_learner.quantity import parse_quantity
from updraft_localnode.affinity import UNSCHEDULABLE, allows, preference, repelled_by
from updraft_localnode.errors import Json, StatusError
from updraft_localnode.events import EventRecorder
from updraft_localnode.resources import GPU, Amounts, container_requests, pod_requests
from updraft_localnode.store import ResourceStore, now_text

GPU_TYPE_LABEL = "updraft.dev/gpu-type"
GPU_INDICES_ANNOTATION = "updraft.dev/gpu-indices"  # {container: [indices]}, as a device plugin would assign them
TERMINAL_PHASES = ("Succeeded", "Failed")


@dataclass(frozen=True)
class NodeSpec:
    """One node that the local node simulates."""

    name: str
    allocatable: Amounts
    gpu_type: str | None = None
    unschedulable: bool = False
    taints: Sequence[Mapping[str, Any]] = ()
    own_labels: Mapping[str, str] | None = None  # the current labels of the node's object

    @classmethod
    def of(cls, node: Json) -> NodeSpec:
        """Read a node from its object."""
        amounts, meta, spec = node["status"]["allocatable"], node["metadata"], node["spec"]
        allocatable = Amounts(
            cpu_milli=int(parse_quantity(amounts["cpu"]) * 1000),
            memory_bytes=int(parse_quantity(amounts["memory"])),
            gpus=int(parse_quantity(amounts.get(GPU, "0"))),
        )
        unschedulable, taints = bool(spec.get("unschedulable")), spec.get("taints") or ()
        return cls(meta["name"], allocatable, None, unschedulable, taints, meta.get("labels") or {})

    def labels(self) -> dict[str, str]:
        if self.own_labels is not None:
            return dict(self.own_labels)
        labels = {"kubernetes.io/hostname": self.name, "updraft.dev/local": "true"}
        return {**labels, GPU_TYPE_LABEL: self.gpu_type} if self.gpu_type else labels


@dataclass(frozen=True)
class Placement:
    """The decision for a pod. `node` is None if it fits nowhere; then `reason` is shown in the pod's condition."""

    node: str | None
    gpu_indices: Mapping[str, list[int]] = field(default_factory=dict)
    reason: str = ""


@dataclass
class _Usage:
    free: Amounts
    taken_gpus: set[int]


def gpu_indices(pod: Json) -> dict[str, list[int]]:
    """Return the GPUs that were given to the pod's containers."""
    text = (pod["metadata"].get("annotations") or {}).get(GPU_INDICES_ANNOTATION)
    return json.loads(text) if text else {}


def _usage(node: NodeSpec, pods: Iterable[Json]) -> _Usage:
    usage = _Usage(node.allocatable, set())
    for pod in pods:
        if pod["spec"].get("nodeName") == node.name and pod["status"].get("phase") not in TERMINAL_PHASES:
            usage.free = usage.free - pod_requests(pod["spec"])
            for indices in gpu_indices(pod).values():
                usage.taken_gpus.update(indices)
    return usage


def _obstacles(node: NodeSpec, usage: _Usage, pod: Json) -> list[str]:
    if node.unschedulable and repelled_by(pod, [{"key": UNSCHEDULABLE, "effect": "NoSchedule"}]):
        return ["node(s) were unschedulable"]
    taint = repelled_by(pod, node.taints)
    if taint is not None:
        return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value') or ''}}}"]
    if not allows(pod, node.name, node.labels()):
        return ["node(s) didn't match Pod's node affinity/selector"]
    wanted, short = pod_requests(pod["spec"]), []
    if wanted.cpu_milli > usage.free.cpu_milli:
        short.append("Insufficient cpu")
    if wanted.memory_bytes > usage.free.memory_bytes:
        short.append("Insufficient memory")
    if wanted.gpus > usage.free.gpus:
        short.append(f"Insufficient {GPU}")
    return short


def _assign_gpus(pod: Json, usage: _Usage, count: int) -> dict[str, list[int]]:
    """Main containers and sidecars get GPUs of their own; an init container uses those of the main ones."""
    free = [i for i in range(count) if i not in usage.taken_gpus]
    result: dict[str, list[int]] = {}
    start = 0
    for group in (pod["spec"]["containers"], pod["spec"].get("initContainers") or []):
        for container in group:
            wanted = container_requests(container).gpus
            if wanted:
                shared = group is not pod["spec"]["containers"] and container.get("restartPolicy") != "Always"
                first = 0 if shared else start
                result[container["name"]] = free[first : first + wanted]
                start = start if shared else start + wanted
    return result


def place(pod: Json, nodes: Sequence[NodeSpec], pods: Iterable[Json]) -> Placement:
    """Return where `pod` goes, given all pods that exist: of the nodes with room the first that it prefers most."""
    existing = list(pods)
    counts: dict[str, int] = {}
    possible: list[tuple[NodeSpec, _Usage]] = []
    for node in nodes:
        usage = _usage(node, existing)
        obstacles = _obstacles(node, usage, pod)
        if not obstacles:
            possible.append((node, usage))
        for obstacle in obstacles:
            counts[obstacle] = counts.get(obstacle, 0) + 1
    if possible:
        node, usage = max(possible, key=lambda p: preference(pod, p[0].name, p[0].labels()))
        return Placement(node.name, _assign_gpus(pod, usage, node.allocatable.gpus))
    listed = ", ".join(f"{count} {text}" for text, count in sorted(counts.items()))
    return Placement(None, reason=f"0/{len(nodes)} nodes are available: {listed}.")


def node_object(node: NodeSpec, version: str) -> Json:
    """Return the node as the API shows it."""
    amounts = {
        "cpu": f"{node.allocatable.cpu_milli}m"
        if node.allocatable.cpu_milli % 1000
        else str(node.allocatable.cpu_milli // 1000),
        "memory": f"{node.allocatable.memory_bytes // 1024}Ki",
        "pods": "500",
    }
    if node.allocatable.gpus:
        amounts[GPU] = str(node.allocatable.gpus)
    condition = {"lastHeartbeatTime": now_text(), "lastTransitionTime": now_text()}
    pressure = ("MemoryPressure", "DiskPressure", "PIDPressure")
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": node.labels()},
        "spec": {},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [
                *({**condition, "type": name, "status": "False", "reason": "Sufficient"} for name in pressure),
                {**condition, "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"},
            ],
            "addresses": [
                {"type": "InternalIP", "address": "127.0.0.1"},
                {"type": "Hostname", "address": node.name},
            ],
            "nodeInfo": {
                **{"machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "", "osImage": "host"},
                **{"containerRuntimeVersion": "process://1", "kubeletVersion": version, "kubeProxyVersion": ""},
                **{"operatingSystem": "linux", "architecture": ""},
            },
        },
    }


class Scheduler:
    """Binds pods to nodes when they are created and when room becomes free."""

    def __init__(self, store: ResourceStore, events: EventRecorder) -> None:
        self._store, self._events = store, events

    async def run(self) -> None:
        while True:
            seen = self._store.version
            self.schedule_all()
            await self._store.changed(seen)

    def schedule_all(self) -> None:
        """Make one pass over the pods that wait, oldest first."""
        waiting = [
            pod
            for key, pod in self._store.everything()  # in the order of creation
            if key[0] == "pods"
            and not pod["spec"].get("nodeName")
            and not pod["metadata"].get("deletionTimestamp")
            and not pod["spec"].get("schedulingGates")
        ]
        nodes = [NodeSpec.of(node) for node in self._store.items("nodes")]
        for pod in sorted(waiting, key=lambda p: str(p["metadata"]["creationTimestamp"])):
            placement = place(pod, nodes, self._store.items("pods"))
            if placement.node is None:
                self._refuse(pod, placement.reason)
            else:
                self._bind(pod, placement)

    def _refuse(self, pod: Json, reason: str) -> None:
        def change(new: Json) -> None:
            old = next((c for c in new["status"].get("conditions", []) if c["type"] == "PodScheduled"), None)
            if old is None or old.get("message") != reason:
                condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": reason}
                new["status"]["conditions"] = [{**condition, "lastTransitionTime": now_text()}]

        meta = pod["metadata"]
        updated = self._store.update("pods", meta["namespace"], meta["name"], change)
        if updated is not pod:
            self._events.record(pod, "Warning", "FailedScheduling", reason, component="default-scheduler")

    def _bind(self, pod: Json, placement: Placement) -> None:
        def change(new: Json) -> None:
            new["spec"]["nodeName"] = placement.node
            condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now_text()}
            new["status"]["conditions"] = [condition]
            if placement.gpu_indices:
                annotations = new["metadata"].get("annotations") or {}
                text = json.dumps(placement.gpu_indices)
                new["metadata"]["annotations"] = {**annotations, GPU_INDICES_ANNOTATION: text}

        meta = pod["metadata"]
        try:
            self._store.update("pods", meta["namespace"], meta["name"], change)
        except StatusError:
            return  # deleted in the meantime
        where = f"Successfully assigned {meta['namespace']}/{meta['name']} to {placement.node}"
        self._events.record(pod, "Normal", "Scheduled", where, component="default-scheduler")
