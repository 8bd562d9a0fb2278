"""The same elastic jobs in the simulator and on the platform: how far apart their completion times are."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.machine import REPOSITORY
from benchmarks.options import Options
from benchmarks.results import Measured, TableOf, Value
from benchmarks.stack import BenchmarkError, Stack, running_stack
from updraft.allocation.elastic import SizingRules
from updraft.allocation.scalability import Limits
from updraft.ledger import open_ledger
from updraft.ledger.records import Use
from updraft.simulation import TrainingJob, simulate
from updraft.simulation.engine import Run
from updraft.simulation.sized import Updraft
from updraft.simulation.traces import KINDS, generate

NAME, TITLE = "elastic_jobs", "Elastic jobs: simulator and platform"
DEVICES, JOBS, PER_HOUR, SHORTER = 8, 30, 450, 30.0
RESIZE_MINUTES = 0.1
END_SECONDS = 1800.0
RELEASE_SECONDS = 60.0
PROGRAM = REPOSITORY / "bench" / "jobs" / "elastic"

NOTES = (
    f"{JOBS} jobs of `updraft.simulation.traces`, of four kinds, arrive at random, {PER_HOUR} in an hour, and share "
    f"{DEVICES} devices. Each trains for 20 to 180 s on one device. On the platform, the devices are imaginary GPUs of "
    "the local node, and a step is a sleep of the length that the kind's speed gives, so that all of them can train on "
    "two cores. Everything else is real: DAG runs, pods as processes, checkpoints, the planner. The platform measures "
    "speeds while jobs run, as it does for any job; the jobs of a kind are a series.",
    "*Simulator*: the same jobs under the platform's policy. It knows the speeds from the beginning. A start takes as "
    "long as the median on the platform: from the grant to the first step, and from the last step to the release of "
    "the room. So does a resize: from the request to the first step of the next attempt.",
    "*Completion*: from joining the queue to the release of the room.",
)


@dataclass(frozen=True)
class Ran:
    """A job on the platform, in seconds since the first one joined the queue."""

    joined: float
    granted: float
    released: float
    first_step: float
    last_step: float
    resizes: int


def measure(options: Options) -> Measured:
    count = 6 if options.quick else JOBS
    jobs = _jobs(count)
    variables = {"UPDRAFT_RESIZE_MINUTES": str(RESIZE_MINUTES)}
    with running_stack(variables=variables, gpus=DEVICES) as stack:
        ids = _submitted(stack, jobs)
        ran, pauses = _ran(stack, ids)
    start = statistics.median(each.first_step - each.granted + each.released - each.last_step for each in ran.values())
    pause = statistics.median(pauses) if pauses else start
    arrived = [replace(job, arrives=ran[job.job_id].joined) for job in jobs]
    policy = Updraft(SizingRules(least_seconds=60 * RESIZE_MINUTES))
    run = simulate(arrived, DEVICES, policy, pause_seconds=pause, start_seconds=start)
    return _measured(jobs, ran, run, start, pauses)


def _jobs(count: int) -> list[TrainingJob]:
    made = generate(count, PER_HOUR, seed=4)
    limits = {job.job_id: replace(job.limits, max_learners=DEVICES) for job in made}
    return [replace(job, work=job.work / SHORTER, limits=limits[job.job_id]) for job in made]


def _submitted(stack: Stack, jobs: Sequence[TrainingJob]) -> dict[str, str]:
    """Submit each job when it arrives; return the platform's ids by those of the trace."""
    ids = {}
    began = time.monotonic()
    for job in jobs:
        time.sleep(max(0.0, job.arrives - (time.monotonic() - began)))
        ids[job.job_id] = stack.client.submit(_manifest(job), base=PROGRAM.parent).id
    return ids


def _manifest(job: TrainingJob) -> dict[str, Any]:
    kind = next(name for name, kind in KINDS.items() if kind.speed == job.speed and _same(kind.limits, job.limits))
    speed = {name: getattr(job.speed, name) for name in ("fixed", "per_sample", "sync", "sync_per_learner")}
    elastic = {
        "min_learners": job.limits.min_learners,
        "max_learners": job.limits.max_learners,
        "min_batch": job.limits.min_batch,
        "max_batch": job.limits.max_batch,
        "max_batch_per_learner": job.limits.max_per_learner,
    }
    return {
        "name": kind,
        "image": "updraft/sidecar:0.1",
        "code": PROGRAM.name,
        "command": "python train.py",
        "params": {**speed, "samples": job.work},
        "resources": {"cpus": 0.05, "memory": "96MiB", "gpus": 1},
        "elastic": elastic,
        "checkpoints": {"every": "5s", "keep": {"latest": 1}},
    }


