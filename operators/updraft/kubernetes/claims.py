"""Handle data on persistent volumes: check claims of the tenant's namespace and mount them read-only.

Also mounts the claim of the node's cache. Pure except for `read_claim`. A claim's data is not copied; only the
learners' pods read it. `updraft.operators` calls this before the job waits in the queue and when its data is recorded,
`updraft.controller.pods` at each launch.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from updraft.exceptions import RefusedError
from updraft.kubernetes import calls
from updraft.kubernetes.objects import Manifest
from updraft_learner import contract

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api

CACHE_VOLUME = "node-cache"
SHARED_MODES = frozenset({"ReadOnlyMany", "ReadWriteMany"})


@dataclass(frozen=True)
class Claim:
    """A folder of a claim, and the folder below DATA_DIR where the program finds it (`.` is DATA_DIR itself)."""

    name: str
    path: str  # inside the volume; empty: the whole volume
    mount: str

    @property
    def mount_path(self) -> str:
        return contract.DATA_DIR if self.mount == "." else f"{contract.DATA_DIR}/{self.mount}"


def claims_of(data: Sequence[Mapping[str, Any]] | None) -> tuple[Claim, ...]:
    """Return the claims among the recorded data sets of a job."""
    return tuple(Claim(d["claim"], d["path"], d["mount"]) for d in data or () if "claim" in d)


def with_claims(pod: Manifest, claims: Sequence[Claim]) -> Manifest:
    """Return the pod with one volume per claim, mounted read-only into the program's container alone. Kubernetes does
    not change the owner of its files either: `fsGroup` leaves a read-only volume as it is."""
    if not claims:
        return pod
    result = copy.deepcopy(pod)
    spec = result["spec"]
    names = {name: f"data-{n}" for n, name in enumerate(dict.fromkeys(claim.name for claim in claims), start=1)}
    spec.setdefault("volumes", []).extend(
        {"name": volume, "persistentVolumeClaim": {"claimName": name, "readOnly": True}}
        for name, volume in names.items()
    )
    main = next(c for c in spec["containers"] if c["name"] == contract.MAIN_CONTAINER)
    for claim in claims:
        mount: Manifest = {"name": names[claim.name], "mountPath": claim.mount_path, "readOnly": True}
        if claim.path:
            mount["subPath"] = claim.path
        main.setdefault("volumeMounts", []).append(mount)
    return result


def with_cache(pod: Manifest, name: str, *, for_program: bool) -> Manifest:
    """Return the pod with the node's cache, which only its sidecar may write to.

    `for_program`: whether the program reads data from there.
    """
    result = copy.deepcopy(pod)
    spec = result["spec"]
    spec.setdefault("volumes", []).append({"name": CACHE_VOLUME, "persistentVolumeClaim": {"claimName": name}})
    mount: Manifest = {"name": CACHE_VOLUME, "mountPath": contract.CACHE_DIR}
    sidecar = next(c for c in spec["initContainers"] if c["name"] == contract.SIDECAR_CONTAINER)
    sidecar["volumeMounts"].append(dict(mount))
    sidecar["env"].append({"name": contract.CACHE_ENV, "value": contract.CACHE_DIR})
    if for_program:
        main = next(c for c in spec["containers"] if c["name"] == contract.MAIN_CONTAINER)
        main.setdefault("volumeMounts", []).append({**mount, "readOnly": True})
    return result


def why_not(found: Manifest | None, name: str, namespace: str, learners: int) -> str | None:
    """Return why learners cannot read the claim, and what to do; None if they can. `found` is the claim in API form."""
    where = f"claim {name!r} of namespace {namespace}"
    if found is None:
        return (
            f"claim {name!r} does not exist in namespace {namespace}; `kubectl get pvc --namespace {namespace}` lists "
            "those that do"
        )
    if found["metadata"].get("deletionTimestamp"):
        return f"{where} is being deleted; name one that stays"
    phase = (found.get("status") or {}).get("phase") or "Pending"
    if phase != "Bound":
        lost = "its volume is lost" if phase == "Lost" else "it has no volume yet, so there is no data in it"
        return f"{where} is {phase}: {lost}; bind it to a volume and put the data there first"
    modes = set((found.get("spec") or {}).get("accessModes") or ())
    if learners > 1 and not modes & SHARED_MODES:
        return (
            f"{where} can only be used on one node at a time ({', '.join(sorted(modes))}), and {learners} learners may "
            "lie on several; ask for 1 learner, or use a claim with ReadOnlyMany or ReadWriteMany"
        )
    return None


def read_claim(core: CoreV1Api, namespace: str, name: str, learners: int) -> Manifest:
    """Return the claim in API form. Raises RefusedError if learners cannot read it."""
    answer = calls.call(
        f"read claim {name}", core.read_namespaced_persistent_volume_claim, name, namespace, ok=calls.GONE
    )
    found = None if answer is None else core.api_client.sanitize_for_serialization(answer)
    if (problem := why_not(found, name, namespace, learners)) is not None:
        raise RefusedError(f"data.source: {problem}")
    assert found is not None
    return dict(found)
