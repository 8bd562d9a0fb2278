"""Convert the API's node objects (as JSON dictionaries) to `Capacity`. Pure; called by all that list nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from updraft.allocation import Capacity, Node
from updraft.kubernetes.other_pods import USED
from updraft.taints import GPU_RESOURCE, GPU_TAINT, Taint, Toleration, untolerated
from updraft_learner.quantity import parse_quantity

if TYPE_CHECKING:
    from updraft.pools import Pool
    from updraft.settings import Settings

GPU_TYPE_LABEL = "updraft.dev/gpu-type"
DISK_RESOURCE = "ephemeral-storage"


def capacity_of(nodes: Sequence[Mapping[str, Any]], settings: Settings) -> Capacity:
    """Return the present capacity of the nodes that the API lists, under the platform's settings."""
    return capacity_from_nodes(nodes, settings.tolerations, settings.scalable_pools)


def capacity_from_nodes(
    nodes: Sequence[Mapping[str, Any]],
    tolerated: Sequence[Toleration] = (),
    pools: Sequence[Pool] = (),
    now: datetime | None = None,
) -> Capacity:
    """Return the capacity of the nodes that the API lists. Nodes that are cordoned, NotReady or tainted are kept with
    `ready=False`: all of that may end.

    Args:
        nodes: As the API lists them.
        tolerated: The taints that each learner tolerates.
        pools: Pools that can grow; the nodes that they can still get are counted too. Outside of its windows a pool's
            are not ready.
        now: The time that windows are compared with; without it, the present.
    """
    found = [_node(node, tolerated) for node in nodes]
    for pool in pools:
        new = replace(_node(pool.new_node(), tolerated), grows=True)
        if not pool.is_open(now or datetime.now(UTC)):
            new = replace(new, ready=False, taints=(), opening=pool.opening)
        found += [replace(new, name=f"{new.name}-{number}") for number in range(1, pool.missing(nodes) + 1)]
    return Capacity(tuple(found))


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
    used = node.get(USED) or {}
    return Node(
        name=str(metadata.get("name", "")),
        cpus=float(parse_quantity(allocatable.get("cpu", 0))),
        memory_mib=int(parse_quantity(allocatable.get("memory", 0)) // 1024**2),
        gpus=int(parse_quantity(allocatable.get(GPU_RESOURCE, 0))),
        used=(
            math.ceil(used.get("cpu", 0) * 1000),
            math.ceil(used.get("memory", 0) / 1024**2),
            math.ceil(used.get(GPU_RESOURCE, 0)),
        ),
        gpu_type=labels.get(GPU_TYPE_LABEL),
        gpus_only=any(GPU_TAINT.covers(taint) for taint in taints),
        ready=works and not keeping,
        disk_mib=int(parse_quantity(disk) // 1024**2) if (disk := allocatable.get(DISK_RESOURCE)) is not None else None,
        labels=frozenset(labels.items()),
        taints=keeping if works else (),
    )
