"""The experiments of Effective Elastic Scaling in virtual time: what it brings to choose the batch with the devices,
and what goodput and the price of a resize add."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from functools import cache

from benchmarks.options import Options
from benchmarks.results import Budget, Measured, TableOf, Value
from updraft.simulation import Outcome, Size, TrainingJob, View, simulate
from updraft.simulation.catalogue import POLICIES
from updraft.simulation.engine import Course
from updraft.simulation.traces import KINDS, MIX, Batch, generate

NAME, TITLE = "elastic", "Elastic sizes: the paper's experiments"
HOURS = 3.0
PAUSE = 30.0  # seconds of a checkpoint and restart, as in the paper's setting
RATES = (20, 40, 60, 90, 120)  # jobs in an hour, for 40 devices

NOTES = (
    "Jobs arrive at random for 3 hours. Each trains for 10 to 90 minutes on one "
    "device. Four kinds, in equal parts if nothing else is said: compute-bound, balanced, communication-bound, and "
    "compute-bound with a batch that may not change. A batch is 32 to 512, and a learner has memory for 64 samples. A "
    "start and a resize cost 30 s. Speeds are made up (`updraft.simulation.traces.KINDS`): the paper's are not "
    "published.",
    "*Baseline*: the devices of all jobs are chosen by the dynamic program, and the batch is fixed: at the smallest or "
    "largest one of the job's range, or at a random power of two between them. *Paper*: the batch too. *Updraft*: the "
    "platform's function, with goodput, the restart factor, and no change for a gain below 5 %. With *drop*, a job "
    "that finds no room when it comes is turned away; otherwise it waits. Figures are medians of the runs; ratios are "
    "of medians.",
    "The paper (Saxena et al., MASCOTS 2020) reports up to about 2 times as many jobs completed, 10 times shorter "
    "completion and 3 times fewer drops than its baseline.",
    "*Event loop*: 100,000 jobs that all have room, under a policy that only starts them.",
)


def measure(options: Options) -> Measured:
    runs = options.pairs(2, 1)
    hours = HOURS if not options.quick else 1.0
    restricted = _restricted(runs, hours)
    rows_drop = [_dropped(40, rate, MIX, "random", runs, hours) for rate in RATES]
    rows_drop += [_dropped(40, 60, MIX, batch, runs, hours) for batch in ("smallest", "largest")]
    rows_drop += [_dropped(40, 60, (kind,), "random", runs, hours) for kind in KINDS]
    large = (200, 600, 1200) if not options.quick else (600,)
    rows_drop += [_dropped(400, rate, MIX, "random", 1, hours) for rate in large]
    rows_wait = [_waiting(40, rate, MIX, "random", runs, hours) for rate in RATES]
    rows_wait += [_waiting(40, 60, MIX, batch, runs, hours) for batch in ("smallest", "largest")]
    rows_wait += [_waiting(40, 60, (kind,), "random", runs, hours) for kind in KINDS]
    count = 10_000 if not options.quick else 500
    return Measured(
        settings={"runs": runs, "hours": hours, "pause_seconds": PAUSE},
        values=(
            Value(name="Jobs with a fixed batch: mean completion, paper / baseline", unit="", samples=restricted),
            Value(
                name="Event loop without decisions",
                unit="events/min",
                samples=tuple(_events_per_minute(10 * count) for _ in range(min(3, runs))),
                budget=Budget(at="least", value=1_000_000),
            ),
            Value(
                name=f"A trace of {count:,} jobs on 400 devices with Updraft's policy",
                unit="s",
                samples=(_trace_seconds(count),),
                budget=Budget(at="most", value=300),
            ),
        ),
        tables=(
            TableOf(title="With drops", columns=DROPPING, rows=tuple(rows_drop)),
            TableOf(
                title="Without drops: mean completion in minutes",
                columns=("jobs", *WAITING, "baseline / paper", "paper / Updraft"),
                rows=tuple(rows_wait),
            ),
            _pauses(runs, hours),
        ),
        notes=NOTES,
    )


DROPPING = (
    "jobs",
    "completed in time, paper / baseline",
    "dropped, baseline",
    "dropped, paper",
    "baseline / paper",
    "mean completion, baseline / paper",
    "baseline / Updraft",
)
WAITING = ("fifo", "ffdl", "tiresias", "elastic-tiresias", "afs", "devices", "devices+batch", "genetic", "updraft")


@cache
def _outcome(
    policy: str, drop: bool, devices: int, per_hour: float, mix: tuple[str, ...], batch: Batch, seed: int, hours: float,
    pause: float = PAUSE,
) -> tuple[Outcome, int]:  # fmt: skip
    """Return the outcome of a run, and how many jobs were complete when the last one came."""
    named = POLICIES[policy]
    make = named.drops if drop and named.drops is not None else named.make
    jobs = _arriving(per_hour, mix, batch, seed, hours)
    run = simulate(jobs, devices, make(None), pause_seconds=pause)
    return Outcome.of(run), sum((course.ended or 1e18) <= hours * 3600 for course in run.courses)


@cache
def _arriving(per_hour: float, mix: tuple[str, ...], batch: Batch, seed: int, hours: float) -> tuple[TrainingJob, ...]:
    made = generate(int(2 * per_hour * hours) + 20, per_hour, mix=mix, batch=batch, seed=seed)
    return tuple(job for job in made if job.arrives <= hours * 3600)


def _dropped(
    devices: int, per_hour: float, mix: tuple[str, ...], batch: Batch, runs: int, hours: float
) -> tuple[str | float | None, ...]:
    """Return a row of the table with drops."""
    found = {
        name: [_outcome(name, True, devices, per_hour, mix, batch, seed, hours) for seed in range(runs)]
        for name in ("devices", "devices+batch", "updraft")
    }
    in_time = {name: statistics.median(count for _, count in each) for name, each in found.items()}
    dropped = {name: statistics.median(out.dropped for out, _ in each) for name, each in found.items()}
    mean = {name: statistics.median(out.mean for out, _ in each) for name, each in found.items()}
    fewer: str | float | None = None
    if dropped["devices"]:
        fewer = round(dropped["devices"] / dropped["devices+batch"], 2) if dropped["devices+batch"] else "none left"
    return (
        _named(devices, per_hour, mix, batch),
        round(in_time["devices+batch"] / in_time["devices"], 2),
        dropped["devices"],
        dropped["devices+batch"],
        fewer,
        round(mean["devices"] / mean["devices+batch"], 2),
        round(mean["devices"] / mean["updraft"], 2),
    )


def _waiting(
    devices: int, per_hour: float, mix: tuple[str, ...], batch: Batch, runs: int, hours: float
) -> tuple[str | float, ...]:
    """Return a row of the table without drops."""
    mean = {
        name: statistics.median(
            _outcome(name, False, devices, per_hour, mix, batch, seed, hours)[0].mean / 60 for seed in range(runs)
        )
        for name in WAITING
    }
    return (
        _named(devices, per_hour, mix, batch),
        *(round(mean[name], 1) for name in WAITING),
        round(mean["devices"] / mean["devices+batch"], 2),
        round(mean["devices+batch"] / mean["updraft"], 2),
    )


def _named(devices: int, per_hour: float, mix: Sequence[str], batch: str) -> str:
    kind = "" if len(mix) > 1 else f", {mix[0]}"
    return f"{per_hour:g} in an hour, {devices} devices{kind}, {batch} batch"


def _restricted(runs: int, hours: float) -> tuple[float, ...]:
    """Return the ratio for jobs whose batch may not change, which must be 1."""
    ratios = []
    for seed in range(runs):
        base, paper = (
            _outcome(name, False, 40, 60, ("restricted",), "random", seed, hours)[0].mean
            for name in ("devices", "devices+batch")
        )
        if base != paper:
            raise AssertionError(f"the batch may not change, but completion changes from {base} to {paper}")
        ratios.append(base / paper)
    return tuple(ratios)


def _pauses(runs: int, hours: float) -> TableOf:
    """Compare prices of a resize."""
    rows = []
    for pause in (120.0, 30.0, 5.0, 0.5):
        mean = {
            name: statistics.median(
                _outcome(name, False, 40, 60, MIX, "random", seed, hours, pause)[0].mean / 60 for seed in range(runs)
            )
            for name in ("devices+batch", "updraft")
        }
        resizes = [
            _outcome("updraft", False, 40, 60, MIX, "random", seed, hours, pause)[0].resizes for seed in range(runs)
        ]
        rows.append((f"{pause:g} s", *(round(value, 1) for value in mean.values()), statistics.median(resizes)))
    return TableOf(
        title="The price of a start or resize: mean completion in minutes, 60 jobs in an hour on 40 devices",
        columns=("pause", "paper", "Updraft", "resizes, Updraft"),
        rows=tuple(rows),
    )


class _StartAll:
    period = None

    def decide(self, view: View) -> Mapping[Course, Size | None]:
        return {course: course.job.fixed for course in view.waiting}


def _events_per_minute(count: int) -> float:
    jobs = generate(count, 60.0, seed=1)
    start = time.perf_counter()
    run = simulate(jobs, 1 << 40, _StartAll())
    return 60 * run.events / (time.perf_counter() - start)


def _trace_seconds(count: int) -> float:
    jobs = generate(count, 600, seed=1)
    start = time.perf_counter()
    simulate(jobs, 400, POLICIES["updraft"].make(None))
    return time.perf_counter() - start
