"""Where a pod may go, where it would rather go, and how long it stays on a node that is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from updraft_localnode.affinity import allows, preference, repelled_by, toleration_seconds
from updraft_localnode.resources import Amounts
from updraft_localnode.scheduler import NodeSpec, node_object, place

UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
LABELS = {"kubernetes.io/hostname": "a", "size": "8"}
NODES = [NodeSpec("a", Amounts(4000, 2**30)), NodeSpec("b", Amounts(4000, 2**30))]


def pod(**spec):
    container = {"name": "base", "resources": {"requests": {"cpu": "1"}}}
    return {"metadata": {"name": "p"}, "spec": {"containers": [container], **spec}, "status": {}}


def required(*terms):
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return pod(affinity={"nodeAffinity": affinity})


def expression(key, operator, *values):
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def avoiding(*names, weight=100):
    preferred = {"weight": weight, "preference": expression("kubernetes.io/hostname", "NotIn", *names)}
    return pod(affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}})


@pytest.mark.parametrize(
    ("term", "admitted"),
    [
        (expression("kubernetes.io/hostname", "In", "a", "b"), True),
        (expression("kubernetes.io/hostname", "NotIn", "a"), False),
        (expression("kubernetes.io/hostname", "NotIn", "b"), True),
        (expression("unknown", "NotIn", "b"), True),
        (expression("size", "Exists"), True),
        (expression("size", "DoesNotExist"), False),
        (expression("size", "Gt", "7"), True),
        (expression("size", "Lt", "8"), False),
        (expression("unknown", "Gt", "7"), False),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}, True),
        ({}, False),
    ],
)
def test_required_node_affinity(term, admitted):
    assert allows(required(term), "a", LABELS) is admitted


def test_one_term_is_enough_and_the_node_selector_holds_beside_it():
    either = required(expression("size", "In", "1"), expression("size", "In", "8"))
    assert allows(either, "a", LABELS)
    either["spec"]["nodeSelector"] = {"size": "1"}
    assert not allows(either, "a", LABELS)


def test_preferences_add_up():
    assert preference(avoiding("a", weight=7), "a", LABELS) == 0
    assert preference(avoiding("b", weight=7), "a", LABELS) == 7


def test_a_pod_avoids_a_node_while_another_has_room():
    assert place(avoiding("a"), NODES, []).node == "b"
    assert place(avoiding("a"), NODES[:1], []).node == "a"
    assert place(avoiding("a", "b"), NODES, []).node == "a"


def test_the_first_obstacle_of_each_node_is_named():
    nodes = [NodeSpec("a", Amounts(4000, 2**30), unschedulable=True), NodeSpec("b", Amounts(10, 2**30))]
    reason = place(pod(), nodes, []).reason
    assert reason == "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable."


@pytest.mark.parametrize(
    ("toleration", "repelled"),
    [
        ({}, True),
        ({"operator": "Exists"}, False),
        ({"key": "k", "operator": "Exists"}, False),
        ({"key": "k", "value": "v", "effect": "NoSchedule"}, False),
        ({"key": "k", "value": "w"}, True),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, True),
    ],
)
def test_taints_repel_what_does_not_tolerate_them(toleration, repelled):
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    assert (repelled_by(pod(tolerations=[toleration]), [taint]) is not None) is repelled


def test_a_taint_that_only_advises_repels_nobody():
    assert repelled_by(pod(), [{"key": "k", "effect": "PreferNoSchedule"}]) is None


def staying(*seconds):
    tolerations = [{**UNREACHABLE, "operator": "Exists", "tolerationSeconds": s} for s in seconds]
    return pod(tolerations=tolerations)


@given(st.none() | st.floats(0, 1000), st.lists(st.integers(-5, 1000), min_size=1))
def test_the_shortest_patience_counts(default, seconds):
    limits = [*seconds, *([] if default is None else [default])]
    assert toleration_seconds(staying(*seconds), UNREACHABLE, default) == max(min(limits), 0)


def test_a_pod_stays_for_ever_if_it_says_so():
    assert toleration_seconds(staying(None), UNREACHABLE, 5.0) is None
    assert toleration_seconds(pod(), UNREACHABLE, 5.0) == 5.0
    assert toleration_seconds(pod(), UNREACHABLE, None) is None


def test_a_node_is_read_back_from_its_object():
    spec = NodeSpec("a", Amounts(2500, 2**30, 4), "h100")
    read = NodeSpec.of(node_object(spec, "v1"))
    assert (read.name, read.allocatable, read.labels()) == (spec.name, spec.allocatable, spec.labels())
