"""`make demo` with its environments built: seconds of each stage."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Mapping, Sequence

from benchmarks.demo_runs import FIRST_STEP, TOTAL, DemoRun, run_demo
from benchmarks.options import Options
from benchmarks.results import Budget, Measured, TableOf, Value
from benchmarks.stack import down, fresh_home

NAME, TITLE = "demo", "The demo, warm"
FIRST_STEP_BUDGET = Budget(at="most", value=60)


def measure(options: Options) -> Measured:
    rounds = options.pairs(3)
    home = fresh_home("bench")
    try:
        first = run_demo(home)
        warm = []
        for _ in range(rounds):
            down(home)
            warm.append(run_demo(home))
        again = None if options.quick else run_demo(home)
    finally:
        down(home)
    shutil.rmtree(home.root, ignore_errors=True)  # after a failure it is kept, with its logs
    runs = {"new home": [first], "warm start": warm, **({"stack is up": [again]} if again else {})}
    return Measured(
        settings={"warm starts": rounds},
        values=(
            Value(
                name="Warm start of the demo to the first training step",
                unit="s",
                samples=tuple(r.moments[FIRST_STEP] for r in warm),
                budget=FIRST_STEP_BUDGET,
            ),
            Value(name="Warm demo, whole", unit="s", samples=tuple(r.moments[TOTAL] for r in warm)),
        ),
        tables=(stage_table(runs), moment_table(runs)),
        notes=(
            "All environments are built before. New home: the first start ever, which makes the databases. Warm start: "
            "everything has run before and was stopped. Stack is up: the demo a second time.",
            "The first training step is seen by the first metrics, which the example logs after its first epoch.",
            "The check of `.venv` by `make demo` itself, before all this, is not included.",
        ),
    )


def stage_table(runs: Mapping[str, Sequence[DemoRun]]) -> TableOf:
    stages = {name: [r.stages for r in group] for name, group in runs.items()}
    return medians("Seconds of each stage", "stage", stages)


def moment_table(runs: Mapping[str, Sequence[DemoRun]]) -> TableOf:
    moments = {name: [r.moments for r in group] for name, group in runs.items()}
    return medians("Seconds from the demo's start", "moment", moments)


def medians(title: str, what: str, groups: Mapping[str, Sequence[Mapping[str, float]]]) -> TableOf:
    """Return a row for each name that any run has, and a column for each group of runs."""
    names = list(dict.fromkeys(name for group in groups.values() for run in group for name in run))
    rows = tuple((name, *(median([run.get(name) for run in group]) for group in groups.values())) for name in names)
    return TableOf(title=title, columns=(what, *groups), rows=rows)


def median(samples: Sequence[float | None]) -> float | None:
    known = [s for s in samples if s is not None]
    return round(statistics.median(known), 2) if known else None
