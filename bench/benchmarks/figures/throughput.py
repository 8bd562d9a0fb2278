"""Training beside the running platform against the same training while the whole platform stands still, in turns.

One and the same process trains on; in every second turn all processes of the platform, its sidecar among them, are
stopped with SIGSTOP, so that the machine belongs to the program alone. Two runs of a program differ by several per cent
in where their memory lies and in what the machine is up to; turns of some seconds of one process do not. What the
platform leaves undone while it stands still it does in its own turns.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import signal
import statistics
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks import machine
from benchmarks.machine import REPOSITORY
from benchmarks.options import Options
from benchmarks.results import Budget, Comparison, Measured, Value
from benchmarks.stack import BenchmarkError, Stack, running_stack
from updraft.stack import processes
from updraft.stack.layout import Home
from updraft_learner import contract

NAME, TITLE = "throughput", "Training throughput"
BUDGET = Budget(at="least", value=0.99)
CHECKS_BUDGET = Budget(at="most", value=0.3)
CHECKS_SECONDS = 60.0
CHECKPOINT_SECONDS = 10
TURN_SECONDS = (3.0, 7.0)  # drawn, so that nothing that comes regularly falls into one side's turns only
WARM_UP_SECONDS = 10.0
PATIENCE_SECONDS = 300.0


@dataclass(frozen=True)
class Turn:
    """Of the platform, or of the program alone. Unix seconds."""

    platform: bool
    begin: float
    end: float


@dataclass(frozen=True)
class Run:
    """One job: its turns, A B B A and so on, and when the program was done with each batch."""

    turns: tuple[Turn, ...]
    samples: int  # of a batch
    batches: tuple[tuple[float, float], ...]  # unix seconds, seconds of CPU time
    checkpoints: tuple[float, ...]  # unix seconds

    def speed(self, turns: Sequence[Turn]) -> float:
        """Samples per second."""
        return self.samples * sum(map(self._done, turns)) / sum(turn.end - turn.begin for turn in turns)

    def of(self, platform: bool) -> list[Turn]:
        return [turn for turn in self.turns if turn.platform == platform]

    def share(self) -> float:
        """Of its core, that the program had."""
        (began, cpu_began), (ended, cpu_ended) = self.batches[0], self.batches[-1]
        return (cpu_ended - cpu_began) / (ended - began)

    def _done(self, turn: Turn) -> float:
        return self._number(turn.end) - self._number(turn.begin)

    def _number(self, at: float) -> float:
        """Batches done by then; a part of one in proportion to its time."""
        after = bisect_left(self.batches, at, key=lambda batch: batch[0])
        if not 0 < after < len(self.batches):
            raise BenchmarkError("a turn was not within the program's time")
        before, then = self.batches[after - 1][0], self.batches[after][0]
        return after - 1 + (at - before) / (then - before)


def measure(options: Options) -> Measured:
    rounds = options.pairs(7)
    seconds = options.span(70, 8)  # of each side
    cores = machine.cores()
    core = cores[-1] if len(cores) > 1 else None
    with tempfile.TemporaryDirectory(prefix="updraft-bench-", dir=REPOSITORY / ".updraft") as folder:
        code = program(Path(folder) / "code")
        with running_stack() as stack:
            runs = [run(stack, code, seconds, core, random.Random(number)) for number in range(rounds)]
            checks = cost_of_checks(stack, Path(folder) / "silent", options.span(CHECKS_SECONDS, 8))
    return measured(runs, checks, seconds, core)


def measured(runs: Sequence[Run], checks: float, seconds: float, core: int | None) -> Measured:
    unknown = uncertainty(runs)
    doubts = []
    if unknown > 1 - BUDGET.value:
        doubts.append(
            f"the turns differ so much that {unknown:.1%} of the ratio are unknown, more than the "
            f"{1 - BUDGET.value:.0%} to be seen"
        )
    if (share := min(each.share() for each in runs)) < 0.97:
        doubts.append(f"a trainer had its core only {share:.0%} of the time")
    return Measured(
        settings={"seconds": seconds, "core": core, "checkpoint_seconds": CHECKPOINT_SECONDS},
        comparisons=(
            Comparison(
                name="Training throughput",
                unit="samples/s",
                a="beside the platform",
                b="alone on the machine",
                pairs=tuple((each.speed(each.of(True)), each.speed(each.of(False))) for each in runs),
                budget=BUDGET,
            ),
        ),
        values=(
            Value(name="Two standard errors of the ratio", unit="%", samples=(100 * unknown,)),
            Value(
                name="Heartbeats and checks of a learner", unit="% of a core", samples=(checks,), budget=CHECKS_BUDGET
            ),
            Value(name="Checkpoints in a run", unit="", samples=tuple(float(len(each.checkpoints)) for each in runs)),
        ),
        notes=(
            "The program is `bench/jobs/throughput/train.py`: the network and the augmentation of jobs/digits-cnn, one "
            "thread, pinned to one core (where the system can pin). A pair is one job.",
            f"Turns of {TURN_SECONDS[0]:g} to {TURN_SECONDS[1]:g} s alternate A B B A: in A all of the platform runs, "
            "in B all of it is stopped (SIGSTOP): Airflow, MLflow, the object store, the local node, the sidecar; what "
            "gathers meanwhile is done in A.",
            "Both sides report metrics and write checkpoints; what is compared is what the platform takes from them.",
            "Heartbeats and checks: CPU time of the pod's sidecar beside a program that says and saves nothing; no "
            "more of each step is lost, where the program leaves no core free.",
        ),
        doubts=tuple(doubts),
    )


def uncertainty(runs: Sequence[Run]) -> float:
    """Two standard errors of the ratio, from neighbouring turns."""
    logs = [
        math.log(each.speed([a]) / each.speed([b]))
        for each in runs
        for a, b in zip(each.of(True), each.of(False), strict=True)
    ]
    return 2 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf


def program(folder: Path) -> Path:
    """The job's code: the benchmark's loop and the example's network."""
    folder.mkdir()
    shutil.copy(REPOSITORY / "bench" / "jobs" / "throughput" / "train.py", folder)
    shutil.copy(REPOSITORY / "jobs" / "digits-cnn" / "digits.py", folder)
    return folder


