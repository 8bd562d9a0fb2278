"""Start the parts in order, watch them, restart those that die or hang, and stop them: one process per home.

It runs detached (`python -m updraft.stack supervise`). If it is killed, the parts keep running, and the next supervisor
adopts those whose configuration has not changed. `control` starts it and reads its records.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from types import FrameType
from typing import IO

import psutil

from updraft.stack import processes, records
from updraft.stack.backoff import RESTARTS, deaths_in_a_row
from updraft.stack.config import port_owner, port_taken
from updraft.stack.files import AIRFLOW_PARALLEL_TASKS
from updraft.stack.layout import Home, StackError, write_private
from updraft.stack.manifest_watch import ManifestWatch
from updraft.stack.not_starting import scheduler_starts_nothing
from updraft.stack.parts import Part, stop_order
from updraft.stack.probes import not_ready_because
from updraft.stack.records import PartFailure, PartRecord, PartState, Phase, SupervisorRecord
from updraft.stack.watchdog import Watchdog

TICK_SECONDS = 0.2
PROBE_SECONDS = 0.5
MANIFESTS_SECONDS = 2.0
LOG_TAIL_LINES = 15
REAP_SECONDS = 5.0  # a process that waits for a broken disk outlives SIGKILL
START_ATTEMPTS = 3  # of a part that ends while the stack starts; afterwards restarts never end
logger = logging.getLogger(__name__)


@dataclass
class SupervisedPart:
    """A part, and what is known of its process."""

    part: Part
    record: PartRecord
    child: subprocess.Popen[bytes] | None = None  # None: adopted, or not running
    deaths: int = 0
    begun: float = 0.0  # monotonic time of the last start
    ready_at: float = 0.0
    next_probe: float = 0.0
    next_start: float = 0.0
    why_not: str = ""


def hold_lock(home: Home) -> IO[str] | None:
    """Return the right to supervise this home, for as long as the file stays open; None when another process has it."""
    home.run.mkdir(parents=True, exist_ok=True)
    file = (home.run / "supervisor.lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def log_tail(part: Part, lines: int = LOG_TAIL_LINES) -> str:
    """Return the end of a part's log since its last start."""
    try:
        with part.log.open("rb") as file:
            file.seek(max(0, part.log.stat().st_size - 64 * 1024))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


