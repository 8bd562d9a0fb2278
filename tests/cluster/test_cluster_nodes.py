"""Nodes of a real Kubernetes that are lost, come back, are cordoned, tainted, or given to somebody else's pod."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from cluster_helpers import Pods, eventually
from containers import recipes
from kubecluster.images import ctr, image_names, load_image
from kubecluster.machines import NODES, run_on
from kubecluster.parts import kubelet_name
from kubernetes import client
from loss_helpers import ALL_H100, H100, STEPS, OnNode, begun, counting, evict, resumed_after, stored_by, told, went_on
from platform_helpers import PROGRAMS, OwnPlatform
from skewed_images import skewed

from updraft_learner.contract import SIDECAR_CONTAINER

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("own_platform")]
URGENT = "updraft-test-urgent"
TAINT = "updraft.dev/test"
AHEAD_SECONDS = 7 * 60
TWIN_STEPS = 60  # a second each; a lost node is noticed some 30 s after the start
LOST_WITHIN_SECONDS = 120.0  # a pod that tolerated its silent node for Kubernetes' 300 s would be too late


def other_than(node: str) -> str:
    (other,) = (each for each in NODES if each != node)
    return other


@pytest.fixture
def urgent(pods: Pods) -> Iterator[str]:
    """A priority above that of every job."""
    scheduling = client.SchedulingV1Api(pods.api_client)
    scheduling.create_priority_class({"metadata": {"name": URGENT}, "value": 1_000_000})
    try:
        yield URGENT
    finally:
        scheduling.delete_priority_class(URGENT)


@pytest.mark.fault("pod_preempted")
def test_a_pod_of_higher_priority_takes_the_place_and_that_costs_nothing(
    platform: OwnPlatform, pods: Pods, urgent: str
) -> None:
    """The job waits until there is room again, and goes on, though it may lose no attempt."""
    job_id = platform.submit(counting("preempted", resources=H100, budget={"infra_attempts": 0}), base=PROGRAMS)
    begun(platform, job_id)
    pods.create("urgent", "sleep 600", priorityClassName=urgent, **ALL_H100)
    pods.in_phase("urgent", "Running")
    told(platform, job_id, "Insufficient nvidia.com/gpu")
    pods.core.delete_namespaced_pod("urgent", pods.namespace, grace_period_seconds=0)
    went_on(platform, job_id, "pod.preempted")
    first = platform.client.attempts(job_id).attempts[0]
    assert first.cause == "preempted"
    assert first.relaunch is not None
    assert "no loss" in first.relaunch.reason


@pytest.fixture
def whole(platform: OwnPlatform) -> Iterator[None]:
    """Afterwards both nodes run, with all of their parts, and take pods."""
    yield
    for node in NODES:
        platform.cluster.start_node(node)
        platform.witness.core.patch_node(node, {"spec": {"unschedulable": None, "taints": None}})


@pytest.mark.fault("kubelet_stopped")
def test_what_lives_on_on_a_lost_node_has_no_effect(platform: OwnPlatform, whole: None) -> None:
    """The kubelet is dead and its containers are not: the first attempt counts to its end behind the second one's
    back, and what it writes, sends and is told at last changes nothing."""
    job_id = platform.submit(counting("twin", steps=TWIN_STEPS), base=PROGRAMS)
    lost = begun(platform, job_id)
    (pod,) = platform.witness.pods(job_id)
    twin = OnNode(platform, pod)
    node = twin.node
    platform.cluster.stop_part(kubelet_name(node))
    eventually(lambda: platform.witness.running(job_id) not in (None, lost), within_seconds=LOST_WITHIN_SECONDS)
    eventually(twin.fell_silent)
    before = stored_by(platform, job_id, 1)
    assert before
    detail = went_on(platform, job_id, "node.lost")
    assert platform.witness.nodes(job_id) == [node, other_than(node)]
    eventually(lambda: twin.program_said(f"step {TWIN_STEPS}"), within_seconds=LOST_WITHIN_SECONDS)
    assert twin.runs()

    platform.cluster.start_part(kubelet_name(node))  # which ends what it finds and nobody wants
    eventually(lambda: not twin.runs())
    assert stored_by(platform, job_id, 1) == before
    assert not any("done.json" in name for name in before)
    after = platform.client.job(job_id)
    assert (after.state, after.verdict, after.metrics) == (detail.state, detail.verdict, detail.metrics)
    assert after.metrics["attempt"] == 2
    later = [
        c
        for c in platform.client.checkpoints(job_id, all=True).checkpoints
        if (c.step or 0) > resumed_after(platform, job_id)
    ]
    assert {c.attempt for c in later} == {2}


@pytest.mark.fault("machine_lost")
def test_a_machine_that_is_lost_comes_back_with_nothing_of_the_job(platform: OwnPlatform, whole: None) -> None:
    job_id = platform.submit(counting("machine"), base=PROGRAMS)
    lost = begun(platform, job_id)
    (pod,) = platform.witness.pods(job_id)
    left = OnNode(platform, pod)
    node = left.node
    platform.cluster.stop_machine(node)
    eventually(lambda: platform.witness.running(job_id) not in (None, lost), within_seconds=LOST_WITHIN_SECONDS)
    went_on(platform, job_id, "node.lost")
    assert platform.witness.nodes(job_id) == [node, other_than(node)]
    platform.cluster.start_node(node)
    assert not left.runs()
    platform.nothing_is_left(job_id)


@pytest.fixture
def other_time(platform: OwnPlatform, tmp_path: Path) -> Iterator[str]:
    """A node on which the platform's containers believe another time."""
    layout, node = platform.cluster.layout, NODES[1]
    original, changed = tmp_path / "original.tar", tmp_path / "changed.tar"
    (name,) = (name for name in image_names(layout, node) if name.endswith(f"/{recipes.SIDECAR.name}"))
    exported = run_on(layout, node, [*ctr(layout), "images", "export", original, name])
    assert exported.returncode == 0, exported.stderr
    skewed(original, changed, ahead_seconds=AHEAD_SECONDS)
    load_image(changed, layout, (node,))
    try:
        yield node
    finally:
        load_image(original, layout, (node,))


