"""List what the platform may do on a cluster: every verb that it uses, and no other.

    python -m updraft.kubernetes.rbac        print the rules of the Role and the ClusterRole, as in deploy/kustomize

One test compares this list with the calls in the source, another compares deploy/kustomize with this list. `preflight`
asks the cluster for each right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from updraft.settings import Settings


@dataclass(frozen=True)
class Right:
    """Verbs on one resource, and their purpose."""

    resource: str  # with its subresource, as in pods/log
    verbs: tuple[str, ...]
    why: str
    group: str = ""


# In the namespace of each tenant.
NAMESPACED = (
    Right("pods", ("create", "delete", "list", "watch"), "learners: launch, observe, remove"),
    Right("pods/log", ("get",), "follow what learners print"),
    Right("secrets", ("create", "delete", "get", "list", "patch", "update"), "a launch's credentials, users' secrets"),
    Right("services", ("create",), "names of a gang's learners"),
    Right("persistentvolumeclaims", ("get",), "judge a data set that is a claim"),
    Right("serviceaccounts", ("get",), "judge the service account that a manifest names"),
    Right("namespaces", ("get",), "tell that the tenant's own namespace is missing"),
    Right("networkpolicies", ("create",), "keep others away from learners", "networking.k8s.io"),
    Right("poddisruptionbudgets", ("create",), "hold back `kubectl drain`, where the site wants it", "policy"),
)
# Resources of NAMESPACED that most jobs run without, and who needs them.
ONLY_WITH = {
    "persistentvolumeclaims": "only jobs with data on volumes need it",
    "serviceaccounts": "only jobs that name a service account need it",
    "poddisruptionbudgets": "only UPDRAFT_DISRUPTION_BUDGET=true needs it",
}
# On the whole cluster.
CLUSTER = (
    Right("nodes", ("list",), "room for gangs, types of GPU"),
    Right("pods", ("list",), "what pods of other workloads take of that room; without it, nothing of theirs counts"),
)
# Rights that every authenticated account has without a rule of the platform.
OF_EVERYBODY = frozenset(
    {
        ("create", "authorization.k8s.io", "selfsubjectaccessreviews"),
        ("create", "authorization.k8s.io", "selfsubjectrulesreviews"),
        ("get", "", "version"),
        ("get", "", "api"),
    }
)
# Tried only if a tenant's namespace is missing. The Role does not contain it; usually an administrator makes
# namespaces.
ONLY_IF_ALLOWED = frozenset({("create", "", "namespaces")})


def needed(configured: Settings) -> tuple[Right, ...]:
    """Return the rights of NAMESPACED that a platform with these settings uses for every job. Rights on claims
    and service accounts are checked where a manifest names one, and its error says which is missing."""
    off = {"persistentvolumeclaims", "serviceaccounts"}
    off |= set() if configured.network_policy else {"networkpolicies"}
    off |= set() if configured.disruption_budget else {"poddisruptionbudgets"}
    return tuple(right for right in NAMESPACED if right.resource not in off)


def each(rights: Sequence[Right]) -> Iterator[tuple[str, str, str]]:
    """Yield (verb, group, resource), one by one."""
    for right in rights:
        for verb in right.verbs:
            yield verb, right.group, right.resource


def rules(rights: Sequence[Right]) -> list[dict[str, Any]]:
    """Return the rights as the rules of a Role."""
    return [{"apiGroups": [right.group], "resources": [right.resource], "verbs": list(right.verbs)} for right in rights]


def main() -> None:
    import yaml

    print(yaml.safe_dump({"Role": rules(NAMESPACED), "ClusterRole": rules(CLUSTER)}, sort_keys=False), end="")


if __name__ == "__main__":
    main()
