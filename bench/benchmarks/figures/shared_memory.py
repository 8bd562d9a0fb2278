"""How long learners of one machine take to exchange gradients, and how many samples they train on in a second: through
shared memory, through PyTorch's gloo and through a parameter server on TCP; and how near the server alone comes to the
bandwidth of the memory.

`bench/programs/shared_memory.py` and `server_bandwidth.py` run in the PyTorch learner's environment.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import REPOSITORY
from benchmarks.options import Options
from benchmarks.results import Budget, Comparison, Measured, TableOf
from benchmarks.stack import BenchmarkError, learner_python

NAME, TITLE = "shared_memory", "Gradients through shared memory"
PROGRAM = REPOSITORY / "bench" / "programs" / "shared_memory.py"
LEARNERS = 2
LEARNER = REPOSITORY / "images" / "learner"
BANDWIDTH_PROGRAM = PROGRAM.with_name("server_bandwidth.py")
MEGABYTES = (1, 4, 8, 16, 50)
BATCHES = (1, 4, 16, 64)
FASTER = Budget(at="most", value=0.2)  # at 8 MB, of the time that gloo takes
OF_STREAM = Budget(at="least", value=0.7)
SERVER_MEGABYTES = (8, 50)
WAYS = ("shared", "gloo", "tcp")
ASYNCHRONOUS = "shared, staleness 8"

NOTES = (
    f"{LEARNERS} learners on this machine. The three ways take turns in one run.",
    "*Exchange*: the gradient is there; the clock runs until the learner has the weights that the average of all "
    "gradients made, by SGD with momentum. With gloo each learner updates its own weights. Nothing else is computed.",
    "*Samples per second*: of all learners together; a classifier of 2.7 MB, one thread for each learner; gloo by "
    "DistributedDataParallel.",
    "*The server alone*: one server applies recorded gradients of two learners to weights and momentum. *STREAM* is a "
    "loop in C (`bench/programs/stream.c`) over arrays of the same size that also reads four of them and writes two. "
    "The undo copies of the server stay in the cache and are not counted.",
)


def measure(options: Options) -> Measured:
    rounds = options.pairs(3, 1)
    quick = options.quick
    common: dict[str, Any] = {"learners": LEARNERS}
    exchanges: list[dict[str, Any]] = [
        {"megabytes": size, "steps": 10 if quick else max(20, 800 // size), "ways": (*WAYS, ASYNCHRONOUS), **common}
        for size in (MEGABYTES[:1] if quick else MEGABYTES)
    ]
    trainings: list[dict[str, Any]] = [
        {"batch": batch, "steps": 50 if quick else 400, "ways": (*WAYS, ASYNCHRONOUS), **common}
        for batch in (BATCHES[:1] if quick else BATCHES)
    ]
    found = run_program(PROGRAM, {"cases": [*exchanges, *trainings], "rounds": rounds})
    comparisons = [
        Comparison(
            name=f"Exchange of {case['megabytes']} MB, against {other}",
            unit="s",
            a="shared memory",
            b=other,
            pairs=tuple(zip(seconds["shared"], seconds[other], strict=True)),
            budget=FASTER if case["megabytes"] == 8 and other == "gloo" else None,
        )
        for case, seconds in zip(exchanges, found, strict=False)
        for other in ("gloo", "tcp")
    ]
    server = run_program(
        BANDWIDTH_PROGRAM, {"megabytes": SERVER_MEGABYTES[: 1 if quick else 2], "rounds": 3 if quick else 15}
    )
    comparisons += [
        Comparison(
            name=f"The server alone, {size} MB of weights",
            unit="GB/s",
            a="server",
            b="STREAM",
            pairs=tuple((mine, theirs) for mine, theirs in pairs),
            budget=OF_STREAM,
        )
        for size, pairs in server.items()
    ]
    times = [
        (f"{case['megabytes']} MB", *(_middle(seconds[way], 1000) for way in (*WAYS, ASYNCHRONOUS)))
        for case, seconds in zip(exchanges, found, strict=False)
    ]
    rates = [
        (f"batch {case['batch']}", {way: _rate(int(str(case["batch"])), seconds[way]) for way in seconds})
        for case, seconds in zip(trainings, found[len(exchanges) :], strict=True)
    ]
    return Measured(
        settings={"rounds": rounds, "learners": LEARNERS},
        comparisons=tuple(comparisons),
        tables=(
            TableOf(title="Exchange, ms", columns=("", *WAYS, ASYNCHRONOUS), rows=tuple(times)),
            TableOf(
                title="Samples per second, all learners",
                columns=("", *WAYS, ASYNCHRONOUS),
                rows=tuple((batch, *rate.values()) for batch, rate in rates),
            ),
        ),
        notes=(*NOTES, crossover(rates)),
    )


def crossover(rows: Sequence[tuple[str, dict[str, float]]]) -> str:
    """Return from which batch on gloo is as fast as shared memory, whichever way of it is faster."""
    slower = [batch for batch, rate in rows if rate["gloo"] >= max(rate["shared"], rate[ASYNCHRONOUS])]
    if not slower:
        return f"*Crossover*: up to {rows[-1][0]}, shared memory is faster than gloo."
    return f"*Crossover*: gloo is as fast as shared memory at {', '.join(slower)}."


def _rate(batch: int, seconds: list[float]) -> float:
    return round(LEARNERS * batch / statistics.median(seconds), 1)


def _middle(seconds: list[float], times: float) -> float:
    return round(times * statistics.median(seconds), 2)


def run_program(program: Path, arguments: dict[str, Any]) -> Any:
    """Return what the program prints as its last line, for example the seconds of a step, by case and way."""
    with tempfile.TemporaryDirectory(prefix="updraft-bench-") as folder:
        done = subprocess.run(
            [str(learner_python()), "-W", "ignore", str(program), json.dumps(arguments)],
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "HOME": folder, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(LEARNER)},
            capture_output=True,
            text=True,
            timeout=3600,
            check=False,
        )
    if done.returncode != 0:
        raise BenchmarkError(f"the program failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])
