"""The section `pod` at the gates of the API: what the policy refuses, what no node has, what does not exist."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from unit.api.api_fakes import MANIFEST, Platform, make_platform

from updraft.pod_policy import PodPolicy

API = "/updraft/api/v1"
POLICY = PodPolicy.model_validate(
    {"node_selector": {"disk": ["*"]}, "claims": ["team"], "annotations": ["example.com/*"]}
)


def node(**labels: str) -> dict[str, Any]:
    status = {"allocatable": {"cpu": "4", "memory": "8Gi"}, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": "a", "labels": labels}, "spec": {}, "status": status}


@pytest.fixture
def here(tmp_path: Any) -> Platform:
    platform = make_platform(tmp_path, tenants=("default", "vision"))
    platform.cluster.listed = [node(disk="ssd")]
    settings = platform.settings.model_copy(update={"pod_policy": {"vision": POLICY}})
    return replace(platform, settings=settings)


def told(platform: Platform, path: str, pod: dict[str, Any], tenant: str = "vision") -> dict[str, str]:
    manifest = {**MANIFEST, "tenant": tenant, "resources": {"learners": 1, "memory": "1GiB"}, "pod": pod}
    body = manifest if path == "/validate" else {"manifest": manifest, "secrets": []}
    answer = platform.client("ada:vision,default").post(f"{API}{path}", json=body)
    assert answer.status_code == 200, answer.text
    return {error["field"]: error["message"] for error in answer.json()["errors"]}


@pytest.mark.parametrize("path", ["/validate", "/possible"])
def test_each_tenant_is_judged_by_its_own_policy(here: Platform, path: str) -> None:
    pod = {"node_selector": {"disk": "ssd"}, "annotations": {"example.com/owner": "Ada"}}
    assert told(here, path, pod) == {}
    found = told(here, path, pod, tenant="default")
    assert list(found) == ["pod.node_selector.disk", "pod.annotations['example.com/owner']"]
    assert "ask the platform's operator to allow it in UPDRAFT_POD_POLICY" in found["pod.node_selector.disk"]


def test_nothing_is_planned_that_the_policy_refuses(here: Platform) -> None:
    body = {"manifest": {**MANIFEST, "tenant": "default", "pod": {"service_account": "admin"}}}
    answer = here.client("ada:default").post(f"{API}/planned", json=body)
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["error"]["fields"]] == ["pod.service_account"]


def test_the_planned_pods_have_what_the_section_asks_for(here: Platform) -> None:
    pod = {"volumes": [{"mount": "/scratch", "size": "1GiB"}], "node_selector": {"disk": "ssd"}}
    answer = here.client("ada:vision").post(
        f"{API}/planned", json={"manifest": {**MANIFEST, "tenant": "vision", "pod": pod}}
    )
    assert answer.status_code == 200, answer.text
    (train,) = [role for role in answer.json()["roles"] if role["role"] == "train"]
    spec = next(made for made in train["objects"] if made["kind"] == "Pod")["spec"]
    assert spec["nodeSelector"] == {"disk": "ssd"}
    assert {"name": "volume-1", "emptyDir": {"sizeLimit": "1024Mi"}} in spec["volumes"]


def test_what_no_node_has_and_what_does_not_exist_is_told_before_the_job_is_submitted(here: Platform) -> None:
    pod = {"node_selector": {"disk": "nvme"}, "volumes": [{"mount": "/shared", "claim": "team"}]}
    assert told(here, "/possible", pod) == {
        "pod.node_selector": "pod.node_selector: no node has disk=nvme; nodes have ssd",
        "pod.volumes[0].claim": "pod.volumes[0].claim: claim 'team' does not exist",
    }


def test_data_that_no_node_can_share_is_told_before_the_job_is_submitted(here: Platform) -> None:
    data = [{"source": "s3://datasets/x/", "as": "x", "mode": "mount"}, {"source": "pvc://team", "as": "y"}]
    body = {"manifest": {**MANIFEST, "tenant": "vision", "data": data}, "secrets": []}
    answer = here.client("ada:vision").post(f"{API}/possible", json=body)
    found = {error["field"]: error["message"] for error in answer.json()["errors"]}
    assert found["data[0].mode"] == "data[0].mode: this platform has no cache on its nodes"
    assert "data[1].mode" not in found
