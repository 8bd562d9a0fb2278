"""Which objects of the cluster a job makes, from its manifest and the site's settings, and which it asks for first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from unit.operators.airflow_fakes import Platform, until

from updraft.lifecycle import State
from updraft.settings import settings
from updraft_learner.contract import PodConfig

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
    cloud = ["100.100.100.200/32", "168.63.129.16/32", "169.254.0.0/16"]
    assert outside == {"cidr": "0.0.0.0/0", "except": ["10.0.0.1/32", "10.0.0.2/32", *cloud]}


def test_the_site_decides_about_policy_and_budget(make_platform: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPDRAFT_NETWORK_POLICY", "false")
    monkeypatch.setenv("UPDRAFT_DISRUPTION_BUDGET", "true")
    platform = until(make_platform(), "train")
    settings.cache_clear()
    launched(platform)
    kinds = [created.split()[0] for created in platform.cluster.created]
    assert ("policy" in kinds, "budget" in kinds) == (False, True)


@pytest.mark.parametrize(
    ("manifest", "request_and_limit"),
    [
        ({"disk": "20GiB"}, ("20480Mi", "20480Mi")),  # set aside on its node
        ({"disk": "1.5GB"}, ("1431Mi", "1431Mi")),
        ({}, ("0", "2048Mi")),  # the platform's limit; a node with less takes it too
    ],
)
def test_a_learner_has_a_limit_of_disk(
    make_platform: Make, monkeypatch: pytest.MonkeyPatch, manifest: dict[str, str], request_and_limit: tuple[str, str]
) -> None:
    monkeypatch.setenv("UPDRAFT_LEARNER_DISK_BYTES", str(2 * 1024**3))
    resources = {"learners": 1, "cpus": 0.5, "memory": "256MiB", **manifest}
    platform = until(make_platform(resources=resources), "train")
    settings.cache_clear()
    pods: list[Any] = []

    def end(platform: Platform, job_id: str) -> dict[str, Any]:
        pods.extend(platform.cluster.objects["pod"].values())
        return platform.pods_succeed(job_id)

    platform.pods_end = end
    platform.run("train")
    (pod,) = pods
    request, limit = request_and_limit
    (program,) = pod["spec"]["containers"]
    assert program["resources"] == {
        "requests": {"cpu": "0.5", "memory": "256Mi", "ephemeral-storage": request},
        "limits": {"cpu": "0.5", "memory": "256Mi", "ephemeral-storage": limit},
    }
    sizes = {v["name"]: v["emptyDir"].get("sizeLimit") for v in pod["spec"]["volumes"] if "emptyDir" in v}
    assert sizes == {"job": limit, "private": limit, "shm": None}
    # A kubelet adds up the limits of a pod's containers: the program's is all of it.
    ours = [container["resources"] for container in pod["spec"]["initContainers"]]
    assert not any("ephemeral-storage" in {**each["requests"], **each["limits"]} for each in ours)


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
    assert State.QUEUED not in {t.to_state for t in platform.ledger.jobs.transitions(platform.job.id)}


def sidecars(platform: Platform) -> list[Any]:
    """The pods of the training, which then ends."""
    pods: list[Any] = []

    def end(platform: Platform, job_id: str) -> dict[str, Any]:
        pods.extend(platform.cluster.objects["pod"].values())
        return platform.pods_succeed(job_id)

    platform.pods_end = end
    assert platform.run("train") == "success"
    return pods


def config_of(pod: Any) -> PodConfig:
    (sidecar,) = pod["spec"]["initContainers"]
    (text,) = [variable["value"] for variable in sidecar["env"] if variable["name"] == "UPDRAFT_POD_CONFIG"]
    return PodConfig.from_json(text)


@pytest.mark.parametrize("mode", ["stream", "mount"])
def test_the_nodes_cache_is_writable_for_the_sidecar_alone(
    make_platform: Make, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("UPDRAFT_NODE_CACHE_CLAIM", "cache")
    monkeypatch.setenv("UPDRAFT_NODE_CACHE_BYTES", "1000")
    platform = make_platform(data=[{"source": "tree:DATA", "as": "x", "mode": mode}], evaluate=None, export=None)
    platform.cluster.objects["claim"]["cache"] = {
        **CLAIM,
        "metadata": {"name": "cache", "uid": "claim-2"},
        "spec": {"accessModes": ["ReadWriteMany"]},
    }
    platform = until(platform, "train")
    (record,) = platform.job.data
    assert (record["mode"], record["mount"]) == (mode, "x")
    for pod in sidecars(platform):
        config = config_of(pod)
        assert [(mount.mode, mount.mount, mount.bucket) for mount in config.data] == [(mode, "x", None)]
        assert config.cache_bytes == 1000
        (sidecar,), (program,) = pod["spec"]["initContainers"], pod["spec"]["containers"]
        mount = {"name": "node-cache", "mountPath": "/updraft-cache"}
        assert mount in sidecar["volumeMounts"]
        assert {"name": "UPDRAFT_CACHE_DIR", "value": "/updraft-cache"} in sidecar["env"]
        assert ({**mount, "readOnly": True} in program["volumeMounts"]) == (mode == "mount")
        assert mount not in program["volumeMounts"]


def test_a_cache_that_does_not_exist_is_named_before_a_pod_waits_for_it(
    make_platform: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPDRAFT_NODE_CACHE_CLAIM", "gone")
    for mode in ("stream", "mount"):
        refused = make_platform(data=[{"source": "tree:DATA", "mode": mode}])
        refused.run_all()
        assert refused.job.state is State.FAILED
        assert "the cache of the nodes cannot be used: claim 'gone' does not exist" in refused.job.reason


def test_without_a_cache_streams_have_a_limit_and_mounts_are_refused(make_platform: Make) -> None:
    resources = {"learners": 1, "cpus": 0.5, "memory": "256MiB", "disk": "4GiB"}
    streamed = [{"source": "tree:DATA", "mode": "stream"}]
    platform = until(make_platform(data=streamed, evaluate=None, export=None, resources=resources), "train")
    (pod,) = sidecars(platform)
    assert config_of(pod).cache_bytes == 1 << 30
    assert "node-cache" not in str(pod)
    refused = make_platform(data=[{"source": "tree:DATA", "mode": "mount"}])
    refused.run_all()
    assert refused.job.state is State.FAILED
    assert "this platform has no cache on its nodes (UPDRAFT_NODE_CACHE_CLAIM)" in refused.job.reason


def test_the_export_has_nothing_of_the_job_but_its_results(make_platform: Make) -> None:
    """A folder `updraft_learner/` or `mlflow/`, a sitecustomize.py, or a PYTHONSTARTUP of the job would otherwise run
    in the pod whose word decides what is registered as verified."""
    data = [{"source": "pvc://imagenet/train", "as": "train"}]
    env = {"PYTHONSTARTUP": "/updraft/code/evil.py", "PYTHONPATH": "/updraft/code", "PATH": "/updraft/code/bin"}
    platform = make_platform(data=data, env=env, image="attacker/image:1", framework=None)
    platform.cluster.objects["claim"]["imagenet"] = CLAIM
    platform = until(platform, "export_model")
    pods: list[Any] = []

    def end(platform: Platform, job_id: str) -> dict[str, Any]:
        pods.extend(platform.cluster.objects["pod"].values())
        return platform.pods_succeed(job_id)

    platform.pods_end = end
    platform.run("export_model")
    (pod,) = pods
    (program,) = pod["spec"]["containers"]
    assert program["image"] == "updraft/learner-pytorch:2.15"
    assert program["args"][1:] == ["exec python -I -m updraft_learner.export --formats onnx"]
    assert not {"PYTHONSTARTUP", "PYTHONPATH", "PATH"} & {variable["name"] for variable in program["env"]}
    told = next(v["value"] for v in pod["spec"]["initContainers"][0]["env"] if v["name"] == "UPDRAFT_POD_CONFIG")
    config = PodConfig.from_json(told)
    assert (config.code_tree, config.data, config.restore_results) == (None, (), True)
    assert not any("persistentVolumeClaim" in volume for volume in pod["spec"]["volumes"])


def test_only_the_training_is_sampled(make_platform: Make) -> None:
    """MLflow would show series of one point of an evaluation or an export, before the training's own."""
    platform = make_platform(judged=False)
    seconds: dict[str, float] = {}
    probes: dict[str, bool] = {}

    def end(platform: Platform, job_id: str) -> dict[str, Any]:
        for pod in platform.cluster.objects["pod"].values():
            sidecar = pod["spec"]["initContainers"][0]
            told = next(v["value"] for v in sidecar["env"] if v["name"] == "UPDRAFT_POD_CONFIG")
            config = PodConfig.from_json(told)
            seconds[config.role] = config.system_metrics_seconds
            probes[config.role] = "readinessProbe" in pod["spec"]["containers"][0]
        return platform.pods_succeed(job_id)

    platform.pods_end = end
    platform.run_all()
    assert platform.job.state is State.COMPLETED, platform.errors
    assert seconds == {"prepare": 0.0, "train": 10.0, "evaluate": 0.0, "export": 0.0}
    assert probes == {role: every > 0 for role, every in seconds.items()}
