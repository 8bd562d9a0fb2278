"""Store what is known about each part, as files in `<home>/run`, so that another process can read it or take over.

Written by the supervisor, read by `control` and `status`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from updraft.stack.layout import Home, write_private
from updraft.stack.processes import Identity

SUPERVISOR = "supervisor"


class PartState(StrEnum):
    WAITING = "waiting"  # for another part
    STARTING = "starting"
    READY = "ready"
    DONE = "done"  # a task that ended successfully
    BACKOFF = "backoff"  # it died, and will be restarted
    FAILED = "failed"  # it never became ready
    STOPPED = "stopped"


class Phase(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True)
class PartRecord:
    part: str
    state: PartState
    argv_digest: str = ""
    pid: int | None = None
    create_time: float | None = None
    port: int | None = None
    started: float | None = None  # Unix time in seconds of the last start
    ready_seconds: float | None = None  # from that start to readiness
    restarts: int = 0
    last_exit: str | None = None

    @property
    def identity(self) -> Identity | None:
        return None if self.pid is None or self.create_time is None else Identity(self.pid, self.create_time)

    def alive(self) -> bool:
        return self.identity is not None and self.identity.alive()


@dataclass(frozen=True)
class PartFailure:
    part: str
    reason: str
    log: str
    tail: str = ""

    def __str__(self) -> str:
        text = f"{self.part} did not start: {self.reason}\nIts log: {self.log}"
        return f"{text}\nLast lines:\n{self.tail}" if self.tail else text


@dataclass(frozen=True)
class SupervisorRecord:
    pid: int
    create_time: float
    phase: Phase
    started: float
    ready_seconds: float | None = None
    failure: PartFailure | None = None

    def alive(self) -> bool:
        return Identity(self.pid, self.create_time).alive()


def write_part(home: Home, record: PartRecord) -> None:
    write_private(_path(home, record.part), json.dumps(asdict(record), indent=2) + "\n")


def read_part(home: Home, part: str) -> PartRecord | None:
    raw = _read(_path(home, part))
    try:
        return None if raw is None else PartRecord(**{**raw, "state": PartState(raw["state"])})
    except (KeyError, TypeError, ValueError):
        return None  # another version wrote it


def write_supervisor(home: Home, record: SupervisorRecord) -> None:
    write_private(_path(home, SUPERVISOR), json.dumps(asdict(record), indent=2) + "\n")


def read_supervisor(home: Home) -> SupervisorRecord | None:
    raw = _read(_path(home, SUPERVISOR))
    if raw is None:
        return None
    try:
        failure = PartFailure(**raw.pop("failure")) if raw.get("failure") else None
        return replace(SupervisorRecord(**{**raw, "phase": Phase(raw["phase"]), "failure": None}), failure=failure)
    except (KeyError, TypeError, ValueError):
        return None


def _path(home: Home, name: str) -> Path:
    return home.run / f"{name}.json"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return raw if isinstance(raw, dict) else None
