"""Faults of the control plane: each of its processes killed or stopped for a while, and the processes of tasks."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

from faults import parts, places
from faults.kinds.base import Kind, Rule, Scene, TooLateError
from faults.lab import Lab, start
from updraft.stack import records

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
SLOW = ("mlflow", "s3")  # and away: what jobs need for their data and their metrics
SLOWNESS = ((0.05, 0.5), (0.1, 2.0), (0.3, 5.0))  # seconds in which the server runs, and stands still
MISSED_SECONDS = 60.0  # whatever the scale, the first triggerer's heartbeat (30 s) is missed for long enough
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


def take_away(part: str) -> Callable[[Scene], None]:
    def inject(scene: Scene) -> None:
        scene.held = parts.take_away(scene.lab.home, part)

    return inject


def go_on(part: str) -> Callable[[Scene], None]:
    """Return what of it was not killed meanwhile goes on."""

    def heal(scene: Scene) -> None:
        at = time.time()
        parts.go_on(scene.held)
        served = parts.wait_serves(scene.lab.home, part, since=at)
        scene.notes["serves_after_seconds"] = round(served - at, 1)

    return heal


def _second_triggerer(scene: Scene) -> None:
    """Stop the first triggerer for longer than its heartbeat may be late, so that a second one takes its triggers."""
    stopped = parts.stop(scene.lab.home, "airflow-triggerer")
    scene.held = (stopped, parts.start_beside(scene.lab.home, "airflow-triggerer"))


def _first_wakes(scene: Scene) -> None:
    stopped, (child, identity) = scene.held
    time.sleep(max(0.0, MISSED_SECONDS - scene.outage_seconds))
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


def _kill_any(scene: Scene) -> None:
    """Kill one of the processes that were killed least, so that a few runs kill each of them."""
    tree = places.tree(scene.lab.home)
    killed = scene.lab.killed
    least = min(killed[place] for place in tree)
    place = scene.rng.choice(sorted(place for place in tree if killed[place] == least))
    process = scene.rng.choice(tree[place]).process
    scene.notes |= {"place": place, "pid": process.pid}
    scene.held = time.time()
    if not parts.send(process, signal.SIGKILL):
        raise TooLateError(f"{place} (pid {process.pid}) ended before it could be killed")
    killed[place] += 1


def _all_serve(scene: Scene) -> None:
    served = all_serve(scene.lab, scene.notes["place"].partition(" ")[0], scene.notes["pid"], scene.held)
    scene.notes["serves_after_seconds"] = round(served - scene.held, 1)


def all_serve(lab: Lab, service: str, pid: int, since: float) -> float:
    """Return the Unix time at which every service serves after a kill in this one; a killed supervisor is restarted as
    its user does it. Raises BenchmarkError when one does not come back."""
    if service == records.SUPERVISOR:
        start(lab.home)
    served = since
    for name in parts.services(lab.home):
        ours = name == service
        served = parts.wait_serves(lab.home, name, since=since if ours else 0.0, but_not=pid if ours else None)
    return served


def slow(part: str) -> Callable[[Scene], None]:
    """Return a fault that lets the server run for a moment and stops it for a while, again and again: each answer takes
    so much longer."""

    def inject(scene: Scene) -> None:
        runs, stands = scene.rng.choice(SLOWNESS)
        scene.notes |= {"runs_seconds": runs, "stands_seconds": stands}
        over = threading.Event()
        thread = threading.Thread(
            target=parts.slow_down, args=(scene.lab.home, part, runs, stands, over), name=f"slow-{part}", daemon=True
        )
        thread.start()
        scene.held = (over, thread)

    return inject


def fast_again(part: str) -> Callable[[Scene], None]:
    def heal(scene: Scene) -> None:
        over, thread = scene.held
        over.set()
        thread.join()
        at = time.time()
        served = parts.wait_serves(scene.lab.home, part, since=at)
        scene.notes["serves_after_seconds"] = round(served - at, 1)

    return heal


KINDS = (
    *(
        Kind(f"{name}_kill", f"{title} gets SIGKILL", "stack", kill(part), serves_again(part), rule=untouched)
        for name, (part, title) in PARTS.items()
    ),
    Kind(
        "any_process_kill",
        "A process out of the platform's whole tree gets SIGKILL: of a service, a task or a container, idle or at work",
        "stack",
        _kill_any,
        _all_serve,
        rule=lambda _shape: Rule(tail_may_be_lost=True),
    ),
    *(
        Kind(
            f"{name}_stopped",
            f"{PARTS[name][1]} is stopped (SIGSTOP) for 40 s, or until the supervisor kills it and starts it again",
            "stack",
            stop(PARTS[name][0]),
            go_on(PARTS[name][0]),
            lasts=True,
            rule=without_store if name == "s3" else untouched,
        )
        for name in STOPPED
    ),
    *(
        Kind(
            f"{name}_away",
            f"{PARTS[name][1]} is stopped (SIGSTOP) for 40 s, and so is the supervisor, which would start it again",
            "stack",
            take_away(PARTS[name][0]),
            go_on(PARTS[name][0]),
            lasts=True,
            rule=without_store if name == "s3" else untouched,
        )
        for name in SLOW
    ),
    *(
        Kind(
            f"{name}_slow",
            f"{PARTS[name][1]} is slow for 40 s: it stands still (SIGSTOP) for most of each second or seconds",
            "stack",
            slow(PARTS[name][0]),
            fast_again(PARTS[name][0]),
            lasts=True,
            rule=without_store if name == "s3" else untouched,
        )
        for name in SLOW
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
