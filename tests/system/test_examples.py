"""The example jobs end COMPLETED through the same DAG, on real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from system_helpers import REPOSITORY, Stack, on_demand_examples, pretty

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]
JOBS = REPOSITORY / "jobs"
# Those of frameworks whose images are built on demand have tests in test_frameworks.py.
EXAMPLES = sorted({path.parent.name for path in JOBS.glob("*/manifest.yaml")} - set(on_demand_examples()))
SHORT = {"digits-cnn": {"epochs": 6}, "digits-ddp": {"epochs": 3}}


def manifest(name: str) -> dict[str, Any]:
    raw: dict[str, Any] = yaml.safe_load((JOBS / name / "manifest.yaml").read_text())
    if name in SHORT:
        raw["params"].update(SHORT[name])
    return raw


@pytest.fixture(scope="module")
def jobs(stack: Stack) -> dict[str, str]:
    """All examples are submitted at once: they queue for two CPUs."""
    return {name: stack.submit(manifest(name), base=JOBS / name) for name in EXAMPLES}


def completed(stack: Stack, job_id: str) -> Any:
    detail = stack.end(job_id)
    assert detail.state == "COMPLETED", pretty(detail)
    return detail


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_completes_after_up_alone(stack: Stack, jobs: dict[str, str], name: str) -> None:
    """Nobody has put their data into the store but `up` itself."""
    completed(stack, jobs[name])


def test_the_cnn_becomes_a_registered_and_promoted_model(stack: Stack, jobs: dict[str, str], tmp_path: Path) -> None:
    detail = completed(stack, jobs["digits-cnn"])
    assert detail.model is not None
    assert detail.model.name == "digits-cnn"
    assert "val_accuracy" in detail.metrics
    in_mlflow = set(stack.client.metrics(jobs["digits-cnn"]).last)
    assert {"loss", "val_accuracy", "test_accuracy", "system/node_0/cpu_utilization_percentage"} <= in_mlflow
    assert stack.client.checkpoints(jobs["digits-cnn"]).checkpoints
    files = stack.client.download(jobs["digits-cnn"], "model", tmp_path)
    assert any(f.suffix == ".onnx" for f in files), files
    states = stack.transitions(jobs["digits-cnn"])
    assert states[0] == "PENDING"
    assert states[-2:] == ["STORING", "COMPLETED"]


def test_two_learners_train_one_model(stack: Stack, jobs: dict[str, str], tmp_path: Path) -> None:
    completed(stack, jobs["digits-ddp"])
    files = stack.client.download(jobs["digits-ddp"], "results", tmp_path)
    digests = [f.read_text().split()[0] for f in files if f.name == "params.sha256"]
    assert len(digests) == 2, files
    assert len(set(digests)) == 1


def test_autolog_lands_in_the_jobs_own_run(stack: Stack, jobs: dict[str, str]) -> None:
    detail = completed(stack, jobs["digits-sklearn"])
    assert any(name.startswith("training_") for name in detail.metrics), detail.metrics


def test_a_program_without_python_has_metrics_checkpoints_and_results(
    stack: Stack, jobs: dict[str, str], tmp_path: Path
) -> None:
    detail = completed(stack, jobs["shell-hello"])
    assert detail.metrics
    assert stack.client.checkpoints(jobs["shell-hello"]).checkpoints
    assert stack.client.download(jobs["shell-hello"], "results", tmp_path)


def test_an_ffdl_manifest_runs_as_its_users_wrote_it(stack: Stack, jobs: dict[str, str]) -> None:
    detail = completed(stack, jobs["ffdl-digits"])
    assert detail.metrics["test/accuracy"] > 0.8
    history = stack.client.metrics(jobs["ffdl-digits"], "test/loss").history["test/loss"]
    assert [point.step for point in history] == list(range(1, 21))


def test_a_manifest_in_jobs_has_a_dag_whose_form_starts_it(stack: Stack) -> None:
    """As the button of Airflow's page does it: no manifest is sent, the DAG's own is used, one value is changed."""
    run = stack.client.http.json(
        "POST",
        "/api/v2/dags/job_shell_hello/dagRuns",
        body={"logical_date": None, "conf": {"resources_cpus": 0.25}},
    )
    job_id = stack.job_of("job_shell_hello", run["dag_run_id"])
    assert completed(stack, job_id).name == "shell-hello"
