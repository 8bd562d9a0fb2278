"""Convert the API's node objects (as JSON dictionaries) to `Capacity`. Pure; called by all that list nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from updraft.allocation import Capacity, Node
from updraft.taints import GPU_RESOURCE, GPU_TAINT, Taint, Toleration, untolerated
from updraft_learner.quantity import parse_quantity

GPU_TYPE_LABEL = "updraft.dev/gpu-type"
DISK_RESOURCE = "ephemeral-storage"


def capacity_from_nodes(nodes: Sequence[Mapping[str, Any]], tolerated: Sequence[Toleration] = ()) -> Capacity:
    """Return the capacity of the nodes that the API lists. Nodes that are cordoned, NotReady or tainted are kept with
    `ready=False`: all of that may end.

    Args:
        tolerated: The taints that each learner tolerates.
    """
    return Capacity(tuple(_node(node, tolerated) for node in nodes))


def _node(node: Mapping[str, Any], tolerated: Sequence[Toleration]) -> Node:
    metadata = node.get("metadata") or {}
    status = node.get("status") or {}
    allocatable = status.get("allocatable") or {}
    conditions = {item["type"]: item["status"] for item in status.get("conditions") or ()}
    taints = untolerated(node, tolerated)
    cordoned = bool((node.get("spec") or {}).get("unschedulable"))
    keeping = tuple(Taint.of(taint) for taint in taints if not GPU_TAINT.covers(taint))
    works = conditions.get("Ready") == "True" and not cordoned
    labels = metadata.get("labels") or {}
    return Node(
        name=str(metadata.get("name", "")),
        cpus=float(parse_quantity(allocatable.get("cpu", 0))),
        memory_mib=int(parse_quantity(allocatable.get("memory", 0)) // 1024**2),
        gpus=int(parse_quantity(allocatable.get(GPU_RESOURCE, 0))),
        gpu_type=labels.get(GPU_TYPE_LABEL),
        gpus_only=any(GPU_TAINT.covers(taint) for taint in taints),
        ready=works and not keeping,
        disk_mib=int(parse_quantity(disk) // 1024**2) if (disk := allocatable.get(DISK_RESOURCE)) is not None else None,
        labels=frozenset(labels.items()),
        taints=keeping if works else (),
    )
