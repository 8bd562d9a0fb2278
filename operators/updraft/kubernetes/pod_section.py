"""Put what a manifest's section `pod` asks for into the pod of a role. Pure.

The node selector and the tolerations are fields of `launch.Program`, because the platform adds its own to them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from updraft_learner import contract

if TYPE_CHECKING:
    from updraft.manifest.pod import Pod

Manifest = dict[str, Any]  # a Kubernetes object in API form


@dataclass(frozen=True)
class PodExtras:
    """Parts of a pod that only the manifest's section `pod` asks for.

    Args:
        volumes: Folders of the program's container, and the source of each in API form.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    image_pull_secrets: tuple[str, ...] = ()
    service_account: str | None = None
    volumes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def extras_of(pod: Pod | None, *, users_program: bool) -> PodExtras:
    """Return what the section asks for. Pods of the platform's own programs get no volume and no service account."""
    if pod is None:
        return PodExtras()
    everywhere = PodExtras(pod.labels, pod.annotations, pod.image_pull_secrets)
    if not users_program:
        return everywhere
    volumes = {volume.mount: _source(volume.size_bytes, volume.claim) for volume in pod.volumes}
    return PodExtras(pod.labels, pod.annotations, pod.image_pull_secrets, pod.service_account, volumes)


def _source(size_bytes: int | None, claim: str | None) -> Manifest:
    if claim is not None:
        return {"persistentVolumeClaim": {"claimName": claim}}
    return {"emptyDir": {"sizeLimit": f"{-(-(size_bytes or 0) // 1024**2)}Mi"}}


def with_extras(pod: Manifest, extras: PodExtras) -> Manifest:
    """Return the pod with the extras. A claim that is mounted twice is one volume. Only the program's container mounts
    the volumes."""
    result = copy.deepcopy(pod)
    metadata, spec = result["metadata"], result["spec"]
    for name, given in (("labels", extras.labels), ("annotations", extras.annotations)):
        if given:
            metadata[name] = {**(metadata.get(name) or {}), **given}
    if extras.service_account is not None:
        spec["serviceAccountName"] = extras.service_account
    if extras.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in extras.image_pull_secrets]
    if extras.volumes:
        _mount(spec, extras.volumes)
    return result


def _mount(spec: Manifest, volumes: Mapping[str, Mapping[str, Any]]) -> None:
    main = next(c for c in spec["containers"] if c["name"] == contract.MAIN_CONTAINER)
    of_claims: dict[str, str] = {}
    for number, (path, source) in enumerate(volumes.items(), start=1):
        claim = str((source.get("persistentVolumeClaim") or {}).get("claimName", ""))
        name = of_claims.get(claim)
        if name is None:
            name = f"volume-{number}"
            spec.setdefault("volumes", []).append({"name": name, **source})
            if claim:
                of_claims[claim] = name
        main.setdefault("volumeMounts", []).append({"name": name, "mountPath": path})
