"""A launch whose pods never start ends in bounded time, however often its task wakes and waits again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from unit.operators.airflow_fakes import Platform, until

from updraft.lifecycle import State
from updraft.settings import settings

Make = Callable[..., Platform]


def test_waiting_again_does_not_put_the_end_of_deploying_off(make_platform: Make) -> None:
    platform = until(make_platform(), "train")
    alarms = ["missing", "failed", "ended"]

    def end(platform: Platform, job_id: str) -> dict[str, Any]:
        for name in platform.cluster.pods:
            platform.cluster.set_status(name)
        if alarms:
            return {"kind": alarms.pop(0), "reason": "a mistake", "tails": {}}
        return platform.pods_succeed(job_id)

    platform.pods_end = end
    assert platform.run("train") == "success"
    (attempt,) = (a for a in platform.ledger.attempts(platform.job.id) if a.role == "train")
    waits = [kwargs["deploy_by"] for name, kwargs in platform.events if name == "GangTrigger"]
    assert waits == [attempt.started_at.timestamp() + settings().deploy_timeout_seconds] * 4


@pytest.mark.parametrize("reason", ["OutOfcpu", "NodeAffinity", "UnexpectedAdmissionError"])
def test_a_pod_that_its_node_refuses_ends_the_attempt_with_the_nodes_words(make_platform: Make, reason: str) -> None:
    platform = until(make_platform(), "train")

    def end(platform: Platform, job_id: str) -> dict[str, Any]:
        for name in platform.cluster.pods:
            platform.cluster.set_status(name)
        refused = platform.cluster.pods["digits-1-t1-1"]
        refused["status"] = {"phase": "Failed", "reason": reason, "message": "the node said no"}
        return {"kind": "failed", "reason": "learner 2 failed", "tails": {}}

    platform.pods_end = end
    assert platform.run("train") == "failed"
    assert platform.errors["train"] == f"learner 2: {reason}: the node said no"
    assert [name for name, _ in platform.events].count("GangTrigger") == 1
    platform.run("release")
    assert platform.job.state is State.FAILED
    (attempt,) = platform.ledger.attempts(platform.job.id)
    assert attempt.outcome == "infrastructure"