def run(stack: Stack, code: Path, seconds: float, core: int | None, rng: random.Random) -> Run:
    lengths = drawn(seconds, rng)
    manifest = {
        "name": "bench-throughput",
        "framework": {"name": "pytorch", "version": "2.15"},
        "code": str(code),
        "command": "exec python train.py",
        "params": {"seconds": sum(lengths) + 2 * WARM_UP_SECONDS, **({} if core is None else {"core": core})},
        "resources": {"learners": 1, "cpus": 1, "memory": "2GiB"},
        "checkpoints": {"every": f"{CHECKPOINT_SECONDS}s", "keep": {"latest": 2}},
    }
    job = stack.client.submit(manifest, base=code)
    trainer = started(stack, job.id)
    time.sleep(WARM_UP_SECONDS)
    turns = tuple(take_turns(stack.home, trainer, lengths))
    stack.completed(job.id, within_seconds=PATIENCE_SECONDS)
    with tempfile.TemporaryDirectory() as results:
        files = stack.client.download(job.id, "results", Path(results))
        told: dict[str, Any] = json.loads(next(f for f in files if f.name == "batches.json").read_text())
    return Run(turns, told["samples"], tuple(map(tuple, told["batches"])), tuple(told["checkpoints"]))


def cost_of_checks(stack: Stack, folder: Path, seconds: float) -> float:
    """Percent of a core."""
    folder.mkdir()
    (folder / "train.py").write_text(f"import time\n\ntime.sleep({seconds + 3 * WARM_UP_SECONDS})\n")
    manifest = {
        "name": "bench-silent",
        "framework": {"name": "pytorch", "version": "2.15"},
        "code": str(folder),
        "command": "exec python train.py",
        "resources": {"learners": 1, "cpus": 1, "memory": "1GiB"},
    }
    job = stack.client.submit(manifest, base=folder)
    helpers = _helpers(started(stack, job.id))
    if not helpers:
        raise BenchmarkError(f"no sidecar of {job.id} runs")
    time.sleep(WARM_UP_SECONDS)
    begin, used = time.monotonic(), _cpu_seconds(helpers)
    time.sleep(seconds)
    percent = 100 * (_cpu_seconds(helpers) - used) / (time.monotonic() - begin)
    stack.completed(job.id, within_seconds=PATIENCE_SECONDS)
    return percent


def _cpu_seconds(found: Sequence[psutil.Process]) -> float:
    return sum(times.user + times.system for each in found for times in [each.cpu_times()])


def drawn(seconds: float, rng: random.Random) -> list[float]:
    """Lengths of the turns, in pairs of equal ones, until each side has its seconds."""
    found: list[float] = []
    while sum(found) < 2 * seconds:
        found += [rng.uniform(*TURN_SECONDS)] * 2
    return found


def take_turns(home: Home, trainer: psutil.Process, lengths: Sequence[float]) -> Iterator[Turn]:
    """A turn of that length, whose it is in the order A B B A."""
    for number, length in enumerate(lengths):
        alone = (number + 1) // 2 % 2 == 1
        with standing_still(home, trainer) if alone else nullcontext():
            begin = time.time()
            time.sleep(length)
            end = time.time()
        yield Turn(not alone, begin, end)


@contextmanager
def standing_still(home: Home, trainer: psutil.Process) -> Iterator[None]:
    """All of the platform is stopped, the process that restarts others first and longest; not the trainer."""
    ours = [each for each in (*processes.marked(home), *_helpers(trainer)) if each.pid != trainer.pid]
    ours.sort(key=lambda each: "supervise" not in _words(each))
    try:
        for each in ours:
            _send(each, signal.SIGSTOP)
        yield
    finally:
        for each in reversed(ours):
            _send(each, signal.SIGCONT)


def started(stack: Stack, job_id: str) -> psutil.Process:
    """The job's program, once it runs."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get("TRAINING_ID") == job_id and "train.py" in process.cmdline():
                    return process
        time.sleep(0.5)
    detail = stack.client.job(job_id)
    raise BenchmarkError(f"no program of {job_id} runs: {detail.state}: {detail.reason}")


def _helpers(trainer: psutil.Process) -> list[psutil.Process]:
    """The other processes of the job's pod."""
    mark = f'"job_id": "{trainer.environ()["TRAINING_ID"]}"'
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if mark in process.environ().get(contract.CONFIG_ENV, ""):
                found.append(process)
    return found


def _words(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error, OSError):
        return process.cmdline()
    return []


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.Error):
        process.send_signal(number)
