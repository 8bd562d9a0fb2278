"""Jobs that lose their place on a real Kubernetes go on from their checkpoint: evicted, drained, no API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cluster_helpers import eventually
from kubecluster.machines import NODES
from platform_helpers import PROGRAMS, OwnPlatform, Platform
from system_helpers import shell_job

from updraft_learner.contract import LABEL_JOB

pytestmark = pytest.mark.cluster
WITHIN_SECONDS = 300.0


def counting(name: str, **fields: Any) -> dict[str, Any]:
    """A program below its shell that saves each step, leaves when it is told, and would else count to its end."""
    checkpoints = {"every": "1s", "keep": {"latest": 3}}
    return shell_job(name, "sh steps.sh; exit $?", code=".", checkpoints=checkpoints, **fields)


def begun(platform: Platform, job_id: str) -> str:
    """The pod of a job that has stored a checkpoint, while its program runs."""

    def stored() -> Any:
        detail = platform.client.job(job_id)
        assert not detail.ended, platform.explained(job_id)
        return detail.state == "PROCESSING" and platform.client.checkpoints(job_id).checkpoints

    eventually(stored, within_seconds=WITHIN_SECONDS)
    name = platform.witness.running(job_id)
    assert name, platform.explained(job_id)
    return str(name)


def went_on(platform: Platform, job_id: str, label: str) -> None:
    """Completed by the second attempt, which began where a checkpoint of the first one was."""
    platform.completed(job_id)
    first, second = platform.client.attempts(job_id).attempts
    assert (first.label, second.label) == (label, "done"), platform.explained(job_id)
    assert second.resume is not None
    assert second.resume.checkpoint
    began = next(line for line in platform.log(job_id).splitlines() if line.startswith("begins after step "))
    assert int(began.rpartition(" ")[2]) > 0
    platform.nothing_is_left(job_id)


def test_a_learner_that_is_evicted_goes_on_on_another_node(platform: Platform) -> None:
    job_id = platform.submit(counting("evicted"), base=PROGRAMS)
    name = begun(platform, job_id)
    metadata = {"name": name, "namespace": platform.namespace}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    platform.witness.core.create_namespaced_pod_eviction(name, platform.namespace, eviction)
    went_on(platform, job_id, "node.drained")
    if len(platform.witness.core.list_node().items) > 1:
        assert len(set(platform.witness.nodes(job_id))) == 2


@pytest.fixture
def uncordoned(own_platform: OwnPlatform) -> Iterator[None]:
    yield
    for node in NODES:
        own_platform.kubectl("uncordon", node)


def test_a_node_that_is_drained_gives_its_jobs_to_the_other(own_platform: OwnPlatform, uncordoned: None) -> None:
    platform = own_platform
    job_id = platform.submit(counting("drained"), base=PROGRAMS)
    begun(platform, job_id)
    (node,) = platform.witness.nodes(job_id)
    drain = ("drain", node, "--force", "--delete-emptydir-data", f"--pod-selector={LABEL_JOB}", "--timeout=120s")
    platform.kubectl(*drain)
    went_on(platform, job_id, "node.drained")
    assert platform.witness.nodes(job_id) == [node, *(other for other in NODES if other != node)]


def test_a_job_outlives_its_clusters_api_server(own_platform: OwnPlatform) -> None:
    """Its learner needs none; what guards it waits until there is one again, and counts nothing as lost."""
    platform = own_platform
    job_id = platform.submit(counting("without-api"), base=PROGRAMS)
    begun(platform, job_id)
    before = len(platform.client.checkpoints(job_id, all=True).checkpoints)
    platform.cluster.stop_part("kube-apiserver")
    try:
        # The program goes on and its sidecar stores, without anybody who could be asked about pods.
        eventually(
            lambda: len(platform.client.checkpoints(job_id, all=True).checkpoints) > before + 2,
            within_seconds=WITHIN_SECONDS,
        )
    finally:
        platform.cluster.start_part("kube-apiserver")
    platform.completed(job_id)
    (attempt,) = platform.client.attempts(job_id).attempts
    assert attempt.label == "done", platform.explained(job_id)
    platform.nothing_is_left(job_id)
