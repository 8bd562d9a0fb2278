"""Set the size of a pod's shared memory, and say which nodes it prefers: near its launch, beside other learners or not.
Pure."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from updraft.kubernetes.objects import SHARED_MEMORY_VOLUME, Launch, Manifest
from updraft_learner import contract

HOSTNAME = "kubernetes.io/hostname"
NODE_WEIGHT = 40  # less than the nearest domain of the site's network
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True)
class Placement:
    """What the learners of a launch need of their nodes.

    Args:
        shared_memory_mib: The size of /dev/shm; None: as much as the program's memory.
        topology_labels: Labels of nodes that name ever larger domains, nearest first.
        beside_learners: Whether nodes that run learners of any job are preferred, or avoided; None: neither.
    """

    shared_memory_mib: int | None = None
    topology_labels: tuple[str, ...] = ()
    beside_learners: bool | None = None


def placed(pod: Manifest, placement: Placement, launch: Launch) -> Manifest:
    """Return the pod with the placement."""
    pod = copy.deepcopy(pod)
    if placement.shared_memory_mib is not None:
        for volume in pod["spec"]["volumes"]:
            if volume["name"] == SHARED_MEMORY_VOLUME:
                volume["emptyDir"]["sizeLimit"] = f"{placement.shared_memory_mib}Mi"
    affinity: Manifest = pod["spec"].setdefault("affinity", {})
    if placement.beside_learners is not None:
        # Learners of other tenants count too: they are in other namespaces.
        learners = _term(NODE_WEIGHT, {contract.LABEL_ROLE: launch.role}, HOSTNAME, {"namespaceSelector": {}})
        _prefer(affinity, "podAffinity" if placement.beside_learners else "podAntiAffinity", [learners])
    labels = enumerate(placement.topology_labels)
    _prefer(affinity, "podAffinity", [_term(100 // 2**place, launch.labels(), label) for place, label in labels])
    if not affinity:
        del pod["spec"]["affinity"]
    return pod


def _term(weight: int, labels: dict[str, str], topology_key: str, more: Manifest | None = None) -> Manifest:
    """Return a preference for, or against, the domains of nodes that run pods with these labels."""
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": topology_key, **(more or {})}
    return {"weight": max(1, weight), "podAffinityTerm": term}


def _prefer(affinity: Manifest, kind: str, terms: list[Manifest]) -> None:
    """Add preferences to the affinity, and keep those that it has."""
    if terms:
        there = affinity.setdefault(kind, {})
        there[_PREFERRED] = [*(there.get(_PREFERRED) or []), *terms]
