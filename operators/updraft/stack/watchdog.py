"""Check whether ready parts still work: a living process may be stopped (SIGSTOP) or wait for ever.

Each address is asked in a thread of its own, so that one that hangs delays neither the others nor the supervisor. The
supervisor says which parts are ready, and kills parts that are given up. Airflow's daemons do not listen: the
api-server reports their heartbeats, and while it does not answer, nothing is known of them. The limits are long,
because a machine that trains on all of its cores delays everything; docs/design/0008-executor.md has the reasons.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from updraft.stack import probes, processes
from updraft.stack.parts import Part, Probe
from updraft.stack.probes import NoAnswerError
from updraft.stack.processes import Identity

PAUSE_SECONDS = 4.0  # between two looks
ANSWER_SECONDS = 11.0  # after this time a look has failed; two of them and a pause are HUNG_SECONDS
HUNG_SECONDS = 25.0
STOPPED_SECONDS = 10.0  # the limit for a stopped process whose heartbeat is already late
AT_WORK_SECONDS = 120.0
LATE_BEAT_SECONDS = 40.0  # heartbeats come every 5 s; Airflow's own limit is 30 s
AT_WORK_SHARE = 0.02  # of a core: a quarter of what one thread gets among 25 threads on two cores
MIN_FAILURES = 2  # a single failure may come from a moment in which this process itself stood still
QUEUE_LOOKS = 2
QUEUE_MEMORY_SECONDS = 600.0
QUEUE_MOST_LOOKS = 64

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WatchTiming:
    """How often parts are asked, and how long a part that does no work may fail."""

    pause_seconds: float = PAUSE_SECONDS
    answer_seconds: float = ANSWER_SECONDS
    hung_seconds: float = HUNG_SECONDS


@dataclass(frozen=True)
class WorkDone:
    """The work that the processes of a part have done until now."""

    at: float  # monotonic seconds
    cpu_seconds: float
    stopped: bool = False
    on_disk: bool = False  # it waits for the disk, for instance for swapped-out memory


@dataclass
class WatchedPart:
    """A part, its process, and its consecutive failures."""

    part: Part
    identity: Identity
    failures: int = 0
    since: float = 0.0
    before: WorkDone | None = None
    stuck_looks: int = 0
    hangs: str | None = None  # why it is given up
    starts_nothing: str | None = None

    def works(self) -> None:
        self.failures, self.since, self.before, self.hangs = 0, 0.0, None, None


def patience_seconds(
    before: WorkDone, now: WorkDone, *, beats: bool, answers: bool = False, hung_seconds: float = HUNG_SECONDS
) -> float:
    """Return how long a part may fail before it is killed.

    before, now: at the first and the latest failure. beats: it fails by late heartbeats, not by missing answers.
    answers: it does answer, with an error.
    """
    if now.stopped:
        return STOPPED_SECONDS if beats else hung_seconds
    seconds = now.at - before.at
    busy = now.cpu_seconds - before.cpu_seconds >= AT_WORK_SHARE * seconds if seconds > 0 else True
    return AT_WORK_SECONDS if answers or now.on_disk or busy else hung_seconds


def measure(part: Part, leader: Identity) -> WorkDone:
    """Return the CPU time of the part's session; tasks beside the scheduler do not count as its work."""
    first = leader.process()
    members = ([first] if first else []) if part.runs_tasks else processes.session_members(leader)
    statuses = [_status(process) for process in members]
    return WorkDone(
        at=time.monotonic(),
        cpu_seconds=sum(processes.cpu_seconds(process) for process in members),
        stopped=first is not None and _status(first) == psutil.STATUS_STOPPED,
        on_disk=psutil.STATUS_DISK_SLEEP in statuses,
    )


