"""The platform's rights on a cluster: the calls that its source makes, and what deploy/kustomize gives."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from updraft.kubernetes import rbac

REPOSITORY = Path(__file__).parents[3]
PACKAGE = REPOSITORY / "operators" / "updraft"
DEPLOY = REPOSITORY / "deploy" / "kustomize"
VERBS = {"read": "get", "list": "list", "create": "create", "replace": "update", "patch": "patch", "delete": "delete"}
NAMES = {  # the generated clients write the kind, the API the resource
    "pod": ("", "pods"),
    "pod_for_all_namespaces": ("", "pods"),
    "secret": ("", "secrets"),
    "service": ("", "services"),
    "node": ("", "nodes"),
    "namespace": ("", "namespaces"),
    "persistent_volume_claim": ("", "persistentvolumeclaims"),
    "service_account": ("", "serviceaccounts"),
    "network_policy": ("networking.k8s.io", "networkpolicies"),
    "pod_disruption_budget": ("policy", "poddisruptionbudgets"),
    "self_subject_access_review": ("authorization.k8s.io", "selfsubjectaccessreviews"),
    "self_subject_rules_review": ("authorization.k8s.io", "selfsubjectrulesreviews"),
    "pod_log": ("", "pods/log"),
}
METHOD = re.compile(rf"({'|'.join(VERBS)})_(?:namespaced_)?([a-z_]+)")
OTHERS = {"get_code": ("get", "", "version"), "get_api_versions": ("get", "", "api")}


def client_methods() -> set[str]:
    from kubernetes import client

    apis = (client.CoreV1Api, client.NetworkingV1Api, client.PolicyV1Api, client.AuthorizationV1Api)
    apis += (client.VersionApi, client.CoreApi, client.BatchV1Api, client.AppsV1Api, client.RbacAuthorizationV1Api)
    apis += (client.CoordinationV1Api, client.SchedulingV1Api, client.StorageV1Api, client.CustomObjectsApi)
    return {name for api in apis for name in vars(api) if not name.startswith("_")}


def calls() -> Iterator[tuple[str, str, str]]:
    """Every call of the cluster's API in the source."""
    known = client_methods()
    for path in PACKAGE.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        rights = [right_of(node.attr) for node in nodes if isinstance(node, ast.Attribute) and node.attr in known]
        yield from rights
        if any(isinstance(node, ast.keyword) and node.arg == "watch" for node in nodes):  # a watch is such a list
            yield from (("watch", group, resource) for verb, group, resource in rights if verb == "list")


def right_of(method: str) -> tuple[str, str, str]:
    if method in OTHERS:
        return OTHERS[method]
    match = METHOD.fullmatch(method)
    assert match, f"{method} is a call that nobody has thought of here"
    return (VERBS[match[1]], *NAMES[match[2]])


def test_the_rights_are_those_of_the_calls_in_the_source() -> None:
    listed = set(rbac.each(rbac.NAMESPACED)) | set(rbac.each(rbac.CLUSTER))
    assert set(calls()) == listed | rbac.OF_EVERYBODY | rbac.ONLY_IF_ALLOWED


def test_what_is_asked_for_by_hand_is_a_log_or_told_to_everybody() -> None:
    by_hand = {
        path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if "call_api(" in path.read_text()
    }
    assert by_hand == {"kubernetes/logend.py", "kubernetes/logs.py", "kubernetes/readiness.py"}


def test_no_resource_and_verb_is_listed_twice() -> None:
    for rights in (rbac.NAMESPACED, rbac.CLUSTER):
        listed = list(rbac.each(rights))
        assert len(listed) == len(set(listed))


def objects() -> dict[tuple[str, str], dict[str, Any]]:
    """Everything in deploy/kustomize, by kind and name."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for folder in ("platform", "tenant"):
        listed = yaml.safe_load((DEPLOY / folder / "kustomization.yaml").read_text())["resources"]
        assert sorted(listed) == sorted(p.name for p in (DEPLOY / folder).glob("*.yaml") if p.stem != "kustomization")
        for name in listed:
            for obj in yaml.safe_load_all((DEPLOY / folder / name).read_text()):
                found[obj["kind"], obj["metadata"]["name"]] = obj
    return found


def test_the_roles_give_exactly_these_rights() -> None:
    made = objects()
    assert made["Role", "updraft"]["rules"] == rbac.rules(rbac.NAMESPACED)
    assert made["ClusterRole", "updraft-nodes"]["rules"] == rbac.rules(rbac.CLUSTER)
    assert [kind for kind, _ in made if kind in ("Role", "ClusterRole")] == ["ClusterRole", "Role"]


def test_the_roles_are_bound_to_the_platforms_account_and_to_nobody_else() -> None:
    made = objects()
    account = made["ServiceAccount", "updraft"]["metadata"]
    subject = {"kind": "ServiceAccount", **account}
    for binding, role in (
        (("RoleBinding", "updraft"), "Role"),
        (("ClusterRoleBinding", "updraft-nodes"), "ClusterRole"),
    ):
        assert made[binding]["subjects"] == [subject]
        assert made[binding]["roleRef"] == {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": role,
            "name": binding[1],
        }


def test_pods_of_every_namespace_keep_to_the_restricted_profile_and_get_no_token() -> None:
    made = objects()
    for name in ("updraft-system", "updraft-default"):
        labels = made["Namespace", name]["metadata"]["labels"]
        assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    for account in ("updraft", "default"):
        assert made["ServiceAccount", account]["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("network_policy", "disruption_budget", "without"),
    [
        (True, True, {"persistentvolumeclaims", "serviceaccounts"}),
        (True, False, {"persistentvolumeclaims", "serviceaccounts", "poddisruptionbudgets"}),
        (False, False, {"persistentvolumeclaims", "serviceaccounts", "poddisruptionbudgets", "networkpolicies"}),
    ],
)
def test_no_right_is_asked_for_that_the_settings_make_needless(
    network_policy: bool, disruption_budget: bool, without: set[str]
) -> None:
    configured: Any = SimpleNamespace(network_policy=network_policy, disruption_budget=disruption_budget)
    assert {right.resource for right in rbac.NAMESPACED} - {r.resource for r in rbac.needed(configured)} == without
