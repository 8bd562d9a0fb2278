"""Start a stack, attach to it and stop it: `initialise`, `up`, `down`.

A detached supervisor does the work; these functions wait for it and report its progress. Called by the CLI, the demo
and `python -m updraft.stack`.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from updraft.airflow_seams.switch import switched_off
from updraft.stack import config as configuration
from updraft.stack import environments, examples, files, footprint, processes, records
from updraft.stack.cluster import ClusterConfig, answers
from updraft.stack.config import Config
from updraft.stack.layout import Home, StackError
from updraft.stack.parts import Part, base_environment, build_parts, stop_order
from updraft.stack.processes import Identity
from updraft.stack.records import PartState, Phase, SupervisorRecord
from updraft.tenants import tenants_at_start

POLL_SECONDS = 0.2
Say = Callable[[str], None]
NEEDED = (footprint.MLFLOW.key, footprint.SIDECAR.key)


@dataclass(frozen=True)
class Addresses:
    """The addresses of the stack for users and clients. The log-ins are in `secrets.json`."""

    airflow: str
    mlflow: str
    s3: str
    node: str


def addresses(home: Home) -> Addresses:
    url = configuration.load_config(home).url
    return Addresses(url("airflow"), url("mlflow"), url("s3"), url("node"))


def initialise(
    home: Home,
    *,
    ports: Mapping[str, int] | None = None,
    node: Mapping[str, float | int] | None = None,
    cluster: Mapping[str, str] | None = None,
) -> Config:
    """Make the home with generated secrets and free ports, or change one that is there. Idempotent.

    `cluster`: `kubeconfig`, `context` and `address` of a cluster that takes the local node's place; see `cluster`.
    """
    home.root.mkdir(parents=True, exist_ok=True)
    home.root.chmod(0o700)
    home.run.mkdir(exist_ok=True)
    with _exclusive(home, "init"):
        if home.config_file.exists():
            config = configuration.load_config(home)
        else:
            config = configuration.choose_config(dict(ports or {}))
        before = config.cluster
        config = configuration.change_config(config, dict(ports or {}), dict(node or {}), cluster)
        if config.cluster != before:
            _refuse_to_leave_learners(home, before)
        known = home.secrets_file.exists()
        secrets = configuration.load_secrets(home) if known else configuration.generate_secrets()
        configuration.save_secrets(home, secrets)
        configuration.save_config(home, config)
        files.write_all(home, config, secrets)
    return config


def parts_of(home: Home) -> tuple[Part, ...]:
    return build_parts(home, configuration.load_config(home), configuration.load_secrets(home))


def running(home: Home) -> SupervisorRecord | None:
    """Return the supervisor that watches this home, if one does."""
    record = records.read_supervisor(home)
    return record if record is not None and record.alive() else None


def up(
    home: Home,
    *,
    ports: Mapping[str, int] | None = None,
    node: Mapping[str, float | int] | None = None,
    cluster: Mapping[str, str] | None = None,
    say: Say = print,
    build: bool = True,
) -> Addresses:
    """Start the stack, or attach to one that is starting or up; returns when every part is ready.

    Raises StackError that names the part, the reason and the log. Interrupting this leaves the stack as it is.
    """
    tenants_at_start(os.environ)
    switched_off(os.environ)  # raises for an unknown name
    watcher = running(home)
    if watcher is not None and watcher.phase in (Phase.STARTING, Phase.RUNNING):
        _refuse_change(home, ports, node, cluster)
        if watcher.phase is Phase.RUNNING:
            say("The stack is already up.")
            return addresses(home)
        say("The stack is being started; waiting.")
        _follow(home, parts_of(home), watcher.started, say)
        return addresses(home)
    initialise(home, ports=ports, node=node, cluster=cluster)
    if build:
        build_needed(home, say)
    began = time.time()
    with _exclusive(home, "up"):  # if two run at once, the second one attaches
        watcher = running(home)
        if watcher is None or watcher.phase in (Phase.FAILED, Phase.STOPPED):
            _await_end(watcher)
            _start_supervisor(home, began)
        else:
            began = watcher.started
    _follow(home, parts_of(home), began, say)
    if examples.seed(home):
        say(f"The examples' data, the UCI handwritten digits, is in s3://{examples.BUCKET}/{examples.KEY}.")
    return addresses(home)


def build_needed(home: Home, say: Say) -> None:
    """Build the environments without which nothing runs."""
    if problem := environments.missing_space(home, NEEDED):
        raise StackError(problem)
    for key in NEEDED:
        if not environments.is_built(home, key):
            say(f"Building the environment: {footprint.known()[key].title} …")
    environments.build_mlflow(home, lambda _line: None)
    environments.build_image(home, footprint.SIDECAR.key, lambda _line: None)


def supervise(home: Home) -> int:
    """Return the detached process itself: holds the lock, runs the parts.

    Returns its exit status: 0 stopped, 1 a part did not start, 2 another supervisor holds this home.
    """
    from updraft.stack.supervisor import Supervisor, hold_lock

    lock = hold_lock(home)
    if lock is None:
        return 2
    with lock:
        return Supervisor(home, parts_of(home)).run()


def down(home: Home, *, say: Say = print) -> int:
    """End every process of this home, in whatever state it is. Returns how many had to be ended by force.

    Raises StackError if containers of the local node may be left.
    """
    ended = 0
    demo = _recorded_demo(home)
    if demo is not None:
        processes.end([demo], grace_seconds=2)
    watcher = records.read_supervisor(home)
    if watcher is not None and watcher.alive():
        say("Stopping the stack …")
        processes.signal_once(Identity(watcher.pid, watcher.create_time), signal.SIGTERM)
        _wait_for_end(watcher, seconds=60)
        if watcher.alive():
            processes.end_session(Identity(watcher.pid, watcher.create_time), grace_seconds=0)
    ended += _end_recorded(home)
    ended += processes.end(processes.marked(home), grace_seconds=5)
    # A process may have started another one while it was being ended.
    ended += processes.kill(processes.marked(home))
    ended += _end_containers(home)  # only now: no local node is left that would restart them
    for path in home.run.glob("*.json") if home.run.is_dir() else ():
        path.unlink(missing_ok=True)
    return ended


def record_demo(home: Home) -> None:
    """Record this process as the demo, so that `down` in another terminal, or after a kill of its parent, ends it
    first."""
    home.run.mkdir(parents=True, exist_ok=True)
    identity = processes.identify(os.getpid())
    if identity is not None:
        (home.run / "demo.pid").write_text(f"{identity.pid} {identity.create_time!r}")


def forget_demo(home: Home) -> None:
    (home.run / "demo.pid").unlink(missing_ok=True)


# --- internals ----------------------------------------------------------------------------------------


def _recorded_demo(home: Home) -> psutil.Process | None:
    try:
        pid, created = (home.run / "demo.pid").read_text().split()
        process = Identity(int(pid), float(created)).process()
    except (OSError, ValueError):
        return None
    forget_demo(home)
    return None if process is None or process.pid == os.getpid() else process


def _end_recorded(home: Home) -> int:
    """End the parts that a killed supervisor left behind; return how many had to be killed."""
    ended = 0
    try:
        waves = stop_order(parts_of(home))
    except StackError:
        return 0  # no valid config: `down` then finds processes by their mark
    names = [[p.name for p in wave] for wave in waves]
    graces = {p.name: p.stop_within_seconds for wave in waves for p in wave}
    for wave in [*names, [p.name for p in parts_of(home) if p.is_task]]:
        found = {name: records.read_part(home, name) for name in wave}
        identities = {name: r.identity for name, r in found.items() if r is not None and r.identity is not None}
        for identity in identities.values():
            processes.signal_once(identity, signal.SIGTERM)
        for name, identity in identities.items():
            ended += processes.end_session(identity, grace_seconds=graces.get(name, 5.0))
    return ended


def _end_containers(home: Home) -> int:
    """End the local node's containers: process groups of their own, which outlive it. Raises StackError."""
    if not home.node.is_dir():
        return 0
    command = [sys.executable, "-m", "updraft_localnode.leftovers", str(home.node)]
    done = subprocess.run(
        command, env=base_environment(home, os.environ), cwd=home.root, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise StackError(f"The containers of the local node could not be ended:\n{done.stderr.strip()}")
    return int(done.stdout)


def _start_supervisor(home: Home, began: float) -> None:
    old = records.read_supervisor(home)
    base = base_environment(home, os.environ)
    log = home.log_of(records.SUPERVISOR)
    child, _ = processes.spawn(
        [sys.executable, "-m", "updraft.stack", "supervise"], environment=base, cwd=home.root, log=log
    )
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        record = records.read_supervisor(home)
        if record is not None and record != old and record.started >= began:
            return
        if child.poll() is not None:
            break
        time.sleep(POLL_SECONDS / 2)
    raise StackError(f"The supervisor did not start; its log: {log}\n{_tail(log)}")


def _follow(home: Home, parts: tuple[Part, ...], began: float, say: Say) -> None:
    """Tell each part's progress until all are ready. Raises StackError when the start fails."""
    told: set[str] = set()
    while True:
        record = records.read_supervisor(home)
        for part in parts:
            state = records.read_part(home, part.name)
            if state is not None and state.state is PartState.BACKOFF and f"{part.name} {state.restarts}" not in told:
                told.add(f"{part.name} {state.restarts}")
                say(f"  {part.title:24} {state.last_exit}; it is started again (log: {part.log})")
            if state is None or part.name in told or state.state not in (PartState.READY, PartState.DONE):
                continue
            told.add(part.name)
            if not part.is_task:
                fresh = state.started is not None and state.started >= record.started if record else True
                after = f"ready after {state.ready_seconds or 0:.1f} s" if fresh else "still running, taken over"
                say(f"  {part.title:24} {after}")
        if record is None or record.phase is Phase.STOPPED:
            raise StackError("The stack was stopped while it was being started.")
        if record.phase is Phase.FAILED and record.started >= began:
            raise StackError(str(record.failure) if record.failure else "The stack did not start.")
        if record.phase is Phase.RUNNING:
            return
        if not record.alive():
            raise StackError(
                f"The supervisor ended while it started the stack; its log: {home.log_of(records.SUPERVISOR)}. "
                "`updraft up` takes over what still runs."
            )
        time.sleep(POLL_SECONDS)


def _refuse_change(
    home: Home,
    ports: Mapping[str, int] | None,
    node: Mapping[str, float | int] | None,
    cluster: Mapping[str, str] | None,
) -> None:
    config = configuration.load_config(home)
    if configuration.change_config(config, dict(ports or {}), dict(node or {}), cluster) != config:
        raise StackError(
            "The stack is up with another configuration; run `updraft down` first, then `updraft up` again."
        )


def _refuse_to_leave_learners(home: Home, cluster: ClusterConfig | None) -> None:
    """Raise StackError if learners run on the cluster that the home used until now: they would run on there, unseen.
    Jobs that wait or are halted have none and go on wherever the home points; so do all jobs, from their checkpoints,
    of a cluster that no longer answers or of a local node that has ended."""
    from updraft.exceptions import UpdraftError
    from updraft.ledger import Ledger
    from updraft.lifecycle import State

    if not home.ledger_file.exists():
        return
    ledger = Ledger(f"sqlite:///{home.ledger_file}")
    try:
        without = (State.PENDING, State.QUEUED, State.HALTED)
        bound = [job.id for job in ledger.jobs.live() if job.state not in without]
    except UpdraftError as exc:
        raise StackError(
            f"{home.ledger_file} does not say whether jobs still run on the cluster so far: {exc}"
        ) from exc
    finally:
        ledger.close()
    if bound and (processes.marked(home, "node") if cluster is None else answers(cluster)):
        named = ", ".join(bound[:5]) + (" and others" if bound[5:] else "")
        raise StackError(
            f"{named}: not ended yet on the cluster so far. Start the stack as it was (`updraft up`), let them end, or "
            "halt or cancel them; then change the cluster."
        )


def _await_end(record: SupervisorRecord | None) -> None:
    if record is not None:
        _wait_for_end(record, seconds=30)


def _wait_for_end(record: SupervisorRecord, *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while record.alive() and time.monotonic() < deadline:
        time.sleep(0.05)


def _tail(log: os.PathLike[str], lines: int = 15) -> str:
    try:
        with open(log, errors="replace") as file:
            return "".join(file.readlines()[-lines:])
    except OSError:
        return ""


@contextmanager
def _exclusive(home: Home, name: str) -> Iterator[None]:
    with (home.run / f"{name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
