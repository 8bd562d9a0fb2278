"""Memory and CPU of the whole stack while nothing is asked of it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.options import Options
from benchmarks.resting import PartAtRest, at_rest
from benchmarks.results import Budget, Measured, TableOf, Value
from benchmarks.stack import Stack, running_stack

NAME, TITLE = "rest", "The stack at rest"
MEMORY_BUDGET = Budget(at="most", value=2500)
CPU_BUDGET = Budget(at="most", value=5)
SETTLE_SECONDS = 60
END_SECONDS = 300


def measure(options: Options) -> Measured:
    seconds = options.span(300, 10)  # as long as unchanged DAG files are left unparsed: one parse is in it
    settle_seconds = 10 if options.quick else SETTLE_SECONDS
    with running_stack() as stack:
        run_job(stack)
        time.sleep(settle_seconds)
        parts = at_rest(stack.home, seconds)
    return Measured(
        settings={"seconds": seconds, "settle_seconds": settle_seconds},
        values=(
            Value(
                name="Memory of the whole stack at rest",
                unit="MB",
                samples=(sum(p.shared_mb for p in parts),),
                budget=MEMORY_BUDGET,
            ),
            Value(
                name="CPU of the whole stack at rest",
                unit="% of a core",
                samples=(sum(p.cpu_percent for p in parts),),
                budget=CPU_BUDGET,
            ),
        ),
        tables=(rest_table(parts),),
        notes=(
            "A job has run before, so that every part has loaded what it needs for one.",
            "Memory is the proportional share of each process (pages that several share are counted once) where the "
            "system tells it; resident memory counts shared pages in each. CPU includes children that have ended.",
        ),
    )


def run_job(stack: Stack) -> None:
    manifest = {
        "name": "bench-hello",
        "framework": {"name": "shell"},
        "command": "echo hello",
        "resources": {"learners": 1, "cpus": 0.5, "memory": "256MiB"},
    }
    stack.completed(stack.client.submit(manifest).id, within_seconds=END_SECONDS)


def rest_table(parts: Sequence[PartAtRest]) -> TableOf:
    def row(title: str, group: Sequence[PartAtRest]) -> tuple[str | float | None, ...]:
        return (
            title,
            sum(p.processes for p in group),
            round(sum(p.shared_mb for p in group)),
            round(sum(p.resident_mb for p in group)),
            round(sum(p.cpu_percent for p in group), 2),
        )

    columns = ("part", "processes", "MB, shared once", "MB, resident", "% of a core")
    rows = (*(row(p.title, [p]) for p in parts), row("all", parts))
    return TableOf(title="Each part", columns=columns, rows=rows)
