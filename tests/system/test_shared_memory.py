"""A job with `strategy: shared_memory` ends COMPLETED through kills of its pod, a halt, and kills of a learner and of
the server; and two lines of `task: text-classification` become a model."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from system_helpers import REPOSITORY, Stack, kill_after_a_checkpoint, pretty, running_stack, until

pytestmark = [pytest.mark.system, pytest.mark.turn(1), pytest.mark.timeout(900)]
FOLDER = REPOSITORY / "jobs" / "digits-shared"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack("shared-memory", {}) as running:
        yield running


def parts_of(job: str) -> list[psutil.Process]:
    """The server and the learners of the job, in this order; they are forked from one helper process."""
    found: dict[int, list[psutil.Process]] = {}
    for process in psutil.process_iter(["cmdline", "environ", "ppid", "create_time"]):
        if (process.info["environ"] or {}).get("TRAINING_ID") == job and "forkserver" in str(process.info["cmdline"]):
            found.setdefault(process.info["ppid"], []).append(process)
    helpers = {process.pid for processes in found.values() for process in processes}
    parts = [process for parent, processes in found.items() if parent in helpers for process in processes]
    return sorted(parts, key=lambda process: process.info["create_time"])


def test_a_job_goes_on_through_kills_of_its_pod_and_of_its_parts_and_a_halt(stack: Stack) -> None:
    manifest: dict[str, Any] = yaml.safe_load((FOLDER / "manifest.yaml").read_text())
    manifest["params"]["epochs"] = 150
    manifest["checkpoints"]["every"] = "5s"
    job = stack.submit(manifest, base=FOLDER)
    kill_after_a_checkpoint(stack, job)
    until(lambda: "resumed after step" in stack.log(job), "it never went on from its checkpoint")
    stack.client.halt(job)
    stack.reach(job, "HALTED")
    assert not parts_of(job)
    stack.client.resume(job)
    until(lambda: len(parts_of(job)) == 3, "the server and two learners never ran after the halt")
    server, learner, _ = parts_of(job)
    server.kill()
    learner.kill()
    assert stack.client.job(job).strategy == "2 learners share the memory of one pod"
    detail = stack.end(job)
    assert detail.state == "COMPLETED", pretty(detail)
    attempts = [attempt for attempt in stack.client.attempts(job).attempts if attempt.role == "train"]
    assert len(attempts) == 3
    assert all(attempt.resume is not None for attempt in attempts[1:])
    told = re.findall(r"Trained\(.*\)", stack.log(job))
    assert len(told) == 1, told
    assert "'server 0': 1" in told[0]
    assert re.search(r"'learner [01]': 1", told[0]), told
    assert detail.metrics["val_accuracy"] > 0.9
    logged = stack.client.metrics(job).last
    assert {f"process_{n}/{name}" for n in (0, 1) for name in ("loss", "steps_per_second", "skipped")} <= set(logged)
    shown = stack.run("show", job)
    assert "2 learners share the memory of one pod" in shown.stdout


def test_two_lines_become_a_registered_model(stack: Stack, tmp_path: Path) -> None:
    submitted = stack.run("submit", str(REPOSITORY / "jobs" / "messages"), "--json")
    assert submitted.returncode == 0, submitted.stderr
    detail = stack.end(json.loads(submitted.stdout)["id"])
    assert detail.state == "COMPLETED", pretty(detail)
    assert detail.model is not None
    assert (detail.model.name, detail.model.alias) == ("messages", "champion")
    assert detail.metrics["val_accuracy"] > 0.9 > detail.metrics["val_accuracy_of_commonest"]
    assert any(path.suffix == ".onnx" for path in stack.client.download(detail.id, "model", tmp_path))


def test_wrong_data_is_answered_in_the_words_of_its_file(stack: Stack, tmp_path: Path) -> None:
    shutil.copyfile(FOLDER / "digits.suite.json", tmp_path / "reviews.jsonl")
    job = stack.submit({"data": "reviews.jsonl", "task": "text-classification"}, base=tmp_path)
    detail = stack.end(job)
    assert detail.state == "FAILED", pretty(detail)
    assert "The data cannot be used: reviews.jsonl, line 1: this is not JSON" in stack.log(job)
    assert "The data cannot be used" in detail.reason
    assert len([attempt for attempt in stack.client.attempts(job).attempts if attempt.role == "train"]) == 1
