"""The fault lab on nodes: lost, found again, cordoned. Real processes behind the lost node."""

from __future__ import annotations

import time

import pytest
import urllib3
from conformance_helpers import eventually
from kubernetes import client

TICKING = "trap 'echo told; exit 0' TERM; i=0; while :; do i=$((i+1)); echo $i >> {file}; sleep 0.05; done"


def start(cluster, file):
    cluster.create(cluster.pod("twin", TICKING.format(file=file), terminationGracePeriodSeconds=5))
    eventually(lambda: cluster.read("twin").status.phase == "Running" and file.exists())
    return cluster, cluster.read("twin").spec.node_name, file


@pytest.fixture
def ticking(lab, tmp_path):
    """A pod that writes to a file for as long as it lives; the cluster, the node's name, and what was written."""
    return start(lab, tmp_path / "ticks")


def goes_on(file):
    before = file.stat().st_size
    eventually(lambda: file.stat().st_size > before)
    return True


def node_of(cluster, name):
    return cluster.core.read_node(name)


def ready(conditions):
    return next(c.status for c in conditions if c.type == "Ready")


def test_a_lost_node_is_marked_and_its_pods_live_on_unseen(ticking):
    cluster, name, file = ticking

    did = cluster.fault("lose_node", delete_after_seconds=None, timeout_seconds=0.1)

    assert did["node"] == name
    node = node_of(cluster, name)
    assert {c.status for c in node.status.conditions} == {"Unknown"}
    assert {(t.key, t.effect) for t in node.spec.taints} == {
        ("node.kubernetes.io/unreachable", "NoSchedule"),
        ("node.kubernetes.io/unreachable", "NoExecute"),
    }
    pod = cluster.read("twin")
    assert (pod.status.phase, ready(pod.status.conditions)) == ("Running", "False")
    assert pod.status.container_statuses[0].state.running
    assert goes_on(file)
    with pytest.raises(client.ApiException) as caught:
        cluster.log("twin")
    assert caught.value.status == 500
    assert "dial tcp 127.0.0.1:10250: i/o timeout" in caught.value.body
    events = cluster.core.list_namespaced_event(cluster.namespace).items
    assert [e.reason for e in events if e.type == "Warning"] == ["NodeNotReady"]


def test_the_pods_of_a_lost_node_are_deleted_first_mildly_then_by_force_and_run_all_the_same(ticking):
    cluster, name, file = ticking
    cluster.fault("lose_node", delete_after_seconds=0.3, gone_after_seconds=5)

    pod = eventually(lambda: deleting(cluster.read("twin")))

    target = next(c for c in pod.status.conditions if c.type == "DisruptionTarget")
    assert (target.status, target.reason) == ("True", "DeletionByTaintManager")
    assert (pod.status.phase, pod.metadata.deletion_grace_period_seconds) == ("Running", 5)
    eventually(lambda: cluster.gone("twin"))
    assert goes_on(file)
    assert cluster.faults()["unseen_pods"] == [
        {"namespace": cluster.namespace, "pod": "twin", "node": name, "in_api": False}
    ]


def deleting(pod):
    return pod if pod.metadata.deletion_timestamp else None


def test_a_pod_of_a_lost_node_stays_terminating_when_nobody_collects_it(ticking):
    cluster, _, file = ticking
    cluster.fault("lose_node", delete_after_seconds=None)
    cluster.core.delete_namespaced_pod("twin", cluster.namespace, grace_period_seconds=0)
    assert cluster.gone("twin")
    assert goes_on(file)


def test_the_work_goes_on_elsewhere_beside_its_twin(ticking):
    cluster, name, file = ticking
    did = cluster.fault("lose_node", delete_after_seconds=0, gone_after_seconds=0)
    eventually(lambda: cluster.gone("twin"))

    cluster.create(cluster.pod("twin", "echo second; sleep 60"))

    pod = cluster.wait_phase("twin", "Running")
    assert pod.spec.node_name == did["replacement"] != name
    eventually(lambda: cluster.log("twin") == "second\n")
    assert goes_on(file)


def test_a_found_node_ends_what_the_api_no_longer_has(ticking):
    cluster, name, file = ticking
    cluster.fault("lose_node", delete_after_seconds=0, gone_after_seconds=0)
    eventually(lambda: cluster.gone("twin"))
    cluster.create(cluster.pod("successor", "sleep 60"))
    cluster.wait_phase("successor", "Running")

    assert cluster.fault("find_node") == {"node": name}

    eventually(lambda: not cluster.faults()["unseen_pods"])
    after = file.stat().st_size
    eventually(lambda: name not in [n.metadata.name for n in cluster.core.list_node().items])
    assert file.stat().st_size == after
    assert cluster.read("successor").status.phase == "Running"
    assert cluster.faults()["lost_nodes"] == []