class Supervisor:
    """The life of one stack; `run` returns when it has been stopped or could not be started."""

    def __init__(
        self,
        home: Home,
        parts: tuple[Part, ...],
        *,
        probe: Callable[[Part, float], str | None] | None = None,
        watchdog: Watchdog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.home = home
        self.parts = parts
        self._probe = probe or _probe
        self._clock = clock
        self._watchdog = watchdog or Watchdog(
            queue=lambda processes: scheduler_starts_nothing(
                home.airflow_database, slots=AIRFLOW_PARALLEL_TASKS, processes=processes
            )
        )
        self._watched = {p.name: SupervisedPart(p, PartRecord(p.name, PartState.WAITING, port=p.port)) for p in parts}
        self._stopping = False
        self._started = time.time()
        self._phase = Phase.STARTING
        self._manifests = ManifestWatch(home.repository / "jobs", home.repository / "dags" / "jobs.py")
        self._next_look = 0.0

    def run(self) -> int:
        """Run the stack. Returns 0 after an orderly stop, 1 when a part did not come up (the rest is stopped then)."""
        self._install_signals()
        self._write(Phase.STARTING)
        try:
            self._take_over()
            self._check_ports()
            while not self._stopping:
                self.step()
                time.sleep(TICK_SECONDS)
        except StartFailedError as exc:
            logger.error("%s", exc)
            self.stop_parts()
            self._write(Phase.FAILED, failure=exc.failure)
            return 1
        self.stop_parts()
        self._write(Phase.STOPPED)
        return 0

    def request_stop(self) -> None:
        self._stopping = True

    def step(self) -> None:
        """Look at every part once."""
        for watched in self._watched.values():
            match watched.record.state:
                case PartState.WAITING if self._may_start(watched):
                    self._start(watched)
                case PartState.STARTING:
                    self._await_ready(watched)
                case PartState.READY if not self._alive(watched):
                    self._retry_later(watched, f"it ended with {_exit_text(watched.child)}")
                case PartState.READY if (reason := self._watchdog.given_up(watched.part.name)) is not None:
                    # No SIGTERM: a stopped process does not receive it, and a hanging process does not act on it.
                    self._retry_later(watched, reason, grace_seconds=0.0)
                    self._watchdog.begin_anew()
                case PartState.BACKOFF if self._clock() >= watched.next_start:
                    self._start(watched)
                case _:
                    pass
        if self._clock() >= self._next_look:
            self._next_look = self._clock() + MANIFESTS_SECONDS
            self._manifests.look()
        if self._phase is Phase.STARTING and all(
            w.record.state in (PartState.READY, PartState.DONE) for w in self._watched.values()
        ):
            self._write(Phase.RUNNING, ready_seconds=time.time() - self._started)
            logger.info("all parts are ready")

    def stop_parts(self) -> None:
        """Stop everything, in reverse order, with SIGKILL for what does not end in time."""
        self._watchdog.close()
        running = {n: w for n, w in self._watched.items() if w.record.identity is not None}
        for name, watched in running.items():
            if watched.part.is_task and self._alive(watched):
                self._end(watched)
                logger.info("stopped %s", name)
        for wave in stop_order(self.parts):
            members = [running[p.name] for p in wave if p.name in running]
            for watched in members:
                if watched.record.identity is not None:
                    processes.signal_once(watched.record.identity, signal.SIGTERM)
            for watched in members:
                self._end(watched)
                self._record(watched, state=PartState.STOPPED, pid=None, create_time=None)

    # --- starting ---------------------------------------------------------------------------------

    def _take_over(self) -> None:
        """Adopt processes whose configuration has not changed, and end the others, so that none works for an earlier
        stack."""
        self._adopt()
        adopted = {w.record.pid for w in self._watched.values() if w.record.pid is not None}
        lost = [
            p for name in self._watched for p in processes.marked(self.home, name) if _session(p.pid) not in adopted
        ]
        if lost:
            logger.info("ended %d processes that no part accounts for", processes.kill(lost))

    def _adopt(self) -> None:
        for watched in self._watched.values():
            old = records.read_part(self.home, watched.part.name)
            if old is None or old.identity is None:
                self._write_record(watched)
                continue
            if watched.part.is_task or old.argv_digest != watched.part.digest or not old.alive():
                # Out of date, dead, or a task whose end was not seen: remove its remaining processes.
                processes.end_session(old.identity, grace_seconds=watched.part.stop_within_seconds)
                self._write_record(watched)
                continue
            watched.record = replace(old, state=PartState.STARTING)
            watched.begun = self._clock()
            self._write_record(watched)
            logger.info("took over %s (pid %d)", watched.part.name, old.identity.pid)

    def _check_ports(self) -> None:
        for watched in self._watched.values():
            part = watched.part
            if part.port is None or watched.record.pid is not None:
                continue
            if port_taken(part.port, part.host):
                raise StartFailedError(
                    PartFailure(
                        part.name,
                        f"its port {part.port} is taken by {port_owner(part.port)}. Stop that program, or move this "
                        f"part: `updraft up --port-{part.port_name} N`.",
                        str(part.log),
                    )
                )

    def _may_start(self, watched: SupervisedPart) -> bool:
        return all(self._watched[name].record.state in (PartState.READY, PartState.DONE) for name in watched.part.after)

    def _start(self, watched: SupervisedPart) -> None:
        part = watched.part
        if part.stamp is not None and self._phase is Phase.STARTING:
            for path in part.stamp.set_unfinished_aside():
                logger.warning(
                    "%s: the process that made it was killed; it is made anew, and this one is never used", path
                )
            if part.stamp.current() or part.stamp.to_be_made():
                self._record(watched, state=PartState.DONE, argv_digest=part.digest)
                return
        watched.begun = self._clock()
        watched.next_probe = 0.0
        try:
            child, identity = processes.spawn(part.argv, environment=part.environment, cwd=part.cwd, log=part.log)
        except OSError as exc:
            self._failed_to_start(watched, f"{part.argv[0]} cannot be run ({exc.strerror})")
            return
        watched.child = child
        self._record(
            watched,
            state=PartState.STARTING,
            argv_digest=part.digest,
            pid=identity.pid,
            create_time=identity.create_time,
            started=time.time(),
            ready_seconds=None,
        )
        logger.info("started %s (pid %d)", part.name, identity.pid)

    def _await_ready(self, watched: SupervisedPart) -> None:
        part = watched.part
        now = self._clock()
        if not self._alive(watched):
            if part.is_task and watched.child is not None and watched.child.returncode == 0:
                self._stamp(part)
                self._record(watched, state=PartState.DONE, pid=None, create_time=None, last_exit="0")
                return
            # A service may end because one of its processes was killed, so try again; a task's own exit code is final.
            again = not part.is_task or _killed(watched.child)
            self._failed_to_start(watched, f"it ended with {_exit_text(watched.child)}", again=again)
            return
        if now - watched.begun > part.ready_within_seconds:
            waited = f"it was not ready after {part.ready_within_seconds:.0f} s"
            self._failed_to_start(watched, f"{waited} ({watched.why_not})" if watched.why_not else waited)
            return
        if part.is_task or now < watched.next_probe:
            return
        watched.next_probe = now + PROBE_SECONDS
        since = watched.record.started or 0.0
        watched.why_not = self._probe(part, since) or ""
        if not watched.why_not:
            watched.ready_at = self._clock()
            took = watched.ready_at - watched.begun
            self._record(watched, state=PartState.READY, ready_seconds=watched.record.ready_seconds or took)
            if watched.record.identity is not None:
                self._watchdog.watch(part, watched.record.identity)
            logger.info("%s is ready after %.1f s", part.name, took)
            for other in self._watched.values():
                if other.part.stamp is not None and other.part.stamp.made_by == part.name:
                    self._stamp(other.part)

    def _failed_to_start(self, watched: SupervisedPart, reason: str, *, again: bool = False) -> None:
        """Handle a part that did not start. `again`: the cause may be a kill from outside, so the stack's start goes on
        for a few attempts."""
        if self._phase is Phase.STARTING and not (again and watched.deaths + 1 < START_ATTEMPTS):
            self._record(watched, state=PartState.FAILED, last_exit=reason)
            raise StartFailedError(
                PartFailure(watched.part.name, reason, str(watched.part.log), log_tail(watched.part))
            )
        self._retry_later(watched, reason)

    # --- watching ---------------------------------------------------------------------------------

    def _alive(self, watched: SupervisedPart) -> bool:
        if watched.child is not None:
            return watched.child.poll() is None
        return watched.record.alive()

    def _retry_later(self, watched: SupervisedPart, reason: str, *, grace_seconds: float | None = None) -> None:
        """Start the part again after its back-off. `grace_seconds`: between SIGTERM and SIGKILL, if it is not the
        part's own."""
        now = self._clock()
        self._watchdog.forget(watched.part.name)
        # Its children would hold its port, or continue to work without it.
        self._end(watched, grace_seconds)
        ready_for = now - watched.ready_at if watched.ready_at else 0.0
        watched.deaths = deaths_in_a_row(watched.deaths, ready_for)
        watched.ready_at = 0.0
        delay = RESTARTS.seconds(watched.deaths)
        watched.next_start = now + delay
        watched.child = None
        self._record(
            watched,
            state=PartState.BACKOFF,
            pid=None,
            create_time=None,
            restarts=watched.record.restarts + 1,
            last_exit=reason,
        )
        logger.warning("%s: %s; starting it again in %.0f s", watched.part.name, reason, delay)

    def _end(self, watched: SupervisedPart, grace_seconds: float | None = None) -> None:
        identity = watched.record.identity
        if identity is None:
            return
        grace = watched.part.stop_within_seconds if grace_seconds is None else grace_seconds
        processes.end_session(identity, grace_seconds=grace)
        if watched.child is not None:
            with suppress(subprocess.TimeoutExpired):
                watched.child.wait(timeout=REAP_SECONDS)

    # --- records ----------------------------------------------------------------------------------

    def _record(self, watched: SupervisedPart, **changes: object) -> None:
        watched.record = replace(watched.record, **changes)  # type: ignore[arg-type]
        self._write_record(watched)

    def _write_record(self, watched: SupervisedPart) -> None:
        records.write_part(self.home, watched.record)

    def _write(self, phase: Phase, *, ready_seconds: float | None = None, failure: PartFailure | None = None) -> None:
        self._phase = phase
        records.write_supervisor(
            self.home,
            SupervisorRecord(os.getpid(), psutil.Process().create_time(), phase, self._started, ready_seconds, failure),
        )

    def _stamp(self, part: Part) -> None:
        if part.stamp is not None:
            write_private(part.stamp.file, part.stamp.text)

    def _install_signals(self) -> None:
        def stop(_number: int, _frame: FrameType | None) -> None:
            self.request_stop()

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, stop)


class StartFailedError(StackError):
    """A part did not become ready."""

    def __init__(self, failure: PartFailure) -> None:
        super().__init__(str(failure))
        self.failure = failure


def _probe(part: Part, since: float) -> str | None:
    assert part.probe is not None
    return not_ready_because(part.probe, since=since)


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _killed(child: subprocess.Popen[bytes] | None) -> bool:
    return child is None or child.returncode is None or child.returncode < 0


def _exit_text(child: subprocess.Popen[bytes] | None) -> str:
    if child is None or child.returncode is None:
        return "an unknown exit code"
    if child.returncode < 0:
        return f"signal {signal.Signals(-child.returncode).name}"
    return f"exit code {child.returncode}"
