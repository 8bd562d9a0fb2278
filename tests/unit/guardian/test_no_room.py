"""Pods that the cluster has no room for: patience for a job that has run before, an end for one that never fitted; and
quotas, which a person may raise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from unit.guardian.driving import Driver, Story, exits, finds_no_room, preempted, saves, succeed
from unit.guardian.test_driven_anywhere import begun, trained
from unit.operators.airflow_fakes import Platform
from unit.operators.platform_fakes import api_error

from updraft.lifecycle import State

Make = Callable[..., Platform]


def labels(platform: Platform) -> list[str | None]:
    return [attempt.label for attempt in platform.ledger.attempts(platform.job.id)]


def test_a_job_that_has_run_waits_for_room_as_long_as_it_takes(
    make_platform: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowded = dict.fromkeys(range(2, 10), finds_no_room)
    story = Story({1: saves("step-3", then=exits(137)), **crowded, 10: exits(137), 11: finds_no_room, 12: succeed})
    platform = begun(make_platform, story)
    told = trained(platform, Driver(platform, story, monkeypatch), monkeypatch)
    assert (platform.job.state, told["left"], told["granted"]) == (State.COMPLETED, [], [])
    assert [label == "pod.no_room" for label in labels(platform)] == [False, *[True] * 8, False, True, False]
    tries = platform.ledger.attempts(platform.job.id)
    assert {a.resume["checkpoint"] for a in tries[1:] if a.resume} == {"step-3"}  # none is given up for want of room
    assert tries[1].relaunch is not None
    assert tries[1].relaunch["reason"] == "no room so far, which is no loss: launched again in 5 s"
    assert tries[9].relaunch is not None
    assert tries[9].relaunch["reason"].startswith("infrastructure loss 2 of 5")


def test_a_job_that_never_fitted_is_given_up_with_the_schedulers_words(
    make_platform: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(dict.fromkeys(range(1, 10), finds_no_room), state=State.FAILED)
    platform = begun(make_platform, story)
    trained(platform, Driver(platform, story, monkeypatch), monkeypatch)
    assert platform.job.state is State.FAILED
    assert labels(platform) == ["pod.no_room"] * 6
    assert "budget.infra_attempts allows 5" in platform.job.reason


def test_a_quota_is_waited_for_from_the_first_launch_on(make_platform: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story({}, manifest={"budget": {"infra_attempts": 0}})
    platform = begun(make_platform, story)
    words = "exceeded quota: small, requested: requests.memory=384Mi, used: requests.memory=0, limited: 100Mi"
    second_learners: list[str] = []

    def refuse(verb: str, name: str) -> Exception | None:
        if verb != "create pod" or not name.endswith("-1") or len(second_learners) == 8:
            return None
        second_learners.append(name)
        return api_error(403, f'pods "{name}" is forbidden: {words}')

    platform.cluster.refuse = refuse
    told = trained(platform, Driver(platform, story, monkeypatch), monkeypatch)
    assert (platform.job.state, told["left"], told["granted"]) == (State.COMPLETED, [], [])
    tries = platform.ledger.attempts(platform.job.id)
    assert {a.label for a in tries[:-1] if a.role == "train"} >= {"quota.exceeded"}
    assert words in str(tries[0].reason)
    assert tries[0].relaunch is not None
    assert tries[0].relaunch["reason"] == "no room in the quota so far, which is no loss: launched again in 5 s"


def test_learners_that_were_seen_going_are_judged_by_what_was_seen(
    make_platform: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preemption costs nothing, though its pods are gone before they can be looked at again."""
    story = Story({1: preempted, 2: succeed}, manifest={"budget": {"infra_attempts": 0}})
    platform = begun(make_platform, story)
    trained(platform, Driver(platform, story, monkeypatch), monkeypatch)
    assert platform.job.state is State.COMPLETED
    assert labels(platform)[:2] == ["pod.preempted", "done"]
