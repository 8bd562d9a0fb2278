"""A thousand jobs that wait in the queue of one triggerer, beside fifty that run.

`NOTES` says how it is measured.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kubecluster import kwok
from kubecluster.running import Cluster

from benchmarks.feeder import Feeder
from benchmarks.figures.triggers import percentile
from benchmarks.options import Options
from benchmarks.results import Budget, Measured, TableOf, Value
from benchmarks.stack import BenchmarkError
from benchmarks.testcluster import PartHome, cluster_and_account, kubectl, part_home, say
from benchmarks.waiting import CALM_SECONDS, Phase, Seen, Size, on_fake_nodes
from updraft.kubernetes.capacity import capacity_from_nodes
from updraft.ledger import Ledger

NAME, TITLE = "queue", "A thousand jobs in the queue"
CPU_BUDGET = Budget(at="most", value=5)
GRANT_BUDGET = Budget(at="most", value=1)
END_BUDGET = Budget(at="most", value=2)
FAKE_NODES, LINE_SECONDS = 4, 60.0
PLANNED_SECONDS = 300.0
GRANT_SECONDS = 30.0
FREE_EVERY_SECONDS = 1.5

NOTES = (
    "One triggerer process, as the stack starts it, on Airflow's database; ledger, MLflow and object store are real. "
    "Runs are made as those of `python bench triggers`: jobs that run have pods on nodes by KWOK in the Kubernetes of "
    "`make cluster`, jobs that wait are deferred to the trigger of `admit`. A gang in the queue needs all nodes, so "
    "that one has its turn at a time.",
    "The CPU at rest is that of the triggerer's processes while all wait and nothing changes, less that of the same "
    "triggerer with the running jobs alone, each over `window_seconds`.",
    "Then the granted job releases its grant and the next one is granted, `frees` times; each time all places change. "
    "The delay is from the release to the event of the next job's trigger (`scheduled_dttm` of its task instance). "
    "With each release one of the running jobs ends. Its delay is from the API server's answer to the last write of "
    "the pod's status to the event.",
)


@dataclass(frozen=True)
class Scale:
    queued: int
    running: int
    frees: int
    window_seconds: float


FULL = Scale(queued=1000, running=50, frees=100, window_seconds=120)
QUICK = Scale(queued=40, running=4, frees=8, window_seconds=20)


def measure(options: Options) -> Measured:
    scale = QUICK if options.quick else FULL
    with cluster_and_account() as (cluster, account):
        gang = whole_cluster(cluster)
        with (
            kwok.fake_nodes(cluster, FAKE_NODES, say, line_seconds=LINE_SECONDS),
            part_home("bench-queue", cluster, account) as home,
        ):
            extra = on_fake_nodes(home) | {"BENCH_GANG": json.dumps(gang)}
            with Feeder("defer_pods.py", home, cluster, extra) as feeder:
                queue = Queue(scale, home, cluster, feeder)
                queue.run()
    return measured(queue, scale)


def whole_cluster(cluster: Cluster) -> dict[str, Any]:
    """Return a gang of which only one fits at a time: half of each node's CPUs and a bit, on every node that is
    ready."""
    nodes = capacity_from_nodes(json.loads(kubectl(cluster, "get", "nodes", "-o", "json"))["items"]).ready
    cpus = math.floor(min(node.cpus for node in nodes))
    if any(node.cpus >= 2 * cpus for node in nodes):
        raise BenchmarkError(f"the nodes are too unlike for one gang at a time: {nodes}")
    return {"learners": len(nodes), "cpus": cpus, "memory_mib": 64, "gpus": 0, "gpu_type": None}


@dataclass
class Spent:
    """CPU of the triggerer over a window, in cores, and what it holds in memory."""

    cores: float
    memory_mib: float


@dataclass
class Found:
    spent: dict[str, Spent] = field(default_factory=dict)
    planned_seconds: float = 0.0  # from the first enqueue to the last job's place
    grant_seconds: list[float] = field(default_factory=list)


class Queue(Phase):
    """Running jobs are those of the `ours` side; the queue's are counted apart."""

    def __init__(self, scale: Scale, home: PartHome, cluster: Cluster, feeder: Feeder) -> None:
        size = Size(scale.running, 0, 0, 0, scale.window_seconds, 0)
        super().__init__("ours", "ended", size, home, cluster, feeder)
        self._scale = scale
        self._ledger = Ledger(f"sqlite:///{home.home.root}/ledger.db")
        self.found = Found()

    def _measure(self, seen: Seen) -> None:
        scale, found = self._scale, self.found
        running = self._defer(0, scale.running)
        self._await_watched(seen, running)
        found.spent["running"] = self._rest(scale.running)
        began = time.monotonic()
        asked = {"side": "queued", "first": 0, "count": scale.queued}
        self._pods |= self._feeder.ask(json.dumps(asked))["pods"]
        last = f"queued-{scale.queued - 1:04d}"
        self._wait_until(lambda: self._ledger.queue.admission(last).place == scale.queued - 1, PLANNED_SECONDS)
        self._await_grant("queued-0000")
        found.planned_seconds = time.monotonic() - began
        say(f"{scale.queued} jobs are in the queue and planned after {found.planned_seconds:.0f} s")
        found.spent["queued"] = self._rest(scale.running + scale.queued)
        start = time.time()
        for number in range(scale.frees):
            self._sleep_until(start + number * FREE_EVERY_SECONDS)
            if number < len(running):
                self._end(running[number : number + 1])
            released = time.time()
            self._ledger.queue.release(f"queued-{number:04d}")
            found.grant_seconds.append(self._await_grant(f"queued-{number + 1:04d}") - released)
        self._end(running[scale.frees :])
        self._await_events(running)
        self.turn.delays = {"running": self._delays(seen, running)}

    def _rest(self, triggers: int) -> Spent:
        time.sleep(CALM_SECONDS)
        before = self._use(triggers)
        time.sleep(self._scale.window_seconds)
        after = self._use(triggers)
        return Spent((after.cpu_seconds - before.cpu_seconds) / (after.at - before.at), after.memory_mib)

    def _await_grant(self, run: str) -> float:
        """Wait for the run's event; return its Unix time."""
        deadline = time.monotonic() + GRANT_SECONDS
        while (event := self._events().get(run)) is None:
            if time.monotonic() > deadline:
                raise BenchmarkError(f"{run} was not told of its turn within {GRANT_SECONDS:g} s")
            time.sleep(0.1)
        if "granted" not in event[1]:
            raise BenchmarkError(f"{run} was told: {event[1]}")
        return event[0]


