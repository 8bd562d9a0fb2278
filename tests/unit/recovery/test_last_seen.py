"""Pods that are gone by the time somebody judges: what was last seen of them counts where it tells how they ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from updraft.kubernetes.pod_status import pod_facts
from updraft.lifecycle.membership import Membership
from updraft.recovery.facts import PodFacts, with_last_seen
from updraft.recovery.outcome import Action, FailureClass, Outcome, judge


def pod(learner: int = 1, *, code: int | None = None, disruption: str = "", deleting: bool = False) -> PodFacts:
    """One whose end was first seen as it is here."""
    state: dict[str, Any] = {"running": {}} if code is None else {"terminated": {"exitCode": code, "reason": "Error"}}
    metadata: dict[str, Any] = {"name": f"p-{learner}", "labels": {"updraft.dev/learner": str(learner)}}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    conditions = [{"type": "DisruptionTarget", "status": "True", "reason": disruption}] if disruption else []
    status = {
        "phase": "Running",
        "conditions": conditions,
        "initContainerStatuses": [{"name": "updraft-sidecar", "state": {"running": {}}}],
        "containerStatuses": [{"name": "base", "state": state}],
    }
    return pod_facts({"metadata": metadata, "spec": {"nodeName": "node-1"}, "status": status})


def judged(*last: PodFacts, marked: bool = False) -> Outcome | None:
    """When not one of the pods is there any more."""
    markers = {n: {"t": 1} if marked else None for n in range(1, len(last) + 1)}
    return judge(
        with_last_seen([], last), membership=Membership.first(len(last)), markers=markers, tails={}, memory="1 GiB"
    )


def told(outcome: Outcome | None) -> tuple[str, FailureClass, Action]:
    assert outcome is not None
    return outcome.label, outcome.cause, outcome.action


@pytest.mark.parametrize("code", [None, 0, 1, 137, 143])
def test_an_evicted_pods_condition_explains_its_end_however_its_program_left(code: int | None) -> None:
    last = pod(code=code, disruption="EvictionByEvictionAPI", deleting=True)
    assert told(judged(last)) == ("node.drained", FailureClass.INFRASTRUCTURE, Action.ELSEWHERE)
    assert told(judged(last, marked=True)) == ("node.drained", FailureClass.INFRASTRUCTURE, Action.ELSEWHERE)


def test_work_that_was_done_is_done_although_its_pod_is_gone() -> None:
    assert told(judged(pod(code=0), marked=True))[:2] == ("done", FailureClass.DONE)
    assert told(judged(pod(code=0)))[:2] == ("results.not_stored", FailureClass.INFRASTRUCTURE)


def test_a_program_that_failed_by_itself_has_failed() -> None:
    assert told(judged(pod(code=3)))[:2] == ("program.exit", FailureClass.PROGRAM)


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("code", [0, 1, 143])
def test_one_whose_pod_somebody_deleted_has_not(code: int, marked: bool) -> None:
    """Nor has it done its work: a program may end with 0 as it is told to leave."""
    assert told(judged(pod(code=code, deleting=True), marked=marked))[:2] == (
        "pod.deleted",
        FailureClass.INFRASTRUCTURE,
    )


def test_one_whose_pod_somebody_deleted_and_whose_end_no_node_tells_was_deleted() -> None:
    there = pod(deleting=True)
    outcome = judge([there], membership=Membership.first(1), markers={1: None}, tails={}, memory="1 GiB")
    assert told(outcome)[:2] == ("pod.deleted", FailureClass.INFRASTRUCTURE)


@pytest.mark.parametrize("disruption", ["", "EvictionByEvictionAPI"])
@pytest.mark.parametrize(("code", "label"), [(0, "done"), (3, "program.exit")])
def test_what_had_ended_before_its_pod_was_to_go_counts(code: int, label: str, disruption: str) -> None:
    """Its sidecar still stored when somebody deleted the pod, or drained the node."""
    first = pod(code=code)
    now = pod(code=code, deleting=True, disruption=disruption)
    for there in ([now], []):
        last = replace(now, asked_to_leave=first.asked_to_leave)
        outcome = judge(
            [replace(p, phase="Succeeded" if code == 0 else "Failed") for p in with_last_seen(there, [last])],
            membership=Membership.first(1),
            markers={1: {"t": 1}},
            tails={},
            memory="1 GiB",
        )
        assert told(outcome)[0] == label


def test_one_that_saved_and_left_as_it_was_deleted_left_on_request() -> None:
    assert told(judged(pod(code=75, deleting=True)))[1] is FailureClass.PREEMPTED


@pytest.mark.parametrize("deleting", [False, True])
def test_nobody_saw_how_a_program_ended_that_was_last_seen_running(deleting: bool) -> None:
    assert told(judged(pod(deleting=deleting)))[0] == "pod.gone"
    assert told(judged(pod(deleting=deleting), marked=True))[0] == "pod.unseen"


def test_what_is_there_counts_and_not_what_was() -> None:
    assert with_last_seen([pod(1)], [pod(1, code=1), pod(2, code=0)])[0] == pod(1)
    assert [found.learner for found in with_last_seen([pod(2)], [pod(1, code=0)])] == [1, 2]


def test_the_end_that_was_seen_first_counts_whatever_the_nodes_clocks_say() -> None:
    first, second = pod(2, code=3), pod(1, code=4)
    there = with_last_seen([second, first], [first, second])
    assert [found.learner for found in there] == [2, 1]
    outcome = judge(there, membership=Membership.first(2), markers={}, tails={}, memory="1 GiB")
    assert outcome is not None
    assert outcome.reason.startswith("learner 2: the program exited with 3")
