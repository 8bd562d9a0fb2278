"""Start the processes of a learner, copy their output and wait for their end."""

from __future__ import annotations

import contextlib
import os
import select
import time

from . import proctree
from .environment import environment_of
from .output import Stream, copy, drain, say, write
from .processes import GIVE_UP_SECONDS, Learner, Process, described
from .signals import StopRequest

STOPPED = 143  # SIGTERM came before the first process was started


def start_and_wait(stop: StopRequest, command: str, processes: int, stop_seconds: float, peer_seconds: float) -> int:
    """Start the processes, wait for their end, and return the learner's exit code.

    `stop` listens already; if SIGTERM has come, no process is started.
    """
    proctree.become_subreaper()
    started: list[Process] = []
    stop.last_resort(lambda: _kill_all(started), max(stop_seconds, peer_seconds) + GIVE_UP_SECONDS)
    for local_rank in range(processes):
        if not stop.received:
            environment = environment_of(os.environ, local_rank, processes)
            started.append(Process(int(environment["RANK"]), local_rank, command, environment))
    if not started:
        return STOPPED
    learner = Learner(started, stop_seconds, peer_seconds)
    streams = {stream.source: stream for process in started for stream in process.streams}
    _supervise(learner, streams, stop)
    proctree.kill_rest()
    drain(streams)
    _repeat(learner)
    return learner.exit_code()


def _supervise(learner: Learner, streams: dict[int, Stream], stop: StopRequest) -> None:
    by_pid = {process.pid: process for process in learner.processes}
    passed_on = False
    while True:
        now = time.monotonic()
        if stop.received and not passed_on:
            passed_on = True
            learner.stop(now)
        for pid, status in proctree.collect():
            process = by_pid.pop(pid, None)  # an adopted process may get the same number later
            if process is not None:
                learner.ended(process, _exit_code(status), now)
        if learner.first is not None:
            stop.limit(stop.longest_seconds)
        if not learner.running() or learner.given_up(now):
            return
        ready, _, _ = select.select([stop.wake, *streams], [], [], learner.tick(now))
        copy(streams, [source for source in ready if source != stop.wake])
        if stop.wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(stop.wake, 4096)


def _kill_all(processes: list[Process]) -> None:
    for process in processes:
        process.kill()


def _repeat(learner: Learner) -> None:
    """Print the last lines of the process that failed first again, so that they are the log's last lines."""
    first = learner.first
    if first is not None and learner.failed and len(learner.processes) > 1:
        say(f"{first.name} failed first, with {described(first.code or 0)}; its last lines:")
        write(2, b"".join(first.last))


def _exit_code(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
