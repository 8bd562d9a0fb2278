"""What pods of other workloads take of the nodes is no room for gangs, but may become it."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from updraft.allocation import GangRequest, plan_admissions
from updraft.allocation.document import StateDocument, state_document
from updraft.allocation.model import Policy
from updraft.kubernetes.capacity import capacity_from_nodes
from updraft.kubernetes.other_pods import requests_of, used_by, with_used

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)


def node(name: str, cpus: int = 8, gpus: int = 0) -> dict[str, Any]:
    amounts = {"cpu": str(cpus), "memory": "16Gi", "nvidia.com/gpu": str(gpus)}
    ready = [{"type": "Ready", "status": "True"}]
    return {"metadata": {"name": name}, "status": {"allocatable": amounts, "conditions": ready}}


def container(cpu: str, memory: str = "0", gpus: int = 0, **more: Any) -> dict[str, Any]:
    requests = {"cpu": cpu, "memory": memory} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return {"resources": {"requests": requests}, **more}


def pod(where: str | None, *containers: dict[str, Any], phase: str = "Running", **spec: Any) -> dict[str, Any]:
    return {"spec": {"nodeName": where, "containers": list(containers), **spec}, "status": {"phase": phase}}


def gang(job: str, cpus: float, learners: int = 1, gpus: int = 0) -> GangRequest:
    return GangRequest(job, learners, cpus, 1024, gpus, None, NOW)


def test_a_gang_waits_for_what_others_take_and_is_not_impossible() -> None:
    nodes = with_used(
        [node("a"), node("b")], used_by([pod("a", container("250m", "1Gi")), pod("b", container("6", gpus=0))])
    )
    capacity = capacity_from_nodes(nodes)
    assert [each.left for each in capacity.nodes] == [(7750, 15 * 1024, 0), (2000, 16 * 1024, 0)]
    plan = plan_admissions([gang("whole", 8), gang("most", 7.75), gang("little", 2)], [], capacity)
    assert set(plan.granted) == {"most", "little"}
    (waiting,) = plan.waiting
    assert waiting.job_id == "whole"
    assert "(pods of other workloads take 6.25 CPUs + 1 GiB)" in waiting.reason
    assert [each.job_id for each in plan_admissions([gang("never", 9)], [], capacity).impossible] == ["never"]


def test_gpus_of_others_are_not_free() -> None:
    capacity = capacity_from_nodes(with_used([node("a", gpus=4)], used_by([pod("a", container("1", gpus=3))])))
    plan = plan_admissions([gang("two", 1, gpus=2)], [], capacity)
    assert "1 of 4 GPUs free" in plan.waiting[0].reason
    assert plan_admissions([gang("one", 1, gpus=1)], [], capacity).granted == ("one",)


@pytest.mark.parametrize(
    "gone", [pod("a", container("8"), phase="Succeeded"), pod(None, container("8"), phase="Pending")]
)
def test_pods_that_have_ended_or_lie_nowhere_take_nothing(gone: dict[str, Any]) -> None:
    assert with_used([node("a")], used_by([gone])) == [node("a")]


def test_more_than_a_node_has_leaves_nothing() -> None:
    (found,) = capacity_from_nodes(with_used([node("a")], used_by([pod("a", container("9", "20Gi"))]))).nodes
    assert found.left == (0, 0, 0)


def test_a_pod_needs_what_the_scheduler_counts() -> None:
    whole = pod(
        "a",
        container("1", "1Gi"),
        {"resources": {"limits": {"cpu": "2", "memory": "1Gi"}}},
        {},
        initContainers=[container("500m", restartPolicy="Always"), container("5", "100Mi"), container("4")],
        overhead={"cpu": "250m", "memory": "64Mi"},
    )
    found = requests_of(whole)
    assert found["cpu"] == Decimal("5.75")  # the second init container beside the sidecar, and the overhead
    assert found["memory"] == 2 * 1024**3 + 64 * 1024**2


def test_the_document_of_a_state_keeps_them() -> None:
    capacity = capacity_from_nodes(with_used([node("a")], used_by([pod("a", container("250m", "1Gi"))])))
    written = state_document(capacity.nodes, [], [gang("whole", 8)], Policy(), {}, NOW).model_dump_json()
    read = StateDocument.model_validate_json(written)
    assert [each.job_id for each in read.decide().waiting] == ["whole"]
