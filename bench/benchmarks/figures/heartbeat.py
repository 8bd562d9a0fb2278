"""What the sidecar of a learner costs a busy program: the program beside its sidecar, and with the sidecar stopped.

One and the same process trains on; in every second turn the helpers of its pod are stopped with SIGSTOP. Program and
helpers share one core, so that what the helpers take is missing from the program's steps. Two runs of a program differ
by several per cent in where their memory lies and in what the machine is up to; turns of one process do not.
"""

from __future__ import annotations

import json
import math
import random
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
from benchmarks.training import CHECKPOINT_SECONDS, program
from updraft_learner import contract

NAME, TITLE = "heartbeat", "Heartbeats beside a busy program"
VISIBLE = 0.005  # of the ratio: what is unknown must be less
CHECKS_BUDGET = Budget(at="most", value=0.3)
CHECKS_SECONDS = 60.0
TURN_SECONDS = (3.0, 7.0)  # drawn, so that nothing that comes regularly falls into one side's turns only
WARM_UP_SECONDS = 10.0
PATIENCE_SECONDS = 300.0


@dataclass(frozen=True)
class Turn:
    """With the helpers running, or stopped. Unix seconds."""

    helped: bool
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
        """Return the samples per second."""
        return self.samples * sum(map(self._done, turns)) / sum(turn.end - turn.begin for turn in turns)

    def of(self, helped: bool) -> list[Turn]:
        return [turn for turn in self.turns if turn.helped == helped]

    def share(self) -> float:
        """Return the share of its core that the program had."""
        (began, cpu_began), (ended, cpu_ended) = self.batches[0], self.batches[-1]
        return (cpu_ended - cpu_began) / (ended - began)

    def _done(self, turn: Turn) -> float:
        return self._number(turn.end) - self._number(turn.begin)

    def _number(self, at: float) -> float:
        """Return the batches done by then; a part of one counts in proportion to its time."""
        after = bisect_left(self.batches, at, key=lambda batch: batch[0])
        if not 0 < after < len(self.batches):
            raise BenchmarkError("a turn was not within the program's time")
        before, then = self.batches[after - 1][0], self.batches[after][0]
        return after - 1 + (at - before) / (then - before)


def measure(options: Options) -> Measured:
    rounds = options.pairs(4)
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
    if unknown > VISIBLE:
        doubts.append(
            f"the turns differ so much that {unknown:.1%} of the ratio are unknown, more than the {VISIBLE:.1%} to be "
            "seen"
        )
    return Measured(
        settings={"seconds": seconds, "core": core, "checkpoint_seconds": CHECKPOINT_SECONDS},
        comparisons=(
            Comparison(
                name="Training beside its sidecar on one core",
                unit="samples/s",
                a="sidecar runs",
                b="sidecar is stopped",
                pairs=tuple((each.speed(each.of(True)), each.speed(each.of(False))) for each in runs),
            ),
        ),
        values=(
            Value(name="Two standard errors of the ratio", unit="%", samples=(100 * unknown,)),
            Value(name="What the sidecar adds to a step", unit="ms", samples=tuple(map(added_ms, runs))),
            Value(
                name="Heartbeats and checks of a learner", unit="% of a core", samples=(checks,), budget=CHECKS_BUDGET
            ),
        ),
        notes=(
            "The program is `bench/jobs/throughput/train.py` with the network of jobs/digits-cnn. It reports metrics "
            "and saves checkpoints, which the sidecar forwards and uploads; its pod's helpers are pinned to the same "
            "core (where the system can pin). A pair is one job.",
            f"Turns of {TURN_SECONDS[0]:g} to {TURN_SECONDS[1]:g} s alternate A B B A: in A the sidecar runs, in B it "
            "is stopped (SIGSTOP); what gathers meanwhile is done in A.",
            "Heartbeats and checks: CPU time of the pod's sidecar beside a program that says and saves nothing.",
        ),
        doubts=tuple(doubts),
    )


def added_ms(run: Run) -> float:
    """Return the milliseconds that the helpers add to each step, from the speeds with and without them."""
    return 1000 * run.samples * (1 / run.speed(run.of(True)) - 1 / run.speed(run.of(False)))


def uncertainty(runs: Sequence[Run]) -> float:
    """Return two standard errors of the ratio, from neighbouring turns."""
    logs = [
        math.log(each.speed([a]) / each.speed([b]))
        for each in runs
        for a, b in zip(each.of(True), each.of(False), strict=True)
    ]
    return 2 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf


def run(stack: Stack, code: Path, seconds: float, core: int | None, rng: random.Random) -> Run:
    lengths = drawn(seconds, rng)
    manifest = {
        "name": "bench-heartbeat",
        "framework": {"name": "pytorch", "version": "2.15"},
        "code": str(code),
        "command": "exec python train.py",
        "params": {
            "model": "cnn",
            "seconds": sum(lengths) + 2 * WARM_UP_SECONDS,
            **({} if core is None else {"core": core}),
        },
        "resources": {"learners": 1, "cpus": 1, "memory": "2GiB"},
        "checkpoints": {"every": f"{CHECKPOINT_SECONDS}s", "keep": {"latest": 2}},
    }
    job = stack.client.submit(manifest, base=code)
    trainer = started(stack, job.id)
    time.sleep(WARM_UP_SECONDS)
    helpers = _helpers(trainer)
    if not helpers:
        raise BenchmarkError(f"no sidecar of {job.id} runs")
    pin(helpers, core)
    turns = tuple(take_turns(helpers, lengths))
    stack.completed(job.id, within_seconds=PATIENCE_SECONDS)
    with tempfile.TemporaryDirectory() as results:
        files = stack.client.download(job.id, "results", Path(results))
        told: dict[str, Any] = json.loads(next(f for f in files if f.name == "batches.json").read_text())
    return Run(turns, told["samples"], tuple(map(tuple, told["batches"])), tuple(told["checkpoints"]))


def cost_of_checks(stack: Stack, folder: Path, seconds: float) -> float:
    """Return the cost in per cent of a core."""
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
    """Draw the lengths of the turns, in pairs of equal ones, until each side has its seconds."""
    found: list[float] = []
    while sum(found) < 2 * seconds:
        found += [rng.uniform(*TURN_SECONDS)] * 2
    return found


def take_turns(helpers: Sequence[psutil.Process], lengths: Sequence[float]) -> Iterator[Turn]:
    """Take turns of these lengths in the order A B B A, and yield each."""
    for number, length in enumerate(lengths):
        alone = (number + 1) // 2 % 2 == 1
        with standing_still(helpers) if alone else nullcontext():
            begin = time.time()
            time.sleep(length)
            end = time.time()
        yield Turn(not alone, begin, end)


@contextmanager
def standing_still(helpers: Sequence[psutil.Process]) -> Iterator[None]:
    try:
        for each in helpers:
            _send(each, signal.SIGSTOP)
        yield
    finally:
        for each in helpers:
            _send(each, signal.SIGCONT)


def pin(found: Sequence[psutil.Process], core: int | None) -> None:
    if core is None or not hasattr(psutil.Process, "cpu_affinity"):  # macOS
        return
    for each in found:
        with suppress(psutil.Error, OSError):
            each.cpu_affinity([core])


def started(stack: Stack, job_id: str) -> psutil.Process:
    """Wait until the job's program runs, and return it."""
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
    """Return the other processes of the job's pod."""
    mark = f'"job_id": "{trainer.environ()["TRAINING_ID"]}"'
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if mark in process.environ().get(contract.CONFIG_ENV, ""):
                found.append(process)
    return found


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.Error):
        process.send_signal(number)
