"""What the cluster begins with in its API: permissions of its own parts, and a namespace for jobs.

Called by `running`.
"""

from __future__ import annotations

from typing import Any

from kubecluster import api
from kubecluster.certificates import DNS, KUBELET_CLIENT
from kubecluster.layout import Layout
from kubecluster.network import Network

JOBS_NAMESPACE = "updraft-default"
RBAC = "apis/rbac.authorization.k8s.io/v1"
RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}


def create_first(layout: Layout, network: Network) -> None:
    for path, body in first_objects():
        api.create(layout, f"{network.api_url}/{path}", body)


def first_objects() -> list[tuple[str, dict[str, Any]]]:
    """Each with the path of its collection."""
    read = {"verbs": ["list", "watch"]}
    dns_rules = [
        {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], **read},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], **read},
    ]
    dns = f"system:{DNS}"
    return [
        # The API server reads logs and runs commands on nodes under this name.
        (f"{RBAC}/clusterrolebindings", _binding("updraft-kubelets", "system:kubelet-api-admin", KUBELET_CLIENT)),
        (
            f"{RBAC}/clusterroles",
            {**_typed("rbac.authorization.k8s.io/v1", "ClusterRole", dns), "rules": dns_rules},
        ),
        (f"{RBAC}/clusterrolebindings", _binding(dns, dns, dns)),
        ("api/v1/namespaces", _typed("v1", "Namespace", JOBS_NAMESPACE, labels=RESTRICTED)),
    ]


def _binding(name: str, role: str, user: str) -> dict[str, Any]:
    group = "rbac.authorization.k8s.io"
    return {
        **_typed(f"{group}/v1", "ClusterRoleBinding", name),
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }


def _typed(version: str, kind: str, name: str, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **metadata}}
