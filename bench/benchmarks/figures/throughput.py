"""Training under the platform against the same program bare, in turns on one core, while the platform is up.

Both sides run at the same time and work in turns of some seconds: what the machine is up to in these seconds it does to
both. The rest of the platform may use the other cores. Under the platform there are the sidecar, the follower of logs
and checkpoints, metrics on their way to MLflow; bare there is the program alone, which writes its checkpoints to the
disk all the same.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.machine import REPOSITORY
from benchmarks.options import Options
from benchmarks.results import Budget, Comparison, Measured, Value
from benchmarks.stack import BenchmarkError, Stack, learner_python, running_stack

NAME, TITLE = "throughput", "Training throughput"
BUDGET = Budget(at="least", value=0.99)
CHECKPOINT_SECONDS = 10
TURN_SECONDS = 5
WARM_UP_TURNS = 4
PATIENCE_SECONDS = 300
# Where its memory lies makes one process a tenth faster or slower than the next. Huge pages from one heap, which keeps
# what it has, leave little of that (glibc; elsewhere nobody reads this).
HEAP = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TOP_PAD_": str(256 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
}
MANAGED, BARE = 0, 1

Turns = list[dict[str, Any]]


def measure(options: Options) -> Measured:
    rounds = options.pairs(6)
    seconds = options.span(60, 10)
    cores = machine.cores()
    params: dict[str, Any] = {
        "turns": WARM_UP_TURNS + 2 * math.ceil(seconds / TURN_SECONDS),
        "turn_seconds": TURN_SECONDS,
        "core": cores[-1] if len(cores) > 1 else None,
    }
    managed, bare = [], []
    with tempfile.TemporaryDirectory(prefix="updraft-bench-", dir=REPOSITORY / ".updraft") as folder:
        code = program(Path(folder) / "code")
        with running_stack() as stack:
            for number in range(rounds):
                place = Path(folder) / str(number)
                with pipes(place) as made, alone(code, {**params, "pipes": made}, place) as beside:
                    managed.append(on_platform(stack, code, {**params, "pipes": made}, place))
                    bare.append(beside())
    return measured(managed, bare, params)


def measured(managed: Sequence[Turns], bare: Sequence[Turns], params: dict[str, Any]) -> Measured:
    """`managed`, `bare`: the turns of each run."""
    runs = [(counted(m), counted(b)) for m, b in zip(managed, bare, strict=True)]
    turns = [turn for run in runs for side in run for turn in side]
    unknown = uncertainty(runs)
    doubts = []
    if unknown > 1 - BUDGET.value:
        doubts.append(
            f"the turns differ so much that {unknown:.1%} of the ratio are unknown, more than the "
            f"{1 - BUDGET.value:.0%} to be seen"
        )
    if (share := total(turns, "cpu_seconds") / total(turns, "seconds")) < 0.97:
        doubts.append(f"the trainers had their core only {share:.0%} of the time")

    def pairs(per: str) -> tuple[tuple[float, float], ...]:
        return tuple((total(m, "samples") / total(m, per), total(b, "samples") / total(b, per)) for m, b in runs)

    return Measured(
        settings={**params, "warm_up_turns": WARM_UP_TURNS, "checkpoint_seconds": CHECKPOINT_SECONDS},
        comparisons=(
            Comparison(
                name="Training throughput",
                unit="samples/s",
                a="on the platform",
                b="bare",
                pairs=pairs("seconds"),
                budget=BUDGET,
            ),
            Comparison(
                name="The same per second of the trainer's CPU time",
                unit="samples/CPU s",
                a="on the platform",
                b="bare",
                pairs=pairs("cpu_seconds"),
            ),
        ),
        values=(
            Value(name="Two standard errors of the ratio", unit="%", samples=(100 * unknown,)),
            Value(
                name="Checkpoints in a run on the platform",
                unit="",
                samples=tuple(total(m, "checkpoints") for m, _ in runs),
            ),
            Value(name="Checkpoints in a bare run", unit="", samples=tuple(total(b, "checkpoints") for _, b in runs)),
        ),
        notes=(
            "The program is `bench/jobs/throughput/train.py`: the network and the augmentation of jobs/digits-cnn, one "
            "thread, pinned to one core (where the system can pin).",
            "A pair is one job and one bare program, in turns A B B A on the same core; the first turns do not count.",
            "Both sides run while the platform is up. Neither side's helpers are pinned.",
            "Both take their memory from one heap of huge pages: by where it lies, a process is a tenth slower or not.",
            "Per CPU second, time that others took from the trainer's core does not count.",
        ),
        doubts=tuple(doubts),
    )


def counted(turns: Turns) -> Turns:
    return [turn for turn in turns if turn["turn"] >= WARM_UP_TURNS]


def total(turns: Turns, what: str) -> float:
    return float(sum(turn[what] for turn in turns))


def uncertainty(runs: Sequence[tuple[Turns, Turns]]) -> float:
    """Two standard errors of the ratio: of its turns, or of its runs where these differ more than their turns explain.

    The n-th turn of one side and the n-th of the other are neighbours."""

    def ratio(a: Turns, b: Turns) -> float:
        return (total(a, "samples") / total(a, "seconds")) / (total(b, "samples") / total(b, "seconds"))

    of_turns = [ratio([a], [b]) for managed, bare in runs for a, b in zip(managed, bare, strict=True)]
    of_runs = [ratio(managed, bare) for managed, bare in runs]
    return max(
        (2 * statistics.stdev(map(math.log, found)) / math.sqrt(len(found)))
        for found in (of_turns, of_runs if len(of_runs) > 1 else of_turns)
    )


@contextmanager
def pipes(folder: Path) -> Iterator[str]:
    """The folder of the pipes by which a turn is handed over. They stay open here, so that no byte gets lost."""
    folder.mkdir()
    opened = []
    try:
        for side in (MANAGED, BARE):
            os.mkfifo(folder / f"{side}.pipe", 0o600)
            opened.append(os.open(folder / f"{side}.pipe", os.O_RDWR))
        os.write(opened[MANAGED], b".")
        yield str(folder)
    finally:
        for number in opened:
            os.close(number)


def program(folder: Path) -> Path:
    """The job's code: the benchmark's loop and the example's network."""
    folder.mkdir()
    for name in ("train.py", "turns.py"):
        shutil.copy(REPOSITORY / "bench" / "jobs" / "throughput" / name, folder)
    shutil.copy(REPOSITORY / "jobs" / "digits-cnn" / "digits.py", folder)
    return folder


