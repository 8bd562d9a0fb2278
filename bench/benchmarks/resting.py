"""What each part of a running stack costs while nothing is asked of it. Called by `figures.rest`."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass

import psutil

from updraft.stack import processes
from updraft.stack.layout import Home
from updraft.stack.status import stack_status

MB = 10**6


@dataclass(frozen=True)
class PartAtRest:
    title: str
    processes: int
    shared_mb: float  # proportional share of memory, where the system tells it
    resident_mb: float
    cpu_percent: float  # of one core, with children that have ended


def at_rest(home: Home, seconds: float) -> list[PartAtRest]:
    parts = [p for p in stack_status(home, cpu_sample_seconds=0.0).parts if p.pid is not None]
    members = _members({p.pid: p.name for p in parts if p.pid is not None})
    before, began = {name: _cpu_seconds(group) for name, group in members.items()}, time.monotonic()
    time.sleep(seconds)
    span = time.monotonic() - began
    found = []
    for part in parts:
        group = members[part.name]
        found.append(
            PartAtRest(
                title=part.title,
                processes=len(group),
                shared_mb=sum(processes.memory_bytes(p) for p in group) / MB,
                resident_mb=sum(_resident_bytes(p) for p in group) / MB,
                cpu_percent=100 * max(0.0, _cpu_seconds(group) - before[part.name]) / span,
            )
        )
    return found


def _members(leaders: dict[int, str]) -> dict[str, list[psutil.Process]]:
    """Return the processes by part: a session belongs to the part that leads it."""
    members: dict[str, list[psutil.Process]] = defaultdict(list)
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if (name := leaders.get(os.getsid(process.pid))) is not None:
                members[name].append(process)
    return members


def _cpu_seconds(group: list[psutil.Process]) -> float:
    total = 0.0
    for process in group:
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
            total += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return total


def _resident_bytes(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0
