"""A thousand jobs watched by one triggerer, with whole lives beside them, and as many stock pod triggers.

`NOTES` says how it is measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from kubecluster import kwok

from benchmarks.feeder import Feeder
from benchmarks.options import Options
from benchmarks.results import Budget, Comparison, Measured, TableOf, Value
from benchmarks.testcluster import cluster_and_account, part_home, say
from benchmarks.waiting import Phase, Size, Turn, on_fake_nodes

NAME, TITLE = "triggers", "A thousand watched jobs"
MEMORY_BUDGET = Budget(at="most", value=1)
REQUEST_BUDGET = Budget(at="most", value=2)
DELAY_BUDGET = Budget(at="most", value=2)
LOST_BUDGET = Budget(at="most", value=0)
FULL = Size(triggers=1000, few=20, lives=50, life_seconds=20, window_seconds=180, ends_per_second=5)
QUICK = Size(triggers=50, few=10, lives=5, life_seconds=10, window_seconds=60, ends_per_second=5)
FAKE_NODES, LINE_SECONDS = 4, 60.0
GOOD = {"ours": "ended", "stock": "success"}
OURS, STOCK = "train's trigger", "KubernetesPodTrigger"

NOTES = (
    "Each side has a triggerer process of its own, as the stack starts it, on one Airflow database, in turn. Task "
    "instances and triggers are rows made through Airflow's own models (`bench/programs/defer_pods.py`): deferred to "
    "the trigger that the operator of `train` builds, or to what a deferrable KubernetesPodOperator builds with its "
    "defaults. Ours are jobs of the ledger with MLflow runs and an attempt that the platform's functions have "
    "deployed; object store, MLflow and ledger are real.",
    "The cluster is that of `make cluster`, with nodes and pods' statuses by KWOK. Our pods have init container, "
    "program and sidecar, and their logs are followed from their node; stock triggers read no log.",
    "While all are watched, further pods are created, run for `life_seconds` and end. From a pod's end, the API "
    "server's answer to the last write of its status, to the event: `scheduled_dttm` of its task instance. Afterwards "
    "all the others end, `ends_per_second` of them.",
    "Requests are those of the platform's account in the API server's audit log while all are watched, those of the "
    "whole lives included. The pods are created by another account.",
    "Memory is what the triggerer's processes (shared pages counted once) grow by from `few` triggers to `triggers`.",
)


def measure(options: Options) -> Measured:
    size = QUICK if options.quick else FULL
    turns: list[dict[str, Turn]] = []
    with cluster_and_account() as (cluster, account):
        with (
            kwok.fake_nodes(cluster, FAKE_NODES, say, line_seconds=LINE_SECONDS),
            part_home("bench-triggers", cluster, account) as home,
        ):
            with Feeder("defer_pods.py", home, cluster, on_fake_nodes(home)) as feeder:
                for _ in range(options.pairs(1)):
                    turns.append({side: Phase(side, GOOD[side], size, home, cluster, feeder).run() for side in GOOD})
    return measured(turns, size)


def measured(turns: Sequence[dict[str, Turn]], size: Size) -> Measured:
    ours, stock = [turn["ours"] for turn in turns], [turn["stock"] for turn in turns]
    lost = [len(turn.lost) + len(turn.wrong) for turn in ours]
    comparisons = tuple(
        Comparison(name=name, unit=unit, a=OURS, b=STOCK, pairs=pairs)
        for name, unit, pairs in (
            ("Memory per trigger", "MiB", [_pair(t, _memory) for t in turns]),
            ("API requests per job and minute", "1/min", [_pair(t, _rate) for t in turns]),
            ("Pod's end to event, p99", "s", [_pair(t, _delay) for t in turns]),
        )
        if all(b for _, b in pairs)
    )
    return Measured(
        settings={
            "triggers": size.triggers,
            "few": size.few,
            "lives": size.lives,
            "life_seconds": size.life_seconds,
            "window_seconds": size.window_seconds,
            "ends_per_second": size.ends_per_second,
            "fake_nodes": FAKE_NODES,
            "line_seconds": LINE_SECONDS,
        },
        comparisons=comparisons,
        values=(
            Value(name="Memory per trigger", unit="MiB", samples=tuple(map(_memory, ours)), budget=MEMORY_BUDGET),
            Value(
                name="API requests per job and minute",
                unit="",
                samples=tuple(map(_rate, ours)),
                budget=REQUEST_BUDGET,
            ),
            Value(name="Pod's end to event, p99", unit="s", samples=tuple(map(_delay, ours)), budget=DELAY_BUDGET),
            Value(name="Events lost or wrong", unit="", samples=tuple(map(float, lost)), budget=LOST_BUDGET),
        ),
        tables=(side_table(ours, stock), request_table(ours, stock)),
        notes=NOTES,
        doubts=tuple(
            f"{turn.unwatched} of {size.triggers} pods of {turn.side} were never asked for"
            for turn in ours
            if turn.unwatched
        ),
    )


def percentile(samples: Sequence[float], hundredths: float) -> float:
    """Return the smallest sample that so many hundredths of all do not exceed; NaN of none."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(hundredths / 100 * len(ordered)) - 1)] if ordered else math.nan


