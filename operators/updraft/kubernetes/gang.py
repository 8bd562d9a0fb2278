"""Create, observe and delete the pods of one launch with the synchronous client.

It does not use Airflow. Every function may be called twice: names are deterministic, and "already exists" and "not
found" count as success.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from updraft.exceptions import QuotaError, RefusedError
from updraft.kubernetes import policies
from updraft.kubernetes.calls import EXISTS, GONE, call
from updraft.kubernetes.objects import Launch, Manifest
from updraft.kubernetes.pod_status import pod_facts
from updraft.recovery.facts import PodFacts

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api

    from updraft.kubernetes.launch import LaunchObjects


def ensure_namespace(core: CoreV1Api, namespace: str) -> None:
    try:
        found = call(f"read namespace {namespace}", core.read_namespace, namespace, ok=GONE)
    except RefusedError:  # a namespaced role may not read namespaces; creating the pods will show
        return
    if found is not None:
        return
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    try:
        call(f"create namespace {namespace}", core.create_namespace, body, ok=EXISTS)
    except RefusedError as exc:
        raise RefusedError(
            f"namespace {namespace} does not exist, and the platform may not make it; `kubectl create namespace "
            f"{namespace}`, or `kubectl apply -k deploy/kustomize`, which gives the platform's rights in it too"
        ) from exc


def create(core: CoreV1Api, launch: Launch, made: LaunchObjects) -> None:
    """Create all objects of the launch, or none: if one is refused, those that were created are deleted.

    The secret is created first, and owns what guards the pods; the pods own the secret. A caller that dies in between
    leaves some of them, which the next call with the same launch completes, and which `delete` finds by their labels.
    """
    namespace, as_dict = launch.namespace, core.api_client.sanitize_for_serialization
    try:
        created = call("create the job's secret", core.create_namespaced_secret, namespace, made.secret, ok=EXISTS)
        name = made.secret["metadata"]["name"]  # the launch's base name
        anchor = created or call("read the job's secret", core.read_namespaced_secret, name, namespace)
        owner = {"apiVersion": "v1", "kind": "Secret", **as_dict(anchor)}
        for what, method, companion in (
            ("network policy", core.create_namespaced_network_policy, made.policy),
            ("service", core.create_namespaced_service, made.service),
            ("disruption budget", core.create_namespaced_pod_disruption_budget, made.budget),
        ):
            if companion is not None:
                call(f"create the job's {what}", method, namespace, policies.owned_by(companion, [owner]), ok=EXISTS)
        add(core, launch, made.all_pods)
    except QuotaError:
        # The API server checks quotas before names: a full quota also refuses pods that an earlier call has created.
        if len(_listed(core, launch)) < len(made.all_pods):
            delete(core, namespace, launch.selector, grace_seconds=0)
            raise
        _bind(core, launch, made.secret["metadata"]["name"])
    except RefusedError:
        delete(core, namespace, launch.selector, grace_seconds=0)
        raise


def add(core: CoreV1Api, launch: Launch, pods: Sequence[Manifest]) -> None:
    """Create pods of a launch whose other objects exist. Raises QuotaError and RefusedError; the pods before that one
    exist then."""
    for pod in pods:
        call(f"create pod {pod['metadata']['name']}", core.create_namespaced_pod, launch.namespace, pod, ok=EXISTS)
    _bind(core, launch, launch.base_name)


def _bind(core: CoreV1Api, launch: Launch, secret: str) -> None:
    created = [{"apiVersion": "v1", "kind": "Pod", **pod} for pod in _listed(core, launch)]
    if created:
        change = {"metadata": {"ownerReferences": policies.owners(created)}}
        what = "bind the job's secret to its pods"
        call(what, core.patch_namespaced_secret, secret, launch.namespace, change, ok=GONE)


def _listed(core: CoreV1Api, launch: Launch) -> list[Manifest]:
    listed = call("list pods", core.list_namespaced_pod, launch.namespace, label_selector=launch.selector)
    assert listed is not None  # `call` returns None only for errors in `ok`, and none is given
    return [core.api_client.sanitize_for_serialization(pod) for pod in listed.items]


def observe(core: CoreV1Api, launch: Launch) -> list[PodFacts]:
    """Return the launch's pods in order of their learner."""
    return sorted(map(pod_facts, _listed(core, launch)), key=lambda facts: facts.learner)


def delete(core: CoreV1Api, namespace: str, selector: str, *, grace_seconds: int) -> int:
    """Ask for the deletion of every pod that the selector matches, and of all that goes with them; returns the pods'
    number.

    A secret that pods own goes after the last of them, and with it the policy that guards them until then.
    """
    pods = call("list pods", core.list_namespaced_pod, namespace, label_selector=selector, ok=GONE)
    for pod in pods.items if pods else ():
        call(
            f"delete pod {pod.metadata.name}",
            core.delete_namespaced_pod,
            pod.metadata.name,
            namespace,
            grace_period_seconds=grace_seconds,
            ok=GONE,
        )
    going = {pod.metadata.uid for pod in pods.items} if pods else set()
    secrets = call("list secrets", core.list_namespaced_secret, namespace, label_selector=selector, ok=GONE)
    for secret in secrets.items if secrets else ():
        if going.isdisjoint(owner.uid for owner in secret.metadata.owner_references or ()):
            name = secret.metadata.name
            call(f"delete secret {name}", core.delete_namespaced_secret, name, namespace, ok=GONE)
    return len(pods.items) if pods else 0


def remove(core: CoreV1Api, launch: Launch, pod: str, *, grace_seconds: int) -> None:
    """Ask for the deletion of one pod of a launch."""
    call(
        f"delete pod {pod}",
        core.delete_namespaced_pod,
        pod,
        launch.namespace,
        grace_period_seconds=grace_seconds,
        ok=GONE,
    )


def wait_gone(core: CoreV1Api, namespace: str, selector: str, *, timeout_seconds: float) -> bool:
    """Return whether no pod matches any more within the time."""
    deadline, pause_seconds = time.monotonic() + timeout_seconds, 0.05
    while True:
        pods = call("list pods", core.list_namespaced_pod, namespace, label_selector=selector, ok=GONE)
        if not pods or not pods.items:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_seconds)
        pause_seconds = min(0.5, 2 * pause_seconds)
