"""Which nodes of somebody's cluster the tests count, and how they keep two learners apart."""

from __future__ import annotations

from typing import Any

import pytest
from platform_helpers import cpus_apart, open_nodes

CONTROL_PLANE = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
GPUS_ONLY = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def node(name: str, cpu: str = "1930m", ready: str = "True", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": spec,
        "status": {"allocatable": {"cpu": cpu}, "conditions": [{"type": "Ready", "status": ready}]},
    }


def test_only_nodes_that_a_learner_may_lie_on_count() -> None:
    there = [
        node("control", taints=[CONTROL_PLANE]),
        node("cordoned", unschedulable=True),
        node("gpus", taints=[GPUS_ONLY]),
        node("silent", ready="Unknown"),
        node("first"),
        node("second", "4"),
    ]
    assert [(found.name, found.cpus) for found in open_nodes(there)] == [("first", 1.93), ("second", 4.0)]


@pytest.mark.parametrize(
    ("cpus", "wanted"),
    [
        (["1930m", "1930m"], 1.065),
        (["4", "2500m", "1"], 2.1),
        (["16", "1930m"], None),  # the large one takes whatever two the small one could take one of
        (["4"], None),
    ],
)
def test_two_learners_are_kept_apart_where_two_nodes_are_large_enough(cpus: list[str], wanted: float | None) -> None:
    nodes = open_nodes([node(f"n{number}", cpu) for number, cpu in enumerate(cpus)])
    assert cpus_apart(nodes) == (wanted if wanted is None else pytest.approx(wanted))
