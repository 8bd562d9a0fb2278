"""Training as a job of the platform against the same program on the machine without the platform, three models.

Of each pair one side is a job on a platform that is started for it, the other the same program while no process of the
platform exists; who comes first alternates. Both run the same code with the same interpreter on the same core, warm up
for the same time, and report metrics and save checkpoints.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import machine
from benchmarks.machine import REPOSITORY
from benchmarks.options import Options
from benchmarks.results import Budget, Comparison, Measured, Value
from benchmarks.stack import BenchmarkError, learner_python, running_stack
from benchmarks.training import CHECKPOINT_SECONDS, FRAMEWORKS, IMAGES, Told, program

NAME, TITLE = "throughput", "Training throughput"
BUDGET = Budget(at="least", value=0.995)
WARM_UP_SECONDS = 12.0
END_SECONDS = 10.0  # beyond what is measured, so that the span is whole
PATIENCE_SECONDS = 300.0


@dataclass(frozen=True)
class Side:
    """One run of the program."""

    speed: float  # samples per second
    share: float  # of its core, that it had


def measure(options: Options) -> Measured:
    rounds = options.pairs(4)
    seconds = options.span(60, 6)
    cores = machine.cores()
    core = cores[-1] if len(cores) > 1 else None
    pairs: dict[str, list[tuple[Side, Side]]] = {model: [] for model in FRAMEWORKS}
    with tempfile.TemporaryDirectory(prefix="updraft-bench-", dir=REPOSITORY / ".updraft") as folder:
        code = program(Path(folder) / "code")
        for number in range(rounds):
            for model, found in pairs.items():
                bare_first = number % 2 == 1
                place = Path(folder) / f"{model}-{number}"
                before = alone(place, code, model, seconds, core) if bare_first else None
                managed = on_platform(place, code, model, seconds, core)
                found.append((managed, before or alone(place, code, model, seconds, core)))
    return measured(pairs, seconds, core)


def measured(pairs: Mapping[str, Sequence[tuple[Side, Side]]], seconds: float, core: int | None) -> Measured:
    """Compute the figure. `pairs`: on the platform and bare, by model."""
    doubts = []
    for model, found in pairs.items():
        unknown = uncertainty(found)
        if unknown > 1 - BUDGET.value:
            doubts.append(
                f"{model}: the pairs differ so much that {unknown:.1%} of the ratio are unknown, more than the "
                f"{1 - BUDGET.value:.1%} to be seen"
            )
        if (share := min(side.share for both in found for side in both)) < 0.97:
            doubts.append(f"{model}: a trainer had its core only {share:.0%} of the time")
    return Measured(
        settings={"seconds": seconds, "core": core, "checkpoint_seconds": CHECKPOINT_SECONDS},
        comparisons=tuple(
            Comparison(
                name=f"Training throughput, {model}",
                unit="samples/s",
                a="as a job",
                b="without the platform",
                pairs=tuple((managed.speed, bare.speed) for managed, bare in found),
                budget=BUDGET,
            )
            for model, found in pairs.items()
        ),
        values=tuple(
            Value(name=f"Two standard errors of the ratio, {model}", unit="%", samples=(100 * uncertainty(found),))
            for model, found in pairs.items()
            if len(found) > 1
        ),
        notes=(
            "The program is `bench/jobs/throughput/train.py` on one thread, pinned to one core (where the system can "
            "pin): `cnn` is the network and augmentation of jobs/digits-cnn, `transformer` a decoder of two layers, "
            "`sklearn` a linear classifier that learns batch by batch.",
            "On the platform's side Airflow, MLflow, the object store, the local node and the pod's sidecar run; they "
            "are started for the job and ended after it. On the other side no process of the platform exists. Who "
            "comes first alternates.",
            f"The first {WARM_UP_SECONDS:g} s of each run are not counted, so that both sides find their files in the "
            "page cache. Both report metrics and save checkpoints.",
        ),
        doubts=tuple(doubts),
    )


def uncertainty(pairs: Sequence[tuple[Side, Side]]) -> float:
    """Return two standard errors of the ratio."""
    logs = [math.log(managed.speed / bare.speed) for managed, bare in pairs]
    return 2 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf


def on_platform(folder: Path, code: Path, model: str, seconds: float, core: int | None) -> Side:
    with running_stack() as stack:
        manifest = {
            "name": "bench-throughput",
            "framework": FRAMEWORKS[model],
            "code": str(code),
            "command": "exec python train.py",
            "params": params(model, seconds, core),
            "env": {"OMP_NUM_THREADS": "1"},
            "resources": {"learners": 1, "cpus": 1, "memory": "2GiB"},
            "checkpoints": {"every": f"{CHECKPOINT_SECONDS}s", "keep": {"latest": 2}},
        }
        job = stack.client.submit(manifest, base=code)
        stack.completed(job.id, within_seconds=PATIENCE_SECONDS + seconds)
        files = stack.client.download(job.id, "results", folder / "job")
    return side(next(path for path in files if path.name == "batches.json"), seconds)


def alone(folder: Path, code: Path, model: str, seconds: float, core: int | None) -> Side:
    """Return the program as a person starts it who has no platform."""
    place = folder / "bare"
    (place / "checkpoints").mkdir(parents=True)
    (place / "result").mkdir()
    (place / "params.json").write_text(json.dumps(params(model, seconds, core)))
    done = subprocess.run(
        [str(learner_python(IMAGES[FRAMEWORKS[model]["name"]])), "train.py"],
        cwd=code,
        env={
            "PATH": os.defpath,
            "HOME": str(place),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "CHECKPOINT_DIR": str(place / "checkpoints"),
            "RESULT_DIR": str(place / "result"),
            "UPDRAFT_PARAMS_FILE": str(place / "params.json"),
            "UPDRAFT_METRICS_FILE": str(place / "metrics.jsonl"),
            "UPDRAFT_CHECKPOINT_SECONDS": str(CHECKPOINT_SECONDS),
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS + seconds,
        check=False,
    )
    if done.returncode != 0:
        raise BenchmarkError(f"the bare program failed:\n{done.stderr[-2000:]}")
    return side(place / "result" / "batches.json", seconds)


def params(model: str, seconds: float, core: int | None) -> dict[str, str | float]:
    whole = WARM_UP_SECONDS + seconds + END_SECONDS
    return {"model": model, "seconds": whole, **({} if core is None else {"core": core})}


def side(batches: Path, seconds: float) -> Side:
    told = Told.read(batches)
    return Side(told.speed(WARM_UP_SECONDS, seconds), told.share())
