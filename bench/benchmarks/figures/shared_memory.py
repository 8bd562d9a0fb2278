"""How long learners of one machine take to exchange gradients, and how many samples they train on in a second: through
shared memory, through PyTorch's gloo and through a parameter server on TCP.

`bench/programs/shared_memory.py` runs in the PyTorch learner's environment.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from typing import Any

from benchmarks.machine import REPOSITORY
from benchmarks.options import Options
from benchmarks.results import Budget, Comparison, Measured, TableOf
from benchmarks.stack import BenchmarkError, learner_python

NAME, TITLE = "shared_memory", "Gradients through shared memory"
PROGRAM = REPOSITORY / "bench" / "programs" / "shared_memory.py"
LEARNERS = 2
LEARNER = REPOSITORY / "images" / "learner"
MEGABYTES = (1, 8, 50)
BATCHES = (1, 4, 16, 64)
FASTER = Budget(at="most", value=0.2)  # at 8 MB, of the time that gloo takes
WAYS = ("shared", "gloo", "tcp")
ASYNCHRONOUS = "shared, staleness 8"

NOTES = (
    f"{LEARNERS} learners on this machine. The three ways take turns in one run.",
    "*Exchange*: the gradient is there; the clock runs until the learner has the weights that the average of all "
    "gradients made, by SGD with momentum. With gloo each learner updates its own weights. Nothing else is computed.",
    "*Samples per second*: of all learners together; a classifier of 2.7 MB, one thread for each learner; gloo by "
    "DistributedDataParallel.",
)


def measure(options: Options) -> Measured:
    rounds = options.pairs(5, 1)
    quick = options.quick
    common: dict[str, Any] = {"learners": LEARNERS}
    exchanges: list[dict[str, Any]] = [
        {"megabytes": size, "steps": 10 if quick else max(20, 800 // size), "ways": WAYS, **common}
        for size in MEGABYTES
    ]
    trainings: list[dict[str, Any]] = [
        {"batch": batch, "steps": 50 if quick else 400, "ways": (*WAYS, ASYNCHRONOUS), **common}
        for batch in (BATCHES[:1] if quick else BATCHES)
    ]
    found = run_program([*exchanges, *trainings], rounds)
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
    rows = [
        (f"batch {case['batch']}", *(_rate(int(str(case["batch"])), seconds[way]) for way in (*WAYS, ASYNCHRONOUS)))
        for case, seconds in zip(trainings, found[len(exchanges) :], strict=True)
    ]
    return Measured(
        settings={"rounds": rounds, "learners": LEARNERS},
        comparisons=tuple(comparisons),
        tables=(
            TableOf(title="Samples per second, all learners", columns=("", *WAYS, ASYNCHRONOUS), rows=tuple(rows)),
        ),
        notes=NOTES,
    )


def _rate(batch: int, seconds: list[float]) -> float:
    return round(LEARNERS * batch / sorted(seconds)[len(seconds) // 2], 1)


def run_program(cases: list[dict[str, Any]], rounds: int) -> list[dict[str, list[float]]]:
    """Return the seconds of a step, by case and way."""
    with tempfile.TemporaryDirectory(prefix="updraft-bench-") as folder:
        done = subprocess.run(
            [str(learner_python()), "-W", "ignore", str(PROGRAM), json.dumps({"cases": cases, "rounds": rounds})],
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "HOME": folder, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(LEARNER)},
            capture_output=True,
            text=True,
            timeout=3600,
            check=False,
        )
    if done.returncode != 0:
        raise BenchmarkError(f"the program failed:\n{done.stderr[-2000:]}")
    found: list[dict[str, list[float]]] = json.loads(done.stdout.splitlines()[-1])
    return found
