"""The gate of a manifest: the champion is evaluated on the job's data and compared, whatever happens meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from ledger_helpers import add_job
from unit.operators.airflow_fakes import APPROVED, BETTER, Platform, until
from unit.operators.platform_fakes import store_done

from updraft.controller.idempotency import PROMOTION, Promotion
from updraft.lifecycle import State
from updraft.lifecycle.workflow import champion_role
from updraft_data.gate import CompareRequest, Comparison, Score
from updraft_learner.contract import Keys

Make = Callable[..., Platform]
GATE = {"metric": "accuracy", "margin": 0.0}
EXPORT = {"register_as": "digits", "gate": GATE}
EVALUATE = {"command": "python evaluate.py"}
WORSE = Comparison(overall=Score(rows=100, challenger=0.7, champion=0.8, better=-0.1, low=-0.18, high=-0.02))


def champion(platform: Platform, job_id: str | None = "other-1") -> str:
    """A job of the series makes the champion; returns its version."""
    mlflow = platform.mlflow
    run = mlflow.create_run(mlflow.experiments["digits"], tags={}, run_name="other")
    tags = {} if job_id is None else {"updraft.job_id": job_id}
    made = mlflow.create_model_version("digits", source="x", run_id=run.info.run_id, model_id=None, tags=tags)
    mlflow.aliases["digits", "champion"] = made.version
    return str(made.version)


def other_job(platform: Platform, job_id: str = "other-1", *, results: bool = True) -> None:
    """A job of the same tenant that has ended."""
    add_job(platform.ledger, job_id, manifest=platform.job.manifest)
    if results:
        platform.store.put_bytes(f"{Keys('default').results(job_id, 'train', 1)}/model/w.bin", b"w")


def outcome(platform: Platform) -> Promotion:
    found = platform.ledger.idempotency.get(platform.job.id, PROMOTION)
    assert found is not None, platform.errors
    return found


def roles(platform: Platform) -> list[str]:
    return [a.role for a in platform.ledger.attempts.of_job(platform.job.id)][2:]  # after train and evaluate


def request(platform: Platform, role: str) -> CompareRequest:
    attempt = platform.ledger.attempts.current(platform.job.id, role)
    assert attempt is not None
    text = platform.store.get_bytes(Keys("default").compare_request(platform.job.id, role, attempt.number))
    assert text is not None
    return CompareRequest.model_validate_json(text)


def test_the_first_version_is_compared_with_nothing(make_platform: Make) -> None:
    platform = make_platform(export={**EXPORT, "gate": {"metric": "accuracy", "threshold": 0.85}}, evaluate=EVALUATE)
    platform.compares = lambda role: Comparison(overall=Score(rows=100, challenger=0.9))
    platform.run_all()
    assert platform.job.state is State.COMPLETED, platform.errors
    assert roles(platform) == ["export", "compare-0"]
    assert request(platform, "compare-0").champion is None
    assert outcome(platform) == Promotion(True, "accuracy: accuracy 0.9, at least 0.85 is asked", "champion")


def test_the_champion_is_evaluated_on_the_same_data_and_beaten(make_platform: Make) -> None:
    platform = until(make_platform(export=EXPORT, evaluate=EVALUATE), "promote")
    other_job(platform)
    version = champion(platform)
    platform.run("promote")
    assert outcome(platform).promoted, outcome(platform)
    assert "better than version 2 by 0.1" in outcome(platform).reason
    assert roles(platform) == ["export", f"champion-{version}", f"compare-{version}"]
    assert request(platform, f"compare-{version}").problem is None
    mlflow = platform.mlflow
    run_id = platform.job.mlflow_run_id
    assert mlflow.files[run_id, "gate/report.html"] == "<p>report</p>"
    assert mlflow.versions[0].tags_set["updraft.gate"].startswith("passed: champion: better")
    assert (
        mlflow.versions[0]
        .tags_set["updraft.gate_report"]
        .endswith(f"/runs/{run_id}/artifacts/gate/report.html?workflowType=machine_learning")
    )


def test_a_champion_that_is_better_stays(make_platform: Make) -> None:
    platform = until(make_platform(export=EXPORT, evaluate=EVALUATE), "promote")
    other_job(platform)
    champion(platform)
    platform.compares = lambda role: WORSE
    platform.run("promote")
    platform.run("release")
    assert platform.job.state is State.COMPLETED
    assert not outcome(platform).promoted
    assert (
        "worse than version 2 by 0.1 (95% interval of the difference -0.18 to -0.02, 100 rows, margin +0)"
        in outcome(platform).reason
    )
    assert platform.mlflow.alias_moves == []


def test_an_evaluation_that_fails_on_the_champion_is_an_outcome(make_platform: Make) -> None:
    platform = until(make_platform(export=EXPORT, evaluate=EVALUATE), "promote")
    other_job(platform)
    version = champion(platform)
    succeed = platform.pods_end

    def champion_fails(platform: Platform, job_id: str) -> dict[str, Any]:
        if platform.watched[-1][0] != champion_role(version):
            return succeed(platform, job_id)
        return platform.pods_fail(job_id)

    platform.pods_end = champion_fails
    platform.compares = lambda role: Comparison(
        problem=request(platform, role).problem, overall=Score(rows=100, challenger=0.9)
    )
    assert platform.run("promote") == "success"
    platform.run("release")
    assert platform.job.state is State.COMPLETED, platform.job.reason
    assert not outcome(platform).promoted
    assert outcome(platform).reason.startswith(
        f"champion: cannot be compared with version {version}: this job's evaluate failed on it: "
    )


@pytest.mark.parametrize(
    ("made_by", "results", "problem"),
    [
        (None, True, "no job of this platform made it"),
        ("gone-1", True, "no job of this platform made it"),
        ("other-1", False, "the results of job other-1, which made it, are no longer stored"),
    ],
)
def test_a_champion_that_is_gone_is_an_outcome(
    make_platform: Make, made_by: str | None, results: bool, problem: str
) -> None:
    platform = until(make_platform(export=EXPORT, evaluate=EVALUATE), "promote")
    other_job(platform, results=results)
    version = champion(platform, made_by)
    platform.compares = lambda role: Comparison(problem=request(platform, role).problem)
    platform.run("promote")
    assert not outcome(platform).promoted
    assert outcome(platform).reason == f"champion: cannot be compared with version {version}: {problem}"


def test_another_tenants_job_is_no_champions_job(make_platform: Make) -> None:
    platform = until(make_platform(export=EXPORT, evaluate=EVALUATE), "promote")
    add_job(platform.ledger, "theirs-1", tenant="others")
    champion(platform, "theirs-1")
    platform.compares = lambda role: Comparison(problem=request(platform, role).problem)
    platform.run("promote")
    assert "no job of this platform made it" in outcome(platform).reason


def test_a_version_is_compared_again_with_the_champion_of_the_approval(make_platform: Make) -> None:
    export = {**EXPORT, "approval": "required"}
    platform = until(make_platform(export=export, evaluate=EVALUATE), "promote")
    other_job(platform)
    champion(platform)

    def another_meanwhile(platform: Platform) -> dict[str, Any]:
        assert not platform.ledger.queue.holds(platform.job.id)  # it holds nothing while it waits
        other_job(platform, "other-2")
        champion(platform, "other-2")
        platform.compares = lambda role: WORSE
        return APPROVED

    platform.answers = another_meanwhile
    assert platform.run("promote") == "success", platform.errors
    assert "/artifacts/gate/report.html" in platform.asked[0].body
    assert roles(platform) == ["export", "champion-2", "compare-2", "champion-3", "compare-3"]
    assert not outcome(platform).promoted
    assert outcome(platform).reason.startswith(
        "was approved by grace: looks good; champion: worse than version 3 by 0.1"
    )
    assert platform.run("release") == "success"
    assert platform.job.state is State.COMPLETED
    assert not platform.ledger.queue.holds(platform.job.id)


def test_a_champion_that_changes_during_the_comparison_is_compared_too(make_platform: Make) -> None:
    platform = until(make_platform(export=EXPORT, evaluate=EVALUATE), "promote")
    other_job(platform)
    champion(platform)
    changed: list[str] = []

    def change_once(role: str) -> Comparison:
        if not changed:
            changed.append(role)
            other_job(platform, "other-2")
            champion(platform, "other-2")
        return BETTER

    platform.compares = change_once
    assert platform.run("promote") == "success", platform.errors
    assert roles(platform) == ["export", "champion-2", "compare-2", "champion-3", "compare-3"]
    assert platform.mlflow.alias_moves == ["1"]


def test_the_champions_evaluation_logs_to_a_run_of_its_own(make_platform: Make) -> None:
    platform = until(make_platform(export=EXPORT, evaluate=EVALUATE), "promote")
    other_job(platform)
    version = champion(platform)
    seen: dict[str, Any] = {}
    succeed = platform.pods_end

    def look(platform: Platform, job_id: str) -> dict[str, Any]:
        for pod in platform.cluster.pods.values():
            seen[platform.watched[-1][0]] = pod
        return succeed(platform, job_id)

    platform.pods_end = look
    platform.run("promote")
    text = json.dumps(seen[champion_role(version)])
    child = next(run for run in platform.mlflow.runs.values() if "updraft.champion" in run.data.tags)
    assert child.data.tags["mlflow.parentRunId"] == platform.job.mlflow_run_id
    assert f'"name": "MLFLOW_RUN_ID", "value": "{child.info.run_id}"' in text
    assert '\\"results_job\\": \\"other-1\\"' in text


def test_a_comparison_that_cannot_be_read_ends_the_job(make_platform: Make) -> None:
    platform = until(make_platform(export=EXPORT, evaluate=EVALUATE), "promote")
    other_job(platform)
    version = champion(platform)
    succeed = platform.pods_end

    def leaves_nothing(platform: Platform, job_id: str) -> dict[str, Any]:
        role, attempt = platform.watched[-1]
        if role.startswith("champion"):
            return succeed(platform, job_id)
        for name in platform.cluster.pods:
            platform.cluster.set_status(name, exit_code=0)
        store_done(platform.store, job_id, role, attempt, 1)
        return {"kind": "ended", "reason": "all pods have ended", "tails": {}}

    platform.pods_end = leaves_nothing
    assert platform.run("promote") == "failed"
    assert platform.errors["promote"] == f"compare-{version}: its pod left no comparison.json; submit the job again"
