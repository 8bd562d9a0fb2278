"""Evictions, cordons and node affinity: what a cluster does to pods and nodes when it is asked through the API."""

from __future__ import annotations

import json

import pytest
from conformance_helpers import eventually
from kubernetes import client, watch


def eviction(cluster, name, *, of=None, **options):
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": of or name}}
    if options:
        body["deleteOptions"] = options
    answer = cluster.core.create_namespaced_pod_eviction(name, cluster.namespace, body, _preload_content=False)
    return answer.status, json.loads(answer.data)["status"]


def condition(pod, kind):
    return next((c for c in pod.status.conditions or [] if c.type == kind), None)


def unschedulable(cluster, name):
    def refused():
        found = condition(cluster.read(name), "PodScheduled")
        return found if found is not None and found.status == "False" else None

    return eventually(refused)


def affinity(kind, operator, *names):
    expressions = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": operator, "values": [*names]}]}
    if kind == "required":
        return {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [expressions]},
            }
        }
    preferred = [{"weight": 100, "preference": expressions}]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def hostnames(cluster):
    return [node.metadata.labels["kubernetes.io/hostname"] for node in cluster.core.list_node().items]


def test_an_eviction_is_a_deletion_that_says_who_asked(cluster):
    script = 'trap "exit 0" TERM; echo ready; while :; do sleep 0.1; done'
    cluster.create(cluster.pod("evicted", script, terminationGracePeriodSeconds=20))
    cluster.wait_phase("evicted", "Running")
    start = cluster.read("evicted").metadata.resource_version

    assert eviction(cluster, "evicted") == (201, "Success")

    seen = []
    for event in watch.Watch().stream(
        cluster.core.list_namespaced_pod, cluster.namespace, resource_version=start, timeout_seconds=20
    ):
        seen.append(event["object"])
        if event["type"] == "DELETED":
            break
    marked = next(pod for pod in seen if pod.metadata.deletion_timestamp)
    assert marked.metadata.deletion_grace_period_seconds == 20
    target = condition(seen[-1], "DisruptionTarget")
    assert (target.status, target.reason) == ("True", "EvictionByEvictionAPI")
    assert cluster.gone("evicted")


def test_an_eviction_may_bring_its_own_grace_period(cluster):
    cluster.create(cluster.pod("quick", 'trap "" TERM; while :; do sleep 0.1; done'))
    cluster.wait_phase("quick", "Running")
    eviction(cluster, "quick", gracePeriodSeconds=1)
    eventually(lambda: cluster.gone("quick"))


def test_an_eviction_of_nobody_is_404_and_of_somebody_else_400(cluster):
    with pytest.raises(client.ApiException) as caught:
        eviction(cluster, "nobody")
    assert caught.value.status == 404
    cluster.create(cluster.pod("one", "sleep 60"))
    with pytest.raises(client.ApiException) as caught:
        eviction(cluster, "one", of="two")
    assert caught.value.status == 400
    assert cluster.read("one").metadata.deletion_timestamp is None


def test_a_pod_that_must_go_elsewhere_waits_and_one_that_would_rather_comes(cluster):
    everywhere = hostnames(cluster)
    cluster.create(cluster.pod("picky", "true", affinity=affinity("required", "NotIn", *everywhere)))
    cluster.create(cluster.pod("modest", "true", affinity=affinity("preferred", "NotIn", *everywhere)))
    assert cluster.finished("modest").status.phase == "Succeeded"
    refusal = unschedulable(cluster, "picky")
    assert refusal.reason == "Unschedulable"
    assert "didn't match Pod's node affinity/selector" in refusal.message


def test_a_pod_goes_where_its_affinity_says(cluster):
    free = [n for n in cluster.core.list_node().items if not (n.spec and (n.spec.unschedulable or n.spec.taints))]
    node = free[-1].metadata
    here = affinity("required", "In", node.labels["kubernetes.io/hostname"])
    cluster.create(cluster.pod("placed", "true", affinity=here))
    assert cluster.finished("placed").spec.node_name == node.name


def test_an_affinity_that_makes_no_sense_is_refused(cluster):
    with pytest.raises(client.ApiException) as caught:
        cluster.create(cluster.pod("odd", "true", affinity=affinity("required", "Near", "x")))
    assert caught.value.status == 422
    assert "nodeSelectorTerms[0].matchExpressions[0].operator" in caught.value.body


def test_a_cordoned_node_takes_no_new_pods_and_keeps_those_it_has(free_cluster):
    cluster = free_cluster
    node = cluster.core.list_node().items[-1].metadata.name
    here = affinity("required", "In", hostnames(cluster)[-1])
    cluster.create(cluster.pod("before", "sleep 60", affinity=here))
    cluster.wait_phase("before", "Running")
    cluster.core.patch_node(node, {"spec": {"unschedulable": True}})
    try:
        eventually(
            lambda: any(
                t.key == "node.kubernetes.io/unschedulable" for t in cluster.core.read_node(node).spec.taints or []
            )
        )
        cluster.create(cluster.pod("after", "true", affinity=here))
        assert "1 node(s) were unschedulable" in unschedulable(cluster, "after").message
        assert cluster.read("before").status.phase == "Running"
    finally:
        cluster.core.patch_node(node, {"spec": {"unschedulable": False}})
    assert cluster.finished("after").status.phase == "Succeeded"
    eventually(lambda: not cluster.core.read_node(node).spec.taints)
