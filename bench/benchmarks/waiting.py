"""Many triggers in one triggerer process, whole lives of pods beside them, and what all of it costs.

`Phase` is one side's turn: its own triggerer process, its pods, and what the audit log and Airflow's database say of
both. Called by `figures.triggers`.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType

from account_helpers import NAMESPACE
from kubecluster import api, kwok
from kubecluster.running import Cluster
from kubecluster.stages import END

from benchmarks.audit import AuditLog, Request
from benchmarks.feeder import Feeder
from benchmarks.stack import BenchmarkError
from benchmarks.testcluster import USER, PartHome, kubectl, say
from updraft.stack.parts import CONNECTION
from updraft.stack.processes import Identity, cpu_seconds, end_session, memory_bytes, session_members

TRIGGERER = "airflow-triggerer"
LOOK_SECONDS = 1.0
WATCHED_SECONDS = 900.0  # for all pods to be watched
LOST_SECONDS = 180.0  # an event that has not come so long after its pod's end is lost
CALM_SECONDS = 15.0
MIB = 2**20


def on_fake_nodes(home: PartHome) -> dict[str, str]:
    """Return what `bench/programs/defer_pods.py` needs to know of the triggerer's connection and of KWOK's nodes."""
    return {
        "BENCH_CONNECTION": home.parts[TRIGGERER].environment[CONNECTION],
        "BENCH_FAKE_NODES": json.dumps({"selector": kwok.SELECTOR, "toleration": kwok.TOLERATION}),
    }


class Seen:
    """What the audit log has told so far, read in a thread so that no part of it is rotated away."""

    def __init__(self, cluster: Cluster) -> None:
        self._log = AuditLog(cluster.layout.audit_log)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, name="audit log", daemon=True)
        self.asked: list[Request] = []  # by the platform's account
        self.written: dict[str, float] = {}  # by pod: when its status was written last

    def __enter__(self) -> Seen:
        self._log.__enter__()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        self._log.__exit__(kind, exc, tb)

    def _read(self) -> None:
        while not self._over.wait(LOOK_SECONDS / 2):
            for request in self._log.new():
                if request.user == USER:
                    self.asked.append(request)
                elif request.agent.startswith("kwok/") and request.resource == "pods/status":
                    self.written[request.name] = request.answered

    def pods_asked_for(self) -> set[str]:
        return {request.name for request in list(self.asked) if request.resource.startswith("pods") and request.name}

    def requests(self, first: float, last: float) -> list[Request]:
        return [request for request in list(self.asked) if first <= request.received < last]


@dataclass(frozen=True)
class Use:
    """Of a triggerer's processes at one moment."""

    at: float
    memory_mib: float
    cpu_seconds: float
    triggers: int


@dataclass
class Turn:
    """What one side's turn has shown; times are unix seconds."""

    side: str
    uses: dict[str, Use] = field(default_factory=dict)
    watched_seconds: float | None = None  # until all pods were watched
    unwatched: int = 0
    window: tuple[float, float] = (0.0, 0.0)
    requests: list[Request] = field(default_factory=list)  # in the window
    delays: dict[str, list[float]] = field(default_factory=dict)  # pod's end to event, by kind of pod
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def memory_per_trigger_mib(self) -> float:
        few, many = self.uses["few"], self.uses["many"]
        return (many.memory_mib - few.memory_mib) / (many.triggers - few.triggers)


@dataclass(frozen=True)
class Size:
    """How much of everything; `ends_per_second` of those that were watched, when all is measured."""

    triggers: int
    few: int
    lives: int
    life_seconds: float
    window_seconds: float
    ends_per_second: float


