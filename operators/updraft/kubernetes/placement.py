"""Set the size of a pod's shared memory, and prefer nodes that are near the pods of the same launch. Pure."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from updraft.kubernetes.objects import SHARED_MEMORY_VOLUME, Launch, Manifest

_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True)
class Placement:
    """What the learners of a launch need of their nodes.

    Args:
        shared_memory_mib: The size of /dev/shm; None: as much as the program's memory.
        topology_labels: Labels of nodes that name ever larger domains, nearest first.
    """

    shared_memory_mib: int | None = None
    topology_labels: tuple[str, ...] = ()


def placed(pod: Manifest, placement: Placement, launch: Launch) -> Manifest:
    """Return the pod with the placement."""
    pod = copy.deepcopy(pod)
    if placement.shared_memory_mib is not None:
        for volume in pod["spec"]["volumes"]:
            if volume["name"] == SHARED_MEMORY_VOLUME:
                volume["emptyDir"]["sizeLimit"] = f"{placement.shared_memory_mib}Mi"
    if placement.topology_labels:
        _prefer_near(pod["spec"], placement.topology_labels, launch)
    return pod


def _prefer_near(spec: Manifest, labels: tuple[str, ...], launch: Launch) -> None:
    """Prefer the nodes of a domain that has pods of the launch; the nearest domain has the greatest weight."""
    affinity = spec.setdefault("affinity", {}).setdefault("podAffinity", {})
    selector = {"matchLabels": launch.labels()}
    affinity[_PREFERRED] = [
        *(affinity.get(_PREFERRED) or []),
        *(
            {"weight": max(1, 100 // 2**place), "podAffinityTerm": {"labelSelector": selector, "topologyKey": label}}
            for place, label in enumerate(labels)
        ),
    ]
