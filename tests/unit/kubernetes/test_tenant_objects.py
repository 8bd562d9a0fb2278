"""What a tenant needs in a cluster is what deploy/kustomize has for the tenant `default`, with its own limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from updraft.kubernetes.tenants import tenant_objects
from updraft.tenants import Tenant

KUSTOMIZE = Path(__file__).parents[3] / "deploy" / "kustomize" / "tenant"


def made(tenant: Tenant) -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in tenant_objects("default", tenant, namespace="updraft-default")}


def written(file: str) -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in yaml.safe_load_all((KUSTOMIZE / file).read_text())}


def test_namespace_account_and_rights_are_those_of_kustomize() -> None:
    objects, of_file = made(Tenant()), written("namespace.yaml")
    labels = objects["Namespace"]["metadata"]["labels"]
    assert of_file["Namespace"]["metadata"]["labels"].items() <= labels.items()
    assert objects["ServiceAccount"] == of_file["ServiceAccount"]
    rights = written("rights.yaml")
    assert objects["RoleBinding"] == rights["RoleBinding"]
    assert _verbs(objects["Role"]) == _verbs(rights["Role"])


def _verbs(role: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize(
    ("tenant", "gpus"),
    [
        (Tenant(), None),
        (Tenant(quota={"gpu": 8}), None),  # it may borrow whatever is free
        (Tenant(quota={"gpu": 8}, borrow={"gpu": 4}), "12"),
        (Tenant(quota={"A100": 8}, borrow={"A100": 4}), None),
    ],
)
def test_the_cluster_holds_a_tenant_to_what_it_may_use_at_all(tenant: Tenant, gpus: str | None) -> None:
    assert made(tenant)["ResourceQuota"]["spec"]["hard"].get("requests.nvidia.com/gpu") == gpus


def test_every_object_is_in_the_tenants_namespace() -> None:
    for each in tenant_objects("vision", Tenant(), namespace="ml-vision", system="ml-system"):
        where = each["metadata"].get("namespace", each["metadata"]["name"])
        assert where == "ml-vision"
    assert each["spec"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
