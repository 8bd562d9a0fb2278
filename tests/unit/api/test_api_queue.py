"""The queue by the routes, and the priority of a job."""

from __future__ import annotations

from typing import Any

import pytest
from ledger_helpers import run_elastic
from unit.api.api_fakes import MANIFEST, Platform

from updraft.allocation import Capacity, GangRequest, Node, Plan, plan_admissions
from updraft.allocation.document import StateDocument
from updraft.lifecycle import State, Verdict
from updraft.manifest import parse

API = "/updraft/api/v1"
ONE_CPU = Capacity((Node("local", 1, 4096),))


@pytest.fixture
def queued(platform: Platform) -> Platform:
    """Three jobs on a cluster with room for one."""
    for name in ("one-1", "two-1", "three-1"):
        job = platform.job(name, **parse({**MANIFEST}).canonical())
        platform.ledger.jobs.move(name, State.QUEUED, "waits")
        platform.ledger.queue.enqueue(name, GangRequest(name, 1, 1, 0, 0, None, job.submitted_at))
    plan(platform)
    status = {"allocatable": {"cpu": "1", "memory": "4Gi"}, "conditions": [{"type": "Ready", "status": "True"}]}
    platform.cluster.listed = [{"metadata": {"name": "local"}, "spec": {}, "status": status}]
    return platform


def plan(platform: Platform) -> None:
    platform.ledger.queue.plan(lambda queue, granted: plan_admissions(queue, granted, ONE_CPU))


def shown(platform: Platform, user: str = "ada") -> dict[str, Any]:
    answer = platform.client(user).get(f"{API}/queue")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def test_the_queue_is_shown_in_its_order(queued: Platform) -> None:
    found = shown(queued)
    (running,) = found["running"]
    assert (running["learners"], running["each"], running["place"]) == (1, "1 CPU", None)
    assert [each["place"] for each in found["waiting"]] == [1, 2]
    assert found["waiting"][1]["reason"].endswith(f"behind {found['waiting'][0]['job']}")


def test_the_page_shows_the_same(queued: Platform) -> None:
    page = queued.client().get("/updraft/queue")
    assert page.status_code == 200
    waiting = shown(queued)["waiting"]
    assert page.text.index(waiting[0]["job"]) < page.text.index(waiting[1]["job"])
    assert waiting[1]["reason"] in page.text


def test_the_queue_says_how_good_its_estimates_were(queued: Platform) -> None:
    assert shown(queued)["estimates"] is None
    first, second = [each["job"] for each in shown(queued)["waiting"]]
    queued.ledger.queue.expect([first, second], {first: queued.ledger.now()})
    running = shown(queued)["running"][0]["job"]
    queued.ledger.queue.release(running)
    queued.ledger.jobs.finish(running, Verdict(State.FAILED, "failed", {}))
    plan(queued)
    found = shown(queued)["estimates"]
    assert found["jobs"] == 1
    assert 0 <= found["median_seconds"] == found["largest_seconds"] < 60
    assert "Estimates of the last 1 job were off by" in queued.client().get("/updraft/queue").text


def test_a_job_of_a_higher_priority_is_next(queued: Platform) -> None:
    last = shown(queued)["waiting"][1]["job"]
    answer = queued.client().post(f"{API}/jobs/{last}/priority", json={"priority": "high"})
    assert (answer.status_code, answer.json()["message"]) == (200, "Its priority is high. The queue is planned again.")
    assert queued.ledger.queue.plan_is_due()
    plan(queued)
    first = shown(queued)["waiting"][0]
    assert (first["job"], first["priority"]) == (last, "high")
    job = queued.ledger.jobs.get(last)
    assert (job.manifest["priority"], job.revision) == ("high", 1)
    assert queued.ledger.jobs.revisions(last)[-1].by == "ada"


def test_a_running_jobs_priority_counts_later(queued: Platform) -> None:
    running = shown(queued)["running"][0]["job"]
    answer = queued.client().post(f"{API}/jobs/{running}/priority", json={"priority": "low"})
    assert answer.json()["message"] == "Its priority is low. It counts when the job waits in the queue again."


def test_wrong_priorities_are_refused(queued: Platform) -> None:
    job = shown(queued)["waiting"][0]["job"]
    wrong = queued.client().post(f"{API}/jobs/{job}/priority", json={"priority": "urgent"})
    assert wrong.status_code == 422
    assert "'low', 'normal' or 'high'" in wrong.text
    assert queued.client("reader").post(f"{API}/jobs/{job}/priority", json={"priority": "low"}).status_code == 403
    queued.ledger.jobs.finish(job, Verdict(State.CANCELLED, "cancelled"))
    ended = queued.client().post(f"{API}/jobs/{job}/priority", json={"priority": "low"})
    assert ended.status_code == 409
    assert job not in [each["job"] for each in shown(queued)["waiting"]]


def test_the_state_is_what_plan_reads(queued: Platform) -> None:
    answer = queued.client().get(f"{API}/queue/state")
    assert answer.status_code == 200
    state = StateDocument.model_validate(answer.json())
    assert [each.job for each in state.queue] == [each["job"] for each in shown(queued)["waiting"]]
    assert len(state.running) == 1


