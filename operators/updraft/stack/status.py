"""Report which parts run, for how long, and what they cost. Called by the CLI and the demo."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from updraft.stack import processes, records
from updraft.stack.control import Addresses, addresses, parts_of, running
from updraft.stack.files import AIRFLOW_PARALLEL_TASKS
from updraft.stack.layout import Home, StackError
from updraft.stack.not_starting import tasks_not_starting
from updraft.stack.processes import MIB
from updraft.stack.records import SUPERVISOR, PartState

CPU_SAMPLE_SECONDS = 0.5


@dataclass(frozen=True)
class PartStatus:
    name: str
    title: str
    state: str
    pid: int | None
    port: int | None
    uptime_seconds: float | None
    ready_seconds: float | None
    restarts: int
    processes: int
    memory_mib: float  # proportional share, if the system reports it
    cpu_percent: float  # of one core, over half a second
    log: str
    last_exit: str | None


@dataclass(frozen=True)
class StackStatus:
    home: str
    supervised: bool
    phase: str  # starting, running, failed, stopped, unsupervised, absent
    parts: tuple[PartStatus, ...]
    addresses: Addresses | None
    start_seconds: float | None
    not_starting: str | None = None  # why Airflow's queued tasks count as stuck

    @property
    def memory_mib(self) -> float:
        return sum(p.memory_mib for p in self.parts)

    @property
    def cpu_percent(self) -> float:
        return sum(p.cpu_percent for p in self.parts)

    @property
    def ready(self) -> bool:
        return (
            self.phase == "running"
            and self.not_starting is None
            and all(p.state == PartState.READY for p in self.parts)
        )

    def as_dict(self) -> dict[str, Any]:
        totals = {"memory_mib": round(self.memory_mib, 1), "cpu_percent": round(self.cpu_percent, 1)}
        return {**asdict(self), **totals, "ready": self.ready}


def stack_status(home: Home, *, cpu_sample_seconds: float = CPU_SAMPLE_SECONDS) -> StackStatus:
    """Return the status of the stack; a home that is not set up is a status too, and no error."""
    try:
        parts = [p for p in parts_of(home) if not p.is_task]
        where = addresses(home)
    except StackError:
        return StackStatus(str(home.root), False, "absent", (), None, None)
    watcher = running(home)
    found = {p.name: records.read_part(home, p.name) for p in parts}
    leaders = {r.pid: name for name, r in found.items() if r is not None and r.pid is not None and r.alive()}
    if watcher is not None:
        leaders[watcher.pid] = SUPERVISOR
    members = _members(leaders)
    cpu = _cpu_percent(members, cpu_sample_seconds)
    statuses = []
    if watcher is not None:
        statuses.append(_supervisor_status(home, watcher.pid, watcher.started, members, cpu))
    for part in parts:
        record = found[part.name]
        alive = record is not None and record.pid in leaders
        statuses.append(
            PartStatus(
                name=part.name,
                title=part.title,
                state=str(record.state) if record is not None and (alive or watcher is not None) else "stopped",
                pid=record.pid if record is not None and alive else None,
                port=part.port,
                uptime_seconds=time.time() - record.started
                if record is not None and alive and record.started
                else None,
                ready_seconds=record.ready_seconds if record is not None else None,
                restarts=record.restarts if record is not None else 0,
                processes=len(members[part.name]),
                memory_mib=sum(processes.memory_bytes(p) for p in members[part.name]) / MIB,
                cpu_percent=cpu[part.name],
                log=str(part.log),
                last_exit=record.last_exit if record is not None else None,
            )
        )
    phase = str(watcher.phase) if watcher is not None else ("unsupervised" if leaders else "stopped")
    start_seconds = watcher.ready_seconds if watcher is not None else None
    stuck = tasks_not_starting(home.airflow_database, slots=AIRFLOW_PARALLEL_TASKS) if leaders else None
    return StackStatus(str(home.root), watcher is not None, phase, tuple(statuses), where, start_seconds, stuck)


def _supervisor_status(
    home: Home, pid: int, started: float, members: dict[str, list[psutil.Process]], cpu: dict[str, float]
) -> PartStatus:
    return PartStatus(
        name=SUPERVISOR,
        title="Supervisor",
        state=str(PartState.READY),
        pid=pid,
        port=None,
        uptime_seconds=time.time() - started,
        ready_seconds=None,
        restarts=0,
        processes=len(members[SUPERVISOR]),
        memory_mib=sum(processes.memory_bytes(p) for p in members[SUPERVISOR]) / MIB,
        cpu_percent=cpu[SUPERVISOR],
        log=str(home.log_of(SUPERVISOR)),
        last_exit=None,
    )


def _members(leaders: dict[int | None, str] | dict[int, str]) -> dict[str, list[psutil.Process]]:
    """Return the processes by part. A session belongs to the part that leads it."""
    members: dict[str, list[psutil.Process]] = defaultdict(list)
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            name = leaders.get(os.getsid(process.pid))
            if name is not None:
                members[name].append(process)
    return members


def _cpu_percent(members: dict[str, list[psutil.Process]], seconds: float) -> dict[str, float]:
    def sample() -> dict[str, float]:
        return {name: sum(processes.cpu_seconds(p) for p in group) for name, group in members.items()}

    before, began = sample(), time.monotonic()
    time.sleep(seconds)
    after, span = sample(), time.monotonic() - began
    return defaultdict(float, {n: max(0.0, 100 * (after[n] - before[n]) / span) for n in before})
