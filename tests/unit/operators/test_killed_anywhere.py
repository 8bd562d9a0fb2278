"""A process that dies after any of its effects and is started again leaves what one run would have left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from ledger_helpers import add_job, grants
from unit.operators.airflow_fakes import ORDER, Platform, until

from updraft.controller.idempotency import DECISION, FAILURE, MODEL_VERSION, PROMOTION
from updraft.lifecycle import State
from updraft.lifecycle.idempotency import IdempotencyKey
from updraft_learner.contract import Keys


def facts(platform: Platform) -> dict[str, object]:
    """Everything that a second run could have doubled, lost or told otherwise."""
    job, ledger, mlflow, cluster = platform.job, platform.ledger, platform.mlflow, platform.cluster
    keys: tuple[IdempotencyKey[Any], ...] = (FAILURE, MODEL_VERSION, PROMOTION, DECISION)
    checkpoints = ledger.checkpoints.of_job(job.id, with_deleted=True)
    return {
        "tasks": dict(platform.states),
        "transitions": [(t.from_state, t.to_state, t.reason) for t in ledger.jobs.transitions(job.id)],
        "verdict": job.verdict,
        "attempts": [(a.role, a.number, a.outcome, a.reason, a.evidence) for a in ledger.attempts.of_job(job.id)],
        "granted": [(g.request.job_id, g.request.learners) for g in grants(ledger)],
        "records": {key.name: ledger.idempotency.get(job.id, key) for key in keys},
        "runs": [(r.info.status, r.data.params, r.data.tags) for r in mlflow.runs.values()],
        "endings": mlflow.endings,
        "files": mlflow.files,
        "inputs": mlflow.inputs,
        "outputs": [[o.model_id for o in r.outputs.model_outputs] for r in mlflow.runs.values()],
        "models": [(m.name, str(m.status)) for m in mlflow.models.values()],
        "versions": [(v.name, v.version, v.tags_set) for v in mlflow.versions],
        "alias": (mlflow.aliases, mlflow.alias_moves),
        "series": [replace(each, at=datetime.min) for each in ledger.series.of_series(job.tenant, job.name)],
        "created": Counter(cluster.created),
        "left": cluster.left,
        "checkpoints": [(c.name, c.delete_reason) for c in checkpoints],
        "stored": sorted(item.key for item in platform.store.list("")),
    }


def champion_before(platform: Platform) -> None:
    """Another job's version holds the alias."""
    mlflow = platform.mlflow
    run = mlflow.create_run(mlflow.create_experiment("older"), tags={}, run_name="older")
    mlflow.runs[run.info.run_id].data.metrics["acc"] = 0.5
    mlflow.registered["digits"] = {"updraft.tenant": "default"}
    mlflow.create_model_version("digits", source="x", run_id=run.info.run_id, model_id=None)
    mlflow.aliases["digits", "champion"] = "1"


def program_fails(platform: Platform) -> None:
    platform.pods_end = Platform.pods_fail


def cancelled_while_training(platform: Platform) -> None:
    def cancel(platform: Platform, job_id: str) -> dict[str, object]:
        platform.ledger.requests.make(job_id, "cancel", "bob")
        for name in platform.cluster.pods:
            platform.cluster.set_status(name)
        return {"kind": "cancelled", "reason": "cancelled by bob", "tails": {}}

    platform.pods_end = cancel


def impossible(platform: Platform) -> None:
    platform.cluster.cpus = "100m"


def data_not_judged(platform: Platform) -> None:
    """A pod judges it before the training."""
    from updraft.ledger.tables import validations

    with platform.ledger._engine.begin() as connection:
        connection.execute(validations.delete())


def bad_manifest(platform: Platform) -> None:
    platform.params["manifest"]["comand"] = "python"


def waits_for_approval(platform: Platform) -> None:
    champion_before(platform)
    platform.params["manifest"]["export"]["approval"] = "required"


def judged_by_a_gate(platform: Platform) -> None:
    """The champion's job is another one of the tenant, whose results are there."""
    champion_before(platform)
    platform.mlflow.versions[0].tags["updraft.job_id"] = "older-1"
    add_job(platform.ledger, "older-1")
    platform.store.put_bytes(f"{Keys('default').results('older-1', 'train', 1)}/model/w.bin", b"w")
    platform.params["manifest"]["export"]["gate"] = {"metric": "accuracy", "margin": 0.0}


JOBS = {
    "completes": (champion_before, State.COMPLETED),
    "program fails": (program_fails, State.FAILED),
    "cancelled": (cancelled_while_training, State.CANCELLED),
    "impossible": (impossible, State.FAILED),
    "data is judged": (data_not_judged, State.COMPLETED),
    "bad manifest": (bad_manifest, State.FAILED),
    "waits for approval": (waits_for_approval, State.COMPLETED),
    "judged by a gate": (judged_by_a_gate, State.COMPLETED),
}


CASES = [("completes", task) for task in ORDER]
CASES += [(job, task) for job in JOBS if job != "completes" for task in ("admit", "train", "release")]
CASES += [("waits for approval", "promote"), ("judged by a gate", "promote")]
CASES += [("data is judged", task) for task in ("stage_data", "validate_data")]


@pytest.mark.parametrize(("job", "task_id"), CASES)
def test_one_kill_after_any_effect_of_a_task_changes_nothing(
    make_platform: Callable[..., Platform], job: str, task_id: str
) -> None:
    before = make_platform()
    JOBS[job][0](before)
    until(before, task_id)
    plain = make_platform(before)
    with plain.watched_calls():
        plain.run(task_id)
    expected = facts(plain)
    for n in plain.blade.deaths:
        platform = make_platform(before)
        platform.blade.falls_after = n
        platform.run(task_id)
        where = f"killed after call {n} of {task_id}: {platform.blade.log[n - 1]}"
        assert platform.kills == 1, where
        assert facts(platform) == expected, where


@pytest.mark.parametrize("job", JOBS)
def test_a_job_whose_every_process_is_killed_later_than_the_one_before_ends_the_same(
    make_platform: Callable[..., Platform], job: str
) -> None:
    plain = make_platform()
    JOBS[job][0](plain)
    plain.run_all()
    assert (plain.job.state, plain.cluster.left, grants(plain.ledger)) == (JOBS[job][1], [], []), plain.errors
    platform = make_platform()
    JOBS[job][0](platform)
    platform.max_tries = 1000
    platform.dies_later_each_time = True
    platform.run_all()
    assert platform.kills > 5
    assert facts(platform) == facts(plain)
