"""A job that the planner gives another size: it saves, keeps its room, and goes on with the new learners and batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from unit.controller.driving import CHOSEN, TAKEN_BACK, Driver, Story, exits, runs_on, saves, succeed
from unit.controller.test_driven_anywhere import begun, trained
from unit.operators.airflow_fakes import Platform

from updraft.allocation.scalability import Report
from updraft.controller import queueing
from updraft.kubernetes import gang
from updraft.kubernetes.launch import LaunchObjects
from updraft.kubernetes.objects import Launch
from updraft.lifecycle import State

Make = Callable[..., Platform]
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ELASTIC = {"elastic": {"min_learners": 1, "max_learners": 4, "min_batch": 32, "max_batch": 256, "lr": "linear"}}
FREE = {"resources": {"learners": 1, "cpus": 0.1, "memory": "64MiB"}}


def sized(learners: int, batch: int, **more: Any) -> Story:
    return Story(
        {1: saves("step-3", then=exits(75, peers=75))},
        manifest={**ELASTIC, **FREE},
        sizes={"attempt 1": (learners, batch)},
        **more,
    )


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[dict[str, str]]]:
    """The environments of each attempt's learners, as they were created."""
    found: dict[int, list[dict[str, str]]] = {}

    def create(core: Any, launch: Launch, objects: LaunchObjects) -> None:
        programs = [pod["spec"]["containers"][0]["env"] for pod in objects.pods]
        found[launch.attempt] = [{each["name"]: each.get("value", "") for each in program} for program in programs]
        made(core, launch, objects)

    made = gang.create
    monkeypatch.setattr(gang, "create", create)
    return found


@pytest.mark.parametrize(("learners", "batch"), [(3, 96), (1, 64)])
def test_it_goes_on_with_the_new_size(
    make_platform: Make, launched: dict[int, list[dict[str, str]]], learners: int, batch: int
) -> None:
    story = sized(learners, batch)
    platform = begun(make_platform, story)
    trained(platform, Driver(platform, story))
    first, second = platform.ledger.attempts.of_job(platform.job.id)
    assert (first.outcome, first.label, first.reason) == ("preempted", "grant.resized", CHOSEN)
    assert (first.membership.size, first.batch) == (2, 32)
    assert (second.membership.size, second.batch) == (learners, batch)
    assert first.relaunch is not None
    assert first.relaunch.reason == "no loss: launched again at once"
    assert second.resume is not None
    assert second.resume.checkpoint == "step-3"
    told = [(t.to_state, t.reason) for t in platform.ledger.jobs.transitions(platform.job.id)]
    assert (State.RESIZING, f"attempt 1 of train was stopped: {CHOSEN}; no loss: launched again at once") in told
    assert State.QUEUED not in [
        state for state, _ in told[told.index(next(t for t in told if t[0] is State.RESIZING)) :]
    ]
    assert platform.job.state is State.COMPLETED
    found = launched[2]
    assert [e["RANK"] for e in found] == [str(n) for n in range(learners)]
    assert {(e["WORLD_SIZE"], e["NUM_LEARNERS"], e["PET_NNODES"]) for e in found} == {(str(learners),) * 3}
    assert {(e["UPDRAFT_BATCH"], e["UPDRAFT_LR_SCALE"]) for e in found} == {(str(batch), f"{batch / 32:g}")}


def test_what_it_held_is_written_down_by_size(make_platform: Make) -> None:
    story = sized(3, 96)
    platform = begun(make_platform, story)
    (before,) = platform.ledger.queue.grants()
    trained(platform, Driver(platform, story))
    held = platform.ledger.queue.used(before.granted_at)
    assert [use.learners for use in held] == [2, 3]  # what it grows into is its own from the decision on
    assert held[0].released_at == held[1].granted_at
    assert held[1].released_at is not None


def test_a_smaller_job_keeps_its_room_until_its_learners_have_left(make_platform: Make) -> None:
    story = sized(1, 64)
    platform = begun(make_platform, story)
    (before,) = platform.ledger.queue.grants()
    trained(platform, Driver(platform, story))
    first, second = platform.ledger.queue.used(before.granted_at)
    ended = platform.ledger.attempts.of_job(platform.job.id)[0].ended_at
    assert (first.learners, second.learners) == (2, 1)
    assert first.released_at == second.granted_at == ended


def test_a_resize_spends_no_budget(make_platform: Make) -> None:
    story = sized(3, 96)
    story = replace(story, manifest={**story.manifest, "budget": {"infra_attempts": 0, "app_attempts": 0}})
    platform = begun(make_platform, story)
    trained(platform, Driver(platform, story))
    assert platform.job.state is State.COMPLETED


def test_a_job_that_completes_meanwhile_is_done(make_platform: Make) -> None:
    story = replace(sized(3, 96), learners={1: saves("step-3", then=succeed)})
    platform = begun(make_platform, story)
    trained(platform, Driver(platform, story))
    assert [a.label for a in platform.ledger.attempts.of_job(platform.job.id)] == ["done"]
    assert not platform.ledger.queue.resizes(platform.job.id)


def test_a_loss_meanwhile_goes_on_with_the_new_size(make_platform: Make) -> None:
    story = replace(sized(3, 96), learners={1: saves("step-3", then=exits(1, peers=143))})
    story = replace(story, manifest={**story.manifest, "budget": {"app_attempts": 1}})
    platform = begun(make_platform, story)
    trained(platform, Driver(platform, story))
    first, second = platform.ledger.attempts.of_job(platform.job.id)
    assert first.outcome == "program"
    assert (second.membership.size, second.batch) == (3, 96)


def test_a_program_that_does_not_leave_is_stopped(make_platform: Make) -> None:
    story = replace(sized(3, 96), learners={1: saves("step-3", then=runs_on("reclaimed"))})
    platform = begun(make_platform, story)
    trained(platform, Driver(platform, story))
    assert [a.label for a in platform.ledger.attempts.of_job(platform.job.id)] == ["grant.resized", "done"]


def test_a_job_whose_room_is_taken_back_waits_for_its_fewest_learners(make_platform: Make) -> None:
    story = replace(sized(3, 96), sizes={}, reclaims=frozenset({"attempt 1"}))
    platform = begun(make_platform, story)
    trained(platform, Driver(platform, story))
    first, second = platform.ledger.attempts.of_job(platform.job.id)
    assert (first.label, first.reason) == ("grant.reclaimed", TAKEN_BACK)
    assert second.batch is not None
    assert platform.job.state is State.COMPLETED


def test_reported_speeds_decide_about_sizes(make_platform: Make) -> None:
    """A series that does not get faster with more learners starts with its fewest."""
    story = replace(sized(3, 96), sizes={})
    platform = begun(make_platform, story)
    for attempt, (learners, seconds) in enumerate(((1, 0.1), (2, 0.3), (4, 0.9)), start=1):
        platform.ledger.queue.note_speed(platform.job.id, attempt, Report(learners, 64, seconds), 500, NOON)
        platform.ledger.queue.note_speed(platform.job.id, attempt, Report(learners, 64, seconds), 600, NOON)
    platform.ledger.queue.release(platform.job.id)
    queueing.enqueue(platform.services, platform.job)
    nodes = platform.cluster._plain(platform.cluster.list_node())["items"]
    queueing.plan(platform.services, nodes)
    assert platform.ledger.queue.size(platform.job.id) == (1, 32)
