"""The time from a public program to its registered model, and the lines that were written for it."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from public_programs import PROGRAMS, NoSources, lay_out, repositories_folder

from benchmarks.options import Options
from benchmarks.results import Measured, TableOf, Value
from benchmarks.stack import BenchmarkError, Stack, running_stack

NAME, TITLE = "first_model", "From a public program to a registered model"
NAMES = ("makemore", "ddp-tutorial", "keras-functional", "xgboost-guide", "optuna-sklearn")
JOB_SECONDS = 900


def measure(options: Options) -> Measured:
    names = NAMES[:1] if options.quick else NAMES
    try:
        repositories = repositories_folder()
    except NoSources as exc:
        raise BenchmarkError(str(exc)) from exc
    rows: list[tuple[str | float | None, ...]] = []
    totals: list[float] = []
    with running_stack("bench-first-model") as stack, tempfile.TemporaryDirectory(prefix="updraft-bench-") as folder:
        for name in names:
            found = lay_out(name, repositories, Path(folder) / name)
            seconds, training = registered(stack, found / "manifest.yaml")
            totals.append(seconds)
            rows.append((name, round(seconds, 1), round(training, 1), *written(name)))
    return Measured(
        settings={"programs": len(names)},
        values=(Value(name="From `updraft submit` to the registered model", unit="s", samples=tuple(totals)),),
        tables=(
            TableOf(
                title="Each program, with its source in docs/reference/public-programs.md",
                columns=(
                    "program",
                    "seconds in all",
                    "of these, training",
                    "lines of manifest",
                    "lines added to the program",
                    "lines removed",
                ),
                rows=tuple(rows),
            ),
        ),
        notes=(
            "From the command to the state COMPLETED: upload, packages, queue, training, export and registration. The "
            "images of the frameworks are built before.",
            "What other systems ask for the same is in docs/comparison.md; they were not measured.",
        ),
    )


def registered(stack: Stack, manifest: Path) -> tuple[float, float]:
    """Return the seconds in all, and those of the training."""
    began = time.monotonic()
    job_id = stack.client.submit(manifest).id
    detail = stack.completed(job_id, within_seconds=JOB_SECONDS)
    seconds = time.monotonic() - began
    if detail.model is None:
        raise BenchmarkError(f"{job_id} registered no model")
    (attempt,) = [each for each in stack.client.attempts(job_id).attempts if each.role == "train"]
    assert attempt.ended_at is not None
    return seconds, (attempt.ended_at - attempt.started_at).total_seconds()


def written(name: str) -> tuple[int, int, int]:
    """Return the lines of the manifest without comments and notes, and the lines that the patch adds and removes."""
    lines = [
        line
        for line in (PROGRAMS / name / "manifest.yaml").read_text().partition("annotations:")[0].splitlines()
        if line.strip() and not line.startswith("#")
    ]
    changes = (PROGRAMS / name / "patch.diff").read_text().splitlines()
    added = [line for line in changes if line.startswith("+") and not line.startswith("+++")]
    removed = [line for line in changes if line.startswith("-") and not line.startswith("---")]
    return len(lines), len(added), len(removed)
