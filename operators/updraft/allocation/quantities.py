"""Kubernetes quantities and node objects (as JSON dictionaries) to `Capacity`. Pure; called by whoever listed nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from updraft.allocation.model import Capacity, Node
from updraft.taints import GPU_RESOURCE, GPU_TAINT, Toleration, untolerated

GPU_TYPE_LABEL = "updraft.dev/gpu-type"
DISK_RESOURCE = "ephemeral-storage"

_QUANTITY = re.compile(r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]|[eE][+-]?\d+)?")
_BINARY = {name: Decimal(1024) ** power for power, name in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)}
_DECIMAL = {name: Decimal(1000) ** power for power, name in enumerate(("k", "M", "G", "T", "P", "E"), start=1)}
_SMALL = {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3")}
_FACTORS = _BINARY | _DECIMAL | _SMALL


def parse_quantity(text: str | int | float) -> Decimal:
    """A Kubernetes quantity in its base unit: "1500m" is 1.5, "2Gi" is 2147483648. Raises ValueError."""
    match = _QUANTITY.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f"{text!r} is not a Kubernetes quantity, such as 2, 1500m, 512Mi or 4Gi")
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix in _FACTORS:
        return number * _FACTORS[suffix]
    return number.scaleb(int(suffix[1:])) if suffix else number


def capacity_from_nodes(nodes: Sequence[Mapping[str, Any]], tolerated: Sequence[Toleration] = ()) -> Capacity:
    """Nodes as the API lists them. Those that are cordoned, NotReady or tainted are kept with `ready=False`: all of
    that may end.

    Args:
        tolerated: by each learner.
    """
    return Capacity(tuple(_node(node, tolerated) for node in nodes))


def _node(node: Mapping[str, Any], tolerated: Sequence[Toleration]) -> Node:
    metadata = node.get("metadata") or {}
    status = node.get("status") or {}
    allocatable = status.get("allocatable") or {}
    conditions = {item["type"]: item["status"] for item in status.get("conditions") or ()}
    taints = untolerated(node, tolerated)
    cordoned = bool((node.get("spec") or {}).get("unschedulable"))
    closed = cordoned or not all(GPU_TAINT.covers(taint) for taint in taints)
    return Node(
        name=str(metadata.get("name", "")),
        cpus=float(parse_quantity(allocatable.get("cpu", 0))),
        memory_mib=int(parse_quantity(allocatable.get("memory", 0)) // 1024**2),
        gpus=int(parse_quantity(allocatable.get(GPU_RESOURCE, 0))),
        gpu_type=(metadata.get("labels") or {}).get(GPU_TYPE_LABEL),
        gpus_only=any(GPU_TAINT.covers(taint) for taint in taints),
        ready=conditions.get("Ready") == "True" and not closed,
        disk_mib=int(parse_quantity(disk) // 1024**2) if (disk := allocatable.get(DISK_RESOURCE)) is not None else None,
    )
