"""Jobs on the cluster of `make cluster` for what only there can be had: a registry, a volume, types of GPU."""

from __future__ import annotations

import hashlib
import shutil
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cluster_helpers import Pods, eventually
from kubecluster.layout import Layout
from kubecluster.machines import NODES, read_record, run_on, spawn_on
from kubecluster.parts import GPU, GPU_TYPE_LABEL
from loss_helpers import ALL_H100, told
from platform_helpers import PROGRAMS, OwnPlatform
from system_helpers import ITS_VALUES, REPOSITORY, gpu_job, shell_job, values_of_gpus

from updraft.kubernetes.nodes import PODS_KEPT_SECONDS

pytestmark = pytest.mark.cluster
REGISTRY = "127.0.0.1:5099"  # on each node's own loopback address
CLAIM = "words"
DIGEST = hashlib.sha256((REPOSITORY / "jobs" / "data" / "digits" / "digits.csv").read_bytes()).hexdigest()
SMALL = {"learners": 1, "cpus": 0.25, "memory": "64MiB"}
READS = {"framework": {"name": "sklearn"}, "resources": {"learners": 1, "cpus": 0.25, "memory": "256MiB"}}
DIGITS = {"source": "s3://datasets/digits/", "as": "digits"}
STREAMED = {
    "name": "streamed",
    **READS,
    "command": 'python -m updraft_learner.data cat digits/digits.csv | sha256sum; find "$DATA_DIR" -type f',
    "data": [{**DIGITS, "mode": "stream"}],
}
MOUNTED = {
    "name": "mounted",
    **READS,
    "command": 'cd "$DATA_DIR/digits"; sha256sum digits.csv; touch x || echo read-only; '
    'rm -f digits.csv || echo "stays"; ls -l',
    "data": [{**DIGITS, "mode": "mount"}],
}


def _runs(layout: Layout, node: str, command: list[str]) -> bool:
    return run_on(layout, node, command).returncode == 0


@pytest.fixture(scope="module")
def registry(own_platform: OwnPlatform) -> Iterator[None]:
    """One that answers on every node, and holds nothing."""
    layout, port = own_platform.cluster.layout, REGISTRY.rpartition(":")[2]
    probe = f"import urllib.request; urllib.request.urlopen('http://{REGISTRY}/v2/')"
    for node in NODES:
        spawn_on(layout, node, f"registry-{node}", [sys.executable, PROGRAMS / "registry.py", port])
        eventually(partial(_runs, layout, node, [sys.executable, "-c", probe]))
    try:
        yield
    finally:
        for node in NODES:
            identity = read_record(layout, f"registry-{node}")
            process = None if identity is None else identity.process()
            if process is not None:
                process.kill()


@pytest.fixture(scope="module")
def claim(own_platform: OwnPlatform) -> Iterator[str]:
    """A bound claim whose volume lies on both nodes: a folder that both machines of this cluster see."""
    folder = own_platform.cluster.layout.root / "volume"
    (folder / "train").mkdir(parents=True)
    (folder / "train" / "words.txt").write_text("on a volume\n")
    (folder / "secret.txt").write_text("beside the folder that is asked for\n")
    core = own_platform.witness.core
    spec: dict[str, Any] = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    source = {"capacity": {"storage": "1Mi"}, "hostPath": {"path": str(folder), "type": "Directory"}}
    core.create_persistent_volume({"metadata": {"name": CLAIM}, "spec": {**spec, **source}})
    wants = {"volumeName": CLAIM, "resources": {"requests": {"storage": "1Mi"}}}
    core.create_namespaced_persistent_volume_claim(
        own_platform.namespace, {"metadata": {"name": CLAIM}, "spec": {**spec, **wants}}
    )
    eventually(
        lambda: core.read_namespaced_persistent_volume_claim(CLAIM, own_platform.namespace).status.phase == "Bound"
    )
    try:
        yield CLAIM
    finally:
        core.delete_namespaced_persistent_volume_claim(CLAIM, own_platform.namespace)
        core.delete_persistent_volume(CLAIM)
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def jobs(own_platform: OwnPlatform, registry: None, claim: str, node_cache: Path) -> dict[str, str]:
    """All at once."""
    reads = 'cat "$DATA_DIR/words/words.txt"; ls "$DATA_DIR/words"; touch "$DATA_DIR/words/x" || echo read-only'
    absent = {"framework": None, "image": f"{REGISTRY}/nobody/made-this:1"}
    manifests = {
        "volume": shell_job("volume", reads, data=[{"source": f"pvc://{claim}/train", "as": "words"}]),
        "gpu": gpu_job("gpu", {**SMALL, "gpus": 2, "gpu_type": "nvidia-h100"}),
        "no-image": shell_job("no-image", "true") | absent,
        "streamed": STREAMED,
        "mounted": MOUNTED,
    }
    return {name: own_platform.submit(raw) for name, raw in manifests.items()}


