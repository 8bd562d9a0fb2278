"""Pods that the cluster has no room for: patience for a job that has run before, an end for one that never fitted; and
quotas, which a person may raise."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from ledger_helpers import grants, try_admit
from sqlalchemy import update
from unit.controller.driving import USED_UP, Driver, Story, exits, finds_no_room, preempted, saves, succeed
from unit.controller.test_driven_anywhere import begun, trained
from unit.operators.airflow_fakes import Platform
from unit.operators.platform_fakes import FakeCluster, api_error

from updraft.allocation import GangRequest
from updraft.controller import queueing, records
from updraft.exceptions import QuotaError
from updraft.kubernetes import gang, objects
from updraft.kubernetes.capacity import capacity_from_nodes
from updraft.kubernetes.launch import LaunchObjects
from updraft.kubernetes.objects import Launch
from updraft.ledger import NewJob, tables
from updraft.lifecycle import State
from updraft.lifecycle.membership import Membership
from updraft.settings import settings

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api

Make = Callable[..., Platform]


def labels(platform: Platform) -> list[str | None]:
    return [attempt.label for attempt in platform.ledger.attempts.of_job(platform.job.id)]


def test_a_job_that_has_run_waits_for_room_as_long_as_it_takes(make_platform: Make) -> None:
    crowded = dict.fromkeys(range(2, 10), finds_no_room)
    story = Story({1: saves("step-3", then=exits(137)), **crowded, 10: exits(137), 11: finds_no_room, 12: succeed})
    platform = begun(make_platform, story)
    told = trained(platform, Driver(platform, story))
    assert (platform.job.state, told["left"], told["granted"]) == (State.COMPLETED, [], [])
    assert [label == "pod.no_room" for label in labels(platform)] == [False, *[True] * 8, False, True, False]
    tries = platform.ledger.attempts.of_job(platform.job.id)
    assert {a.resume.checkpoint for a in tries[1:] if a.resume} == {"step-3"}  # none is given up for want of room
    assert tries[1].relaunch is not None
    assert tries[1].relaunch.reason == "no room so far, which is no loss: in the queue again in 5 s"
    assert tries[9].relaunch is not None
    assert tries[9].relaunch.reason.startswith("infrastructure loss 2 of 5")


def test_a_job_that_never_fitted_is_given_up_with_the_schedulers_words(make_platform: Make) -> None:
    story = Story(dict.fromkeys(range(1, 10), finds_no_room), state=State.FAILED)
    platform = begun(make_platform, story)
    trained(platform, Driver(platform, story))
    assert platform.job.state is State.FAILED
    assert labels(platform) == ["pod.no_room"] * 6
    assert "budget.infra_attempts allows 5" in platform.job.reason


def other_job(platform: Platform) -> None:
    """Another job has been granted room."""
    book = platform.ledger
    room = capacity_from_nodes(platform.cluster._plain(platform.cluster.list_node())["items"])
    book.jobs.record(NewJob("other", "audio", "other", "train_model", "other", {}, "bob"))
    book.queue.enqueue("other", GangRequest("other", 1, 0.1, 1, 0, None, book.now()))
    assert try_admit(book, "other", room).granted


@pytest.mark.parametrize("why", ["another job", "a pool"])
def test_a_job_is_not_given_up_while_others_may_leave_or_a_pool_may_grow(
    make_platform: Make, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    crowded = dict.fromkeys(range(1, 9), finds_no_room)
    story = Story({**crowded, 9: exits(137), 10: succeed}, manifest={"budget": {"infra_attempts": 1}})
    if why == "a pool":
        amounts = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "100Gi"}
        pool = {"name": "spare", "most": 1, "labels": {"pool": "spare"}, "allocatable": amounts}
        monkeypatch.setenv("UPDRAFT_SCALABLE_POOLS", json.dumps([pool]))
        settings.cache_clear()
    platform = begun(make_platform, story)
    if why == "another job":
        other_job(platform)
    trained(platform, Driver(platform, story))
    assert platform.job.state is State.COMPLETED
    assert labels(platform)[:8] == ["pod.no_room"] * 8


def test_a_quota_is_waited_for_from_the_first_launch_on(make_platform: Make) -> None:
    story = Story({}, manifest={"budget": {"infra_attempts": 0}}, quota=frozenset(range(1, 9)))
    platform = begun(make_platform, story)
    told = trained(platform, Driver(platform, story))
    assert (platform.job.state, told["left"], told["granted"]) == (State.COMPLETED, [], [])
    tries = platform.ledger.attempts.of_job(platform.job.id)
    assert labels(platform) == [*["quota.exceeded"] * 8, "done"]
    assert USED_UP in str(tries[0].reason)
    assert tries[0].relaunch is not None
    assert tries[0].relaunch.reason == "no room in the quota so far, which is no loss: in the queue again in 5 s"
    shown = [t for t in platform.ledger.jobs.transitions(platform.job.id) if "was refused" in t.reason]
    assert [t.to_state for t in shown] == [State.QUEUED] * 8
    assert all(USED_UP in t.reason for t in shown)


def test_a_job_that_a_quota_keeps_waiting_leaves_its_room_to_others(make_platform: Make) -> None:
    """Another job, of another tenant, wants all that the first one was granted; it gets it at once, and the first one
    goes behind it."""
    story = Story({}, quota=frozenset({1}))
    platform = begun(make_platform, story)
    book, job_id = platform.ledger, platform.job.id
    room = capacity_from_nodes(platform.cluster._plain(platform.cluster.list_node())["items"])
    book.jobs.record(NewJob("other", "audio", "other", "train_model", "other", {}, "bob"))
    book.queue.enqueue("other", GangRequest("other", 1, room.nodes[0].cpus, 1, 0, None, book.now()))
    assert not try_admit(book, "other", room).granted
    seen: list[str] = []
    driver = Driver(platform, story)
    plan = driver.in_queue

    def behind(_job_id: str, what: str) -> None:
        """The first job backs off: what it was granted is free."""
        if not seen:
            assert try_admit(book, "other", room).granted
            assert [grant.request.job_id for grant in grants(book)] == ["other"]
        seen.append(what)

    def in_queue(job_id: str) -> None:
        """As often as the first job waits for its turn."""
        plan(job_id)
        if book.queue.holds("other"):
            assert "behind" not in platform.job.reason
            assert [grant.request.job_id for grant in grants(book)] == ["other"]
            book.queue.release("other")

    driver.in_queue = in_queue  # type: ignore[method-assign]
    driver.touched = behind  # type: ignore[method-assign]
    told = trained(platform, driver)
    assert (platform.job.state, told["left"], told["granted"]) == (State.COMPLETED, [], [])
    assert labels(platform) == ["quota.exceeded", "done"]
    states = [t.to_state for t in book.jobs.transitions(job_id)]
    assert states[states.index(State.DEPLOYING) :].count(State.QUEUED) >= 2
    assert driver.errors == []


def too_small(platform: Platform) -> Callable[[str, str], Exception | None]:
    """The cluster's answer to the second of two learners, in the words of a quota that holds only one."""

    def refusal(verb: str, name: str) -> Exception | None:
        if verb != "create pod" or not name.endswith("-1"):
            return None
        amounts = "requested: requests.nvidia.com/gpu=8, used: requests.nvidia.com/gpu=8, "
        limit = "limited: requests.nvidia.com/gpu=8"
        return api_error(403, f'pods "{name}" is forbidden: exceeded quota: small, {amounts}{limit}')

    return refusal


