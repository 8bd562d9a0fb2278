"""Elastic jobs on a real stack: they grow into free devices, shrink for a newcomer, and train every sample once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from elastic_helpers import elastic_job, trained, written
from system_helpers import REPOSITORY, Stack, pretty, running_stack, shell_job, until

from updraft.ledger import Ledger
from updraft.lifecycle.workflow import SIZES_DAG

pytestmark = [pytest.mark.system, pytest.mark.turn(1), pytest.mark.timeout(900)]
JOBS = REPOSITORY / "jobs"
GPUS = 4
EPOCHS = 200
SAMPLES = 300_000


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    variables = {"UPDRAFT_RESIZE_MINUTES": "0.1"}
    with running_stack("elastic", variables, gpus=GPUS) as running:
        yield running


def sizes_of(stack: Stack, job: str) -> list[int]:
    attempts = stack.client.attempts(job).attempts
    return [a.learners for a in attempts if a.role == "train"]


def test_a_job_grows_and_shrinks_for_a_newcomer(stack: Stack, tmp_path: Path) -> None:
    manifest = elastic_job("stretchy", SAMPLES, {"cpus": 0.1, "memory": "128MiB", "gpus": 1})
    job = stack.submit(manifest, written(tmp_path, "stretchy"))
    until(lambda: sizes_of(stack, job)[-1:] == [4], "it never had all devices")
    stack.reach(job, "PROCESSING")
    fixed = shell_job("newcomer", "sleep 15", resources={"cpus": 0.1, "memory": "64MiB", "gpus": 2, "learners": 1})
    newcomer = stack.end(stack.submit(fixed, tmp_path))
    assert newcomer.state == "COMPLETED", pretty(newcomer)
    ended = stack.end(job)
    assert ended.state == "COMPLETED", pretty(ended)
    sizes = sizes_of(stack, job)
    assert sizes[:3] == [2, 4, 2], sizes  # begins with twice its fewest, grows, shrinks for the newcomer
    told = [(t.state, t.reason) for t in stack.client.transitions(job).transitions]
    resized = [reason for state, reason in told if state == "RESIZING"]
    assert any("makes room for newcomer" in reason for reason in resized), told
    assert not [state for state, _ in told if state == "RECOVERING"], told
    attempts = [a for a in stack.client.attempts(job).attempts if a.role == "train"]
    assert {a.label for a in attempts[:-1]} == {"grant.resized"}
    assert all(a.resume for a in attempts[1:])
    result = trained(stack.client.download(job, "results", tmp_path / "results"))
    assert result["samples"] >= SAMPLES
    assert [size for size, _, _ in result["sizes"]] == sizes
    assert all(scale == batch / 32 for _, batch, scale in result["sizes"])
    held = Ledger(f"sqlite:///{stack.home / 'ledger.db'}").queue.used(datetime(2020, 1, 1, tzinfo=UTC))
    for at in sorted({use.granted_at for use in held}):
        now = [use for use in held if use.granted_at <= at and (use.released_at is None or use.released_at > at)]
        assert sum(use.learners * use.gpus for use in now) <= GPUS, (at, now)
    rounds_are_explained(stack, job, sizes)


def rounds_are_explained(stack: Stack, job: str, sizes: list[int]) -> None:
    """The rounds say what changed, why, what it should bring and what it brought; the DAG has reported them."""
    rounds = stack.client.sizes().rounds
    changes = [change for each in reversed(rounds) for change in each.changes if change.job == job]
    assert [change.after for change in changes][: len(sizes)] == sizes
    assert [change.before for change in changes][: len(sizes)] == [0, *sizes[:-1]]
    assert not any(change.waits for change in changes)
    resized = [change for change in changes[1:] if change.gained is not None]
    assert resized, changes
    for change in resized:
        assert change.expected is not None
        assert 0.4 < change.gained / change.expected < 1.6, change
        assert change.pause_seconds, change
    path = f"/api/v2/dags/{SIZES_DAG}/dagRuns"
    until(lambda: reported(stack.client.http.json("GET", path, params={})) >= len(rounds), "no run tells of a round")
    run = stack.client.http.json("GET", path, params={"state": "success"})["dag_runs"][0]["dag_run_id"]
    told = stack.client.http.json("GET", f"{path}/{run}/taskInstances/report/xcomEntries/return_value", params={})
    assert job in str(told["value"]), told


def reported(answer: dict[str, Any]) -> int:
    return sum(run["state"] == "success" for run in answer["dag_runs"])


def test_a_model_trained_with_changing_sizes_is_as_good(stack: Stack, tmp_path: Path) -> None:
    """The example, with real PyTorch and real samples: once while its size changes, once with a fixed size."""
    raw: dict[str, Any] = yaml.safe_load((JOBS / "digits-elastic" / "manifest.yaml").read_text())
    raw["resources"] = {"cpus": 0.4, "memory": "1536MiB"}
    raw["params"]["epochs"] = EPOCHS
    fixed = {**raw, "name": "digits-fixed"}
    del fixed["elastic"], fixed["export"]
    changing = stack.submit(raw, JOBS / "digits-elastic")
    until(lambda: any(size.step_seconds for size in stack.client.job(changing).sizes), "it never reported a step")
    newcomer = shell_job("comes", "sleep 5", resources={"cpus": 1.5, "memory": "64MiB"})  # it cannot have two learners
    assert stack.end(stack.submit(newcomer, tmp_path)).state == "COMPLETED"
    ended = stack.end(changing)
    assert ended.state == "COMPLETED", pretty(ended)
    assert len(set(sizes_of(stack, changing))) > 1
    alone = stack.end(stack.submit(fixed, JOBS / "digits-elastic"))
    assert alone.state == "COMPLETED", pretty(alone)
    assert ended.metrics["val_accuracy"] > alone.metrics["val_accuracy"] - 0.02, (ended.metrics, alone.metrics)
    assert ended.metrics["val_loss"] < alone.metrics["val_loss"] + 0.05, (ended.metrics, alone.metrics)
    detail = stack.client.job(changing)
    assert detail.gradient_noise, pretty(detail)
    assert all(size.batch for size in detail.sizes)