def measured(queue: Queue, scale: Scale) -> Measured:
    found, ends = queue.found, queue.turn.delays["running"]
    cost_percent = 100 * (found.spent["queued"].cores - found.spent["running"].cores)
    lost = len(queue.turn.lost) + len(queue.turn.wrong)
    return Measured(
        settings={
            "queued": scale.queued,
            "running": scale.running,
            "frees": scale.frees,
            "window_seconds": scale.window_seconds,
            "free_every_seconds": FREE_EVERY_SECONDS,
        },
        values=(
            Value(name="CPU of the queue at rest", unit="% of a core", samples=(cost_percent,), budget=CPU_BUDGET),
            Value(
                name="Place given back to the next job's grant, p99",
                unit="s",
                samples=(percentile(found.grant_seconds, 99),),
                budget=GRANT_BUDGET,
            ),
            Value(name="Running pod's end to event, p99", unit="s", samples=(percentile(ends, 99),), budget=END_BUDGET),
            Value(name="Events lost or wrong", unit="", samples=(float(lost),), budget=Budget(at="most", value=0)),
        ),
        tables=(table(found, ends),),
        notes=NOTES,
    )


def table(found: Found, ends: Sequence[float]) -> TableOf:
    running, queued = found.spent["running"], found.spent["queued"]
    rows = (
        ("CPU with the running jobs alone, % of a core", round(100 * running.cores, 2)),
        ("CPU with the queue, % of a core", round(100 * queued.cores, 2)),
        ("memory with the running jobs alone, MiB", round(running.memory_mib)),
        ("memory with the queue, MiB", round(queued.memory_mib)),
        ("from the first job in the queue to the last one's place, s", round(found.planned_seconds, 1)),
        ("place given back to grant, median s", round(percentile(found.grant_seconds, 50), 3)),
        ("the same, longest s", round(max(found.grant_seconds), 3)),
        ("running pod's end to event, median s", round(percentile(ends, 50), 3)),
        ("the same, longest s", round(max(ends), 3)),
    )
    return TableOf(title="The triggerer", columns=("", "value"), rows=rows)
