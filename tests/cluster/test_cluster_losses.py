"""Jobs that lose their place on a real Kubernetes go on from their checkpoint: evicted, drained, no API server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster_helpers import eventually
from kubecluster.machines import NODES
from loss_helpers import WITHIN_SECONDS, begun, counting, evict, went_on
from platform_helpers import PROGRAMS, OwnPlatform, Platform

from updraft_learner.contract import LABEL_JOB

pytestmark = pytest.mark.cluster


@pytest.mark.fault("pod_evict")
def test_a_learner_that_is_evicted_goes_on_on_another_node(platform: Platform) -> None:
    job_id = platform.submit(counting("evicted"), base=PROGRAMS)
    begun(platform, job_id)
    evict(platform, job_id)
    went_on(platform, job_id, "node.drained")
    if len(platform.nodes) > 1:
        assert len(set(platform.witness.nodes(job_id))) == 2


@pytest.fixture
def uncordoned(own_platform: OwnPlatform) -> Iterator[None]:
    yield
    for node in NODES:
        own_platform.kubectl("uncordon", node)


@pytest.mark.fault("node_drain")
def test_a_node_that_is_drained_gives_its_jobs_to_the_other(own_platform: OwnPlatform, uncordoned: None) -> None:
    platform = own_platform
    job_id = platform.submit(counting("drained"), base=PROGRAMS)
    begun(platform, job_id)
    (node,) = platform.witness.nodes(job_id)
    drain = ("drain", node, "--force", "--delete-emptydir-data", f"--pod-selector={LABEL_JOB}", "--timeout=120s")
    platform.kubectl(*drain)
    went_on(platform, job_id, "node.drained")
    assert platform.witness.nodes(job_id) == [node, *(other for other in NODES if other != node)]


@pytest.mark.fault("kube_apiserver_stopped")
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
