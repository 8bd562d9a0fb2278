"""Faults of the control plane: each of its processes killed or stopped for a while, and the processes of tasks."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from faults import parts
from faults.kinds.base import Kind, Rule, Scene, TooLateError

PARTS = {
    "triggerer": ("airflow-triggerer", "Airflow's triggerer"),
    "scheduler": ("airflow-scheduler", "Airflow's scheduler, with the tasks that it runs"),
    "api_server": ("airflow-api", "Airflow's api-server"),
    "dag_processor": ("airflow-dag-processor", "Airflow's DAG processor"),
    "mlflow": ("mlflow", "The MLflow server"),
    "s3": ("s3", "The S3 server"),
}
STOPPED = ("triggerer", "scheduler", "api_server", "mlflow", "s3")
TASK_SECONDS = 30.0  # until some task runs
LEAVE_SECONDS = 15.0  # both triggerers run side by side, before the second one leaves


def untouched(_shape: object) -> Rule:
    return Rule(untouched=True)


def without_store(_shape: object) -> Rule:
    return Rule(untouched=True, store_away=True)


def kill(part: str) -> Callable[[Scene], None]:
    def inject(scene: Scene) -> None:
        scene.held = parts.kill(scene.lab.home, part)

    return inject


def serves_again(part: str) -> Callable[[Scene], None]:
    def heal(scene: Scene) -> None:
        served = parts.wait_serves(scene.lab.home, part, since=scene.held)
        scene.notes["serves_after_seconds"] = round(served - scene.held, 1)

    return heal


def stop(part: str) -> Callable[[Scene], None]:
    def inject(scene: Scene) -> None:
        scene.held = parts.stop(scene.lab.home, part)

    return inject


def go_on(part: str) -> Callable[[Scene], None]:
    def heal(scene: Scene) -> None:
        at = time.time()
        parts.go_on(scene.held)
        served = parts.wait_serves(scene.lab.home, part, since=at)
        scene.notes["serves_after_seconds"] = round(served - at, 1)

    return heal


def _second_triggerer(scene: Scene) -> None:
    """The first one stands still for longer than its heartbeat may be away, so that the second takes its triggers."""
    stopped = parts.stop(scene.lab.home, "airflow-triggerer")
    scene.held = (stopped, parts.start_beside(scene.lab.home, "airflow-triggerer"))


def _first_wakes(scene: Scene) -> None:
    stopped, (child, identity) = scene.held
    time.sleep(max(0.0, 60.0 - scene.outage_seconds))  # its heartbeat is missed after 30 s, whatever the scale
    at = time.time()
    parts.go_on(stopped)
    time.sleep(LEAVE_SECONDS)
    parts.end_beside(child, identity)
    served = parts.wait_serves(scene.lab.home, "airflow-triggerer", since=at)
    scene.notes["serves_after_seconds"] = round(served - at, 1)


def _signal_a_task(number: signal.Signals) -> Callable[[Scene], None]:
    def inject(scene: Scene) -> None:
        deadline = time.monotonic() + TASK_SECONDS
        while not (found := parts.tasks(scene.lab.home)):
            if time.monotonic() > deadline:
                raise TooLateError("no task ran, so none could be ended")
            time.sleep(0.02)
        task = scene.rng.choice(sorted(found, key=lambda process: process.pid))
        scene.notes["tasks_running"] = len(found)
        parts.send(task, number)

    return inject


KINDS = (
    *(
        Kind(f"{name}_kill", f"{title} gets SIGKILL", "stack", kill(part), serves_again(part), rule=untouched)
        for name, (part, title) in PARTS.items()
    ),
    *(
        Kind(
            f"{name}_stopped",
            f"{PARTS[name][1]} is stopped (SIGSTOP) for a minute",
            "stack",
            stop(PARTS[name][0]),
            go_on(PARTS[name][0]),
            lasts=True,
            rule=without_store if name == "s3" else untouched,
        )
        for name in STOPPED
    ),
    Kind(
        "second_triggerer",
        "The triggerer is stopped for a minute and a second one takes over; both run for a while, the second leaves",
        "stack",
        _second_triggerer,
        _first_wakes,
        lasts=True,
        rule=untouched,
        special=True,
    ),
    *(
        Kind(name, f"The process of a running task gets {number.name}", "stack", _signal_a_task(number), rule=untouched)
        for name, number in (("worker_kill", signal.SIGKILL), ("worker_sigterm", signal.SIGTERM))
    ),
)
