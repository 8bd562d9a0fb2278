"""Learners join and leave a running job on the local node while the others train, and are killed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from in_place_helpers import check_exactly_once, in_place_job, programs, send, written
from system_helpers import Stack, pretty, running_stack, shell_job, until

pytestmark = [pytest.mark.system, pytest.mark.turn(2), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    variables = {"UPDRAFT_RESIZE_MINUTES": "0.05", "UPDRAFT_ELASTIC_HANG_SECONDS": "10"}
    with running_stack("in-place", variables, gpus=3) as running:
        yield running


def members(stack: Stack, job: str) -> list[int]:
    """Return the learners whose programs run."""
    return sorted(programs(job))


def test_learners_join_leave_and_die_while_the_others_train(stack: Stack, tmp_path: Path) -> None:
    folder = tmp_path / "steps"
    folder.mkdir()
    epochs = 600
    job = stack.submit(in_place_job("stretchy", folder, epochs=epochs), written(tmp_path, "stretchy"))
    until(lambda: len(members(stack, job)) == 3, "it did not grow")
    stack.reach(job, "PROCESSING")
    first = min(programs(job))
    send(signal.SIGKILL, [programs(job)[first]])  # the leader
    until(lambda: first not in programs(job) and len(programs(job)) == 3, "no learner came in its place")
    send(signal.SIGKILL, [programs(job, "updraft_learner.elastic.pod")[0]])
    until(lambda: 0 in programs(job, "updraft_learner.elastic.pod"), "the coordinator did not come back")
    newcomer = shell_job("newcomer", "sleep 5", resources={"cpus": 1.5, "memory": "64MiB", "learners": 1})
    assert stack.end(stack.submit(newcomer, tmp_path)).state == "COMPLETED"
    ended = stack.end(job)
    assert ended.state == "COMPLETED", pretty(ended)
    check_exactly_once(folder, epochs)
    attempts = [each for each in stack.client.attempts(job).attempts if each.role == "train"]
    assert len(attempts) == 1, attempts
    told = [(each.state, each.reason) for each in stack.client.transitions(job).transitions]
    print("\n".join(map(str, told)))
    assert not any(state == "RECOVERING" for state, _ in told), told
    assert any(state == "PROCESSING" and "stood still for" in reason for state, reason in told), told
    assert any(state == "RESIZING" and f"learner {first} was killed" in reason for state, reason in told), told
