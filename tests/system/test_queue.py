"""Jobs wait in the queue for the machine, and are stopped when they are asked to."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from system_helpers import Stack, pretty, shell_job

pytestmark = [pytest.mark.system, pytest.mark.turn(2), pytest.mark.timeout(600)]


PLANNED_SECONDS = 20


@pytest.fixture(scope="module")
def jobs(stack: Stack) -> list[str]:
    """One that never ends, and five gangs behind it that each want the whole machine."""
    gang = {"learners": 2, "cpus": 1, "memory": "128MiB"}
    endless = stack.submit(shell_job("endless", "sleep 600"))
    stack.reach(endless, "PROCESSING")
    return [endless, *(stack.submit(shell_job(f"gang-{n}", "sleep 2", resources=gang)) for n in range(5))]


def test_a_job_of_a_higher_priority_is_next(stack: Stack, jobs: list[str], tmp_path: Path) -> None:
    for job in jobs[1:]:
        stack.reach(job, "QUEUED")
    last = jobs[-1]
    assert stack.run("prioritize", last, "high").stdout == "Its priority is high. The queue is planned again.\n"
    deadline = time.monotonic() + PLANNED_SECONDS
    while (first := stack.client.queue().waiting[0]).job != last:
        assert time.monotonic() < deadline, stack.run("queue").stdout
        time.sleep(0.2)
    assert (first.priority, first.place) == ("high", 1)
    second = stack.client.queue().waiting[1].job  # whichever was recorded first
    assert f"behind {last}, whose priority is high" in stack.run("why", second).stdout
    (tmp_path / "state.json").write_text(stack.run("queue", "--state").stdout)
    decided = json.loads(stack.run("plan", str(tmp_path / "state.json"), "--json").stdout)
    assert [each["job_id"] for each in decided["waiting"]] == [each.job for each in stack.client.queue().waiting]


def test_a_cancelled_job_ends_cancelled_and_leaves_nothing(stack: Stack, jobs: list[str]) -> None:
    stack.client.cancel(jobs[0])
    detail = stack.end(jobs[0])
    assert detail.state == "CANCELLED", pretty(detail)
    assert "cancelled by admin" in detail.reason


def test_five_jobs_of_two_learners_on_two_cpus_all_end(stack: Stack, jobs: list[str]) -> None:
    details = [stack.end(job_id) for job_id in jobs[1:]]
    assert [d.state for d in details] == ["COMPLETED"] * 5, [d.reason for d in details]
    starts = {d.id: next(t.at for t in d.transitions if t.state == "DEPLOYING") for d in details}
    assert min(starts, key=lambda job: starts[job]) == jobs[-1]
    histories = [stack.client.transitions(job_id).transitions for job_id in jobs[1:]]
    reasons = [t.reason for history in histories for t in history if t.state == "QUEUED"]
    assert any("in the queue" in reason for reason in reasons), reasons
