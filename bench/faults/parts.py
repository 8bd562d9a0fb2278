"""The stack's own processes: kill them, stop them for a while, see when they serve again.

Called by `kinds`, `every` and `run`.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from contextlib import suppress

import psutil
from benchmarks.stack import BenchmarkError

from updraft.stack import processes, records
from updraft.stack.control import parts_of
from updraft.stack.layout import Home
from updraft.stack.parts import Part
from updraft.stack.probes import not_ready_because
from updraft.stack.processes import Identity
from updraft.stack.records import PartState

SERVES_SECONDS = 240.0
POLL_SECONDS = 0.1
TASK_TITLE = "airflow worker -- "
SUPERVISOR_TITLE = "airflow worker -- LocalExecutor"


def part_of(home: Home, name: str) -> Part:
    return next(part for part in parts_of(home) if part.name == name)


def leader(home: Home, name: str) -> Identity:
    """Return the process that the part was started as. Raises BenchmarkError when it does not run."""
    record = records.read_part(home, name)
    if record is None or record.identity is None or not record.identity.alive():
        raise BenchmarkError(f"{name} does not run, so it cannot be broken")
    return record.identity


def members(home: Home, name: str) -> list[psutil.Process]:
    """Return all processes of the part, the first one first."""
    first = leader(home, name)
    found = processes.session_members(first)
    return sorted(found, key=lambda process: process.pid != first.pid)


def kill(home: Home, name: str) -> float:
    """Send SIGKILL to the part's first process, as the kernel would; return the Unix time."""
    process = leader(home, name).process()
    if process is None:
        raise BenchmarkError(f"{name} ended before it could be killed")
    at = time.time()
    process.kill()
    return at


def stop(home: Home, name: str) -> list[psutil.Process]:
    """Send SIGSTOP to all of the part; return the processes to wake. The supervisor kills it soon and starts
    another."""
    stopped = members(home, name)
    for process in stopped:
        with suppress(psutil.Error):
            process.suspend()
    return stopped


def supervisor_of(home: Home) -> Identity | None:
    """Return the home's supervisor; None if none runs."""
    record = records.read_supervisor(home)
    return Identity(record.pid, record.create_time) if record is not None and record.alive() else None


def take_away(home: Home, name: str) -> list[psutil.Process]:
    """Send SIGSTOP to the supervisor, so that it repairs nothing, and then to all of the part; return the processes to
    wake."""
    identity = supervisor_of(home)
    supervisor = identity.process() if identity is not None else None
    if supervisor is None:
        raise BenchmarkError(f"no supervisor runs, so {name} would stay away")
    supervisor.suspend()
    try:
        return [*stop(home, name), supervisor]
    except BenchmarkError:
        supervisor.resume()
        raise


def go_on(stopped: list[psutil.Process]) -> None:
    for process in stopped:
        with suppress(psutil.Error):
            process.resume()


def slow_down(home: Home, name: str, runs: float, stands: float, over: threading.Event) -> None:
    """Let the part run for so many seconds and stand still for so many, until `over`; it always ends running."""
    stopped: list[psutil.Process] = []
    try:
        while not over.wait(runs):
            with suppress(BenchmarkError):  # another fault has ended it: its successor is slowed down
                stopped = stop(home, name)
            over.wait(stands)
            go_on(stopped)
    finally:
        go_on(stopped)


def serves(home: Home, name: str, since: float = 0.0, but_not: int | None = None) -> bool:
    """Return whether the part is up and answers: Airflow's daemons by a heartbeat after `since`, none as process
    `but_not`."""
    part, record = part_of(home, name), records.read_part(home, name)
    if record is None or record.state is not PartState.READY or not record.alive() or part.probe is None:
        return False
    if record.pid == but_not:
        return False
    return not_ready_because(part.probe, since=since) is None


def wait_serves(
    home: Home, name: str, since: float, seconds: float = SERVES_SECONDS, but_not: int | None = None
) -> float:
    """Return the Unix time at which the part served again. Raises BenchmarkError when it does not in time."""
    deadline = time.monotonic() + seconds
    while not serves(home, name, since, but_not):
        if time.monotonic() > deadline:
            raise BenchmarkError(f"{name} did not serve again within {seconds:.0f} s; log: {home.log_of(name)}")
        time.sleep(POLL_SECONDS)
    return time.time()


def services(home: Home) -> list[str]:
    return [part.name for part in parts_of(home) if not part.is_task]


def tasks(home: Home) -> list[psutil.Process]:
    """Return the processes that run an Airflow task now: the one that executes it, not its supervisor."""
    found = []
    for process in members(home, "airflow-scheduler"):
        with suppress(psutil.Error):
            title = " ".join(process.cmdline())
            if title.startswith(TASK_TITLE) and not title.startswith(SUPERVISOR_TITLE):
                found.append(process)
    return found


def start_beside(home: Home, name: str) -> tuple[subprocess.Popen[bytes], Identity]:
    """Start a second process of the part, as an operator with two machines has; the caller ends it."""
    part = part_of(home, name)
    log = part.log.with_name(f"{part.log.stem}-second.log")
    return processes.spawn(part.argv, environment=part.environment, cwd=part.cwd, log=log)


def end_beside(child: subprocess.Popen[bytes], identity: Identity) -> None:
    """End the process as a service manager does: SIGTERM, then SIGKILL to what is left."""
    processes.end_session(identity, grace_seconds=20)
    with suppress(subprocess.TimeoutExpired):
        child.wait(timeout=10)


def send(process: psutil.Process, number: signal.Signals) -> bool:
    """Return whether a process got it."""
    try:
        process.send_signal(number)
    except (psutil.Error, OSError):
        return False
    return True