def test_a_node_that_is_back_soon_goes_on_as_if_nothing_had_been(ticking):
    cluster, name, file = ticking
    cluster.fault("lose_node")
    cluster.fault("find_node")
    pod = cluster.read("twin")
    assert (pod.status.phase, ready(pod.status.conditions)) == ("Running", "True")
    assert [n.metadata.name for n in cluster.core.list_node().items] == [name]
    assert not node_of(cluster, name).spec.taints
    assert goes_on(file)


def test_what_happened_behind_a_lost_node_is_told_when_it_is_back(lab, tmp_path):
    cluster, go = lab, tmp_path / "go"
    cluster.create(cluster.pod("short", f"while [ ! -e {go} ]; do sleep 0.05; done; exit 4"))
    cluster.wait_phase("short", "Running")
    cluster.fault("lose_node", delete_after_seconds=None)
    go.touch()
    eventually(lambda: cluster.faults()["unseen_pods"] == [])
    assert cluster.read("short").status.phase == "Running"
    cluster.fault("find_node")
    pod = cluster.finished("short")
    assert (pod.status.phase, pod.status.container_statuses[0].state.terminated.exit_code) == ("Failed", 4)


def test_a_lost_node_outlives_a_killed_local_node(own_node, tmp_path):
    cluster, name, file = start(own_node, tmp_path / "ticks")
    cluster.fault("lose_node", delete_after_seconds=0, gone_after_seconds=0)
    eventually(lambda: cluster.gone("twin"))

    cluster.node.kill()
    cluster.node.restart()

    assert goes_on(file)
    assert [n["node"] for n in cluster.faults()["lost_nodes"]] == [name]
    assert {n.metadata.name for n in cluster.core.list_node().items} == {name, f"{name}-2"}
    cluster.fault("kill_container", namespace=cluster.namespace, pod="twin")
    eventually(lambda: cluster.faults()["unseen_pods"] == [])
    assert cluster.faults("DELETE")["lost_nodes"] == []
    eventually(lambda: [n.metadata.name for n in cluster.core.list_node().items] == [name])


def test_stopping_the_local_node_ends_also_what_nobody_sees(own_node, tmp_path):
    cluster, _, file = start(own_node, tmp_path / "ticks")
    cluster.fault("lose_node", delete_after_seconds=0, gone_after_seconds=0)
    eventually(lambda: cluster.gone("twin"))
    assert cluster.node.stop() == 0
    after = file.stat().st_size
    time.sleep(0.2)  # four times the pause between two ticks
    assert file.stat().st_size == after


def test_a_pod_that_may_not_stay_leaves_sooner_and_one_that_may_stays(lab):
    cluster = lab
    tolerated = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
    cluster.create(cluster.pod("brief", "sleep 60", tolerations=[{**tolerated, "tolerationSeconds": 0}]))
    cluster.create(cluster.pod("faithful", "sleep 60", tolerations=[tolerated]))
    for name in ("brief", "faithful"):
        cluster.wait_phase(name, "Running")
    cluster.fault("lose_node", delete_after_seconds=600, gone_after_seconds=0)
    eventually(lambda: cluster.gone("brief"))
    assert cluster.read("faithful").metadata.deletion_timestamp is None


def test_without_a_replacement_new_pods_wait(lab):
    cluster = lab
    cluster.fault("lose_node", replace=False)
    cluster.create(cluster.pod("late", "sleep 60"))

    def refusal():
        conditions = cluster.read("late").status.conditions or []
        return conditions and conditions[0].message

    unreachable = "node(s) had untolerated taint {node.kubernetes.io/unreachable: }"
    assert eventually(refusal) == f"0/1 nodes are available: 1 {unreachable}."
    cluster.fault("find_node")
    cluster.wait_phase("late", "Running")


def test_a_followed_log_breaks_off_when_its_node_is_lost(ticking):
    cluster, _, _ = ticking
    url = f"{cluster.node.url}/api/v1/namespaces/{cluster.namespace}/pods/twin/log?follow=true"
    stream = urllib3.PoolManager().request(
        "GET", url, headers={"Authorization": f"Bearer {cluster.node.token}"}, preload_content=False, retries=False
    )
    cluster.fault("lose_node", delete_after_seconds=None, timeout_seconds=0.1)
    with pytest.raises(urllib3.exceptions.ProtocolError):
        stream.read()
