"""A launch that its node refuses is tried again, and ends in a bounded number of attempts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from unit.operators.airflow_fakes import Platform, until

from updraft.lifecycle import State

Make = Callable[..., Platform]


@pytest.mark.parametrize("reason", ["OutOfcpu", "NodeAffinity", "UnexpectedAdmissionError"])
def test_a_pod_that_its_node_refuses_ends_the_attempt_with_the_nodes_words(make_platform: Make, reason: str) -> None:
    platform = until(make_platform(), "train")

    def end(platform: Platform, job_id: str) -> dict[str, Any]:
        for name in platform.cluster.pods:
            platform.cluster.set_status(name)
            if name.endswith("-1"):
                refused = {"phase": "Failed", "reason": reason, "message": "the node said no"}
                platform.cluster.pods[name]["status"] = refused
        return {"kind": "failed", "reason": "learner 2 failed", "tails": {}}

    platform.pods_end = end
    assert platform.run("train") == "failed"
    assert platform.errors["train"] == (
        f"learner 2: {reason}: the node said no "
        "(infrastructure loss 6 within 24 hours, and budget.infra_attempts allows 5)"
    )
    assert platform.watched == [("train", number) for number in range(1, 7)]
    platform.run("release")
    assert platform.job.state is State.FAILED
    assert {a.outcome for a in platform.ledger.attempts.of_job(platform.job.id)} == {"infrastructure"}
    delays = [a.relaunch.delay_seconds for a in platform.ledger.attempts.of_job(platform.job.id) if a.relaunch]
    assert delays == [0, 5, 10, 20, 40]
    assert platform.cluster.left == []