def test_the_state_has_the_sizes_of_elastic_jobs(queued: Platform) -> None:
    queued.job("stretches-1", **parse({**MANIFEST}).canonical())
    run_elastic(queued.ledger, "stretches-1", 2, step_seconds=0.2)
    state = StateDocument.model_validate(queued.client().get(f"{API}/queue/state").json())
    (elastic,) = (each.elastic for each in state.running if each.job == "stretches-1")
    assert elastic is not None
    assert [size.learners for size in elastic.sizes] == [1, 2, 3, 4]
    assert elastic.sized_at is not None


def test_a_start_is_estimated_from_earlier_jobs_of_the_series(queued: Platform) -> None:
    assert [each["starts_at"] for each in shown(queued)["waiting"]] == [None, None]
    for name in ("one-0", "two-0", "three-0"):  # they have completed at once
        job = queued.job(name)
        queued.ledger.queue.enqueue(name, GangRequest(name, 1, 0, 0, 0, None, job.submitted_at))
        queued.ledger.queue.plan(lambda _queue, _granted, job=name: Plan(granted=(job,)))  # type: ignore[misc]
        for state in (State.QUEUED, State.DEPLOYING, State.PROCESSING, State.STORING):
            queued.ledger.jobs.move(name, state, "goes on")
        queued.ledger.queue.release(name)
        queued.ledger.jobs.finish(name, Verdict(State.COMPLETED, "trained"))
    found = shown(queued)["waiting"]
    assert found[0]["starts_at"] is not None
    assert found[0]["starts_at"] <= found[1]["starts_at"]


@pytest.fixture
def stretching(platform: Platform) -> Platform:
    """An elastic job that trains with two learners, on a cluster with four GPUs."""
    platform.cluster.nodes = lambda: [gpu_node()]  # type: ignore[method-assign]
    elastic = {"min_learners": 1, "max_learners": 8, "resize": "in_place"}
    manifest = {**MANIFEST, "elastic": elastic, "checkpoints": {"every": "60s"}, "evaluate": None}
    platform.job("stretches-1", **parse(manifest).canonical())
    run_elastic(platform.ledger, "stretches-1", 2, step_seconds=0.2)
    return platform


def gpu_node() -> dict[str, Any]:
    room = {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "4", "pods": "100"}
    ready = [{"type": "Ready", "status": "True"}]
    return {
        "metadata": {"name": "gpus", "labels": {}},
        "spec": {},
        "status": {"allocatable": room, "capacity": room, "conditions": ready},
    }


def scaled(platform: Platform, learners: int | None, who: str = "ada") -> Any:
    return platform.client(who).post(f"{API}/jobs/stretches-1/scale", json={"learners": learners})


def test_an_elastic_job_is_scaled_by_hand(stretching: Platform) -> None:
    answer = scaled(stretching, 3)
    assert (answer.status_code, answer.json()["message"]) == (
        200,
        "It gets 3 learners, and keeps that size until `updraft scale stretches-1 auto`.",
    )
    queue = stretching.ledger.queue
    target = queue.target("stretches-1")
    assert target is not None
    assert target[0] == 3
    assert "asked for by ada" in target[1]
    again = scaled(stretching, 4)
    assert again.status_code == 409
    assert "retry" in again.text
    queue.settle_in_place("stretches-1", 3, "3 of 3 learners run", {}, pause=0.02)
    detail = stretching.client().get(f"{API}/jobs/stretches-1").json()
    assert [(size["learners"], size["current"]) for size in detail["sizes"]] == [(3, True)]
    assert any("ada has fixed it at 3 learners" in remark for remark in detail["size_remarks"])
    assert (detail["min_learners"], detail["max_learners"], detail["resize"]) == (1, 8, "in_place")
    assert scaled(stretching, None).json()["message"] == "The platform chooses its learners again."
    assert len(stretching.client().get(f"{API}/jobs/stretches-1").json()["sizes"]) > 1


def test_sizes_that_cannot_be_are_refused_and_change_nothing(stretching: Platform) -> None:
    too_many = scaled(stretching, 9)
    assert too_many.status_code == 422
    assert "learners: 9 is not a size that the job's manifest allows; write 1 to 8" in too_many.text
    assert scaled(stretching, 0).status_code == 422
    no_room = scaled(stretching, 5)
    assert no_room.status_code == 409
    assert "cannot have 5 learners now" in no_room.text
    assert stretching.ledger.queue.target("stretches-1") is None
    assert not any(
        "fixed" in each for each in stretching.client().get(f"{API}/jobs/stretches-1").json()["size_remarks"]
    )
    assert scaled(stretching, 1, "reader").status_code == 403
    stretching.ledger.jobs.finish("stretches-1", Verdict(State.CANCELLED, "cancelled"))
    assert scaled(stretching, 1).status_code == 409


def test_only_elastic_jobs_are_scaled(queued: Platform) -> None:
    job = shown(queued)["running"][0]["job"]
    answer = queued.client().post(f"{API}/jobs/{job}/scale", json={"learners": 2})
    assert answer.status_code == 409
    assert "is not elastic" in answer.text
