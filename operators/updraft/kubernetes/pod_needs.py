"""Check that what a manifest's section `pod` names exists in the tenant's namespace: claims, account, pull secrets.

Called at submission and at admission, before a job waits in the queue. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from updraft.kubernetes import calls, claims

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api

    from updraft.manifest.pod import Pod

WRITABLE_MODES = frozenset({"ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"})
PULL_SECRET_TYPES = ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg")


def lacking(core: CoreV1Api, namespace: str, pod: Pod | None, learners: int) -> list[tuple[str, str]]:
    """Return each field that names something which does not exist or does not fit, and what to do about it.

    Raises UnavailableError if the cluster does not answer, RefusedError if the platform may not look.
    """
    return [] if pod is None else list(_lacks(core, namespace, pod, learners))


def _lacks(core: CoreV1Api, namespace: str, pod: Pod, learners: int) -> Iterator[tuple[str, str]]:
    for number, volume in enumerate(pod.volumes):
        if volume.claim is not None:
            found = _read(core, core.read_namespaced_persistent_volume_claim, "claim", volume.claim, namespace)
            if (problem := why_not_writable(found, volume.claim, namespace, learners)) is not None:
                yield f"pod.volumes[{number}].claim", problem
    if (account := pod.service_account) is not None:
        found = _read(core, core.read_namespaced_service_account, "service account", account, namespace)
        if found is None:
            yield (
                "pod.service_account",
                f"service account {account!r} does not exist in namespace {namespace}; `kubectl create serviceaccount "
                f"{account} --namespace {namespace}` makes it, except on the local node, which has none",
            )
    for number, name in enumerate(pod.image_pull_secrets):
        found = _read(core, core.read_namespaced_secret, "secret", name, namespace)
        if (problem := _why_no_pull_secret(found, name, namespace)) is not None:
            yield f"pod.image_pull_secrets[{number}]", problem


def why_no_node_cache(core: CoreV1Api, namespace: str, name: str | None) -> str | None:
    """Return why data cannot be shared by the learners of a node, and what to do; None if it can.

    `name`: the claim of the node's cache, as the settings have it.
    """
    if name is None:
        return (
            "this platform has no cache on its nodes (UPDRAFT_NODE_CACHE_CLAIM); write mode: copy or stream, or ask "
            "the platform's operator for one"
        )
    found = _read(core, core.read_namespaced_persistent_volume_claim, "claim", name, namespace)
    problem = why_not_writable(found, name, namespace, learners=2)
    return None if problem is None else f"the cache of the nodes cannot be used: {problem}"


def _read(core: CoreV1Api, read: Any, kind: str, name: str, namespace: str) -> Mapping[str, Any] | None:
    answer = calls.call(f"read {kind} {name}", read, name, namespace, ok=calls.GONE)
    return None if answer is None else dict(core.api_client.sanitize_for_serialization(answer))


def why_not_writable(found: Mapping[str, Any] | None, name: str, namespace: str, learners: int) -> str | None:
    """Return why learners cannot write to the claim, and what to do; None if they can.

    A claim that is Pending is no reason: its volume may be made when the first pod uses it.

    Args:
        found: The claim in API form; None if it does not exist.
    """
    lost = found is not None and (found.get("status") or {}).get("phase") == "Lost"
    if found is None or lost or found["metadata"].get("deletionTimestamp"):
        return claims.why_not(None if found is None else dict(found), name, namespace, learners)
    modes = set((found.get("spec") or {}).get("accessModes") or ())
    listed = ", ".join(sorted(modes)) or "no access mode"
    if not modes & WRITABLE_MODES:
        return (
            f"claim {name!r} of namespace {namespace} cannot be written to ({listed}); use a claim with ReadWriteMany, "
            f"or read it as data: source: pvc://{name}"
        )
    if learners > 1 and "ReadWriteMany" not in modes:
        return (
            f"claim {name!r} of namespace {namespace} can only be written on one node ({listed}), and {learners} "
            "learners may lie on several; ask for 1 learner, or use a claim with ReadWriteMany"
        )
    return None


def _why_no_pull_secret(found: Mapping[str, Any] | None, name: str, namespace: str) -> str | None:
    if found is None:
        return (
            f"secret {name!r} does not exist in namespace {namespace}; `kubectl create secret docker-registry {name} "
            f"--namespace {namespace}` makes it"
        )
    if found.get("type") not in PULL_SECRET_TYPES:
        return f"secret {name!r} of namespace {namespace} is of type {found.get('type')}, not {PULL_SECRET_TYPES[0]}"
    return None
