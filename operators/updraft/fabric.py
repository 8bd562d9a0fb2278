"""Read the settings about the network between GPUs: NCCL's variables, RDMA devices, and the topology of nodes."""

from __future__ import annotations

import re

_NCCL = re.compile(r"NCCL_[A-Z0-9_]+")
_LABEL = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_RESOURCE = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def read_nccl(value: object) -> object:
    """Return the variables of a text such as `NCCL_IB_HCA=mlx5_0,mlx5_1 NCCL_DEBUG=WARN`; other values unchanged.

    Raises ValueError for a variable that is not NCCL's.
    """
    if not isinstance(value, str):
        return value
    found: dict[str, str] = {}
    for entry in value.split():
        name, equals, text = entry.partition("=")
        if not equals or not _NCCL.fullmatch(name):
            raise ValueError(f"{name!r} is no variable of NCCL; write NCCL_NAME=VALUE, separated by spaces")
        found[name] = text
    return found


def read_rdma(value: object) -> object:
    """Return the resource and its number of a text such as `rdma/hca=1` (without a number: 1); other values unchanged.

    Raises ValueError for a name that is not an extended resource's.
    """
    if not isinstance(value, str):
        return value
    if not value.strip():
        return {}
    name, _, number = value.strip().partition("=")
    if not _RESOURCE.fullmatch(name) or not (number or "1").isdecimal() or int(number or "1") < 1:
        raise ValueError(f"{value!r} is no resource and number, such as rdma/hca=1")
    return {name: int(number or "1")}


def read_labels(value: object) -> object:
    """Return the labels of a comma-separated text; other values unchanged. Raises ValueError for no label's name."""
    if not isinstance(value, str):
        return value
    labels = tuple(text.strip() for text in value.split(",") if text.strip())
    wrong = [label for label in labels if not _LABEL.fullmatch(label)]
    if wrong:
        raise ValueError(f"{wrong[0]!r} is no label of a node, such as topology.kubernetes.io/zone")
    return labels
