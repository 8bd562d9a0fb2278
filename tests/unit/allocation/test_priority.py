"""The order of the queue by priority, and the document of a state."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from updraft.allocation import (
    PRIORITIES,
    Capacity,
    GangRequest,
    Grant,
    Node,
    Placement,
    Policy,
    Priority,
    plan_admissions,
)
from updraft.allocation.document import StateDocument, state_document
from updraft.taints import Taint, Toleration
from updraft.tenants import Tenant

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ONE_CPU = Capacity((Node("local", 1, 4096),))
HOURS = timedelta(hours=1)
NODE = {"name": "a", "cpus": 1, "memory_mib": 1}
ONE = {"job": "a", "learners": 1, "cpus": 1, "memory_mib": 1, "requested_at": NOON}


def request(job_id: str, hours: float = 0, priority: Priority = "normal", **more: Any) -> GangRequest:
    return GangRequest(job_id, 1, 1, 0, 0, None, NOON + hours * HOURS, priority=priority, **more)


def order(*requests: GangRequest) -> list[str]:
    """The jobs in the order in which they start, one after the other."""
    queue, started = list(requests), []
    while queue:
        (job,) = plan_admissions(queue, [], ONE_CPU).granted
        started.append(job)
        queue = [each for each in queue if each.job_id != job]
    return started


def test_a_higher_priority_goes_before_what_came_less_than_twelve_hours_earlier() -> None:
    assert order(request("a", 0), request("b", 11.9, "high"), request("c", 12.1, "high")) == ["b", "a", "c"]
    assert order(request("a", 0, "low"), request("b", 23.9, "high"), request("c", 24.1, "high")) == ["b", "a", "c"]


def test_a_job_that_is_overtaken_is_told_why() -> None:
    """Also where the job of the higher priority came first."""
    for hours in (1, -1):
        plan = plan_admissions([request("a"), request("b", hours, "high")], [Grant(request("runs"), NOON)], ONE_CPU)
        reasons = {each.job_id: each.reason for each in plan.waiting}
        assert reasons["a"].endswith("; behind b, whose priority is high")
        assert "priority" not in reasons["b"]


def test_a_job_that_waits_behind_a_lower_priority_is_told_no_priority() -> None:
    plan = plan_admissions([request("a", -25, "low"), request("b")], [Grant(request("runs"), NOON)], ONE_CPU)
    reasons = {each.job_id: each.reason for each in plan.waiting}
    assert reasons["b"].endswith("; behind a")


JOBS = st.lists(st.tuples(st.floats(0, 100), st.sampled_from(PRIORITIES)), min_size=1, max_size=8)


@given(jobs=JOBS, ageing=st.floats(0.1, 50))
def test_nobody_is_overtaken_by_what_came_later_than_its_priority_allows(
    jobs: list[tuple[float, Priority]], ageing: float
) -> None:
    queue = [request(f"job-{n}", hours, priority) for n, (hours, priority) in enumerate(jobs)]
    plan = plan_admissions(queue, [Grant(request("runs"), NOON)], ONE_CPU, policy=Policy(ageing=ageing * HOURS))
    place = {each.job_id: each.place for each in plan.waiting}
    assert sorted(place.values()) == list(range(1, len(queue) + 1))
    for a in queue:
        for b in queue:
            levels = PRIORITIES.index(b.priority) - PRIORITIES.index(a.priority)
            if b.requested_at > a.requested_at + max(0, levels) * ageing * HOURS:
                assert place[a.job_id] < place[b.job_id]


def test_a_state_decides_the_same_after_it_was_written_and_read() -> None:
    placement = Placement.of({"disk": "ssd"}, [Toleration.parse("gpu=yes:NoSchedule")])
    nodes = (
        Node("a", 2, 4096, gpus=1, gpu_type="A100", labels=frozenset({("disk", "ssd")})),
        Node("b", 4, 4096, ready=False, taints=(Taint("gpu", "yes", "NoSchedule"),)),
    )
    queue = [request("b", 1, "high", placement=placement), request("c", 2), request("d", 3, disk_mib=5)]
    running = [Grant(request("runs", tenant="speech"), NOON, saved_at=NOON, movable=False), Grant(request("e"), NOON)]
    policy = Policy({"speech": Tenant(quota={"cpu": 0}), "default": Tenant(quota={"cpu": 5}, weight=2)})
    past = {"speech": (500.0, 20.0, 0.0)}
    document = state_document(nodes, running, queue, policy, past, NOON + HOURS)
    again = StateDocument.model_validate_json(document.model_dump_json())
    assert again == document
    assert again.decide() == plan_admissions(
        queue, running, Capacity(nodes), policy=policy, past=past, now=NOON + HOURS
    )


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        (
            "queue",
            [{"job": "a", "learners": 0, "cpus": 1, "memory_mib": 1, "requested_at": "2026-01-01T00:00:00Z"}],
            "learners",
        ),
        (
            "queue",
            [{"job": "a", "learners": 1, "cpus": 1, "memory_mib": 1, "requested_at": "2026-01-01T00:00:00"}],
            "timezone",
        ),
        ("queue", [{**ONE, "requested_at": "0001-01-01T00:00:00Z"}], "1970"),
        ("nodes", [NODE, NODE], "a node is named once; named again: a"),
        ("ageing_hours", 0, "greater than 0"),
        ("ageing_hours", 1e300, "less than or equal to 87600"),
        ("tenant", [], "Extra inputs"),
        ("tenants", {"a": {"weight": 0}}, "weight"),
    ],
)
def test_a_wrong_document_is_refused(field: str, value: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        StateDocument.model_validate({"nodes": [], field: value})


def test_a_job_is_named_once() -> None:
    with pytest.raises(ValidationError, match="named again: a"):
        StateDocument.model_validate({"nodes": [], "queue": [ONE], "running": [{**ONE, "granted_at": NOON}]})
