"""The seam `task_processes` (`[core] executor`): each task has a process of its own, which shares nothing with others.

LocalExecutor keeps idle workers that read one queue. The worker that reads holds the queue's lock; if it is killed or
stopped there, no task ever starts again. See `docs/design/0008-executor.md`. Airflow loads `TaskExecutor` by its name;
if the seam is left out, that is LocalExecutor.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil
from airflow.executors.base_executor import get_execution_api_server_url
from airflow.executors.local_executor import LocalExecutor

from updraft.airflow_seams.switch import applies

TITLE = "airflow worker -- LocalExecutor:"
_LINUX_PR_SET_PDEATHSIG = 1
logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class RunningTask:
    workload: Any
    process: Any  # multiprocessing.Process; the class depends on the start method


def run_task(run: Callable[..., int], workload: Any, server: str) -> None:
    """Run one workload by the executor's `run_workload`; the process exits with 0 unless this raises."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in LocalExecutor: after Ctrl-C, running tasks may end
    if sys.platform == "linux":
        _end_task_with(os.getpid())
    run(
        workload,
        server=server,
        proctitle=f"{TITLE} {workload.display_name}",
        subprocess_logs_to_stdout=True,
    )


def _end_task_with(supervisor: int) -> None:
    """Have the kernel kill the process that runs the task when `supervisor`, which forks it, is killed.

    A killed supervisor is reported at once, so the task's next try may start at once: not beside the earlier one.
    """
    libc = ctypes.CDLL(None)

    def in_child() -> None:
        if os.getppid() == supervisor:  # not in processes that the task itself forks
            libc.prctl(_LINUX_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    os.register_at_fork(after_in_child=in_child)


class ProcessExecutor(LocalExecutor):
    """A LocalExecutor that runs each task in a process of its own; the exit code shows how the workload ended.

    If a process is killed, only its own task is lost. A stopped process (SIGSTOP) is killed once Airflow has given its
    task up for missing heartbeats.
    """

    def start(self) -> None:
        self._started: list[RunningTask] = []

    def sync(self) -> None:
        """Report the processes that have ended, and end those whose task Airflow has given up."""
        ended = [task for task in self._started if not task.process.is_alive()]
        self._started = [task for task in self._started if task not in ended]
        for task in ended:
            self._report(task)
        for task in self._started:
            if task.workload.key not in self.running:
                logger.warning("Killing process %s: its task was given up", task.process.pid)
                _kill_with_children(task.process.pid)

    def end(self) -> None:
        """Wait for the running tasks, as LocalExecutor does."""
        for task in self._started:
            task.process.join()
        self.sync()

    def _process_workloads(self, workload_list: Sequence[Any]) -> None:
        gc.freeze()  # memory that the processes share with the scheduler stays shared
        try:
            for workload in workload_list:
                self._start_process(workload)
        finally:
            gc.unfreeze()

    def _start_process(self, workload: Any) -> None:
        server = get_execution_api_server_url(self.conf)
        process = multiprocessing.Process(target=run_task, args=(self.run_workload, workload, server))
        try:
            process.start()
        except OSError as exc:  # no memory or no process id left: the workload stays queued
            logger.warning("Cannot start a process for %s, trying again: %s", workload.display_name, exc)
            return
        for queue in (self.queued_tasks, self.queued_callbacks, self.queued_connection_tests):
            queue.pop(workload.key, None)
        self.running.add(workload.key)
        self._started.append(RunningTask(workload, process))
        if workload.running_state is not None:
            self.change_state(workload.key, workload.running_state, remove_running=False)

    def _report(self, task: RunningTask) -> None:
        code = task.process.exitcode
        task.process.close()
        key = task.workload.key
        # A task that was deferred and resumed has the same key: the end of its earlier process says nothing about it.
        if key not in self.running or any(other.workload.key == key for other in self._started):
            return
        if code:
            logger.warning("The process of %s ended with %s", task.workload.display_name, code)
        self.change_state(key, task.workload.failure_state if code else task.workload.success_state)


def _kill_with_children(pid: int) -> None:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for member in [*process.children(recursive=True), process]:
            with suppress(psutil.NoSuchProcess):
                member.kill()


def executor_class() -> type[LocalExecutor]:
    """Return the executor of this process."""
    return ProcessExecutor if applies("task_processes") else LocalExecutor


TaskExecutor = executor_class()