def _same(a: Limits, b: Limits) -> bool:
    return (a.min_batch, a.max_batch) == (b.min_batch, b.max_batch)


def _ran(stack: Stack, ids: Mapping[str, str]) -> tuple[dict[str, Ran], list[float]]:
    """Wait for the jobs; return what became of each, and the pauses of all resizes."""
    pauses: list[float] = []
    found: dict[str, Ran] = {}
    for name, job_id in ids.items():
        stack.completed(job_id, within_seconds=END_SECONDS)
        with tempfile.TemporaryDirectory() as folder:
            files = stack.client.download(job_id, "results", Path(folder))
            (times,) = (path.read_text().split() for path in files if path.name == "times.txt")
        first, last, *_ = map(float, times)
        uses = _released(stack, job_id)
        joined = stack.client.job(job_id)
        begun = next(each.at for each in joined.transitions if each.state == "QUEUED")
        ends = [each.released_at for each in uses if each.released_at is not None]  # all of them
        found[name] = Ran(
            begun.timestamp(),
            min(each.granted_at for each in uses).timestamp(),
            max(ends).timestamp(),
            first,
            last,
            sum(each.role == "train" for each in stack.client.attempts(job_id).attempts) - 1,
        )
    for each in stack.client.sizes().rounds:
        pauses += [change.pause_seconds for change in each.changes if change.pause_seconds is not None]
    zero = min(each.joined for each in found.values())
    shifted = {
        name: Ran(
            each.joined - zero,
            each.granted - zero,
            each.released - zero,
            each.first_step - zero,
            each.last_step - zero,
            each.resizes,
        )
        for name, each in found.items()
    }
    return shifted, pauses


def _released(stack: Stack, job_id: str) -> Sequence[Use]:
    """Return what the job has held, once it holds nothing any more: its verdict is written a little before."""
    until = time.monotonic() + RELEASE_SECONDS
    while time.monotonic() < until:
        uses = [each for each in _ledger_uses(stack) if each.job_id == job_id]
        if uses and all(each.released_at is not None for each in uses):
            return uses
        time.sleep(0.5)
    raise BenchmarkError(f"{job_id} is complete, but holds its room after {RELEASE_SECONDS:.0f} s")


def _ledger_uses(stack: Stack) -> Sequence[Use]:
    return open_ledger(f"sqlite:///{stack.home.root / 'ledger.db'}").queue.used(datetime(2020, 1, 1, tzinfo=UTC))


def _measured(
    jobs: Sequence[TrainingJob], ran: Mapping[str, Ran], run: Run, start: float, pauses: Sequence[float]
) -> Measured:
    simulated = {course.job.job_id: course for course in run.courses}
    rows, errors, real, virtual = [], [], [], []
    for job in jobs:
        mine, course = ran[job.job_id], simulated[job.job_id]
        assert course.ended is not None
        took, expected = mine.released - mine.joined, course.ended - course.job.arrives
        real.append(took)
        virtual.append(expected)
        errors.append(abs(expected - took) / took)
        rows.append(
            (
                job.job_id,
                str(_manifest(job)["name"]),
                round(mine.joined, 1),
                round(took, 1),
                round(expected, 1),
                f"{expected / took - 1:+.0%}",
                mine.resizes,
                course.resizes,
            )
        )
    values = [
        Value(name="Mean completion, platform", unit="s", samples=(statistics.fmean(real),)),
        Value(name="Mean completion, simulator", unit="s", samples=(statistics.fmean(virtual),)),
        Value(
            name="Mean completion, simulator / platform",
            unit="",
            samples=(statistics.fmean(virtual) / statistics.fmean(real),),
        ),
        Value(name="Error of a job's completion time", unit="", samples=tuple(errors)),
        Value(name="Start and end of a job, platform", unit="s", samples=(start,)),
    ]
    if pauses:
        values.append(Value(name="Pause of a resize, platform", unit="s", samples=tuple(pauses)))
    columns = ("job", "kind", "joined, s", "platform, s", "simulator, s", "error", "resizes", "resizes, simulator")
    return Measured(
        settings={"jobs": len(jobs), "devices": DEVICES, "resize_minutes": RESIZE_MINUTES},
        values=tuple(values),
        tables=(TableOf(title="Each job", columns=columns, rows=tuple(rows)),),
        notes=NOTES,
    )
