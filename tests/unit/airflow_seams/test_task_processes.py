"""The executor with real processes: whatever of it is killed or stopped, other tasks start."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from updraft.airflow_seams.task_processes import ProcessExecutor

WAIT_SECONDS = 30.0


@dataclass(frozen=True)
class Workload:
    """What an executor looks at; `display_name` is the file that the task makes, or how it behaves."""

    key: str
    display_name: str
    running_state = None
    success_state = "success"
    failure_state = "failed"
    ti = SimpleNamespace(priority_weight=1)


def play(workload: Workload, **_: object) -> int:
    if workload.display_name == "fail":
        raise ValueError("the supervisor of the task failed")
    if workload.display_name == "sleep":
        time.sleep(600)
    if workload.display_name.startswith("fork "):
        if not (child := os.fork()):  # as Airflow's supervisor forks the process that runs the task
            time.sleep(600)
        Path(workload.display_name.removeprefix("fork ")).write_text(str(child))
        time.sleep(600)
    else:
        Path(workload.display_name).touch()
    return 0


class PlayingExecutor(ProcessExecutor):
    run_workload = staticmethod(play)  # type: ignore[assignment]


@pytest.fixture
def executor() -> Iterator[ProcessExecutor]:
    made = PlayingExecutor(parallelism=4)
    made.start()
    yield made
    for child in children(made):
        for descendant in [child, *child.children(recursive=True)]:
            descendant.kill()
    made.end()


def children(executor: ProcessExecutor) -> list[psutil.Process]:
    return [psutil.Process(task.process.pid) for task in executor._started if task.process.is_alive()]


def beat_until(executor: ProcessExecutor, true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        executor.heartbeat()
        time.sleep(0.01)


def queue(executor: ProcessExecutor, key: str, name: str) -> None:
    executor.queued_tasks[key] = Workload(key, name)  # type: ignore[index, assignment]


def states(executor: ProcessExecutor) -> dict[object, object]:
    return {key: state for key, (state, _) in executor.event_buffer.items()}


def test_tasks_start_after_every_idle_process_was_killed(executor: ProcessExecutor, tmp_path: Path) -> None:
    for number in range(3):
        executor.heartbeat()
        for child in children(executor):
            child.kill()
        made = tmp_path / str(number)
        queue(executor, made.name, str(made))
        beat_until(executor, made.exists)
    beat_until(executor, lambda: len(executor.event_buffer) == 3)
    assert states(executor) == {"0": "success", "1": "success", "2": "success"}


def test_a_task_whose_process_is_killed_fails_alone(executor: ProcessExecutor, tmp_path: Path) -> None:
    queue(executor, "killed", "sleep")
    executor.heartbeat()
    (child,) = children(executor)
    child.kill()
    queue(executor, "other", str(tmp_path / "made"))
    beat_until(executor, lambda: len(executor.event_buffer) == 2)
    assert states(executor) == {"killed": "failed", "other": "success"}
    assert not executor.running


def test_a_task_that_raises_fails(executor: ProcessExecutor) -> None:
    queue(executor, "raises", "fail")
    beat_until(executor, lambda: "raises" in executor.event_buffer)
    assert states(executor) == {"raises": "failed"}


def test_a_stopped_process_holds_up_nobody_and_is_killed_with_its_task_given_up(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    queue(executor, "stopped", "sleep")
    executor.heartbeat()
    (child,) = children(executor)
    os.kill(child.pid, signal.SIGSTOP)
    queue(executor, "other", str(tmp_path / "made"))
    beat_until(executor, lambda: "other" in executor.event_buffer)
    executor.change_state("stopped", "failed")  # type: ignore[arg-type] # what Airflow does without heartbeats
    beat_until(executor, lambda: not psutil.pid_exists(child.pid))
    assert states(executor) == {"other": "success", "stopped": "failed"}


def test_no_more_tasks_run_than_there_are_slots(executor: ProcessExecutor, tmp_path: Path) -> None:
    for number in range(4):
        queue(executor, f"sleeps {number}", "sleep")
    queue(executor, "waits", str(tmp_path / "made"))
    executor.heartbeat()
    executor.heartbeat()
    running = children(executor)
    assert len(running) == 4
    assert list(executor.queued_tasks) == ["waits"]
    running[0].kill()
    beat_until(executor, lambda: states(executor).get("waits") == "success")


def test_what_an_earlier_process_of_a_resumed_task_says_is_not_reported(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    queue(executor, "deferred", "sleep")
    executor.heartbeat()
    (earlier,) = children(executor)
    queue(executor, "deferred", "sleep")
    executor.heartbeat()
    earlier.kill()
    beat_until(executor, lambda: not psutil.pid_exists(earlier.pid))
    assert states(executor) == {}
    assert executor.running == {"deferred"}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
def test_the_task_of_a_killed_supervisor_ends_with_it(executor: ProcessExecutor, tmp_path: Path) -> None:
    told = tmp_path / "pid"
    queue(executor, "killed", f"fork {told}")
    executor.heartbeat()
    beat_until(executor, lambda: told.exists() and told.read_text() != "")
    task = psutil.Process(int(told.read_text()))
    (supervisor,) = children(executor)
    supervisor.kill()
    beat_until(executor, lambda: "killed" in executor.event_buffer)
    beat_until(executor, lambda: not task.is_running() or task.status() == psutil.STATUS_ZOMBIE)
