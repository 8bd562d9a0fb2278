"""Jobs wait in the queue for the machine, and are stopped when they are asked to."""

from __future__ import annotations

import pytest
from system_helpers import Stack, pretty, shell_job

pytestmark = [pytest.mark.system, pytest.mark.turn(2), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def jobs(stack: Stack) -> list[str]:
    """One that never ends, and five gangs behind it that each want the whole machine."""
    gang = {"learners": 2, "cpus": 1, "memory": "128MiB"}
    manifests = [shell_job("endless", "sleep 600")]
    manifests += [shell_job(f"gang-{n}", "sleep 2", resources=gang) for n in range(5)]
    return [stack.submit(manifest) for manifest in manifests]


def test_a_cancelled_job_ends_cancelled_and_leaves_nothing(stack: Stack, jobs: list[str]) -> None:
    stack.reach(jobs[0], "PROCESSING")
    stack.client.cancel(jobs[0])
    detail = stack.end(jobs[0])
    assert detail.state == "CANCELLED", pretty(detail)
    assert "cancelled by admin" in detail.reason


def test_five_jobs_of_two_learners_on_two_cpus_all_end(stack: Stack, jobs: list[str]) -> None:
    details = [stack.end(job_id) for job_id in jobs[1:]]
    assert [d.state for d in details] == ["COMPLETED"] * 5, [d.reason for d in details]
    histories = [stack.client.transitions(job_id).transitions for job_id in jobs[1:]]
    reasons = [t.reason for history in histories for t in history if t.state == "QUEUED"]
    assert any("in the queue" in reason for reason in reasons), reasons
