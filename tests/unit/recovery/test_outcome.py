"""How an attempt ended, and what a person reads about it."""

from __future__ import annotations

from typing import Any

import pytest

from updraft.lifecycle import State
from updraft.recovery.facts import PodFacts, pod_facts, stage_of
from updraft.recovery.outcome import Cause, Outcome, judge


def pod(
    learner: int = 1,
    *,
    phase: str = "Running",
    main: dict[str, Any] | None = None,
    stage: dict[str, Any] | None = None,
    **status: Any,
) -> PodFacts:
    return pod_facts(
        {
            "metadata": {"name": f"p-{learner}", "labels": {"updraft.dev/learner": str(learner)}},
            "status": {
                "phase": phase,
                "initContainerStatuses": [
                    {"name": "updraft-stage", "state": stage or {"terminated": {"exitCode": 0}}},
                    {"name": "updraft-sidecar", "state": {"running": {}}},
                ],
                "containerStatuses": [{"name": "base", "state": main or {"running": {}}}],
                **status,
            },
        }
    )


def ended(code: int, reason: str = "Error", at: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": at}}


def verdict(*pods: PodFacts, marked: bool = True, tails: dict[int, list[str]] | None = None) -> Outcome:
    outcome = judge(
        pods,
        learners=len(pods),
        markers={p.learner: {"t": 1} if marked else None for p in pods},
        tails=tails or {},
        memory="2048 MiB",
    )
    assert outcome is not None
    return outcome


def test_done_needs_every_exit_code_and_every_completion_marker() -> None:
    good = [pod(1, phase="Succeeded", main=ended(0)), pod(2, phase="Succeeded", main=ended(0))]
    assert verdict(*good).cause is Cause.DONE
    assert verdict(*good, marked=False).cause is Cause.INFRASTRUCTURE


def test_the_programs_failure_shows_its_last_words() -> None:
    outcome = verdict(pod(main=ended(1), phase="Failed"), tails={1: ["epoch 1", "ValueError: no labels", ""]})
    assert outcome.cause is Cause.PROGRAM
    assert outcome.reason == "learner 1: the program exited with 1: epoch 1 | ValueError: no labels"


def test_a_kill_by_memory_says_what_to_raise() -> None:
    outcome = verdict(pod(main=ended(137, "OOMKilled"), phase="Failed"))
    assert outcome.cause is Cause.PROGRAM
    assert "2048 MiB" in outcome.reason
    assert "resources.memory" in outcome.reason


def test_a_signal_is_named() -> None:
    assert "139 (SIGSEGV)" in verdict(pod(main=ended(139))).reason


def test_the_learner_that_failed_is_named_not_the_peers_that_were_stopped() -> None:
    stopped = pod(1, main=ended(143, at="2026-01-01T00:00:01Z"))
    guilty = pod(2, main=ended(3, at="2026-01-01T00:00:02Z"))
    assert verdict(stopped, guilty).reason.startswith("learner 2: the program exited with 3")


@pytest.mark.parametrize(
    ("code", "cause"),
    [(65, Cause.DATA), (64, Cause.CONFIGURATION), (74, Cause.INFRASTRUCTURE), (1, Cause.INFRASTRUCTURE)],
)
def test_staging_fails_with_the_cause_that_its_exit_code_names(code: int, cause: Cause) -> None:
    assert verdict(pod(stage=ended(code), main={"waiting": {"reason": "PodInitializing"}})).cause is cause


def test_an_evicted_pod_is_infrastructure_whatever_its_exit_code() -> None:
    outcome = verdict(pod(phase="Failed", main=ended(137), reason="Evicted", message="low on memory"))
    assert (outcome.cause, outcome.reason) == (Cause.INFRASTRUCTURE, "learner 1: Evicted: low on memory")


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("OutOfcpu", "Node didn't have enough resource: cpu, requested: 2000"),
        ("NodeAffinity", "Predicate NodeAffinity failed"),
        ("UnexpectedAdmissionError", "Allocate failed due to no healthy devices present"),
    ],
)
@pytest.mark.parametrize("states", [{"containerStatuses": None, "initContainerStatuses": None}, {}])
def test_a_pod_that_its_node_refuses_is_infrastructure_in_the_nodes_words(
    reason: str, message: str, states: dict[str, Any]
) -> None:
    waiting = {"waiting": {"reason": "PodInitializing"}}
    refused = pod(2, phase="Failed", stage=waiting, main=waiting, reason=reason, message=message, **states)
    outcome = verdict(pod(1), refused, marked=False)
    assert (outcome.cause, outcome.reason) == (Cause.INFRASTRUCTURE, f"learner 2: {reason}: {message}")


def test_a_pod_that_failed_without_a_word_is_infrastructure_even_while_its_peers_live() -> None:
    silent = pod(2, phase="Failed", containerStatuses=None, initContainerStatuses=None)
    outcome = verdict(pod(1), silent, marked=False)
    assert (outcome.cause, outcome.reason) == (
        Cause.INFRASTRUCTURE,
        "learner 2: its pod failed, and the node does not say why",
    )


def test_a_pod_that_failed_in_staging_keeps_the_cause_of_its_exit_code() -> None:
    outcome = verdict(pod(phase="Failed", stage=ended(65), main={"waiting": {"reason": "PodInitializing"}}))
    assert outcome.cause is Cause.DATA


def test_an_image_that_cannot_be_pulled_is_a_configuration_error_with_the_nodes_message() -> None:
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "unknown image x; known: y"}}
    outcome = verdict(pod(phase="Pending", main=waiting))
    assert outcome.cause is Cause.CONFIGURATION
    assert "unknown image x" in outcome.reason


def test_a_pod_that_is_gone_without_a_marker_is_infrastructure() -> None:
    outcome = judge([], learners=1, markers={1: None}, tails={}, memory="1 MiB")
    assert outcome is not None
    assert outcome.cause is Cause.INFRASTRUCTURE


def test_a_pod_that_is_gone_is_no_success_although_it_left_a_marker() -> None:
    outcome = judge([], learners=1, markers={1: {"t": 1}}, tails={}, memory="1 MiB")
    assert outcome is not None
    assert (outcome.cause, outcome.reason) == (
        Cause.INFRASTRUCTURE,
        "learner 1: its pod is gone and nobody saw how its program ended",
    )


def test_there_is_no_outcome_while_all_is_well_and_a_pod_lives() -> None:
    pods = [pod(1), pod(2, phase="Succeeded", main=ended(0))]
    assert judge(pods, learners=2, markers={1: None, 2: {"t": 1}}, tails={}, memory="1 MiB") is None


def test_the_state_shown_is_the_least_advanced_learners() -> None:
    waiting = pod(2, phase="Pending", stage={"waiting": {}}, main={"waiting": {}})
    staging = pod(2, phase="Pending", stage={"running": {}}, main={"waiting": {}})
    running, done = pod(1), pod(2, main=ended(0))
    assert stage_of([running], 2)[0] is State.DEPLOYING
    assert stage_of([running, waiting], 2)[0] is State.DEPLOYING
    assert stage_of([running, staging], 2)[0] is State.DOWNLOADING
    assert stage_of([running, done], 2)[0] is State.PROCESSING
    assert stage_of([done], 1)[0] is State.STORING


def test_a_pod_that_finds_no_room_shows_the_schedulers_words() -> None:
    unscheduled = pod(
        phase="Pending",
        stage={"waiting": {}},
        conditions=[{"type": "PodScheduled", "status": "False", "message": "1 Insufficient cpu."}],
    )
    assert stage_of([unscheduled], 1) == (State.DEPLOYING, "learner 1: 1 Insufficient cpu.")