class Phase:
    """One side's turn. `run` once."""

    def __init__(self, side: str, good: str, size: Size, home: PartHome, cluster: Cluster, feeder: Feeder) -> None:
        self._size, self._home, self._cluster, self._feeder = size, home, cluster, feeder
        self._good = good  # what a good end's event holds
        self._pods: dict[str, str] = {}  # by run
        self._leader: Identity | None = None
        self.turn = Turn(side)

    def run(self) -> Turn:
        with Seen(self._cluster) as seen:
            self._leader = self._home.serve(TRIGGERER)
            try:
                self._measure(seen)
            finally:
                end_session(self._leader, grace_seconds=20)
                kubectl(self._cluster, "delete", "pods", "--all", "-n", NAMESPACE, "--wait=false", "--grace-period=0")
        self._wait_until(lambda: not kubectl(self._cluster, "get", "pods", "-n", NAMESPACE, "-o", "name"), 300)
        return self.turn

    def _measure(self, seen: Seen) -> None:
        size, turn = self._size, self.turn
        warm = self._defer(0, size.few + 1)
        self._await_watched(seen, warm)
        self._end(warm[:1])  # loads what the end of a pod needs
        self._await_events(warm[:1])
        time.sleep(CALM_SECONDS)
        turn.uses["few"] = self._use(size.few)
        began = time.time()
        watched = warm[1:] + self._defer(len(warm), size.triggers - size.few)
        say(f"{turn.side}: {size.triggers} task instances are deferred after {time.time() - began:.0f} s")
        turn.unwatched = self._await_watched(seen, watched)
        turn.watched_seconds = time.time() - began
        say(f"{turn.side}: {size.triggers - turn.unwatched} are watched after {turn.watched_seconds:.0f} s")
        time.sleep(CALM_SECONDS)
        start = self._use(size.triggers)
        lives = self._live(start.at, len(warm) + size.triggers)
        turn.uses["before"], turn.uses["many"] = start, self._use(size.triggers)
        turn.window = (start.at, turn.uses["many"].at)
        for number, run in enumerate(watched):
            self._sleep_until(turn.window[1] + number / size.ends_per_second)
            self._end([run])
        self._await_events([*lives, *watched])
        turn.requests = seen.requests(*turn.window)
        turn.delays = {"lives": self._delays(seen, lives), "watched": self._delays(seen, watched)}

    def _live(self, began: float, first: int) -> list[str]:
        """Run whole lives, spread over the window; the last one has some seconds for its event."""
        size = self._size
        step = (size.window_seconds - size.life_seconds - 10) / max(1, size.lives)
        runs: list[str] = []
        ended = 0
        while time.time() < began + size.window_seconds:
            passed = time.time() - began
            if len(runs) < size.lives and passed >= len(runs) * step:
                runs += self._defer(first + len(runs), 1)
            if ended < len(runs) and passed >= ended * step + size.life_seconds:
                self._end([runs[ended]])
                ended += 1
            time.sleep(0.05)
        self._end(runs[ended:])
        return runs

    def _defer(self, first: int, count: int) -> list[str]:
        asked = {"side": self.turn.side, "first": first, "count": count}
        made: dict[str, str] = self._feeder.ask(json.dumps(asked))["pods"]
        self._pods |= made
        return list(made)

    def _end(self, runs: Sequence[str]) -> None:
        for run in runs:
            url = f"{self._cluster.network.api_url}/api/v1/namespaces/{NAMESPACE}/pods/{self._pods[run]}"
            api.patch(self._cluster.layout, url, {"metadata": {"annotations": {END: "now"}}})

    def _await_watched(self, seen: Seen, runs: Sequence[str]) -> int:
        """Wait until the triggerer has asked for each pod; return how many it has not asked for."""
        wanted = {self._pods[run] for run in runs}
        with suppress(BenchmarkError):
            self._wait_until(lambda: wanted <= seen.pods_asked_for(), WATCHED_SECONDS)
        return len(wanted - seen.pods_asked_for())

    def _await_events(self, runs: Sequence[str]) -> None:
        turn = self.turn
        with suppress(BenchmarkError):
            self._wait_until(lambda: all(run in self._events() for run in runs), LOST_SECONDS)
        events = self._events()
        turn.lost = [run for run in runs if run not in events]
        turn.wrong = [run for run in runs if run in events and self._good not in events[run][1]]

    def _delays(self, seen: Seen, runs: Sequence[str]) -> list[float]:
        events = self._events()
        return [events[run][0] - seen.written[self._pods[run]] for run in runs if run in events]

    def _events(self) -> dict[str, tuple[float, str]]:
        """Return, by run, when its event was recorded, and the event."""
        file = self._home.home.airflow / "airflow.db"
        connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=30)
        try:
            query = "SELECT run_id, scheduled_dttm, next_kwargs FROM task_instance WHERE dag_id='watched'"
            rows = connection.execute(f"{query} AND state='scheduled'").fetchall()
        finally:
            connection.close()
        return {run: (datetime.fromisoformat(f"{at}+00:00").timestamp(), str(event)) for run, at, event in rows}

    def _use(self, triggers: int) -> Use:
        assert self._leader is not None
        members = session_members(self._leader)
        if len(members) < 2:
            raise BenchmarkError(f"the triggerer has ended; see {self._home.parts[TRIGGERER].log}")
        memory = sum(memory_bytes(process) for process in members) / MIB
        return Use(time.time(), memory, sum(cpu_seconds(process) for process in members), triggers)

    def _wait_until(self, done: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                raise BenchmarkError("it took too long")
            time.sleep(LOOK_SECONDS)

    def _sleep_until(self, at: float) -> None:
        time.sleep(max(0.0, at - time.time()))
