"""Submitting to a platform that is busy, that lacks a part, or whose scheduler does nothing: accepted, listed, run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from system_helpers import Stack, pretty, shell_job

pytestmark = [pytest.mark.system, pytest.mark.turn(1), pytest.mark.timeout(900)]

SUBMISSIONS = 20
SUBMIT_SECONDS = 300.0
TINY = {"learners": 1, "cpus": 0.1, "memory": "64MiB"}


@contextmanager
def busy() -> Iterator[None]:
    """Every core of the machine has something to do."""
    spin = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(spin) for _ in range(psutil.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextmanager
def paused(stack: Stack, dag_id: str) -> Iterator[None]:
    stack.client.http.json("PATCH", f"/api/v2/dags/{dag_id}", body={"is_paused": True})
    try:
        yield
    finally:
        stack.client.http.json("PATCH", f"/api/v2/dags/{dag_id}", body={"is_paused": False})


def write(folder: Path, name: str) -> str:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(shell_job(name, "echo hello", resources=TINY)))
    return str(path)


def test_many_submissions_at_once_on_a_busy_machine_are_all_accepted_and_run(stack: Stack, tmp_path: Path) -> None:
    manifest = write(tmp_path, "crowd")
    ids = {f"crowd-{n}" for n in range(1, SUBMISSIONS + 1)}

    def submit(job_id: str) -> subprocess.CompletedProcess[str]:
        return stack.run("submit", "--id", job_id, manifest, timeout_seconds=SUBMIT_SECONDS)

    with busy(), ThreadPoolExecutor(SUBMISSIONS) as pool:
        answers = list(pool.map(submit, sorted(ids)))
    assert [answer.returncode for answer in answers] == [0] * SUBMISSIONS, [answer.stderr for answer in answers]
    assert {job.id for job in stack.client.jobs(name="crowd", limit=100)} == ids
    assert {stack.end(job_id).state for job_id in sorted(ids)} == {"COMPLETED"}


def test_a_job_is_accepted_while_mlflow_does_not_answer_and_runs_when_it_does(stack: Stack, tmp_path: Path) -> None:
    manifest = write(tmp_path, "early")
    with stack.frozen("mlflow"):
        answer = stack.run("submit", "--id", "early-1", manifest)
        assert answer.returncode == 0, answer.stderr
        assert "MLflow does not answer" in answer.stderr
        deadline = time.monotonic() + 90
        while "waiting for MLflow" not in (reason := stack.client.job("early-1").reason):
            assert time.monotonic() < deadline, reason
            time.sleep(1)
        assert "waiting for MLflow" in stack.run("list").stdout
    detail = stack.end("early-1")
    assert detail.state == "COMPLETED", pretty(detail)
    assert detail.links.mlflow_run


def test_a_job_whose_dag_is_paused_is_listed_as_pending_with_the_reason(stack: Stack, tmp_path: Path) -> None:
    manifest = write(tmp_path, "resting")
    with paused(stack, "train_model"):
        assert stack.run("submit", "--id", "resting-1", manifest).returncode == 0
        (job,) = stack.client.jobs(name="resting")
        assert (job.id, job.state, job.tenant) == ("resting-1", "PENDING", "default")
        assert "the DAG train_model is paused" in job.reason
        assert [job.id for job in stack.client.jobs(state="pending")] == ["resting-1"]
        assert "resting-1" in stack.run("list").stdout
        assert "the DAG train_model is paused" in stack.run("show", "resting-1").stdout
        with stack.client.http.download("/updraft/jobs", {}) as page:
            assert "the DAG train_model is paused" in page.read().decode()
        assert "the DAG train_model is paused" in stack.job_page("resting-1")
    detail = stack.end("resting-1")
    assert detail.state == "COMPLETED", pretty(detail)
    assert [found.id for found in stack.client.jobs(name="resting")] == ["resting-1"]


def test_a_job_that_only_airflow_knows_can_be_cancelled(stack: Stack, tmp_path: Path) -> None:
    manifest = write(tmp_path, "unwanted")
    with paused(stack, "train_model"):
        assert stack.run("submit", "--id", "unwanted-1", manifest).returncode == 0
        assert "before its first task started" in stack.client.cancel("unwanted-1")
    detail = stack.end("unwanted-1")
    assert (detail.state, detail.reason) == ("CANCELLED", "The run was ended in Airflow before its first task ran.")
