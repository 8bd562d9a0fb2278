"""Every process of the platform under a key that says what it does. Called by `every` and `kinds.control`.

A key is `SERVICE GENERATION ROLE`, such as `node 2 train/sidecar`, `airflow-scheduler 1 task train supervisor` or
`mlflow 1 uvicorn`. It stays the same when the process is started again, and when a killed local node leaves its
containers behind.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from faults.parts import services, supervisor_of
from updraft.kubernetes.gate import WAIT
from updraft.lifecycle.workflow import TRAIN_DAG
from updraft.stack import records
from updraft.stack.layout import Home
from updraft.stack.processes import Identity
from updraft_learner import contract

NODE, SCHEDULER = "node", "airflow-scheduler"
SHIM = "updraft_localnode/shim.py"
GATE = WAIT.partition("\n")[0]
# Of these roles the program is the user's own: what it starts, such as `sed` in a script, is none of the platform's.
USERS_ROLES = frozenset({"train", "evaluate"})
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class ProcessLook:
    """A process as it is found: what tells its role, and no more."""

    pid: int
    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    program: str = ""  # name of the executable
    ancestors: tuple[int, ...] = ()  # parent first
    session: int = 0
    process: Any = None  # psutil.Process


@dataclass(frozen=True)
class PlatformProcess:
    """Where in the platform a process is, and the job that it works for, if it is one job's."""

    key: str
    process: psutil.Process
    job: str = ""
    task: str = ""

    @property
    def service(self) -> str:
        return self.key.partition(" ")[0]


def tree(home: Home) -> dict[str, list[PlatformProcess]]:
    """Return every process of the platform, found by descent, by session and by job, and not by name."""
    looks = snapshot()
    found: dict[str, list[PlatformProcess]] = defaultdict(list)
    containers = {
        pid: look
        for pid, look in looks.items()
        if is_shim(look) or (_job_of(look) is not None and _in_home(look, home))
    }
    for pid, (key, job) in sorted(container_keys(containers.values()).items()):
        _add(found, PlatformProcess(key, looks[pid].process, job))
    tasks = TaskNames(home.airflow_database)
    leaders = {records.SUPERVISOR: supervisor_of(home)} | {name: _running(home, name) for name in services(home)}
    for name, first in leaders.items():
        if first is None:
            continue
        members = {pid for pid, look in looks.items() if look.session == first.pid}
        if name != records.SUPERVISOR:
            members |= {pid for pid, look in looks.items() if members.intersection(look.ancestors)}
        for pid in sorted(members - set(containers)):
            look = looks[pid]
            if _job_of(look) is None:
                generation = len(members.intersection(look.ancestors))
                what, job, task = role(name, generation, look, tasks)
                _add(found, PlatformProcess(f"{name} {generation} {what}", look.process, job, task))
    return dict(found)


def _add(found: dict[str, list[PlatformProcess]], each: PlatformProcess) -> None:
    found[each.key].append(each)


def snapshot() -> dict[int, ProcessLook]:
    """Return all living processes of the machine but the kernel's, by pid."""
    parents: dict[int, int] = {}
    found: dict[int, ProcessLook] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError), process.oneshot():
            parents[process.pid] = process.ppid()
            session = os.getsid(process.pid)
            if session == 0 or process.status() == psutil.STATUS_ZOMBIE:
                continue
            found[process.pid] = ProcessLook(
                pid=process.pid,
                words=tuple(word for word in process.cmdline() if word),
                environment=process.environ(),
                program=Path(process.exe()).name,
                session=session,
                process=process,
            )
    return {pid: replace(look, ancestors=_ancestors(pid, parents)) for pid, look in found.items()}


def _ancestors(pid: int, parents: Mapping[int, int]) -> tuple[int, ...]:
    found: list[int] = []
    while (pid := parents.get(pid, 0)) and pid not in found:
        found.append(pid)
    return tuple(found)


def role(
    service: str, generation: int, seen: ProcessLook, tasks: Mapping[str, tuple[str, str]]
) -> tuple[str, str, str]:
    """Return what a process of a service does, and of which job and task; `tasks` has Airflow's task instances."""
    title = " ".join(seen.words)
    uuid = _UUID.search(title) if service == SCHEDULER and title.startswith("airflow worker") else None
    if uuid is None:
        return does(seen), "", ""
    job, task = tasks.get(uuid.group(), ("", "unknown"))
    # A task's process has its supervisor's title until it sets its own.
    kind = {1: " supervisor", 2: ""}.get(generation, " child")
    return f"task {task}{kind}", job, task


def does(seen: ProcessLook) -> str:
    """Return the module that a Python runs, else the title that it gave itself, else the program."""
    words = [Path(word).name if number == 0 else word for number, word in enumerate(seen.words)]
    if not words:
        return seen.program
    if (len(words) == 1 and " " in seen.words[0]) or seen.words[0].startswith("airflow"):
        return re.split(r" -- |[:\[]", " ".join(seen.words))[0].strip().replace("_", "-")
    if words[0].startswith("python"):
        return _python(words[1:]) or seen.program
    return words[0]


