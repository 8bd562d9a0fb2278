"""Count what pods of other workloads take of the nodes: daemons, services, jobs that are not the platform's. Pure.

What they take is written into the nodes as the API lists them, under the key USED, which the API itself does not have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from updraft_learner.contract import LABEL_JOB
from updraft_learner.quantity import parse_quantity

USED = "usedByOtherPods"
OTHERS = f"!{LABEL_JOB}"  # a selector of labels: pods that the platform has not created
LIVE = "status.phase!=Succeeded,status.phase!=Failed"  # a selector of fields
ENDED = ("Succeeded", "Failed")

Amounts = dict[str, Decimal]  # by resource, in its base unit


def used_by(pods: Iterable[Mapping[str, Any]]) -> dict[str, Amounts]:
    """Return what these pods take, by the name of the node. Pods that have ended or lie on no node take nothing.

    Args:
        pods: As the API lists them.
    """
    used: defaultdict[str, Amounts] = defaultdict(dict)
    for pod in pods:
        node = (pod.get("spec") or {}).get("nodeName")
        if node and (pod.get("status") or {}).get("phase") not in ENDED:
            _add(used[node], requests_of(pod))
    return dict(used)


def with_used(nodes: Sequence[dict[str, Any]], used: Mapping[str, Amounts]) -> list[dict[str, Any]]:
    """Return the nodes, each with what is used of it.

    Args:
        nodes: As the API lists them.
        used: As `used_by` returns it.
    """
    names = [(node.get("metadata") or {}).get("name", "") for node in nodes]
    return [{**node, USED: used[name]} if name in used else node for name, node in zip(names, nodes, strict=True)]


def requests_of(pod: Mapping[str, Any]) -> Amounts:
    """Return what the scheduler counts for a pod: the larger of what its containers need together and what its init
    containers need one after the other, each beside the sidecars (https://kubernetes.io/docs/concepts/workloads/pods/
    sidecar-containers), and the overhead of its runtime."""
    spec = pod.get("spec") or {}
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        own = _requests(container)
        if container.get("restartPolicy") == "Always":
            _add(sidecars, own)
            own = {}
        beside = dict(sidecars)
        _add(beside, own)
        peak = _larger(peak, beside)
    running = dict(sidecars)
    for container in spec.get("containers") or ():
        _add(running, _requests(container))
    found = _larger(peak, running)
    _add(found, {name: parse_quantity(value) for name, value in (spec.get("overhead") or {}).items()})
    return found


def _requests(container: Mapping[str, Any]) -> Amounts:
    resources = container.get("resources") or {}
    # A limit without a request counts as the request.
    named = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: parse_quantity(value) for name, value in named.items()}


def _add(total: Amounts, more: Mapping[str, Decimal]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Decimal(0)) + amount


def _larger(one: Amounts, other: Amounts) -> Amounts:
    return {name: max(one.get(name, Decimal(0)), other.get(name, Decimal(0))) for name in one.keys() | other.keys()}