def test_a_learner_with_a_type_of_gpu_lies_where_that_is(own_platform: OwnPlatform, jobs: dict[str, str]) -> None:
    own_platform.completed(jobs["gpu"])
    (pod,) = own_platform.witness.pods(jobs["gpu"])
    node = own_platform.witness.core.read_node(pod["spec"]["nodeName"])
    assert node.metadata.labels[GPU_TYPE_LABEL] == "nvidia-h100"
    base = next(c for c in pod["spec"]["containers"] if c["name"] == "base")
    assert base["resources"]["limits"][GPU] == "2"


def test_what_gpus_do_is_among_a_jobs_metrics(own_platform: OwnPlatform, jobs: dict[str, str]) -> None:
    own_platform.completed(jobs["gpu"])
    assert values_of_gpus(own_platform.client, jobs["gpu"]) == ITS_VALUES


def test_data_on_a_volume_is_read_and_cannot_be_written(own_platform: OwnPlatform, jobs: dict[str, str]) -> None:
    own_platform.completed(jobs["volume"])
    lines = own_platform.log(jobs["volume"]).splitlines()
    assert lines[:2] == ["on a volume", "words.txt"]
    assert "read-only" in lines  # what `touch` said comes by another pipe, before it or after


def test_streamed_data_is_read_through_the_sidecar_and_kept_on_the_node(
    own_platform: OwnPlatform, jobs: dict[str, str], node_cache: Path
) -> None:
    own_platform.completed(jobs["streamed"])
    (line,) = own_platform.log(jobs["streamed"]).splitlines()  # and no file below DATA_DIR
    assert line.split()[0] == DIGEST
    assert [path for path in (node_cache / "blocks").rglob("*") if path.is_file()]


def test_jobs_of_a_node_share_files_that_they_cannot_change(
    own_platform: OwnPlatform, jobs: dict[str, str], node_cache: Path
) -> None:
    own_platform.completed(jobs["mounted"])
    lines = own_platform.log(jobs["mounted"]).splitlines()
    assert f"{DIGEST}  digits.csv" in lines
    assert {"read-only", "stays"} <= set(lines)
    (copy,) = (node_cache / "trees").glob("*/digits.csv")
    made = copy.stat()
    again = own_platform.submit(MOUNTED)
    own_platform.completed(again)
    assert f"{DIGEST}  digits.csv" in own_platform.log(again).splitlines()
    assert copy.stat().st_mtime_ns == made.st_mtime_ns


def test_an_image_that_the_registry_does_not_have_ends_the_job_at_once(
    own_platform: OwnPlatform, jobs: dict[str, str]
) -> None:
    job_id, label = jobs["no-image"], "image.missing"
    assert own_platform.ended(job_id) == ("configuration", label, [label]), own_platform.explained(job_id)
    assert f"{REGISTRY}/nobody/made-this:1" in str(own_platform.client.job(job_id).reason)
    own_platform.nothing_is_left(job_id)


@pytest.mark.fault("gpus_held")
@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (ALL_H100["labels"], "Insufficient nvidia.com/gpu"),  # admitted: the scheduler's words, until there is room
        ({}, "(pods of other workloads take "),  # in the queue
    ],
)
def test_a_learner_waits_for_a_gpu_that_somebody_else_holds(
    own_platform: OwnPlatform, jobs: dict[str, str], pods: Pods, labels: dict[str, str], reason: str
) -> None:
    own_platform.end(jobs["gpu"])
    holder = f"holder-{len(labels)}"
    pods.create(holder, "sleep 600", **{**ALL_H100, "labels": labels})
    pods.in_phase(holder, "Running")
    time.sleep(PODS_KEPT_SECONDS + 2)  # the planner may not know of the pod before
    resources = {**SMALL, "gpus": 1, "gpu_type": "nvidia-h100"}
    job_id = own_platform.submit(shell_job("waits", "true", resources=resources))

    told(own_platform, job_id, reason)
    pods.core.delete_namespaced_pod(holder, pods.namespace, grace_period_seconds=0)
    own_platform.completed(job_id)
    assert len(own_platform.client.attempts(job_id).attempts) == 1
