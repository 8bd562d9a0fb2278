"""For how long learners stop when others join, leave or die: `updraft_learner.elastic` against torchrun's stop and
resume; and what elasticity costs while nothing happens.

`bench/programs/elastic_pause.py` runs in the PyTorch learner's environment.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import tempfile
from typing import Any

from benchmarks.machine import REPOSITORY
from benchmarks.options import Options
from benchmarks.results import Budget, Comparison, Measured, TableOf, Value
from benchmarks.stack import BenchmarkError, learner_python

NAME, TITLE = "elastic_pause", "Learners that join, leave and die"
PROGRAM = REPOSITORY / "bench" / "programs" / "elastic_pause.py"
LEARNER = REPOSITORY / "images" / "learner"
SIZES = ({"megabytes": 1, "batch": 1024}, {"megabytes": 10, "batch": 256}, {"megabytes": 100, "batch": 32})
STEADY = {**SIZES[1], "block": 100, "other_block": 50}
STEPS = 10_000
EVENTS = ("scale-out", "scale-in", "crash")
PARTS = ("prepare", "switch", "topology", "transfer", "death")
MOST_STEPS = Budget(at="most", value=3)
MOST_OF_RESTART = Budget(at="most", value=0.01)
MOST_COST = Budget(at="most", value=0.003)
WITH_BUDGET = 10  # MB: up to here the pause is compared with a budget
LEARNERS = (2, 4, 8, 16, 32)  # of the break-even
CONFIDENT = 1.96  # standard errors

NOTES = (
    "Two learners on this machine; a third one joins (*scale-out*), is asked to leave (*scale-in*) or is killed "
    "(*crash*). An MLP with Adam; the size is that of parameters and optimizer together. The batch is the same for all "
    "numbers of learners: 1,024, 256 and 32 samples for 1, 10 and 100 MB.",
    "*Pause*: from the last step of the old group to the first new step of the next one, less the time of a step. "
    "*Steps*: the pause over the time of a step before the event.",
    "*torchrun*: it is asked to end, which saves a checkpoint; or a worker is killed, and it ends by itself. It is "
    "started again at once with the other number of workers, and goes on from the checkpoint; after a crash from the "
    "newest of every tenth step.",
    "*Prepare*: the newcomer's start, imports and model, while the others train. *Switch*: from the readiness of the "
    "newcomer, or the request, to the first step of the new group. *Topology*: all are connected. *Transfer*: the "
    "newcomer has the state, from both others at the same time. *Death*: from the kill until the process is gone and "
    "its connections are closed. The coordinator is told of it before, by a process that does what the learner's "
    "sidecar does.",
    "*Cost while nothing happens*: what `next` and `step` do beyond drawing and fetching samples, the backward pass, "
    "the exchange of gradients and the optimizer, with 10 MB; the sum by the clock over the time of all steps. Samples "
    "are fetched between steps here (`ahead=0`), so no thread fetches while the clock runs. *Blocks*: steps of two "
    "elastic learners and of DistributedDataParallel in turn; the mean of the ratios with 95 % confidence.",
    "*Break-even*: for how many seconds a further device must be free, so that a job gains from it as much as its two "
    "resizes cost. The pauses of *scale-out* and *scale-in* as measured here; the job is "
    "taken to be faster by 1/N with N + 1 learners.",
    "*Loss*: of the run of 1 MB with all these events, against one with two learners that nothing happens to: mean of "
    "the last fifth of the steps. With `virtual_ranks` both have the same bits, which a test checks.",
)


def measure(options: Options) -> Measured:
    rounds = options.pairs(3, 1)
    sizes = SIZES[:1] if options.quick else SIZES
    steps = 500 if options.quick else STEPS
    restarts = 1 if options.quick else max(1, rounds - 1)
    found = run_program({"sizes": sizes, "rounds": rounds, "restarts": restarts, "steady": {**STEADY, "steps": steps}})
    values, comparisons, rows = [], [], []
    for case in found["sizes"]:
        size = f"{case['megabytes']} MB"
        for event in EVENTS:
            events = case["elastic"][event]
            pauses = [each["pause"] for each in events]
            in_steps = tuple(each["pause"] / each["step"] for each in events)
            values.append(Value(name=f"Pause of {event}, {size}", unit="steps", samples=in_steps, budget=MOST_STEPS))
            comparisons.append(
                Comparison(
                    name=f"Pause of {event}, {size}",
                    unit="s",
                    a="elastic",
                    b="torchrun",
                    pairs=tuple((a, b) for a in pauses for b in case["torchrun"][event]),
                    budget=MOST_OF_RESTART if case["megabytes"] <= WITH_BUDGET else None,
                )
            )
            parts = [_milliseconds(events, part) for part in PARTS]
            rows.append((f"{event}, {size}", _milliseconds(events, "pause"), _milliseconds(events, "step"), *parts))
    steady = found["steady"]
    taken = steady["steps"] * statistics.fmean(on for on, _ in steady["blocks"])
    values.append(
        Value(
            name="Cost while nothing happens, by the clock",
            unit="of the step",
            samples=(steady["own"] / taken,),
            budget=MOST_COST,
        )
    )
    return Measured(
        settings={"rounds": rounds, "restarts": restarts, "steady_steps": steps},
        comparisons=tuple(comparisons),
        values=tuple(values),
        tables=(
            TableOf(
                title="Parts of a pause, median in milliseconds",
                columns=("", "pause", "step", *PARTS),
                rows=tuple(rows),
            ),
            TableOf(
                title="Two learners that nothing happens to",
                columns=("", "value"),
                rows=tuple(_steady(steady["own"], steady["steps"], steady["blocks"])),
            ),
            TableOf(
                title="Break-even of a device that is free for a while, in seconds",
                columns=("", *(f"{n} learners" for n in LEARNERS)),
                rows=tuple(row for case in found["sizes"] for row in _break_even(case)),
            ),
            TableOf(title="Loss", columns=("", "with events", "without"), rows=(_losses(found["losses"]),)),
        ),
        notes=NOTES,
    )


def _break_even(case: dict[str, Any]) -> list[tuple[str | float, ...]]:
    elastic = {event: statistics.median(each["pause"] for each in case["elastic"][event]) for event in EVENTS}
    torchrun = {event: statistics.median(case["torchrun"][event]) for event in EVENTS}
    return [
        (f"{case['megabytes']} MB, {name}", *(round(n * (pause["scale-out"] + pause["scale-in"]), 2) for n in LEARNERS))
        for name, pause in (("elastic", elastic), ("torchrun", torchrun))
    ]


def _milliseconds(events: list[dict[str, float]], part: str) -> float | None:
    found = [each[part] * 1e3 for each in events if part in each]
    return round(statistics.median(found), 1) if found else None


def _steady(own: float, steps: int, blocks: list[tuple[float, float]]) -> list[tuple[str, float | str]]:
    ratios = [on / off - 1 for on, off in blocks]
    mean = statistics.fmean(ratios)
    error = CONFIDENT * statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else 0.0
    return [
        ("step, elastic, ms", round(1e3 * statistics.median(on for on, _ in blocks), 3)),
        ("step, DistributedDataParallel, ms", round(1e3 * statistics.median(off for _, off in blocks), 3)),
        ("cost by the clock, µs of a step", round(1e6 * own / steps, 1)),
        ("blocks: elastic over DistributedDataParallel", f"{mean:+.1%} ± {error:.1%} ({len(ratios)} pairs)"),
    ]


def _losses(pairs: list[tuple[float, float]]) -> tuple[str, float, float]:
    last = pairs[-max(1, len(pairs) // 5) :]
    disturbed, plain = (statistics.fmean(each[side] for each in last) for side in (0, 1))
    return f"mean of the last {len(last)} of {len(pairs)} steps", round(disturbed, 4), round(plain, 4)


def run_program(case: dict[str, Any]) -> dict[str, Any]:
    """Return what the program prints."""
    with tempfile.TemporaryDirectory(prefix="updraft-bench-") as folder:
        done = subprocess.run(
            [str(learner_python()), "-W", "ignore", str(PROGRAM), "drive", json.dumps(case)],
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "HOME": folder, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(LEARNER)},
            capture_output=True,
            text=True,
            timeout=7200,
            check=False,
        )
    if done.returncode != 0:
        raise BenchmarkError(f"the program failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