def _pair(turn: dict[str, Turn], of: object) -> tuple[float, float]:
    assert callable(of)
    return of(turn["ours"]), of(turn["stock"])


def _memory(turn: Turn) -> float:
    return turn.memory_per_trigger_mib


def _rate(turn: Turn) -> float:
    """Return the rate of a job among those that are watched all the time."""
    minutes = (turn.window[1] - turn.window[0]) / 60
    return len(turn.requests) / turn.uses["many"].triggers / minutes


def _delay(turn: Turn) -> float:
    return percentile(turn.delays["lives"], 99)


def side_table(ours: Sequence[Turn], stock: Sequence[Turn]) -> TableOf:
    def row(name: str, of: object) -> tuple[str | float | None, ...]:
        assert callable(of)
        return (name, *(of(turn) for turn in (ours[-1], stock[-1])))

    def delay(kind: str, hundredths: float) -> object:
        return lambda turn: percentile(turn.delays[kind], hundredths)

    rows = (
        row("triggerer with few triggers, MiB", lambda t: t.uses["few"].memory_mib),
        row("triggerer with all, MiB", lambda t: t.uses["many"].memory_mib),
        row("CPU while all are watched, cores", cores),
        row("seconds until all were watched", lambda t: t.watched_seconds),
        row("never watched", lambda t: t.unwatched),
        row("whole lives: pod's end to event, median s", delay("lives", 50)),
        row("whole lives: the same, longest s", delay("lives", 100)),
        row("all the others: pod's end to event, median s", delay("watched", 50)),
        row("all the others: the same, p99 s", delay("watched", 99)),
        row("events lost", lambda t: len(t.lost)),
        row("events that say the wrong thing", lambda t: len(t.wrong)),
    )
    return TableOf(title="Each side", columns=("", OURS, STOCK), rows=rows)


def cores(turn: Turn) -> float:
    first, last = turn.uses["before"], turn.uses["many"]
    return (last.cpu_seconds - first.cpu_seconds) / (last.at - first.at)


def request_table(ours: Sequence[Turn], stock: Sequence[Turn]) -> TableOf:
    """Return a table of the last turns."""
    counts = [Counter(f"{r.verb} {r.resource}" for r in turns[-1].requests) for turns in (ours, stock)]
    kinds = sorted(counts[0].keys() | counts[1].keys(), key=lambda kind: -(counts[0][kind] + counts[1][kind]))
    rows = tuple((kind, counts[0][kind], counts[1][kind]) for kind in kinds)
    return TableOf(title="Requests while all were watched", columns=("request", OURS, STOCK), rows=rows)
