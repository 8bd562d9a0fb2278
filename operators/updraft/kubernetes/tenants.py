"""Describe what a tenant needs in a cluster: its namespace with account, rights, quota and policies. Pure.

An administrator creates these objects (`updraft tenants render FILE | kubectl apply --filename -`); the platform has no
right to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from updraft.kubernetes.rbac import NAMESPACED, rules
from updraft.tenants import GPU, Tenant

ACCOUNT = "updraft"
SYSTEM_NAMESPACE = "updraft-system"
GPU_RESOURCE = "requests.nvidia.com/gpu"
# More than the platform's own limits allow: they hold back a mistake, not a job.
COUNTS = {
    "count/pods": "5000",
    "count/secrets": "10000",
    "count/services": "5000",
    "count/networkpolicies.networking.k8s.io": "5000",
}


def tenant_objects(
    name: str, tenant: Tenant, *, namespace: str, system: str = SYSTEM_NAMESPACE
) -> Iterator[dict[str, Any]]:
    """Yield the objects of one tenant, in the order in which they have to be created.

    Args:
        name: The tenant.
        namespace: Its namespace.
        system: The namespace of the platform's account.
    """
    labels = {
        "updraft.dev/holds": "tenant",
        "updraft.dev/tenant": name,
        "pod-security.kubernetes.io/enforce": "restricted",
        "pod-security.kubernetes.io/warn": "restricted",
    }
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}

    def made(version: str, kind: str, own: str, **content: Any) -> dict[str, Any]:
        return {"apiVersion": version, "kind": kind, "metadata": {"name": own, "namespace": namespace}, **content}

    yield made("v1", "ServiceAccount", "default", automountServiceAccountToken=False)
    yield made("rbac.authorization.k8s.io/v1", "Role", ACCOUNT, rules=rules(NAMESPACED))
    yield made(
        "rbac.authorization.k8s.io/v1",
        "RoleBinding",
        ACCOUNT,
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT},
        subjects=[{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": system}],
    )
    # Beside the quota that `deploy/kustomize` or the site may have made: both hold.
    yield made("v1", "ResourceQuota", "updraft-tenant", spec={"hard": {**_gpus(tenant), **COUNTS}})
    # For pods that are not the platform's: those of the platform say what they need.
    small = {"cpu": "100m", "memory": "128Mi"}
    limits = {"type": "Container", "defaultRequest": small, "default": {"memory": "1Gi"}}
    yield made("v1", "LimitRange", ACCOUNT, spec={"limits": [limits]})
    # Each launch has a policy that lets its learners reach each other.
    closed = {"podSelector": {}, "policyTypes": ["Ingress"]}
    yield made("networking.k8s.io/v1", "NetworkPolicy", "closed", spec=closed)


def _gpus(tenant: Tenant) -> dict[str, str]:
    """Return the limit on GPUs, if the tenant has one. Types of GPUs and learners without GPUs are no resources of
    Kubernetes: the planner alone counts them."""
    most = tenant.most(GPU)
    return {} if most is None else {GPU_RESOURCE: str(most)}
