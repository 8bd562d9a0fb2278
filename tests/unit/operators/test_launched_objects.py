"""Which objects of the cluster a job makes, from its manifest and the site's settings, and which it asks for first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from unit.operators.airflow_fakes import Platform, until

from updraft.lifecycle import State
from updraft.settings import settings

Make = Callable[..., Platform]
CLAIM = {
    "metadata": {"name": "imagenet", "uid": "claim-1"},
    "spec": {"accessModes": ["ReadOnlyMany"], "volumeName": "pv-1"},
    "status": {"phase": "Bound"},
}


def launched(platform: Platform, **objects: Any) -> list[str]:
    """What the cluster is asked for by the training, as `train` has just been deferred."""
    seen: list[str] = []

    def end(platform: Platform, job_id: str) -> dict[str, Any]:
        seen.extend(platform.cluster.left)
        return platform.pods_succeed(job_id)

    platform.pods_end = end
    platform.run("train")
    assert platform.cluster.left == []
    return seen


def test_a_gang_has_pods_a_secret_a_service_and_a_policy(make_platform: Make) -> None:
    platform = until(make_platform(), "train")
    assert launched(platform) == ["digits-1-t1-0", "digits-1-t1-1", *["digits-1-t1"] * 3]
    assert platform.cluster.created[-5:] == [
        "secret digits-1-t1",
        "policy digits-1-t1",
        "service digits-1-t1",
        "pod digits-1-t1-0",
        "pod digits-1-t1-1",
    ]


def test_the_api_servers_addresses_are_closed_to_learners(make_platform: Make) -> None:
    platform = until(make_platform(), "train")
    policies: list[Any] = []

    def end(platform: Platform, job_id: str) -> dict[str, Any]:
        policies.extend(platform.cluster.objects["policy"].values())
        return platform.pods_succeed(job_id)

    platform.pods_end = end
    platform.run("train")
    (policy,) = policies
    outside = policy["spec"]["egress"][-1]["to"][0]["ipBlock"]
    # 10.0.0.1 is what the server tells, 10.0.0.2 is what the connection says
    assert outside == {"cidr": "0.0.0.0/0", "except": ["10.0.0.1/32", "10.0.0.2/32", "169.254.0.0/16"]}


def test_the_site_decides_about_policy_and_budget(make_platform: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPDRAFT_NETWORK_POLICY", "false")
    monkeypatch.setenv("UPDRAFT_DISRUPTION_BUDGET", "true")
    platform = until(make_platform(), "train")
    settings.cache_clear()
    launched(platform)
    kinds = [created.split()[0] for created in platform.cluster.created]
    assert ("policy" in kinds, "budget" in kinds) == (False, True)


def test_a_claim_is_mounted_and_recorded_and_not_staged(make_platform: Make) -> None:
    data = [{"source": "pvc://imagenet/train", "as": "train"}]
    platform = make_platform(data=data, evaluate=None, export=None)
    platform.cluster.objects["claim"]["imagenet"] = CLAIM
    platform = until(platform, "train")
    assert list(platform.job.data) == [
        {
            "source": "pvc://imagenet/train",
            "mount": "train",
            "tree": "claim claim-1",
            "files": 0,
            "bytes": 0,
            "claim": "imagenet",
            "path": "train",
            "provenance": {"source": "pvc://imagenet/train", "claim_uid": "claim-1", "volume": "pv-1"},
        }
    ]
    mounts: list[Any] = []

    def end(platform: Platform, job_id: str) -> dict[str, Any]:
        for pod in platform.cluster.pods.values():
            mounts.append(pod["spec"]["containers"][0]["volumeMounts"][-1])
        return platform.pods_succeed(job_id)

    platform.pods_end = end
    assert platform.run("train") == "success"
    assert mounts == [{"name": "data-1", "mountPath": "/updraft/data/train", "readOnly": True, "subPath": "train"}] * 2


def test_a_claim_that_does_not_exist_is_told_before_the_job_waits_in_line(make_platform: Make) -> None:
    platform = make_platform(data=[{"source": "pvc://imagenet"}])
    platform.run_all()
    assert platform.job.state is State.FAILED
    assert platform.job.reason.startswith("data.source: claim 'imagenet' does not exist in namespace updraft-default")
    assert State.QUEUED not in {t.to_state for t in platform.ledger.transitions(platform.job.id)}
