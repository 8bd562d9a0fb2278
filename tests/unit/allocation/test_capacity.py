from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from updraft.allocation import Capacity, GangRequest, Node, fits, never_fits, plan_admissions
from updraft.kubernetes.capacity import capacity_from_nodes
from updraft.taints import Toleration


def node(name: str, ready: str = "True", **spec: object) -> dict[str, object]:
    return {
        "metadata": {"name": name, "labels": {"updraft.dev/gpu-type": "a100"}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": "1930m", "memory": "4026532Ki", "nvidia.com/gpu": "2"},
            "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}],
        },
    }


def test_nodes_become_capacity_and_those_not_ready_are_not_counted_as_free() -> None:
    capacity = capacity_from_nodes([node("a"), node("b", ready="Unknown"), node("c", unschedulable=True)])
    labels = frozenset({("updraft.dev/gpu-type", "a100")})
    assert capacity == Capacity(
        (
            Node("a", 1.93, 3932, 2, "a100", ready=True, labels=labels),
            Node("b", 1.93, 3932, 2, "a100", ready=False, labels=labels),
            Node("c", 1.93, 3932, 2, "a100", ready=False, labels=labels),
        )
    )
    assert [n.name for n in capacity.ready] == ["a"]


def test_a_tainted_node_counts_for_those_who_tolerate_it() -> None:
    dedicated = {"key": "dedicated", "value": "training", "effect": "NoSchedule"}
    gpu = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    preferred = {"key": "busy", "effect": "PreferNoSchedule"}
    nodes = [node("a", taints=[dedicated]), node("b", taints=[gpu, preferred]), node("c", taints=[gpu, dedicated])]

    def seen(*tolerated: Toleration) -> list[tuple[bool, bool]]:
        return [(each.ready, each.gpus_only) for each in capacity_from_nodes(nodes, tolerated).nodes]

    assert seen() == [(False, False), (True, True), (False, True)]
    assert seen(Toleration("dedicated")) == [(True, False), (True, True), (True, True)]
    (kept,) = capacity_from_nodes([node("b", taints=[gpu])]).nodes
    without = GangRequest("j", 1, 1, 100, 0, None, datetime(2026, 1, 1, tzinfo=UTC))
    assert (fits([without], [kept]), never_fits(without, [kept])) == (False, True)
    assert fits([replace(without, gpus=1)], [kept])


@pytest.mark.parametrize("key", ["unschedulable", "unreachable", "not-ready", "disk-pressure"])
def test_jobs_wait_for_a_node_that_kubernetes_itself_has_tainted(key: str) -> None:
    large = node("large", taints=[{"key": f"node.kubernetes.io/{key}", "effect": "NoSchedule"}])
    capacity = capacity_from_nodes(
        [node("small") | {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, large]
    )
    asked = GangRequest("j", 1, 1, 100, 0, None, datetime(2026, 1, 1, tzinfo=UTC))
    plan = plan_admissions([asked], [], capacity)
    assert [each.job_id for each in plan.waiting] == ["j"]


def test_a_node_without_accelerators_or_status_has_none() -> None:
    assert capacity_from_nodes([{"metadata": {"name": "x"}}]) == Capacity((Node("x", 0, 0, 0, None, ready=False),))