class Watchdog:
    """Watches parts until `forget` is called; `given_up` returns the reason for a part that no longer works."""

    def __init__(
        self,
        *,
        queue: Callable[[int], str | None] | None = None,
        ask: Callable[[Probe, float], bytes] = probes.ask,
        measure: Callable[[Part, Identity], WorkDone] = measure,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        threads: bool = True,
        timing: WatchTiming = WatchTiming(),
    ) -> None:
        """Create a watchdog. `queue` gets the number of task processes, and returns what is wrong if the scheduler
        starts no tasks."""
        self._queue = queue
        self._ask = ask
        self._measure = measure
        self._clock = clock
        self._wall_clock = wall_clock
        self._timing = timing
        self._threads: dict[str, threading.Thread] | None = {} if threads else None
        self._watched: dict[str, WatchedPart] = {}
        self._mended: list[float] = []  # when the scheduler was killed because of its queue
        self._lock = threading.Lock()
        self._over = threading.Event()

    def watch(self, part: Part, identity: Identity) -> None:
        """Watch the part from now on, since it is ready."""
        assert part.probe is not None
        with self._lock:
            self._watched[part.name] = WatchedPart(part, identity)
        url = part.probe.url
        self._start(url, lambda: self.look_at(url))
        if part.runs_tasks and self._queue is not None:
            self._start("queue", self.look_at_queue)

    def forget(self, name: str) -> None:
        with self._lock:
            self._watched.pop(name, None)

    def given_up(self, name: str) -> str | None:
        """Return why the part has to be killed, else None."""
        with self._lock:
            watched = self._watched.get(name)
            return None if watched is None else watched.hangs or watched.starts_nothing

    def begin_anew(self) -> None:
        """Forget all failures: a part was killed that may have held up the others, by a lock of the database."""
        with self._lock:
            for watched in self._watched.values():
                watched.works()
                watched.stuck_looks, watched.starts_nothing = 0, None

    def close(self) -> None:
        self._over.set()

    # --- looking ----------------------------------------------------------------------------------

    def look_at(self, url: str) -> None:
        """Ask once, for every part that shows itself there."""
        with self._lock:
            here = [w for w in self._watched.values() if w.part.probe is not None and w.part.probe.url == url]
        if not here:
            return
        probe = here[0].part.probe
        assert probe is not None
        began = self._clock()
        try:
            body = self._ask(probe, self._timing.answer_seconds)
        except NoAnswerError as exc:
            for watched in here:
                if _component(watched.part) is None:
                    self._failed(watched, began, str(exc), answers=exc.code is not None)
                else:
                    self._works(watched)  # its state is unknown
            return
        for watched in here:
            component = _component(watched.part)
            age = None if component is None else probes.heartbeat_age_seconds(component, body, self._wall_clock())
            if age is not None and age > LATE_BEAT_SECONDS:
                self._failed(watched, began, f"its last heartbeat was {age:.0f} s ago", beats=True)
            else:
                self._works(watched)

    def look_at_queue(self) -> None:
        """Check whether the scheduler starts what it has queued; after two bad looks in a row it is restarted.

        A restart that does not help is repeated less and less often: each costs the tasks that run.
        """
        with self._lock:
            watched = next((w for w in self._watched.values() if w.part.runs_tasks), None)
        if watched is None or self._queue is None:
            return
        problem = self._queue(len(processes.children(watched.identity)))
        now = self._clock()
        with self._lock:
            if not self._current(watched):
                return
            watched.stuck_looks = watched.stuck_looks + 1 if problem else 0
            self._mended = [at for at in self._mended if now - at < QUEUE_MEMORY_SECONDS]
            if problem and watched.stuck_looks >= min(QUEUE_LOOKS * 2 ** len(self._mended), QUEUE_MOST_LOOKS):
                self._mended.append(now)
                watched.starts_nothing = f"it was killed: {problem}"

    def _works(self, watched: WatchedPart) -> None:
        with self._lock:
            if self._current(watched) and watched.failures:
                watched.works()

    def _failed(
        self, watched: WatchedPart, began: float, why: str, *, beats: bool = False, answers: bool = False
    ) -> None:
        work = self._measure(watched.part, watched.identity)
        with self._lock:
            if not self._current(watched):
                return
            if not watched.failures:
                watched.since = began
                watched.before = work
                logger.info("%s: %s", watched.part.name, why)
            watched.failures += 1
            assert watched.before is not None
            seconds = self._clock() - watched.since
            patience = patience_seconds(
                watched.before, work, beats=beats, answers=answers, hung_seconds=self._timing.hung_seconds
            )
            if watched.failures >= MIN_FAILURES and seconds >= patience:
                what = why if beats else f"{'errors' if answers else 'no answer'} for {seconds:.0f} s ({why})"
                watched.hangs = f"it was killed: {what}{', its process is stopped' if work.stopped else ''}"

    def _current(self, watched: WatchedPart) -> bool:
        """Return whether it is still the process that is meant; the lock is held."""
        return self._watched.get(watched.part.name) is watched

    def _start(self, name: str, look: Callable[[], None]) -> None:
        if self._threads is None or name in self._threads:
            return
        thread = threading.Thread(target=self._run, args=(look,), name=f"watch {name}", daemon=True)
        self._threads[name] = thread
        thread.start()

    def _run(self, look: Callable[[], None]) -> None:
        while not self._over.wait(self._timing.pause_seconds):
            try:
                look()
            except Exception:  # outermost line of the thread
                logger.exception("a look at the parts failed")


def _component(part: Part) -> str | None:
    return None if part.probe is None else part.probe.component


def _status(process: psutil.Process) -> str | None:
    try:
        return str(process.status())
    except psutil.Error:
        return None