def seconds_ahead(pod: OnNode) -> float:
    """The sidecar's clock against its node's: each of its lines begins with both."""
    ours, theirs = (datetime.fromisoformat(pod.said(SIDECAR_CONTAINER).split()[field]) for field in (0, 3))
    return (theirs - ours).total_seconds()


@pytest.mark.fault("clock_off")
def test_a_clock_that_is_minutes_off_changes_no_decision(platform: OwnPlatform, whole: None, other_time: str) -> None:
    """One job comes from the node with the other time, and one goes to it: to their checkpoints, points and results
    the second attempt is minutes before the first one, or after it."""
    jobs: dict[str, str] = {}
    for node in NODES:
        platform.kubectl("cordon", other_than(node))
        jobs[node] = platform.submit(counting(f"from-{node}"), base=PROGRAMS)
        begun(platform, jobs[node])
        platform.kubectl("uncordon", other_than(node))
        pod = platform.witness.pods(jobs[node])[0]
        assert abs(seconds_ahead(OnNode(platform, pod)) - (AHEAD_SECONDS if node == other_time else 0)) < 60
        evict(platform, jobs[node])
    for node, job_id in jobs.items():
        detail = went_on(platform, job_id, "node.drained")
        assert platform.witness.nodes(job_id) == [node, other_than(node)]
        assert (detail.metrics["step"], detail.metrics["attempt"]) == (STEPS, 2)
        newest = platform.client.checkpoints(job_id).checkpoints
        assert max((c.step, c.attempt) for c in newest) == (STEPS, 2)


@pytest.mark.fault("node_tainted")
def test_learners_keep_off_a_cordoned_node_and_leave_a_tainted_one(platform: OwnPlatform, whole: None) -> None:
    first, second = NODES
    platform.kubectl("cordon", first)
    job_id = platform.submit(counting("kept-off"), base=PROGRAMS)
    begun(platform, job_id)
    assert platform.witness.nodes(job_id) == [second]
    platform.kubectl("uncordon", first)
    platform.kubectl("taint", "node", second, f"{TAINT}:NoExecute")
    went_on(platform, job_id, "node.lost")
    assert platform.witness.nodes(job_id) == [second, first]
