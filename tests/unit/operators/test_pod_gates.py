"""The section `pod` is judged when a job is admitted and again before each launch."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from unit.operators.airflow_fakes import Platform, until

from updraft.lifecycle import State
from updraft.settings import settings

Make = Callable[..., Platform]
POD = {
    "node_selector": {"disk": "ssd"},
    "volumes": [{"mount": "/scratch", "size": "1GiB"}, {"mount": "/shared", "claim": "team"}],
    "service_account": "trainer",
}
POLICY = {"node_selector": {"disk": ["ssd"]}, "claims": ["team"], "service_accounts": ["trainer"]}
CLAIM = {"metadata": {"name": "team"}, "spec": {"accessModes": ["ReadWriteMany"]}, "status": {"phase": "Bound"}}


@pytest.fixture
def allow(environment: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], None]:
    def allow(policy: dict[str, Any]) -> None:
        monkeypatch.setenv("UPDRAFT_POD_POLICY", json.dumps({"*": policy}))
        settings.cache_clear()

    return allow


def ready(platform: Platform) -> Platform:
    platform.cluster.node_labels["disk"] = "ssd"
    platform.cluster.objects["claim"]["team"] = CLAIM
    platform.cluster.objects["account"]["trainer"] = {"metadata": {"name": "trainer"}}
    return platform


def ended(platform: Platform) -> str:
    platform.run_all()
    assert platform.job.state is State.FAILED
    return str(platform.job.reason)


def test_a_job_that_asks_for_more_than_the_policy_allows_is_not_admitted(make_platform: Make) -> None:
    platform = ready(make_platform(pod=POD))
    reason = ended(platform)
    for field in ("pod.node_selector.disk", "pod.volumes[1].claim", "pod.service_account"):
        assert f"{field}: " in reason
    assert platform.states["admit"] == "failed"
    assert not [made for made in platform.cluster.created if made.startswith("pod ")]


def test_what_does_not_exist_is_named_before_the_job_waits(allow: Any, make_platform: Make) -> None:
    allow(POLICY)
    reason = ended(make_platform(pod=POD))
    assert "pod.volumes[1].claim: claim 'team' does not exist in namespace updraft-default" in reason
    assert "pod.service_account: service account 'trainer' does not exist" in reason


def test_labels_that_no_node_has_end_the_job_with_what_nodes_have(allow: Any, make_platform: Make) -> None:
    allow(POLICY)
    platform = ready(make_platform(pod=POD))
    platform.cluster.node_labels["disk"] = "hdd"
    assert "pod.node_selector: no node has disk=ssd; nodes have hdd" in ended(platform)


def test_a_policy_that_has_changed_since_admission_is_applied_before_the_launch(
    allow: Any, make_platform: Make
) -> None:
    allow(POLICY)
    platform = until(ready(make_platform(pod=POD)), "train")
    allow({**POLICY, "service_accounts": []})
    platform.run("train")
    platform.run("release")
    assert platform.job.state is State.FAILED
    assert "pod.service_account: 'trainer' is not allowed for this tenant" in str(platform.job.reason)
    assert not [made for made in platform.cluster.created if made.startswith("pod ")]


def test_an_allowed_job_runs_with_all_of_it(allow: Any, make_platform: Make) -> None:
    allow(POLICY)
    platform = until(ready(make_platform(pod=POD)), "train")
    pods: list[dict[str, Any]] = []

    def end(platform: Platform, job_id: str) -> dict[str, Any]:
        pods.extend(platform.cluster.objects["pod"].values())
        return platform.pods_succeed(job_id)

    platform.pods_end = end
    assert platform.run("train") == "success"
    for pod in pods:
        assert pod["spec"]["nodeSelector"] == {"disk": "ssd"}
        assert pod["spec"]["serviceAccountName"] == "trainer"
        claims = [v["persistentVolumeClaim"] for v in pod["spec"]["volumes"] if "persistentVolumeClaim" in v]
        assert claims == [{"claimName": "team"}]
    assert len(pods) == 2
