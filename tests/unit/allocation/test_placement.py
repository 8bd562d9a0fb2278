"""Gangs that ask for labels of nodes, and gangs that tolerate taints."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from updraft.allocation import Capacity, GangRequest, Grant, Node, Placement, plan_admissions
from updraft.kubernetes.capacity import capacity_from_nodes
from updraft.taints import EFFECTS, Taint, Toleration

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SPOT = Taint("spot", "", "NoSchedule")


def node(name: str, *taints: Taint, ready: bool = True, **labels: str) -> Node:
    open_ = ready and not taints
    return Node(name, 2, 4096, ready=open_, labels=frozenset(labels.items()), taints=taints if ready else ())


def gang(job_id: str = "j", *tolerations: str, learners: int = 1, **selector: str) -> GangRequest:
    placement = Placement.of(selector, [Toleration.parse(text) for text in tolerations])
    return GangRequest(job_id, learners, 1, 100, 0, None, NOON, placement=placement)


def granted(nodes: list[Node], *queue: GangRequest) -> set[str]:
    return set(plan_admissions(queue, [], Capacity(tuple(nodes))).granted)


def why_not(nodes: list[Node], request: GangRequest, *running: GangRequest) -> tuple[str, str]:
    plan = plan_admissions([request], [Grant(each, NOON) for each in running], Capacity(tuple(nodes)))
    assert plan.granted == ()
    return ("waits", plan.waiting[0].reason) if plan.waiting else ("refused", plan.impossible[0].reason)


def test_a_gang_is_placed_on_nodes_with_its_labels_only() -> None:
    nodes = [node("a", disk="hdd"), node("b", disk="ssd")]
    assert granted(nodes, gang(disk="ssd", learners=2)) == {"j"}
    assert granted(nodes, gang("x", learners=2), gang("y", disk="ssd", learners=2)) == {"x", "y"}
    state, reason = why_not(nodes, gang(disk="ssd", learners=2), gang("other", disk="ssd"))
    assert state == "waits"
    assert "needs 2 x 1 CPU + 100 MiB on disk=ssd; 1 of 2 CPUs free" in reason
    state, reason = why_not(nodes, gang(disk="ssd", learners=3))
    assert state == "refused"
    assert "on disk=ssd, more than all nodes together can hold" in reason


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        ({"disk": "nvme"}, "pod.node_selector: no node has disk=nvme; nodes have hdd, ssd"),
        ({"zone": "a"}, "pod.node_selector: no node has the label zone; leave it out, or ask the operator"),
        ({"disk": "ssd", "arch": "arm"}, "no node has all of arch=arm, disk=ssd; each is on another node"),
    ],
)
def test_labels_that_no_node_has_are_refused_by_name(selector: dict[str, str], said: str) -> None:
    state, reason = why_not([node("a", disk="hdd", arch="arm"), node("b", disk="ssd")], gang(**selector))
    assert state == "refused"
    assert said in reason


def test_a_gang_waits_for_a_node_with_its_labels_that_is_away() -> None:
    state, reason = why_not([node("a"), node("b", ready=False, disk="ssd")], gang(disk="ssd"))
    assert (state, "no node with disk=ssd is ready" in reason) == ("waits", True)


def test_a_tainted_node_is_room_for_those_who_tolerate_the_taint() -> None:
    nodes = [node("a", SPOT)]
    assert granted(nodes, gang("j", "spot")) == {"j"}
    assert why_not(nodes, gang("j")) == ("waits", "1st in the queue; needs 1 x 1 CPU + 100 MiB; no node is ready")
    assert why_not(nodes, gang("j", "spot=yes:NoSchedule"))[0] == "waits"
    assert why_not([node("a", SPOT, ready=False)], gang("j", "spot"))[0] == "waits"


def test_who_tolerates_leaves_no_room_on_tainted_nodes_to_others() -> None:
    nodes = [node("a", SPOT), node("b")]
    plan = plan_admissions(
        [gang("plain", learners=3)], [Grant(gang("hardy", "spot", learners=2), NOON)], Capacity(tuple(nodes))
    )
    assert [each.job_id for each in plan.waiting] == ["plain"]
    assert granted(nodes, gang("a", "spot", learners=2), gang("b", learners=2)) == {"a", "b"}


def test_taints_of_the_api_become_what_a_gang_must_tolerate() -> None:
    listed: dict[str, Any] = {
        "metadata": {"name": "a", "labels": {"disk": "ssd"}},
        "spec": {
            "taints": [{"key": "spot", "effect": "NoSchedule"}, {"key": "nvidia.com/gpu", "effect": "NoSchedule"}]
        },
        "status": {"allocatable": {"cpu": "2", "memory": "4Gi"}, "conditions": [{"type": "Ready", "status": "True"}]},
    }
    (found,) = capacity_from_nodes([listed]).nodes
    assert (found.ready, found.gpus_only, found.taints) == (False, True, (SPOT,))
    assert ("disk", "ssd") in found.labels
    (found,) = capacity_from_nodes([listed], [Toleration("spot")]).nodes
    assert (found.ready, found.taints) == (True, ())
    listed["spec"]["unschedulable"] = True
    assert not capacity_from_nodes([listed]).nodes[0].open_to(gang("j", "spot").placement)


def test_a_placement_is_stored_and_read_again() -> None:
    placement = Placement.of({"b": "2", "a": ""}, [Toleration("spot"), Toleration("d", "t", "NoExecute")])
    assert Placement.from_json(placement.to_json()) == placement
    assert (Placement().to_json(), Placement.from_json(None)) == (None, Placement())


LABELS = st.dictionaries(st.sampled_from(["disk", "zone"]), st.sampled_from(["a", "b"]))
TAINTS = st.builds(
    Taint, st.sampled_from(["spot", "dedicated"]), st.sampled_from(["", "x"]), st.sampled_from(EFFECTS[:2])
)
NODES = st.lists(
    st.builds(
        lambda labels, taints, up: node("n", *taints, ready=up, **labels),
        LABELS,
        st.lists(TAINTS, max_size=2),
        st.booleans(),
    ),
    min_size=1,
    max_size=4,
).map(lambda found: [replace(each, name=f"n{number}") for number, each in enumerate(found)])
GANGS = st.builds(
    lambda selector, tolerated, learners: gang("j", *tolerated, learners=learners, **selector),
    LABELS,
    st.lists(st.sampled_from(["spot", "dedicated", "dedicated=x"]), max_size=2),
    st.integers(1, 6),
)


@given(NODES, st.lists(GANGS, min_size=1, max_size=4))
def test_granted_gangs_fit_on_nodes_that_take_them(nodes: list[Node], gangs: list[GangRequest]) -> None:
    queue = [replace(each, job_id=f"job-{number}") for number, each in enumerate(gangs)]
    for request in (each for each in queue if each.job_id in granted(nodes, *queue)):
        taking = [n for n in nodes if n.open_to(request.placement) and n.selected_by(request.placement)]
        assert 2 * len(taking) >= request.learners  # each node has two CPUs, each learner takes one
