"""Nodes that an autoscaler can still add count as room, after those that are there."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import TypeAdapter, ValidationError

from updraft.allocation import GangRequest, Grant, Plan, plan_admissions
from updraft.allocation.document import StateDocument, state_document
from updraft.allocation.model import Policy
from updraft.allocation.placement import Placement
from updraft.kubernetes.capacity import capacity_from_nodes
from updraft.pools import Pool, check_pools
from updraft.settings import Settings

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
A100 = {
    "name": "a100",
    "most": 2,
    "labels": {"pool": "a100", "updraft.dev/gpu-type": "A100"},
    "allocatable": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "4"},
    "taints": ["nvidia.com/gpu:NoSchedule"],
}


def node(name: str, cpus: int = 8, **labels: str) -> dict[str, Any]:
    amounts = {"cpu": str(cpus), "memory": "64Gi"}
    if "pool" in labels:
        amounts["nvidia.com/gpu"] = "4"
    ready = [{"type": "Ready", "status": "True"}]
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": amounts, "conditions": ready}}


def gang(job: str, learners: int = 1, gpus: int = 4, **more: Any) -> GangRequest:
    return GangRequest(job, learners, 1, 1024, gpus, more.pop("gpu_type", "A100"), NOW, **more)


def planned(
    queue: list[GangRequest], nodes: list[dict[str, Any]], running: tuple[GangRequest, ...] = (), **pool: Any
) -> Plan:
    capacity = capacity_from_nodes(nodes, pools=[Pool.model_validate({**A100, **pool})])
    return plan_admissions(queue, [Grant(each, NOW) for each in running], capacity)


def test_a_job_that_fits_on_no_node_of_today_starts_where_the_pool_can_grow() -> None:
    assert planned([gang("a", 2)], [node("cpu")]).granted == ("a",)
    (never,) = planned([gang("b", 3)], [node("cpu")]).impossible
    assert "more than all nodes together can hold" in never.reason
    assert "a100-new-1: 8 CPUs" in never.reason


def test_nodes_of_the_pool_that_are_there_count_towards_its_most() -> None:
    there = [node("a-1", pool="a100", **{"updraft.dev/gpu-type": "A100"})]
    assert [each.grows for each in capacity_from_nodes(there, pools=[Pool(**A100)]).nodes] == [False, True]
    full = [*there, node("a-2", pool="a100", **{"updraft.dev/gpu-type": "A100"})]
    assert [each.grows for each in capacity_from_nodes(full, pools=[Pool(**A100)]).nodes] == [False, False]
    plan = planned([gang("b")], full, (gang("x"), gang("y")))
    assert [each.job_id for each in plan.waiting] == ["b"]


def test_nodes_that_are_there_are_taken_first() -> None:
    there = [node("a-1", pool="a100", **{"updraft.dev/gpu-type": "A100"})]
    capacity = capacity_from_nodes(there, pools=[Pool(**A100)])
    from updraft.allocation.packing import Room

    room = Room.of(capacity.ready)
    assert room.add(gang("a"))
    ((grown, _),) = [spot for spot in room.left if room.kinds[spot[0]].grows]
    assert room.left[grown, room.kinds[grown].amounts] == 1  # nothing lies on the node that is not there


def test_a_pool_whose_taint_a_job_does_not_tolerate_is_not_for_it() -> None:
    spot = {"taints": ["spot:NoSchedule"], "labels": {"pool": "spot"}, "allocatable": {"cpu": "8", "memory": "64Gi"}}
    asked = gang("a", gpus=0, gpu_type=None, placement=Placement.of({"pool": "spot"}, []))
    assert [each.job_id for each in planned([asked], [node("cpu")], **spot).waiting] == ["a"]
    from updraft.taints import Toleration

    tolerant = gang("b", gpus=0, gpu_type=None, placement=Placement.of({"pool": "spot"}, [Toleration("spot")]))
    assert planned([tolerant], [node("cpu")], **spot).granted == ("b",)


def test_the_document_of_a_state_keeps_them() -> None:
    capacity = capacity_from_nodes([node("cpu")], pools=[Pool(**A100)])
    written = state_document(capacity.nodes, [], [gang("a", 2)], Policy(), {}, NOW).model_dump_json()
    assert StateDocument.model_validate_json(written).decide().granted == ("a",)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"most": 0}, "most"),
        ({"labels": {}}, "labels"),
        ({"labels": {"a b": "c"}}, "is no label of Kubernetes"),
        ({"allocatable": {"cpu": "1"}}, "memory is missing"),
        ({"allocatable": {"cpu": "1", "memory": "much"}}, "'much' is not a Kubernetes quantity"),
        ({"allocatable": {"cpu": "-1", "memory": "1Gi"}}, "cpu is negative"),
        ({"taints": ["spot"]}, "has no effect"),
        ({"size": 3}, "size"),
    ],
)
def test_a_pool_that_is_wrong_is_refused(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        Pool.model_validate({**A100, **change})


def test_pools_have_names_of_their_own_and_come_as_json() -> None:
    with pytest.raises(ValueError, match="a100: named twice"):
        check_pools((Pool(**A100), Pool(**A100)))
    field = Settings.model_fields["scalable_pools"]
    read = TypeAdapter(field.rebuild_annotation()).validate_python(json.dumps([A100]))
    assert read == (Pool(**A100),)


NIGHT = {"windows": ["20:00-06:00", "Sat,Sun 00:00-24:00"], "timezone": "Europe/Berlin"}


@pytest.mark.parametrize(
    ("local", "is_open"),
    [
        ("2026-11-27 19:59", False),  # a Friday
        ("2026-11-27 20:00", True),
        ("2026-11-28 12:00", True),
        ("2026-11-30 05:59", True),
        ("2026-11-30 06:00", False),
    ],
)
def test_a_window_opens_at_the_pools_own_time(local: str, is_open: bool) -> None:
    pool = Pool.model_validate({**A100, **NIGHT})
    assert pool.is_open(datetime.fromisoformat(local).replace(tzinfo=ZoneInfo("Europe/Berlin"))) is is_open


def test_a_window_over_midnight_is_one_of_the_day_it_begins() -> None:
    pool = Pool.model_validate({**A100, "windows": ["Fri 22:00-02:00"]})
    assert pool.is_open(datetime(2026, 11, 28, 1, tzinfo=UTC))  # the night to Saturday
    assert not pool.is_open(datetime(2026, 11, 27, 1, tzinfo=UTC))
    assert not pool.is_open(datetime(2026, 11, 28, 23, tzinfo=UTC))


def test_a_job_waits_for_the_window_and_says_so() -> None:
    pool = Pool.model_validate({**A100, **NIGHT})
    noon, night = datetime(2026, 11, 30, 11, tzinfo=UTC), datetime(2026, 11, 30, 21, tzinfo=UTC)
    closed, opened = (capacity_from_nodes([node("cpu")], pools=[pool], now=at) for at in (noon, night))
    (waiting,) = plan_admissions([gang("a", 2)], [], closed).waiting
    told = "pool a100 gets new nodes at 20:00-06:00 and Sat,Sun 00:00-24:00 (Europe/Berlin)"
    assert waiting.reason.endswith(f"; {told}")
    assert plan_admissions([gang("a", 2)], [], opened).granted == ("a",)
    written = state_document(closed.nodes, [], [gang("a", 2)], Policy(), {}, NOW).model_dump_json()
    assert StateDocument.model_validate_json(written).decide().waiting[0].reason == waiting.reason


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"windows": ["8-20"]}, "is no time of the day"),
        ({"windows": ["20:00-20:00"]}, "is no time of the day"),
        ({"windows": ["Fri,Foo 20:00-22:00"]}, "is no time of the day"),
        ({"timezone": "Berlin"}, "is no time zone"),
    ],
)
def test_a_window_that_is_wrong_is_refused(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        Pool.model_validate({**A100, **change})
