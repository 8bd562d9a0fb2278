"""A process that dies after any of its effects and is started again leaves what one run would have left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from unit.operators.airflow_fakes import ORDER, Platform

from updraft.lifecycle import State


def facts(platform: Platform) -> dict[str, object]:
    """Everything that must be there exactly once, or not at all."""
    job, mlflow = platform.job, platform.mlflow
    ends = [t for t in platform.ledger.transitions(job.id) if t.to_state == job.state]
    return {
        "tasks": dict(platform.states),
        "state": (job.state, job.reason, len(ends), job.verdict.state),
        "attempts": [(a.role, a.number, a.outcome) for a in platform.ledger.attempts(job.id)],
        "granted": platform.ledger.grants(),
        "runs": [(r.info.status, r.data.params) for r in mlflow.runs.values()],
        "endings": mlflow.endings,
        "models": [(m.name, str(m.status)) for m in mlflow.models.values()],
        "versions": [(v.name, v.version, v.tags_set) for v in mlflow.versions],
        "alias": (mlflow.aliases, mlflow.alias_moves),
        "created": Counter(platform.cluster.created),
        "left": platform.cluster.left,
        "checkpoints": [
            (c.name, c.delete_reason is None) for c in platform.ledger.checkpoints(job.id, with_deleted=True)
        ],
        "failure": platform.ledger.effect(job.id, "failure"),
    }


def champion_before(platform: Platform) -> None:
    """Another job's version holds the alias."""
    mlflow = platform.mlflow
    run = mlflow.create_run(mlflow.create_experiment("older"), tags={}, run_name="older")
    mlflow.runs[run.info.run_id].data.metrics["acc"] = 0.5
    mlflow.registered.add("digits")
    mlflow.create_model_version("digits", source="x", run_id=run.info.run_id, model_id=None)
    mlflow.aliases["digits", "champion"] = "1"


def program_fails(platform: Platform) -> None:
    platform.pods_end = Platform.pods_fail


def cancelled_while_training(platform: Platform) -> None:
    def cancel(platform: Platform, job_id: str) -> dict[str, object]:
        platform.ledger.request_cancel(job_id, "bob")
        for name in platform.cluster.pods:
            platform.cluster.set_status(name)
        return {"kind": "cancelled", "reason": "cancelled by bob", "tails": {}}

    platform.pods_end = cancel


def impossible(platform: Platform) -> None:
    platform.cluster.cpus = "100m"


def bad_manifest(platform: Platform) -> None:
    platform.params["manifest"]["comand"] = "python"


JOBS = {
    "completes": (champion_before, State.COMPLETED),
    "program fails": (program_fails, State.FAILED),
    "cancelled": (cancelled_while_training, State.CANCELLED),
    "impossible": (impossible, State.FAILED),
    "bad manifest": (bad_manifest, State.FAILED),
}


def undisturbed(make_platform: Callable[..., Platform], job: str) -> tuple[Platform, dict[str, tuple[int, int]]]:
    """One run without a kill, and the calls that each task made."""
    platform = make_platform()
    JOBS[job][0](platform)
    ranges = {}
    for task_id in ORDER:
        before = platform.blade.calls
        platform.run(task_id)
        ranges[task_id] = (before, platform.blade.calls)
    assert platform.job.state is JOBS[job][1], platform.errors
    assert facts(platform)["left"] == facts(platform)["granted"] == []
    return platform, ranges


CASES = [("completes", task) for task in ORDER]
CASES += [(job, task) for job in JOBS if job != "completes" for task in ("admit", "train", "release")]


@pytest.mark.parametrize(("job", "task_id"), CASES)
def test_one_kill_after_any_call_changes_nothing(
    make_platform: Callable[..., Platform], job: str, task_id: str
) -> None:
    plain, ranges = undisturbed(make_platform, job)
    expected = facts(plain)
    begin, end = ranges[task_id]
    for n in range(begin + 1, end + 1):
        platform = make_platform()
        JOBS[job][0](platform)
        platform.blade.falls_after = n
        platform.run_all()
        where = f"killed after call {n - begin} of {task_id}: {platform.blade.log[n - 1]}"
        assert platform.kills == 1, where
        assert facts(platform) == expected, where


@pytest.mark.parametrize("job", JOBS)
def test_a_job_whose_every_process_is_killed_later_than_the_one_before_still_ends_the_same(
    make_platform: Callable[..., Platform], job: str
) -> None:
    plain, ranges = undisturbed(make_platform, job)
    platform = make_platform()
    JOBS[job][0](platform)
    platform.max_tries = 1000
    platform.dies_later_each_time = True
    platform.run_all()
    assert platform.kills > sum(end > begin for begin, end in ranges.values())
    assert facts(platform) == facts(plain)
