"""What the coordinator does when a learner's process is dead, before the learner's connection ends."""

from __future__ import annotations

from typing import Any

import pytest

from updraft_learner.elastic.membership import MembershipCoordinator, Sent

HANG, SETTLE = 60.0, 5.0


@pytest.fixture
def coordinator() -> MembershipCoordinator:
    """Three learners that train, a, b and c."""
    made = MembershipCoordinator(3, hang_seconds=HANG, settle_seconds=SETTLE, token=lambda: "t")
    for name in "abc":
        hello(made, name)
    assert made.plan is not None
    for name in made.plan.names:
        made.receive(name, {"type": "formed", "plan": made.plan.as_json(), "step": 0}, 0.0)
    return made


def hello(coordinator: MembershipCoordinator, name: str, plan: Any = None, step: int = -1) -> Sent:
    member = {"name": name, "host": "h", "port": 1}
    message = {"type": "hello", "member": member, "plan": plan, "step": step, "leaving": False, "report": None}
    return coordinator.receive(name, message, 0.0)


def report(coordinator: MembershipCoordinator, name: str, now: float, step: int = 1) -> Sent:
    generation = coordinator.plan.generation if coordinator.plan else 0
    message = {"type": "report", "generation": generation, "plan": None, "step": step, "waited": 0.0, "missing": []}
    return coordinator.receive(name, message, now)


def kinds(sent: Sent) -> list[tuple[str, str]]:
    return [(name, message["type"]) for name, message in sent]


def test_the_others_are_told_and_nobody_waits_for_the_dead_one(coordinator: MembershipCoordinator) -> None:
    assert kinds(coordinator.killed("b", 1.0)) == [("a", "broken"), ("c", "broken")]
    assert kinds(report(coordinator, "a", 1.1)) == []
    assert kinds(report(coordinator, "c", 1.2)) == [("a", "plan"), ("c", "plan")]
    assert coordinator.excluded == ["b"]
    assert coordinator.gone("b", 1.3) == []


def test_the_time_to_report_begins_with_the_first_report(coordinator: MembershipCoordinator) -> None:
    """All of them may be in the middle of a step that takes longer than a learner may keep the others waiting."""
    coordinator.killed("b", 0.0)
    assert coordinator.tick(1.5 * HANG) == []
    assert report(coordinator, "a", 1.5 * HANG) == []
    assert coordinator.tick(1.5 * HANG + 1) == []
    assert kinds(report(coordinator, "c", 1.5 * HANG + 2)) == [("a", "plan"), ("c", "plan")]
    assert coordinator.excluded == ["b"]


def test_late_news_does_not_break_the_generation_that_follows(coordinator: MembershipCoordinator) -> None:
    report(coordinator, "a", 0.0)
    report(coordinator, "c", 0.0)
    assert kinds(coordinator.killed("b", 0.1)) == [("a", "plan"), ("c", "plan")]
    assert coordinator.round is None
    assert coordinator.killed("b", 0.2) == []


def test_a_successor_does_not_wait_for_who_was_dead_before_it_came(coordinator: MembershipCoordinator) -> None:
    assert coordinator.plan is not None
    plan = coordinator.plan.as_json()
    successor = MembershipCoordinator(
        3, hang_seconds=HANG, settle_seconds=SETTLE, saved=coordinator.saved(), token=lambda: "t"
    )
    for name in "ac":
        hello(successor, name, plan, 1)
    assert kinds(successor.killed("b", 1.0)) == [("a", "broken"), ("c", "broken")]
    report(successor, "a", 1.1)
    assert kinds(report(successor, "c", 1.2)) == [("a", "plan"), ("c", "plan")]


def test_wrong_news_changes_nothing_for_a_learner_that_reports(coordinator: MembershipCoordinator) -> None:
    coordinator.killed("b", 0.0)
    report(coordinator, "b", 0.1)
    report(coordinator, "a", 0.1)
    assert kinds(report(coordinator, "c", 0.2)) == [("a", "plan"), ("b", "plan"), ("c", "plan")]
    assert coordinator.excluded == []


def test_news_of_a_stranger_and_of_the_last_learner_begin_no_round(coordinator: MembershipCoordinator) -> None:
    assert coordinator.killed("stranger", 0.0) == []
    for name in "abc":
        coordinator.gone(name, 0.0)
    assert coordinator.killed("a", 0.0) == []
    assert coordinator.round is None