def _python(words: Sequence[str]) -> str:
    for number, word in enumerate(words):
        following = words[number + 1] if number + 1 < len(words) else ""
        if word == "-m":
            command = words[number + 2] if following == "airflow" and number + 2 < len(words) else ""
            return f"{following} {command}".strip()
        if word == "-c":
            named = re.search(r"multiprocessing\.(\w+)", following)
            return named.group(1) if named else "code"
        if not word.startswith("-"):
            return Path(word).name
    return ""


def is_shim(seen: ProcessLook) -> bool:
    return any(word.endswith(SHIM) for word in seen.words)


def _job_of(seen: ProcessLook) -> tuple[str, str, str] | None:
    """Return job, role and container of a process inside of a container; None for all others."""
    if contract.CONFIG_ENV in seen.environment:
        with suppress(ValueError, KeyError, TypeError):
            config = json.loads(seen.environment[contract.CONFIG_ENV])
            return str(config["job_id"]), str(config["role"]), contract.SIDECAR_CONTAINER
    if "TRAINING_ID" in seen.environment and "UPDRAFT_ROLE" in seen.environment:
        return seen.environment["TRAINING_ID"], seen.environment["UPDRAFT_ROLE"], contract.MAIN_CONTAINER
    return None


def _in_home(seen: ProcessLook, home: Home) -> bool:
    """Return whether the process has a folder of this home: the node gives each container a private one below its
    state."""
    return any(seen.environment.get(name, "").startswith(f"{home.node}/") for name in ("HOME", "TMPDIR"))


def container_keys(seen: Iterable[ProcessLook]) -> dict[int, tuple[str, str]]:
    """Return key and job by pid, from shims and what runs below them.

    A shim is recognised by its child, so one that has none yet, or that belongs to another home, has no key. Hooks and
    probes have no shim above them.
    """
    by_pid = {each.pid: each for each in seen}
    owners = {pid: owner for pid, each in by_pid.items() if (owner := _job_of(each)) is not None}
    found: dict[int, tuple[str, str]] = {}
    for pid, (job, of_role, container) in owners.items():
        each = by_pid[pid]
        inside = [parent for parent in each.ancestors if owners.get(parent) == (job, of_role, container)]
        shims = [parent for parent in each.ancestors if parent in by_pid and is_shim(by_pid[parent])]
        name = f"{of_role}/{'main' if container == contract.MAIN_CONTAINER else 'sidecar'}"
        if shims:
            found[shims[0]] = (f"{NODE} 1 {name} shim", job)
        first, main = not inside, container == contract.MAIN_CONTAINER
        if first and not shims and "-c" in each.words and not _waits(each):
            found[pid] = (f"{NODE} 1 {of_role}/hook", job)
        elif first:
            what = " gate" if _waits(each) else f" {each.program}" if main else ""
            found[pid] = (f"{NODE} 2 {name}{what}", job)
        elif not main or (of_role not in USERS_ROLES and each.program != "sleep"):
            found[pid] = (f"{NODE} {2 + len(inside)} {name} {does(each)}", job)
    return found


def _waits(seen: ProcessLook) -> bool:
    """Return whether it is the shell that waits for the sidecar, whatever program follows."""
    return any(word.startswith(GATE) for word in seen.words)


class TaskNames(dict[str, tuple[str, str]]):
    """(run, task) of each of Airflow's task instances that are asked for, by id; those of other DAGs have no run."""

    def __init__(self, database: Path) -> None:
        super().__init__()
        self._database = database

    def get(self, uuid: str, default: tuple[str, str] = ("", "")) -> tuple[str, str]:  # type: ignore[override]
        if uuid not in self:
            self[uuid] = self._read(uuid) or default
        return self[uuid]

    def _read(self, uuid: str) -> tuple[str, str] | None:
        names = (uuid.replace("-", ""), uuid)  # SQLAlchemy writes it without dashes into SQLite
        for table, column in (("task_instance", "id"), ("task_instance_history", "task_instance_id")):
            query = f"SELECT dag_id, run_id, task_id FROM {table} WHERE {column} IN (?, ?)"
            try:
                with closing(sqlite3.connect(f"file:{self._database}?mode=ro", uri=True, timeout=10)) as connection:
                    row = connection.execute(query, names).fetchone()
            except sqlite3.Error:
                continue
            if row is not None:
                dag, run, task = map(str, row)
                return (run, task) if dag == TRAIN_DAG else ("", f"{dag}.{task}")
        return None


def _running(home: Home, name: str) -> Identity | None:
    record = records.read_part(home, name)
    return record.identity if record is not None and record.alive() else None