def on_platform(stack: Stack, code: Path, params: dict[str, Any], folder: Path) -> Turns:
    manifest = {
        "name": "bench-throughput",
        "framework": {"name": "pytorch", "version": "2.15"},
        "code": str(code),
        "command": "python train.py",
        "env": HEAP,
        "params": {"side": MANAGED, **{name: value for name, value in params.items() if value is not None}},
        "resources": {"learners": 1, "cpus": 1, "memory": "2GiB"},
        "checkpoints": {"every": f"{CHECKPOINT_SECONDS}s", "keep": {"latest": 2}},
    }
    job = stack.client.submit(manifest, base=code)
    detail = stack.client.wait(job.id, timeout_seconds=limit_seconds(params), poll_seconds=5)
    if detail.state != "COMPLETED":
        raise BenchmarkError(f"the job ended {detail.state}: {detail.reason}")
    files = stack.client.download(job.id, "results", folder / "results")
    return read_turns(next(f for f in files if f.name == "turns.json"))


@contextmanager
def alone(code: Path, params: dict[str, Any], folder: Path) -> Iterator[Callable[[], Turns]]:
    """The bare program, started; what is given waits for its end."""
    given = folder / "params.json"
    given.write_text(json.dumps({"side": BARE, **params}))
    log = folder / "bare.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(learner_python()), "train.py"],
            cwd=code,
            env={
                **HEAP,
                "PATH": "/usr/bin:/bin",
                "HOME": str(folder),
                "OMP_NUM_THREADS": "1",
                "UPDRAFT_PARAMS_FILE": str(given),
                "UPDRAFT_CHECKPOINT_SECONDS": str(CHECKPOINT_SECONDS),
                "RESULT_DIR": str(folder / "result"),
                "CHECKPOINT_DIR": str(folder / "checkpoints"),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            stdout=output,
            stderr=subprocess.STDOUT,
        )

    def result() -> Turns:
        if process.wait(PATIENCE_SECONDS) != 0:
            raise BenchmarkError(f"the bare program failed:\n{log.read_text()[-2000:]}")
        return read_turns(folder / "result" / "turns.json")

    try:
        yield result
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(code / "updraft-out", ignore_errors=True)  # its metrics file


def limit_seconds(params: dict[str, Any]) -> float:
    return float(params["turns"] * params["turn_seconds"] + PATIENCE_SECONDS)


def read_turns(path: Path) -> Turns:
    found: Turns = json.loads(path.read_text(encoding="utf-8"))
    return found
