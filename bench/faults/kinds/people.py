"""What people do to a job: halt, resume and cancel it, and what Airflow's pages let them do to its run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.stack import BenchmarkError

from faults import witness
from faults.kinds.base import Kind, Rule, Scene, TooLateError, any_time, before_its_end, good_shape
from updraft.exceptions import RefusedError, UnavailableError, UpdraftError
from updraft.schemas import API_PREFIX

HALT_SECONDS = 120.0
OBEYED_SECONDS = 20.0  # a request is seen within some seconds, on a busy machine too
PAUSE_SECONDS = (2.0, 10.0)
TRIES = 20
DELETE_SECONDS = 120.0
TOLD_SECONDS = 75.0
WHILE_TRAINING = ("PROCESSING", "RECOVERING")


def _patient(call: Callable[[], Any]) -> Any:
    """Call again while the page does not load, as a user does."""
    for _ in range(TRIES):
        try:
            return call()
        except UnavailableError as exc:
            problem = exc
            time.sleep(3)
    raise BenchmarkError(f"nobody could ask for it: {problem}")


def _ask(scene: Scene, verb: str) -> None:
    path = f"{API_PREFIX}/jobs/{scene.target.id}/{verb}"
    scene.notes[verb] = _patient(lambda: scene.lab.client.http.json("POST", path))


def _cancel(scene: Scene) -> None:
    scene.notes["cancel"] = _patient(lambda: scene.lab.client.cancel(scene.target.id))


def ask_to_halt(scene: Scene) -> None:
    _ask(scene, "halt")


def halt(scene: Scene) -> None:
    asked = time.time()
    ask_to_halt(scene)
    deadline = time.monotonic() + HALT_SECONDS * max(1.0, scene.lab.scale)
    while (state := state_of(scene)) != "HALTED":
        if state == "COMPLETED" and _left_by_itself(scene, asked):
            raise TooLateError(f"{scene.target.id} came to its own end before it could be halted")
        if time.monotonic() > deadline or state in ("COMPLETED", "FAILED", "CANCELLED"):
            raise BenchmarkError(f"{scene.target.id} was asked to halt and is {state}")
        time.sleep(0.2)
    scene.notes["halted_after_seconds"] = round(time.time() - asked, 1)
    time.sleep(scene.rng.uniform(*PAUSE_SECONDS))
    scene.notes["while_halted"] = _while_halted(scene)


def _left_by_itself(scene: Scene, asked: float) -> bool:
    """Return whether the last program ended well so soon after the request that nobody was late."""
    ends = [s.last_at for s in witness.read(scene.witness_of(scene.target)) if s.exit_code == 0]
    return bool(ends) and max(ends) < asked + OBEYED_SECONDS


def _while_halted(scene: Scene) -> dict[str, Any]:
    """Return what a halted job shows: it must hold nothing at once, and MLflow must say so soon."""
    found: dict[str, Any] = {
        "processes": len(scene.lab.processes(scene.target.id)),
        "granted": scene.lab.granted(scene.target.id),
        "mlflow": _mlflow_status(scene),
    }
    asked = time.monotonic()
    while found["mlflow"] not in (None, "KILLED") and time.monotonic() < asked + TOLD_SECONDS:
        time.sleep(1.0)
        found["mlflow"] = _mlflow_status(scene)
        found["mlflow_waited_seconds"] = round(time.monotonic() - asked, 1)
    return found


def _mlflow_status(scene: Scene) -> str | None:
    job = scene.lab.job(scene.target.id)
    if job is None or not job.mlflow_run_id:
        return None
    return str(scene.lab.mlflow("runs/get", run_id=job.mlflow_run_id)["run"]["info"]["status"])


def resume(scene: Scene) -> None:
    _ask(scene, "resume")


def state_of(scene: Scene) -> str:
    try:
        job = scene.lab.job(scene.target.id)
    except UpdraftError:
        return ""
    return "" if job is None else str(job.state)


def _airflow(method: str, path: str, body: dict[str, Any] | None = None) -> Callable[[Scene], None]:
    def inject(scene: Scene) -> None:
        filled = None if body is None else {k: scene.target.id if v == "RUN" else v for k, v in body.items()}
        _patient(lambda: scene.lab.airflow(method, path.format(run=scene.target.id), filled))

    return inject


def _delete_run(scene: Scene) -> None:
    """Delete the run. Airflow deletes no run that is running: it is marked failed, and deleted as soon as Airflow
    allows."""
    run = f"/dagRuns/{scene.target.id}"
    _patient(lambda: scene.lab.airflow("PATCH", run, {"state": "failed"}))
    asked = time.monotonic()
    deadline = asked + DELETE_SECONDS
    while True:
        try:
            _patient(lambda: scene.lab.airflow("DELETE", run))
            scene.notes["deleted_after_seconds"] = round(time.monotonic() - asked, 1)
            return
        except RefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


_CLEAR_TASK = {
    "dry_run": False,
    "only_failed": False,
    "task_ids": ["train"],
    "dag_run_id": "RUN",
    "include_downstream": False,
}
_OVERRIDDEN = Rule(also=frozenset({"FAILED", "CANCELLED"}), airflow_may_differ=True)
_GONE = Rule(also=frozenset({"FAILED", "CANCELLED"}), run_may_be_gone=True, airflow_may_differ=True)

_KINDS = (
    Kind(
        "halt_resume",
        "The job is halted and, some seconds later, resumed",
        "job",
        halt,
        resume,
        shape=good_shape,
        moment=before_its_end,
        special=True,
        aims=("QUEUED", "DEPLOYING", "DOWNLOADING", "PROCESSING", "RECOVERING"),
    ),
    Kind(
        "cancel",
        "The job is cancelled",
        "job",
        _cancel,
        moment=before_its_end,
        rule=lambda _shape: Rule(only=frozenset({"CANCELLED"}), tail_may_be_lost=True),
        special=True,
    ),
    Kind(
        "clear_train_task",
        "A user clears the task `train` in Airflow",
        "job",
        _airflow("POST", "/clearTaskInstances", _CLEAR_TASK),
        rule=lambda _shape: Rule(untouched=True),
        aims=WHILE_TRAINING,
        special=True,
    ),
    Kind(
        "clear_run",
        "A user clears the whole run in Airflow",
        "job",
        _airflow("POST", "/dagRuns/{run}/clear", {"dry_run": False}),
        moment=any_time,
        rule=lambda _shape: Rule(untouched=True),
        special=True,
    ),
    Kind(
        "mark_success",
        "A user marks the task `train` a success while it trains",
        "job",
        _airflow("PATCH", "/dagRuns/{run}/taskInstances/train", {"new_state": "success"}),
        rule=lambda _shape: _OVERRIDDEN,
        aims=WHILE_TRAINING,
        special=True,
    ),
    Kind(
        "mark_failed",
        "A user marks the task `train` failed while it trains",
        "job",
        _airflow("PATCH", "/dagRuns/{run}/taskInstances/train", {"new_state": "failed"}),
        rule=lambda _shape: _OVERRIDDEN,
        aims=WHILE_TRAINING,
        special=True,
    ),
    Kind(
        "run_deleted",
        "A user deletes the run in Airflow",
        "job",
        _delete_run,
        moment=any_time,
        rule=lambda _shape: _GONE,
        special=True,
    ),
)
KINDS = tuple(replace(kind, side="person") for kind in _KINDS)
