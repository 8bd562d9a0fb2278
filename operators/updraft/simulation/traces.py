"""Make traces of training jobs, or read one from a CSV file."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from updraft.allocation.scalability import Limits, Speed, best_points
from updraft.exceptions import UpdraftError
from updraft.simulation.engine import Size, TrainingJob

Batch = Literal["smallest", "largest", "random"]
MOST_LEARNERS = 16
MINUTES = (10.0, 90.0)  # of training on one device: between them, equally likely on a logarithmic scale
ASKED = (1, 1, 2, 2, 4, 8)  # learners that jobs of fixed size ask for
PER_LEARNER = 32  # samples of a batch, of jobs that are read from a file
COLUMNS = ("arrives", "seconds", "learners")  # that a file must have
OPTIONAL = ("job_id", "kind", "min_learners", "max_learners")


class TraceError(UpdraftError):
    """A trace cannot be read."""


@dataclass(frozen=True)
class Kind:
    """Jobs that scale alike."""

    speed: Speed
    limits: Limits


# Seconds per step, made up so that on 8 learners and the largest batch a compute-bound job is about 7 times as fast as
# on one, a balanced one 4 times, and a communication-bound one 2 times.
KINDS: Mapping[str, Kind] = {
    "compute": Kind(Speed(0.02, 0.008, 0.02, 0.001), Limits(1, MOST_LEARNERS, 32, 512, 64)),
    "balanced": Kind(Speed(0.02, 0.004, 0.10, 0.005), Limits(1, MOST_LEARNERS, 32, 512, 64)),
    "communication": Kind(Speed(0.01, 0.002, 0.20, 0.010), Limits(1, MOST_LEARNERS, 32, 512, 64)),
    "restricted": Kind(Speed(0.02, 0.008, 0.02, 0.001), Limits(1, MOST_LEARNERS, 64, 64, 64)),
}
MIX = tuple(KINDS)


def generate(
    count: int,
    per_hour: float,
    *,
    mix: Sequence[str] = MIX,
    batch: Batch = "random",
    seed: int = 0,
) -> tuple[TrainingJob, ...]:
    """Make jobs that arrive at random (a Poisson process), of these kinds in equal parts.

    Args:
        count: How many.
        per_hour: How many arrive in an hour, on average.
        batch: Which batch of its range a job has where the policy does not choose it.
        seed: The same one gives the same trace.
    """
    if count < 0 or not per_hour > 0:
        raise ValueError(f"{count} jobs and {per_hour} in an hour: neither may be negative, and some must arrive")
    chance, now, made = random.Random(seed), 0.0, []
    for number in range(count):
        now += chance.expovariate(per_hour / 3600)
        kind = KINDS[chance.choice(mix)]
        low, high = map(math.log, MINUTES)
        seconds = 60 * math.exp(chance.uniform(low, high))
        asked, share = chance.choice(ASKED), chance.random()
        learners, fixed = _fixed(kind.limits, asked, batch, share)
        alone = best_points(kind.speed, replace(kind.limits, max_learners=1))[0]
        work = seconds * alone.goodput
        made.append(TrainingJob(f"job-{number:05d}", now, work, kind.speed, kind.limits, Size(learners, fixed)))
    return tuple(made)


def _fixed(limits: Limits, asked: int, batch: Batch, share: float) -> tuple[int, int]:
    """Return learners and batch of a job of fixed size: a power of two times the smallest batch, and at least as many
    learners as have memory for it."""
    assert limits.min_batch is not None
    assert limits.max_batch is not None
    batches, size = [], limits.min_batch
    while size <= limits.max_batch:
        batches.append(size)
        size *= 2
    at = {"smallest": 0, "largest": len(batches) - 1, "random": int(share * len(batches))}[batch]
    chosen = batches[at]
    least = -(-chosen // limits.max_per_learner) if limits.max_per_learner else 1
    return min(max(asked, least), limits.max_learners), chosen


def read(path: Path) -> tuple[TrainingJob, ...]:
    """Read a trace: a CSV file with a row for each job, as one makes it of the Philly traces (Jeon et al., ATC 2019).

    Columns: `arrives` (seconds), `seconds` (of training with the learners that it asked for) and `learners`; and, if
    they are there, `job_id`, `kind` (one of `KINDS`; `compute` without it), `min_learners` and `max_learners`.

    Raises:
        TraceError: with the line, the column and the value.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            names = reader.fieldnames or ()
            if lacking := [name for name in COLUMNS if name not in names]:
                raise TraceError(f"{path}: column {', '.join(lacking)} is missing; it has {', '.join(names) or 'none'}")
            jobs = tuple(_job(path, number, row) for number, row in enumerate(reader, start=2))
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        raise TraceError(f"{path} cannot be read as a trace: {e}") from e
    if not jobs:
        raise TraceError(f"{path} has no jobs")
    return jobs


def _job(path: Path, line: int, row: Mapping[str, str | None]) -> TrainingJob:
    def number(name: str, least: float, default: float | None = None) -> float:
        text = row.get(name) or ""
        if not text.strip() and default is not None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not value >= least or math.isinf(value):
            raise TraceError(f"{path}, line {line}: {name} is {text!r}; a number of at least {least:g} is needed")
        return value

    name = (row.get("kind") or "compute").strip()
    if name not in KINDS:
        raise TraceError(f"{path}, line {line}: kind is {name!r}; there are {', '.join(KINDS)}")
    kind, learners = KINDS[name], int(number("learners", 1))
    least = int(number("min_learners", 1, 1))
    most = int(number("max_learners", least, max(MOST_LEARNERS, learners)))
    fixed = Size(learners, PER_LEARNER * learners)
    batches = (fixed.batch, fixed.batch) if name == "restricted" else (PER_LEARNER, 2 * PER_LEARNER * most)
    limits = Limits(least, most, *batches, max_per_learner=None if name == "restricted" else 2 * PER_LEARNER)
    job = TrainingJob(row.get("job_id") or f"line-{line}", number("arrives", 0), 1.0, kind.speed, limits, fixed)
    return replace(job, work=number("seconds", 0) * job.rate(fixed))


def describe(jobs: Sequence[TrainingJob]) -> Iterator[tuple[str, str]]:
    """Return what a person wants to know of a trace: how many jobs over what time, and how large."""
    yield "jobs", f"{len(jobs):,}"
    if jobs:
        hours = (max(job.arrives for job in jobs) - min(job.arrives for job in jobs)) / 3600
        yield "arrive over", f"{hours:.1f} h"
        yield (
            "device-hours at their fixed sizes",
            f"{sum(j.seconds_alone() * j.fixed.learners for j in jobs) / 3600:,.0f}",
        )
