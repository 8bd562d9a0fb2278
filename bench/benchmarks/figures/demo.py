"""`make demo` with its environments built: seconds of each stage; then the memory and CPU of the stack at rest."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

from benchmarks.demo_runs import FIRST_STEP, TOTAL, DemoRun, run_demo
from benchmarks.options import Options
from benchmarks.resting import PartAtRest, at_rest
from benchmarks.results import Budget, Measured, TableOf, Value
from benchmarks.stack import down, fresh_home

NAME, TITLE = "demo", "The demo, warm, and the stack at rest"
FIRST_STEP_BUDGET = Budget(at="most", value=60)
MEMORY_BUDGET = Budget(at="most", value=2500)
CPU_BUDGET = Budget(at="most", value=5)
SETTLE_SECONDS = 60


def measure(options: Options) -> Measured:
    rounds = options.pairs(3)
    rest_seconds = options.span(60, 10)
    home = fresh_home("bench")
    try:
        first = run_demo(home)
        warm = []
        for _ in range(rounds):
            down(home)
            warm.append(run_demo(home))
        again = None if options.quick else run_demo(home)
        time.sleep(10 if options.quick else SETTLE_SECONDS)
        parts = at_rest(home, rest_seconds)
    finally:
        down(home)
    runs = {"new home": [first], "warm start": warm, **({"stack is up": [again]} if again else {})}
    memory = sum(p.shared_mb for p in parts)
    return Measured(
        settings={"warm starts": rounds, "rest_seconds": rest_seconds},
        values=(
            Value(
                name="Warm start of the demo to the first training step",
                unit="s",
                samples=tuple(r.moments[FIRST_STEP] for r in warm),
                budget=FIRST_STEP_BUDGET,
            ),
            Value(name="Warm demo, whole", unit="s", samples=tuple(r.moments[TOTAL] for r in warm)),
            Value(name="Memory of the whole stack at rest", unit="MB", samples=(memory,), budget=MEMORY_BUDGET),
            Value(
                name="CPU of the whole stack at rest",
                unit="% of a core",
                samples=(sum(p.cpu_percent for p in parts),),
                budget=CPU_BUDGET,
            ),
        ),
        tables=(stage_table(runs), moment_table(runs), rest_table(parts)),
        notes=(
            "All environments are built before. New home: the first start ever, which makes the databases. Warm start: "
            "everything has run before and was stopped. Stack is up: the demo a second time.",
            "The first training step is seen by the first metrics, which the example logs at the end of its first epoch.",
            "Memory is the proportional share of each process (pages that several share are counted once) where the "
            "system tells it; resident memory counts shared pages in each. CPU includes children that have ended.",
            "The check of `.venv` by `make demo` itself, before all this, is not included.",
        ),
    )


def stage_table(runs: Mapping[str, Sequence[DemoRun]]) -> TableOf:
    names = list(dict.fromkeys(name for group in runs.values() for run in group for name in run.stages))
    rows = tuple(
        (name, *(median([run.stages.get(name) for run in group]) for group in runs.values())) for name in names
    )
    return TableOf(title="Seconds of each stage", columns=("stage", *runs), rows=rows)


def moment_table(runs: Mapping[str, Sequence[DemoRun]]) -> TableOf:
    names = list(dict.fromkeys(name for group in runs.values() for run in group for name in run.moments))
    rows = tuple(
        (name, *(median([run.moments.get(name) for run in group]) for group in runs.values())) for name in names
    )
    return TableOf(title="Seconds from the demo's start", columns=("moment", *runs), rows=rows)


def median(samples: Sequence[float | None]) -> float | None:
    known = [s for s in samples if s is not None]
    return round(statistics.median(known), 2) if known else None


def rest_table(parts: Sequence[PartAtRest]) -> TableOf:
    rows: list[tuple[str | float | None, ...]] = [
        (p.title, p.processes, round(p.shared_mb), round(p.resident_mb), round(p.cpu_percent, 2)) for p in parts
    ]
    rows.append(
        (
            "all",
            sum(p.processes for p in parts),
            round(sum(p.shared_mb for p in parts)),
            round(sum(p.resident_mb for p in parts)),
            round(sum(p.cpu_percent for p in parts), 2),
        )
    )
    columns = ("part", "processes", "MB, shared once", "MB, resident", "% of a core")
    return TableOf(title="The stack at rest", columns=columns, rows=tuple(rows))