def test_a_quota_that_can_never_hold_the_job_ends_it_at_once(make_platform: Make) -> None:
    story = Story({}, state=State.FAILED)
    platform = begun(make_platform, story)
    platform.cluster.refuse = too_small(platform)
    told = trained(platform, Driver(platform, story))
    assert (platform.job.state, told["left"], told["granted"]) == (State.FAILED, [], [])
    (only,) = platform.ledger.attempts.of_job(platform.job.id)
    assert (only.outcome, only.label, only.relaunch) == ("configuration", "quota.too_small", None)
    assert "needs 2 x 8 of requests.nvidia.com/gpu, and its limit is 8" in platform.job.reason


def test_a_quota_that_holds_fewer_learners_does_not_end_an_elastic_job(make_platform: Make) -> None:
    """The planner gave it two learners at its start; the quota holds one."""
    limits = {"min_learners": 1, "max_learners": 2, "min_batch": 32, "max_batch": 64}
    story = Story({}, manifest={"elastic": limits, "resources": {"learners": 1, "cpus": 0.1, "memory": "64MiB"}})
    platform = begun(make_platform, story)
    with platform.ledger.queue._writing() as connection:
        connection.execute(update(tables.grants).values(learners=2, batch=64))
    platform.cluster.refuse = too_small(platform)
    trained(platform, Driver(platform, story))
    assert platform.job.state is State.COMPLETED
    tries = platform.ledger.attempts.of_job(platform.job.id)
    assert [(a.label, a.membership.size) for a in tries] == [("quota.exceeded", 2), ("done", 1)]


def test_a_quota_that_is_lowered_beneath_a_job_that_has_run_is_waited_for(make_platform: Make) -> None:
    """It has work to lose; its place is others' meanwhile."""
    story = Story({1: saves("step-3", then=exits(137))})
    platform = begun(make_platform, story)
    lowered = too_small(platform)
    platform.cluster.refuse = lambda verb, name: lowered(verb, name) if "-t2-" in name or "-t3-" in name else None
    trained(platform, Driver(platform, story))
    assert platform.job.state is State.COMPLETED
    assert labels(platform)[1:] == ["quota.exceeded", "quota.exceeded", "done"]


