"""Training under the platform against the same program bare, in turn, while the platform is up.

The trainer holds one core; the rest of the platform may use the others. Under the platform there are the sidecar, the
follower of logs and checkpoints, metrics on their way to MLflow; bare there is the program alone, which writes its
checkpoints to the disk all the same.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.machine import REPOSITORY
from benchmarks.options import Options
from benchmarks.results import Budget, Comparison, Measured, Value, spread
from benchmarks.stack import BenchmarkError, Stack, learner_python, running_stack

NAME, TITLE = "throughput", "Training throughput"
BUDGET = Budget(at="least", value=0.99)
CHECKPOINT_SECONDS = 10
PATIENCE_SECONDS = 300


def measure(options: Options) -> Measured:
    rounds = options.pairs(4)
    seconds = options.span(60, 8)
    cores = machine.cores()
    params: dict[str, Any] = {
        "seconds": seconds,
        "warm_up_seconds": min(10.0, seconds / 2),
        "core": cores[-1] if len(cores) > 1 else None,
    }
    managed, bare = [], []
    with tempfile.TemporaryDirectory(prefix="updraft-bench-", dir=REPOSITORY / ".updraft") as folder:
        code = program(Path(folder) / "code")
        with running_stack() as stack:
            for _ in range(rounds):
                managed.append(on_platform(stack, code, params, Path(folder)))
                bare.append(alone(code, params, Path(folder)))
    return measured(managed, bare, params)


def measured(managed: list[dict[str, Any]], bare: list[dict[str, Any]], params: dict[str, Any]) -> Measured:
    def pairs(per: str) -> tuple[tuple[float, float], ...]:
        both = zip(managed, bare, strict=True)
        return tuple((m["samples"] / m[per], b["samples"] / b[per]) for m, b in both)

    doubts = []
    if len(bare) > 1 and (among := spread([b["samples"] / b["seconds"] for b in bare])) > 1 - BUDGET.value:
        doubts.append(
            f"the bare runs differ by {among:.1%} among themselves, more than the {1 - BUDGET.value:.0%} to be seen"
        )
    if (share := min(r["cpu_seconds"] / r["seconds"] for r in (*managed, *bare))) < 0.97:
        doubts.append(f"a trainer had its core only {share:.0%} of the time")
    return Measured(
        settings={**params, "checkpoint_seconds": CHECKPOINT_SECONDS},
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
            Value(
                name="Checkpoints in a run on the platform", unit="", samples=tuple(m["checkpoints"] for m in managed)
            ),
            Value(name="Checkpoints in a bare run", unit="", samples=tuple(b["checkpoints"] for b in bare)),
        ),
        notes=(
            "The program is `bench/jobs/throughput/train.py`: the network and the augmentation of jobs/digits-cnn, one "
            "thread, pinned to one core (where the system can pin). Its start and its first seconds do not count.",
            "Both sides run while the platform is up. Neither side's helpers are pinned.",
            "Per CPU second, time that others took from the trainer's core does not count.",
        ),
        doubts=tuple(doubts),
    )


def program(folder: Path) -> Path:
    """The job's code: the benchmark's loop and the example's network."""
    folder.mkdir()
    shutil.copy(REPOSITORY / "bench" / "jobs" / "throughput" / "train.py", folder)
    shutil.copy(REPOSITORY / "jobs" / "digits-cnn" / "digits.py", folder)
    return folder


def on_platform(stack: Stack, code: Path, params: dict[str, Any], folder: Path) -> dict[str, Any]:
    manifest = {
        "name": "bench-throughput",
        "framework": {"name": "pytorch", "version": "2.15"},
        "code": str(code),
        "command": "python train.py",
        "params": {name: value for name, value in params.items() if value is not None},
        "resources": {"learners": 1, "cpus": 1, "memory": "2GiB"},
        "checkpoints": {"every": f"{CHECKPOINT_SECONDS}s", "keep": {"latest": 2}},
    }
    job = stack.client.submit(manifest, base=code)
    limit_seconds = params["seconds"] + PATIENCE_SECONDS
    detail = stack.client.wait(job.id, timeout_seconds=limit_seconds, poll_seconds=5)
    if detail.state != "COMPLETED":
        raise BenchmarkError(f"the job ended {detail.state}: {detail.reason}")
    with tempfile.TemporaryDirectory(dir=folder) as results:
        files = stack.client.download(job.id, "results", Path(results))
        return read_speed(next(f for f in files if f.name == "speed.json"))


def alone(code: Path, params: dict[str, Any], folder: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        here = Path(place)
        (here / "params.json").write_text(json.dumps(params))
        done = subprocess.run(
            [str(learner_python()), "train.py"],
            cwd=code,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": place,
                "OMP_NUM_THREADS": "1",
                "UPDRAFT_PARAMS_FILE": str(here / "params.json"),
                "UPDRAFT_CHECKPOINT_SECONDS": str(CHECKPOINT_SECONDS),
                "RESULT_DIR": str(here / "result"),
                "CHECKPOINT_DIR": str(here / "checkpoints"),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=params["seconds"] + PATIENCE_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise BenchmarkError(f"the bare program failed:\n{done.stderr[-2000:]}")
        shutil.rmtree(code / "updraft-out", ignore_errors=True)  # its metrics file
        return read_speed(here / "result" / "speed.json")


def read_speed(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