def test_a_revision_that_a_quota_can_never_hold_is_halted_and_can_be_mended(make_platform: Make) -> None:
    """The work that was done is not lost, and the job is in nobody's way."""
    asks = (
        ("attempt 1", "halt", None),
        ("halted", "resume", {"command": "python larger.py"}),
        ("halted", "resume", None),  # the quota is what it was
        ("halted", "resume", {"command": "python smaller.py"}),
    )
    story = Story({1: saves("step-3", then=exits(75, peers=75))}, asks=asks)
    platform = begun(make_platform, story)
    small = too_small(platform)
    platform.cluster.refuse = lambda verb, name: small(verb, name) if "-t2-" in name or "-t3-" in name else None
    told = trained(platform, Driver(platform, story))
    assert (platform.job.state, told["left"], told["granted"]) == (State.COMPLETED, [], [])
    assert labels(platform)[1:] == ["quota.exceeded", "quota.exceeded", "done"]
    halted = [t.reason for t in platform.ledger.jobs.transitions(platform.job.id) if t.to_state is State.HALTED]
    assert len(halted) == 3
    for reason in halted[1:]:
        assert reason.startswith("it cannot go on like this: quota small can never hold the whole launch")
        assert "have the quota raised first" in reason
    last = platform.ledger.attempts.of_job(platform.job.id)[-1]
    assert last.resume is not None
    assert last.resume.checkpoint == "step-3"


def test_a_disk_that_no_node_has_is_told_before_anything_is_made(make_platform: Make) -> None:
    """Of a revision here: the job is halted, and goes on with less."""
    resources = {"learners": 2, "cpus": 1, "memory": "1GiB"}
    asks = (
        ("attempt 1", "halt", None),
        ("halted", "resume", {"resources": {**resources, "disk": "500GiB"}}),
        ("halted", "resume", {"resources": {**resources, "disk": "400GiB"}}),
    )
    story = Story({1: saves("step-3", then=exits(75, peers=75))}, asks=asks, manifest={"resources": resources})
    platform = begun(make_platform, story)
    told = trained(platform, Driver(platform, story))
    assert (platform.job.state, told["left"], told["granted"]) == (State.COMPLETED, [], [])
    assert len(platform.ledger.attempts.of_job(platform.job.id)) == 2
    reasons = [t.reason for t in platform.ledger.jobs.transitions(platform.job.id) if t.to_state is State.HALTED]
    assert reasons[-1] == (
        "it cannot go on like this: resources.disk: a learner asks for 500.0 GiB of its node's disk, and no node has "
        "more than 400.0 GiB to give"
    )


def test_a_full_quota_takes_nothing_away_that_is_there() -> None:
    """The API server asks quotas before it looks whether a pod of that name is there already."""
    cluster, launch = FakeCluster(), Launch("updraft-default", "default", "digits-1", "train", 1, Membership.first(2))
    made: dict[str, Any] = {
        "secret": objects.credentials_secret(launch, {"s3": {}}, "t"),
        "pods": [{"metadata": {"name": launch.pod_name(n), "labels": launch.labels(n)}} for n in (1, 2)],
    }
    gang.create(cast("CoreV1Api", cluster), launch, LaunchObjects(**made))
    there = list(cluster.pods)

    def refuse(verb: str, name: str) -> Exception | None:
        return api_error(403, f'pods "{name}" is forbidden: {USED_UP}') if verb == "create pod" else None

    cluster.refuse = refuse
    gang.create(cast("CoreV1Api", cluster), launch, LaunchObjects(**made))
    assert list(cluster.pods) == there
    cluster.delete_namespaced_pod(there[0], launch.namespace)  # one is missing now, and finds no room
    with pytest.raises(QuotaError, match="exceeded quota: small"):
        gang.create(cast("CoreV1Api", cluster), launch, LaunchObjects(**made))
    assert not cluster.pods
    assert not cluster.objects["secret"]


@pytest.mark.parametrize(("role", "learners"), [("train", 8), ("evaluate", 1), ("export", 1)])
def test_a_role_of_one_learner_waits_for_the_room_of_one(make_platform: Make, role: str, learners: int) -> None:
    platform = begun(make_platform, Story({}, manifest={"resources": {"learners": 8, "cpus": 1, "memory": "1GiB"}}))
    assert queueing.place_of(platform.job, role=role).learners == learners


def test_a_name_that_has_become_the_platforms_ends_no_job_that_was_accepted_before(make_platform: Make) -> None:
    platform = begun(make_platform, Story({}))
    env = {"NVIDIA_VISIBLE_DEVICES": "0", "SEED": "7"}
    job = replace(platform.job, manifest={**platform.job.manifest, "env": env})
    assert dict(records.manifest_of(job).env) == {"SEED": "7"}


def test_learners_that_were_seen_going_are_judged_by_what_was_seen(make_platform: Make) -> None:
    """A preemption costs nothing, though its pods are gone before they can be looked at again."""
    story = Story({1: preempted, 2: succeed}, manifest={"budget": {"infra_attempts": 0}})
    platform = begun(make_platform, story)
    trained(platform, Driver(platform, story))
    assert platform.job.state is State.COMPLETED
    assert labels(platform)[:2] == ["pod.preempted", "done"]
